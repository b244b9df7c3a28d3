"""NumPy arrays: the plain fast path."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..core.native import CPU, native
from ..core.operation import UPPER, Operation
from ..core.problem import DTYPES, Spec

__all__ = ["apply", "describe", "dtype_of", "failed", "shape_of", "to_numpy", "traced"]

_CODE = {np.dtype(name): code for code, name in enumerate(DTYPES)}
_NAME = {np.dtype(name): name for name in DTYPES}  # dtype.name takes as long as a small factorisation


def describe(a: np.ndarray) -> Spec:
    return Spec(a.shape, a.dtype.name, "cpu")


def shape_of(a: np.ndarray) -> tuple[int, ...]:
    return a.shape


def dtype_of(a: np.ndarray) -> str:
    return _NAME.get(a.dtype) or a.dtype.name


def traced(a: np.ndarray) -> bool:
    return False


def apply(operation: Operation, arrays: tuple[Any, ...], flags: int, engine: int, overwrite: bool) -> tuple[Any, ...]:
    (a,) = arrays
    dtype = a.dtype
    code = _CODE.get(dtype)
    if code is None:  # byte-swapped
        a = a.astype(dtype.newbyteorder("="))
        code, dtype, overwrite = _CODE[a.dtype], a.dtype, True
    turned = False
    if not a.flags.c_contiguous:
        # memory of the transpose: its upper triangle is our lower one
        turned = a.ndim >= 2 and a.swapaxes(-1, -2).flags.c_contiguous
        if turned:
            a, flags = a.swapaxes(-1, -2), flags ^ UPPER
        else:
            a, overwrite = np.ascontiguousarray(a), True
    if native is None:
        outputs = operation.reference(a, flags)
    else:
        sizes, results = _layout(operation, a.shape)
        outputs = tuple([np.empty(s, d or dtype) for s, d in results])
        if overwrite and operation.matrix_out and a.flags.writeable:
            outputs = (a, *outputs[1:])
        native.run(operation.code, code, CPU, -1, engine, 0, flags, sizes, 0, 0, 0, a, *outputs)
    return (outputs[0].swapaxes(-1, -2), *outputs[1:]) if turned and operation.matrix_out else outputs


@lru_cache(maxsize=1024)
def _layout(operation: Operation, shape: tuple[int, ...]) -> tuple[Any, Any]:
    results = [(s, d if d is None else np.dtype(d)) for s, d in operation.results(shape)]
    return operation.sizes(shape), results


def failed(info: np.ndarray) -> bool:
    return bool(info.any() if info.ndim else info.item())


def to_numpy(x: np.ndarray) -> np.ndarray:
    return x
