"""NumPy and CuPy arrays."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from .formulas import Kernel
from .tiles import fill

_SHARED = ("arctan2", "clip", "exp", "isfinite", "nonzero", "power", "tril", "where")


def make(x: Any, y: Any, kernel: Kernel, numbers: tuple[Any, ...]) -> Any:
    library, device = _library_of(x)
    with device, np.errstate(invalid="ignore", over="ignore", under="ignore"):
        x, y = _native(x), None if y is None else _native(y)
        out = library.empty((x.shape[0], (x if y is None else y).shape[0]), x.dtype)
        fill(_functions(library), out, x, y, kernel, numbers, on_gpu=library is not np)
    return out


def vector(values: Any, like: Any) -> Any:
    library, device = _library_of(like)
    with device:
        return library.asarray(values, like.dtype.newbyteorder("="))


def _functions(library: Any) -> SimpleNamespace:
    """The functions that gram/tiles.py and gram/formulas.py call, from NumPy or CuPy."""
    return SimpleNamespace(
        root=library.sqrt,
        sum=lambda x: x.sum(-1, keepdims=True),
        largest=lambda x: abs(x).max(-1, keepdims=True) if x.shape[1] else x.sum(-1, keepdims=True),
        stop_gradient=lambda x: x,
        wide=lambda x: x.astype(np.float64, copy=False),
        **{name: getattr(library, name) for name in _SHARED},
    )


def _library_of(x: Any) -> tuple[Any, contextlib.AbstractContextManager]:
    if isinstance(x, np.ndarray):
        return np, contextlib.nullcontext()
    import cupy

    return cupy, x.device


def _native(x: Any) -> Any:
    """In the machine's byte order, without a subclass."""
    return np.asarray(x, x.dtype.newbyteorder("=")) if isinstance(x, np.ndarray) else x
