"""Array functions for the libraries that have NumPy's functions: NumPy, CuPy, JAX, and for the most part torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np

# functions of the library that are used unchanged
_PLAIN = (
    *("where", "abs", "conj", "real", "any", "sum", "exp", "log", "sqrt", "isfinite", "argmax", "zeros_like", "ones_like"),
    *("tril", "triu", "reshape", "moveaxis", "stack"),
)


class NumpyNamespace:
    """The functions that core/derivatives.py and composed operations are written in; ``module`` is the library."""

    module: Any
    quiet: Any = staticmethod(nullcontext)  # arithmetic that does not warn of results out of range

    @classmethod
    def like(cls, x: Any, y: Any) -> Any:
        return x.astype(y.dtype)

    @classmethod
    def dtype_name(cls, x: Any) -> str:
        return str(x.dtype)

    @classmethod
    def adjoint(cls, x: Any) -> Any:
        return cls.module.conj(cls.module.swapaxes(x, -1, -2))

    @classmethod
    def matmul(cls, x: Any, y: Any) -> Any:
        return x @ y

    @classmethod
    def swap(cls, x: Any) -> Any:
        return cls.module.swapaxes(x, -1, -2)

    @classmethod
    def eye(cls, like: Any) -> Any:
        """The identity in the shape of ``like``. Explicit broadcasting, as JAX can refuse arrays of unequal rank."""
        return cls.module.broadcast_to(cls.module.eye(like.shape[-1], dtype=like.dtype), like.shape)

    @classmethod
    def half_tril(cls, x: Any) -> Any:
        return cls.module.tril(x) - cls.diag(cls.diagonal(x)) / 2

    @classmethod
    def diagonal(cls, x: Any) -> Any:
        return cls.module.diagonal(x, axis1=-2, axis2=-1)

    @classmethod
    def diag(cls, x: Any) -> Any:
        n = x.shape[-1]
        return x[..., None] * cls.module.reshape(cls.module.eye(n, dtype=x.dtype), (*[1] * (x.ndim - 1), n, n))

    @classmethod
    def product(cls, x: Any) -> Any:
        return cls.module.prod(x, -1)

    @classmethod
    def largest(cls, x: Any) -> Any:
        return cls.module.max(x, -1, keepdims=True, initial=0)

    @classmethod
    def order(cls, x: Any) -> Any:
        return x.shape[-1]

    @classmethod
    def norm(cls, x: Any) -> Any:
        return cls.module.linalg.norm(x)

    @classmethod
    def cast(cls, x: Any, name: str) -> Any:
        with np.errstate(over="ignore"):  # a number that is too large becomes Inf, as in the other libraries
            return x.astype(name)

    @classmethod
    def ratio(cls, x: Any, y: Any) -> Any:
        """x / y, and 0 for 0 / 0."""
        return cls.module.where(x == 0, cls.module.zeros_like(x), x / cls.module.where(y == 0, cls.module.ones_like(y), y))

    @classmethod
    def power_of_two(cls, x: Any) -> Any:
        """A constant power of two near x, in range like its reciprocal; 1 for 0 and for numbers that are not finite."""
        limits = np.finfo(cls.dtype_name(x))
        exponent = cls.constant(cls.module.frexp(x)[1]).clip(limits.minexp + 2, limits.maxexp - 2)
        ones = cls.module.ones_like(x)
        return cls.module.where((x > 0) & cls.module.isfinite(x), cls.module.ldexp(ones, exponent), ones)

    @classmethod
    def whole(cls, x: Any) -> Any:
        """Whole numbers: x as int32."""
        return x.astype(cls.module.int32)

    @classmethod
    def places(cls, x: Any) -> Any:
        """0, 1, 2, ... along the last axis of integers."""
        return cls.module.broadcast_to(cls.module.arange(x.shape[-1], dtype=x.dtype), x.shape)

    @classmethod
    def take(cls, x: Any, index: Any) -> Any:
        return cls.module.take_along_axis(x, index, -1)

    @classmethod
    def if_all(cls, flags: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return yes() if bool(cls.module.all(flags)) else no()

    @classmethod
    def repeat(cls, count: int, step: Callable[[Any], Any], state: Any) -> Any:
        """The state after ``count`` steps; JAX traces one step for all."""
        for _ in range(count):
            state = step(state)
        return state

    @classmethod
    def constant(cls, x: Any) -> Any:
        return x

    @classmethod
    def scalar(cls, x: Any) -> Any:
        """A single number in the form that the library's own functions return."""
        return x

    @classmethod
    def kept(cls, x: Any) -> Any:
        """The array with its present values, even if its owner changes them later."""
        return x.copy()

    @classmethod
    def later(cls, function: Callable[[], Any]) -> Callable[[], Any]:
        """The function for a call at any later time, with the derivatives that are being recorded now."""
        return function

    @classmethod
    def now(cls, function: Callable[[], Any]) -> Callable[[], Any]:
        """A function that returns later the value of ``function`` now."""
        value = function()
        return lambda: value

    @classmethod
    def shape(cls, x: Any) -> tuple[Any, ...]:
        return tuple(x.shape)

    @classmethod
    def beside(cls, x: Any, y: Any) -> Any:
        """(x | y): the columns of x, then those of y."""
        return cls.module.concatenate([x, y], -1)

    @classmethod
    def broadcast_batch(cls, a: Any, b: Any) -> tuple[Any, Any]:
        batch = cls.module.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return cls.module.broadcast_to(a, (*batch, *a.shape[-2:])), cls.module.broadcast_to(b, (*batch, *b.shape[-2:]))

    @classmethod
    def one_hot(cls, index: Any, like: Any) -> Any:
        """1 at ``index`` along the last axis but one of ``like``."""
        n = like.shape[-2]
        rows = cls.module.reshape(cls.module.arange(n), (*[1] * index.ndim, n, 1))
        return (rows == index[..., None, None]).astype(like.dtype)

    @classmethod
    def __init_subclass__(cls) -> None:
        for name in _PLAIN:
            if name not in vars(cls):
                setattr(cls, name, staticmethod(getattr(cls.module, name)))


