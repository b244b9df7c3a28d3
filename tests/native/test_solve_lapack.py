"""Engine lapack on the frames from triangular to svdvals, called through the native core."""

import numpy as np
import pytest

from lapwing.core.lapack import LIBRARY
from lapwing.core.native import DTYPE_CODE, OPS, native
from solve_checks import *  # noqa: F403
from solve_checks import POS, assert_inverse, info_of, positive, random

pytestmark = pytest.mark.skipif(native is None or not LIBRARY, reason="no native core, or no LAPACK")

LAPACK = 1


def call(op, flags, sizes, *arrays):
    assert all(array.flags.c_contiguous for array in arrays)
    native.run(OPS[op], DTYPE_CODE[arrays[0].dtype.name], 0, -1, LAPACK, 0, flags, sizes, 0, None, *arrays)


@pytest.fixture
def run():
    return call


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("flags", [0, POS, POS | 1])
def test_inverse_by_blocks(dtype, flags):
    """What is done in blocks for very large matrices only."""
    rng = np.random.default_rng(0)
    a = positive(rng, dtype, 1, 150) if flags else random(rng, dtype, 1, 150, 150)
    x, info = np.empty_like(a), info_of(1)
    native.set_lapack_block(40)
    try:
        call("inverse", flags, (1, 150), a, x, info)
    finally:
        native.set_lapack_block(4096)
    assert_inverse(a, x)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_side_by_side(dtype):
    """A batch on two threads, a matrix on each with one thread of the library: as on one thread, and NaN for one matrix."""
    rng = np.random.default_rng(3)
    real = np.finfo(dtype).dtype

    def each(op, sizes, a, *shapes):
        batch = len(a)
        results = [
            [np.empty((batch, *shape), kind) for shape, kind in shapes] + [np.full(batch, -1, np.int32)] for _ in range(2)
        ]
        for threads, arrays in zip((1, 2), results, strict=True):
            native.run(OPS[op], DTYPE_CODE[dtype], 0, -1, LAPACK, 0, 0, (batch, *sizes), threads, None, a, *arrays)
            assert np.flatnonzero(arrays[-1]).tolist() == [1]
            assert all(np.isnan(x[1]).all() for x in arrays[:-1])
        for one, two in zip(*results, strict=True):
            assert np.allclose(one, two, atol=1000 * np.finfo(dtype).eps, equal_nan=True)

    a = random(rng, dtype, 5, 40, 40)
    a = a + a.swapaxes(-1, -2).conj()
    a[1, 3, 2] = np.nan
    each("eigvalsh", (40, 0, 40), a, ((40,), real))
    each("eigh", (40, 0, 40), a, ((40,), real), ((40, 40), dtype))
    each("eigvalsh", (40, 2, 3), a, ((3,), real))
    each("svdvals", (40, 40), a, ((40,), real))
    # the transposes of the full factors are large enough for threads of their own
    tall = random(rng, dtype, 3, 600, 20)
    tall[1, 0, 0] = np.inf
    u, s, vh, info = np.empty((3, 600, 600), dtype), np.empty((3, 20), real), np.empty((3, 20, 20), dtype), info_of(3)
    native.run(OPS["svd"], DTYPE_CODE[dtype], 0, -1, LAPACK, 0, 0, (3, 600, 20, 1), 2, None, tall, u, s, vh, info)
    assert info.tolist() == [0, 1, 0]
    good = tall[::2]
    assert np.allclose((u[::2, :, :20] * s[::2, None]) @ vh[::2], good, atol=1000 * np.finfo(dtype).eps)


def test_workspace():
    for op, flags, sizes in (("solve", 0, (1, 100, 1)), ("inverse", POS, (1, 100)), ("svd", 0, (1, 100, 50, 0))):
        assert native.host_bytes(OPS[op], 1, 0, -1, LAPACK, 0, flags, sizes) >= 0
