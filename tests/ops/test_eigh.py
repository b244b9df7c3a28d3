"""eigh, eigvalsh and eigh_ex: every framework, device, dtype and shape, right answers and clear failures."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, hermitian, poison, random, spd, x64

# 0, 1, around the SIMD, warp and block sizes, and primes
SIZES = (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 64, 65, 97, 129)
BATCHES = ((), (0,), (1,), (3,), (2, 3))


def only_numpy_on_the_cpu(backend):
    if backend.device == "cpu" and backend.name != "numpy":
        pytest.skip("the same code as for NumPy")


def orders(backend, sizes):
    """Fewer where the same native code was tried through NumPy: each takes a compilation in JAX."""
    return sizes if backend.name == "numpy" or backend.device == "cuda" else sizes[::4]


def eigen_residual(a: np.ndarray, w: np.ndarray, v: np.ndarray) -> float:
    """max of ||A V - V W||, ||V^H V - I|| and, for all of them, the error of the trace; over n eps, scaled."""
    n, k = v.shape[-2:]
    if 0 in (*a.shape, k):
        return 0.0
    eps = np.finfo(a.dtype).eps
    wide = "complex128" if a.dtype.kind == "c" else "float64"
    a, v, w = a.astype(wide), v.astype(wide), w.astype("float64")
    norm = np.abs(np.linalg.eigvalsh(a)).max(-1)[..., None, None] + np.finfo("float64").tiny
    residual = np.abs(a @ v - v * w[..., None, :]) / norm
    gram = np.abs(v.swapaxes(-1, -2).conj() @ v - np.eye(k))
    return float(max(residual.max(), gram.max()) / (n * eps))


def value_error(a: np.ndarray, w: np.ndarray, part: slice = slice(None)) -> float:
    """max |w - exact| over n eps ||A||."""
    exact = np.linalg.eigvalsh(a.astype("complex128" if a.dtype.kind == "c" else "float64"))
    if exact.size == 0:
        return 0.0
    scale = np.abs(exact).max() * a.shape[-1] * np.finfo(a.dtype).eps + np.finfo("float64").tiny
    return float(np.abs(w - exact[..., part]).max(initial=0) / scale)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reconstructs(backend, dtype, upper):
    for n in orders(backend, SIZES):
        a = hermitian((3, n, n), dtype, seed=n)
        given = backend.put(poison(a, upper))
        w, v = lw.eigh(given, upper=upper)
        assert type(v) is type(given) and v.dtype == given.dtype
        values, vectors = backend.get(w), backend.get(v)
        assert values.dtype == np.finfo(dtype).dtype
        assert values.shape == (3, n) and vectors.shape == (3, n, n)
        assert (np.diff(values) >= 0).all()
        assert eigen_residual(a, values, vectors) < 10, n
        assert value_error(a, values) < 10, n
        alone = backend.get(lw.eigvalsh(given, upper=upper))
        assert value_error(a, alone) < 10, n


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("subset", [slice(-3, None), slice(2), slice(2, 5), slice(-1000, 1), slice(0, 1000), slice(-1, None)])
def test_subsets(backend, dtype, subset):
    for n in orders(backend, (6, 20, 150)):
        for batch in ((), (4,)):
            a = hermitian((*batch, n, n), dtype, seed=n)
            given = backend.put(poison(a, False))
            w, v = (backend.get(x) for x in lw.eigh(given, subset=subset))
            k = len(range(n)[subset])
            assert w.shape == (*batch, k) and v.shape == (*batch, n, k)
            assert eigen_residual(a, w, v) < 10
            assert value_error(a, w, subset) < 10
            assert value_error(a, backend.get(lw.eigvalsh(given, subset=subset)), subset) < 10
            assert not backend.get(lw.eigh_ex(given, subset=subset).info).any()


def test_a_subset_owns_just_its_memory():
    a = hermitian((200, 200), "float64")
    for x in lw.eigh(a, subset=slice(-3, None)):
        assert x.base is None


def test_window(backend):
    a = hermitian((50, 50), "float64", seed=3)
    exact = np.linalg.eigvalsh(a)
    low, high = (exact[10] + exact[11]) / 2, (exact[20] + exact[21]) / 2
    w, v = (backend.get(x) for x in lw.eigh(backend.put(a), window=(low, high)))
    assert w.shape == (10,) and v.shape == (50, 10)
    assert eigen_residual(a, w, v) < 10
    assert np.abs(w - exact[11:21]).max() < 1e-12
    w, v = lw.eigh(backend.put(a), window=(1e6, 2e6))
    assert backend.get(w).shape == (0,) and backend.get(v).shape == (50, 0)
    assert len(backend.get(lw.eigvalsh(backend.put(np.diag([1.0, 2.0, 3.0])), window=(1.0, 3.0)))) == 2  # (low, high]
    with pytest.raises(ValueError, match="one matrix"):
        lw.eigh(backend.put(a[None]), window=(low, high))
    with pytest.raises(ValueError, match="is empty"):
        lw.eigh(backend.put(a), window=(2, 1))
    with pytest.raises(TypeError, match="pair of numbers"):
        lw.eigh(backend.put(a), window=3)
    with pytest.raises(ValueError, match="not both"):
        lw.eigh(backend.put(a), window=(0, 1), subset=slice(3))
    with pytest.raises(ValueError, match="not with a window"):
        lw.eigh(backend.put(a), window=(0, 1), certify=True)
    for i in range(5, 40, 7):  # bounds on eigenvalues themselves
        bounds = exact[i], exact[i + 3]
        inside = backend.get(lw.eigh(backend.put(a), window=bounds)[0])
        assert (inside > bounds[0]).all() and (inside <= bounds[1]).all() and 2 <= len(inside) <= 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_generalised(backend, dtype, upper):
    n = 30
    a, b = hermitian((2, n, n), dtype, seed=1), spd((2, n, n), dtype, seed=2)
    w, x = (backend.get(y) for y in lw.eigh(backend.put(poison(a, upper)), b=backend.put(poison(b, upper)), upper=upper))
    eps = np.finfo(dtype).eps
    condition = np.linalg.cond(b.astype("complex128")).max()
    scale = n * eps * np.abs(a).max() * np.abs(x).max() * condition
    assert np.abs(a @ x - b @ x * w[:, None, :]).max() < 10 * scale
    assert np.abs(x.swapaxes(-1, -2).conj() @ b @ x - np.eye(n)).max() < 10 * n * eps * condition
    some = backend.get(lw.eigvalsh(backend.put(a), b=backend.put(b), subset=slice(-3, None)))
    assert np.abs(some - w[:, -3:]).max() < 10 * n * eps * np.abs(w).max() * condition


def test_generalised_failures(backend):
    a = np.eye(3)
    with pytest.raises(lw.NotPositiveDefiniteError, match="eigh: in b"):
        lw.eigh(backend.put(a), b=backend.put(-a))
    with pytest.raises(ValueError, match="same shape"):
        lw.eigh(backend.put(a), b=backend.put(np.eye(4)))
    with pytest.raises(TypeError, match="b has dtype int32"):
        lw.eigh(backend.put(a), b=backend.put(a.astype("int32")))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [0, 1, 6, 70])
def test_batch_shapes(backend, batch, n):
    a = hermitian((*batch, n, n), "float64")
    w, v, info = (backend.get(x) for x in lw.eigh_ex(backend.put(a)))
    assert w.shape == (*batch, n) and v.shape == a.shape and info.shape == batch
    assert info.dtype == np.int32 and not info.any()
    assert eigen_residual(a, w, v) < 10


def wilkinson(n: int) -> np.ndarray:
    return np.diag(np.abs(np.arange(n) - (n - 1) / 2)) + np.eye(n, k=1) + np.eye(n, k=-1)


def with_spectrum(values: np.ndarray, seed: int = 0) -> np.ndarray:
    q, _ = np.linalg.qr(random((len(values), len(values)), "float64", seed))
    a = (q * values) @ q.T
    return (a + a.T) / 2


def glued_wilkinson(n: int) -> np.ndarray:
    block = min(7, n)
    a = np.zeros((n, n))
    for i in range(0, n, block):
        size = min(block, n - i)
        a[i : i + size, i : i + size] = wilkinson(size)
        if i:
            a[i, i - 1] = a[i - 1, i] = 1e-8
    return a


def gaussian_kernel(n: int) -> np.ndarray:
    x = random((n, 3), "float64", 5)
    return np.exp(-((x[:, None] - x) ** 2).sum(-1) / 2)


HARD = {
    "clustered": lambda n: with_spectrum(np.r_[np.full(n // 2, 1.0), 1 + 1e-10 * np.arange(n - n // 2)]),
    "graded": lambda n: with_spectrum(10.0 ** np.linspace(0, -14, n)),
    "rank one": lambda n: np.ones((n, n)),
    "low rank": lambda n: with_spectrum(np.r_[np.zeros(n - n // 4), np.arange(1, n // 4 + 1)]),
    "zero": lambda n: np.zeros((n, n)),
    "identity": np.eye,
    "diagonal": lambda n: np.diag(random((n,), "float64", 9)),
    "wilkinson": wilkinson,
    "glued wilkinson": glued_wilkinson,
    "kernel": gaussian_kernel,
    "tiny": lambda n: 1e-30 * with_spectrum(np.linspace(-1, 1, n)),
    "huge": lambda n: 1e30 * with_spectrum(np.linspace(-1, 1, n)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", HARD)
def test_hard_matrices(backend, dtype, kind):
    only_numpy_on_the_cpu(backend)
    for n in orders(backend, (2, 3, 7, 8, 16, 21, 33, 70)):
        a = np.stack([HARD[kind](n), spd((n, n), "float64")]).astype(dtype)
        given = backend.put(a)
        w, v = (backend.get(x) for x in lw.eigh(given))
        for m in range(2):
            assert eigen_residual(a[m], w[m], v[m]) < 10, (n, m)
            assert value_error(a[m], w[m]) < 10, (n, m)


def test_low_rank_float32_in_a_large_batch(backend):
    """Known to crash elsewhere."""
    x = random((300, 32, 2), "float32")
    a = x @ x.swapaxes(-1, -2)
    w, v = (backend.get(y) for y in lw.eigh(backend.put(a)))
    assert max(eigen_residual(a[m], w[m], v[m]) for m in range(300)) < 10


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 3, 6, 12, 40])
def test_same_bits_anywhere_in_the_batch(backend, dtype, n):
    only_numpy_on_the_cpu(backend)
    one = hermitian((n, n), dtype, seed=3)
    a = hermitian((37, n, n), dtype, seed=4)
    a[[0, 7, 20, 36]] = one
    w, v = (backend.get(x) for x in lw.eigh(backend.put(a), engine="batched"))
    for m in (7, 20, 36):
        assert np.array_equal(w[0], w[m]) and np.array_equal(v[0], v[m])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [2, 3, 8, 20, 40, 140])
def test_failure_is_named_and_stays_alone(backend, bad, upper, n):
    dtype = "float64" if n != 20 else "complex64"
    a = hermitian((4, n, n), dtype, seed=n)
    a[2, n - 1, 0] = a[2, 0, n - 1] = bad
    good = [0, 1, 3]
    given = backend.put(poison(a, upper))
    with pytest.raises(lw.ConvergenceError, match="matrix 2 of 4 holds NaN or Inf") as caught:
        lw.eigh(given, upper=upper)
    assert caught.value.batch_index == (2,) and caught.value.nonfinite
    assert isinstance(caught.value, np.linalg.LinAlgError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    w, v = (backend.get(x) for x in lw.eigh(given, upper=upper, on_fail="nan"))
    assert np.isnan(w[2]).all() and np.isnan(v[2]).all()
    assert eigen_residual(a[good], w[good], v[good]) < 10
    info = backend.get(lw.eigh_ex(given, upper=upper).info)
    assert info[2] != 0 and not info[good].any()
    with pytest.raises(lw.ConvergenceError):
        lw.eigvalsh(given, upper=upper)


def test_overwrite(backend):
    for shape in ((4, 6, 6), (200, 200)):
        for subset in (None, slice(-2, None)):
            a = hermitian(shape, "float64")
            w, v = (backend.get(x) for x in lw.eigh(backend.put(a.copy()), overwrite=True, subset=subset))
            assert eigen_residual(a, w, v) < 10
    a[5, 2] = np.nan
    with pytest.raises(lw.ConvergenceError) as caught:
        lw.eigvalsh(backend.put(a), overwrite=True)
    assert caught.value.nonfinite


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "words"),
    [
        ((3, 4), "float64", ValueError, "square"),
        ((3,), "float64", ValueError, "(..., n, n)"),
        ((3, 3), "int32", TypeError, "int32"),
        ((3, 3), "float16", TypeError, "float16"),
    ],
)
def test_bad_arguments(backend, shape, dtype, error, words):
    for function in (lw.eigh, lw.eigvalsh, lw.eigh_ex):
        with pytest.raises(error, match="eig") as caught:
            function(backend.put(np.ones(shape, dtype)))
        assert words in str(caught.value)


def test_bad_choices(backend):
    a = backend.put(np.eye(6))
    with pytest.raises(ValueError, match="selects none of 6"):
        lw.eigh(a, subset=slice(4, 2))
    with pytest.raises(ValueError, match="has a step"):
        lw.eigh(a, subset=slice(0, 6, 2))
    with pytest.raises(TypeError, match="is not a slice"):
        lw.eigh(a, subset=3)
    with pytest.raises(TypeError, match="whole numbers"):
        lw.eigh(a, subset=slice(1.5))
    with pytest.raises(ValueError, match="is not known"):
        lw.eigh(a, engine="fastest")
    with pytest.raises(ValueError, match=r"slice\(-k, None\)"):
        lw.eigh(a, engine="krylov")
    with pytest.raises(ValueError, match="'raise', 'nan'"):
        lw.eigh(a, on_fail="ignore")


def test_engines_agree(backend):
    names = ["batched", "lapack"] if backend.device == "cpu" else ["batched", "cusolver"]
    for dtype in DTYPES:
        for n in orders(backend, (3, 1, 16, 64)):
            a = hermitian((3, n, n), dtype, seed=n)
            for name in names:
                for subset in (None, slice(-2, None)):
                    w, v = (backend.get(x) for x in lw.eigh(backend.put(poison(a, False)), engine=name, subset=subset))
                    assert eigen_residual(a, w, v) < 10, (name, n, dtype)
                    assert value_error(a, w, subset or slice(None)) < 10, (name, n, dtype)


def test_transposed_and_strided_inputs(backend):
    for dtype in DTYPES:
        a = hermitian((6, 20, 20), dtype)
        turned = backend.put(np.ascontiguousarray(poison(a, True).swapaxes(-1, -2)))
        turned = turned.mT if hasattr(turned, "mT") else turned.swapaxes(-1, -2) if backend.name != "tensorflow" else None
        if turned is not None:
            w, v = (backend.get(x) for x in lw.eigh(turned, upper=True))
            assert eigen_residual(a, w, v) < 10
        w, v = (backend.get(x) for x in lw.eigh(backend.put(a)[::2]))
        assert eigen_residual(a[::2], w, v) < 10


def test_byte_swapped_and_read_only():
    a = hermitian((5, 5), "float64")
    w, v = lw.eigh(a.astype(">f8"))
    assert eigen_residual(a, w, v) < 10
    a.flags.writeable = False
    before = a.copy()
    assert eigen_residual(a, *lw.eigh(a, overwrite=True)) < 10
    assert np.array_equal(a, before)


KERNEL_SIZE = 300


@cache
def krylov_cases() -> dict[str, np.ndarray]:
    n = KERNEL_SIZE
    x = random((n, 2 * n), "float64", 8)
    return {
        "kernel": gaussian_kernel(n),
        "wishart": x @ x.T / (2 * n),
        "negative definite": -with_spectrum(np.linspace(1, 2, n)),
        "clustered top": with_spectrum(np.r_[np.linspace(0, 1, n - 8), np.full(8, 2.0)]),
        "low rank": with_spectrum(np.r_[np.zeros(n - 3), 1, 2, 3]),
        "graded": with_spectrum(10.0 ** np.linspace(0, -14, n)),
        "identity": np.eye(n),
        "zero": np.zeros((n, n)),
        "diagonal": np.diag(np.arange(n, dtype=float)),
        "huge": 1e30 * gaussian_kernel(n),
        "tiny": 1e-30 * gaussian_kernel(n),
    }


@pytest.mark.parametrize("kind", krylov_cases())
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_krylov(backend, kind, dtype, caplog):
    caplog.set_level("INFO", "lapwing")
    if backend.device == "cpu" and backend.name != "numpy" and kind != "kernel":
        pytest.skip("the same code as for NumPy")
    a = krylov_cases()[kind].astype(dtype)
    for subset in (slice(-5, None), slice(3)):
        given = backend.put(poison(a, False))
        w, v = (backend.get(x) for x in lw.eigh(given, subset=subset, engine="krylov"))
        assert eigen_residual(a, w, v) < 10, subset
        assert value_error(a, w, subset) < 10, subset
        if kind in ("kernel", "low rank") and subset.stop is None and backend.name in ("numpy", "torch"):
            assert "took" in caplog.text  # and was not left to the direct routine
    assert value_error(a, backend.get(lw.eigvalsh(given, subset=subset, engine="krylov")), subset) < 10


def test_krylov_repeats_its_bits_and_sees_nan(backend):
    a = gaussian_kernel(300)
    first, second = (backend.get(lw.eigh(backend.put(a), subset=slice(-4, None), engine="krylov")[1]) for _ in range(2))
    assert np.array_equal(first, second)
    a[7, 3] = np.nan
    with pytest.raises(lw.ConvergenceError) as caught:
        lw.eigh(backend.put(a), subset=slice(-4, None), engine="krylov")
    assert caught.value.nonfinite


def test_krylov_says_what_it_did(backend, caplog):
    a = gaussian_kernel(600)
    with caplog.at_level("INFO", "lapwing"):
        lw.eigh(backend.put(a), subset=slice(-4, None), engine="krylov")
    assert "you asked for it" in caplog.text
    if backend.name not in ("jax", "tensorflow"):
        assert "krylov took" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "lapwing"):
        lw.eigh(backend.put(np.eye(3)))
    assert "krylov" not in caplog.text


def test_certify(backend):
    a = gaussian_kernel(300)
    for subset in (slice(-4, None), slice(4)):
        w, v = (backend.get(x) for x in lw.eigh(backend.put(a), subset=subset, certify=True))
        assert eigen_residual(a, w, v) < 10 and value_error(a, w, subset) < 10
    assert backend.get(lw.eigvalsh(backend.put(a), subset=slice(-4, None), certify=True)).shape == (4,)
    with pytest.raises(ValueError, match="one end"):
        lw.eigh(backend.put(a), subset=slice(4, 8), certify=True)
    with pytest.raises(ValueError, match="one matrix"):
        lw.eigh(backend.put(a[None]), subset=slice(4), certify=True)


def test_certify_finds_a_missed_value(monkeypatch, caplog):
    from lapwing.ops import spectrum

    a = gaussian_kernel(100)
    w, v = np.linalg.eigh(a)
    framework = __import__("lapwing.frameworks.numpy", fromlist=["x"])
    assert spectrum._none_beyond(framework, a, w[-4:], v[:, -4:], False, True)
    assert not spectrum._none_beyond(framework, a, w[-5:-1], v[:, -5:-1], False, True)
    assert not spectrum._none_beyond(framework, a, w[[95, 97, 98, 99]], v[:, [95, 97, 98, 99]], False, True)
    assert not spectrum._none_beyond(framework, -a, -w[-5:-1][::-1], v[:, -5:-1][:, ::-1], False, False)


def test_operator(backend):
    n = 600
    a = with_spectrum(np.linspace(0, 1, n) ** 2)
    matrix = backend.put(a)
    shapes = []

    def product(x):
        assert type(x).__module__.partition(".")[0] == type(matrix).__module__.partition(".")[0]
        shapes.append(tuple(x.shape))
        return matrix @ x

    given = lw.operator(product, (n, n), "float64", like=matrix)
    w, v = (backend.get(x) for x in lw.eigh(given, subset=slice(-5, None)))
    assert eigen_residual(a, w, v) < 10 and value_error(a, w, slice(-5, None)) < 10
    assert {len(s) for s in shapes} == {2}
    assert value_error(a, backend.get(lw.eigvalsh(given, subset=slice(3))), slice(3)) < 10


def test_small_operators(backend):
    """The matrix itself is found by its products."""
    for n, subset in ((1, slice(-1, None)), (5, slice(1)), (20, slice(-3, None)), (100, slice(40))):
        d = np.arange(1.0, n + 1)
        column = backend.put(d[:, None])
        w, v = lw.eigh(lw.operator(lambda x, c=column: c * x, (n, n), "float64", like=column), subset=subset)
        assert np.allclose(backend.get(w), d[subset]) and backend.get(v).shape == (n, len(d[subset]))


def test_operator_ends_and_may_change_what_it_gets():
    n = 520
    hard = with_spectrum(np.sort(10.0 ** np.linspace(0, -14, n)))
    given = lw.operator(lambda x: hard @ x, (n, n), "float64")
    with pytest.raises(lw.ConvergenceError, match="fewer values"):
        lw.eigh(given, subset=slice(4))
    assert np.isnan(lw.eigh(given, subset=slice(4), on_fail="nan").eigenvalues).all()
    d = np.r_[np.linspace(0, 1, n - 3), 5, 6, 7]

    def in_place(x):
        x *= d[:, None]
        return x

    assert np.allclose(lw.eigvalsh(lw.operator(in_place, (n, n), "float64"), subset=slice(-3, None)), [5, 6, 7])


def test_operator_failures():
    d = np.arange(200.0)
    with pytest.raises(ValueError, match="certify=True"):
        lw.eigh(lw.operator(lambda x: d[:, None] * x, (200, 200), "float64"), subset=slice(3), certify=True)
    with pytest.raises(TypeError, match="complex128 for a block of float64"):
        lw.eigh(lw.operator(lambda x: 1j * x, (600, 600), "float64"), subset=slice(3))
    with pytest.raises(TypeError, match="not a tuple"):
        lw.operator(lambda x: x, 5, "float64")
    with pytest.raises(ValueError, match="needs a subset"):
        lw.eigh(lw.operator(lambda x: d[:, None] * x, (200, 200), "float64"))
    with pytest.raises(ValueError, match="needs the matrix itself"):
        lw.eigh(lw.operator(lambda x: x, (200, 200), "float64"), subset=slice(3), engine="lapack")
    with pytest.raises(ValueError, match="returned shape"):
        lw.eigh(lw.operator(lambda x: x[:5], (200, 200), "float64"), subset=slice(3))
    with pytest.raises(ZeroDivisionError):
        lw.eigh(lw.operator(lambda x: x / (1 // 0), (200, 200), "float64"), subset=slice(3))
    with pytest.raises(ValueError, match="shape"):
        lw.operator(lambda x: x, (3, 4), "float64")
    with pytest.raises(TypeError, match="matvec must be a function"):
        lw.operator(3, (3, 3), "float64")
    with pytest.raises(lw.ConvergenceError):
        lw.eigh(lw.operator(lambda x: x * np.nan, (200, 200), "float64"), subset=slice(3))


def test_explain_names_every_engine():
    plan = lw.explain(lw.eigh, lw.spec((5000, 5000)), subset=slice(-10, None))
    engines = {plan.engine, *[other.engine for other in plan.others]}
    assert engines == {"krylov", "lapack"}
    assert plan.host_bytes > 0 and all(other.host_bytes > 0 for other in plan.others)
    assert "10 of 5000 eigenvalues" in str(plan)
    assert lw.explain(lw.eigvalsh, lw.spec((100000, 3, 3))).engine == "batched"
    assert lw.explain(lw.eigh, lw.spec((2000, 2000))).engine == "lapack"
    with pytest.raises(ValueError, match="too large"):
        lw.explain(lw.eigh, lw.spec((10**10, 10**10)))


def test_host_memory_that_runs_out():
    code = """
