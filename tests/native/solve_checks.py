"""What every engine must answer to the frames from triangular to svdvals.

A test module imports these tests and brings a fixture ``run``: run(op, flags, sizes, *arrays) calls the native core on NumPy
arrays, inputs then outputs, as native/frame.h lists them.
"""

import numpy as np
import pytest

UPPER, OVERWRITE, ADJOINT, UNIT, POS = 1, 2, 4, 8, 16
DTYPES = ("float32", "float64", "complex64", "complex128")


def random(rng, dtype, *shape):
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def adjoint(x):
    return np.conj(np.swapaxes(x, -1, -2))


def norm(x):
    return np.linalg.norm(x.astype(np.complex128), axis=(-2, -1))


def eps(dtype):
    return np.finfo(dtype).eps


def exact(x):
    return x.astype(np.complex128)


def positive(rng, dtype, batch, n):
    x = random(rng, dtype, batch, n, n)
    return np.ascontiguousarray(x @ adjoint(x) + n * np.eye(n, dtype=dtype))


def poisoned(a, upper):
    """The same Hermitian matrices with NaN wherever nothing may be read."""
    n = a.shape[-1]
    a = a.copy()
    a[..., ~(np.triu if upper else np.tril)(np.ones((n, n), bool))] = np.nan
    if a.dtype.kind == "c":
        i = np.arange(n)
        a.imag[..., i, i] = np.nan
    return a


def assert_solved(a, x, b):
    n, scale = a.shape[-1], 10 * a.shape[-1] * eps(x.dtype)
    residual = norm(exact(a) @ exact(x) - exact(b))
    assert (residual <= scale * (norm(a) * norm(x) + norm(b))).all(), (n, residual)


def info_of(batch):
    return np.full(batch, -7, np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, k", [(1, 1), (5, 7), (64, 1), (33, 70)])
@pytest.mark.parametrize("flags", [0, UPPER, ADJOINT, UPPER | ADJOINT, UNIT, UPPER | UNIT | ADJOINT])
def test_triangular(run, dtype, n, k, flags):
    rng = np.random.default_rng(n + k)
    lower = random(rng, dtype, 3, n, n) / n + 2 * np.eye(n, dtype=dtype)
    keep = np.triu(np.ones((n, n), bool)) if flags & UPPER else np.tril(np.ones((n, n), bool))
    if flags & UNIT:
        keep &= ~np.eye(n, dtype=bool)
    lower = np.where(keep, lower, np.nan).astype(dtype)
    b, x, info = random(rng, dtype, 3, n, k), np.empty((3, n, k), dtype), info_of(3)
    clean = np.where(keep, lower, 0) + (np.eye(n) if flags & UNIT else 0)
    clean = adjoint(clean) if flags & ADJOINT else clean
    run("triangular", flags, (3, n, k), lower, b, x, info)
    assert not info.any()
    assert_solved(clean, x, b)
    in_place = b.copy()
    run("triangular", flags, (3, n, k), lower, in_place, in_place, info)
    assert np.array_equal(in_place, x)
    single = np.empty_like(b[2])
    run("triangular", flags, (1, n, k), lower[2], b[2], single, info)
    assert np.array_equal(single, x[2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, k", [(1, 1), (2, 5), (17, 1), (65, 100), (600, 3)])
def test_solve(run, dtype, n, k):
    rng = np.random.default_rng(n)
    a, b = random(rng, dtype, 3, n, n), random(rng, dtype, 3, n, k)
    x, info, before = np.empty_like(b), info_of(3), a.copy()
    run("solve", 0, (3, n, k), a, b, x, info)
    assert not info.any() and np.array_equal(a, before)
    assert_solved(a, x, b)
    in_place = b.copy()
    run("solve", OVERWRITE, (3, n, k), a.copy(), in_place, in_place, info)
    assert np.array_equal(in_place, x)
    for m in range(3):
        single = np.empty_like(b[m])
        run("solve", 0, (1, n, k), a[m], b[m], single, info)
        assert np.array_equal(single, x[m])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [0, UPPER])
@pytest.mark.parametrize("n, k", [(1, 1), (17, 1), (65, 100)])
def test_solve_positive(run, dtype, upper, n, k):
    rng = np.random.default_rng(n)
    a, b = positive(rng, dtype, 3, n), random(rng, dtype, 3, n, k)
    x, info = np.empty_like(b), info_of(3)
    run("solve", POS | upper, (3, n, k), poisoned(a, upper), b, x, info)
    assert not info.any()
    assert_solved(a, x, b)
    in_place = b.copy()
    run("solve", POS | upper | OVERWRITE, (3, n, k), poisoned(a, upper), in_place, in_place, info)
    assert np.array_equal(in_place, x)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e15])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_solve_hard(run, dtype, condition):
    rng = np.random.default_rng(3)
    n = 100
    q, _ = np.linalg.qr(random(rng, dtype, n, n))
    p, _ = np.linalg.qr(random(rng, dtype, n, n))
    a = np.ascontiguousarray((q * np.geomspace(1, 1 / condition, n)) @ p)[None]
    b = random(rng, dtype, 1, n, 2)
    x, info = np.empty_like(b), info_of(1)
    run("solve", 0, (1, n, 2), a, b, x, info)
    assert not info.any()
    assert_solved(a, x, b)


