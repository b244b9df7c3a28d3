"""Matrices at the ends of the range of their type: the answers of ordinary matrices, scaled."""

import numpy as np
import pytest

import lapwing as lw
from lapwing.core.native import native

pytestmark = pytest.mark.skipif(native is None, reason="needs the native core")

DTYPES = ("float32", "float64", "complex64", "complex128")
ENDS = ("subnormal", "tiny", "small", "large", "huge")
SIZES = (1, 3, 20, 33, 70)


def exponent(dtype, end):
    """Of a power of two that leaves room for whole numbers up to 2^10."""
    limits = np.finfo(dtype)
    return {
        "subnormal": limits.minexp - limits.nmant,
        "tiny": limits.minexp,
        "small": limits.minexp // 2,
        "large": limits.maxexp // 2,
        "huge": limits.maxexp - 14,
    }[end]


def scaled(x, power):
    """x 2^power, in a type that holds any such number."""
    wide = np.clongdouble if np.iscomplexobj(x) else np.longdouble
    return x.astype(wide) * np.ldexp(np.longdouble(1), power)


def whole_numbers(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, shape).astype(dtype)
    return x + 1j * rng.integers(-3, 4, shape).astype(x.real.dtype) if x.dtype.kind == "c" else x


def matrix(kind, n, dtype):
    """Whole numbers, so that no bit is lost in subnormal numbers."""
    a = whole_numbers((2, n, n), dtype, n)
    if kind in ("pos", "hermitian"):
        a = a + np.conj(np.swapaxes(a, -1, -2))
    if kind == "symmetric":
        a = a + np.swapaxes(a, -1, -2)
    if kind == "lower":
        a = np.tril(a)
    large = 1 << int(np.ceil(np.log2(8 * n)))
    signs = 1 if kind == "pos" else np.where(np.arange(n) % 3, 1, -1)
    return (a + large * np.eye(n) * signs).astype(dtype)


def check(found, expected, power, n):
    """``found`` is ``expected`` 2^power, as far as their type has digits for it."""
    limits = np.finfo(found.dtype)
    right = scaled(expected, power)
    size = np.abs(right).max(initial=0)
    if size > limits.max:
        return
    allowed = 10 * n * limits.eps * size + (n + 1) * np.longdouble(limits.smallest_subnormal)
    assert found.dtype == expected.dtype
    assert np.abs(found.astype(right.dtype) - right).max(initial=0) <= allowed


