"""Systems, decompositions and their engines on AMD's libraries without a GPU: see test_hip_mock.py."""

from types import FunctionType

import pytest

import test_cuda_mock_part as part
import test_cuda_mock_qr as qr
import test_cuda_mock_solve as solve
from lapwing.cli.kernel_calls import calls
from lapwing.core.native import AUTO, CUDA, OPS, native
from test_cuda_mock_solve import emulated, harness  # noqa: F401
from test_hip_mock import amd_libraries, libraries  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")


def copy(test):
    """The same test, to be marked here alone."""
    return FunctionType(test.__code__, test.__globals__, test.__name__)


@pytest.fixture
def child(libraries, tmp_path):  # noqa: F811
    children = harness.Children(libraries, tmp_path, amd=True)
    return lambda code, **settings: children(solve.START + code, **settings)


# with the device sources run as host code, compiled for waves of 64 lanes
test_blocks = pytest.mark.slow(copy(solve.test_blocks))
test_panels = pytest.mark.slow(copy(qr.test_panels))
test_lstsq_by_the_library = pytest.mark.slow(copy(qr.test_lstsq_by_the_library))


@pytest.mark.parametrize(
    "names",
    [
        ("solve", "solve_positive", "lu", "slogdet"),
        ("inverse", "inverse_positive", "qr"),
        pytest.param(("svd",), marks=pytest.mark.slow),
    ],
    ids=lambda names: names[0],
)
def test_answers(child, emulated, names):  # noqa: F811
    """All dtypes: rocSOLVER's factors, rocBLAS's triangles and products."""
    child("".join(f"each('test_{name}', 40)\n" for name in names), **(emulated if names == ("svd",) else {}))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_largest_singular_values(libraries, tmp_path, dtype):  # noqa: F811
    children = harness.Children(libraries, tmp_path, amd=True)
    part.test_largest_singular_values(lambda code: children(part.START + code, LAPWING_ENGINE="rocsolver"), dtype)


def launch_sizes():
    """Calls of every operation, at orders beside those where kernels change."""
    for n in (1, 8, 11, 16, 17, 32, 33, 64, 65, 100, 128, 200, 512, 4096):
        yield from calls(n)


@pytest.mark.parametrize("dtype", range(4))
def test_every_launch_fits_in_64_kb(dtype):
    """A dry call reports a kernel that asks for more shared memory than the GPU has; every call is taken by some engine."""
    gpu = (110, 65536, 0, "AMD Instinct MI250X", "gfx90a", 64)
    failures = {}
    for operation, flags, sizes in launch_sizes():
        if sizes[0] > 1000 or (operation == "lstsq" and min(sizes[1:3]) >= 4096):
            continue
        try:
            native.kernels(OPS[operation], dtype, CUDA, 0, AUTO, 0, flags, sizes, gpu)
        except RuntimeError as error:
            failures[operation, flags, sizes] = str(error)
    assert failures == {}
