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


@pytest.mark.slow
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
    assert launched.count("svd_turn") == launched.count("svd_bidiagonal") == 2


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
    assert launched.count("svd_turn") > 30 and {"qr_panel", "svd_bidiagonal", "tridiagonal_values"} <= set(launched)


def test_low_rank(child, emulated):  # noqa: F811
    child(START + "svd_checks.check_low_rank(run, f64, 34)", **emulated)


@pytest.mark.slow
def test_low_rank_converges(child, emulated):  # noqa: F811
    """Of an order at which columns of rounding errors did not become orthogonal in all sweeps."""
    child(START + 'svd_checks.check_svd(run, svd_matrices("ones", f64, 1, 100, 100))', **emulated)


# orders beside the limits of blocks and accesses; what is hard; what fails
PARTS = {
    "kinds": "for kind in svd_checks.KINDS[::2]:\n    svd_checks.check_svd(run, svd_matrices(kind, dtype, 1, 33, 21))\n",
    "more kinds": "for kind in svd_checks.KINDS[1::2]:\n    svd_checks.check_svd(run, svd_matrices(kind, dtype, 1, 33, 21))\n",
    "wide": "for kind in svd_checks.KINDS:\n    svd_checks.check_svd(run, svd_matrices(kind, dtype, 1, 18, 35))\n",
    "tall": """
for m, n in ((100, 33), (20, 90), (70, 5), (5, 70), (40, 1), (1, 40)):
    for kind in ("random", "zero columns"):
        svd_checks.check_svd(run, svd_matrices(kind, dtype, 2, m, n))
""",
    "orders": "for n in (33, 48, 65):\n    svd_checks.check_svd(run, svd_matrices('random', dtype, 1, n, n))\n",
    "failing": "svd_checks.check_not_finite(run, dtype, 34, 20)\nsvd_checks.check_not_finite(run, dtype, 20, 50)\n",
    "low rank": "svd_checks.check_low_rank(run, dtype, 40)\n",
    "small values": "svd_checks.check_small_values(run, dtype, 36)\n",
    "alignment": """
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
svd_checks.check_svd(run, svd_matrices("random", dtype, 2, 37, 15))
svd_checks.check_svd(run, svd_matrices("random", dtype, 2, 15, 37))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("shared", [232448, 30000])
@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("part", PARTS)
def test_answers(child, emulated, part, dtype, shared):  # noqa: F811
    child(f"{START}dtype = {dtype}\n{PARTS[part]}", MOCK_SHARED=shared, **emulated)


GRAM = """
ENGINE = "cusolver"
def check(kind, dtype, m, n):
    svd_checks.check_svd(run, svd_matrices(kind, dtype, 1, m, n))
"""


@pytest.mark.parametrize(
    "code", [pytest.param('check("random", f32, 70, 65)', marks=pytest.mark.slow), 'check("deficient", c64, 64, 66)']
)
def test_eigenvectors_of_the_gram_matrix(child, emulated, code):  # noqa: F811
    """In single precision, with M^H M in double precision; orthogonal by a QR where singular values are tiny."""
    calls, _ = child(START + GRAM + code, **emulated)
    launched = harness.launched(calls)
    assert "svd_correct" in launched and not harness.named(calls, "cusolverDnXgesvdp")
    assert ("svd_phase" in launched) == ("deficient" in code)


@pytest.mark.parametrize("dtype", ["f64", "c128"])
def test_corrected_vectors_of_the_gram_matrix(child, emulated, dtype):  # noqa: F811
    """In double precision, for values alone too; rotations for the matrix between the others, whose condition is too large."""
    calls, _ = child(
        START
        + f"""
ENGINE = "cusolver"
kinds = ("random", "deficient", "tiny", "huge")
svd_checks.check_svd(run, np.concatenate([svd_matrices(kind, {dtype}, 1, 65, 66) for kind in kinds]))
""",
        **emulated,
    )
    launched = harness.launched(calls)
    assert launched.count("svd_refine") == launched.count("svd_lift") == 2 and "svd_turn" in launched


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
def test_gram_answers(child, emulated, dtype):  # noqa: F811
    child(
        START
        + GRAM
        + f"""
for kind in svd_checks.KINDS:
    check(kind, {dtype}, 70, 66)
check("random", {dtype}, 64, 150)
svd_checks.check_not_finite(run, {dtype}, 70, 66)
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
check("random", {dtype}, 65, 66)
# from 16 matrices on other kernels find the eigenvectors, which do not run here
for kinds in (svd_checks.KINDS[::2], svd_checks.KINDS[1::2]):
    svd_checks.check_svd(run, np.concatenate([svd_matrices(kind, {dtype}, 1, 66, 65) for kind in kinds]))
""",
        **emulated,
    )
