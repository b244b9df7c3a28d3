"""The matrices here are small: BLAS threads only get in each other's way on a busy machine."""

from __future__ import annotations

import contextlib

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        threadpool_limits = contextlib.nullcontext
    with threadpool_limits(1):
        yield
