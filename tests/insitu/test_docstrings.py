"""The examples in the docstrings run, and importing the package loads nothing it does not need."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from lapwing import insitu

MODULES = [m.name for m in pkgutil.walk_packages(insitu.__path__, "lapwing.insitu.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", ["lapwing.insitu", *MODULES])
def test_docstrings(name):
    if name.endswith(".plot"):
        pytest.importorskip("matplotlib")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_names():
    assert all(hasattr(insitu, name) for name in insitu.__all__)
    for name in ("POD", "DMD", "Stats", "Probe", "Spectrum", "Snapshots", "Plot", "Stop", "Writer", "Progress"):
        assert getattr(insitu, name).__doc__ and "Examples" in getattr(insitu, name).__doc__


def test_import_loads_no_extras():
    code = """
import sys, logging, signal, threading, os
before = (signal.getsignal(signal.SIGINT), logging.root.handlers[:], threading.active_count(), dict(os.environ))
import lapwing.insitu, lapwing.insitu.solver.bridge
extras = {"torch", "jax", "cupy", "mpi4py", "h5py", "matplotlib", "scipy", "tensorflow"}
assert not extras & {m.partition(".")[0] for m in sys.modules}
assert before == (signal.getsignal(signal.SIGINT), logging.root.handlers[:], threading.active_count(), dict(os.environ))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
