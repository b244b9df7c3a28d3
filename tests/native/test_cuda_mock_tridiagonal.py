"""Spectra by way of tridiagonal matrices on the CUDA path without a GPU: the device sources run as host code (emulator.h), the
blocks of a team in turns, and the stand-in library computes the products."""

import pytest

from test_cuda_mock_eigh import child, harness, libraries  # noqa: F401
from test_cuda_mock_solve import emulated  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

# A team of blocks, several matrices one after the other, a block for each matrix, one block alone
CASES = [
    pytest.param("float32", 193, 1, 3, "tridiagonal"),
    pytest.param("float64", 194, 5, 4, "eigh_panel", marks=pytest.mark.slow),
    pytest.param("float32", 515, 2, 2, "tridiagonal", marks=pytest.mark.slow),
    pytest.param("complex64", 194, 1, 5, "tridiagonal", marks=pytest.mark.slow),
    pytest.param("complex128", 193, 2, 12, "tridiagonal", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "n", "batch", "multiprocessors", "reduction"), CASES)
def test_answers(child, emulated, dtype, n, batch, multiprocessors, reduction):  # noqa: F811
    code = f"""
    a = hermitian("{dtype}", {batch}, {n})
    check_eigh(a, "batched", {n % 2 == 0})
    check_eigh(a, "batched", {n % 2 == 1}, ({n} - 9, 9), vectors=False)
    """
    calls, _ = child(code, **emulated, MOCK_MULTIPROCESSORS=str(multiprocessors))
    launched = set(harness.launched(calls))
    assert {reduction, "tridiagonal_factor", "tridiagonal_give", "tridiagonal_values"} <= launched


# Smaller teams take what larger ones leave
PARTS = [
    pytest.param("float32", 193, 2, 3, 32000),
    pytest.param("float64", 225, 2, 4, 69000, marks=pytest.mark.slow),
    pytest.param("float32", 517, 2, 3, 232448, marks=pytest.mark.slow),
    pytest.param("complex128", 517, 2, 4, 232448, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "n", "batch", "multiprocessors", "shared"), PARTS)
def test_parts(child, emulated, dtype, n, batch, multiprocessors, shared):  # noqa: F811
    code = f"""
    a = hermitian("{dtype}", {batch}, {n})
    check_eigh(a, "batched", {n < 200})
    """
    calls, _ = child(code, **emulated, MOCK_MULTIPROCESSORS=str(multiprocessors), MOCK_SHARED=str(shared))
    assert harness.launched(calls).count("tridiagonal") > 1


@pytest.mark.slow
def test_panels(child, emulated):  # noqa: F811
    """A matrix that does not fit on the chip of a GPU this small: panels of columns, several strips of tiles."""
    code = """
    a = hermitian("complex128", 1, 203)
    check_eigh(a, "batched", False)
    """
    calls, _ = child(code, **emulated, MOCK_MULTIPROCESSORS="2", MOCK_SHARED="69000")
    assert {"tridiagonal_panel", "tridiagonal", "tridiagonal_give"} <= set(harness.launched(calls))


@pytest.mark.slow
def test_failures(child, emulated):  # noqa: F811
    """A matrix that is not finite spoils its own answers alone; zeros and numbers of any size are no problem."""
    child(
        """
        a = hermitian("float32", 4, 193)
        a[1, 100, 3] = a[1, 3, 100] = np.nan
        a[2] = 0
        a[3] *= np.float32(1e30)
        w, v, info = eigh(a, "batched")
        assert info.tolist() == [0, 1, 0, 0] and failed_eigh(w, v, 1) and not w[2].any()
        for m in (0, 3):
            expected = np.linalg.eigvalsh(a[m].astype(np.float64))
            assert np.abs(w[m] - expected).max() < 193 * 1e-6 * np.abs(expected).max()
        values, _, info = eigh(a, "batched", vectors=False)
        assert info.tolist() == [0, 1, 0, 0] and np.isnan(values[1]).all() and not values[2].any()
        """,
        **emulated,
        MOCK_MULTIPROCESSORS="4",
    )
