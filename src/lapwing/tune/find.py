"""A backend by its name, for a library: only lapwing's own. A file may not name code to be loaded."""

from __future__ import annotations

import importlib
from functools import cache
from typing import cast

from .backends.base import Backend

__all__ = ["find_backend"]

_OWN = ("cublaslt", "triton", "triton_frozen", "cpu", "hipblaslt")


@cache
def find_backend(name: str) -> Backend:
    """The backend of this name; ``KeyError`` where there is none."""
    if name not in _OWN:
        raise KeyError(f"there is no backend {name!r}; one of your own is handed over: backends={{{name!r}: ...}}")
    return cast(Backend, importlib.import_module(f"{__package__}.backends.{name}").BACKEND)
