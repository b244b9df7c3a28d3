"""Set-up of the in situ tests."""

from __future__ import annotations

import contextlib
import os

import pytest

from insitu import harness


@pytest.fixture(autouse=True, scope="module")  # not of the session: tests of other folders follow in the same process
def one_thread():
    """The matrices here are small: BLAS threads would only slow each other down on a busy machine."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        threadpool_limits = contextlib.nullcontext
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True, scope="session")
def compiled_programs(tmp_path_factory):
    """One folder of compiled programs for all workers of the session."""
    base = tmp_path_factory.getbasetemp()
    harness.compiled = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "insitu-programs"
    harness.compiled.mkdir(exist_ok=True)
