"""cholesky and cholesky_ex: every framework, device, dtype and shape, right answers and clear failures."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, other_triangle, poison, residual, spd

# 0, 1, around the SIMD, warp and block sizes, and primes
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129)
BATCHES = ((), (0,), (1,), (3,), (2, 3))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reconstructs(backend, dtype, upper):
    for n in SIZES:
        a = spd((3, n, n), dtype, seed=n)
        given = backend.put(poison(a, upper))
        factor = lw.cholesky(given, upper=upper)
        assert type(factor) is type(given)
        assert factor.dtype == given.dtype
        l = backend.get(factor)
        assert l.shape == a.shape
        assert residual(a, l, upper) < 10, n
        assert not other_triangle(l, upper).any(), n


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [0, 1, 6, 40])
def test_batch_shapes(backend, batch, n):
    a = spd((*batch, n, n), "float64")
    l = backend.get(lw.cholesky(backend.put(a)))
    assert l.shape == a.shape
    assert residual(a, l, False) < 10
    factor, info = lw.cholesky_ex(backend.put(a))
    assert backend.get(factor).shape == a.shape
    assert backend.get(info).shape == batch
    assert backend.get(info).dtype == np.int32
    assert not backend.get(info).any()


def test_known_answer(backend):
    i = np.arange(3)
    a = (i[:, None] + i) / 9.0
    a[i, i] = i + 1
    l = backend.get(lw.cholesky(backend.put(a)))
    expected = [[1, 0, 0], [0.1111111, 1.409842, 0], [0.2222222, 0.2189196, 1.703729]]
    assert np.abs(l - expected).max() < 5e-7  # the digits as they were printed


@pytest.mark.parametrize("dtype", DTYPES)
def test_closed_form(backend, dtype):
    """A = 2^-|i-j| has the factor 2^-(i-j) sqrt(3)/2, first column 2^-i."""
    n = 37
    i = np.arange(n)
    a = 2.0 ** -np.abs(i[:, None] - i)
    expected = np.tril(2.0 ** -(i[:, None] - i).clip(0)) * np.where(i == 0, 1, np.sqrt(3) / 2)
    l = backend.get(lw.cholesky(backend.put(a.astype(dtype))))
    assert np.abs(l - expected).max() < 10 * n * np.finfo(dtype).eps


@pytest.mark.parametrize("n", [5, 20, 70, 300])
def test_batch_equals_single_calls(backend, n):
    a = spd((5, n, n), "float64", seed=n)
    together = backend.get(lw.cholesky(backend.put(a)))
    for m in range(5):
        alone = backend.get(lw.cholesky(backend.put(a[m])))
        assert np.abs(together[m] - alone).max() < 10 * n * np.finfo("float64").eps * np.abs(alone).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4, 12, 40, 100])
def test_same_bits_anywhere_in_the_batch(backend, dtype, n):
    one = spd((n, n), dtype, seed=3)
    a = spd((37, n, n), dtype, seed=4)
    a[[0, 7, 20, 36]] = one
    l = backend.get(lw.cholesky(backend.put(a), engine="batched"))
    for m in (7, 20, 36):
        assert np.array_equal(l[0], l[m])


BAD = {
    "negative": lambda a, k: a.__setitem__((k, k), -1),
    "nan on the diagonal": lambda a, k: a.__setitem__((k, k), np.nan),
    "inf on the diagonal": lambda a, k: a.__setitem__((k, k), np.inf),
    "minus inf on the diagonal": lambda a, k: a.__setitem__((k, k), -np.inf),
    "zero": lambda a, k: (a.__setitem__((k, slice(None)), 0), a.__setitem__((slice(None), k), 0)),
    "nan off the diagonal": lambda a, k: (a.__setitem__((k, 0), np.nan), a.__setitem__((0, k), np.nan)),
    "inf off the diagonal": lambda a, k: (a.__setitem__((k, 0), np.inf), a.__setitem__((0, k), np.inf)),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [3, 8, 20, 40, 140, 300])
def test_failure_is_named_and_stays_alone(backend, kind, upper, n):
    dtype = "float64" if n != 20 else "complex64"
    a = spd((4, n, n), dtype, seed=n)
    k = n - 2
    BAD[kind](a[2], k)
    good = [0, 1, 3]
    given = backend.put(poison(a, upper))

    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.cholesky(given, upper=upper)
    error = caught.value
    assert error.batch_index == (2,)
    assert error.minor == k + 1
    assert error.nonfinite == ("nan" in kind or "inf" in kind)
    assert "matrix 2 of 4" in str(error)
    assert isinstance(error, np.linalg.LinAlgError)

    l = backend.get(lw.cholesky(given, upper=upper, on_fail="nan"))
    assert np.isnan(l[2]).all()
    assert residual(a[good], l[good], upper) < 10
    factor, info = lw.cholesky_ex(given, upper=upper)
    assert backend.get(info).tolist() == [0, 0, k + 1, 0]
    assert np.isnan(backend.get(factor)[2]).all()


def test_failure_of_a_single_matrix_and_of_many(backend):
    with pytest.raises(lw.NotPositiveDefiniteError, match="the matrix is not positive definite") as caught:
        lw.cholesky(backend.put(-np.eye(3)))
    assert caught.value.batch_index == ()
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.cholesky(backend.put(np.array([[np.eye(3)] * 2, [-np.eye(3)] * 2])))
    assert caught.value.batch_index == (1, 0)
    assert caught.value.failures == 2
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.batch_index, again.minor, str(again)) == ((1, 0), 1, str(caught.value))


def test_nonfinite_is_seen_behind_an_earlier_failure(backend):
    a = spd((20, 20), "float64")
    a[1, 1] = -1
    a[15, 3] = np.nan
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.cholesky(backend.put(a))
    assert caught.value.minor == 2
    assert caught.value.nonfinite


def test_overwrite(backend):
    for shape in ((4, 6, 6), (300, 300)):
        a = spd(shape, "float64")
        l = backend.get(lw.cholesky(backend.put(a.copy()), overwrite=True))
        assert residual(a, l, False) < 10
    a[5, 2] = np.nan
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.cholesky(backend.put(a), overwrite=True)
    assert caught.value.nonfinite


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "words"),
    [
        ((3, 4), "float64", ValueError, "square"),
        ((5, 3, 2), "float64", ValueError, "square"),
        ((3,), "float64", ValueError, "(..., n, n)"),
        ((), "float64", ValueError, "(..., n, n)"),
        ((3, 3), "int32", TypeError, "int32"),
        ((3, 3), "bool", TypeError, "bool"),
        ((3, 3), "float16", TypeError, "float16"),
    ],
)
def test_bad_arguments(backend, shape, dtype, error, words):
    for function in (lw.cholesky, lw.cholesky_ex):
        with pytest.raises(error, match="cholesky") as caught:
            function(backend.put(np.ones(shape, dtype)))
        assert words in str(caught.value)


def test_bad_choices(backend):
    a = backend.put(np.eye(3))
    with pytest.raises(ValueError, match="'auto', 'batched'"):
        lw.cholesky(a, engine="fastest")
    with pytest.raises(ValueError, match="'raise', 'nan'"):
        lw.cholesky(a, on_fail="ignore")
    wrong = "cusolver" if backend.device == "cpu" else "lapack"
    with pytest.raises(ValueError, match="cannot take this call"):
        lw.cholesky(a, engine=wrong)


@pytest.mark.parametrize("given", [[[1.0]], (1.0,), 3.0, None, "a", np.ma.array(np.eye(2))])
def test_not_an_array(given):
    with pytest.raises(TypeError, match="expected an array"):
        lw.cholesky(given)


def test_engines_agree(backend):
    names = ["batched", "lapack"] if backend.device == "cpu" else ["batched", "tiled", "cusolver"]
    for dtype in DTYPES:
        for n in (1, 5, 33, 100):
            a = spd((3, n, n), dtype, seed=n)
            for upper in (False, True):
                reference = None
                for name in names:
                    l = backend.get(lw.cholesky(backend.put(poison(a, upper)), upper=upper, engine=name))
                    assert residual(a, l, upper) < 10
                    assert not other_triangle(l, upper).any()
                    reference = l if reference is None else reference
                    assert np.abs(l - reference).max() <= 10 * n * np.finfo(dtype).eps * np.abs(reference).max()


@pytest.mark.slow
def test_sizes_are_64_bit():
    """n = 46341 is the first order whose square does not fit in 32 bits."""
    n = 46341
    a = np.zeros((n, n), np.float32)
    i = np.arange(n)
    a[i, i] = 4
    a[i[1:], i[:-1]] = 1
    l = lw.cholesky(a, overwrite=True)
    assert np.isfinite(l[-1, -1]) and l[-1, -1] > 1
    assert abs(l[-1, -1] ** 2 + l[-1, -2] ** 2 - 4) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["cusolver", "tiled"])
def test_sizes_are_64_bit_on_a_gpu(engine):
    import torch

    n = 46400
    a = torch.zeros((n, n), device="cuda")
    a.diagonal().fill_(4)
    a.diagonal(-1).fill_(1)
    l = lw.cholesky(a, engine=engine)
    corner = l[-2:, -2:].double().cpu()
    assert abs(corner[1, 1] ** 2 + corner[1, 0] ** 2 - 4) < 1e-5
    assert l[0, -1].item() == 0
