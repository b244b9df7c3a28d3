"""Doors that replace names in a module: what NumPy's, SciPy's and JAX's have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

import numpy as np

from .ahead import saved

Kernel = Callable[..., Any]
_REFUSED = (np.linalg.LinAlgError, TypeError, ValueError, NotImplementedError)


def replace_functions(
    modules: list[Any],
    kernels: dict[str, Kernel],
    accepts: Callable[[Any], bool],
    counts: dict[str, list[float]],
    prefix: str = "",
    waits: bool = True,
) -> Callable[[], None]:
    """Put the kernels in front of the functions of these modules; returns a function that restores them.

    A kernel returns None, or raises, where the library's own function is to take the call: then errors are the library's own.
    waits: whether the results are there when a kernel returns, so that its time says something.
    """
    undo = []
    installed = [True]  # empty after the undo: a function that was imported in between is then the library's own
    for name, kernel in kernels.items():
        own = getattr(modules[0], name, None)
        if own is None:  # an older release
            continue
        function = _guarded(own, kernel, accepts, counts.setdefault(prefix + name, [0, 0, 0.0]), installed, waits)
        for module in modules:
            if getattr(module, name, None) is own:
                setattr(module, name, function)
                undo.append((module, name, function, own))

    def restore() -> None:
        installed.clear()
        for module, name, function, own in undo:
            if getattr(module, name, None) is function:  # nobody else has replaced it since
                setattr(module, name, own)

    return restore


def _guarded(
    own: Kernel,
    kernel: Kernel,
    accepts: Callable[[Any], bool],
    count: list[float],
    installed: list[bool],
    waits: bool,
) -> Kernel:
    @wraps(own)
    def call(*arguments: Any, **options: Any) -> Any:
        if installed and arguments and accepts(arguments[0]):
            start = perf_counter()
            try:
                result = kernel(*arguments, **options)
            except _REFUSED:
                result = None
            if result is not None:
                count[0] += 1
                if waits and count[0] > 1:  # the first call loads code
                    count[2] += saved(perf_counter() - start)
                return result
        count[1] += 1
        return own(*arguments, **options)

    return call
