"""How many cores there are, and how many of them the BLAS that NumPy uses may take."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from ..core import libraries

__all__ = ["blas_threads", "control", "cores", "threads_set"]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """NumPy's BLAS on so many threads inside; 0 leaves it as it is. It is a setting of the process: put back by the last."""
    blas = control()
    if not count or blas is None:
        yield
        return
    with _depth_lock:
        if _depth[0] == 0:
            _depth[1] = blas[0]()
        _depth[0] += 1
        blas[1](count)
    try:
        yield
    finally:
        with _depth_lock:
            _depth[0] -= 1
            if _depth[0] == 0:
                blas[1](_depth[1])


def threads_set() -> int:
    """How many NumPy's BLAS takes where nobody says otherwise; 0 where it does not tell."""
    blas = control()
    with _depth_lock:
        return 0 if blas is None else _depth[1] if _depth[0] else blas[0]()


_depth = [0, 0]  # how many are inside, and what was set before the first
_depth_lock = threading.Lock()


@cache
def control() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """Ask for and set the number of threads of the BLAS that NumPy uses; None where that is not to be had."""
    for path in sorted(libraries.loaded("*openblas*"), key=lambda p: "numpy" not in p):
        for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
            try:
                library = ctypes.CDLL(path)
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
            except (OSError, AttributeError):
                continue
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return (found[0].get_num_threads, found[0].set_num_threads) if found else None
