"""What the benchmark needs from an array library: making arrays, waiting for results, timing on the device."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

Call = Callable[[Any], Any]


class Library:
    """The defaults suit host arrays."""

    name: str
    devices: tuple[str, ...] = ("cpu",)
    wide: Call | None = None  # to float64 or complex128 on the device
    rest: float = 50e-3  # seconds until the threads of a call sleep: they spin for about 30 ms

    def missing(self, device: str) -> str:
        """Why the library cannot take part on this device, or ""."""
        return "" if device in self.devices else f"{self.name} arrays live on the host"

    def put(self, host: np.ndarray, device: str) -> Any:
        return host

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def compiled(self, call: Call) -> Call:
        """The call as users of the library run it, compiled if that is usual."""
        return call

    def prepare(self, call: Call, a: Any) -> None:
        """Compile a call of ``compiled`` for this input without running it, if the library compiles."""

    def waited(self, call: Call, a: Any) -> Callable[[], Any]:
        """One call that ends when the result is ready."""
        return partial(call, a)

    def queued(self, call: Call, a: Any, count: int) -> float:
        """Seconds per call of ``count`` calls queued one after the other."""
        wait = self.waited(call, a)
        wait()
        start = perf_counter()
        for _ in range(count - 1):
            call(a)
        wait()
        return (perf_counter() - start) / count

    def copier(self) -> Call:
        """Reads and writes every element once."""
        return np.copy

    def tidy(self) -> None:
        """Release cached memory."""


def then(call: Call, a: Any, wait: Callable[[], Any]) -> Callable[[], None]:
    """One call, and the wait for its result."""

    def both() -> None:
        call(a)
        wait()

    return both


def first_of(a: Any) -> Any:
    """The matrix of an input that may be a pair of it and right-hand sides."""
    return a[0] if isinstance(a, tuple) else a


def spin_cycles(count: int) -> int:
    """Clock cycles to keep the device busy while ``count`` calls are queued, so that the host's speed does not matter."""
    return int(min(count * 100e-6, 50e-3) * 1.8e9)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress stderr, also from native code: some libraries print messages at import."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def quietly(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        call()
