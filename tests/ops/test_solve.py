"""solve, inv, slogdet, factor, qr, svd, lstsq and polar: every library and dtype, right answers and clear failures."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, poison, random, spd, x64

SIZES = (1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 65)
SHAPES = ((1, 1), (5, 5), (9, 4), (4, 9), (40, 7), (33, 33), (7, 40), (70, 65), (3, 1), (1, 3))


def some(backend, cases):
    """All of them for NumPy and on a GPU; on a CPU the others reach the same code, and JAX compiles for every shape."""
    return cases if backend.name == "numpy" or backend.device == "cuda" else cases[2::4]


def eps_of(x):
    return float(np.finfo(x.dtype).eps)


def wide(x):
    return x.astype("complex128" if x.dtype.kind == "c" else "float64")


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


def norm(x):
    return np.linalg.norm(wide(x), axis=(-2, -1))


def backward_error(a, x, b):
    """||b - A x|| / (n eps (||A|| ||x|| + ||b||)), the largest of the batch."""
    left = wide(b) - wide(a) @ wide(x)
    scale = norm(a) * norm(x) + norm(b)
    n = a.shape[-1]
    return float(np.max(norm(left) / np.where(scale == 0, 1, scale), initial=0) / (max(n, 1) * eps_of(x)))


def with_condition(n, condition, dtype, seed=0):
    """Geometric singular values between 1 and 1 / condition."""
    kind = "complex128" if dtype.startswith("complex") else "float64"
    u, v = (np.linalg.qr(random((n, n), kind, seed + i))[0] for i in range(2))
    return ((u * np.geomspace(1, 1 / condition, n)) @ v).astype(dtype)


def of_kind(assume, shape, dtype, seed=0):
    """A matrix of the kind, and what to hand over: with NaN where nothing may be read."""
    n = shape[-1]
    if assume == "pos":
        a = spd(shape, dtype, seed)
        return a, poison(a, False)
    a = random(shape, dtype, seed) + (2 * n * np.eye(n)).astype(dtype) * (assume in ("lower", "upper"))
    if assume == "general":
        return a, a
    if assume in ("lower", "upper"):
        a = np.tril(a) if assume == "lower" else np.triu(a)
        return a, poison(a, assume == "upper")
    a = (a + (a.swapaxes(-1, -2) if assume == "symmetric" else adjoint(a))).astype(dtype)
    return a, poison(a, False)


ASSUME = ("general", "symmetric", "hermitian", "pos", "lower", "upper")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", ["full", "mixed"])
def test_positive_matrices_in_the_memory_of_their_transpose(backend, dtype, precision):
    """A real one is worked on as it lies, with the other triangle named."""
    if backend.name not in ("numpy", "torch", "cupy") or (precision == "mixed" and dtype not in ("float64", "complex128")):
        pytest.skip("no such memory, or no such precision")
    for n, upper in ((5, False), (5, True), (150, False), (150, True)):
        a, b = spd((n, n), dtype, seed=n), random((n, 3), dtype, seed=1)
        given = backend.put(np.ascontiguousarray(poison(a, upper).T)).T
        before = backend.get(given).copy()
        options = {"assume": "pos", "upper": upper}
        x = backend.get(lw.solve(given, backend.put(b), precision=precision, **options))
        assert backward_error(a, x, b) <= 10
        inverse = backend.get(lw.inv(given, **options))
        assert np.array_equal(inverse, adjoint(inverse))
        assert norm(inverse @ a - np.eye(n)) <= 10 * n * eps_of(a) * np.linalg.cond(a)
        logabs = backend.get(lw.slogdet(given, **options)[1])
        assert abs(logabs - np.linalg.slogdet(wide(a))[1]) <= 10 * n * eps_of(a) * n
        assert np.array_equal(backend.get(given), before, equal_nan=True)
        bad = np.asfortranarray(poison(a - 4 * n * np.eye(n, dtype=dtype) * (np.arange(n) == 3), upper))
        with pytest.raises(lw.NotPositiveDefiniteError, match="minor of order 4"):
            lw.solve(backend.put(np.ascontiguousarray(bad.T)).T, backend.put(b), **options)


@pytest.mark.parametrize("assume", ASSUME)
@pytest.mark.parametrize("dtype", DTYPES)
def test_solve(backend, dtype, assume):
    for n in some(backend, SIZES):
        a, given = of_kind(assume, (3, n, n), dtype, seed=n)
        for k in (1, 4):
            b = random((3, n, k), dtype, seed=k)
            x = lw.solve(backend.put(given), backend.put(b), assume=assume)
            assert backend.get(x).dtype == np.dtype(dtype)
            assert backward_error(a, backend.get(x), b) < 10, (n, k)


@pytest.mark.parametrize("upper", [False, True])
def test_the_named_triangle_is_read(backend, upper):
    for assume in ("pos", "hermitian", "symmetric"):
        a, _ = of_kind(assume, (2, 7, 7), "complex128")
        b = random((2, 7, 3), "complex128")
        given = backend.put(poison(a, upper))
        assert backward_error(a, backend.get(lw.solve(given, backend.put(b), assume=assume, upper=upper)), b) < 10
        x = backend.get(lw.inv(given, assume=assume, upper=upper))
        assert norm(a @ x - np.eye(7)).max() < 10 * 7 * eps_of(a) * (norm(a) * norm(x)).max()
        sign, logabs = lw.slogdet(given, assume=assume, upper=upper)
        expected = np.linalg.slogdet(a)
        assert np.abs(backend.get(sign) - expected[0]).max() < 1e-12
        assert np.abs(backend.get(logabs) - expected[1]).max() < 1e-12


@pytest.mark.parametrize("condition", [1, 1e5, 1e10, 1e15])
def test_solve_over_condition_numbers(backend, condition):
    for n in (6, 50, 120):
        a = np.stack([with_condition(n, condition, "float64", seed) for seed in range(2)])
        b = random((2, n, 2), "float64")
        assert backward_error(a, backend.get(lw.solve(backend.put(a), backend.put(b))), b) < 10
        squared = a @ adjoint(a) + 0 * np.eye(n)
        if condition <= 1e5:
            squared = (squared + adjoint(squared)) / 2
            assert backward_error(squared, backend.get(lw.solve(backend.put(squared), backend.put(b), assume="pos")), b) < 10


@pytest.mark.parametrize(
    ("a", "b", "x"),
    [
        ((4, 4), (4,), (4,)),
        ((4, 4), (4, 2), (4, 2)),
        ((3, 4, 4), (4,), (3, 4)),
        ((3, 4, 4), (4, 2), (3, 4, 2)),
        ((4, 4), (3, 4, 2), (3, 4, 2)),
        ((4, 4), (5, 3, 4, 1), (5, 3, 4, 1)),
        ((5, 1, 4, 4), (3, 4, 2), (5, 3, 4, 2)),
        ((0, 4, 4), (4, 2), (0, 4, 2)),
        ((4, 4), (0, 4, 2), (0, 4, 2)),
        ((4, 4), (4, 0), (4, 0)),
        ((0, 0), (0,), (0,)),
        ((0, 0), (0, 3), (0, 3)),
    ],
)
def test_shapes(backend, a, b, x):
    matrix, right = spd(a, "float64"), random(b, "float64")
    expected = np.linalg.solve(matrix, right[..., None] if len(b) == 1 else right)
    expected = expected[..., 0] if len(b) == 1 else expected
    for assume in ("general", "pos"):
        made = backend.get(lw.solve(backend.put(matrix), backend.put(right), assume=assume))
        assert made.shape == x == expected.shape
        assert np.allclose(made, expected, rtol=1e-12, atol=1e-12)
    f = lw.factor(backend.put(matrix))
    assert backend.get(f.solve(backend.put(right))).shape == x


@pytest.mark.parametrize("assume", ASSUME)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inv(backend, dtype, assume):
    for n in some(backend, SIZES):
        a, given = of_kind(assume, (3, n, n), dtype, seed=n)
        x = backend.get(lw.inv(backend.put(given), assume=assume))
        error = norm(wide(a) @ wide(x) - np.eye(n)) / (n * eps_of(x) * norm(a) * norm(x))
        assert error.max() < 10, n
        if assume in ("pos", "hermitian"):
            assert np.array_equal(x, adjoint(x))
        if assume == "symmetric":
            assert np.array_equal(x, x.swapaxes(-1, -2))


@pytest.mark.parametrize("assume", ASSUME)
@pytest.mark.parametrize("dtype", DTYPES)
def test_slogdet(backend, dtype, assume):
    for n in some(backend, SIZES):
        a, given = of_kind(assume, (3, n, n), dtype, seed=n)
        sign, logabs = (backend.get(x) for x in lw.slogdet(backend.put(given), assume=assume))
        expected = np.linalg.slogdet(wide(a))
        condition = np.linalg.cond(wide(a)).max()
        limit = 10 * n * eps_of(a) * condition
        assert sign.dtype == np.dtype(dtype)
        assert np.abs(sign - expected[0]).max() < limit, n
        assert np.abs(logabs - expected[1]).max() < limit * (1 + np.abs(expected[1]).max()), n


def test_slogdet_of_singular_matrices(backend):
    a = np.stack([np.ones((3, 3)), np.eye(3), np.zeros((3, 3))])
    sign, logabs = (backend.get(x) for x in lw.slogdet(backend.put(a)))
    assert sign.tolist() == [0, 1, 0]
    assert logabs.tolist() == [-np.inf, 0, -np.inf]
    assert [float(backend.get(x)) for x in lw.slogdet(backend.put(np.zeros((0, 0))))] == [1, 0]


def test_singular_matrices_are_named(backend):
    for n in (3, 40):
        a = random((4, n, n), "float64")
        a[2, :, 1] = 0
        b = random((4, n, 1), "float64")
        for call in (lambda a, b: lw.solve(a, b), lambda a, b: lw.inv(a), lambda a, b: lw.factor(a, assume="general")):
            with pytest.raises(lw.SingularMatrixError, match=r"matrix 2 of 4 is singular \(pivot 2 is zero\)") as caught:
                call(backend.put(a), backend.put(b))
            assert (caught.value.batch_index, caught.value.pivot, caught.value.nonfinite) == ((2,), 2, False)
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        x = backend.get(lw.solve(backend.put(a), backend.put(b), on_fail="nan"))
        assert np.isnan(x[2]).all()
        assert backward_error(a[[0, 1, 3]], x[[0, 1, 3]], b[[0, 1, 3]]) < 10
        result, info = lw.solve_ex(backend.put(a), backend.put(b))
        assert backend.get(info).tolist() == [0, 0, 2, 0]
        assert np.isnan(backend.get(result)[2]).all()
        assert backend.get(lw.inv_ex(backend.put(a)).info).tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize("assume", ["lower", "upper"])
def test_triangular_failures(backend, assume):
    a, _ = of_kind(assume, (3, 5, 5), "float64")
    a[1, 3, 3] = 0
    with pytest.raises(lw.SingularMatrixError, match=r"matrix 1 of 3 is singular \(pivot 4 is zero\)"):
        lw.solve(backend.put(a), backend.put(random((3, 5, 1), "float64")), assume=assume)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_input_is_named(backend, value):
    for n in (4, 40):
        a = spd((3, n, n), "float64")
        a[1, 2, 0] = a[1, 0, 2] = value
        b = backend.put(random((3, n, 1), "float64"))
        given = backend.put(a)
        with pytest.raises(lw.SingularMatrixError, match="matrix 1 of 3 holds NaN or Inf"):
            lw.solve(given, b)
        with pytest.raises(lw.NotPositiveDefiniteError, match="matrix 1 of 3 holds NaN or Inf"):
            lw.solve(given, b, assume="pos")
        with pytest.raises(lw.ConvergenceError, match="matrix 1 of 3 holds NaN or Inf"):
            lw.svd(given)
        q, r = lw.qr(given)
        assert np.isnan(backend.get(q)[1]).all()
        assert np.isfinite(backend.get(q)[[0, 2]]).all()
        assert np.isfinite(backend.get(r)[[0, 2]]).all()
        s = backend.get(lw.svdvals(given, on_fail="nan"))
        assert np.isnan(s[1]).all()
        assert np.isfinite(s[[0, 2]]).all()
    indefinite = backend.put(np.diag([1.0, -1.0]))
    with pytest.raises(lw.NotPositiveDefiniteError, match="leading minor of order 2"):
        lw.inv(indefinite, assume="pos")
    with pytest.raises(lw.NotPositiveDefiniteError, match="leading minor of order 2"):
        lw.slogdet(indefinite, assume="pos")
    with pytest.raises(lw.NotPositiveDefiniteError, match="leading minor of order 2"):
        lw.factor(indefinite)


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr(backend, dtype):
    for m, n in some(backend, SHAPES):
        a = random((2, m, n), dtype, seed=m)
        for mode in ("reduced", "complete"):
            q, r = (backend.get(x) for x in lw.qr(backend.put(a), mode=mode))
            c = m if mode == "complete" else min(m, n)
            assert q.shape == (2, m, c)
            assert r.shape == (2, c, n)
            limit = 10 * max(m, n) * eps_of(a)
            assert norm(wide(q) @ wide(r) - a).max() < limit * norm(a).max(), (m, n, mode)
            assert norm(adjoint(wide(q)) @ wide(q) - np.eye(c)).max() < limit, (m, n, mode)
            assert not np.tril(r, -1).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd(backend, dtype):
    for m, n in some(backend, SHAPES):
        a = random((2, m, n), dtype, seed=m)
        k = min(m, n)
        expected = np.linalg.svd(wide(a), compute_uv=False)
        limit = 10 * max(m, n) * eps_of(a)
        for full in (False, True):
            u, s, vh = (backend.get(x) for x in lw.svd(backend.put(a), full_matrices=full))
            assert u.shape == (2, m, m if full else k)
            assert vh.shape == (2, n if full else k, n)
            assert norm((wide(u[..., :k]) * s[..., None, :]) @ wide(vh[..., :k, :]) - a).max() < limit * norm(a).max()
            assert norm(adjoint(wide(u)) @ wide(u) - np.eye(u.shape[-1])).max() < limit
            assert norm(wide(vh) @ adjoint(wide(vh)) - np.eye(vh.shape[-2])).max() < limit
            assert np.abs(s - expected).max() < limit * expected.max()
        values = backend.get(lw.svdvals(backend.put(a)))
        assert values.dtype == s.dtype
        assert np.abs(values - expected).max() < limit * expected.max()


def test_empty_decompositions(backend):
    for m, n in ((4, 0), (0, 4), (0, 0)):
        a = backend.put(np.zeros((2, m, n)))
        for mode in ("reduced", "complete"):
            q, r = (backend.get(x) for x in lw.qr(a, mode=mode))
            expected = np.linalg.qr(np.zeros((2, m, n)), mode=mode)
            assert q.shape == expected[0].shape
            assert r.shape == expected[1].shape
            assert np.array_equal(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (2, q.shape[-1], q.shape[-1])))
        for full in (False, True):
            u, s, vh = (backend.get(x) for x in lw.svd(a, full_matrices=full))
            expected = np.linalg.svd(np.zeros((2, m, n)), full_matrices=full)
            assert [x.shape for x in (u, s, vh)] == [x.shape for x in expected]
            assert np.array_equal(adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1]), (2, u.shape[-1], u.shape[-1])))
        assert backend.get(lw.svdvals(a)).shape == (2, 0)
        x, residuals, rank, _ = lw.lstsq(a, backend.put(np.ones((2, m, 3))))
        assert not backend.get(x).any()
        assert backend.get(x).shape == (2, n, 3)
        assert backend.get(residuals).tolist() == [[m] * 3] * 2
        assert backend.get(rank).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_decompositions_of_hard_matrices(backend, dtype):
    """Ill-conditioned, rank-deficient, zero, and of sizes whose squares are no numbers."""
    ill = with_condition(24, 1 / eps_of(np.zeros(1, dtype)), dtype)
    low = (random((24, 2), dtype) @ random((2, 24), dtype)).astype(dtype)
    for a in (ill, low, np.zeros((24, 24), dtype), ill * dtype_scale(dtype, 1e-25), ill * dtype_scale(dtype, 1e25)):
        n, limit = 24, 10 * 24 * eps_of(a)
        u, s, vh = (backend.get(x) for x in lw.svd(backend.put(a)))
        q, r = (backend.get(x) for x in lw.qr(backend.put(a)))
        size = float(norm(a))
        assert norm((wide(u) * s) @ wide(vh) - a) <= limit * size
        assert norm(wide(q) @ wide(r) - a) <= limit * size
        for x in (wide(u), adjoint(wide(vh)), wide(q)):
            assert norm(adjoint(x) @ x - np.eye(n)) < limit


def dtype_scale(dtype, value):
    return np.array(value, np.dtype(dtype).type(0).real.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lstsq(backend, dtype):
    for m, n in some(backend, ((9, 4), (4, 9), (6, 6), (50, 33))):
        a, b = random((2, m, n), dtype, seed=m), random((2, m, 3), dtype, seed=n)
        x, residuals, rank, s = (backend.get(y) for y in lw.lstsq(backend.put(a), backend.put(b)))
        assert x.shape == (2, n, 3)
        assert rank.tolist() == [min(m, n)] * 2
        for i in range(2):
            expected = np.linalg.lstsq(wide(a[i]), wide(b[i]), rcond=None)
            limit = 100 * max(m, n) * eps_of(a) * np.linalg.cond(wide(a[i])) ** 2
            assert np.abs(x[i] - expected[0]).max() < limit
            assert np.abs(s[i] - expected[3]).max() < limit
            left = (np.abs(wide(b[i]) - wide(a[i]) @ expected[0]) ** 2).sum(0)
            assert np.abs(residuals[i] - left).max() < limit * norm(b[i]) ** 2
    vector = random((9,), dtype)
    x, residuals, _, _ = lw.lstsq(backend.put(random((9, 4), dtype)), backend.put(vector))
    assert backend.get(x).shape == (4,)
    assert backend.get(residuals).shape == ()


def test_lstsq_of_low_rank(backend):
    a = random((12, 3), "float64") @ random((3, 5), "float64", 1)
    b = random((12, 2), "float64", 2)
    x, _, rank, _ = (backend.get(y) for y in lw.lstsq(backend.put(a), backend.put(b)))
    assert rank == 3
    expected = np.linalg.pinv(a) @ b
    assert np.abs(x - expected).max() < 1e-10
    assert backend.get(lw.lstsq(backend.put(a), backend.put(b), rcond=0.9).rank) < 3


def test_lstsq_does_not_square_the_condition(backend):
    a = np.vander(np.linspace(0, 1, 60), 12)  # condition 1e8
    truth = np.ones(12)
    x = backend.get(lw.lstsq(backend.put(a), backend.put(a @ truth)).x)
    assert np.abs(x - truth).max() < 1e-6  # through A^T A no digit would be left


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_polar(backend, dtype, side):
    for m, n in ((5, 5), (9, 4), (4, 9)):
        a = random((2, m, n), dtype)
        u, p = (backend.get(x) for x in lw.polar(backend.put(a), side=side))
        limit = 10 * max(m, n) * eps_of(a)
        product = wide(u) @ wide(p) if side == "right" else wide(p) @ wide(u)
        assert norm(product - a).max() < limit * norm(a).max()
        assert np.array_equal(p, adjoint(p))
        assert np.linalg.eigvalsh(wide(p)).min() > -limit * norm(a).max()
        gram = adjoint(wide(u)) @ wide(u) if m >= n else wide(u) @ adjoint(wide(u))
        assert norm(gram - np.eye(min(m, n))).max() < limit


@pytest.mark.parametrize("assume", ASSUME)
@pytest.mark.parametrize("dtype", DTYPES)
def test_factor(backend, dtype, assume):
    for n in some(backend, (1, 6, 40)):
        a, given = of_kind(assume, (2, n, n), dtype, seed=n)
        f = lw.factor(backend.put(given), assume=assume)
        b = random((2, n, 3), dtype)
        assert backward_error(a, backend.get(f.solve(backend.put(b))), b) < 10
        vector = random((n,), dtype)
        assert backend.get(f.solve(backend.put(vector))).shape == (2, n)
        x = backend.get(f.inv())
        assert (norm(wide(a) @ wide(x) - np.eye(n)) / (n * eps_of(a) * norm(a) * norm(x))).max() < 10
        sign, logabs = (backend.get(y) for y in f.slogdet())
        expected = np.linalg.slogdet(wide(a))
        limit = 10 * n * eps_of(a) * np.linalg.cond(wide(a)).max() * (1 + np.abs(expected[1]).max())
        assert np.abs(sign - expected[0]).max() < limit
        assert np.abs(logabs - expected[1]).max() < limit
        true = 1 / (np.abs(wide(a)).sum(-2).max(-1) * np.abs(np.linalg.inv(wide(a))).sum(-2).max(-1))
        rcond = backend.get(f.rcond())
        assert (rcond >= 0.9 * true).all()
        assert (rcond <= 10 * true).all()
        assert f.report["kind"] in ("cholesky", "lu", "triangular")
        assert str(f).startswith("Factor(")


def test_what_a_factor_holds(backend):
    a = spd((4, 4), "float64")
    f = lw.factor(backend.put(a))
    assert np.allclose(backend.get(f.l) @ backend.get(f.l).T, a)
    assert np.allclose(backend.get(f.logdet()), np.linalg.slogdet(a)[1])
    with pytest.raises(AttributeError, match=r"hint: Factor\.l"):
        _ = f.lu
    g = lw.factor(backend.put(a), assume="general")
    lu, rows = (backend.get(x) for x in g.lu)
    assert np.allclose((np.tril(lu, -1) + np.eye(4)) @ np.triu(lu), a[rows])
    with pytest.raises(AttributeError, match=r"hint: Factor\.lu"):
        _ = g.l
    negative = lw.factor(backend.put(np.diag([1.0, -1.0])), assume="general")
    assert np.isnan(backend.get(negative.logdet()))


def test_pickle_of_a_factor():
    a = spd((3, 3), "float64")
    for precision in ("full", "mixed"):
        f = pickle.loads(pickle.dumps(lw.factor(a, precision=precision)))
        assert np.allclose(a @ f.solve(np.ones(3)), 1)
        assert np.allclose(f.logdet(), np.linalg.slogdet(a)[1])


def test_sign_of_a_permutation(backend):
    for n in (1, 2, 7, 40):
        a = np.stack([np.eye(n)[np.random.default_rng(seed).permutation(n)] for seed in range(6)])
        sign = backend.get(lw.factor(backend.put(a), assume="general").slogdet().sign)
        assert np.array_equal(sign, np.round(np.linalg.det(a)))


def test_engine_by_name_and_log_of_full_svd(backend, caplog):
    name = "lapack" if backend.device == "cpu" else "cusolver"
    with caplog.at_level(logging.INFO, logger="lapwing"):
        u, _, _ = lw.svd(backend.put(random((5, 3), "float64")), full_matrices=True, engine=name)
    assert backend.get(u).shape == (5, 5)
    assert "svd of 1 x 5 x 3" in caplog.text


def test_wrong_arguments(backend):
    a, b = backend.put(np.eye(3)), backend.put(np.ones((3, 1)))
    with pytest.raises(ValueError, match="must be square"):
        lw.solve(backend.put(np.ones((3, 4))), b)
    with pytest.raises(ValueError, match="a has 3 rows and b has 4"):
        lw.solve(a, backend.put(np.ones(4)))
    with pytest.raises(ValueError, match=r"b\[\.\.\., None\]"):
        lw.solve(a, backend.put(np.ones((5, 3))))
    with pytest.raises(ValueError, match="do not broadcast"):
        lw.solve(backend.put(np.ones((2, 3, 3))), backend.put(np.ones((5, 3, 1))))
    with pytest.raises(TypeError, match="b has dtype int32"):
        lw.solve(a, backend.put(np.ones((3, 1), "int32")))
    with pytest.raises(ValueError, match="assume='nonsense' is not known"):
        lw.inv(a, assume="nonsense")
    with pytest.raises(ValueError, match="upper=True goes with"):
        lw.solve(a, b, upper=True)
    with pytest.raises(ValueError, match="upper=True goes with"):
        lw.solve(a, b, assume="lower", upper=True)
    with pytest.raises(ValueError, match="precision"):
        lw.solve(a, b, precision="half")
    with pytest.raises(ValueError, match="float64 and complex128"):
        lw.solve(backend.put(np.eye(3, dtype="float32")), backend.put(np.ones(3, "float32")), precision="mixed")
    with pytest.raises(ValueError, match="rcond"):
        lw.lstsq(a, b, rcond=-2)
    with pytest.raises(ValueError, match="engine='nonsense' is not known"):
        lw.solve(a, b, engine="nonsense")
    with pytest.raises(ValueError, match="mode='full' is not known"):
        lw.qr(a, mode="full")
    with pytest.raises(TypeError, match="full_matrices"):
        lw.svd(a, full_matrices="no")
    if backend.name != "numpy":
        with pytest.raises(TypeError, match="arrays of one library"):
            lw.solve(a, np.ones((3, 1)))


def test_inputs_are_left_alone(backend):
    a, b = random((2, 6, 6), "float64"), random((2, 6, 2), "float64")
    given, right = backend.put(a), backend.put(b)
    for call in (lw.solve, lw.lstsq):
        call(given, right)
    for call in (lw.inv, lw.slogdet, lw.qr, lw.svd, lw.svdvals, lw.polar, lambda x: lw.factor(x, assume="general")):
        call(given)
    assert np.array_equal(backend.get(given), a)
    assert np.array_equal(backend.get(right), b)


def test_overwrite_gives_the_same_answer():
    for n in (5, 60):
        a, b = spd((2, n, n), "float64"), random((2, n, 2), "float64")
        for assume in ("general", "pos"):
            assert backward_error(a, lw.solve(a.copy(), b, assume=assume, overwrite=True), b) < 10
            x = lw.inv(a.copy(), assume=assume, overwrite=True)
            assert norm(a @ x - np.eye(n)).max() < 10 * n * eps_of(a) * (norm(a) * norm(x)).max()
    bad = np.full((3, 3), np.nan)
    with pytest.raises(lw.SingularMatrixError, match="holds NaN or Inf"):
        lw.solve(bad, np.ones(3), overwrite=True)


def test_memory_of_any_layout():
    a = random((6, 6), "float64") + 6 * np.eye(6)
    b = random((6, 4), "float64")
    for given in (a.T.copy().T, a[::-1][::-1], np.asfortranarray(a)):
        for right in (b, b.T.copy().T, np.ascontiguousarray(b[:, ::2])):
            assert backward_error(a, lw.solve(given, right), right) < 10
        q, r = lw.qr(given)
        assert np.allclose(q @ r, a)


def test_engines_agree(backend):
    a, b = spd((3, 8, 8), "float64"), random((3, 8, 2), "float64")
    given, right = backend.put(a), backend.put(b)
    names = ("batched", "lapack") if backend.device == "cpu" else ("batched", "cusolver")
    for assume in ("general", "pos"):
        made = [backend.get(lw.solve(given, right, assume=assume, engine=name)) for name in names]
        assert np.abs(made[0] - made[1]).max() < 10 * 8 * eps_of(a) * np.linalg.cond(a).max()
        made = [backend.get(lw.inv(given, assume=assume, engine=name)) for name in names]
        assert np.abs(made[0] - made[1]).max() < 10 * 8 * eps_of(a) * np.linalg.cond(a).max()


def test_batch_equals_a_loop(backend):
    for n in (4, 20, 60):
        a, b = random((5, n, n), "float64"), random((5, n, 2), "float64")
        together = backend.get(lw.solve(backend.put(a), backend.put(b)))
        for m in range(5):
            alone = backend.get(lw.solve(backend.put(a[m]), backend.put(b[m])))
            assert np.abs(together[m] - alone).max() < 10 * n * eps_of(a) * np.linalg.cond(a[m]) * np.abs(alone).max()


def test_explain(backend):
    a, b = backend.put(random((100, 4, 4), "float64")), backend.put(random((100, 4, 1), "float64"))
    plan = lw.explain(lw.solve, a, b, assume="pos")
    assert plan.engine == "batched"
    assert plan.bytes_moved == 100 * (16 + 8) * 8
    for op in (lw.inv, lw.slogdet, lw.qr, lw.svd, lw.svdvals, lw.polar, lw.factor):
        assert lw.explain(op, a).flops > 0
    assert "lapack" in str(lw.explain(lw.solve, lw.spec((5000, 5000)), lw.spec((5000,))))


def test_log(backend, caplog):
    with caplog.at_level(logging.INFO, logger="lapwing"):
        lw.solve(backend.put(np.eye(3)), backend.put(np.ones(3)))
    assert "solve of 1 x 3 x 3" in caplog.text


def test_mixed_precision(backend):
    """As accurate as the full one, whatever the condition; small systems and hard ones are solved in full."""
    n = 200
    for condition in (10, 1e6, 1e14):
        u, _ = np.linalg.qr(random((n, n), "float64"))
        a = (u * np.geomspace(1, 1 / condition, n)) @ u.T
        a = (a + a.T) / 2
        b = random((n, 2), "float64", 1)
        given, right = backend.put(a), backend.put(b)
        for assume in ("pos", "general"):
            full = backward_error(a, backend.get(lw.solve(given, right, assume=assume)), b)
            mixed = backward_error(a, backend.get(lw.solve(given, right, assume=assume, precision="mixed")), b)
            assert mixed < max(2 * full, 1)
            f = lw.factor(given, assume=assume, precision="mixed")
            x = backend.get(f.solve(right))
            assert backward_error(a, x, b) < max(2 * full, 1)
            assert f.report["precision"] == "mixed"
            assert f.report["fallback"] == (condition > 1e10)
            if condition == 10:
                assert 1 <= f.report["steps"] <= 5
                assert f.report["backward_error"] < n * 1e-16
            assert np.allclose(backend.get(f.slogdet().logabsdet), np.linalg.slogdet(a)[1])


def test_mixed_precision_of_what_float32_cannot_hold(backend):
    a = np.diag([1e200, 1.0, 1e-200]) + 0
    b = np.ones(3)
    f = lw.factor(backend.put(a), precision="mixed")
    assert np.allclose(backend.get(f.solve(backend.put(b))), [1e-200, 1, 1e200])
    with pytest.raises(lw.NotPositiveDefiniteError):
        lw.factor(backend.put(-a), precision="mixed")


def test_the_unread_triangle_of_a_complex_symmetric_matrix(backend):
    a, _ = of_kind("symmetric", (5, 5), "complex128")
    b = np.ones((5, 1), "complex128")
    with_rest = np.tril(a) + np.triu(np.full((5, 5), 1e20 + 0j), 1)
    x = backend.get(lw.solve(backend.put(with_rest), backend.put(b), assume="symmetric"))
    assert backward_error(a, x, b) < 10


@pytest.mark.parametrize("assume", ["symmetric", "hermitian"])
def test_inverse_of_indefinite_matrices_over_condition_numbers(backend, assume):
    n, eps = 30, np.finfo("float64").eps
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]
    for condition in (1e2, 1e6, 1e12):
        w = np.logspace(0, -np.log10(condition), n) * np.where(np.arange(n) % 2, 1, -1)
        a = (q * w) @ q.T
        a = (a + a.T) / 2
        x = backend.get(lw.inv(backend.put(a), assume=assume))
        assert np.array_equal(x, x.T)
        assert norm(a @ x - np.eye(n)) < 10 * n * eps * norm(a) * norm(x)


@pytest.mark.parametrize("assume", ["general", "pos"])
def test_right_sides_in_the_memory_of_an_overwritten_matrix(assume):
    a, _ = of_kind(assume, (40, 40), "float64")
    want = np.linalg.solve(a, a[0])
    assert np.abs(lw.solve(a, a[0], assume=assume, overwrite=True) - want).max() < 1e-9


def test_least_squares_at_the_edges():
    tiny = lw.lstsq(np.eye(2) * 1e-309, np.array([1e-309, 2e-309]))
    assert np.allclose(tiny.x, [1, 2]) and tiny.rank == 2
    assert lw.lstsq(np.zeros((0, 3)), np.zeros((4, 0, 2))).x.shape == (4, 3, 2)
    with pytest.raises(ValueError, match="rcond=True"):
        lw.lstsq(np.eye(2), np.ones(2), rcond=True)


def test_nan_outside_of_a_triangle_is_not_blamed(backend):
    a = backend.put(np.array([[0, np.nan], [1, 1]]))
    with pytest.raises(lw.SingularMatrixError, match="pivot 1 is zero"):
        lw.solve(a, backend.put(np.ones(2)), assume="lower")


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_mixed_precision_of_any_scale(backend, dtype):
    """Each column is as good as alone, however large or small it and the others are."""
    n = 30
    a = spd((n, n), dtype)
    columns = random((n, 4), dtype, 1)
    b = columns * np.array([1e200, 1e-170, 1.0, 0.0])
    for assume in ("pos", "general"):
        f = lw.factor(backend.put(a), assume=assume, precision="mixed")
        x = backend.get(f.solve(backend.put(b)))
        assert not f.report["fallback"]
        assert f.report["backward_error"] < n * 1e-16
        assert not x[:, 3].any()
        assert backend.get(f.rcond()).dtype == np.float64
        for j, scale in enumerate((1e200, 1e-170, 1.0)):
            assert backward_error(a, x[:, j : j + 1] / scale, columns[:, j : j + 1]) < 1
            alone = backend.get(f.solve(backend.put(b[:, j])))
            assert backward_error(a, alone[:, None] / scale, columns[:, j : j + 1]) < 1
        assert not f.report["fallback"]


def test_mixed_precision_judges_each_column(backend):
    n = 80
    a = with_condition(n, 1e5, "float64")
    b = np.stack([random((n,), "float64", 1) * 1e50, random((n,), "float64", 2)], 1)
    x = backend.get(lw.factor(backend.put(a), assume="general", precision="mixed").solve(backend.put(b)))
    for j in range(2):
        assert backward_error(a, x[:, j : j + 1], b[:, j : j + 1]) < 1


def test_mixed_precision_of_batches_and_of_nothing(backend):
    a, b = spd((3, 8, 8), "float64"), random((2, 1, 8, 2), "float64")
    x = backend.get(lw.factor(backend.put(a), precision="mixed").solve(backend.put(b)))
    assert np.allclose(x, np.linalg.solve(a, np.broadcast_to(b, (2, 3, 8, 2))), rtol=1e-12, atol=1e-12)
    assert backend.get(lw.factor(backend.put(a[0]), precision="mixed").solve(backend.put(b))).shape == (2, 1, 8, 2)
    for matrix, right in (((0, 0), (0, 2)), ((4, 4), (4, 0)), ((0, 4, 4), (4, 2))):
        f = lw.factor(backend.put(spd(matrix, "float64")), precision="mixed")
        assert backend.get(f.solve(backend.put(np.ones(right)))).shape == (*matrix[:-2], *right)


@pytest.mark.parametrize("precision", ["full", "mixed"])
def test_a_factor_checks_the_right_hand_side(backend, precision):
    f = lw.factor(backend.put(np.eye(3)), precision=precision)
    for wrong in (np.ones(3, "complex64"), np.ones(3, "int32")):
        with pytest.raises(TypeError, match=r"Factor\.solve: b has dtype .* cannot be used with a of float64"):
            f.solve(backend.put(wrong))
    narrow = backend.get(f.solve(backend.put(np.ones(3, "float32"))))
    assert narrow.dtype == "float64" and np.array_equal(narrow, np.ones(3))
    with pytest.raises(TypeError, match="b must be an array of NumPy"):
        f.solve([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="a has 3 rows and b has 4"):
        f.solve(backend.put(np.ones(4)))
    if backend.name != "numpy":
        with pytest.raises(TypeError, match="arrays of one library"):
            f.solve(np.ones(3))


def test_text_of_a_mixed_factor_costs_nothing(backend):
    f = lw.factor(backend.put(spd((2, 5, 5), "float64")), precision="mixed")
    assert repr(f) == "Factor(assume='pos', shape=(2, 5, 5), dtype=float64, precision='mixed')"
    assert f._handle._full is None


def test_a_mixed_factor_in_jax():
    jax = pytest.importorskip("jax")
    with x64():
        jnp = jax.numpy
        a, b = jnp.asarray(spd((6, 6), "float64")), jnp.asarray(random((6,), "float64"))
        many = jnp.asarray(random((4, 6), "float64", 1))
        right = jnp.linalg.solve(a, b)
        inverse = jnp.linalg.inv(a)
        for assume in ("pos", "general"):

            def made(assume=assume):
                return lw.factor(a, assume=assume, precision="mixed")

            def close(x, y):
                return bool(jnp.abs(x - y).max() < 1e-12)

            f = made()
            assert close(jax.jit(lambda v: f.solve(v))(b), right)  # noqa: B023
            assert close(jax.jit(lambda: f.solve(b))(), right)  # noqa: B023
            assert f._handle._full is None  # nothing leaves the traced code
            assert close(f.solve(b), right)
            assert close(jax.vmap(made().solve)(many), many @ inverse.T)
            assert close(jax.grad(lambda v: made().solve(v).sum())(b), inverse.sum(0))
            assert close(jax.jit(lambda f, v: f.solve(v))(made(), b), right)
            back = jax.jit(lambda f: f)(made())
            assert close(back.solve(b), right)
            assert back.report["precision"] == "mixed"
            assert close(jax.jit(lambda f: f.slogdet().logabsdet)(made()), jnp.linalg.slogdet(a)[1])
            assert close(jax.jit(lambda f: f.inv())(made()), inverse)


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")  # torch.compile's own
@pytest.mark.filterwarnings("ignore:.*functools.lru_cache.*:UserWarning")
def test_a_mixed_factor_in_torch():
    torch = pytest.importorskip("torch")
    a, many = torch.tensor(spd((6, 6), "float64")), torch.tensor(random((4, 6), "float64"))
    inverse = torch.linalg.inv(a)
    for assume in ("pos", "general"):

        def made(assume=assume, a=a):
            return lw.factor(a, assume=assume, precision="mixed")

        assert (torch.func.vmap(made().solve)(many) - many @ inverse.T).abs().max() < 1e-12
        gradient = torch.func.grad(lambda v: made().solve(v).sum())(many[0])
        assert (gradient - inverse.sum(0)).abs().max() < 1e-12
        f, b = made(), many[0].clone().requires_grad_()
        f.solve(b).sum().backward()
        assert (b.grad - inverse.sum(0)).abs().max() < 1e-12
        assert f.solve(many[0]).requires_grad is False
        f = made()
        compiled = torch.compile(lambda v: f.solve(v), backend="eager", fullgraph=True)  # noqa: B023
        assert (compiled(many[0]) - inverse @ many[0]).abs().max() < 1e-12
        # of the matrix too, where it is recorded
        matrix = a.clone().requires_grad_()
        made(a=matrix).solve(many[0]).sum().backward()
        expected = a.clone().requires_grad_()
        lw.solve(expected, many[0], assume=assume).sum().backward()
        assert (matrix.grad - expected.grad).abs().max() < 1e-12


def test_a_mixed_factor_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    a, b = spd((6, 6), "float64"), random((6, 2), "float64")
    for assume in ("pos", "general"):
        f = lw.factor(tf.constant(a), assume=assume, precision="mixed")
        x = tf.function(lambda v: f.solve(v))(tf.constant(b))  # noqa: B023
        assert np.abs(x.numpy() - np.linalg.solve(a, b)).max() < 1e-12
        assert f._handle._full is None
        given = tf.constant(b)
        with tf.GradientTape() as tape:
            tape.watch(given)
            total = tf.reduce_sum(f.solve(given))
        expected = np.linalg.inv(a).sum(0)[:, None] * np.ones(2)
        assert np.abs(tape.gradient(total, given).numpy() - expected).max() < 1e-12


def test_an_unpickled_factor_is_a_pytree(tmp_path):
    jax = pytest.importorskip("jax")
    code = (
        "import pickle, sys, jax; jax.config.update('jax_enable_x64', True);"
        "f = pickle.load(open(sys.argv[1], 'rb'));"
        "print(jax.jit(lambda f: f.solve(jax.numpy.ones(3)))(f).sum())"
    )
    a = spd((3, 3), "float64")
    for precision in ("full", "mixed"):
        with x64():
            (tmp_path / precision).write_bytes(pickle.dumps(lw.factor(jax.numpy.asarray(a), precision=precision)))
        run = subprocess.run([sys.executable, "-c", code, tmp_path / precision], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert np.isclose(float(run.stdout), np.linalg.solve(a, np.ones(3)).sum())


@pytest.mark.parametrize("assume", ASSUME)
def test_a_factor_is_the_carry_of_a_loop(assume):
    """Made outside or inside of traced code, with an engine or without, its structure is the same."""
    jax = pytest.importorskip("jax")
    with x64():
        jnp = jax.numpy
        a, _ = of_kind(assume, (3, 4, 4), "float64")
        many, b = jnp.asarray(a), jnp.asarray(random((4,), "float64"))
        first = lw.factor(many[0], assume=assume, engine="lapack")

        def step(f, matrix):
            return lw.factor(matrix, assume=assume), f.solve(b)

        last, x = jax.jit(lambda f: jax.lax.scan(step, f, many[1:]))(first)
        assert jnp.abs(x - jnp.stack([jnp.linalg.solve(m, b) for m in many[:2]])).max() < 1e-12
        assert jnp.abs(last.solve(b) - jnp.linalg.solve(many[2], b)).max() < 1e-12
        expected = np.linalg.slogdet(a[2])
        for made in (last.slogdet(), jax.jit(lambda f: f.slogdet())(last)):
            assert np.allclose(made.sign, expected[0])
            assert np.allclose(made.logabsdet, expected[1])


def test_overwrite_keeps_the_gradient():
    torch = pytest.importorskip("torch")
    a, b = torch.tensor(spd((4, 4), "float64")), torch.tensor(random((4,), "float64"))
    for assume in ("pos", "general"):
        found = []
        for overwrite in (False, True):
            given = a.clone().requires_grad_()
            f = lw.factor(given, assume=assume, overwrite=overwrite)
            (f.solve(b).sum() + f.slogdet().logabsdet).backward()
            found.append(given.grad)
        assert (found[0] - found[1]).abs().max() < 1e-12


@pytest.mark.parametrize("assume", ASSUME)
def test_factor_of_nothing(backend, assume):
    for shape in ((0, 0), (2, 0, 0)):
        f = lw.factor(backend.put(np.zeros(shape)), assume=assume)
        sign, logabs = (backend.get(x) for x in f.slogdet())
        assert np.array_equal(sign, np.ones(shape[:-2]))
        assert np.array_equal(logabs, np.zeros(shape[:-2]))
        assert np.array_equal(backend.get(f.logdet()), np.zeros(shape[:-2]))
        assert np.array_equal(backend.get(f.rcond()), np.ones(shape[:-2]))


def test_condition_that_the_climb_does_not_see(backend):
    d = 2.0**-41
    a = np.array([[1, 0, 0], [0, 0.5 + d, 0.5 - d], [0, 0.5 - d, 0.5 + d]])
    true = 1 / np.linalg.cond(a, 1)
    for assume in ("pos", "general"):
        rcond = float(backend.get(lw.factor(backend.put(a), assume=assume).rcond()))
        assert 0.9 * true <= rcond <= 10 * true


def test_condition_of_large_and_small_matrices(backend):
    """Nothing overflows on the way to an answer that is a number."""
    for scales, true in (((1e200, 1e-200), 0), ((1e-200, 1e-305), 1e-105), ((1e307, 1e300), 1e-7), ((1e-307, 1e-307), 1)):
        for assume in ("pos", "general", "lower"):
            f = lw.factor(backend.put(np.diag(scales)), assume=assume)
            assert np.isclose(backend.get(f.rcond()), true, rtol=1e-9, atol=0), (scales, assume)


def test_a_factor_that_failed(backend):
    """Its determinant is that of slogdet, and its condition number infinite."""
    singular, bad = np.ones((3, 3)), np.ones((3, 3))
    bad[1, 1] = np.nan
    a = np.stack([singular, np.eye(3), bad, np.zeros((3, 3))])
    for assume in ("general", "hermitian", "pos"):
        f = lw.factor(backend.put(a), assume=assume, on_fail="nan")
        expected = lw.slogdet(backend.put(a), assume=assume, on_fail="nan")
        for made, wanted in zip(f.slogdet(), expected, strict=True):
            assert np.array_equal(backend.get(made), backend.get(wanted), equal_nan=True)
        assert backend.get(f.rcond()).tolist() == [0, 1, 0, 0]
    f = lw.factor(backend.put(np.stack([np.diag([1.0, 0.0]), np.eye(2)])), assume="lower", on_fail="nan")
    assert backend.get(f.rcond()).tolist() == [0, 1]


def test_sparse_tensors_are_refused():
    torch = pytest.importorskip("torch")
    a, b = torch.eye(3, dtype=torch.float64), torch.ones((3, 1), dtype=torch.float64)
    for call in (lw.solve, lw.lstsq, lambda a, b: lw.factor(a).solve(b)):
        with pytest.raises(TypeError, match=r"expected dense tensors, got layouts torch\.strided and torch\.sparse_coo"):
            call(a, b.to_sparse())
    with pytest.raises(TypeError, match="dense tensor"):
        lw.solve(a.to_sparse(), b.to_sparse())


def solved_with(a, assume, unit):
    """The matrix that the call means."""
    if assume == "symmetric":
        return np.tril(a) + np.tril(a, -1).swapaxes(-1, -2)
    if assume in ("hermitian", "pos"):
        return np.tril(a) + np.tril(a, -1).swapaxes(-1, -2).conj() - 1j * np.eye(a.shape[-1]) * a.imag
    part = {"lower": np.tril, "upper": np.triu}.get(assume, np.asarray)(a)
    return part * (1 - np.eye(a.shape[-1])) + np.eye(a.shape[-1]) if unit else part


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize(
    ("assume", "unit"),
    [(name, False) for name in ("general", "symmetric", "hermitian", "pos")] + [("lower", True), ("upper", True)],
)
def test_from_the_right_and_with_a_unit_diagonal(backend, assume, unit, dtype):
    n = 7
    a = spd((3, n, n), dtype) / n
    if unit:  # the diagonal must not be read
        a[..., np.arange(n), np.arange(n)] = np.nan
    whole = solved_with(np.where(np.isnan(a), 1, a), assume, unit)
    for side in ("left", "right"):
        for shape in ((n,), (3, n, 2), (2, 1, n, 2)):
            b = random(shape, dtype, 5)
            b = b if side == "left" or b.ndim == 1 else b.swapaxes(-1, -2)
            x = backend.get(lw.solve(backend.put(a), backend.put(np.ascontiguousarray(b)), assume=assume, unit=unit, side=side))
            wide = x[..., None] if b.ndim == 1 and side == "left" else x[..., None, :] if b.ndim == 1 else x
            product = whole @ wide if side == "left" else wide @ whole
            product = product.reshape(x.shape) if b.ndim == 1 else product
            size = np.abs(whole).sum(-1).max() * np.abs(x).max()
            assert x.dtype == dtype and np.abs(product - b).max() <= 10 * n * np.finfo(dtype).eps * size


def test_wrong_side_and_unit(backend):
    a, b = backend.put(np.eye(3)), backend.put(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"side='up' is not known"):
        lw.solve(a, b, side="up")
    with pytest.raises(ValueError, match="unit=True goes with"):
        lw.solve(a, b, unit=True)
    with pytest.raises(TypeError, match="unit='L' is not True or False"):
        lw.solve(a, b, assume="lower", unit="L")
    with pytest.raises(np.linalg.LinAlgError, match="as many columns as a"):
        lw.solve(a, backend.put(np.ones((3, 2))), side="right")
