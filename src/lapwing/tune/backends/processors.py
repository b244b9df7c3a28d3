"""The processors: how many there are, how many NumPy's BLAS uses, and the share that other programs take."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from time import monotonic, process_time
from typing import Any

from ...bench.environment import cores
from ...core import libraries

__all__ = ["OtherPrograms", "blas_threads", "control", "cores", "threads_set"]


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Run NumPy's BLAS on ``count`` threads; 0 changes nothing. The whole process is affected; the last one out restores it."""
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
    """Number of threads that NumPy's BLAS uses by default; 0 when it cannot be read."""
    blas = control()
    with _depth_lock:
        return 0 if blas is None else _depth[1] if _depth[0] else blas[0]()


_depth = [0, 0]  # number of open blas_threads, and the setting before the first
_depth_lock = threading.Lock()


@cache
def control() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """Functions that get and set the number of threads of NumPy's BLAS; None when they are not available."""
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
    controllers = ThreadpoolController().select(user_api="blas").lib_controllers
    return (controllers[0].get_num_threads, controllers[0].set_num_threads) if controllers else None


class OtherPrograms:
    """Measures which share of the processors of this process other programs take, from its start until ``share()``."""

    def __init__(self) -> None:
        self._start = monotonic(), _busy_seconds(), process_time()

    def share(self) -> float:
        begun, busy, own = self._start
        now = _busy_seconds()
        if busy is None or now is None or monotonic() <= begun:
            return 0.0
        return min(1.0, max(0.0, (now - busy - (process_time() - own)) / (cores() * (monotonic() - begun))))


def _busy_seconds() -> float | None:
    """Seconds that the processors of this process have worked for any program; None if the system does not say."""
    try:
        with open("/proc/stat") as file:
            rows = {words[0]: words[1:] for words in map(str.split, file) if words and words[0].startswith("cpu")}
        ticks = [rows[f"cpu{n}"] for n in os.sched_getaffinity(0)]
        # user, nice, system, idle, iowait, irq, softirq, steal
        return sum(sum(map(int, row[:8])) - int(row[3]) - int(row[4]) for row in ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, KeyError, ValueError, IndexError):
        return None
