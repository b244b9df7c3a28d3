"""Mixed precision on the CPU: as accurate as the full solve, and the full solve's answer where low precision will not do."""

import numpy as np
import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
from lapwing.core.lapack import LIBRARY
from lapwing.core.native import CPU, DTYPE_CODE, ENGINES, OPS, native

UPPER, POS, MIXED = 1, 16, 32
EPS = np.finfo(float).eps

pytestmark = pytest.mark.skipif(not LIBRARY, reason="no LAPACK")


def solve(a, b, flags, threads=0):
    """x, info, what the log says"""
    batch, n, k = int(np.prod(a.shape[:-2])), a.shape[-1], b.shape[-1]
    x, info = np.full_like(b, 7), np.full(batch, -7, np.int32)
    engine = ENGINES["auto" if flags & MIXED else "lapack"]
    call = (OPS["solve"], DTYPE_CODE[a.dtype.name], CPU, -1, engine, threads, flags, (batch, n, k), 0, None)
    native.run(*call, np.ascontiguousarray(a), np.ascontiguousarray(b), x, info)
    return x, info, " ".join(native.notes())


def took(log):
    return "took" in log and "gave way" not in log


def random(rng, *shape, dtype="float64"):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype == "complex128" else x).astype(dtype)


def reflect(a, v):
    """(1 - 2 v v^H) A, v of norm 1"""
    return a - 2 * np.outer(v, v.conj() @ a)


def matrix(rng, n, singular_values, positive, dtype="float64"):
    """Dense, with chosen singular values, or eigenvalues: three reflections from either side, in n^2 work."""
    a = np.diag(singular_values).astype(dtype)
    for _ in range(3):
        left = random(rng, n, dtype=dtype)
        right = left if positive else random(rng, n, dtype=dtype)
        left, right = left / np.linalg.norm(left), right / np.linalg.norm(right)
        a = reflect(reflect(a, left).conj().T, right).conj().T
    return (a + a.conj().T) / 2 if positive else a


def error(a, b, x):
    """||b - A x|| / (||A||_F ||x||), the worst column, in eps"""
    return np.max(np.linalg.norm(b - a @ x, axis=0) / (np.linalg.norm(a) * np.linalg.norm(x, axis=0))) / EPS


def check(a, b, flags, seen=None):
    """The mixed answer beside the full one; its log"""
    full, info, _ = solve(seen if seen is not None else a, b, flags)
    assert info[0] == 0
    x, info, log = solve(seen if seen is not None else a, b, flags | MIXED)
    assert info[0] == 0
    assert error(a, b, x) <= max(1.5 * error(a, b, full), 0.15), log
    return log


@pytest.mark.parametrize("spectrum", ["geometric", "one small"])
@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8, 1e12, 1e15])
@pytest.mark.parametrize("positive", [True, False])
def test_conditions(positive, condition, spectrum):
    n = 1400
    rng = np.random.default_rng(1)
    values = np.geomspace(1, 1 / condition, n)
    if spectrum == "one small":
        values = np.r_[rng.uniform(0.5, 1, n - 1), 1 / condition]
    a, b = matrix(rng, n, values, positive), random(rng, n, 1)
    log = check(a, b, POS if positive else 0)
    if condition == 1e1:
        assert took(log)
    if condition == 1e15 and spectrum == "geometric":
        assert "gave way" in log


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_only_one_triangle_is_read(dtype, upper):
    n = 1450 if dtype == "float64" else 1900
    rng = np.random.default_rng(2)
    a, b = matrix(rng, n, np.linspace(1, 20, n), True, dtype), random(rng, n, 1, dtype=dtype)
    seen = a.copy()
    seen[np.tril_indices(n, -1) if upper else np.triu_indices(n, 1)] = np.nan
    if dtype == "complex128":
        seen[np.diag_indices(n)] += 1j
    assert took(check(a, b, POS | (UPPER if upper else 0), seen))


def test_complex_lu():
    n = 1400
    rng = np.random.default_rng(8)
    a, b = matrix(rng, n, np.geomspace(1, 1e-2, n), False, "complex128"), random(rng, n, 1, dtype="complex128")
    assert took(check(a, b, 0))


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("k", [5, 40])
def test_several_right_hand_sides(positive, k):
    n = 2200
    rng = np.random.default_rng(3)
    a, b = matrix(rng, n, np.geomspace(1, 1e-3, n), positive), random(rng, n, k)
    b[:, 1] = 0
    b[:, 2] *= 1e290
    full, _, _ = solve(a, b, POS if positive else 0)
    x, info, log = solve(a, b, (POS if positive else 0) | MIXED)
    assert info[0] == 0
    assert not x[:, 1].any()
    x[:, 2], full[:, 2], b[:, 2] = x[:, 2] * 1e-290, full[:, 2] * 1e-290, b[:, 2] * 1e-290
    rest = [0, *range(2, k)]
    assert error(a, b[:, rest], x[:, rest]) <= max(1.5 * error(a, b[:, rest], full[:, rest]), 0.15)
    assert k > 5 or took(log)


