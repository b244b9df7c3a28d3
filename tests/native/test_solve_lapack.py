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


def test_workspace():
    for op, flags, sizes in (("solve", 0, (1, 100, 1)), ("inverse", POS, (1, 100)), ("svd", 0, (1, 100, 50, 0))):
        assert native.host_bytes(OPS[op], 1, 0, -1, LAPACK, 0, flags, sizes) >= 0
