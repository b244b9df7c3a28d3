"""Systems, inverses and decompositions on the CUDA path without a GPU: see test_cuda_mock.py.

The stand-in libraries and kernels compute; the checks are those of every engine, solve_checks.py.
"""

import ctypes
import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent / "mock"))
import harness
from harness import named

import lapwing

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

START = f"""
import itertools, sys
sys.path.append({str(Path(__file__).parent)!r})
import solve_checks

def run(op, flags, sizes, *arrays):
    there = {{id(x): Memory(x.nbytes, SHIFT.get(x.dtype.name, 0)) for x in arrays}}
    for x in arrays:
        there[id(x)].array(x.shape, x.dtype)[...] = x
    dtype = DTYPE_CODE[arrays[0].dtype.name]
    call = (OPS[op], dtype, CUDA, 0, ENGINES[ENGINE], 0, flags, sizes)
    work = Scratch(native.scratch_bytes(*call))
    native.run(*call, 0, work, *[there[id(x)].address for x in arrays])
    assert work.untouched() and all(memory.untouched() for memory in there.values()), (op, sizes)
    for x in arrays:
        x[...] = there[id(x)].array(x.shape, x.dtype)

def each(name, largest=70):
    test, axes = getattr(solve_checks, name), []
    for mark in test.pytestmark:
        names = [n.strip() for n in mark.args[0].split(",")]
        axes.append([dict(zip(names, v if len(names) > 1 else [v])) for v in mark.args[1]])
    for case in itertools.product(*axes):
        given = {{k: v for part in case for k, v in part.items()}}
        if all(given.get(k, 0) <= largest for k in ("n", "m", "k")):
            test(run, **given)

SHIFT, ENGINE = {{}}, "cusolver"
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return harness.libraries(tmp_path_factory)


@pytest.fixture
def child(libraries, tmp_path):
    children = harness.Children(libraries, tmp_path)

    def start(code, **settings):
        return children(START + code, **settings)

    return start


SYSTEMS = ("triangular", "solve", "solve_positive", "lu", "cholesky_solve", "slogdet")
FAILING = ("one_bad_matrix", "one_bad_positive", "bad_triangle", "bad_decomposition")


@pytest.mark.parametrize("names", [SYSTEMS, ("inverse", "qr"), ("svd",), FAILING], ids=lambda names: names[0])
def test_answers(child, emulated, names):
    child("".join(f"each('test_{name}')\n" for name in names), **(emulated if names == ("svd",) else {}))


def test_inverse_positive(child):
    """Leaves filled up with ones, and more than one of them."""
    child(
        """
    each("test_inverse_positive")
    solve_checks.test_inverse_positive(run, "float64", 0, 530)
    """.replace("\n    ", "\n")
    )


def test_alignment(child):
    """Pointers that are aligned to one part of an element alone."""
    child("""
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
for dtype in solve_checks.DTYPES:
    solve_checks.test_solve(run, dtype, 17, 1)
    solve_checks.test_inverse(run, dtype, 31)
    solve_checks.test_lu(run, dtype, 31)
    solve_checks.test_svd(run, dtype, 40, 7, 1)
    solve_checks.test_svd(run, dtype, 33, 33, 1)
