"""The SVD by blocks of columns on the CUDA path without a GPU: the device sources run as host code (emulator.h). The checks are
those of svd_checks.py."""

import pytest

from test_cuda_mock_solve import child, emulated, harness, libraries  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

START = """
import svd_checks
from svd_checks import svd_matrices
ENGINE = "batched"
f32, f64, c64, c128 = solve_checks.DTYPES
"""


def test_whole(child, emulated):  # noqa: F811
    """A matrix that fits into shared memory stays there."""
    calls, _ = child(
        START
        + """
svd_checks.check_svd(run, svd_matrices("random", f32, 2, 35, 34))
svd_checks.check_svd(run, svd_matrices("zero columns", c64, 2, 33, 36))
""",
        **emulated,
    )
    launched = harness.launched(calls)
    assert {"svd_settle", "svd_give_columns", "svd_give_rows"} <= set(launched)
    assert launched.count("svd_turn") == 4


def test_parts(child, emulated):  # noqa: F811
    """Blocks of columns that meet in shared memory, and a QR first."""
    calls, _ = child(
        START
        + """
svd_checks.check_svd(run, svd_matrices("random", f64, 1, 52, 49))
svd_checks.check_svd(run, svd_matrices("deficient", f32, 2, 80, 34))
""",
        MOCK_SHARED=30000,
        **emulated,
    )
    launched = harness.launched(calls)
    assert launched.count("svd_turn") > 30 and "qr_panel" in launched


# orders beside the limits of blocks and accesses; what is hard; what fails
PARTS = {
    "kinds": "for kind in svd_checks.KINDS:\n    svd_checks.check_svd(run, svd_matrices(kind, dtype, 2, 35, 33))\n",
    "wide": "for kind in svd_checks.KINDS:\n    svd_checks.check_svd(run, svd_matrices(kind, dtype, 2, 33, 37))\n",
    "tall": """
for m, n in ((100, 33), (33, 90), (70, 5), (5, 70), (40, 1), (1, 40)):
    for kind in ("random", "zero columns"):
        svd_checks.check_svd(run, svd_matrices(kind, dtype, 2, m, n))
""",
    "orders": "for n in (48, 64, 65, 100):\n    svd_checks.check_svd(run, svd_matrices('random', dtype, 1, n, n))\n",
    "failing": "svd_checks.check_not_finite(run, dtype, 40, 35)\nsvd_checks.check_not_finite(run, dtype, 80, 35)\n",
    "small values": "svd_checks.check_small_values(run, dtype, 36)\n" * 1,
    "alignment": """
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
svd_checks.check_svd(run, svd_matrices("random", dtype, 2, 37, 35))
svd_checks.check_svd(run, svd_matrices("random", dtype, 2, 35, 37))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("shared", [232448, 50000])
@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("part", PARTS)
def test_answers(child, emulated, part, dtype, shared):  # noqa: F811
    child(f"{START}dtype = {dtype}\n{PARTS[part]}", MOCK_SHARED=shared, **emulated)
