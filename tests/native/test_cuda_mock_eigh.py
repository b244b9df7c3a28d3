"""Eigenvalues on the CUDA path without a GPU: see test_cuda_mock.py.

The stand-in solver and product compute; so do the stand-in kernels around them. Those of engine "batched" only keep books.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent / "mock"))
import harness
from harness import launched, named

from lapwing.core.native import CUDA, DTYPE_CODE, ENGINES, OPS, native
from test_cuda_mock_solve import emulated  # noqa: F401

DTYPES = ("float32", "float64", "complex64", "complex128")
pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return harness.libraries(tmp_path_factory)


@pytest.fixture
def child(libraries, tmp_path):
    return harness.Children(libraries, tmp_path)


def copies(libraries, folder, change):
    """A folder with the stand-ins; ``change`` gives each library's new bytes, the same, or None to leave it out."""
    folder.mkdir()
    for library in filter(Path.is_file, libraries.iterdir()):
        before = library.read_bytes()
        after = change(library.name, before)
        if after is before:
            (folder / library.name).symlink_to(library)
        elif after is not None:
            (folder / library.name).write_bytes(after)
    return folder


# ---- cuSOLVER ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_cusolver_answers(child, dtype):
    code = f"""
    for n, parts in ((1, (None,)), (2, (None, (1, 1))), (7, (None, (0, 3), (2, 2), (5, 2))), (33, (None, (30, 3)))):
        for part in parts:
            for batch in (1, 4):
                a = hermitian("{dtype}", batch, n)
                for upper in (False, True):
                    for vectors in (True, False):
                        check_eigh(a, "cusolver", upper, part, vectors)
                        check_eigh(a, "cusolver", upper, part, vectors, overwrite=True)
                if part is None:
                    check_eigh(a, "cusolver", n % 2 == 0, in_place=True, overwrite=True)
    """
    calls, _ = child(code)
    solved = [c for c in calls if c["call"] in ("cusolverDnXsyevd", "cusolverDnXsyevdx", "cusolverDnXsyevBatched")]
    assert len({c["call"] for c in solved}) == 3
    assert {c["uplo"] for c in solved} == {"0"}
    # one matrix: only the part that is wanted; the batched routine knows no parts
    assert {(c["n"], c["first"], c["last"]) for c in named(calls, "cusolverDnXsyevdx")} == {
        ("2", "2", "2"), ("7", "1", "3"), ("7", "3", "4"), ("7", "6", "7"), ("33", "31", "33"),
    }  # fmt: skip
    assert {c["matrices"] for c in named(calls, "cusolverDnXsyevBatched")} == {"4"}
    expected = {"finite_start", "finite_small", "hermitian_small", "settle", "turn", "turn_in_place"}
    assert set(launched(calls)) - {"hermitian"} == expected


def test_cusolver_large_tiles_and_alignment(child):
    """Sizes over several tiles, and pointers that are aligned to one part of an element alone."""
    code = """
    for dtype, shift in (("float32", 4), ("float64", 8), ("complex64", 8), ("complex64", 4), ("complex128", 8)):
        for n, part in ((70, None), (70, (60, 9))):
            check_eigh(hermitian(dtype, 2, n), "cusolver", True, part, shift=shift)
    """
    calls, _ = child(code)
    moved = [c for c in named(calls, "cuLaunchKernel") if c["name"] in ("hermitian", "turn", "turn_in_place")]
    assert {c["width"] for c in moved} == {"4", "8"}
    assert "finite_large" in launched(calls)


@pytest.mark.parametrize(("batch", "most", "chunks"), [(8, 3, [2, 2, 2, 2]), (7, 5, [4, 3]), (3, 1, [1, 1, 1])])
def test_cusolver_takes_fewer_at_once(child, batch, most, chunks):
    """Where the size query refuses a batch, the half of it is asked for, and the answers are the same bits."""
    code = f"""
    told = []
    for dtype in ("float32", "complex128"):
        a = hermitian(dtype, {batch}, 6)
        for part in (None, (1, 2)):
            for vectors in (True, False):
                check_eigh(a, "cusolver", False, part, vectors)
                w, v, info = eigh(a, "cusolver", False, part, vectors)
                del os.environ["MOCK_MOST_MATRICES"]
                w1, v1, info1 = eigh(a, "cusolver", False, part, vectors)
                os.environ["MOCK_MOST_MATRICES"] = "{most}"
                assert w.tobytes() == w1.tobytes() and (v is None or v.tobytes() == v1.tobytes())
    """
    calls, _ = child(code, MOCK_MOST_MATRICES=most)
    many = [int(c["matrices"]) for c in named(calls, "cusolverDnXsyevBatched")]
    assert many[: len(chunks)] == chunks
    assert Counter(many) == Counter(16 * chunks + 8 * [batch])


