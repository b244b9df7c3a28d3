"""JAXMg's programs unchanged but for the import (and for asking for GPUs), on two CPU devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")


def test_jaxmg():
    import lapwing

    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(Path(lapwing.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    script = str(Path(__file__).with_name("jaxmg_cases.py"))
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == 5


def test_device_supports_vmm_names_what_is_missing():
    from lapwing.compat.jaxmg import device_supports_vmm

    try:
        assert device_supports_vmm(0) in (True, False)
    except RuntimeError as error:
        assert "driver" in str(error) or "GPU 0" in str(error)