def assert_inverse(a, x):
    n = a.shape[-1]
    assert (norm(exact(a) @ exact(x) - np.eye(n)) <= 10 * n * eps(x.dtype) * norm(a) * norm(x)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 31, 65, 200])
def test_inverse(run, dtype, n):
    rng = np.random.default_rng(n)
    a = random(rng, dtype, 3, n, n)
    x, info, before = np.empty_like(a), info_of(3), a.copy()
    run("inverse", 0, (3, n), a, x, info)
    assert not info.any() and np.array_equal(a, before)
    assert_inverse(a, x)
    run("inverse", 0, (3, n), a, a, info)
    assert np.array_equal(a, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [0, UPPER])
@pytest.mark.parametrize("n", [1, 2, 33, 130, 530])
def test_inverse_positive(run, dtype, upper, n):
    rng = np.random.default_rng(n)
    a = positive(rng, dtype, 3, n)
    x, info = np.empty_like(a), info_of(3)
    run("inverse", POS | upper, (3, n), poisoned(a, upper), x, info)
    assert not info.any()
    assert np.array_equal(x, adjoint(x))
    assert_inverse(a, x)
    in_place = poisoned(a, upper)
    run("inverse", POS | upper, (3, n), in_place, in_place, info)
    assert np.array_equal(in_place, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 31, 65, 540])
def test_lu(run, dtype, n):
    rng = np.random.default_rng(n)
    a = random(rng, dtype, 3, n, n)
    lu, rows, info, before = np.empty_like(a), np.empty((3, n), np.int32), info_of(3), a.copy()
    run("lu", 0, (3, n), a, lu, rows, info)
    assert not info.any() and np.array_equal(a, before)
    assert np.array_equal(np.sort(rows), np.broadcast_to(np.arange(n), (3, n)))
    lower = np.tril(lu, -1) + np.eye(n, dtype=dtype)
    assert (np.maximum(abs(lower.real), abs(lower.imag)) <= 1.5).all()
    product = lower @ np.triu(lu)
    error = norm(product - np.take_along_axis(a, rows[..., None], -2))
    assert (error <= 10 * n * eps(dtype) * norm(a)).all()
    for k in (1, 5):
        b = random(rng, dtype, 3, n, k)
        for flags, matrix in ((0, a), (ADJOINT, adjoint(a))):
            x = np.empty_like(b)
            run("lu_solve", flags, (3, n, k), a, lu, rows, b, x)
            assert_solved(matrix, x, b)
            in_place = b.copy()
            run("lu_solve", flags, (3, n, k), a, lu, rows, in_place, in_place)
            assert np.array_equal(in_place, x)
    in_place = a.copy()
    run("lu", 0, (3, n), in_place, in_place, rows, info)
    assert np.array_equal(in_place, lu)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [0, UPPER])
@pytest.mark.parametrize("n, k", [(1, 1), (17, 1), (65, 30)])
def test_cholesky_solve(run, dtype, upper, n, k):
    rng = np.random.default_rng(n)
    a, b = positive(rng, dtype, 3, n), random(rng, dtype, 3, n, k)
    factor = np.linalg.cholesky(a)
    factor = np.ascontiguousarray(adjoint(factor) if upper else factor)
    factor[..., ~(np.triu if upper else np.tril)(np.ones((n, n), bool))] = np.nan
    x = np.empty_like(b)
    run("cholesky_solve", upper, (3, n, k), a, factor, b, x)
    assert_solved(a, x, b)
    run("cholesky_solve", upper, (3, n, k), a, factor, b, b)
    assert np.array_equal(b, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 17, 200])
