"""CuPy arrays, on CuPy's current stream."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np

from ..core.native import CUDA, missing_reason, native, scratch_bytes
from ..core.operation import UPPER, Operation
from ..core.problem import DTYPES, Spec

__all__ = ["apply", "describe", "dtype_of", "failed", "shape_of", "to_numpy", "traced"]

_CODE = {np.dtype(name): code for code, name in enumerate(DTYPES)}


def describe(a: Any) -> Spec:
    return Spec(a.shape, a.dtype.name, "cuda")


def shape_of(a: Any) -> tuple[int, ...]:
    return a.shape  # type: ignore[no-any-return]


def dtype_of(a: Any) -> str:
    return a.dtype.name  # type: ignore[no-any-return]


def traced(a: Any) -> bool:
    return bool(cp.cuda.get_current_stream().is_capturing())


def apply(operation: Operation, arrays: tuple[Any, ...], flags: int, engine: int, overwrite: bool) -> tuple[Any, ...]:
    (a,) = arrays
    if native is None:
        raise RuntimeError(f"{operation.name}: CuPy arrays need the native core, and {missing_reason}")
    device = a.device
    with device:
        turned = False
        if not a.flags.c_contiguous:
            # memory of the transpose: its upper triangle is our lower one
            turned = bool(a.swapaxes(-1, -2).flags.c_contiguous)
            if turned:
                a, flags = a.swapaxes(-1, -2), flags ^ UPPER
            else:
                a, overwrite = cp.ascontiguousarray(a), True
        outputs = tuple(cp.empty(shape, dtype or a.dtype) for shape, dtype in operation.results(a.shape))
        if overwrite and operation.matrix_out:
            outputs = (a, *outputs[1:])
        call = (operation.code, _CODE[a.dtype], CUDA, device.id, engine, 0, flags, operation.sizes(a.shape))
        bytes_needed = scratch_bytes(*call)
        # the memory pool keeps the block in stream order after it is freed here
        scratch = cp.cuda.alloc(bytes_needed) if bytes_needed else None
        stream = cp.cuda.get_current_stream().ptr
        where = scratch.ptr if scratch is not None else 0
        native.run(*call, stream, where, bytes_needed, a.data.ptr, *[x.data.ptr for x in outputs])
    return (outputs[0].swapaxes(-1, -2), *outputs[1:]) if turned and operation.matrix_out else outputs


def failed(info: Any) -> bool:
    return bool(info.any())


def to_numpy(x: Any) -> np.ndarray:
    return cp.asnumpy(x)  # type: ignore[no-any-return]
