"""The batched CPU kernels of the solve family, called through the native core."""

from __future__ import annotations

import numpy as np
import pytest

from lapwing.core.native import CPU, ENGINES, OPS, native
from lapwing.core.problem import DTYPES, REAL

if native is None:
    pytest.skip("needs the native core", allow_module_level=True)

UPPER, ADJOINT, UNIT, POS = 1, 4, 8, 16
LARGEST = 64
SIZES = [*range(1, 10), 12, 15, 16, 17, 24, 32, 33, LARGEST, LARGEST + 1, 97]  # above LARGEST one matrix after the other
BATCHES = [1, 7, 8, 9, 33]
dtypes = pytest.mark.parametrize("dtype", DTYPES)
NAN = float("nan")


def run(op, sizes, arrays, flags=0, threads=0):
    code = DTYPES.index(arrays[0].dtype.name)
    native.run(OPS[op], code, CPU, -1, ENGINES["batched"], threads, flags, sizes, 0, None, *arrays)


def solve(a, b, flags=0, op="solve", threads=0, x=None):
    x = np.empty_like(b) if x is None else x
    info = np.full(len(a), -1, np.int32)
    run(op, (len(a), *b.shape[-2:]), (a, b, x, info), flags, threads)
    return x, info


def inverse(a, flags=0, x=None):
    x = np.empty_like(a) if x is None else x
    info = np.full(len(a), -1, np.int32)
    run("inverse", a.shape[:2], (a, x, info), flags)
    return x, info


def lu(a, out=None):
    out = np.empty_like(a) if out is None else out
    rows, info = np.full(a.shape[:2], -1, np.int32), np.full(len(a), -1, np.int32)
    run("lu", a.shape[:2], (a, out, rows, info))
    return out, rows, info


def factored_solve(op, arrays, b, flags=0):
    x = np.empty_like(b)
    run(op, (len(b), *b.shape[-2:]), (np.full_like(arrays[0], NAN), *arrays, b, x), flags)  # a itself is not read
    return x


def slogdet(a, flags=0):
    sign, log = np.empty(len(a), a.dtype), np.empty(len(a), REAL[a.dtype.name])
    info = np.full(len(a), -1, np.int32)
    run("slogdet", a.shape[:2], (a, sign, log, info), flags)
    return sign, log, info


def qr(a, c):
    batch, m, n = a.shape
    q, r = np.empty((batch, m, c), a.dtype), np.empty((batch, c, n), a.dtype)
    run("qr", (batch, m, n, c), (a, q, r))
    return q, r


