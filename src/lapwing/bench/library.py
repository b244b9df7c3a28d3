"""What the benchmark needs of an array library."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..ops.cholesky import cholesky

__all__ = ["Call", "Library", "first_of", "quietly", "silenced", "spin_cycles"]

Call = Callable[[Any], Any]


class Library:
    """How arrays are made, the library's own routine, lapwing called through it. The defaults suit host arrays."""

    name: str
    own_text: str  # the call, for the report
    devices: tuple[str, ...] = ("cpu",)
    wide: Call | None = None  # to float64 or complex128 on the device

    def missing(self, device: str) -> str:
        """Why the library cannot take part on this device, or ""."""
        return "" if device in self.devices else f"{self.name} arrays live on the host"

    def put(self, host: np.ndarray, device: str) -> Any:
        return host

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def own(self, upper: bool) -> Call:
        """The library's own routine, as its users call it."""
        raise NotImplementedError

    def own_queued(self, upper: bool) -> Call:
        """The same without waiting for the device."""
        return self.own(upper)

    def through(self, upper: bool, engine: str, on_fail: str = "raise") -> Call:
        """lapwing's routine on this library's arrays."""
        if not upper and engine == "auto" and on_fail == "raise":
            return cholesky  # type: ignore[return-value]
        return partial(cholesky, upper=upper, engine=engine, on_fail=on_fail)  # type: ignore[arg-type]

    def compiled(self, call: Call) -> Call:
        """The call as users of the library run it, compiled where that is usual."""
        return call

    def waited(self, call: Call, a: Any) -> Callable[[], Any]:
        """One call that ends when the result is there."""
        return partial(call, a)

    def queued(self, call: Call, a: Any, count: int) -> float:
        """Seconds per call of ``count`` calls queued one behind the other."""
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
        """Give cached memory back."""


def first_of(a: Any) -> Any:
    """The matrix, of an input that may come with right-hand sides."""
    return a[0] if isinstance(a, tuple) else a


def spin_cycles(count: int) -> int:
    """How long the device is kept busy while ``count`` calls are queued, so that the host's own speed does not show."""
    return int(min(count * 100e-6, 50e-3) * 1.8e9)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Nothing reaches stderr, not even from native code: some libraries greet at import."""
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
