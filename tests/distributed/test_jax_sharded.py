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
# compiling them takes as long as most of the others together
LONG = {"wild_spectra", "decompositions_of_any_shape", "eager_derivatives_of_spectra"}


def run_checks(names):
    import lapwing

    source = str(Path(lapwing.__file__).parents[1])
    env = os.environ | {
        # most of the time goes into compiling: quick code is not needed here
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
        " --xla_llvm_disable_expensive_passes=true",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-W", "error", str(FILES[-1]), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results():
    return run_checks([name for name in NAMES if name not in LONG])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LONG])
def test_sharded(results, name):
    assert results[name] == "", results[name]


@pytest.fixture(scope="module")
def long_results():
    return run_checks(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONG))
def test_sharded_for_long(long_results, name):
    assert long_results[name] == "", long_results[name]
