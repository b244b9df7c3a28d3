"""One SVD by way of the bidiagonal form (native/cpu/bidiagonal.cc), which engine lapack uses on the CPU."""

import numpy as np
import pytest

from lapwing.core.lapack import LIBRARY
from lapwing.core.native import DTYPE_CODE, OPS, native
from solve_checks import adjoint, exact, info_of, norm
from svd_checks import KINDS, svd_matrices

pytestmark = pytest.mark.skipif(native is None or not LIBRARY, reason="no native core, or no LAPACK")

LAPACK = 1
DTYPES = ("float32", "float64", "complex64", "complex128")
# the vectors of an instruction set and one more or less; twice as tall as wide and more, where QR comes first
SHAPES = [(3, 3), (4, 3), (3, 4), (7, 7), (8, 8), (9, 8), (15, 16), (17, 17), (33, 32), (20, 41), (90, 33), (64, 66)]
# more than the second cache holds: panels of 32 steps, on two threads
LARGE = {"float32": (451, 449), "float64": (321, 330), "complex64": (330, 321), "complex128": (222, 230)}


def run(op, sizes, arrays, threads):
    native.run(OPS[op], DTYPE_CODE[arrays[0].dtype.name], 0, -1, LAPACK, threads, 0, sizes, 0, None, *arrays)


def svd(a, full=False, threads=0):
    batch, m, n = a.shape
    k, real = min(m, n), np.finfo(a.dtype).dtype
    u = np.empty((batch, m, m if full else k), a.dtype)
    vh = np.empty((batch, n if full else k, n), a.dtype)
    s, info = np.empty((batch, k), real), info_of(batch)
    run("svd", (batch, m, n, int(full)), (a, u, s, vh, info), threads)
    return u, s, vh, info


def svdvals(a, threads=0):
    batch, m, n = a.shape
    s, info = np.empty((batch, min(m, n)), np.finfo(a.dtype).dtype), info_of(batch)
    run("svdvals", (batch, m, n), (a, s, info), threads)
    return s, info


def check(a, full=False, threads=0):
    """Residual, orthogonality and values to 10 n eps of the largest singular value."""
    m, n = a.shape[-2:]
    u, s, vh, info = svd(a, full, threads)
    assert not info.any()
    values, info = svdvals(a, threads)
    assert not info.any()
    scale = np.abs(a).max() or 1
    w = exact(a) / scale
    expected = np.linalg.svd(w, compute_uv=False)
    size = expected.max(initial=0) or 1
    tolerance = 10 * max(m, n) * np.finfo(a.dtype).eps
    u, s, vh, values = exact(u), exact(s) / scale, exact(vh), exact(values) / scale
    k = min(m, n)
    assert norm((u[..., :k] * s[..., None, :]) @ vh[..., :k, :] - w).max() <= tolerance * size
    for q in (u, adjoint(vh)):
        assert norm(adjoint(q) @ q - np.eye(q.shape[-1])).max() <= tolerance
    assert np.abs(s - expected).max() <= tolerance * size
    assert np.abs(values - expected).max() <= tolerance * size
    assert (s >= 0).all() and (np.diff(s) <= 0).all()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(dtype, full):
    for m, n in SHAPES:
        check(svd_matrices("random", dtype, 1, m, n), full)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_kinds(dtype, kind):
    for m, n in ((26, 26), (40, 31), (31, 70)):
        check(svd_matrices(kind, dtype, 1, m, n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_panels(dtype):
    """Also the same bits for any number of threads."""
    a = svd_matrices("random", dtype, 1, *LARGE[dtype])
    check(a, full=True, threads=2)
    one, two = svd(a, threads=1), svd(a, threads=2)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(one, two, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_has_no_sign(dtype):
    """1 / s of a singular matrix is inf, not -inf. The routine of LAPACK that finds the values of B may answer -0."""
    for n in (1, 2, 3, 8, 26):
        for sign in (1, -1):
            a = np.zeros((1, n, n), dtype)
            a[0, 0] = sign * np.arange(1, n + 1)
            for s in (svd(a)[1], svdvals(a)[0]):
                assert not np.signbit(s).any(), (n, sign, s)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(dtype, value):
    """Wherever the element is: in a whole vector, or behind the last of them; other matrices keep their answers."""
    for place in ((0, 0), (10, 5), (19, 16)):
        a = svd_matrices("random", dtype, 3, 20, 17)
        good = svd(a)
        a[(1, *place)] = value
        for found, right in zip(svd(a), good, strict=True):
            assert found.dtype == np.int32 or np.isnan(found[1]).all()
            assert np.array_equal(found[[0, 2]], right[[0, 2]])
        assert svd(a)[-1].tolist() == svdvals(a)[-1].tolist() == [0, 1, 0]
