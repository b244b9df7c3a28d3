"""The mark of a matrix that stays in host memory or on disk while a limited memory does the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


def unsupported_array(a: Any) -> str:
    """Why an array is neither NumPy's nor a data set, with a hint; "" if it is one of them."""
    package, _, module = type(a).__module__.partition(".")
    if package in ("torch", "jax", "jaxlib", "tensorflow", "cupy"):
        return f"arrays of {package} are not supported\nhint: numpy.asarray(a) of an array on the CPU shares its memory"
    if package == "numpy" and module.startswith("ma"):
        return "masked arrays are not supported\nhint: a.filled(value) makes a plain array; every entry needs a value"
    return ""


@dataclass(frozen=True)
class Progress:
    """What a progress callback receives after each finished panel."""

    operation: str
    done: int  # columns
    total: int
    seconds: float  # since the call began


@dataclass(frozen=True, eq=False)
class HostedMatrix:
    """A matrix that is larger than the memory that works on it; :func:`lapwing.hosted` makes it."""

    source: Any  # an array, a data set, or a function of two slices
    shape: tuple[int, int]
    dtype: str
    memory: int | None = None  # bytes; None: a part of what is free when the call begins
    device: str | None = None  # "cpu", "cuda", "cuda:1"; None: a GPU where there is one
    out: Any = None
    checkpoint: str | None = None
    progress: Callable[[Progress], None] | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if not isinstance(self.source, np.ndarray):
            kind = "function" if callable(self.source) else "data set"
            raise TypeError(
                f"hosted: the matrix of a {kind} is not in memory, and may not fit there, so it is no NumPy array"
                "\nhint: pass it to lapwing's functions; h.source is what lapwing.hosted was given"
            )
        array = np.array(self.source, dtype) if copy else np.asarray(self.source, dtype)
        if copy is False and not np.may_share_memory(array, self.source):
            raise ValueError(f"hosted: {self.dtype} as {np.dtype(dtype)} needs a copy, and copy=False")
        return array

    def __repr__(self) -> str:
        kind = "function" if callable(self.source) else type(self.source).__name__
        return f"hosted({kind}, shape={self.shape}, dtype={self.dtype})"