def test_solver_without_batches(libraries, child, tmp_path):
    """Older solvers lack the batched routine: one matrix after the other."""

    def without(name, data):
        return data.replace(b"cusolverDnXsyevBatched\0", b"cusolverDnXsyevTogether"[:22] + b"\0") if "solver" in name else data

    folder = copies(libraries, tmp_path / "some", without)
    code = """
    for part in (None, (0, 2)):
        check_eigh(hermitian("complex64", 3, 6), "cusolver", False, part)
    assert native.missing("solver") is None
    """
    calls, _ = child(code, LAPWING_CUDA_PATH=folder)
    assert Counter(c["call"] for c in calls if c["call"] in ("cusolverDnXsyevd", "cusolverDnXsyevdx")) == {
        "cusolverDnXsyevd": 3, "cusolverDnXsyevdx": 3,
    }  # fmt: skip


@pytest.mark.parametrize("batch", [1, 5])
def test_cusolver_failed_matrices(child, batch):
    """NaN and Inf never reach the solver; a matrix that fails is NaN alone and does not disturb the others."""
    code = f"""
    for dtype in {DTYPES}:
        for upper in (False, True):
            for part in (None, (1, 3)):
                for vectors in (True, False):
                    a = hermitian(dtype, {batch}, 6)
                    expected = np.linalg.eigvalsh(a.astype(np.complex128))
                    first, count = part or (0, 6)
                    place = (4, 1) if not upper else (1, 4)
                    for bad in (np.nan, np.inf, -np.inf, 13):
                        b = a.copy()
                        if bad == 13:
                            b[{batch} // 2, 0, 0] = 13
                        else:
                            b[({batch} // 2, *place)] = bad
                        w, v, info = eigh(one_triangle(b, upper), "cusolver", upper, part, vectors)
                        where = (dtype, upper, part, vectors, bad)
                        wanted = [0] * {batch}
                        wanted[{batch} // 2] = 13 if bad == 13 else 1
                        assert info.tolist() == wanted, (where, info)
                        for m in range({batch}):
                            if wanted[m]:
                                assert failed_eigh(w, v, m), where
                            else:
                                scale = 10 * b.shape[-1] * np.finfo(dtype).eps * np.abs(expected[m]).max()
                                assert np.abs(w[m] - expected[m, first:first + count]).max() <= scale, where
                                assert v is None or np.isfinite(v[m]).all()
    """
    child(code)


def test_cusolver_nothing_to_do(child):
    """No matrix, no row, no value: info is zero, and the solver is not asked."""
    code = """
    for batch, n, part in ((0, 4, None), (3, 0, None), (3, 4, (2, 0))):
        for engine in ("cusolver", "batched"):
            for vectors in (True, False):
                w, v, info = eigh(np.zeros((batch, n, n)), engine, part=part, vectors=vectors, scratch=0)
                assert info.tolist() == [0] * batch
    """
    calls, _ = child(code)
    assert not named(calls, "cusolverDnXsyevd") and not launched(calls)