def engines(n):
    return ("auto", "lapack") if n > 64 else ("auto", "lapack", "batched")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_systems(n, dtype, end):
    power = exponent(dtype, end)
    b = whole_numbers((2, n, 3), dtype, 99)
    for kind in ("general", "hermitian", "symmetric", "pos", "lower"):
        a = matrix(kind, n, dtype)
        extreme = scaled(a, power).astype(dtype)
        for engine in engines(n):
            options = {"assume": kind, "engine": engine}
            x = lw.solve(a, b, **options)
            check(lw.solve(extreme, b, **options), x, -power, n)
            check(lw.solve(extreme, scaled(b, power).astype(dtype), **options), x, 0, n)
            check(lw.solve(a, scaled(b, power).astype(dtype), **options), x, power, n)
            check(lw.inv(extreme, **options), lw.inv(a, **options), -power, n)
            if kind == "lower":
                continue  # its determinant takes no engine
            sign, logabs = lw.slogdet(a, **options)
            found = lw.slogdet(extreme, **options)
            assert np.abs(found.sign - sign).max() <= 10 * n * np.finfo(dtype).eps
            expected = logabs.astype("float64") + n * power * np.log(2)
            assert np.abs(found.logabsdet - expected).max() <= 10 * np.finfo(dtype).eps * (n + np.abs(expected).max())
        if end == "subnormal" and kind != "lower":
            continue  # the factor itself has no digits
        handle = lw.factor(extreme, assume=kind)
        check(handle.solve(scaled(b, power).astype(dtype)), lw.solve(a, b, assume=kind), 0, n)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_decompositions(n, dtype, end):
    power = exponent(dtype, end)
    a = matrix("pos", n, dtype)
    extreme = scaled(a, power).astype(dtype)
    for engine in engines(n):
        for upper in (False, True):
            # powers of two that are odd are one more rounding
            even, root = 4.0 ** (power % 2 / 2) if power % 2 else 1, power // 2
            check(lw.cholesky(extreme, upper=upper, engine=engine), lw.cholesky(a * even, upper=upper, engine=engine), root, n)
        w = lw.eigvalsh(a, engine=engine)
        found, vectors = lw.eigh(extreme, engine=engine)
        check(found, w, power, n)
        check(lw.eigvalsh(extreme, engine=engine), w, power, n)
        check(vectors @ (w[..., None] * np.conj(np.swapaxes(vectors, -1, -2))), a, 0, n)
        if engine != "batched" and n > 4:
            check(lw.eigh(extreme, subset=slice(2), engine=engine)[0], w[:, :2], power, n)
    for shape in ((n, n), (n + 5, n), (n, n + 5)):
        a = whole_numbers((2, *shape), dtype, 7)
        extreme = scaled(a, power).astype(dtype)
        for engine in ("auto", "lapack"):
            q, r = lw.qr(extreme, engine=engine)
            ordinary = lw.qr(a, engine=engine)
            check(q, ordinary.Q, 0, max(shape))
            check(r, ordinary.R, power, max(shape))
            s = lw.svdvals(a, engine=engine)
            check(lw.svdvals(extreme, engine=engine), s, power, max(shape))
            u, found, vh = lw.svd(extreme, engine=engine)
            check(found, s, power, max(shape))
            check((u * s[..., None, :]) @ vh, a, 0, max(shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_least_squares(dtype):
    a, b = whole_numbers((3, 9, 5), dtype, 1), whole_numbers((3, 9, 2), dtype, 2)
    x = lw.lstsq(a, b).x
    for end in ENDS:
        power = exponent(dtype, end)
        found = lw.lstsq(scaled(a, power).astype(dtype), scaled(b, power).astype(dtype))
        check(found.x, x, 0, 9)
        assert (found.rank == 5).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_extreme_matrix_leaves_the_others_alone(dtype):
    n = 24
    a, b = matrix("general", n, dtype), whole_numbers((2, n, 2), dtype, 3)
    x = lw.solve(a, b)
    mixture = a.copy()
    mixture[1] = scaled(a[1], exponent(dtype, "subnormal")).astype(dtype)
    right = b.copy()
    right[1] = scaled(b[1], exponent(dtype, "subnormal")).astype(dtype)
    for overwrite in (False, True):
        found = lw.solve(mixture.copy(), right, overwrite=overwrite)
        assert found[0].tobytes() == x[0].tobytes()
        check(found, x, 0, n)


def test_elements_far_apart():
    """The largest element alone does not decide: scaled to one it would take the smallest out of the range."""
    a = np.diag([1e300, 1.0, 1e-200])
    assert np.allclose(lw.solve(a, np.diag(a)), 1, rtol=1e-15)
    assert np.array_equal(lw.cholesky(a), np.sqrt(a))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e300])
def test_triangle_that_is_not_read(poison):
    n = 20
    a = matrix("pos", n, "float64")
    extreme = np.tril(np.ldexp(a, -1060)) + np.triu(np.full((n, n), poison), 1)
    assert np.isfinite(lw.cholesky(extreme)).all()
    check(lw.eigvalsh(extreme), lw.eigvalsh(a), -1060, n)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: lw.slogdet(a, assume="upper", on_fail="nan"),
        lambda a: lw.factor(a, assume="general", on_fail="nan").slogdet(),
        lambda a: lw.factor(a, assume="lower", on_fail="nan").slogdet(),
    ],
)
@pytest.mark.parametrize("flaw", [np.nan, np.inf, complex(np.inf, 1)])
def test_failed_matrices_do_not_warn(call, flaw):
    a = np.full((2, 2), flaw)
    assert not np.isfinite(call(a).logabsdet)


def test_unknown_engine_is_refused_in_the_name_of_the_call():
    a = np.eye(3)
    calls = {
        "solve": lambda: lw.solve(a, a, assume="lower", engine="fastest"),
        "polar": lambda: lw.polar(a, engine="fastest"),
        "factor": lambda: lw.factor(a, assume="general", engine="fastest"),
        "slogdet": lambda: lw.slogdet(a, assume="lower", engine="fastest"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"^{name}: engine='fastest' is not known"):
            call()
