"""Checks of fields that do not make the solver's device wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import library_of

_WAITING = 64  # sums held on a device before they are checked


class Guard:
    """Finds NaN and Inf: in arrays on the host at once, in arrays on a device by their sums, 64 arrays at a time."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._sums: list[tuple[int, str, Any]] = []

    def check(self, step: int, name: str, array: Any) -> None:
        if isinstance(array, np.ndarray):
            # a sum costs one pass and no memory; only if it is not finite every value must be checked
            with np.errstate(all="ignore"):
                total = array.sum()
            if not np.isfinite(total) and not np.isfinite(array).all():
                self._refuse(step, name)
            return
        self._sums.append((step, name, array.sum()))
        if len(self._sums) >= _WAITING:
            self.flush()

    def flush(self) -> None:
        """Check the sums that are still on the device."""
        sums, self._sums = self._sums, []
        for step, name, total in sums:
            if not np.isfinite(complex(total) if library_of(total) else total):
                self._refuse(step, name)

    def _refuse(self, step: int, name: str) -> None:
        raise ValueError(f"{self._who}: NaN or Inf in field {name!r} at step {step}")


def check_shape(who: str, step: int, name: str, shape: tuple[int, ...], before: tuple[int, ...]) -> None:
    """Raise ValueError if a field has changed its shape."""
    if tuple(shape) != tuple(before):
        raise ValueError(f"{who}: field {name!r} has the shape {tuple(shape)} at step {step}, and had {tuple(before)} before")
