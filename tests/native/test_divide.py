"""Divide and conquer of tridiagonal matrices: native/gpu/divide.cc and its kernels, run as host code (tests/emulate)."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent / "mock"))
import harness

import lapwing

KERNELS = Path(lapwing.__file__).parent / "kernels"
# in divide.cc: below them a GPU would not be busy
LIMITS = {"FEW_TILES": 264, "MANY_ROOTS": 200000, "FEW_ROOTS": 15000, "MANY_LEAVES": 4000}
POINTER, INTEGER, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")


class Solver:
    """divide() with its kernels as host code; ``changes`` are put into the text of divide.cc first."""

    def __init__(self, folder, libraries, changes=()):
        source = (harness.NATIVE / "gpu" / "divide.cc").read_text()
        for before, after in changes:
            assert before in source
            source = source.replace(before, after)
        changed, library = folder / "divide.cc", folder / "divide.so"
        changed.write_text(source)
        options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-iquote{harness.NATIVE}"]
        subprocess.run([harness.COMPILER, *options, "-o", library, harness.MOCK / "divide.cc", changed], check=True)
        self.compiler, self.library = ctypes.CDLL(libraries / "libnvrtc.so.13"), ctypes.CDLL(library)
        self.kernels, self.libraries = [], {}
        self.callbacks = (
            ctypes.CFUNCTYPE(POINTER, TEXT, TEXT, TEXT)(self.find),
            ctypes.CFUNCTYPE(INTEGER, POINTER, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, POINTER)(self.queue),
        )
        for name, callback in zip(("find", "queue"), self.callbacks, strict=True):
            POINTER.in_dll(self.library, name).value = ctypes.cast(callback, POINTER).value
        self.library.divide_bytes.restype = ctypes.c_int64
        self.library.divide_bytes.argtypes = self.sizes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int32]
        self.library.divide.argtypes = [*self.sizes, *[POINTER] * 6]

    def compile(self, source, options):
        headers = sorted(KERNELS.glob("*.cuh"))
        texts = (TEXT * len(headers))(*[h.read_bytes() for h in headers])
        names = (TEXT * len(headers))(*[h.name.encode() for h in headers])
        program, size, words = POINTER(), ctypes.c_size_t(), options.split()
        nvrtc = self.compiler
        assert not nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), (KERNELS / source.decode()).read_bytes(), source, len(headers), texts, names
        )
        assert not nvrtc.nvrtcCompileProgram(program, len(words), (TEXT * len(words))(*words))
        assert not nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        assert not nvrtc.nvrtcGetCUBIN(program, binary)
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return ctypes.CDLL(binary.value.decode().rpartition("emulated ")[2].strip())

    def find(self, source, options, name):
        if (source, options) not in self.libraries:
            self.libraries[source, options] = self.compile(source, options)
        self.kernels.append((self.libraries[source, options], name))
        return len(self.kernels)

    def queue(self, kernel, blocks, threads, shared, arguments):
        library, name = self.kernels[kernel - 1]
        return library.emulate(name, POINTER(arguments), blocks, 1, threads, shared)

    def __call__(self, d, e, shift=0):
        """(w, z, info) of the matrices with diagonals d and e; z begins ``shift`` elements after an aligned address."""
        (batch, n), dtype = d.shape, d.dtype
        code, d, last = int(dtype == np.float64), d.copy(), np.full((batch, 1), np.nan, dtype)
        e, w, info = np.concatenate([e, last], axis=1), np.full((batch, n), -7, dtype), np.full(batch, 99, np.int32)
        z = np.full(batch * n * n + shift, -7, dtype)[shift:].reshape(batch, n, n)
        size = self.library.divide_bytes(batch, n, code)
        scratch = np.full(size + 4096, 0xFF, np.uint8)  # NaN where nothing was written
        scratch[size:] = 0x5A
        places = [x.ctypes.data for x in (d, e, w, z, scratch, info)]
        assert self.library.divide(batch, n, code, *places) == 0
        assert (scratch[size:] == 0x5A).all(), "written past the scratch memory"
        return w, z, info


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    libraries = harness.libraries(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOCK_EMULATE", str(tmp_path_factory.mktemp("emulated")))
        patch.setenv("MOCK_EMULATOR", str(harness.EMULATOR))
        yield lambda *changes: Solver(tmp_path_factory.mktemp("divide"), libraries, changes)


@pytest.fixture(scope="module")
def solve(build):
    return build()


def matrices(n, rng):
    """Pairs of diagonals by name."""
    normal, ones, below = rng.standard_normal, np.ones(n), np.ones(n - 1)
    grades, coupling, few = 10.0 ** np.linspace(0, -15, n), normal(n - 1), np.where(np.arange(n) < n // 4, 1, 1e-20)
    split, glue = np.round(coupling), below.copy()
    split[::5], glue[20::21] = 0, 1e-7
    return {
        "random": (normal(n), coupling),
        "negative": (-abs(normal(n)), -abs(coupling)),
        "identity": (ones, 0 * below),
        "zero": (0 * ones, 0 * below),
        "diagonal": (normal(n), 0 * below),
        "second difference": (2 * ones, -below),
        "Wilkinson": (abs(np.arange(n) - (n - 1) / 2), below),
        "glued Wilkinson": (abs(np.arange(n) % 21 - 10.0), glue),
        "graded": (grades, grades[:-1] / 2),
        "graded upwards": (grades[::-1], grades[-2::-1] / 2),
        "clustered": (1 + 1e-9 * normal(n), 1e-9 * coupling),
        "tiny": (1e-30 * normal(n), 1e-30 * coupling),
        "huge": (1e30 * normal(n), 1e30 * coupling),
        "low rank": (few * normal(n), few[:-1] * coupling),
        "integers": (np.round(normal(n)), split),
    }


def check(solve, n, dtype, names=None, shift=0):
    cases = matrices(n, np.random.default_rng(n))
    names = names or list(cases)
    d, e = (np.stack([cases[name][part] for name in names]).astype(dtype) for part in (0, 1))
    w, z, info = solve(d, e, shift)
    assert not info.any()
    assert (np.diff(w) >= 0).all()
    tolerance = 10 * n * np.finfo(dtype).eps
    for name, *of in zip(names, d.astype(float), e.astype(float), w.astype(float), z.astype(float), strict=True):
        a = np.diag(of[0]) + np.diag(of[1], 1) + np.diag(of[1], -1)
        expected = np.linalg.eigvalsh(a)
        size = abs(expected).max()
        assert abs(of[2] - expected).max() <= tolerance * size, name
        assert abs(of[3] @ a - of[2][:, None] * of[3]).max() <= tolerance * size, name
        assert abs(of[3] @ of[3].T - np.eye(n)).max() <= tolerance, name


def test_two_leaves(solve):
    check(solve, 33, np.float32, ["random", "glued Wilkinson", "identity"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 5, 32, 33, 64, 100, 130])
def test_divide(solve, n, dtype):
    check(solve, n, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_addresses(solve, dtype):
    """Eigenvectors at an address that allows no wide accesses."""
    check(solve, 68, dtype, ["random", "integers"], shift=1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_batches(build, dtype):
    """The kernels of large batches: large tiles, few lanes to a root, several leaves to a warp."""
    changes = [(f"{name} = {value}", f"{name} = 0") for name, value in LIMITS.items()]
    solve = build(("half <= 64 ||", ""), *changes)
    for n in (130, 300):
        check(solve, n, dtype, ["random", "integers", "glued Wilkinson", "low rank"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_merges(build, dtype):
    """Pairs that are too large for shared memory are merged in global memory."""
    solve = build(("merge_shared + RESERVED <= shared_per_block", "size < 40"))
    check(solve, 131, dtype, ["random", "integers", "glued Wilkinson", "low rank"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [7, 40])
def test_not_finite(solve, n, dtype):
    """A matrix with NaN or infinity has info 1 and NaN as its result; the others are as they are by themselves."""
    rng = np.random.default_rng(0)
    d, e = rng.standard_normal((4, n)).astype(dtype), rng.standard_normal((4, n - 1)).astype(dtype)
    good_w, good_z, _ = solve(d, e)
    d[1, 3], e[2, n - 2] = np.nan, -np.inf
    w, z, info = solve(d, e)
    assert info.tolist() == [0, 1, 1, 0]
    assert np.isnan(w[1:3]).all() and np.isnan(z[1:3]).all()
    for i in (0, 3):
        assert (w[i] == good_w[i]).all() and (z[i] == good_z[i]).all()