class LightFunctions:
    """The library's own functions under the names and keywords of the array API standard; NumPy 1 and CuPy have them too."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.matmul, self.outer, self.tensordot, self.cross = module.matmul, module.outer, module.tensordot, module.cross

    def diagonal(self, x: Any, *, offset: int) -> Any:
        return self.module.diagonal(x, offset=offset, axis1=-2, axis2=-1)

    def trace(self, x: Any, *, offset: int, dtype: Any) -> Any:
        return self.module.trace(x, offset=offset, axis1=-2, axis2=-1, dtype=dtype)

    def matrix_transpose(self, x: Any) -> Any:
        return self.module.swapaxes(x, -1, -2)

    def vecdot(self, x1: Any, x2: Any, *, axis: int) -> Any:
        x1, x2 = (self.module.moveaxis(x, axis, -1) for x in (x1, x2))
        return self.module.matmul(self.module.conj(x1)[..., None, :], x2[..., :, None])[..., 0, 0]

    def matrix_norm(self, x: Any, *, ord: Any, keepdims: bool) -> Any:
        if x.size == 0 and ord in (1, math.inf):  # CuPy and older NumPy have no maximum of an empty array
            return self.module.zeros((*x.shape[:-2], 1, 1) if keepdims else x.shape[:-2], x.real.dtype)
        return self.module.linalg.norm(x, ord=ord, axis=(-2, -1), keepdims=keepdims)

    def vector_norm(self, x: Any, *, axis: Any, ord: Any, keepdims: bool) -> Any:
        axes = tuple(range(x.ndim)) if axis is None else tuple(i % x.ndim for i in axis)
        kept = tuple(i for i in range(x.ndim) if i not in axes)
        shape = tuple(x.shape[i] for i in kept)
        flat = self.module.transpose(x, kept + axes).reshape(
            (*shape, -1) if x.size else (*shape, prod(x.shape[i] for i in axes))
        )
        norm = self.module.linalg.norm(flat, ord=ord, axis=-1)
        return norm.reshape(tuple(1 if i in axes else n for i, n in enumerate(x.shape))) if keepdims else norm