def test_slogdet(run, dtype, n):
    rng = np.random.default_rng(n)
    real = np.finfo(dtype).dtype
    for flags, a in ((0, random(rng, dtype, 3, n, n)), (POS, positive(rng, dtype, 3, n))):
        sign, log, info = np.empty(3, dtype), np.empty(3, real), info_of(3)
        want = np.linalg.slogdet(a.astype(np.complex128))
        run("slogdet", flags, (3, n), poisoned(a, False) if flags else a, sign, log, info)
        assert not info.any()
        assert np.allclose(sign, want.sign, atol=100 * n * eps(dtype))
        assert np.allclose(log, want.logabsdet, atol=100 * n * eps(dtype), rtol=10 * eps(dtype))
        again = np.empty_like(sign), np.empty_like(log)
        run("slogdet", flags | OVERWRITE, (3, n), a.copy(), *again, info)
        assert np.array_equal(again[0], sign) and np.array_equal(again[1], log)
        det = np.empty(3, dtype)
        a *= np.asarray(np.exp(-want.logabsdet.mean() / n), dtype)  # determinants of any order stay in range
        want = np.linalg.det(a.astype(np.complex128))
        run("det", flags, (3, n), poisoned(a, False) if flags else a, det, info)
        assert not info.any()
        condition = np.linalg.cond(a.astype(np.complex128))
        assert (np.abs(det - want) <= 10 * n * eps(dtype) * condition * np.abs(want)).all()


