"""QR and least squares panel by panel on the CUDA path without a GPU: the device sources run as host code (emulator.h), the
stand-in libraries compute the products. The checks are those of qr_checks.py."""

import pytest

from test_cuda_mock_solve import child, emulated, harness, libraries  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

START = """
import qr_checks
from qr_checks import matrices, random
ENGINE = "batched"
f32, f64, c64, c128 = solve_checks.DTYPES
def right(dtype, batch, m, k):
    return random(np.random.default_rng(m), dtype, batch, m, k)
"""


def test_panels(child, emulated):  # noqa: F811
    calls, _ = child(
        START
        + """
qr_checks.check_qr(run, matrices("random", f32, 2, 270, 40))
qr_checks.check_without_q(run, matrices("random", f32, 2, 44, 50))
qr_checks.check_lstsq(run, matrices("random", f32, 2, 12, 50), right(f32, 2, 12, 2))
qr_checks.check_lstsq(run, matrices("deficient", f32, 2, 50, 18), right(f32, 2, 50, 2))
qr_checks.check_lstsq(run, matrices("random", f32, 2, 20, 6), right(f32, 2, 20, 2))
a = matrices("random", f64, 2, 80, 20)
a[1, :, 3] = a[1, :, 4]
qr_checks.check_lstsq(run, a, right(f64, 2, 80, 2))
""",
        **emulated,
    )
    launched = set(harness.launched(calls))
    assert {
        "qr_panel",
        "qr_take",
        "qr_give_r",
        "qr_give_raw",
        "qr_identity",
        "lstsq_block",
        "lstsq_gram",
        "lstsq_small",
        "lstsq_rank",
        "lstsq_solve",
        "lstsq_weigh",
    } <= launched


def test_lstsq_by_the_library(child, emulated):  # noqa: F811
    """geqrf, ormqr and our own triangular solves; the SVD only for the matrix that needs it."""
    calls, _ = child(
        START
        + """
ENGINE = "cusolver"
a = matrices("random", f64, 3, 40, 12)
a[1, :, 3] = a[1, :, 4]
qr_checks.check_lstsq(run, a, right(f64, 3, 40, 2))
qr_checks.check_lstsq(run, matrices("random", c64, 2, 12, 40), right(c64, 2, 12, 1))
qr_checks.check_columns_of_any_size(run)
ENGINE = "batched"
qr_checks.check_columns_of_any_size(run)
qr_checks.check_lstsq(run, matrices("random", f32, 2, 4, 4), right(f32, 2, 4, 1))
qr_checks.check_lstsq(run, matrices("random", f64, 2, 1, 1), right(f64, 2, 1, 1))
qr_checks.check_lstsq(run, matrices("random", f64, 2, 3, 8), right(f64, 2, 3, 1))
""",
        **emulated,
    )
    assert len(harness.named(calls, "nvrtcCompileProgram")) > 0
    assert harness.launched(calls).count("lstsq_weigh") == 1


def test_lstsq_by_the_gram_matrix(child, emulated):  # noqa: F811
    """Large matrices: only those whose condition forbids it get a QR, and only those that are deficient the SVD.

    Those that do not lie side by side use the same memory one after the other, as XLA lends few blocks.
    """
    calls, _ = child(
        START
        + """
a, b = matrices("random", f64, 4, 1100, 70), right(f64, 4, 1100, 2)
a[0] *= 10.0 ** np.linspace(0, -9, 70)
a[2, :, 3] = a[2, :, 4]
asked = []
class Counted(Scratch):
    def __call__(self, size):
        asked.append(size)
        return super().__call__(size)
Scratch = Counted
qr_checks.check_lstsq(run, a, b)
assert len(asked) == 2, asked
b[3, 7, 1] = np.nan
x, residuals, rank, info = qr_checks.lstsq(run, a[3:], b[3:])
assert np.isfinite(x[..., 0]).all() and np.isnan(x[..., 1]).all() and np.isnan(residuals[0, 1]) and rank[0] == 70
a, b = matrices("random", c64, 2, 1100, 70), right(c64, 2, 1100, 1)
a[0] *= 1e-25
qr_checks.check_lstsq(run, a, b)
""",
        **emulated,
    )
    launched = harness.launched(calls)
    assert launched.count("lstsq_judge") == 3 and launched.count("lstsq_weigh") == 1 and "qr_panel" in launched