def random(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def conditioned(batch, n, dtype, condition, seed, positive=False):
    """Matrices with singular values, or eigenvalues, from 1 to 1 / condition."""
    wide = np.promote_types(dtype, np.float64)
    u = np.linalg.qr(random((batch, n, n), wide, seed))[0]
    v = u if positive else np.linalg.qr(random((batch, n, n), wide, seed + 1))[0]
    a = (u * np.geomspace(1, 1 / condition, n)) @ adjoint(v)
    a = (a + adjoint(a)) / 2 if positive else a
    return a.astype(dtype)


def adjoint(a):
    return np.ascontiguousarray(a.conj().swapaxes(-1, -2))


def norm(a):
    return np.linalg.norm(np.asarray(a), axis=(-2, -1))


def wide(*arrays):
    return [np.asarray(a, np.promote_types(a.dtype, np.float64)) for a in arrays]


def eps(dtype):
    return np.finfo(dtype).eps


def check_solution(a, x, b):
    a, x, b = wide(aa := a, x, b)
    n = a.shape[-1]
    assert (norm(b - a @ x) <= 10 * n * eps(aa.dtype) * (norm(a) * norm(x) + norm(b))).all(), n


def poison(a, upper, also_diagonal=False):
    """NaN in the triangle that must not be read."""
    a = a.copy()
    n = a.shape[-1]
    i, j = np.tril_indices(n, -1) if upper else np.triu_indices(n, 1)
    a[:, i, j] = NAN
    if also_diagonal:
        a[:, range(n), range(n)] = NAN
    elif a.dtype.kind == "c":
        a[:, range(n), range(n)] += a.dtype.type(7j)
    return a


def widths(n):
    return sorted({1, 3, n + 2})


@dtypes
@pytest.mark.parametrize("upper", [0, UPPER])
def test_solve_positive(dtype, upper):
    for n in SIZES:
        for turn, k in enumerate(widths(n)):
            batch = BATCHES[(n + turn) % 5]
            a = conditioned(batch, n, dtype, 10, n, positive=True)
            b = random((batch, n, k), dtype, k)
            x, info = solve(poison(a, upper), b, POS | upper)
            assert not info.any()
            check_solution(a, x, b)


@dtypes
def test_solve_general(dtype):
    for n in SIZES:
        for turn, k in enumerate(widths(n)):
            batch = BATCHES[(n + turn) % 5]
            a, b = random((batch, n, n), dtype, n), random((batch, n, k), dtype, k)
            x, info = solve(a, b)
            assert not info.any()
            check_solution(a, x, b)


@dtypes
def test_inverse(dtype):
    for n in SIZES:
        a = random((BATCHES[n % 5], n, n), dtype, n)
        x, info = inverse(a)
        assert not info.any()
        check_inverse(a, x)
        for upper in (0, UPPER):
            a = conditioned(BATCHES[n % 5], n, dtype, 100, n, positive=True)
            x, info = inverse(poison(a, upper), POS | upper)
            assert not info.any()
            check_inverse(a, x)
            assert (x == adjoint(x)).all()


def check_inverse(a, x):
    a, x = wide(aa := a, x)
    n = a.shape[-1]
    assert (norm(a @ x - np.eye(n)) <= 10 * n * eps(aa.dtype) * norm(a) * norm(x)).all(), n


@pytest.mark.parametrize("condition", [1, 1e4, 1e8, 1e12, 1e15])
@dtypes
def test_any_condition(dtype, condition):
    for n in (2, 3, 5, 8, 13, 32, 70):
        a, b = conditioned(9, n, dtype, condition, n), random((9, n, 2), dtype, 3)
        x, info = solve(a, b)
        check_solution(a[info == 0], x[info == 0], b[info == 0])
        x, info = inverse(a)
        check_inverse(a[info == 0], x[info == 0])
        a = conditioned(9, n, dtype, condition, n, positive=True)
        certain = condition * eps(dtype) * n * 10 < 1  # else rounding may have made it indefinite
        x, info = solve(a, b, POS)
        assert not (certain and info.any())
        check_solution(a[info == 0], x[info == 0], b[info == 0])
        x, info = inverse(a, POS)
        assert not (certain and info.any())
        check_inverse(a[info == 0], x[info == 0])


@dtypes
def test_lu_and_its_solutions(dtype):
    for n in SIZES:
        batch = BATCHES[n % 5]
        a = random((batch, n, n), dtype, n)
        f, rows, info = lu(a)
        assert not info.any()
        assert (np.sort(rows, -1) == np.arange(n)).all()
        lower, upper = np.tril(f, -1) + np.eye(n, dtype=dtype), np.triu(f)
        assert (abs(np.tril(f, -1)) <= 1.5).all()  # complex pivots are chosen by |re| + |im|
        permuted = np.take_along_axis(a, rows[..., None].astype(int), 1)
        w = wide(permuted, lower, upper)
        assert (norm(w[0] - w[1] @ w[2]) <= 10 * n * eps(dtype) * norm(a)).all(), n
        for k in widths(n):
            b = random((batch, n, k), dtype, k)
            check_solution(a, factored_solve("lu_solve", (f, rows), b), b)
            check_solution(adjoint(a), factored_solve("lu_solve", (f, rows), b, ADJOINT), b)


@dtypes
@pytest.mark.parametrize("upper", [0, UPPER])
def test_triangles(dtype, upper):
    for n in SIZES:
        batch = BATCHES[n % 5]
        a = conditioned(batch, n, dtype, 10, n, positive=True)
        l = np.linalg.cholesky(a)
        t = poison(adjoint(l) if upper else l, upper)
        if t.dtype.kind == "c":
            t[:, range(n), range(n)] = t[:, range(n), range(n)].real + 0.5j
        clean = np.triu(t) if upper else np.tril(t)
        for k in widths(n):
            b = random((batch, n, k), dtype, k)
            check_solution(a, factored_solve("cholesky_solve", (poison_free(l, upper),), b, upper), b)
            for unit in (0, UNIT):
                shape = clean if not unit else clean * (1 - np.eye(n, dtype=dtype)) + np.eye(n, dtype=dtype)
                given = poison(t, upper, also_diagonal=True) if unit else t
                x, info = solve(given, b, upper | unit, "triangular")
                assert not info.any()
                check_solution(shape, x, b)
                x, info = solve(given, b, upper | unit | ADJOINT, "triangular")
                check_solution(adjoint(shape), x, b)


def poison_free(l, upper):
    """The factor with NaN where it has zeros."""
    i, j = np.tril_indices(l.shape[-1], -1) if upper else np.triu_indices(l.shape[-1], 1)
    l = adjoint(l) if upper else l.copy()
    l[:, i, j] = NAN
    return l


@dtypes
def test_slogdet(dtype):
    for n in SIZES:
        batch = BATCHES[n % 5]
        for a, flags in [
            (random((batch, n, n), dtype, n), 0),
            (conditioned(batch, n, dtype, 10, n, positive=True), POS),
            (conditioned(batch, n, dtype, 10, n, positive=True), POS | UPPER),
        ]:
            scaled = a * a.dtype.type(1e-20)  # a product of pivots that no float32 holds
            for given in (a, scaled):
                expected = np.linalg.slogdet(np.asarray(given, np.complex128))
                sign, log, info = slogdet(poison(given, flags & UPPER) if flags else given, flags)
                assert not info.any()
                tolerance = 10 * n * eps(dtype) * (np.linalg.cond(a) + abs(expected[1]))
                assert (abs(log - expected[1]) <= tolerance).all(), n
                assert (abs(sign - expected[0]) <= tolerance).all()
                assert (abs(abs(sign) - 1) <= 4 * eps(dtype)).all()


@dtypes
def test_qr(dtype):
    oblong = [(1, 5), (5, 1), (9, 4), (4, 9), (33, 8), (8, 33), (LARGEST, 17), (3, LARGEST), (97, 70), (70, 97), (130, 2)]
    for m, n in [*oblong, *zip(SIZES, SIZES, strict=True)]:
        for c in {min(m, n), m}:
            a = random((BATCHES[(m + n) % 5], m, n), dtype, m + n)
            q, r = qr(a, c)
            check_qr(a, q, r)


def check_qr(a, q, r):
    assert (np.tril(r, -1) == 0).all()
    a, q, r = wide(aa := a, q, r)
    tolerance = 10 * max(a.shape[1:]) * eps(aa.dtype)
    assert (norm(a - q @ r) <= tolerance * norm(a)).all(), a.shape
    assert (norm(adjoint(q) @ q - np.eye(q.shape[-1])) <= tolerance).all(), a.shape


@dtypes
def test_qr_of_extreme_and_deficient_matrices(dtype):
    for factor in (1e-30, 1e30):
        a = random((9, 6, 4), dtype, 1) * np.dtype(dtype).type(factor)
        check_qr(a / factor, *(lambda q, r: (q, r / factor))(*qr(a, 4)))
    a = random((9, 6, 5), dtype, 1)
    a[:, :, 2] = a[:, :, 1]
    a[:, :, 3] = 0
    check_qr(a, *qr(a, 6))
    check_qr(np.zeros_like(a), *qr(np.zeros_like(a), 5))
    a = random((9, 6, 5), dtype, 1) * np.geomspace(1, 1e-30, 5).astype(dtype)  # a column that squares to nothing
    q, r = qr(a, 5)
    check_qr(a, q, r)
    a, q, r = wide(a, q, r)
    assert (np.linalg.norm(a - q @ r, axis=1) <= 60 * eps(dtype) * np.linalg.norm(a, axis=1)).all()
    a = random((9, 6, 5), dtype, 1)
    a[4, 3, 2] = NAN
    q, r = qr(a, 5)
    good = np.arange(9) != 4
    check_qr(a[good], q[good], r[good])
    assert np.isnan(q[4]).any()
    assert np.isnan(r[4]).any()


@dtypes
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_entries(dtype, scale):
    for n in (1, 2, 5, 9, 70):
        a, b = random((9, n, n), dtype, n), random((9, n, 2), dtype, 3)
        x, info = solve(a * a.dtype.type(scale), b * b.dtype.type(scale))
        assert not info.any()
        check_solution(a, x, b)
        f, _, info = lu(a * a.dtype.type(scale))
        assert not info.any()
        assert np.isfinite(f).all()


BAD = ["singular", "nan", "inf", "zero"]


def spoil(a, kind, m):
    n = a.shape[-1]
    if kind == "singular":
        a[m, :, n // 2] = 0
    elif kind == "zero":
        a[m] = 0
    else:
        a[m, n - 1, n // 2] = NAN if kind == "nan" else np.inf
        a[m, n // 2, n - 1] = a[m, n - 1, n // 2]


@dtypes
@pytest.mark.parametrize("kind", BAD)
def test_one_bad_matrix_in_the_middle(dtype, kind):
    for n in (1, 2, 3, 4, 5, 8, 11, 32, 70):
        for batch, m in [(33, 20), (9, 8), (7, 0)]:
            good = np.arange(batch) != m
            general = random((batch, n, n), dtype, n)
            positive = conditioned(batch, n, dtype, 10, n, positive=True)
            b = random((batch, n, 3), dtype, 5)
            for a, flags in [(general, 0), (positive, POS), (positive, POS | UPPER)]:
                bad = a.copy()
                spoil(bad, kind, m)
                expected = [solve(a, b, flags)[0], inverse(a, flags)[0], *slogdet(a, flags)[:2]]
                s, log, info = slogdet(bad, flags)
                found = [solve(bad, b, flags), inverse(bad, flags), (s, info), (log, info)]
                singular = kind in ("singular", "zero") and not flags
                for q, (e, (x, i)) in enumerate(zip(expected, found, strict=True)):
                    assert (x[good] == e[good]).all()
                    assert not i[good].any()
                    if singular and q >= 2:
                        assert i[m] == 0
                        assert x[m] == (0 if q == 2 else -np.inf)
                        continue
                    assert 1 <= i[m] <= n
                    assert i[m] == n // 2 + 1 or kind in ("nan", "inf", "zero")
                    assert np.isnan(x[m].real).all()
                    assert np.isnan(x[m].imag).all() or x.dtype.kind != "c"
            bad = general.copy()
            spoil(bad, kind, m)
            f, rows, info = lu(bad)
            e = lu(general)
            assert (f[good] == e[0][good]).all()
            assert (rows[good] == e[1][good]).all()
            assert not info[good].any()
            assert info[m]
            assert np.isnan(f[m]).all()
            assert (np.sort(rows[m]) == np.arange(n)).all()
            rows = e[1].copy()
            rows[m, 0] = n
            x = factored_solve("lu_solve", (e[0], rows), b)
            assert np.isnan(x[m]).all()
            assert (x[good] == factored_solve("lu_solve", e[:2], b)[good]).all()
            t = np.tril(general) + 4 * np.eye(n, dtype=dtype)
            expected = solve(t, b, 0, "triangular")[0]
            spoil(t, kind, m)
            x, info = solve(t, b, 0, "triangular")
            assert (x[good] == expected[good]).all()
            assert not info[good].any()
            assert info[m] == {"singular": n // 2 + 1, "zero": 1}.get(kind, n)
            assert np.isnan(x[m]).all()
            x = factored_solve("cholesky_solve", (t,), b)
            assert np.isnan(x[m]).any()


def test_not_positive_definite_tells_the_minor():
    for n in (2, 3, 4, 5, 8, 9, 20):
        for minor in {1, 2, n // 2 + 1, n}:
            a = np.tile(np.eye(n), (10, 1, 1))
            a[5, minor - 1, minor - 1] = -1
            for info in (solve(a, np.ones((10, n, 1)), POS)[1], inverse(a, POS)[1], slogdet(a, POS)[2]):
                assert info[5] == minor
                assert not np.delete(info, 5).any()


@dtypes
def test_in_place(dtype):
    for n in (1, 2, 3, 5, 8, 12, 33):
        for k in (1, 3, 70):
            a, b = conditioned(9, n, dtype, 10, n, positive=True), random((9, n, k), dtype, k)
            for flags, op in [(0, "solve"), (POS, "solve"), (0, "triangular")]:
                x = b.copy()
                solve(a, x, flags, op, x=x)
                assert (x == solve(a, b, flags, op)[0]).all()
        for flags in (0, POS):
            x = a.copy()
            inverse(x, flags, x=x)
            assert (x == inverse(a, flags)[0]).all()
        x = a.copy()
        lu(x, out=x)
        assert (x == lu(a)[0]).all()


@dtypes
def test_inputs_are_kept(dtype):
    a, b = conditioned(9, 7, dtype, 10, 7, positive=True), random((9, 7, 3), dtype, 3)
    kept = a.copy(), b.copy()
    for flags in (0, POS):
        solve(a, b, flags)
        inverse(a, flags)
        slogdet(a, flags)
    lu(a)
    qr(a, 7)
    solve(a, b, 0, "triangular")
    assert (a == kept[0]).all()
    assert (b == kept[1]).all()


@dtypes
def test_same_bits_anywhere(dtype):
    for n in (1, 2, 3, 4, 6, 8, 15, 16, 30):
        batch = 517
        a, b = np.empty((batch, n, n), dtype), np.empty((batch, n, 3), dtype)
        a[:], b[:] = conditioned(1, n, dtype, 10, n, positive=True), random((n, 3), dtype, 3)
        for call in (
            lambda a, b, threads: solve(a, b, 0, threads=threads)[0],
            lambda a, b, threads: solve(a, b, POS, threads=threads)[0],
            lambda a, b, threads: solve(a, b, ADJOINT, "triangular", threads=threads)[0],
            lambda a, b, _: inverse(a)[0],
            lambda a, b, _: inverse(a, POS)[0],
            lambda a, b, _: slogdet(a)[1][:, None],
            lambda a, b, _: lu(a)[0],
            lambda a, b, _: qr(a, a.shape[-1])[0],
        ):
            one = call(a[:1].copy(), b[:1].copy(), 1)
            for threads in (1, 2):
                assert (call(a, b, threads) == one).all(), n


def test_what_does_not_fit_is_refused():
    with pytest.raises(RuntimeError, match="n up to 512 on this device, not 513"):
        inverse(np.eye(513)[None])


def svd(a, values=False, threads=0):
    batch, m, n = a.shape
    k = min(m, n)
    s, info = np.empty((batch, k), REAL[a.dtype.name]), np.full(batch, -1, np.int32)
    if values:
        run("svdvals", (batch, m, n), (a, s, info), threads=threads)
        return s, info
    u, vh = np.empty((batch, m, k), a.dtype), np.empty((batch, k, n), a.dtype)
    run("svd", (batch, m, n, 0), (a, u, s, vh, info), threads=threads)
    return u, s, vh, info


def check_svd(a):
    u, s, vh, info = svd(a)
    assert not info.any()
    assert np.array_equal(svd(a, values=True)[0], s)  # the same with and without vectors
    assert (np.diff(s, axis=-1) <= 0).all() and (s >= 0).all()
    small = 10 * max(a.shape[-2:]) * eps(a.dtype)
    (w, u, s, vh), eye = wide(a, u, s, vh), np.eye(s.shape[-1])
    assert (norm(w - (u * s[:, None, :]) @ vh) <= small * norm(w)).all(), a.shape
    assert (norm(adjoint(u) @ u - eye) <= small).all(), a.shape
    assert (norm(vh @ adjoint(vh) - eye) <= small).all(), a.shape
    exact = np.linalg.svd(w, compute_uv=False)
    assert (abs(exact - s) <= small * exact[:, :1]).all(), a.shape


SQUARES = [(n, n) for n in (1, 2, 3, 4, 5, 8, 16, 31, 32)]
SHAPES = [*SQUARES, (1, 7), (7, 1), (5, 3), (3, 4), (33, 32), (32, 47), (48, 32), (100, 17), (9, 300)]
BIDIAGONAL = [(33, 33), (47, 40), (34, 120)]  # above the orders of Jacobi's method


@dtypes
@pytest.mark.parametrize("shape", [*SHAPES, *BIDIAGONAL, pytest.param((99, 99), marks=pytest.mark.slow)], ids=str)
def test_svd(dtype, shape):
    """Random, large and small; zero, of rank one, with repeated values, a zero row and column; graded, of any condition."""
    k, real = min(shape), np.dtype(REAL[dtype]).type
    a = random((11, *shape), dtype, k)
    check_svd(a)
    check_svd(a * real(1e30))
    check_svd(a * real(1e-30))
    b = a.copy()
    b[0], b[1], b[2], b[3] = 0, 1, np.eye(*shape), a[3, :, :1] @ a[3, :1]
    b[4, :, 0] = b[5, 0] = 0
    b[6] = 0
    b[6, -1, -1] = 3
    check_svd(b)
    u, _, vh = np.linalg.svd(a.astype(np.promote_types(dtype, np.float64)), full_matrices=False)
    for condition in (1e8, 1e15, 1e30):
        check_svd(((u * np.geomspace(1, 1 / condition, k)) @ vh).astype(dtype))
    check_svd((a * np.geomspace(1, 1e-12, shape[1])).astype(dtype))
    check_svd((a * np.geomspace(1e-12, 1, shape[0])[:, None]).astype(dtype))


@dtypes
@pytest.mark.parametrize("shape", [(4, 4), (32, 32), (12, 5), (6, 7), (33, 36)], ids=str)
def test_svd_in_any_place(dtype, shape):
    """The same bits alone, beside others, beside one that is not finite, and on any number of threads."""
    a = random((70, *shape), dtype, 3)
    a[5], a[6], a[7, 0] = 0, np.eye(*shape), 0
    whole = svd(a, threads=1)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(whole, svd(a, threads=2), strict=True))
    for i in (0, 5, 6, 7, 69):
        assert all(x[i].tobytes() == y[0].tobytes() for x, y in zip(whole, svd(a[i : i + 1].copy()), strict=True))
    a[2, 0, 0], a[11, -1, -1] = NAN, np.inf
    *found, info = svd(a)
    assert np.flatnonzero(info).tolist() == [2, 11]
    good = info == 0
    for before, now in zip(whole, found, strict=False):
        assert np.isnan(now[~good]).all()
        assert before[good].tobytes() == now[good].tobytes()


@dtypes
def test_svd_of_bidiagonal_matrices(dtype):
    """Zeros on the diagonal, which a shifted sweep would not move; blocks that fall apart; singular values below the noise."""
    n = 40
    i = np.arange(n)
    a = np.zeros((7, n, n), dtype)
    a[:, i, i], a[:, i[:-1], i[1:]] = 1, 1
    a[0, 0, 0] = a[1, n - 1, n - 1] = a[2, n // 2, n // 2] = 0
    a[3, i[::3], i[::3]] = 0
    a[4, i, i] = 0
    a[5, i[:-1:5], i[1::5]] = 0
    a[6] = 1 / (i[:, None] + i + 1.0)
    check_svd(a)
    check_svd(np.ascontiguousarray(a.swapaxes(-1, -2)))


def test_svd_limits():
    for shape in ((321, 321), (513, 4)):
        with pytest.raises(RuntimeError, match="up to 512 and 320"):
            svd(np.ones((1, *shape)))


@dtypes
@pytest.mark.parametrize("n", [1, 2, 5, 12, 33, 70])
def test_subnormal_pivot(dtype, n):
    """One over such a pivot is too large a number, but it is not zero: what can be written down is found."""
    tiny = 2.0**-133 if REAL[dtype] == "float32" else 2.0**-1030
    a = np.triu(random((5, n, n), dtype, 1)) / n + np.eye(n, dtype=dtype)
    b = random((5, n, 40), dtype, 2)
    a[2, -1] = a[2, :, -1] = 0
    a[2, -1, -1] = tiny * (1j if np.dtype(dtype).kind == "c" else 1)
    b[2, -1] = a[2, -1, -1] * np.arange(40)
    rows = np.arange(n)[::-1]
    shuffled = np.ascontiguousarray(a[:, rows])
    right = np.ascontiguousarray(b[:, rows])
    factors, order, info = lu(shuffled)
    assert not info.any()
    x, info = solve(shuffled, right)
    t, also = solve(a, b, UPPER, op="triangular")
    assert not info.any()
    assert not also.any()
    alone, _ = solve(shuffled[:1].copy(), right[:1].copy())
    assert np.array_equal(alone[0], x[0])
    in_place = right.copy()
    assert not solve(shuffled, in_place, x=in_place)[1].any()
    assert np.array_equal(in_place, x)
    for found in (x, t, factored_solve("lu_solve", (factors, order), right)):
        check_solution(a, found, b)
        assert np.array_equal(found[2, -1], np.arange(40))
    b[2, -1] = 0
    lower = adjoint(a)
    check_solution(lower @ a, factored_solve("cholesky_solve", (lower,), b), b)
    adjoint_x, info = solve(a, b, UPPER | ADJOINT, op="triangular")
    assert not info.any()
    check_solution(lower, adjoint_x, b)
    a[2, -1, -1] = 0
    assert solve(a, b)[1].tolist() == [0, 0, n, 0, 0]
    positive = np.zeros((3, n, n), dtype) + np.eye(n, dtype=dtype)
    positive[1, -1, -1] = tiny
    y, info = solve(positive, positive.copy(), POS)
    assert not info.any()
    assert np.allclose(y, np.eye(n), rtol=0, atol=10 * eps(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("flags", [0, UPPER, UNIT, UPPER | UNIT])
def test_triangles_side_by_side(dtype, flags):
    """One right-hand side for each of several triangles: a lane of each vector belongs to one of them."""
    upper, unit = flags & UPPER, flags & UNIT
    for n in (17, 31, 32, 33, 48, 65, 100, 127, 128, 129, 192, 193):
        a = random((20, n, n), dtype, n) / n + 2 * np.eye(n, dtype=dtype)
        b = random((20, n, 1), dtype, n + 1)
        t = np.triu(a, 1 if unit else 0) if upper else np.tril(a, -1 if unit else 0)
        read = t != 0
        t += unit / UNIT * np.eye(n, dtype=dtype)
        a[~read] = NAN
        x, info = solve(a, b, flags, "triangular")
        assert not info.any()
        np.testing.assert_array_less(np.abs(t @ x - b), 10 * n * np.finfo(dtype).eps * np.abs(t).sum(-1, keepdims=True).max())
        for count in (1, 3, 4, 9):  # the same bits in any batch, and in the memory of b
            some = b[:count].copy()
            solve(a[:count], some, flags, "triangular", x=some)
            np.testing.assert_array_equal(some, x[:count])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_bad_triangle_spoils_only_itself(dtype, in_place):
    n, place = 40, 23
    a, b = np.tril(random((11, n, n), dtype, 1)) / n + 2 * np.eye(n, dtype=dtype), random((11, n, 1), dtype, 2)
    good = solve(a, b, 0, "triangular")[0]
    a[3, place, place], a[5, place, 7], a[6, place, place] = 0, NAN, np.finfo(dtype).smallest_subnormal
    b[6, place] = 0
    b[6, place] += a[6, place, :place] @ good[6, :place]
    x, info = solve(a, b, 0, "triangular", x=b if in_place else None)
    assert info[3] == info[5] == place + 1
    assert np.isnan(x[[3, 5]]).all()
    assert not np.delete(info, [3, 5]).any()
    rest = [0, 1, 2, 4, 7, 8, 9, 10]
    np.testing.assert_array_equal(x[rest], good[rest])