""")


def test_polar_decomposition_is_replaced(child):
    """Where the library says that it has shifted the matrix its answer is not taken."""
    code = "solve_checks.test_svd(run, 'float64', 33, 33, 1)\n"
    calls, _ = child(code)
    assert named(calls, "cusolverDnXgesvdp")
    assert {c["n"] for c in named(calls, "cusolverDnXgesvd")} == {"33"}  # values alone
    assert len(named(calls, "cusolverDnXgesvd")) == 2
    calls, _ = child(code, MOCK_POLAR_SHIFT=1)
    assert len(named(calls, "cusolverDnXgesvd")) == 6


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("cusolverDnXgetrf", "test_solve(run, 'float64', 17, 1)"),
        ("cusolverDnXpotrf", "test_inverse_positive(run, 'float64', 0, 33)"),
        ("cublas_trsm", "test_solve(run, 'float64', 17, 1)"),
        ("cublas_herk", "test_inverse_positive(run, 'float64', 0, 33)"),
        ("cublasGemmStridedBatchedEx_64", "test_inverse_positive(run, 'float64', 0, 33)"),
        ("cusolverDnXgeqrf", "test_qr(run, 'float64', 40, 7, 1)"),
        ("cusolverDnDorgqr", "test_qr(run, 'float64', 40, 7, 1)"),
        ("cusolverDnXgesvd_bufferSize", "test_svd(run, 'float64', 40, 7, 1)"),
        ("cusolverDnXgesvdp", "test_svd(run, 'float64', 33, 33, 1)"),
    ],
)
def test_library_errors(child, call, code):
    _, told = child(
        f"""
try:
    solve_checks.{code}
except Exception as error:
    tell(error=str(error))
""",
        MOCK_FAIL=f"{call}:1:7",
    )
    assert "status 7" in told["error"]


# ---- a block per matrix: the device source itself, run as host code (emulator.h) -------------------------------------------

BLOCKS = """
ENGINE = "batched"
f32, f64, c64, c128 = solve_checks.DTYPES
lower, upper = 0, solve_checks.UPPER
"""
QUICK = """
solve_checks.test_solve(run, f32, 65, 5)
solve_checks.test_inverse(run, f64, 33)
solve_checks.test_solve_positive(run, c64, upper, 40, 1)
solve_checks.test_solve_positive(run, f64, lower, 66, 1)
solve_checks.test_inverse_positive(run, f32, lower, 45)
solve_checks.test_inverse_positive(run, f64, upper, 61)
solve_checks.test_slogdet(run, c128, 34)
solve_checks.test_qr(run, f32, 50, 35, 1)
"""


@pytest.fixture(scope="session")
def emulated(libraries, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "emulated"
    folder.mkdir(exist_ok=True)
    return {"MOCK_EMULATE": str(folder), "MOCK_EMULATOR": str(harness.EMULATOR)}


def test_blocks(child, emulated):
    calls, _ = child(BLOCKS + QUICK, **emulated)
    assert set(harness.launched(calls)) == {"solve_block", "pos_block", "pos_inverse", "qr_block"}


# orders beside the limits of a panel and of a lane's rows; what fails; every kind of triangle
PARTS = {
    "solve": """
for n, k in ((33, 1), (64, 4), (65, 40), (96, 5), (101, 2)):
    solve_checks.test_solve(run, dtype, n, k)
""",
    "positive": """
for n, k in ((33, 1), (64, 4), (65, 40), (97, 5)):
    solve_checks.test_solve_positive(run, dtype, upper if n % 2 else lower, n, k)
""",
    # the triangle alone in shared memory: right-hand sides in rows of the last block, beside it, and in the next one
    "triangle": """
for n, k in ((130, 1), (128, 3), (96, 16), (70, 0)):
    for triangle in (lower, upper):
        solve_checks.test_solve_positive(run, dtype, triangle, n, k)
for kind in ("indefinite", "nan", "inf"):
    solve_checks.test_one_bad_positive(run, dtype, upper, kind, 129)
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
solve_checks.test_solve_positive(run, dtype, lower, 131, 2)
""",
    # the inverse from the triangle alone: rows of the identity beside the matrix, none, and a single one
    "triangle_inverse": """
sizes = (64, 73, 63) if dtype == f64 else (128, 121, 127)
for n, triangle in zip(sizes, (lower, upper, lower)):
    solve_checks.test_inverse_positive(run, dtype, triangle, n)
solve_checks.test_one_bad_positive(run, dtype, upper, "indefinite", sizes[2])
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
solve_checks.test_inverse_positive(run, dtype, upper, sizes[2])
""",
    # some columns at a time in shared memory: the last ones fewer than the others, and as many
    "columns": """