import resource, numpy as np, lapwing as lw
a = np.eye(3000)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20, -1))
try:
    lw.eigh(a, engine="lapack", subset=slice(5))
except MemoryError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "engine lapack needs a workspace of" in answer.stdout


def test_out_of_memory_is_said_in_words(monkeypatch):
    from lapwing.frameworks import numpy as front

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(front, "apply", full)
    with pytest.raises(MemoryError, match="engine lapack needs a workspace") as caught:
        lw.eigh(np.eye(3000), subset=slice(-3, None), engine="lapack")
    assert "hint: engine='krylov' needs" in str(caught.value)


@pytest.mark.parametrize(
    "dtype, scale", [("float32", 0), ("float64", 0), ("float32", 1e20), ("float32", 1e-30), ("float64", 1e200)]
)
@pytest.mark.parametrize("part", [slice(-2, None), slice(2)])
def test_certified_at_any_scale(dtype, scale, part, caplog):
    """A zero matrix, and matrices whose squared norm is out of range."""
    x = np.random.default_rng(0).standard_normal((20, 20))
    a = ((x + x.T) * scale).astype(dtype)
    with caplog.at_level("WARNING", logger="lapwing"):
        w, _ = lw.eigh(a, subset=part, certify=True)
    assert not caplog.records
    wanted = np.linalg.eigvalsh(a.astype("float64"))
    assert np.abs(w / (scale or 1) - wanted[part] / (scale or 1)).max() <= 10 * 20 * np.finfo(dtype).eps * (
        np.abs(wanted).max() / (scale or 1)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("upper, overwrite", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("part", [slice(42, 46), slice(3), slice(-5, None), slice(14, 30)])
def test_parts_of_clusters_by_lapack(dtype, upper, overwrite, part):
    """Two eigenvalues, 16 and 32 times: LAPACK's routine for a part of the spectrum may find no vectors in such clusters."""
    rng = np.random.default_rng(5)
    n, eps = 48, np.finfo(dtype).eps
    w = np.sort(np.where(np.arange(n) % 3 == 1, -1.0, 1.0))
    for _ in range(6):
        q = np.linalg.qr(rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n)) * dtype.startswith("c"))[0]
        a = (q * w) @ q.conj().T
        a = (a + a.conj().T) / 2
        a = (a if dtype.startswith("c") else a.real).astype(dtype)
        poisoned = a.copy()
        poisoned[np.tril_indices(n, -1) if upper else np.triu_indices(n, 1)] = np.nan
        values, v = lw.eigh(poisoned, subset=part, upper=upper, overwrite=overwrite, engine="lapack")
        assert np.abs(values - w[part]).max() <= 10 * n * eps
        assert np.linalg.norm(a @ v - v * values) <= 10 * n * eps
        assert np.linalg.norm(v.conj().T @ v - np.eye(len(values))) <= 10 * n * eps
        assert np.array_equal(lw.eigvalsh(a, subset=part, upper=upper, engine="lapack").shape, values.shape)


def test_certified_subnormal_numbers_in_jax():
    """XLA flushes subnormal numbers to zero, so the proof must not be computed by it."""
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(0).standard_normal((33, 33))
    a = ((x + x.T) * 2.0**-1020).astype("float64")
    with x64():
        w = np.asarray(lw.eigvalsh(jax.numpy.asarray(a), subset=slice(5), certify=True))
    assert np.allclose(w * 2.0**1000, np.linalg.eigvalsh(a * 2.0**1000)[:5], rtol=1e-9)
