"""JAXMg's programs unchanged but for the import (and for asking for GPUs), on two CPU devices, on one, and on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")


def run(*options: str, **settings: str) -> int:
    """How many of the programs passed."""
    import lapwing

    path = os.pathsep.join([str(Path(lapwing.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *options, str(Path(__file__).with_name("jaxmg_cases.py"))]
    env = os.environ | {"PYTHONPATH": path} | settings
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("passed")


@pytest.mark.parametrize("devices", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_jaxmg(devices):
    # most of the time goes into compiling: quick code is not needed here
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags = f"--xla_force_host_platform_device_count={devices} {quick}"
    assert run("-W", "error", XLA_FLAGS=flags, JAX_PLATFORMS="cpu") == 5


@pytest.mark.gpu
def test_jaxmg_on_a_gpu():
    assert run(JAX_PLATFORMS="cuda", CUDA_VISIBLE_DEVICES="0", XLA_PYTHON_CLIENT_PREALLOCATE="false") == 5


def test_device_supports_vmm_names_what_is_missing():
    from lapwing.compat.jaxmg import device_supports_vmm

    try:
        assert device_supports_vmm(0) in (True, False)
    except RuntimeError as error:
        assert "driver" in str(error) or "GPU 0" in str(error)
