"""CuPy arrays, on CuPy's current stream."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np

from ..core.native import AUTO, CUDA, how_to_build, missing_reason, native
from ..core.operation import Operation, Params
from ..core.problem import COMPLEX, DTYPES, OVERWRITE, REAL, Spec
from .like_numpy import LightFunctions, NumpyNamespace

sharded = False
light = LightFunctions(cp)
_CODE = {np.dtype(name): code for code, name in enumerate(DTYPES)}
_captures = not cp.cuda.runtime.is_hip  # built for ROCm, CuPy captures no graphs, and raises an error when it is asked


def describe(a: Any) -> Spec:
    return Spec(a.shape, a.dtype.name, "cuda")


def shape_of(a: Any) -> tuple[int, ...]:
    return a.shape  # type: ignore[no-any-return]


def dtype_of(a: Any) -> str:
    return a.dtype.name  # type: ignore[no-any-return]


def direct(a: Any) -> bool:
    return False


def traced(a: Any) -> bool:
    return _captures and bool(cp.cuda.get_current_stream().is_capturing())


def sized(a: Any) -> bool:
    return True


def apply(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool) -> tuple[Any, ...]:
    a, *others = arrays
    if native is None:
        raise RuntimeError(f"{operation.name}: CuPy arrays need the native core, and {missing_reason}\nhint: {how_to_build()}")
    device = a.device
    if operation.elsewhere is not None:
        with device:
            if traced(a) or not operation.native_elsewhere(tuple(x.shape for x in arrays), engine, a.dtype.name):
                return operation.elsewhere(Namespace, params, arrays, engine)
    with device:
        turned = False
        aligned = a.data.ptr % a.itemsize == 0
        if not (aligned and a.flags.c_contiguous):
            turned = (
                aligned and operation.turned(a.dtype.name, params[0], on_cpu=False) and a.swapaxes(-1, -2).flags.c_contiguous
            )
            if turned:
                a, params = a.swapaxes(-1, -2), (operation.turned_flags(params[0], a.dtype.kind == "f"), *params[1:])
            else:
                a, overwrite = _aligned(a) if not aligned else cp.array(a, order="C"), True
        others = [_plain(x, a.dtype if x.dtype.kind != "i" else cp.int32) for x in others]
        shapes = (a.shape, *[x.shape for x in others])
        kinds = {None: a.dtype, "real": REAL[a.dtype.name], "complex": COMPLEX[a.dtype.name]}
        outputs = tuple(cp.empty(shape, kinds.get(dtype, dtype)) for shape, dtype in operation.results(shapes, params))
        flags = params[0]
        if overwrite:
            flags |= OVERWRITE
            outputs = operation.share(outputs, a)
        call = (operation.code, _CODE[a.dtype], CUDA, device.id, engine, 0, flags, operation.sizes(shapes, params))
        stream = cp.cuda.get_current_stream().ptr
        native.run(*call, stream, _Scratch(), *[x.data.ptr for x in (a, *others, *outputs)])
    return operation.turn_back(outputs) if turned else outputs


def _plain(x: Any, dtype: Any) -> Any:
    """Contiguous and aligned, for native code; copied only if needed."""
    return cp.ascontiguousarray(_aligned(x) if x.data.ptr % x.itemsize else x, dtype)


def _aligned(x: Any) -> Any:
    """A copy that is made byte by byte, as a kernel that reads elements at an unaligned address fails."""
    if not x.flags.c_contiguous:
        raise ValueError(
            "a CuPy array whose memory is neither aligned nor contiguous cannot be read\nhint: copy it on the host"
        )
    copy = cp.empty(x.shape, x.dtype)
    copy.data.copy_from_device_async(x.data, x.nbytes)
    return copy


class _Scratch:
    """Scratch memory for one call. Once it is freed, the pool reuses it in stream order."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []

    def __call__(self, size: int) -> int:
        self.blocks.append(cp.cuda.alloc(size))
        return int(self.blocks[-1].ptr)


def failed(info: Any) -> bool:
    return bool(info.any())


def to_numpy(x: Any) -> np.ndarray:
    return cp.asnumpy(x)  # type: ignore[no-any-return]


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, cp.cuda.memory.OutOfMemoryError))


def differentiates(a: Any) -> bool:
    return False


def register(kind: Any, take_apart: Any, put_together: Any) -> None:
    """Nothing to do: only JAX takes objects apart."""


class Namespace(NumpyNamespace):
    module = cp
    to_numpy = staticmethod(to_numpy)

    @staticmethod
    def put(x: np.ndarray, like: Any) -> Any:
        return cp.asarray(x)

    @staticmethod
    def largest(x: Any) -> Any:  # CuPy's max takes no initial value
        return cp.max(x, -1, keepdims=True) if x.shape[-1] else cp.zeros((*x.shape[:-1], 1), x.dtype)

    @staticmethod
    def broadcast_batch(a: Any, b: Any) -> tuple[Any, Any]:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return cp.broadcast_to(a, (*batch, *a.shape[-2:])), cp.broadcast_to(b, (*batch, *b.shape[-2:]))

    @staticmethod
    def call(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int = AUTO) -> tuple[Any, ...]:
        return apply(operation, arrays, params, engine, False)


def run_operator(call: Any, matvec: Any, n: int, dtype: str, results: Any, like: Any) -> tuple[tuple[Any, ...], bool]:
    """As for NumPy, on CuPy's current stream."""
    assert native is not None
    operation, code, engine, sizes = call
    with like.device:
        stream = cp.cuda.get_current_stream().ptr

        def product(x: int, y: int, columns: int) -> None:
            block = cp.empty((columns, n), dtype)
            native.copy(CUDA, stream, block.data.ptr, x, block.nbytes)
            answer = cp.ascontiguousarray(cp.asarray(matvec(block.T)).T)
            native.copy(CUDA, stream, y, answer.data.ptr, answer.nbytes)

        outputs = tuple(cp.empty(shape, kind) for shape, kind in results)
        frame = (operation, code, CUDA, like.device.id, engine, 0, 0, sizes)
        addresses = [x.data.ptr for x in outputs]
        converged = native.run_operator(*frame, stream, _Scratch(), product, *addresses)
    return outputs, converged
