"""Small operations on the triangle that is read: whether it is finite, and the whole matrix it stands for."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..core.derivatives import hermitian_jvp, hermitian_vjp
from ..core.native import AUTO
from ..core.operation import Operation, Params, Shape
from ..core.problem import SYMMETRIC, UPPER


def finite_flags(framework: Any, a: Any, flags: int) -> Any:
    """1 for each matrix whose named triangle is finite, else 0."""
    return framework.apply(FINITE, (a,), (flags & UPPER,), AUTO, False)[0]


def whole_matrix(framework: Any, a: Any, flags: int) -> Any:
    """The Hermitian matrix of which only the named triangle is read."""
    return framework.apply(HERMITIAN, (a,), (flags & UPPER,), AUTO, False)[0]


def symmetric_matrix(framework: Any, a: Any, flags: int) -> Any:
    """The matrix with A = A^T, not conjugated, of which only the named triangle is read; without derivatives."""
    return framework.apply(HERMITIAN, (a,), (flags & UPPER | SYMMETRIC,), AUTO, False)[0]


def nan_for(x: np.ndarray) -> Any:
    """NaN for the elements of x, in both parts if they are complex."""
    return np.nan * (1 + 1j) if np.iscomplexobj(x) else np.nan


def batch_and_order(shapes: tuple[Shape, ...], params: Params) -> Shape:
    return prod(shapes[0][:-2]), shapes[0][-1]


def _finite_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    triangle = np.triu(arrays[0]) if params[0] & UPPER else np.tril(arrays[0])
    return (np.isfinite(triangle).all((-1, -2)).astype(np.int32),)


def _hermitian_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    (a,) = arrays
    strict = np.triu(a, 1) if params[0] & UPPER else np.tril(a, -1)
    transposed = strict.swapaxes(-1, -2)
    out = strict + (transposed if params[0] & SYMMETRIC else transposed.conj())
    index = np.arange(a.shape[-1])
    diagonal = a[..., index, index]
    out[..., index, index] = diagonal if params[0] & SYMMETRIC else diagonal.real
    return (out,)


FINITE = Operation(
    "finite",
    results=lambda shapes, params: ((shapes[0][:-2], "int32"),),
    sizes=batch_and_order,
    reference=_finite_reference,
    turns="real",  # the other triangle of the transpose has the same elements
)
HERMITIAN = Operation(
    "hermitian",
    results=lambda shapes, params: ((shapes[0], None),),
    sizes=batch_and_order,
    reference=_hermitian_reference,
    jvp=hermitian_jvp,
    vjp=hermitian_vjp,
    alias=0,
    turns="real",
)
