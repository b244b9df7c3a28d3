"""Spectra by way of tridiagonal matrices on the CUDA path without a GPU: the device sources run as host code (emulator.h), blocks of
a team in turns, and the stand-in library computes the products."""

import pytest

from test_cuda_mock_eigh import child, harness, libraries  # noqa: F401
from test_cuda_mock_solve import emulated  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

# multiprocessors: one block, a cluster, and a team that writes to global memory, for several matrices one after the other
CASES = [
    pytest.param("float32", 130, 2, 1),
    pytest.param("float64", 131, 3, 5, marks=pytest.mark.slow),
    pytest.param("complex64", 134, 1, 11, marks=pytest.mark.slow),
    pytest.param("complex128", 129, 2, 9, marks=pytest.mark.slow),
    pytest.param("float32", 257, 1, 9, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "n", "batch", "multiprocessors"), CASES)
def test_answers(child, emulated, dtype, n, batch, multiprocessors):  # noqa: F811
    code = f"""
    a = hermitian("{dtype}", {batch}, {n})
    check_eigh(a, "batched", {n % 2 == 0})
    check_eigh(a, "batched", {n % 2 == 1}, ({n} - 9, 9), vectors=False)
    """
    calls, _ = child(code, **emulated, MOCK_MULTIPROCESSORS=str(multiprocessors))
    launched = set(harness.launched(calls))
    assert {"tridiagonal", "tridiagonal_measure", "tridiagonal_factor", "tridiagonal_give", "tridiagonal_values"} <= launched


def test_failures(child, emulated):  # noqa: F811
    """A matrix that is not finite spoils its own answers alone; zeros and numbers of any size are no problem."""
    child(
        """
        a = hermitian("float32", 4, 129)
        a[1, 100, 3] = a[1, 3, 100] = np.nan
        a[2] = 0
        a[3] *= np.float32(1e30)
        w, v, info = eigh(a, "batched")
        assert info.tolist() == [0, 1, 0, 0] and failed_eigh(w, v, 1) and not w[2].any()
        for m in (0, 3):
            check_eigh(a[m : m + 1], "batched")
        values, _, info = eigh(a, "batched", vectors=False)
        assert info.tolist() == [0, 1, 0, 0] and np.isnan(values[1]).all() and not values[2].any()
        """,
        **emulated,
        MOCK_MULTIPROCESSORS="4",
    )