# orders beside the limits of a panel and of a block of panels; followers of the last panel; more rows than threads
PARTS = {
    "qr": """
for kind in qr_checks.KINDS:
    qr_checks.check_qr(run, matrices(kind, dtype, 2, 300, 45))
for m, n in ((260, 33), (257, 128), (258, 150), (260, 300)):
    qr_checks.check_qr(run, matrices("random", dtype, 1, m, n))
""",
    "rows": """
for m, n in ((1030, 20), (1600, 5)):
    qr_checks.check_qr(run, matrices("random", dtype, 1, m, n))
""",
    "without q": """
for m, n in ((33, 33), (50, 40), (40, 150), (300, 70), (1, 1), (1, 9), (9, 1)):
    qr_checks.check_without_q(run, matrices("random", dtype, 2, m, n))
""",
    "lstsq": """
shapes = (40, 10, 1), (132, 33, 1), (70, 70, 3), (20, 45, 2), (33, 100, 1), (5, 1, 2), (1, 5, 2), (260, 100, 40), (400, 20, 1)
for m, n, k in shapes:
    a = matrices("random", dtype, 2, m, n)
    a[..., : min(m, n), : min(m, n)] += 3 * np.eye(min(m, n))
    qr_checks.check_lstsq(run, a, right(dtype, 2, m, k))
""",
    # one kernel: every number of lanes to a column, one warp, square, columns beside a multiple of a warp's, no right-hand side
    "lstsq in one kernel": """
shapes = (3, 2, 5), (8, 8, 5), (31, 17, 1), (64, 16, 16), (140, 35, 2), (192, 48, 1), (256, 64, 1), (500, 7, 1), (40, 12, 0)
for m, n, k in shapes:
    a = matrices("random", dtype, 2, m, n)
    a[..., :n, :] += 3 * np.eye(n)
    a[1] *= 1e-20
    qr_checks.check_lstsq(run, a, right(dtype, 2, m, k))
qr_checks.check_lstsq(run, matrices("wild", dtype, 4, 60, 20), right(dtype, 4, 60, 2), 1e-30)
qr_checks.check_columns_with_nan(run, dtype)
""",
    # several matrices to a warp: every number of lanes, the last warp not full, matrices of any kind beside each other
    "lstsq of tiny matrices": """
os.environ.update(MOCK_EMULATE_ALL="1")
shapes = (1, 1, 1), (3, 2, 1), (4, 4, 2), (16, 4, 1), (13, 5, 3), (9, 9, 4), (32, 8, 1), (20, 11, 2), (64, 9, 1), (150, 2, 1)
for m, n, k in (*shapes, (17, 16, 1)):
    a, b = matrices("random", dtype, 35, m, n), right(dtype, 35, m, k)
    a[..., :n, :] += 3 * np.eye(n)
    qr_checks.check_lstsq(run, a, b)
for m, n in ((16, 4), (13, 5), (30, 8), (12, 12)):
    for kind in qr_checks.KINDS:
        qr_checks.check_lstsq(run, matrices(kind, dtype, 7, m, n), right(dtype, 7, m, 2), 1e-30 if kind == "wild" else None)
    qr_checks.check_not_finite(run, dtype, m, n)
    a, b = matrices("random", dtype, 9, m, n), right(dtype, 9, m, 2)
    expected = qr_checks.lstsq(run, a, b)
    b[4, m // 2, 1] = np.inf
    x, residuals, rank, info = qr_checks.lstsq(run, a, b)
    assert np.array_equal(x[..., 0], expected[0][..., 0]) and np.array_equal(np.delete(x, 4, 0), np.delete(expected[0], 4, 0))
    assert not np.isfinite(x[4, :, 1]).any() and not np.isfinite(residuals[4, 1]) and not info.any() and (rank == n).all()
    a *= np.array([1e-30, 1e30, 1e-15, 1e15, 1, 1e-37, 1e37, 0, 1e-9], dtype)[:, None, None]
    b = right(dtype, 9, m, 2)
    b[:] *= np.array([1e-12, 1], dtype)
    qr_checks.check_lstsq(run, a, b)
""",
    # many: ranks are read only where the device has counted a matrix in doubt
    "lstsq of many": """
os.environ.update(MOCK_EMULATE_ALL="1")
a, b = matrices("random", dtype, 4100, 3, 2), right(dtype, 4100, 3, 1)
a[:, 0, 0] += 5
a[:, 1, 1] -= 5
qr_checks.check_lstsq(run, a, b)
a[7] = 0
a[4099, :, 1] = a[4099, :, 0]
qr_checks.check_lstsq(run, a, b)
""",
    # by A^T A, where the condition allows it: beside the limits of a group of columns, wild matrices, several sides
    "lstsq by the gram matrix": """
for m, n, k in (34, 17, 1), (132, 33, 1), (99, 40, 3), (192, 48, 1), (256, 64, 2), (70, 25, 0):
    a = matrices("random", dtype, 3, m, n)
    a[1, :, 3] = a[1, :, 4]
    qr_checks.check_lstsq(run, a, right(dtype, 3, m, k))
    for kind in ("wild", "tiny"):
        qr_checks.check_lstsq(run, matrices(kind, dtype, 3, m, n), right(dtype, 3, m, k), 1e-30 if kind == "wild" else None)
a, b = matrices("random", dtype, 5, 80, 20), right(dtype, 5, 80, 1)
a *= np.array([1e-30, 1e30, 1e-15, 1e15, 1], dtype)[:, None, None]
a[4] *= 10.0 ** np.linspace(0, -5, 20, dtype=dtype)
b[3] *= 1e-12
qr_checks.check_lstsq(run, a, b)
b[:] = 0
assert not qr_checks.lstsq(run, a, b)[0].any()
""",
    "rank": """
for m, n in ((50, 18), (12, 50)):
    for kind in ("deficient", "zero columns", "tiny"):
        qr_checks.check_lstsq(run, matrices(kind, dtype, 3, m, n), right(dtype, 3, m, 2))
qr_checks.check_not_finite(run, dtype, 50, 40)
""",
    "alignment": """
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
qr_checks.check_qr(run, matrices("random", dtype, 1, 257, 21))
qr_checks.check_without_q(run, matrices("random", dtype, 2, 35, 33))
qr_checks.check_lstsq(run, matrices("random", dtype, 2, 37, 5), right(dtype, 2, 37, 1))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("part", PARTS)
def test_answers(child, emulated, part, dtype):  # noqa: F811
    child(f"{START}dtype = {dtype}\n{PARTS[part]}", **emulated)
