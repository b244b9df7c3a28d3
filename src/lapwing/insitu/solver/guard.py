"""Finding NaN and Inf without making the solver's device wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import library_of

_WAITING = 64  # sums held on a device before they are looked at


class Guard:
    """Checks arrays: those on the host at once, those on a device every 64 arrays, by their sums."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._sums: list[tuple[int, str, Any]] = []

    def check(self, step: int, name: str, array: Any) -> None:
        if isinstance(array, np.ndarray):
            # a sum costs one pass and no memory; only if it overflows must every number be looked at
            with np.errstate(all="ignore"):
                total = array.sum()
            if not np.isfinite(total) and not np.isfinite(array).all():
                self._refuse(step, name)
            return
        self._sums.append((step, name, array.sum()))
        if len(self._sums) >= _WAITING:
            self.flush()

    def flush(self) -> None:
        """Look at the sums that wait on the device."""
        sums, self._sums = self._sums, []
        for step, name, total in sums:
            if not np.isfinite(complex(total) if library_of(total) else total):
                self._refuse(step, name)

    def _refuse(self, step: int, name: str) -> None:
        raise ValueError(f"{self._who}: NaN or Inf in field {name!r} at step {step}")


def check_shape(who: str, step: int, name: str, shape: tuple[int, ...], before: tuple[int, ...]) -> None:
    """A field that changes shape is an error that says so."""
    if tuple(shape) != tuple(before):
        raise ValueError(f"{who}: field {name!r} has the shape {tuple(shape)} at step {step}, and had {tuple(before)} before")