for n, k in ((130, 1), (160, 8), (129, 9), (131, 40)):
    solve_checks.test_solve(run, dtype, n, k)
solve_checks.test_lu(run, dtype, 130)
solve_checks.test_slogdet(run, dtype, 132)
for kind in ("zero", "nan", "inf"):
    solve_checks.test_one_bad_matrix(run, dtype, 129, kind)
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
solve_checks.test_solve(run, dtype, 131, 1)
solve_checks.test_lu(run, dtype, 136)
""",
    "inverse": """
for n in (33, 64, 100):
    solve_checks.test_inverse(run, dtype, n)
    solve_checks.test_inverse_positive(run, dtype, upper, n)
""",
    "factor": """
for n in (33, 64, 100):
    solve_checks.test_slogdet(run, dtype, n)
solve_checks.test_lu(run, dtype, 41)
solve_checks.test_lu(run, dtype, 100)
for triangle in (lower, upper):
    solve_checks.test_cholesky_solve(run, dtype, triangle, 41, 2)
    solve_checks.test_cholesky_solve(run, dtype, triangle, 70, 9)
""",
    "triangular": """
for flags in (0, 1, 4, 5, 8, 13):
    solve_checks.test_triangular(run, dtype, 40, 1, flags)
    solve_checks.test_triangular(run, dtype, 70, 9, flags)
""",
    "failing": """
for kind in ("zero", "nan", "inf"):
    solve_checks.test_one_bad_matrix(run, dtype, 40, kind)
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
solve_checks.test_solve(run, dtype, 52, 1)
solve_checks.test_inverse_positive(run, dtype, lower, 52)
solve_checks.test_lu(run, dtype, 52)
""",
    "qr": """
for m, n, scale in ((33, 33, 1), (65, 65, 1), (64, 40, 1e30), (100, 7, 1e-30), (7, 140, 1), (40, 90, 1), (97, 64, 1)):
    solve_checks.test_qr(run, dtype, m, n, scale)
a = np.zeros((3, 50, 40), dtype)
a[1, :, 3:30] = 1
a[2, 7, 8] = np.nan
q, r = np.empty((3, 50, 40), dtype), np.empty((3, 40, 40), dtype)
run("qr", 0, (3, 50, 40, 40), a, q, r)
assert np.isnan(q[2]).all() and np.isnan(r[2]).all()
assert np.allclose(q[:2] @ r[:2], a[:2], atol=1e-5)
assert np.allclose(solve_checks.adjoint(q[:2]) @ q[:2], np.eye(40), atol=1e-5)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("part", PARTS)
def test_blocks_answer(child, emulated, part, dtype):
    child(f"{BLOCKS}dtype = {dtype}\n{PARTS[part]}", **emulated)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, largest", [("f32", 234), ("f64", 168), ("c64", 168), ("c128", 118)])
def test_the_largest_blocks(child, emulated, dtype, largest):
    """All of the shared memory, no room for a chunk of right-hand sides."""
    calls, _ = child(
        BLOCKS
        + f"""
solve_checks.test_solve(run, {dtype}, {largest}, 6)
solve_checks.test_inverse(run, {dtype}, {largest})
solve_checks.test_inverse_positive(run, {dtype}, lower, {largest})
""",
        **emulated,
    )
    assert "solve_block" in harness.launched(calls)


# ---- larger matrices: by blocks of columns, with products ---------------------------------------------------------------

# shared memory that n = 100 does not fit into, so that small matrices do for the tests
SHARED = {"f32": 42000, "f64": 75000, "c64": 75000, "c128": 110000}


