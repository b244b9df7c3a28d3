"""One file per array library: array in, array out, derivative rules hooked up. Each is loaded when its array is first seen.

Every module here has the same face:

    describe(a)      -> Spec: shape, dtype and device
    shape_of(a), dtype_of(a)
    traced(a)        -> True where values cannot be looked at (jit, compile, graph mode, capture)
    apply(operation, arrays, flags, engine, overwrite) -> the outputs
    failed(info)     -> True when any status is not zero; waits for the device
    to_numpy(x)      -> a NumPy array; waits for the device
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import foreign

__all__ = ["of"]

_BY_TYPE: dict[type, ModuleType] = {}


def of(a: Any, operation: str) -> ModuleType:
    """The framework module for this array."""
    module = _BY_TYPE.get(type(a))
    return module if module is not None else _resolve(type(a), operation)


# Import statements, not importlib: torch.compile follows these when the first call happens inside it.
def _resolve(kind: type, operation: str) -> ModuleType:
    module: ModuleType
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root == "numpy" and not base.__module__.startswith("numpy.ma"):
            if base.__name__ != "ndarray":
                continue
            from . import numpy as module
        elif root == "torch":
            from . import torch as module
        elif root in ("jax", "jaxlib"):
            from . import jax as module
        elif root in ("tensorflow", "keras"):
            from . import tensorflow as module
        elif root == "cupy":
            from . import cupy as module  # type: ignore[attr-defined, no-redef]
        elif root == "numpy":  # a masked array: the mask would be lost
            break
        else:
            continue
        _BY_TYPE[kind] = module
        return module
    if foreign.accepts(kind):
        raise foreign.ForeignArray(
            f"{operation}: {kind.__module__}.{kind.__qualname__} is of another library than the first array"
            "\nhint: convert one of them"
        )
    hint = "numpy.asarray(a, dtype=float) makes one"
    if kind.__module__ == "lapwing.distributed.matrix":
        hint = "with a sharded b the matrix must be sharded too; other calls take .local, or what .gather() brings"
    raise TypeError(
        f"{operation}: expected an array of NumPy, PyTorch, JAX, TensorFlow or CuPy, got {kind.__module__}.{kind.__qualname__}"
        f"\nhint: {hint}"
    )
