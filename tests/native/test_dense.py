"""One large matrix by our own blocked code, on one thread and on several."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lapwing.core.lapack import LIBRARY
from lapwing.core.native import DTYPE_CODE, OPS, native
from lapwing.core.problem import ADJOINT, POS, UNIT
from solve_checks import DTYPES, UPPER, adjoint, assert_inverse, eps, exact, info_of, norm, positive, random

pytestmark = pytest.mark.skipif(native is None or not LIBRARY, reason="no native core, or no LAPACK")

LAPACK = 1
# A panel with a short one behind it, and several whole panels.
ORDERS = (97, 256)


def call(op, flags, sizes, *arrays, threads=2):
    native.run(OPS[op], DTYPE_CODE[arrays[0].dtype.name], 0, -1, LAPACK, threads, flags, sizes, 0, None, *arrays)


def assert_close(product, a, n):
    assert (norm(product - exact(a)) <= 10 * n * eps(a.dtype) * norm(a)).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_general(dtype, n, threads):
    rng = np.random.default_rng(n)
    a, b = random(rng, dtype, 1, n, n), random(rng, dtype, 1, n, 2)
    x, lu, rows, inverse, info = np.empty_like(b), np.empty_like(a), np.empty((1, n), np.int32), np.empty_like(a), info_of(1)
    call("solve", 0, (1, n, 2), a.copy(), b, x, info, threads=threads)
    assert info[0] == 0
    assert norm(exact(a) @ x - b) <= 10 * n * eps(dtype) * norm(a) * norm(x)
    call("lu", 0, (1, n), a.copy(), lu, rows, info, threads=threads)
    assert info[0] == 0
    lower, upper = np.tril(exact(lu[0]), -1) + np.eye(n), np.triu(exact(lu[0]))
    assert_close(lower @ upper, a[0][rows[0]], n)
    assert max(np.abs(lower.real).max(), np.abs(lower.imag).max()) <= 1.5
    call("inverse", 0, (1, n), a.copy(), inverse, info, threads=threads)
    assert_inverse(a, inverse)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("upper", [0, UPPER])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positive(dtype, upper, n, threads):
    a = positive(np.random.default_rng(n), dtype, 1, n)
    factor, info = np.empty_like(a), info_of(1)
    call("cholesky", upper, (1, n), a.copy(), factor, info, threads=threads)
    assert info[0] == 0
    unused = np.tril(factor[0], -1) if upper else np.triu(factor[0], 1)
    assert not unused.any()
    f = exact(factor)
    assert_close(adjoint(f) @ f if upper else f @ adjoint(f), a, n)
    poisoned, inverse = a.copy(), np.empty_like(a)
    poisoned[0][np.tril_indices(n, -1) if upper else np.triu_indices(n, 1)] = np.nan
    call("inverse", upper | POS, (1, n), poisoned, inverse, info, threads=threads)
    assert info[0] == 0
    assert_inverse(a, inverse)
    assert np.array_equal(inverse, adjoint(inverse))


@pytest.mark.parametrize("place", [1, 64, 65, 200])
def test_first_bad_pivot(place):
    n = 215
    a = positive(np.random.default_rng(0), "float64", 1, n)
    a[0, place - 1, place - 1] = -1
    out, info = np.empty_like(a), info_of(1)
    for upper in (0, UPPER):
        call("cholesky", upper, (1, n), a.copy(), out, info)
        assert info[0] == place
        assert np.isnan(out).all()
    a = random(np.random.default_rng(0), "float64", 1, n, n)
    a[0, :, place - 1] = 0
    b = np.ones((1, n, 1))
    call("solve", 0, (1, n, 1), a.copy(), b, np.empty_like(b), info)
    assert info[0] == place


@pytest.mark.parametrize("shape", [(300, 300), (420, 130), (130, 300)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_qr(dtype, shape):
    m, n = shape
    a = random(np.random.default_rng(0), dtype, 1, m, n)
    for c in (min(m, n), m):
        q, r = np.empty((1, m, c), dtype), np.empty((1, c, n), dtype)
        call("qr", 0, (1, m, n, c), a.copy(), q, r, threads=3)
        assert not np.tril(r[0], -1).any()
        assert_close(exact(q) @ exact(r), a, m)
        assert norm(adjoint(exact(q)) @ exact(q) - np.eye(c)) <= 10 * m * eps(dtype)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (0, 130), (130, 0), (127, 128), (130, 130)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_not_finite(dtype, place, value):
    n = 131  # neither tiles nor vectors are whole
    a = random(np.random.default_rng(0), dtype, 1, n, n)
    lu, rows, info = np.empty_like(a), np.empty((1, n), np.int32), info_of(1)
    a[0][place] = value
    call("lu", 0, (1, n), a, lu, rows, info)
    assert info[0] == max(place) + 1
    assert np.isnan(lu).all()


def test_several_callers():
    """The threads work for one caller at a time; the others do their work alone."""
    rng = np.random.default_rng(0)
    a, b = random(rng, "float64", 1, 400, 400), random(rng, "float64", 1, 400, 1)

    def solve(_):
        x, info = np.empty_like(b), info_of(1)
        call("solve", 0, (1, 400, 1), a.copy(), b, x, info)
        return x

    with ThreadPoolExecutor(4) as pool:
        for x in pool.map(solve, range(24)):
            assert norm(a @ x - b) <= 4000 * eps("float64") * norm(a) * norm(x)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", [7, 65, 200, 1300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_triangle_with_one_right_hand_side(dtype, n, threads):
    """1300 is large enough for several threads in both dtypes."""
    rng = np.random.default_rng(n)
    b = random(rng, dtype, 1, n, 1)
    for upper, turned, unit in itertools.product((0, UPPER), (0, ADJOINT), (0, UNIT)):
        a = (random(rng, dtype, 1, n, n) / n**0.5 + 2 * np.eye(n)).astype(dtype)
        whole = np.triu(exact(a)) if upper else np.tril(exact(a))
        a[0][np.tril_indices(n, -1) if upper else np.triu_indices(n, 1)] = np.nan
        if unit:
            whole[0][np.diag_indices(n)], a[0][np.diag_indices(n)] = 1, np.nan
        x, info = np.empty_like(b), info_of(1)
        call("triangular", upper | turned | unit, (1, n, 1), a, b, x, info, threads=threads)
        assert info[0] == 0
        product = adjoint(whole) @ x if turned else whole @ x
        assert norm(product - b) <= 10 * n * eps(dtype) * norm(whole) * norm(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_triangle_on_any_number_of_threads(dtype):
    """The same bits, however much is known when a thread looks."""
    rng = np.random.default_rng(0)
    n = 2000
    a, b = (random(rng, dtype, 1, n, n) / n**0.5 + 2 * np.eye(n)).astype(dtype), random(rng, dtype, 1, n, 1)
    for flags in (0, UPPER, ADJOINT, UPPER | ADJOINT):
        found = []
        for threads in (1, *[2] * 10, 3, 3):
            x, info = np.empty_like(b), info_of(1)
            call("triangular", flags, (1, n, 1), a, b, x, info, threads=threads)
            found.append(x.tobytes())
        assert len(set(found)) == 1, flags


@pytest.mark.parametrize("place", [0, 70, 129])
@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_bad_pivot_of_a_triangle(bad, place):
    a, b, info = np.tril(np.ones((1, 130, 130))) + np.eye(130), np.ones((1, 130, 1)), info_of(1)
    a[0, place, place] = bad
    x = np.empty_like(b)
    call("triangular", 0, (1, 130, 1), a, b, x, info)
    assert info[0] == place + 1 and np.isnan(x).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", [17, 33, 64, 130, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_symmetric_eigenproblem(dtype, n, threads):
    """Also where the squares of the elements leave the range."""
    rng = np.random.default_rng(n)
    large = 2.0 ** (np.finfo(dtype).maxexp - 12)
    for scale, upper in ((1.0, 0), (1.0, UPPER), (large, 0), (1 / large, UPPER)):
        g = random(rng, dtype, 1, n, n)
        whole = (g + g.swapaxes(-1, -2)) / 2
        a = (whole * scale).astype(dtype)
        a[0][np.tril_indices(n, -1) if upper else np.triu_indices(n, 1)] = np.nan
        w, v, alone, info = np.empty((1, n), dtype), np.empty_like(a), np.empty((1, n), dtype), info_of(1)
        call("eigh", upper, (1, n, 0, n), a, w, v, info, threads=threads)
        assert info[0] == 0
        call("eigvalsh", upper, (1, n, 0, n), a, alone, info, threads=threads)
        assert info[0] == 0 and (np.diff(w) >= 0).all()
        values, vectors = exact(w) / scale, exact(v)
        size = np.abs(values).max()
        assert norm(exact(whole) @ vectors - vectors * values[:, None]) <= 10 * n * eps(dtype) * size
        assert norm(adjoint(vectors) @ vectors - np.eye(n)) <= 10 * n * eps(dtype)
        assert np.abs(exact(alone) / scale - values).max() <= 10 * n * eps(dtype) * size


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_eigenproblem_on_any_number_of_threads(dtype):
    """The same bits; a matrix of this order is multiplied in several parts."""
    n = 300
    g = random(np.random.default_rng(0), dtype, 1, n, n)
    a = g + g.swapaxes(-1, -2)
    found = []
    for threads in (1, 2):
        w, v, alone, info = np.empty((1, n), dtype), np.empty_like(a), np.empty((1, n), dtype), info_of(1)
        call("eigh", 0, (1, n, 0, n), a, w, v, info, threads=threads)
        call("eigvalsh", 0, (1, n, 0, n), a, alone, info, threads=threads)
        found.append((w.tobytes(), v.tobytes(), alone.tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("a", [np.zeros((40, 40)), np.ones((40, 40)), np.diag(np.arange(40.0)), np.full((40, 40), 5e-324)])
def test_degenerate_eigenproblem(a):
    w, v, info = np.empty((1, 40)), np.empty((1, 40, 40)), info_of(1)
    call("eigh", 0, (1, 40, 0, 40), a[None].copy(), w, v, info)
    assert info[0] == 0
    assert norm(v[0].T @ v[0] - np.eye(40)) <= 400 * eps("float64")
    assert np.abs(w[0] - np.linalg.eigvalsh(a)).max() <= 400 * eps("float64") * max(np.abs(a).sum(1).max(), 1e-307)


def test_eigenproblem_that_is_not_finite():
    a, w, v, info = np.eye(50)[None].copy(), np.empty((1, 50)), np.empty((1, 50, 50)), info_of(1)
    a[0, 30, 3] = np.inf
    call("eigh", 0, (1, 50, 0, 50), a, w, v, info)
    assert info[0] and np.isnan(w).all() and np.isnan(v).all()