@pytest.mark.parametrize("positive", [True, False])
def test_bad_scales(positive):
    n = 1400
    rng = np.random.default_rng(4)
    a, x = matrix(rng, n, np.linspace(1, 5, n), positive), random(rng, n, 1)
    left = 2.0 ** rng.integers(-330, 330, n)
    right = left if positive else 2.0 ** rng.integers(-330, 330, n)
    b = a @ x  # of the scaled system: left A right (x / right) = left b
    found, info, log = solve(left[:, None] * a * right, left[:, None] * b, (POS if positive else 0) | MIXED)
    assert info[0] == 0
    if positive:  # Cholesky does not notice the scale, nor may this
        assert took(log)
        assert np.linalg.norm(found * right[:, None] - x) <= 100 * n * EPS * np.linalg.norm(x)
    else:
        r = b - a @ (found * right[:, None])
        size = np.max(left[:, None] * np.abs(a) * right, axis=1)  # row by row, against the largest term
        top = size.max() * np.abs(found).max()
        assert np.all(np.abs(r[:, 0] * left) / top <= 10 * n * EPS)


def test_whole_matrix_out_of_range():
    n = 1400
    rng = np.random.default_rng(5)
    a, b = matrix(rng, n, np.linspace(1, 5, n), False), random(rng, n, 1)
    x, info, log = solve(a * 1e200, b * 1e-50, MIXED)
    assert info[0] == 0
    assert took(log)
    assert error(a, b, x * 1e250) <= 0.15


@pytest.mark.parametrize("positive", [True, False])
def test_failures_are_those_of_the_full_solve(positive):
    n = 1400
    rng = np.random.default_rng(6)
    flags = POS if positive else 0
    good, b = matrix(rng, n, np.linspace(1, 5, n), positive), random(rng, n, 1)
    bad = {"nan": good.copy(), "inf": good.copy(), "indefinite": good.copy(), "negative": good.copy(), "zero": good.copy()}
    bad["nan"][700, 300] = bad["nan"][300, 700] = np.nan
    bad["inf"][20, 20] = np.inf
    bad["indefinite"][900, 900] = 1e-12 if positive else 1
    bad["negative"][5, 5] = -1
    bad["zero"][40, :] = bad["zero"][:, 40] = 0
    for name, a in bad.items():
        full, status, _ = solve(a, b, flags)
        x, info, log = solve(a, b, flags | MIXED)
        assert info[0] == status[0], name
        if status[0]:
            assert np.isnan(x).all(), name
            assert "gave way" in log, name
        else:
            assert error(a, b, x) <= max(1.5 * error(a, b, full), 0.15), name


def test_a_batch_is_a_loop():
    n = 1400
    rng = np.random.default_rng(7)
    a = np.stack([matrix(rng, n, np.linspace(1, 5 + i, n), True) for i in range(3)])
    a[1, 8, 8] = -1
    b = random(rng, 3, n, 1)
    x, info, _ = solve(a, b, POS | MIXED)
    assert list(info) == [0, 9, 0]
    for m in range(3):
        alone, _, _ = solve(a[m], b[m], POS | MIXED, threads=1)
        np.testing.assert_array_equal(alone, x[m])
    b2 = b.copy()  # x may be b
    info2 = np.zeros(3, np.int32)
    call = (OPS["solve"], DTYPE_CODE["float64"], CPU, -1, ENGINES["auto"], 0, POS | MIXED, (3, n, 1), 0, None)
    native.run(*call, a, b2, b2, info2)
    np.testing.assert_array_equal(b2, x)


def test_small_systems_are_solved_in_full():
    a, b = np.eye(40) * 4, np.ones((40, 2))
    x, info, log = solve(a, b, POS | MIXED)
    assert info[0] == 0
    assert log == ""
    np.testing.assert_array_equal(x, 0.25)
    plan = native.plan(OPS["solve"], DTYPE_CODE["float64"], CPU, -1, 0, 0, POS | MIXED, (1, 40, 2), "")
    assert "lower precision is allowed, but does not pay for this size" in plan[1]
