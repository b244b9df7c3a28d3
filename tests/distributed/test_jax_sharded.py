"""Sharded JAX arrays on 8 CPU devices. The devices must exist before JAX starts: one process runs all checks."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

# the second takes the checks of the first along
FILES = [Path(__file__).with_name(name) for name in ("jax_cases.py", "jax_edge_cases.py")]
NAMES = [
    node.name
    for file in FILES
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.FunctionDef) and [getattr(d, "id", "") for d in node.decorator_list] == ["check"]
]


@pytest.fixture(scope="module")
def results():
    import lapwing

    source = str(Path(lapwing.__file__).parents[1])
    env = os.environ | {
        # most of the time goes into compiling: quick code is not needed here
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
        " --xla_llvm_disable_expensive_passes=true",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, "-W", "error", str(FILES[-1])], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_sharded(results, name):
    assert results[name] == "", results[name]