# with a number that every entry is multiplied by
SHAPES = [
    (1, 1, 1), (1, 5, 1), (5, 1, 1), (2, 2, 1), (40, 7, 1), (7, 40, 1), (65, 65, 1), (130, 40, 1), (40, 130, 1), (400, 3, 1),
    (40, 7, 1e30), (7, 40, 1e30), (40, 7, 1e-30), (33, 33, 1e-30),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, scale", SHAPES)
def test_qr(run, dtype, m, n, scale):
    rng = np.random.default_rng(m * n)
    a = random(rng, dtype, 2, m, n) * np.asarray(scale, dtype)
    before = a.copy()
    for c in {min(m, n), m}:
        q, r = np.full((2, m, c), np.nan, dtype), np.full((2, c, n), np.nan, dtype)
        run("qr", 0, (2, m, n, c), a, q, r)
        assert np.array_equal(a, before)
        size = max(m, n)
        assert np.array_equal(r, np.triu(r))
        assert (norm(exact(q) @ exact(r) - exact(a)) <= 10 * size * eps(dtype) * norm(a)).all()
        assert (norm(adjoint(exact(q)) @ exact(q) - np.eye(c)) <= 10 * size * eps(dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, scale", SHAPES)
def test_svd(run, dtype, m, n, scale):
    rng = np.random.default_rng(m * n)
    a = random(rng, dtype, 2, m, n) * np.asarray(scale, dtype)
    before, k, size, real = a.copy(), min(m, n), max(m, n), np.finfo(dtype).dtype
    for full in (0, 1):
        u = np.full((2, m, m if full else k), np.nan, dtype)
        s, info = np.full((2, k), np.nan, real), info_of(2)
        vh = np.full((2, n if full else k, n), np.nan, dtype)
        run("svd", 0, (2, m, n, full), a, u, s, vh, info)
        assert not info.any() and np.array_equal(a, before)
        assert (s >= 0).all() and (s[:, 1:] <= s[:, :-1]).all()
        product = (exact(u)[..., :k] * s[:, None, :]) @ exact(vh)[:, :k]
        assert (norm(product - exact(a)) <= 10 * size * eps(dtype) * norm(a)).all()
        assert (norm(adjoint(exact(u)) @ exact(u) - np.eye(u.shape[-1])) <= 10 * size * eps(dtype)).all()
        assert (norm(exact(vh) @ adjoint(exact(vh)) - np.eye(vh.shape[-2])) <= 10 * size * eps(dtype)).all()
    values = np.empty_like(s)
    run("svdvals", 0, (2, m, n), a, values, info)
    assert not info.any() and np.allclose(values, s, atol=10 * size * eps(dtype) * s.max())


# ---- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 5, 40])
@pytest.mark.parametrize("kind", ["zero", "nan", "inf"])
def test_one_bad_matrix(run, dtype, n, kind):
    rng = np.random.default_rng(n)
    a, b = random(rng, dtype, 3, n, n), random(rng, dtype, 3, n, 2)
    good_x, good_inverse, good_lu = (np.empty_like(y) for y in (b, a, a))
    rows, info = np.empty((3, n), np.int32), info_of(3)
    run("solve", 0, (3, n, 2), a, b, good_x, info)
    run("inverse", 0, (3, n), a, good_inverse, info)
    run("lu", 0, (3, n), a, good_lu, rows, info)
    bad = a.copy()
    if kind == "zero":
        bad[1, :, 1] = 0
    else:
        bad[1, 1, 0] = np.nan if kind == "nan" else np.inf
    for op, arrays, outputs in (
        ("solve", (b, np.empty_like(b)), good_x),
        ("inverse", (np.empty_like(a),), good_inverse),
        ("lu", (np.empty_like(a), rows), good_lu),
    ):
        info = info_of(3)
        sizes = (3, n, 2) if op == "solve" else (3, n)
        run(op, 0, sizes, bad, *arrays, info)
        result = arrays[1] if op == "solve" else arrays[0]
        assert info[0] == info[2] == 0 and info[1] > 0, (op, info)
        if kind == "zero":
            assert info[1] == 2
        assert np.isnan(result[1].real).all()
        assert bad.dtype.kind != "c" or np.isnan(result[1].imag).all()
        assert np.array_equal(result[::2], outputs[::2])
    # a NaN factor gives a NaN answer
    lu, x = arrays[0], np.empty_like(b)
    run("lu_solve", 0, (3, n, 2), bad, lu, rows, np.zeros_like(b), x)
    assert np.isnan(x[1]).all() and not x[::2].any()
    sign, log, info = np.empty(3, dtype), np.empty(3, np.finfo(dtype).dtype), info_of(3)
    run("slogdet", 0, (3, n), bad, sign, log, info)
    if kind == "zero":
        assert not info.any() and sign[1] == 0 and log[1] == -np.inf and np.isfinite(log[::2]).all()
    else:
        assert info[1] > 0 and np.isnan(sign[1]) and np.isnan(log[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [0, UPPER])
@pytest.mark.parametrize("kind", ["indefinite", "nan", "inf"])
def test_one_bad_positive(run, dtype, upper, kind, n=9):
    rng = np.random.default_rng(0)
    a, b = positive(rng, dtype, 3, n), random(rng, dtype, 3, n, 2)
    a[1, 4, 4] = {"indefinite": -1, "nan": np.nan, "inf": np.inf}[kind]
    sign, log = np.empty(3, dtype), np.empty(3, np.finfo(dtype).dtype)
    for op, sizes, outputs in (
        ("solve", (3, n, 2), (b, np.empty_like(b))),
        ("inverse", (3, n), (np.empty_like(a),)),
        ("slogdet", (3, n), (sign, log)),
    ):
        info = info_of(3)
        run(op, POS | upper, sizes, a, *outputs, info)
        assert list(info) == [0, 5, 0], (op, info)
        assert np.isnan(outputs[-1][1]).all() and np.isfinite(outputs[-1][::2]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_triangle(run, dtype):
    rng = np.random.default_rng(0)
    n = 40
    l = np.tril(random(rng, dtype, 4, n, n)) / n + np.eye(n, dtype=dtype)
    l[1, 7, 7] = 0
    l[2, 20, 3] = np.nan
    for k in (1, 3):
        b, info = np.zeros((4, n, k), dtype), info_of(4)
        b[:, -1] = 1  # its zeros meet the NaN
        run("triangular", 0, (4, n, k), l, b, b, info)
        assert list(info) == [0, 8, 21, 0]
        assert np.isnan(b[1:3]).all() and np.isfinite(b[::3]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m, n", [(1, 1), (30, 4), (4, 30), (50, 50)])
def test_bad_decomposition(run, dtype, bad, m, n):
    rng = np.random.default_rng(0)
    a, k, real = random(rng, dtype, 3, m, n), min(m, n), np.finfo(dtype).dtype
    a[1, m // 2, n // 2] = bad
    q, r = np.empty((3, m, k), dtype), np.empty((3, k, n), dtype)
    run("qr", 0, (3, m, n, k), a, q, r)
    u, s, vh, info = np.empty((3, m, k), dtype), np.empty((3, k), real), np.empty((3, k, n), dtype), info_of(3)
    run("svd", 0, (3, m, n, 0), a, u, s, vh, info)
    values, status = np.empty_like(s), info_of(3)
    run("svdvals", 0, (3, m, n), a, values, status)
    assert list(info) == list(status) == [0, 1, 0]
    for x in (q, r, u, s, vh, values):
        assert np.isnan(x[1]).all() and np.isfinite(x[::2]).all()
