"""The SVD on a GPU by blocks of columns, and by the Gram matrix: the checks of svd_checks.py."""

import pytest

from solve_checks import DTYPES
from svd_checks import KINDS, check_low_rank, check_not_finite, check_small_values, check_svd, svd_matrices
from test_qr_cuda import pytestmark, runner  # noqa: F401

run = runner("batched")
# sizes beside the limits of an access, of a matrix that stays in shared memory, and of blocks of columns
SHAPES = [
    (33, 33, 9), (48, 48, 5), (65, 65, 3), (100, 100, 3), (128, 128, 3), (161, 161, 2), (256, 256, 2), (300, 500, 2),
    (512, 512, 1), (300, 40, 3), (40, 300, 3), (1100, 100, 2), (1, 300, 2), (300, 1, 2), (70, 5, 4),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, batch", SHAPES)
def test_svd(dtype, m, n, batch):
    check_svd(run, svd_matrices("random", dtype, batch, m, n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m, n", [(48, 40), (40, 48), (120, 120), (200, 190)])
def test_kinds(dtype, kind, m, n):
    check_svd(run, svd_matrices(kind, dtype, 2, m, n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_failures_and_small_values(dtype):
    check_not_finite(run, dtype, 40, 35)
    check_not_finite(run, dtype, 100, 200)
    check_small_values(run, dtype, 100)
    check_low_rank(run, dtype, 130)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gram(dtype, kind):
    gram = runner("cusolver")
    check_svd(gram, svd_matrices(kind, dtype, 2, 150, 100))
    check_svd(gram, svd_matrices(kind, dtype, 1, 64, 300 if dtype in ("float32", "complex64") else 120))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gram_of_many(dtype):
    """Among many random matrices some are ill-conditioned."""
    gram = runner("cusolver")
    check_svd(gram, svd_matrices("random", dtype, 200, 100, 100))
    check_svd(gram, svd_matrices("random", dtype, 2, 500, 500))
