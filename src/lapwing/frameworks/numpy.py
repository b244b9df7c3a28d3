"""NumPy arrays: the plain fast path."""

from __future__ import annotations

import ctypes
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from ..core.native import AUTO, CPU, missing_reason, native, warn_of_numpy
from ..core.operation import Operation, Params
from ..core.problem import COMPLEX, DTYPES, OVERWRITE, REAL, Spec
from .like_numpy import LightFunctions, NumpyNamespace

sharded = False
light = LightFunctions(np)
_CODE = {np.dtype(name): code for code, name in enumerate(DTYPES)}
_empty, _ndarray = np.empty, np.ndarray
_NAME = {np.dtype(name): name for name in DTYPES}  # dtype.name costs as much as a small factorisation


def describe(a: np.ndarray) -> Spec:
    return Spec(a.shape, a.dtype.name, "cpu")


def shape_of(a: np.ndarray) -> tuple[int, ...]:
    return a.shape


def dtype_of(a: np.ndarray) -> str:
    return _NAME.get(a.dtype) or a.dtype.name


def direct(a: np.ndarray) -> bool:
    return type(a) is _ndarray


def traced(a: np.ndarray) -> bool:
    return False


def sized(a: np.ndarray) -> bool:
    return True


def apply(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool) -> tuple[Any, ...]:
    a, *others = arrays
    dtype = a.dtype
    code = _CODE.get(dtype)
    if code is None:  # foreign byte order
        a = a.astype(dtype.newbyteorder("="))
        code, dtype, overwrite = _CODE[a.dtype], a.dtype, True
    turned = False
    flags = a.flags
    if not flags.carray and not (flags.c_contiguous and flags.aligned):
        turned = (
            operation.turned(_NAME[dtype], params[0], on_cpu=True) and flags.aligned and a.swapaxes(-1, -2).flags.c_contiguous
        )
        if turned:
            a, params = a.swapaxes(-1, -2), (operation.turned_flags(params[0], dtype.kind == "f"), *params[1:])
        else:
            a, overwrite = np.array(a, order="C"), True
    if others:
        others = [x if x.dtype is dtype and x.flags.carray else _plain(x, dtype) for x in others]
    if native is None:
        warn_of_numpy(missing_reason)
        outputs = operation.reference((a, *others), params)
    else:
        shapes = (a.shape, *[x.shape for x in others]) if others else (a.shape,)
        sizes, results, kinds = _layout(operation, shapes, params, dtype)
        outputs = tuple(map(np.empty, results, kinds))
        bits = params[0]
        if overwrite and a.flags.writeable:
            bits |= OVERWRITE
            outputs = operation.share(outputs, a)
        native.run(operation.code, code, CPU, -1, engine, 0, bits, sizes, 0, None, a, *others, *outputs)
    return operation.turn_back(outputs) if turned else outputs


