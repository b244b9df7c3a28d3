"""The largest singular values on a GPU, and a newer solver beside the ordinary one, without a GPU: see mock/harness.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "mock"))
import harness
from harness import launched, named

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

START = """
def svd_part(a, count, engine="krylov", scratch=None):
    dtype, (batch, m, n) = a.dtype.name, a.shape
    real = np.finfo(dtype).dtype
    shapes = ((batch, m, count), dtype), ((batch, count), real), ((batch, count, n), dtype), (batch, np.int32)
    outputs = [np.empty(*shape) for shape in shapes]
    arrays = [a, *outputs]
    there = [Memory(x.nbytes) for x in arrays]
    there[0].array(a.shape, a.dtype)[...] = a
    call = (OPS["svd_part"], DTYPE_CODE[dtype], CUDA, 0, ENGINES[engine], 0, 0, (batch, m, n, count))
    work = Scratch(scratch)
    native.run(*call, 0, work, *[x.address for x in there])
    assert work.untouched() and all(x.untouched() for x in there)
    return [memory.array(x.shape, x.dtype).copy() for memory, x in zip(there[1:], outputs)]

def matrices(dtype, batch, m, n, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((batch, m, n))
    if dtype.startswith("complex"):
        a = a + 1j * rng.standard_normal((batch, m, n))
    return a.astype(dtype)

def check_part(a, count, engine="krylov", scratch=None):
    u, s, vh, info = svd_part(a, count, engine, scratch)
    assert not info.any()
    limit = 10 * max(a.shape[-2:]) * np.finfo(a.dtype).eps
    for a, u, s, vh in zip(a, u, s, vh):
        exact = np.linalg.svd(a.astype(np.result_type(a.dtype, float)), compute_uv=False)
        norm, adjoint = exact[0], lambda x: x.conj().T
        assert np.abs(exact[:count] - s).max() <= limit * norm
        assert np.linalg.norm(a @ adjoint(vh) - u * s) <= limit * norm
        assert np.linalg.norm(adjoint(a) @ u - adjoint(vh) * s) <= limit * norm
        assert np.linalg.norm(adjoint(u) @ u - np.eye(count)) <= limit
        assert np.linalg.norm(vh @ adjoint(vh) - np.eye(count)) <= limit
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return harness.libraries(tmp_path_factory)


@pytest.fixture
def child(libraries, tmp_path):
    children = harness.Children(libraries, tmp_path)
    # the calls inside go to the solver's stand-in: there is none for the kernels of singular values
    return lambda code, **settings: children(START + code, **{"LAPWING_ENGINE": "cusolver", **settings})


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_largest_singular_values(child, dtype):
    calls, _ = child(f"""
for shape in ((2, 60, 40), (1, 40, 60), (1, 45, 45)):
    check_part(matrices("{dtype}", *shape), 4)
""")
    assert ("widen" in launched(calls)) == (dtype in ("float32", "complex64"))
    assert "take_lines" not in launched(calls)


def test_full_decomposition_takes_over(child):
    """Values that the Gram matrix cannot tell from zero, and matrices that are not finite."""
    calls, _ = child("""
a = matrices("float64", 2, 50, 40)
u, s, vh = np.linalg.svd(a[1], full_matrices=False)
a[1] = (u * 10.0 ** -np.arange(0, 80, 2)) @ vh
check_part(a, 6)
a = matrices("float32", 3, 50, 40)
a[1, 3, 4] = np.nan
u, s, vh, info = svd_part(a, 3)
assert list(info) == [0, 1, 0] and np.isnan(s[1]).all() and np.isfinite(s[[0, 2]]).all()
""")
    assert "take_lines" in launched(calls)


def test_whole_decomposition_by_name(child):
    calls, _ = child("check_part(matrices('float64', 2, 40, 30), 3, 'cusolver')")
    assert launched(calls).count("take_lines") == 3 and "widen" not in launched(calls)


def test_workspace(child):
    """One block for all matrices of the batch, of the size that was announced."""
    child("""
a = matrices("float32", 3, 90, 40)
call = (OPS["svd_part"], DTYPE_CODE["float32"], CUDA, 0, ENGINES["krylov"], 0, 0, (3, 90, 40, 4))
need = native.scratch_bytes(*call)
check_part(a, 4, scratch=need)
assert "memory" in message(lambda: svd_part(a, 4, scratch=need - 1))
""")


# ---- a newer solver beside the ordinary one

LARGE = """
os.environ["LAPWING_CUDA_PATH"] = os.environ["LAPWING_CUDA_PATH"].split(":")[0]  # where the driver's stand-in is
w = np.arange(1, 4097, dtype="float32")
a = np.diag(w[::-1])[None]
"""


def newer(libraries):
    """The stand-in with the higher version number, which no other copy on the machine has."""
    return {"LAPWING_CUDA_PATH": f"{libraries}:{libraries / 'newer'}"}


def stand_ins(told, folder):
    """The rows of copies below the folder: others may be installed."""
    return [row for row in told["copies"] if row[0].startswith(str(folder))]


def test_copies_are_listed(child, libraries):
    _, told = child("tell(copies=native.solver_copies())", **newer(libraries))
    (first, version, problem, ordinary), (second, newest, none, other) = stand_ins(told, libraries)
    assert version == 12003 and ordinary and "older than 12.3.5" in problem
    assert newest == 99905 and not other and none == "" and "newer" in second and "newer" not in first


def test_only_one_copy(child, libraries):
    _, told = child("tell(copies=native.solver_copies())")
    ((_, version, problem, ordinary),) = stand_ins(told, libraries)
    assert version == 12003 and ordinary and problem


def test_a_copy_that_cannot_be_loaded(child, libraries, tmp_path):
    broken = tmp_path / "broken/nvidia/cu13/lib"
    broken.mkdir(parents=True)
    (broken / "libcusolver.so.12").write_bytes(b"no library")
    code = "tell(copies=native.solver_copies()); check_eigh(hermitian('float64', 1, 40), 'cusolver')"
    _, told = child(code, LAPWING_CUDA_PATH=f"{libraries}:{tmp_path / 'broken'}")
    ((_, version, problem, _),) = stand_ins(told, tmp_path / "broken")
    assert version == 0 and "cannot be loaded" in problem


def test_newer_copy_is_used_for_large_matrices(child, libraries):
    """By its own handles; the ordinary copy keeps the rest."""
    code = (
        LARGE
        + """
values, _, info = eigh(a, "cusolver", vectors=False)
assert not info.any() and np.array_equal(values[0], w)
check_eigh(hermitian("float32", 1, 40), "cusolver")
"""
    )
    calls, _ = child(code, **newer(libraries))
    used = {int(call["n"]): call["version"] for call in named(calls, "cusolverDnXsyevd")}
    assert used == {4096: "99905", 40: "12003"}


def test_newer_copy_that_does_not_start(child, libraries):
    """A library may need a newer driver: the ordinary copy does the work."""
    code = (
        LARGE
        + """
results = []
assert failing("cusolverDnSetAdvOptions:1", lambda: results.append(eigh(a, "cusolver", vectors=False))) is None
values, _, info = results[0]
assert not info.any() and np.array_equal(values[0], w)
tell(copies=native.solver_copies())
"""
    )
    calls, told = child(code, **newer(libraries))
    assert [call["version"] for call in named(calls, "cusolverDnXsyevd")] == ["12003"]
    assert all(problem for _, _, problem, _ in stand_ins(told, libraries))


def test_two_stages_are_chosen_beside_either_copy(child, libraries):
    """On an H200 our own two stages win the large matrices, whichever copy of cuSOLVER is there."""
    code = """
def engine(op, dtype, n):
    call = (OPS[op], DTYPE_CODE[dtype], CUDA, 0, ENGINES["auto"], 0, 0, (1, n, 0, n), "")
    return {code: name for name, code in ENGINES.items()}[native.plan(*call)[0]]

sizes = ("float64", 4096), ("float64", 8192), ("float64", 16384), ("float32", 8192), ("float32", 16384)
tell(engines={op: [engine(op, *size) for size in sizes] for op in ("eigh", "eigvalsh")})
"""
    rules = "from lapwing import planner\nnative.set_rules(native.gpus()[0][0], planner._rules_for('cuda', 'NVIDIA H200'))\n"
    one, two = "batched", "two_stage"
    for start in ("", rules):  # by the limits of the code, and by the record
        for copies in ({}, newer(libraries)):
            _, told = child(start + code, LAPWING_ENGINE="", **copies)
            assert told["engines"] == {"eigh": [one, two, two, one, two], "eigvalsh": [two, two, two, two, two]}