def test_cusolver_workspace(child):
    """The call uses what the query said; with a byte less it is refused."""
    code = """
    told = {}
    for name, batch, part, vectors, overwrite in (
        ("whole", 1, None, True, False), ("values", 1, None, False, False), ("values, overwritten", 1, None, False, True),
        ("part", 1, (0, 3), True, False), ("part, overwritten", 1, (0, 3), True, True), ("batch", 4, None, True, False),
        ("part of a batch", 4, (0, 3), True, False),
    ):
        a = hermitian("complex128", batch, 20)
        flags = OVERWRITE if overwrite else 0
        need = native.scratch_bytes(*eigh_call(a, "cusolver", part=part, vectors=vectors, flags=flags))
        eigh(a, "cusolver", part=part, vectors=vectors, overwrite=overwrite, scratch=need)
        text = message(lambda: eigh(a, "cusolver", part=part, vectors=vectors, overwrite=overwrite, scratch=need - 1))
        assert f"no GPU memory for a workspace of {need} bytes" in text, text
        told[name] = need
    host = native.host_bytes(*eigh_call(a, "cusolver"))
    tell(host=host, **told)
    """
    calls, told = child(code)
    up = lambda *sizes: sum(-(-size // 256) * 256 for size in sizes)  # noqa: E731
    square, work = 20 * 20 * 16, lambda mode, count, batch: (32 if mode else 16) * 20 * batch + 8 * count + 80
    assert told == {
        "host": 48,
        "whole": up(4, work(1, 20, 1)),
        "values": up(4, square, work(0, 20, 1)),
        "values, overwritten": up(4, work(0, 20, 1)),
        "part": up(4, 160, square, work(1, 3, 1)),
        "part, overwritten": up(4, 160, work(1, 3, 1)),
        "batch": up(16, work(1, 20, 4)),
        "part of a batch": up(16, 4 * 160, 4 * square, work(1, 20, 4)),
    }
    for name in ("cusolverDnXsyevd", "cusolverDnXsyevdx", "cusolverDnXsyevBatched"):
        assert {c["bytes"] for c in named(calls, name)} <= {c["bytes"] for c in named(calls, f"{name}_bufferSize")}


# order of failure, batch, part, what is said
FAILURES = [
    ("cusolverDnCreate:1", 1, None, "starting the solver", "status 7"),
    ("cusolverDnSetStream:1", 1, None, "choosing the stream", "status 7"),
    ("cusolverDnXsyevd_bufferSize:1", 1, None, "asking for the workspace", "status 7"),
    ("cusolverDnXsyevdx_bufferSize:1", 1, (0, 2), "asking for the workspace", "status 7"),
    ("cusolverDnXsyevBatched_bufferSize:0", 3, None, "asking for the workspace", "status 7"),
    ("cusolverDnXsyevd:1", 1, None, "eigh", "status 7"),
    ("cusolverDnXsyevdx:1:4", 1, (0, 2), "eigh", "status 4"),
    ("cusolverDnXsyevBatched:1", 3, None, "eigh", "status 7"),
    *[(f"cuLaunchKernel:{k}", 3, None, "launching a kernel", "unspecified launch failure") for k in range(1, 6)],
    ("cuModuleLoadData:1", 1, None, "loading a kernel", ""),
    ("nvrtcCompileProgram:2", 1, None, "spectrum.cu does not compile with", ""),
]


def test_cusolver_failing_calls(child):
    """Each failure says what was being done and leaves no context behind; after the last the call works."""
    code = f"""
    texts = []
    for order, batch, part, *_ in {FAILURES}:
        dtype = "float32" if "nvrtc" in order else "complex64" if "Module" in order else "float64"
        a = hermitian(dtype, batch, 8)
        texts.append(failing(order, lambda: eigh(a, "cusolver", part=part, scratch=1 << 16)))
        check_eigh(a, "cusolver", part=part)
    tell(texts=texts)
    """
    _, told = child(code)
    wrong = [
        (order, text)
        for (order, _, _, *wanted), text in zip(FAILURES, told["texts"], strict=True)
        if text is None or not all(part in text for part in wanted)
    ]
    assert wrong == []


@pytest.mark.parametrize("engine", ["cusolver", "krylov", "batched"])
def test_streams(child, engine):
    """Kernels, copies, products and the solver are all on the caller's stream and in its context."""
    code = f"""
    own, other = stream(1), stream(0, primary=False)
    n = 32 if "{engine}" == "batched" else 210
    a = hermitian("float64", 2, n, w=0.5 ** np.arange(n))
    for given, ordinal in ((0, 0), (2, 1), (own, 0), (other, -1), (own, -1)):
        need = native.scratch_bytes(*eigh_call(a, "{engine}", part=(n - 4, 4), ordinal=max(ordinal, 0)))
        eigh(a, "{engine}", part=(n - 4, 4), stream=given, ordinal=ordinal, scratch=need)
    tell(own=own, other=other)
    """
    calls, told = child(code)
    own, other = hex(told["own"]), hex(told["other"])
    found = list(dict.fromkeys((c["stream"], c["device"]) for c in named(calls, "cuLaunchKernel")))
    assert found == [("(nil)", "0"), ("0x2", "1"), (own, "1"), (other, "0")]
    queued = [c for c in calls if "stream" in c and c["call"] not in ("cuStreamGetCtx", "cusolverDnSetStream")]
    assert {c["stream"] for c in queued if "_bufferSize" not in c["call"]} == {"(nil)", "0x2", own, other}
    if engine == "krylov":
        assert Counter(c["stream"] for c in named(calls, "cublasGemmEx_64")).keys() == {"(nil)", "0x2", own, other}
        # a handle belongs to a context
        assert len(named(calls, "cublasCreate_v2")) == 3


def test_cusolver_threads(child):
    """A handle serves one call at a time."""
    code = """
    from threading import Thread
    a = hermitian("float64", 2, 12)
    wrong = []
    def work(engine):
        try:
            for _ in range(3):
                check_eigh(a, engine, False, (0, 2))
        except BaseException as error:
            wrong.append(repr(error))
    threads = [Thread(target=work, args=(engine,)) for engine in ("cusolver", "krylov") for _ in range(3)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not wrong, wrong
    """
    child(code, MOCK_SOLVER_SLEEP=5)


# ---- the Krylov engine -------------------------------------------------------------------------------------------


def noted(told, part):
    return [part in note for note in told["notes"] if not note.startswith("compiled ")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_krylov_answers(child, dtype):
    """Spectra that fall quickly: the iteration ends by itself, at both ends and for both triangles."""
    code = f"""
    notes = []
    w = 0.6 ** np.arange(220.0)
    for k, (sign, part) in enumerate(((1, (216, 4)), (-1, (0, 4)), (1, (219, 1)), (-1, (0, 20)))):
        a = hermitian("{dtype}", 1 + k % 2, 220, w=sign * w)
        for vectors in (True, False):
            check_eigh(a, "krylov", k % 2 == 1, part, vectors)
            notes += native.notes()
    # as small as numbers get and as large
    for by in (1e-30, 1e30):
        check_eigh((hermitian("{dtype}", 1, 220, w=w) * by).astype("{dtype}"), "krylov", False, (216, 4))
    tell(notes=notes)
    """
    calls, told = child(code)
    assert noted(told, "krylov took").count(True) == 8
    assert not any(noted(told, "direct routine"))
    assert not named(calls, "cusolverDnXsyevdx")
    used = set(launched(calls))
    assert {"largest", "mirror", "fill_random", "cholesky_gram", "solve_rows", "residual", "write_rows"} <= used


def test_krylov_is_the_same_at_every_place(child):
    """The same matrix gives the same bits wherever it stands in the batch."""
    code = """
    a = hermitian("float64", 3, 220, w=0.6 ** np.arange(220.0))
    a[2] = a[0]
    w, v, info = eigh(a, "krylov", part=(216, 4))
    assert w[0].tobytes() == w[2].tobytes() and v[0].tobytes() == v[2].tobytes() and w[0].tobytes() != w[1].tobytes()
    """
    child(code)


def test_krylov_failed_matrices(child):
    code = f"""
    for dtype in {DTYPES}:
        for upper in (False, True):
            for vectors in (True, False):
                a = hermitian(dtype, 4, 220, w=0.6 ** np.arange(220.0))
                a[1, 7, 7] = np.nan
                a[(2, 3, 9) if upper else (2, 9, 3)] = np.inf
                w, v, info = eigh(one_triangle(a, upper), "krylov", upper, (216, 4), vectors)
                assert info.tolist() == [0, 1, 1, 0], info
                assert failed_eigh(w, v, 1) and failed_eigh(w, v, 2)
                assert np.abs(w[[0, 3]] - 0.6 ** np.arange(3.0, -1, -1)).max() <= 10 * 220 * np.finfo(dtype).eps
                assert vectors is False or np.isfinite(v[[0, 3]]).all()
    """
    child(code)


def test_krylov_hands_over(child, emulated):  # noqa: F811
    """Where no subspace fits the direct routine answers."""
    code = """
    notes = []
    for dtype, batch, n, part in (("float64", 1, 60, (0, 30)), ("complex64", 2, 50, (20, 30)), ("float32", 3, 9, (0, 2))):
        for vectors in (True, False):
            check_eigh(hermitian(dtype, batch, n), "krylov", False, part, vectors)
            notes += native.notes()
    tell(notes=notes)
    """
    calls, told = child(code, **emulated)
    assert noted(told, "the direct routine will be faster") == [True] * 6
    # even where the solver's workspace is larger than the iteration's
    code = 'check_eigh(hermitian("float64", 1, 32), "krylov", False, (0, 20))'
    calls, _ = child(code, MOCK_SOLVER_BYTES=10_000_000)
    assert calls


def test_krylov_workspace(child):
    """All device memory of the iteration is asked for at once; a byte less is refused."""
    code = """
    a = hermitian("float64", 1, 220, w=0.6 ** np.arange(220.0))
    need = native.scratch_bytes(*eigh_call(a, "krylov", part=(216, 4)))
    text = message(lambda: eigh(a, "krylov", part=(216, 4), scratch=need - 1))
    tell(need=need, text=text)
    """
    _, told = child(code)
    assert "no GPU memory for a workspace of" in told["text"]
    assert told["need"] > 220 * 220 * 8


def test_krylov_wrong_part(child):
    code = """
    a = hermitian("float64", 1, 220)
    tell(middle=message(lambda: eigh(a, "krylov", part=(3, 4))), whole=message(lambda: eigh(a, "krylov")))
    """
    _, told = child(code)
    assert "krylov finds the smallest or the largest eigenvalues" in told["middle"]
    assert "krylov finds the smallest or the largest eigenvalues" in told["whole"]


KRYLOV_FAILURES = [
    ("cublasCreate_v2:1", "starting the BLAS: the GPU's library answered with status"),
    ("cublasSetStream_v2:1", "choosing the stream"),
    *[(f"cublasGemmEx_64:{k}", "a product failed with status 13") for k in (1, 2, 5, 12)],
    *[(f"cuLaunchKernel:{k}", "launching a kernel") for k in (1, 2, 3, 4, 9, 20)],
    *[(f"cuMemcpyDtoHAsync_v2:{k}", "a copy to the host failed with status 1") for k in (1, 2, 3, 4)],
    *[(f"cuMemcpyHtoDAsync_v2:{k}", "a copy to the GPU failed with status 1") for k in (1, 2)],
    *[(f"cuStreamSynchronize:{k}", "waiting for the GPU failed with status 1") for k in (1, 2, 5)],
    ("cuMemcpyDtoDAsync_v2:1", "a copy failed with status 1"),
    *[(f"cuMemsetD8Async:{k}", "filling GPU memory") for k in (1, 2)],
    ("nvrtcCompileProgram:1", "krylov.cu does not compile with"),
]


def test_krylov_failing_calls(child):
    """Each failure ends the call with its own message; the next call works, with the same handle."""
    code = f"""
    texts = []
    a = hermitian("float64", 1, 210, w=0.6 ** np.arange(210.0))
    for order, _ in {KRYLOV_FAILURES}:
        upper = "nvrtc" in order
        call = lambda: eigh(a, "krylov", upper, (206, 4), scratch=1 << 25)
        texts.append(failing(order, call))
        if len(texts) % 6 == 0: call()
    check_eigh(a, "krylov", False, (206, 4))
    tell(texts=texts)
    """
    calls, told = child(code)
    wrong = [
        (order, text)
        for (order, wanted), text in zip(KRYLOV_FAILURES, told["texts"], strict=True)
        if text is None or wanted not in text
    ]
    assert wrong == []
    assert len([c for c in named(calls, "cublasCreate_v2") if "handle" in c]) == 1


OPERATOR_CALL = """
def solve(a, part, product=None, vectors=True):
    dtype, n = a.dtype, a.shape[-1]
    call = eigh_call(a, "krylov", part=part, vectors=vectors)
    memory = [(part[1] * a.real.itemsize,), (n * part[1] * a.itemsize,), (4,)]
    w, v, info = (Memory(*m) for m in memory)
    work = Scratch()

    def multiply(x, y, columns):
        block = ctypes.c_char * (columns * n * a.itemsize)
        at = lambda where: np.frombuffer(block.from_address(where), dtype).reshape(columns, n)
        at(y)[...] = at(x) @ a[0].T

    outputs = [w.address, *([v.address] if vectors else []), info.address]
    converged = native.run_operator(*call, 0, work, product or multiply, *outputs)
    assert all(m.untouched() for m in (w, v, info, work))
    # there is no matrix to keep
    assert work.size + n * n * a.itemsize <= native.scratch_bytes(*call)
    return converged, w.array((part[1],), a.real.dtype), v.array((n, part[1]), dtype), info.array((1,), np.int32)[0]
"""


@pytest.mark.parametrize(
    "dtype", ["float32", "complex128", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float64", "complex64"))]
)
def test_krylov_operator(child, dtype):
    """A slower spectrum: restarts, the small problem on the GPU, and on the host where its workspace does not fit."""
    code = f"""{OPERATOR_CALL}
n = 300
a = hermitian("{dtype}", 1, n, w=np.linspace(-1, 1, n) ** 3)
eps = np.finfo(a.dtype).eps
for part, room in (((296, 4), 0), ((0, 6), 1 << 30)):
    os.environ["MOCK_SOLVER_BYTES"] = str(room)
    converged, w, v, info = solve(a, part)
    assert converged and info == 0
    assert np.abs(w - np.linalg.eigvalsh(a[0])[part[0] : sum(part)]).max() < 10 * n * eps
    assert np.abs(a[0] @ v - v * w).max() < 10 * n * eps
tell(notes=native.notes())
"""
    calls, _ = child(code)
    small = named(calls, "cusolverDnXsyevd")
    assert small and {c["uplo"] for c in small} == {"1"}
    assert {int(c["n"]) > 96 for c in small} == {True}


def test_krylov_operator_that_fails(child):
    """An exception of the product ends the call at once and reaches the caller; so does an interrupt."""
    code = f"""{OPERATOR_CALL}
a = hermitian("float64", 1, 300)
seen = []
for error in (KeyError("mine"), KeyboardInterrupt()):
    count = 0
    def product(x, y, columns):
        global count
        count += 1
        ctypes.memset(y, 0, columns * 300 * 8)
        if count == 3: raise error
    try:
        solve(a, (0, 3), product)
    except BaseException as caught:
        seen.append((repr(caught), count))
    assert balanced()
def spoil(x, y, columns): ctypes.memset(y, 0xff, columns * 300 * 8)
converged, w, v, info = solve(a, (0, 3), spoil)
tell(seen=seen, info=int(info), nan=bool(np.isnan(w).all() and np.isnan(v).all()))
"""
    _, told = child(code)
    assert told["seen"] == [["KeyError('mine')", 3], ["KeyboardInterrupt()", 3]]
    assert told["info"] == 1
    assert told["nan"]


def test_krylov_small_problem_falls_back_to_the_host(child):
    code = f"""{OPERATOR_CALL}
n = 300
a = hermitian("float64", 1, n, w=np.linspace(-1, 1, n) ** 3)
os.environ["MOCK_FAIL"] = "cusolverDnXsyevd:0"
converged, w, v, info = solve(a, (296, 4))
assert converged and info == 0 and np.abs(w - np.linalg.eigvalsh(a[0])[-4:]).max() < 1e-12
"""
    child(code)


# ---- engine batched: books only ----------------------------------------------------------------------------------

KERNELS = {
    **dict.fromkeys((1, 4), ("eigh_small",)),
    # larger ones: test_cuda_mock_tridiagonal.py
    **dict.fromkeys((9, 16, 17, 32, 33), ("eigh_reduce", "eigh_values", "eigh_vectors")),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_batched_books(child, dtype):
    """The kernels of each size, in memory that is just as large as was asked for and whose parts do not overlap."""
    code = f"""
    for n in {list(KERNELS)}:
        for batch in (1, 5) if n < 33 else (500,):
            a = hermitian("{dtype}", batch, n)
            for part in (None, (n // 3, (n + 1) // 2)):
                first, count = part or (0, n)
                for vectors in (True, False):
                    upper = n % 2 == 0
                    w, v, info = eigh(one_triangle(a, upper), "batched", upper, part, vectors)
                    assert not info.any() and (w == np.arange(first + 1, first + count + 1)).all()
                    assert v is None or (v == 1).all()
            w, v, info = eigh(a, "batched", in_place=True)
            assert (v == 1).all()
            a[batch // 2, n - 1, n - 1] = np.nan
            w, v, info = eigh(a, "batched")
            assert info.sum() == 1 and failed_eigh(w, v, batch // 2)
    """
    calls, _ = child(code)
    launches = named(calls, "cuLaunchKernel")
    used = {}
    for c in launches:
        n = int(c.get("n") or c.get("values.n") or c.get("at.n") or 0)
        used.setdefault(n, set()).add(c["name"])
    for n, names in KERNELS.items():
        if n > 4:
            reductions = {"eigh_panel", "eigh_reduce"}
            assert used[n] - reductions == {*names} - reductions, n
            assert used[n] & reductions == ({"eigh_reduce"} if n <= 128 else used[n] & reductions) != set(), n
    assert {c["width"] for c in launches} <= {"4", "8", "16"}


def test_batched_grids(child):
    """Enough blocks for the batch, and not more than that."""
    code = """
    for batch, n in ((1000, 3), (1000, 12), (1000, 40)):
        eigh(np.broadcast_to(np.eye(n, dtype=np.float32), (batch, n, n)), "batched")
    """
    calls, _ = child(code)
    grids = [(c["name"], int(c["grid"].split(",")[0]), int(c["block"])) for c in named(calls, "cuLaunchKernel")]
    assert grids == [
        ("eigh_small", 8, 128),
        ("eigh_reduce", 250, 64), ("eigh_values", 500, 32), ("eigh_vectors", 250, 64),
        ("eigh_reduce", 1000, 64), ("eigh_values", 500, 32), ("eigh_vectors", 1000, 64),
    ]  # fmt: skip


def test_batched_workspace(child):
    """It stays near a gigabyte, however large the batch; too little is refused."""
    code = """
    ask = lambda dtype, batch, n, op=EIGH: native.scratch_bytes(
        op, DTYPE_CODE[dtype], CUDA, 0, ENGINES["batched"], 0, 0, (batch, n, 0, n))
    a = hermitian("float64", 3, 20)
    need = ask("float64", 3, 20)
    text = message(lambda: eigh(a, "batched", scratch=need - 1))
    tell(text=text, small=ask("float32", 100, 8), large=[ask(d, 10**6, n) for d in DTYPE_CODE for n in (9, 32, 100)],
         values=ask("float64", 1000, 100, EIGVALSH), vectors=ask("float64", 1000, 100))
    """
    _, told = child(code)
    assert "no GPU memory for a workspace of" in told["text"]
    assert told["small"] == 0
    assert all(bytes_needed < 2**30 + 2**22 for bytes_needed in told["large"])
    assert told["values"] < told["vectors"] / 4


def test_batched_failing_calls(child):
    code = """
    a = hermitian("float64", 2, 20)
    big = hermitian("complex128", 1, 32)
    texts = [failing(f"cuLaunchKernel:{k}", lambda: eigh(a, "batched")) for k in (1, 2, 3)]
    texts += [failing(f"cuLaunchKernel:{k}", lambda: eigh(big, "batched")) for k in (1, 2)]
    texts += [failing("cuLaunchKernel:1", lambda: eigh(a[:, :3, :3], "batched"))]
    fill = failing("cuMemsetD8Async:1", lambda: eigh(hermitian("float64", 1, 200), "batched"))
    large = message(lambda: eigh(np.zeros((1, 2049, 2049)), "batched", scratch=0))
    tell(texts=texts, fill=fill, large=large)
    """
    _, told = child(code)
    assert ["launching a kernel" in text for text in told["texts"]] == [True] * 6
    assert "filling GPU memory" in told["fill"]
    assert "no GPU memory for a workspace of" in told["large"]


def test_batched_on_a_gpu_with_little_shared_memory(child):
    """99 KB a block, as on desktop GPUs, and 48: what does not fit is left to cuSOLVER by "auto", and refused by name."""
    code = """
    row = lambda dtype: (EIGH, CUDA, DTYPE_CODE[dtype], ENGINES["batched"], 0, 512, 0, 1 << 60, "a test")
    native.set_rules("Mock GPU", [row(dtype) for dtype in DTYPE_CODE])
    refused = 0
    for dtype in ("float32", "complex64"):
        for n, batch in ((5, 2), (32, 2), (130, 701), (149, 701)):
            a = np.broadcast_to(np.eye(n, dtype=dtype), (batch, n, n))
            w, v, info = eigh(a, "auto")
            assert not info.any()
            text = message(lambda: eigh(a, "batched"))
            if text:
                assert "too large for this GPU" in text
                assert (w == 1).all()
                refused += 1
            else:
                assert (w == np.arange(1, n + 1)).all()
    tell(refused=refused)
    """
    assert (
        child(code, MOCK_SHARED=101376, MOCK_ARCH=86)[1]["refused"] < child(code, MOCK_SHARED=49152, MOCK_ARCH=75)[1]["refused"]
    )


def test_reduced_on_a_gpu_with_little_shared_memory():
    """Tiles of 128 elements in double precision do not fit in the 99 KB of a block on desktop GPUs."""

    def wide(shared):
        gpu = (128, shared, 89, "a GPU")
        jobs = [
            native.kernels(OPS["eigh"], DTYPE_CODE["float64"], CUDA, 0, ENGINES["batched"], 0, 0, (batch, n, 0, n), gpu)
            for batch, n in ((64, 352), (1, 2048))
        ]
        return {choice for job in jobs for _, text in job for choice in ("LW_TILE=128", "LW_WIDTH=128") if choice in text}

    assert wide(232448) == {"LW_TILE=128", "LW_WIDTH=128"} and not wide(101376)


# ---- the choice of engine ----------------------------------------------------------------------------------------

RULES = """
row = lambda op, engine, low, high, first=0, last=1 << 60: (
    OPS[op], CUDA, DTYPE_CODE["float64"], ENGINES[engine], low, high, first, last, "a test")
native.set_rules("Mock GPU", [
    row("eigh", "batched", 0, 32), row("eigh", "batched", 33, 64, 8), row("eigh", "cusolver", 0, 1 << 60),
    row("eigh_part", "krylov", 200, 300, 0, 5), row("eigh_part", "cusolver", 0, 1 << 60)])
"""

# batch, n, first, count -> the first kernel, the solver's routine
CHOICES = {
    (1, 20, 0, 20): ("eigh_reduce", None),
    (1, 40, 0, 40): ("finite_start", "cusolverDnXsyevd"),
    (500, 40, 0, 40): ("eigh_reduce", None),
    (2, 40, 0, 2): ("finite_start", "cusolverDnXsyevBatched"),
    (1, 210, 205, 5): ("largest", None),
    (1, 210, 204, 6): ("finite_start", "cusolverDnXsyevdx"),  # more than the rule's five
    (1, 210, 100, 5): ("finite_start", "cusolverDnXsyevdx"),  # not at an end
    (1, 20, 0, 2): ("eigh_reduce", None),  # a part of a small matrix
    (1, 100, 95, 5): ("finite_start", "cusolverDnXsyevdx"),
}


def test_choice_of_engine(child):
    """engine="auto": by order and batch, for a few values at an end by their number."""
    code = f"""{RULES}
for batch, n, first, count in {list(CHOICES)}:
    for vectors in (True, False):
        native.gpus()
        driver().mock_mark(b"case")
        a = hermitian("float64", batch, n, w=0.6 ** np.arange(float(n)))
        eigh(a, "auto", part=(first, count), vectors=vectors)
"""
    calls, _ = child(code)
    cases = []
    for c in calls:
        if c["call"] == "mark":
            cases.append([])
        elif c["call"] == "cuLaunchKernel":
            cases[-1].append(c["name"])
        elif cases and c["call"].startswith("cusolverDnXsyev") and "_bufferSize" not in c["call"]:
            cases[-1].append(c["call"])
    found = [(case[0], next((x for x in case if x.startswith("cusolver")), None)) for case in cases]
    assert found == [choice for choice in CHOICES.values() for _ in range(2)]


@pytest.mark.parametrize(
    ("absent", "part", "first"), [("cublas", (205, 5), "finite_start"), ("cusolver", (0, 30), "eigh_reduce")]
)
def test_choice_without_a_library(libraries, child, tmp_path, absent, part, first):
    """engine="auto" takes what can run: cuSOLVER without cuBLAS, the kernels without cuSOLVER."""
    folder = copies(libraries, tmp_path / "some", lambda name, data: None if absent in name else data)
    code = f"""
import lapwing.planner
native.configure("", "", "", os.environ["LAPWING_CUDA_PATH"], "")
{RULES}
import pathlib, lapwing
native.configure(str(pathlib.Path(lapwing.__file__).parent / "kernels"), "", "", os.environ["LAPWING_CUDA_PATH"], "")
if native.missing("blas" if "{absent}" == "cublas" else "solver") is None:
    tell(installed=True)
else:
    a = hermitian("float64", 1, {sum(part)}, w=0.6 ** np.arange({sum(part)}.0))
    eigh(a, "auto", part={part})
    tell(text=message(lambda: eigh(a, "krylov" if "{absent}" == "cublas" else "cusolver", part={part}, scratch=0)))
"""
    calls, told = child(code, LAPWING_CUDA_PATH=folder)
    if told.get("installed"):
        pytest.skip(f"{absent} is installed on this machine")
    assert launched(calls)[0] == first
    assert f"lib{absent}" in told["text"]


def test_wrong_calls(child):
    code = """
    a = hermitian("float64", 1, 20)
    tell(tiled=message(lambda: eigh(a, "tiled", scratch=0)), lapack=message(lambda: eigh(a, "lapack", scratch=0)),
         part=message(lambda: native.run(*eigh_call(a, "cusolver", part=(10, 11)), 0, None, a, a, a, a)),
         free=native.free_memory(0))
    """
    _, told = child(code)
    assert "does not have this operation on a GPU" in told["tiled"]
    assert "does not have this operation on a GPU" in told["lapack"]
    assert "smaller than the part" in told["part"]
    assert told["free"] == 2**37 - 2**30


# ---- XLA ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["cusolver", "krylov", "batched"])
def test_xla_eigh(child, engine):
    """Part of the spectrum by attribute, stream and scratch memory from XLA; one block, which goes back."""
    code = f"""
    given = stream(1)
    told = []
    n, batch = (210, (1, 2)) if "{engine}" == "krylov" else (24, (2, 3))
    for dtype in {DTYPES}:
        a = hermitian(dtype, batch[0] * batch[1], n, w=0.6 ** np.arange(float(n))).reshape(*batch, n, n)
        for part in ((n - 3, 3), (-3, 3)) if "{engine}" == "krylov" else (None, (2, 4), (-3, 3)):
            for vectors in (True, False):
                failed, w, v, info, books = execute_eigh("cuda", a, "{engine}", False, part, vectors, stream=given)
                assert not failed and not info.any(), books
                first, count = (0, n) if part is None else (part[0] % n, part[1])
                if "{engine}" == "batched":
                    assert (w == np.arange(first + 1, first + count + 1)).all()
                else:
                    expected = np.linalg.eigvalsh(a.astype(np.complex128))[..., first : first + count]
                    assert np.abs(w - expected).max() < 100 * n * np.finfo(w.dtype).eps
                    if vectors: assert np.abs(a @ v - v * w[..., None, :]).max() < 100 * n * np.finfo(w.dtype).eps
                flat = a.reshape(-1, n, n)
                need = native.scratch_bytes(*eigh_call(flat, "{engine}", part=(first, count), vectors=vectors))
                told.append((books, need))
    tell(books=told, stream=given)
    """
    calls, told = child(code)
    for books, need in told["books"]:
        assert books["wrong"] == books["errors_made"] == 0
        assert books["allocations"] == books["frees"] == 1
        assert books["bytes"] == need
    assert {(c["stream"], c["device"]) for c in named(calls, "cuLaunchKernel")} == {(hex(told["stream"]), "1")}


def test_xla_eigh_graph(child):
    """The handler for graphs with the kernel for tiny matrices: nothing but a launch."""
    code = """
    failed, w, v, info, books = execute_eigh("cuda_graph", hermitian("float32", 4, 6), "batched", stream=stream(0))
    assert not failed and (w == np.arange(1, 7)).all(), books
    tell(books=books)
    """
    calls, told = child(code, MOCK_CAPTURING=1)
    assert told["books"]["allocations"] == 0
    assert launched(calls) == ["eigh_small"]


def test_xla_eigh_errors(child):
    """Each error reaches XLA once, and nothing is left allocated."""
    code = """
    a = hermitian("float64", 2, 210, w=0.6 ** np.arange(210.0))
    small = hermitian("float64", 2, 120)  # the stand-in has no kernels for teams of blocks
    told = {}
    def case(name, engine, order="", part=(206, 4), a=a, **options):
        os.environ["MOCK_FAIL"] = order
        failed, _, _, _, books = execute_eigh("cuda", a, engine, False, part, stream=stream(0), **options)
        del os.environ["MOCK_FAIL"]
        assert failed, name
        told[name] = books
    case("part", "cusolver", part=(208, 4))
    case("before", "cusolver", part=(-212, 4))
    case("memory", "cusolver", fail_allocate=1)
    case("memory of krylov", "krylov", fail_allocate=1)
    case("memory of kernels", "batched", part=(116, 4), a=small, fail_allocate=1)
    case("solver", "cusolver", "cusolverDnXsyevBatched:1")
    case("product", "krylov", "cublasGemmEx_64:4")
    case("launch", "batched", "cuLaunchKernel:2", part=(116, 4), a=small)
    tell(**told)
    """
    _, told = child(code)
    said = {
        "part": "smaller than the part of the spectrum",
        "before": "smaller than the part of the spectrum",
        "memory": "(XLA: out of memory)",
        "memory of krylov": "(XLA: out of memory)",
        "memory of kernels": "(XLA: out of memory)",
        "solver": "status 7",
        "product": "a product failed with status 13",
        "launch": "unspecified launch failure",
    }
    assert {name for name, part in said.items() if part not in told[name]["message"]} == set()
    assert {name for name, books in told.items() if books["wrong"]} == set()
    assert {name for name, books in told.items() if books["allocations"] != books["frees"]} == set()
    assert {name for name, books in told.items() if books["errors_made"] - books["errors_destroyed"] != 1} == set()