def solve_direct(operation: Operation, flags: int, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray | None:
    """The short way for plain arrays: the single result, shaped as the last array.

    None if the arrays differ in dtype, their shapes do not fit, or a matrix fails. Checking everything else that an array could
    be would take longer than solving a small system.
    """
    dtype = a.dtype
    code = _CODE.get(dtype)
    if code is None or native is None or type(a) is not _ndarray:
        return None
    if b is None:
        x = _empty(a.shape, dtype)
        return x if native.direct(operation.code, code, 0, flags, a, x) else None
    if type(b) is not _ndarray or b.dtype is not dtype:
        return None
    x = _empty(b.shape, dtype)
    return x if native.direct(operation.code, code, 0, flags, a, b, x) else None


def results_direct(operation: Operation, params: Params, a: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """The same for any operation with a status, of one array or two: its results without the status."""
    dtype = a.dtype
    code = _CODE.get(dtype)
    if code is None or native is None or type(a) is not _ndarray:
        return None
    if not rest:
        layout = _direct_layout(operation, (a.shape,), params, dtype)
    elif type(rest[0]) is _ndarray and rest[0].dtype is dtype:
        layout = _direct_layout(operation, (a.shape, rest[0].shape), params, dtype)
    else:
        return None
    if layout is None:
        return None
    number, flags, sizes, results = layout
    if not rest and len(results) <= 2:  # spelled out: the general form takes a tenth longer for a small determinant
        shape, kind = results[0]
        x = _empty(shape, kind)
        if len(results) == 1:
            return (x,) if native.direct_sized(number, code, 0, flags, sizes, a, x) else None
        shape, kind = results[1]
        y = _empty(shape, kind)
        return (x, y) if native.direct_sized(number, code, 0, flags, sizes, a, x, y) else None
    outputs = tuple([_empty(*result) for result in results])
    return outputs if native.direct_sized(number, code, 0, flags, sizes, a, *rest, *outputs) else None


@lru_cache(maxsize=1024)
def _direct_layout(operation: Operation, shapes: tuple[Any, ...], params: Params, dtype: np.dtype) -> Any:
    """The operation, its flags and sizes, and the shape and dtype of each result but the status.

    None if the shapes need the long way."""
    if not operation.takes(shapes):
        return None
    sizes, results, kinds = _layout(operation, shapes, params, dtype)
    count = len(results) - operation.has_status
    return operation.code, params[0], sizes, tuple(zip(results[:count], kinds[:count], strict=True))


def _plain(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Contiguous and aligned, for native code; copied only if needed."""
    x = np.ascontiguousarray(x, dtype if x.dtype.kind != "i" else np.int32)
    return x if x.flags.aligned else x.copy()


@lru_cache(maxsize=1024)
def _layout(operation: Operation, shapes: tuple[Any, ...], params: Params, dtype: np.dtype) -> tuple[Any, Any, Any]:
    """The sizes for the native core; shape and dtype of each result."""
    name = _NAME[dtype]
    known = {None: dtype, "real": np.dtype(REAL[name]), "complex": np.dtype(COMPLEX[name])}
    results, kinds = zip(*operation.results(shapes, params), strict=True)
    return operation.sizes(shapes, params), results, [known[d] if d in known else np.dtype(d) for d in kinds]


def failed(info: np.ndarray) -> bool:
    return bool(info.any() if info.ndim else info.item())


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError)


def to_numpy(x: np.ndarray) -> np.ndarray:
    return x


def differentiates(a: Any) -> bool:
    return False


def register(kind: Any, take_apart: Any, put_together: Any) -> None:
    """Nothing to do: only JAX takes objects apart."""


class Namespace(NumpyNamespace):
    module = np
    quiet = staticmethod(partial(np.errstate, all="ignore"))
    to_numpy = staticmethod(to_numpy)

    @staticmethod
    def log(x: np.ndarray) -> Any:
        with np.errstate(divide="ignore"):  # -inf is the right logarithm of a determinant that is zero
            return np.log(x)

    @staticmethod
    def scalar(x: np.ndarray) -> Any:
        return x[()]

    @staticmethod
    def put(x: np.ndarray, like: np.ndarray) -> np.ndarray:
        return x

    @staticmethod
    def call(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int = AUTO) -> tuple[Any, ...]:
        return apply(operation, arrays, params, engine, False)


def run_operator(call: Any, matvec: Any, n: int, dtype: str, results: Any, like: Any) -> tuple[tuple[Any, ...], bool]:
    """Run a Krylov iteration in which ``matvec`` multiplies a block (n, k) by the matrix. Returns the outputs, and whether it
    converged."""
    assert native is not None
    operation, code, engine, sizes = call

    def product(x: int, y: int, columns: int) -> None:
        # a copy: the function may keep or change its argument
        _at(y, (columns, n), dtype)[...] = np.asarray(matvec(_at(x, (columns, n), dtype).T.copy())).T

    outputs = tuple(np.empty(shape, kind) for shape, kind in results)
    addresses = [x.ctypes.data for x in outputs]
    converged = native.run_operator(operation, code, CPU, -1, engine, 0, 0, sizes, 0, None, product, *addresses)
    return outputs, converged


def _at(address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    memory = (ctypes.c_char * (prod(shape) * kind.itemsize)).from_address(address)
    return np.ndarray(shape, kind, memoryview(memory))
