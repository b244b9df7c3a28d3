"""The kernels for one real matrix, compiled for processors with narrower vectors than this one's."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

COMPILER = shutil.which("g++") or shutil.which("c++")
NATIVE = Path(__file__).parents[2] / "native"
SOURCE = """
#include "cpu/eig_one.cc"
#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN bool eig_double(int64_t n, const double* a, void* w, void* v) {
  return lapwing::eig_one(n, a, static_cast<std::complex<double>*>(w), static_cast<std::complex<double>*>(v));
}
SHOWN bool eig_float(int64_t n, const float* a, void* w, void* v) {
  return lapwing::eig_one(n, a, static_cast<std::complex<float>*>(w), static_cast<std::complex<float>*>(v));
}
"""


@pytest.mark.skipif(COMPILER is None or not NATIVE.exists(), reason="needs a C++ compiler and the sources")
@pytest.mark.parametrize("level", [0, 1])
def test_narrow_vectors(tmp_path, level):
    source, library = tmp_path / "eig.cc", tmp_path / "eig.so"
    source.write_text(SOURCE)
    # hidden, as the level of one library would be that of the next one too
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-w", f"-I{NATIVE}", f"-DLAPWING_LEVEL={level}"]
    subprocess.run([COMPILER, *options, str(source), "-o", str(library)], check=True)
    functions = ctypes.CDLL(str(library))
    for n in (1, 2, 3, 5, 16, 17, 18, 19, 41):
        for dtype, kind in ((np.float64, np.complex128), (np.float32, np.complex64)):
            function = functions.eig_double if dtype is np.float64 else functions.eig_float
            a = np.random.default_rng(n).standard_normal((n, n)).astype(dtype)
            w, v = np.empty(n, kind), np.empty((n, n), kind)
            function.restype = ctypes.c_bool
            assert function(ctypes.c_int64(n), *(ctypes.c_void_p(x.ctypes.data) for x in (a, w, v)))
            size = np.abs(a).sum(-1).max()
            assert np.abs(a @ v - v * w).max() <= 10 * n * np.finfo(dtype).eps * size
            assert np.abs(np.linalg.norm(v, axis=0) - 1).max() <= 10 * n * np.finfo(dtype).eps
