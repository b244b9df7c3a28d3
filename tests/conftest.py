"""Shared fixtures."""

from __future__ import annotations

import pytest

from backends import CPU, GPU, open_backend


@pytest.fixture(params=[*CPU, *GPU])
def backend(request):
    with open_backend(*request.param) as opened:
        yield opened
