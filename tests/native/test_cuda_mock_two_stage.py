"""The two-stage eigensolver on the CUDA path without a GPU: the device sources run as host code (emulator.h), blocks that wait
for each other in turns, and the stand-in library computes the products."""

import pytest

from test_cuda_mock_eigh import child, harness, libraries  # noqa: F401
from test_cuda_mock_solve import emulated  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

KERNELS = {
    "two_stage_panel", "two_stage_mirror", "two_stage_band", "two_stage_chase", "two_stage_diagonals", "two_stage_blocks",
    "two_stage_back",
}  # fmt: skip

# Orders without a panel, with panels of a few rows, and with several panels to an update; one block of threads, and
# more of them than sweeps can be under way
CASES = [
    pytest.param("float64", (1, 2, 3, 31, 65, 66), 2),
    pytest.param("float32", (5, 64, 97, 130), 3),
    pytest.param("float64", (200,), 1),
    pytest.param("float32", (331,), 6, marks=pytest.mark.slow),
    pytest.param("float64", (331,), 3, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "orders", "multiprocessors"), CASES)
def test_answers(child, emulated, dtype, orders, multiprocessors):  # noqa: F811
    code = f"""
    for n in {orders}:
        a = hermitian("{dtype}", 2 if n == 31 else 1, n)
        check_eigh(a, "two_stage", n % 2 == 0)
        if n < 300:
            check_eigh(a, "two_stage", n % 2 == 1, (n // 2, n - n // 2), vectors=n % 3 != 0)
        check_eigh(a, "two_stage", n % 2 == 1, vectors=False)
    """
    calls, _ = child(code, **emulated, MOCK_MULTIPROCESSORS=multiprocessors)
    launched = set(harness.launched(calls))
    assert launched >= (KERNELS if max(orders) > 66 else KERNELS - {"two_stage_panel", "two_stage_mirror"})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spectra(child, emulated, dtype):  # noqa: F811
    """Clustered, rank-deficient, diagonal and badly scaled matrices, and zeros."""
    child(
        f"""
        n, dtype = 130, "{dtype}"
        largest = float(np.finfo(dtype).max) / 1e3
        check_eigh(hermitian(dtype, 1, n, w=np.r_[np.ones(60), 2 + 1e-9 * np.arange(60), np.full(n - 120, -3)]), "two_stage")
        check_eigh(hermitian(dtype, 1, n, w=np.r_[np.zeros(n - 4), 1, 2, 3, 4]), "two_stage", True)
        check_eigh(np.diag(np.arange(n)[::-1] - 50.0).astype(dtype)[None], "two_stage")
        check_eigh(hermitian(dtype, 1, n, w=np.logspace(0, -30, n)), "two_stage")
        for by in (largest / n, 1 / largest):
            a = hermitian(dtype, 1, n, w=np.linspace(-1, 1, n))
            w, v, info = eigh((a * by).astype(dtype), "two_stage")
            expected, v = np.linalg.eigvalsh(a.astype(np.float64)), v.astype(np.float64)
            unit = 10 * n * np.finfo(dtype).eps
            assert not info.any() and (np.abs(w / by - expected) <= unit).all()
            assert (np.abs(v.mT @ v - np.eye(n)) <= unit).all()
        w, v, info = eigh(np.zeros((1, n, n), dtype), "two_stage")
        assert not info.any() and not w.any() and (v[0].T @ v[0] == np.eye(n)).all()
        """,
        **emulated,
        MOCK_MULTIPROCESSORS="3",
    )


def test_failures(child, emulated):  # noqa: F811
    """A matrix that is not finite spoils its own answers alone."""
    child(
        """
        for kind in (np.nan, np.inf):
            a = hermitian("float32", 3, 70)
            a[1, 69, 3] = a[1, 3, 69] = kind
            w, v, info = eigh(a, "two_stage")
            values, _, also = eigh(a, "two_stage", vectors=False)
            assert info.tolist() == also.tolist() == [0, 1, 0] and failed_eigh(w, v, 1) and np.isnan(values[1]).all()
            for m in (0, 2):
                expected = np.linalg.eigvalsh(a[m].astype(np.float64))
                for found in (w[m], values[m]):
                    assert np.abs(found - expected).max() < 10 * 70 * np.finfo("float32").eps * np.abs(expected).max()
        """,
        **emulated,
        MOCK_MULTIPROCESSORS="3",
    )


def test_only_by_name(child):  # noqa: F811
    """The planner does not choose it, whatever else is missing, and refuses what it cannot do in words."""
    code = """
    def explained(dtype, n, engine="auto"):
        return native.plan(EIGH, DTYPE_CODE[dtype], CUDA, 0, ENGINES[engine], 0, 0, (1, n, 0, n), "")
    refused = {
        "complex": explained("complex64", 300, "two_stage"),
        "large": explained("float64", 20000, "two_stage"),
        "asked": explained("float64", 8192, "two_stage"),
        "chosen": [explained("float64", n) for n in (64, 4096, 16384, 30000)],
    }
    print(refused)
    tell(**{k: str(v) for k, v in refused.items()})
    """
    _, told = child(code, MOCK_SHARED="232448", MOCK_MULTIPROCESSORS="132")
    assert "two_stage is for real matrices" in told["complex"]
    assert "two_stage takes n up to 16384 on this device, not 20000" in told["large"]
    assert "you asked for it" in told["asked"]
    assert "two_stage" not in told["chosen"]
