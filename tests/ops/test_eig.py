"""eig, eigvals and schur: every framework, dtype and shape, matrices that are hard for QR iterations, and clear failures."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, random

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 65)
BATCHES = ((), (0,), (1,), (3,), (2, 3))
COMPLEX = {"float32": "complex64", "float64": "complex128", "complex64": "complex64", "complex128": "complex128"}


def scaled(x, n, dtype):
    """x in units of n eps."""
    return float(x / max(n, 1) / np.finfo(dtype).eps)


def norms(a):
    """The norm of each matrix: its largest sum of a row."""
    return np.maximum(np.abs(a).sum(-1).max(-1, initial=0), np.finfo(a.dtype).tiny)[..., None, None]


def check_eig(a, w, v, limit=10):
    n, kind = a.shape[-1], COMPLEX[a.dtype.name]
    assert w.shape == a.shape[:-1] and v.shape == a.shape
    assert w.dtype == v.dtype == kind
    if not a.size:
        return
    size = norms(a)
    rest = (a / size).astype(kind) @ v - v * (w[..., None, :] / size)
    assert scaled(np.abs(rest).max(), n, a.dtype) < limit
    assert scaled(np.abs(np.linalg.norm(v, axis=-2) - 1).max(), n, a.dtype) < limit
    if a.dtype.kind == "f":
        # conjugate pairs are exact and stand side by side; a real eigenvalue has a real vector
        for values, vectors in zip(w.reshape(-1, n), v.reshape(-1, n, n), strict=True):
            first = np.flatnonzero(values.imag > 0)
            assert np.array_equal(np.flatnonzero(values.imag < 0), first + 1)
            assert np.array_equal(values[first].conj(), values[first + 1])
            assert np.array_equal(vectors[:, first].conj(), vectors[:, first + 1])
            assert not vectors[:, values.imag == 0].imag.any()


def check_schur(a, t, z, limit=10):
    n = a.shape[-1]
    assert t.shape == z.shape == a.shape
    assert t.dtype == z.dtype == a.dtype
    if not a.size:
        return
    adjoint = z.conj().swapaxes(-1, -2)
    size = norms(a)
    assert scaled(np.abs(a / size - z @ (t / size) @ adjoint).max(), n, a.dtype) < limit
    assert scaled(np.abs(adjoint @ z - np.eye(n)).max(), n, a.dtype) < limit
    if a.dtype.kind == "c":
        assert not np.tril(t, -1).any()
        return
    assert not np.tril(t, -2).any()
    for block in t.reshape(-1, n, n):
        below = np.diagonal(block, -1)
        assert not ((below[1:] != 0) & (below[:-1] != 0)).any()  # blocks are apart
        for i in np.flatnonzero(below):
            assert block[i, i] == block[i + 1, i + 1]
            assert np.sign(block[i, i + 1]) == -np.sign(below[i])


@pytest.mark.parametrize(
    "dtype", [pytest.param(x, marks=pytest.mark.slow) if x in ("float32", "complex128") else x for x in DTYPES]
)
def test_residuals(backend, dtype):
    for n in (0, 1, 2, 3, 8, 17, 65) if backend.name == "jax" else SIZES:  # JAX compiles each
        a = random((3, n, n), dtype, seed=n)
        given = backend.put(a)
        w, v = lw.eig(given)
        assert type(w) is type(v) is type(given)
        check_eig(a, backend.get(w), backend.get(v))
        t, z = lw.schur(given)
        check_schur(a, backend.get(t), backend.get(z))
        values = backend.get(lw.eigvals(given))
        assert values.dtype == COMPLEX[dtype]
        if n:
            assert_same_values(values, backend.get(w), 1e3 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [65, 79, 100, 129, 256, 257])
def test_middle_orders(dtype, n):
    """Real matrices of these orders have kernels of their own, which give the same bits anywhere in a batch."""
    a = random((3, n, n), dtype, seed=n)
    a[1] = matrices(n)["grcar"]
    w, v = lw.eig(a)
    check_eig(a, w, v)
    t, z = lw.schur(a)
    check_schur(a, t, z)
    for m in (0, 2):
        assert np.array_equal(lw.eig(a[m]).eigenvectors, v[m]) or n > 256
        assert np.array_equal(lw.eigvals(a[m]), w[m]) or n > 256
        assert np.array_equal(lw.schur(a[m])[0], t[m]) or n > 256


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_one_matrix_far_from_one(dtype, size):
    a = (random((40, 40), "float64") * size).astype(dtype)
    check_eig(a, *lw.eig(a))
    check_schur(a, *lw.schur(a))


def test_one_matrix_that_is_not_finite():
    a = random((40, 40), "float64")
    a[3, 30] = np.nan
    with pytest.raises(lw.ConvergenceError):
        lw.eig(a)


def assert_same_values(x, y, tolerance):
    """The same eigenvalues in any order; of matrices whose eigenvalues are not too sensitive."""
    for one, other in zip(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), strict=True):
        left = list(other)
        for value in one:
            nearest = min(range(len(left)), key=lambda i: abs(left[i] - value))
            assert abs(left.pop(nearest) - value) <= tolerance * len(one) * max(1, np.abs(one).max())


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.slow), 6])
def test_batch_shapes(backend, batch, n):
    a = random((*batch, n, n), "float64")
    check_eig(a, *map(backend.get, lw.eig(backend.put(a))))
    check_schur(a, *map(backend.get, lw.schur(backend.put(a))))
    assert backend.get(lw.eigvals(backend.put(a))).shape == (*batch, n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_complex_schur_form(backend, dtype):
    a = random((3, 7, 7), dtype)
    t, z = map(backend.get, lw.schur(backend.put(a), output="complex"))
    assert t.dtype == COMPLEX[dtype]
    check_schur(a.astype(COMPLEX[dtype]), t, z)


def matrices(n):
    """Matrices that are hard for QR iterations, balancing or back substitution."""
    i = np.arange(n)
    rng = np.random.default_rng(n)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    grcar = np.triu(np.tril(np.ones((n, n)), 3)) - np.eye(n, k=-1)
    normal = q @ np.diag(rng.standard_normal(n)) @ q.T
    return {
        "zero": np.zeros((n, n)),
        "identity": np.eye(n),
        "nilpotent": np.eye(n, k=1),
        "lower nilpotent": np.eye(n, k=-1),
        "jordan": np.eye(n) + np.eye(n, k=1),
        "turned jordan": q @ (np.eye(n) + np.eye(n, k=1)) @ q.T,
        "ones": np.ones((n, n)),
        "cyclic": np.roll(np.eye(n), 1, 0),
        "permutation": np.eye(n)[rng.permutation(n)],
        "orthogonal": q,
        "rotations": np.kron(np.eye(n // 2 + 1), np.array([[0.6, -0.8], [0.8, 0.6]]))[:n, :n],
        "skew": np.triu(np.ones((n, n)), 1) - np.tril(np.ones((n, n)), -1),
        "companion": np.eye(n, k=-1) + np.outer(i == 0, -1.0 / (i + 1)),
        "roots of one": np.eye(n, k=-1) + np.outer(i == 0, i == n - 1),
        "grcar": grcar,
        "normal": normal,
        "graded": 10.0 ** -(i[:, None] + i) * rng.standard_normal((n, n)),
        "badly scaled": 10.0 ** (2 * (i[:, None] % 5) - 2 * (i % 5)) * rng.standard_normal((n, n)),
        "frank": np.where(i[None, :] >= i[:, None] - 1, n - np.maximum(i[:, None], i[None, :]), 0.0),
        "one column": np.outer(np.ones(n), i == 1),
        "upper": np.triu(rng.standard_normal((n, n))),
        "lower": np.tril(rng.standard_normal((n, n))),
        "equal pairs": q @ np.kron(np.eye(n // 2 + 1), np.array([[1.0, -2.0], [2.0, 1.0]]))[:n, :n] @ q.T,
    }


@pytest.mark.parametrize("engine", ["batched", "lapack"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 3, 4, 6, 10, 24, pytest.param(64, marks=pytest.mark.slow)])
def test_hard_matrices(n, dtype, engine):
    every = matrices(n)
    a = np.array(list(every.values())).astype(dtype)
    if dtype.startswith("complex"):
        a = a * np.exp(0.3j).astype(dtype)
    w, v = lw.eig(a, engine=engine)
    t, z = lw.schur(a, engine=engine)
    for k, name in enumerate(every):
        try:
            check_eig(a[k : k + 1], w[k : k + 1], v[k : k + 1])
            check_schur(a[k : k + 1], t[k : k + 1], z[k : k + 1])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["batched", "lapack"])
def test_extreme_sizes(dtype, engine):
    most = 1e300 if np.finfo(dtype).maxexp == 1024 else 1e37
    a = random((6, 5, 5), dtype)
    a /= np.abs(a).max((-1, -2), keepdims=True)
    for size in (most, 1 / most, 3e-310 if most > 1e200 else 3e-40):
        b = (a.astype("complex128") * size).astype(COMPLEX[dtype])
        b = b if dtype.startswith("complex") else np.ascontiguousarray(b.real)
        w, v = lw.eig(b, engine=engine)
        t, z = lw.schur(b, engine=engine)
        if size > np.finfo(dtype).tiny:
            check_eig(b, w, v)
            check_schur(b, t, z)
        else:  # subnormal numbers have few digits
            assert np.isfinite(w).all() and np.isfinite(v).all() and np.isfinite(t).all()


def test_balancing_keeps_small_eigenvalues():
    a = np.array([[1.0, 1e20, 0.0], [1e-20, 2.0, 1e20], [0.0, 1e-20, 3.0]])
    d = np.diag([1e20, 1.0, 1e-20])
    expected = np.sort(np.linalg.eigvalsh(np.linalg.inv(d) @ a @ d))
    assert np.abs(np.sort(lw.eigvals(a[None], engine="batched")[0].real) - expected).max() < 1e-13


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 12, 40])
def test_same_bits_anywhere_in_the_batch(dtype, n):
    one, a = random((n, n), dtype, seed=3), random((37, n, n), dtype, seed=4)
    a[[0, 7, 20, 36]] = one
    for results in (lw.eig(a, engine="batched"), lw.schur(a, engine="batched"), (lw.eigvals(a, engine="batched"),)):
        for x in results:
            assert all(np.array_equal(x[0], x[m]) for m in (7, 20, 36))
    alone = lw.eig(one[None], engine="batched")
    assert np.array_equal(alone.eigenvalues[0], lw.eig(a, engine="batched").eigenvalues[7])
    assert np.array_equal(lw.eigvals(a, engine="batched"), lw.eig(a, engine="batched").eigenvalues)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("n", [1, 3, 20, 70])
def test_failure_is_named_and_stays_alone(backend, value, n):
    a = random((4, n, n), "float64", seed=n)
    a[2, n - 1, 0] = value
    given, good = backend.put(a), [0, 1, 3]
    for function in (lw.eig, lw.eigvals, lw.schur):
        with pytest.raises(lw.ConvergenceError) as caught:
            function(given)
        error = caught.value
        assert error.batch_index == (2,) and error.nonfinite and error.failures == 1
        assert f"{function.__name__}: matrix 2 of 4 holds NaN or Inf" in str(error)
    w, v = map(backend.get, lw.eig(given, on_fail="nan"))
    assert np.isnan(w[2]).all() and np.isnan(v[2]).all()
    check_eig(a[good], w[good], v[good])
    t, z = map(backend.get, lw.schur(given, on_fail="nan"))
    assert np.isnan(t[2]).all() and np.isnan(z[2]).all()
    check_schur(a[good], t[good], z[good])
    assert np.isnan(backend.get(lw.eigvals(given, on_fail="nan"))[2]).all()


def test_input_is_kept(backend):
    a = random((3, 5, 5), "float64")
    given = backend.put(a.copy())
    lw.eig(given), lw.schur(given), lw.eigvals(given)
    assert np.array_equal(backend.get(given), a)
    turned = a.swapaxes(-1, -2)  # memory of the transpose
    check_eig(turned, *lw.eig(turned))
    check_schur(turned, *lw.schur(turned))


@pytest.mark.parametrize("function", [lw.eig, lw.eigvals, lw.schur])
def test_bad_arguments(function):
    name = function.__name__
    with pytest.raises(ValueError, match=f"{name}: the matrices must be square"):
        function(np.ones((2, 3)))
    with pytest.raises(TypeError, match=f"{name}: dtype int64"):
        function(np.ones((2, 2), int))
    with pytest.raises(ValueError, match=f"{name}: on_fail"):
        function(np.eye(2), on_fail="skip")
    with pytest.raises(ValueError, match="hint"):
        function(np.eye(2), engine="krylov")
    with pytest.raises(ValueError, match="batched takes n up to 64"):
        function(np.eye(65)[None], engine="batched")
    with pytest.raises(TypeError, match="upper"):
        function(np.eye(2), upper=True)


def test_bad_output():
    with pytest.raises(ValueError, match="output='both'"):
        lw.schur(np.eye(2), output="both")


def test_explain_names_the_engine():
    assert lw.explain(lw.eig, lw.spec((100, 8, 8))).engine == "batched"
    assert lw.explain(lw.eigvals, lw.spec((100, 100))).engine == "lapack"
    assert lw.explain(lw.schur, lw.spec((100, 8, 8)), output="complex").engine == "batched"
    assert lw.explain(lw.eig, lw.spec((100, 8, 8), "float32")).flops == 100 * 25 * 8**3


def test_results_have_names():
    result = lw.eig(np.diag([1.0, 2.0]))
    assert result._fields == ("eigenvalues", "eigenvectors")
    assert lw.schur(np.eye(2))._fields == ("T", "Z")
    error = pickle.loads(pickle.dumps(lw.DefectiveMatrixError("eig", batch_index=(1,), batch_shape=(2,))))
    assert error.batch_index == (1,) and "matrix 1 of 2 is defective" in str(error)


def test_sharded_matrices_are_refused():
    with pytest.raises(TypeError, match="eig is not supported for sharded matrices"):
        lw.explain(lw.eig, lw.spec((100, 100), sharding=4))
    for function in (lw.eig, lw.eigvals, lw.schur):
        with pytest.raises(TypeError, match=f"{function.__name__}: sharded matrices are not supported\nhint: put the matrix"):
            function(lw.spec((100, 100), sharding=4))


def test_arrays_of_another_library():
    class Foreign:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    a = random((3, 3), "float64")
    check_eig(a, *lw.eig(Foreign(a)))
    check_schur(a, *lw.schur(Foreign(a)))
    check_schur(a.astype(complex), *lw.schur(Foreign(a), output="complex"))
    assert np.array_equal(lw.eigvals(Foreign(a)), lw.eigvals(a))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("batch, n", [(1, 3), (1, 20), (1, 100), (1, 257), (20, 3), (20, 20), (4, 64)])
def test_permuted_triangles_are_exact(batch, n, dtype):
    """Their eigenvalues are on the diagonal. With other rows and columns in between, only theirs are rounded."""
    rng = np.random.default_rng(n)
    values = np.arange(n) // 3 + 1.0  # repeated and defective: an error of eps would become one of eps^(1/3)
    triangles = np.tril(random((batch, n, n), dtype, seed=n), -1) + np.diag(values).astype(dtype)
    orders = [rng.permutation(n) for _ in range(batch)]
    a = np.stack([x[np.ix_(order, order)] for x, order in zip(triangles, orders, strict=True)])
    w, v = lw.eig(a)
    check_eig(a, w, v)
    assert (np.sort_complex(w) == values).all() and np.array_equal(lw.eigvals(a), w)
    t, z = lw.schur(a)
    check_schur(a, t, z)
    assert (np.sort_complex(np.diagonal(t, 0, -2, -1)) == values).all()

    middle = n // 3
    a = triangles
    a[::2, middle : middle + 2, middle : middle + 2] = [[0, 1], [-1, 0]]
    rest = np.delete(values, [middle, middle + 1])
    w, v = lw.eig(a)
    assert all(np.array_equal(np.sort(x[x.imag == 0].real), rest) for x in w[::2]) or dtype == "complex128"
    assert all(np.isin(rest, x).all() for x in w)
    check_eig(a, w, v)
    check_schur(a, *lw.schur(a))


def test_balancing_one_matrix_over_a_wide_range():
    a = random((20, 20), "float64", seed=3)
    powers = np.round(np.linspace(0, 280, 20))
    w = lw.eigvals(np.ldexp(a, (powers - powers[:, None]).astype(int)))
    assert_same_values(w, np.linalg.eigvals(a), 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_have_length_one_where_a_pair_lies_between_equal_values(dtype):
    """Rounding errors give the vector of a repeated real eigenvalue any phase."""
    a = np.array([[0, 1, 0, 0], [0, 0, -1, 2], [0, 2, 0, 0], [0, 0, 0, 0]], dtype)
    rng = np.random.default_rng(0)
    sparse = (rng.integers(-2, 3, (2000, 6, 6)) * (rng.random((2000, 6, 6)) < 0.4)).astype(dtype)
    for batch in (np.tile(a, (20, 1, 1)), sparse):
        w, v = lw.eig(batch)
        n, eps = batch.shape[-1], np.finfo(dtype).eps
        assert abs(np.linalg.norm(v, axis=-2) - 1).max() < 10 * n * eps
        sizes = np.linalg.norm(batch, axis=(1, 2))
        assert (np.linalg.norm(batch @ v - v * w[:, None], axis=(1, 2)) <= 10 * n * eps * np.maximum(sizes, 1)).all()
