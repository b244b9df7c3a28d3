"""Spectra and QR of an n = 2048 matrix on 8 CPU devices: nothing is gathered, and memory falls with the number of devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eigh", "svd", "qr"])
def test_large(name):
    import lapwing

    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(Path(lapwing.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(Path(__file__).with_name("jax_dense_cases.py")), "2048", name]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1200)
    assert done.returncode == 0, done.stderr
    few, many = map(json.loads, done.stdout.splitlines())
    assert many["temporary"] <= 8 and many["largest"] < 0.5, many
    # Four times the devices: blocks fall as 1/P, panels do not (7.5 MB of the 20 MB that QR takes beside its blocks).
    assert many["bytes"] < few["bytes"] / 3, (few, many)
    assert many["temporary_bytes"] < few["temporary_bytes"] / 2.5, (few, many)
    assert many["compile"] <= 20, many
    assert many["residual"] <= 10 and many["orthogonality"] <= 10, many
