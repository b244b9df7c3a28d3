"""A first use of an installed lapwing, in every library that is installed beside it. Prints one line each."""

import contextlib
import importlib
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import lapwing as lw

assert "site-packages" in lw.__file__, f"smoke: {lw.__file__} is no installed package\nhint: run it outside of the source tree"
command = str(Path(sys.executable).with_name("lapwing"))
info = subprocess.run([command, "info"], check=True, text=True, stdout=subprocess.PIPE).stdout
assert lw.__version__ in info, info
if "--no-native" not in sys.argv:
    from lapwing.core.native import native

    assert native is not None, "smoke: the native core did not load"
    folder = Path(lw.__file__).parent
    assert (folder / "liblapwing_insitu.so").exists(), "smoke: liblapwing_insitu.so is missing"

g = np.random.default_rng(0).standard_normal((1000, 12, 12))
a = g @ g.transpose(0, 2, 1) + 12 * np.eye(12)
expected = np.linalg.cholesky(a)


def check(name: str, array: object) -> None:
    start = time.perf_counter()
    factor = np.asarray(lw.cholesky(array))
    solution = np.asarray(lw.solve(array, array))
    seconds = time.perf_counter() - start
    assert np.abs(factor - expected).max() < 1e-3, name
    assert np.abs(solution - np.eye(12)).max() < 1e-3, name
    print(f"{name:12} right, first calls {seconds:.2f} s")


check("numpy", a)
w, v = lw.eigh(a)
assert np.abs(a @ v - v * w[:, None, :]).max() < 1e-10
with contextlib.suppress(lw.NotPositiveDefiniteError):
    lw.cholesky(-a)
    raise AssertionError("smoke: no error for a negative definite matrix")
for name, make in (("torch", "from_numpy"), ("jax.numpy", "asarray"), ("tensorflow", "constant")):
    try:
        library = importlib.import_module(name)
    except ImportError:
        print(f"{name:12} not installed")
        continue
    check(name, getattr(library, make)(a))
print(f"lapwing {lw.__version__} works with Python {platform.python_version()}, NumPy {np.__version__}")
