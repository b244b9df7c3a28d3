"""Systems, decompositions and their engines on AMD's libraries without a GPU: see test_hip_mock.py."""

import pytest
import test_cuda_mock_part as part
import test_cuda_mock_qr as qr
import test_cuda_mock_solve as solve
from test_cuda_mock_solve import emulated, harness  # noqa: F401
from test_hip_mock import amd_libraries, libraries  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")


@pytest.fixture
def child(libraries, tmp_path):  # noqa: F811
    children = harness.Children(libraries, tmp_path, amd=True)
    return lambda code, **settings: children(solve.START + code, **settings)


test_answers = solve.test_answers
test_inverse_positive = solve.test_inverse_positive
test_blocks = solve.test_blocks
test_blocked = solve.test_blocked
test_panels = qr.test_panels
test_lstsq_by_the_library = qr.test_lstsq_by_the_library
test_largest_singular_values = part.test_largest_singular_values
