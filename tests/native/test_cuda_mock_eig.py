"""Eigenvalues of general matrices on the CUDA path without a GPU: see test_cuda_mock.py. The stand-in solver computes."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent / "mock"))
import harness

DTYPES = ("float32", "float64", "complex64", "complex128")
pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

# (outputs, info) through native.run, with no more scratch memory than was announced
CALL = """
COMPLEX = {"float32": "complex64", "float64": "complex128"}

def general(dtype, batch, n, seed=0):
    rng = np.random.default_rng(seed + 10 * n + batch)
    x = rng.standard_normal((batch, n, n))
    return (x + 1j * rng.standard_normal(x.shape) if "complex" in dtype else x).astype(dtype)

def run(op, a, engine, scratch=None):
    batch, n, _ = a.shape
    kind = COMPLEX.get(a.dtype.name, a.dtype.name)
    values, vectors, same = ((batch, n), kind), (a.shape, kind), (a.shape, a.dtype.name)
    outputs = [*{"eig": [values, vectors], "eigvals": [values], "schur": [same] * 2}[op], ((batch,), "int32")]
    call = (OPS[op], DTYPE_CODE[a.dtype.name], CUDA, 0, ENGINES[engine], 0, 0, (batch, n))
    work = Scratch(native.scratch_bytes(*call) if scratch is None else scratch)
    given = Memory(a.nbytes)
    given.array(a.shape, a.dtype)[...] = a
    results = [Memory(int(np.prod(shape)) * np.dtype(d).itemsize) for shape, d in outputs]
    native.run(*call, 0, work, given.address, *[r.address for r in results])
    assert all(memory.untouched() for memory in (given, work, *results)), f"{engine} wrote outside its memory"
    assert np.array_equal(given.array(a.shape, a.dtype), a, equal_nan=True)
    return [r.array(shape, d) for r, (shape, d) in zip(results, outputs)]

def check_pairs(a, w, v):
    n, eps = a.shape[-1], np.finfo(a.dtype).eps
    rest = np.abs(a.astype(v.dtype) @ v - v * w[:, None, :]).max((-1, -2)) / np.abs(a).sum(-1).max(-1)
    assert rest.max() < 10 * n * eps, rest.max() / n / eps
    assert np.abs(np.linalg.norm(v, axis=-2) - 1).max() < 10 * n * eps
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return harness.libraries(tmp_path_factory)


@pytest.fixture
def child(libraries, tmp_path, tmp_path_factory):
    """Runs calls with eig_give.cu as host code."""
    folder = tmp_path_factory.getbasetemp() / "emulated-eig"
    folder.mkdir(exist_ok=True)
    children = harness.Children(libraries, tmp_path)
    return lambda code: children(code, MOCK_EMULATE=str(folder), MOCK_EMULATOR=str(harness.EMULATOR))


@pytest.mark.parametrize("engine", ["cusolver", "lapack"])
def test_answers(child, engine):
    child(
        CALL
        + f"""
for dtype in {DTYPES}:
    for n in (1, 2, 5, 12, 34):
        for batch in (1, 3):
            a = general(dtype, batch, n)
            w, v, info = run("eig", a, "{engine}")
            assert not info.any()
            check_pairs(a, w, v)
            values, info = run("eigvals", a, "{engine}")
            assert not info.any()
            bound = 10 * n * n * np.finfo(w.real.dtype).eps * np.abs(a).sum((-1, -2))  # n values
            assert (np.abs(values.sum(-1) - w.sum(-1)) <= bound).all()
            if "{engine}" == "lapack":
                t, z, info = run("schur", a, "lapack")
                assert not info.any() and np.abs(z @ t @ z.conj().mT - a).max() < 1e-4
assert balanced()
"""
    )


@pytest.mark.parametrize("engine", ["cusolver", "lapack"])
def test_a_failing_matrix_stays_alone(child, engine):
    child(
        CALL
        + f"""
for value in (np.nan, np.inf, 13.0):
    a = general("float64", 4, 5)
    a[2, 0, 0] = value
    w, v, info = run("eig", a, "{engine}")
    bad = value != 13.0 or "{engine}" == "cusolver"  # the stand-in fails there
    assert info.tolist() == [0, 0, int(bad), 0]
    assert np.isnan(w[2]).all() == bad and np.isnan(v[2]).all() == bad
    good = [0, 1, 3]
    check_pairs(a[good], w[good], v[good])
"""
    )


def test_engines_on_a_gpu(child):
    child(
        CALL
        + """
a = general("float64", 2, 4)
try:
    run("schur", a, "cusolver")
except RuntimeError as error:
    assert "does not have this operation" in str(error)
else:
    raise AssertionError("schur by cusolver")
for scratch in (0, 100):
    try:
        run("eig", a, "cusolver", scratch)
    except (RuntimeError, MemoryError) as error:
        assert "memory" in str(error)
    else:
        raise AssertionError("no scratch memory")
"""
    )