def test_blocked(child, emulated):
    calls, _ = child(
        BLOCKS
        + """
solve_checks.test_solve(run, f64, 100, 1)
solve_checks.test_lu(run, f64, 100)
solve_checks.test_slogdet(run, f64, 101)
solve_checks.test_solve_positive(run, f64, upper, 100, 1)
""",
        MOCK_SHARED=SHARED["f64"],
        **emulated,
    )
    assert {"lu_panel", "block_solve", "few_solve", "block_determinant"} <= set(harness.launched(calls))
    assert named(calls, "cublasGemmEx_64")


def test_blocked_library_error(child, emulated):
    _, told = child(
        BLOCKS
        + """
try:
    solve_checks.test_solve(run, f64, 100, 1)
except Exception as error:
    tell(error=str(error))
""",
        MOCK_SHARED=SHARED["f64"],
        MOCK_FAIL="cublasGemmStridedBatchedEx_64:1:7",
        **emulated,
    )
    assert "status 7" in told["error"]


BLOCKED_PARTS = {
    "solve": """
for k in (1, 3, 5, 70):
    solve_checks.test_solve(run, dtype, n, k)
""",
    "positive": """
for more, k in ((0, 1), (1, 4), (23, 40)):
    solve_checks.test_solve_positive(run, dtype, upper if more else lower, n + more, k)
    solve_checks.test_cholesky_solve(run, dtype, lower if more else upper, n + more, k)
""",
    "inverse": """
solve_checks.test_inverse(run, dtype, n)
solve_checks.test_inverse_positive(run, dtype, lower, n)
solve_checks.test_inverse_positive(run, dtype, upper, n + 87)
""",
    "factor": """
for more in (0, 21):
    solve_checks.test_slogdet(run, dtype, n + more)
    solve_checks.test_lu(run, dtype, n + more)
""",
    "triangular": """
for flags in (0, 1, 4, 5, 8, 13):
    solve_checks.test_triangular(run, dtype, n, 1, flags)
    solve_checks.test_triangular(run, dtype, n + 3, 3, flags)
    solve_checks.test_triangular(run, dtype, n + 30, 33, flags)
""",
    "failing": """
for kind in ("zero", "nan", "inf"):
    solve_checks.test_one_bad_matrix(run, dtype, n, kind)
for triangle in (lower, upper):
    for kind in ("indefinite", "nan", "inf"):
        solve_checks.test_one_bad_positive(run, dtype, triangle, kind, n)
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
solve_checks.test_solve(run, dtype, n, 1)
solve_checks.test_solve(run, dtype, n, 5)
solve_checks.test_inverse_positive(run, dtype, lower, n)
solve_checks.test_lu(run, dtype, n)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SHARED)
@pytest.mark.parametrize("part", BLOCKED_PARTS)
def test_blocked_answers(child, emulated, part, dtype):
    calls, _ = child(f"{BLOCKS}dtype, n = {dtype}, 100\n{BLOCKED_PARTS[part]}", MOCK_SHARED=SHARED[dtype], **emulated)
    assert not {"solve_block", "solve_lanes", "lu_block", "pos_block"} & set(harness.launched(calls))


class Panel(ctypes.Structure):
    """As in blocked_panel.cu."""

    _fields_ = [
        ("a", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("ld", "stride", "batch")],
        *[(name, ctypes.c_void_p) for name in ("order", "origin", "bad", "flags", "inner", "outer")],
        *[(name, ctypes.c_int32) for name in ("n", "first", "column", "width", "last", "threads")],
    ]


@pytest.fixture
def emulate(libraries, emulated, monkeypatch):
    """emulate(source, options) -> a function that runs a kernel of the source."""
    for name, value in emulated.items():
        monkeypatch.setenv(name, value)
    compiler = ctypes.CDLL(str(libraries / "libnvrtc.so.13"))
    folder = Path(lapwing.__file__).parent / "kernels"

    def load(source, options):
        program, files = ctypes.c_void_p(), sorted(folder.glob("*.cuh"))
        texts = (ctypes.c_char_p * len(files))(*[file.read_bytes() for file in files])
        names = (ctypes.c_char_p * len(files))(*[file.name.encode() for file in files])
        text = (folder / source).read_bytes()
        assert compiler.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), len(files), texts, names) == 0
        words = [word.encode() for word in options.split()]
        assert compiler.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words)) == 0
        size = ctypes.c_size_t()
        assert compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
        binary = ctypes.create_string_buffer(size.value)
        assert compiler.nvrtcGetCUBIN(program, binary) == 0
        return ctypes.CDLL(re.search(rb"emulated (\S+)", binary.raw)[1].decode()).emulate

    return load


@pytest.mark.parametrize(
    "dtype, n, rows",
    [("float64", 70, 1), ("float64", 600, 2), ("complex64", 1030, 4)]
    + [
        pytest.param(dtype, n, rows, marks=pytest.mark.slow)
        for dtype in ("float32", "float64", "complex64", "complex128")
        for n, rows in ((600, 2), (1030, 4), (2060, 8))
    ],
)
def test_a_panel_with_several_rows_to_a_thread(emulate, dtype, n, rows):
    rng = np.random.default_rng(n)
    element, line = np.dtype(dtype).itemsize, {1: 256, 2: 128, 4: 64, 8: 32}[rows]
    width, threads = min(32, line // element), -(-n // rows // 32) * 32
    a = rng.standard_normal((2, n, width)).astype(dtype)
    if dtype[0] == "c":
        a += 1j * rng.standard_normal(a.shape).astype(dtype)
    lu, order, origin = a.copy(), np.zeros((2, n), np.int32), np.zeros((2, n), np.int32)
    bad, flags, moves = np.full(2, -1, np.int32), np.full(2, -1, np.int32), np.full((2, 2, 3 * 64 + 1), -1, np.int32)
    places = (x.ctypes.data for x in (order, origin, bad, flags, moves[0], moves[1]))
    call = Panel(lu.ctypes.data, width, n * width, 2, *places, n, 0, 0, width, 1, threads)
    shared = n * (line + 20) + width * line + 32 * (line + 12) + 8 * width + 16
    code = ["float32", "float64", "complex64", "complex128"].index(dtype)
    run = emulate("blocked_panel.cu", f"-DLW_DTYPE={code} -DLW_UPPER=0 -DLW_V=16 -DLW_RT={rows} -DLW_W={width} "
                  "-DLW_RESIDENT=1 -DLW_THREADS=512 -DLW_LANES=32 -DLW_FACTOR=2")  # fmt: skip
    assert run(b"lu_panel", (ctypes.c_void_p * 1)(ctypes.addressof(call)), 2, 1, threads, shared) == 0
    assert not bad.any() and not flags.any()
    assert (order == origin).all() and (np.sort(order) == np.arange(n)).all()
    lower, upper = np.tril(lu, -1), np.triu(lu[:, :width])
    lower[:, np.arange(width), np.arange(width)] = 1
    error = np.linalg.norm(lower @ upper - np.take_along_axis(a, order[:, :, None], 1), axis=(1, 2))
    assert (error <= 10 * n * np.finfo(dtype).eps * np.linalg.norm(a, axis=(1, 2))).all()
    assert np.abs(lower).max() <= 1.5  # the largest element of each column was the pivot
    for m, some in itertools.product(range(2), moves):
        source, target, old, count = some[m, :width], some[m, 64:128], some[m, 128:192], some[m, 192]
        moved = np.arange(n)
        moved[:width] = source
        moved[target[:count]] = old[:count]
        assert (moved == order[m]).all()


def test_a_larger_matrix_is_refused(child):
    _, told = child("""
ENGINE = "batched"
try:
    run("slogdet", 0, (1, 4097), np.eye(1), np.eye(1), np.eye(1), np.eye(1))
except Exception as error:
    tell(error=str(error))
""")
    assert "n up to 4096 on this device, not 4097" in told["error"]
