"""The operations behind solve, inv, slogdet and factor, as the frameworks see them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..core import derivatives
from ..core.operation import Operation, Params, Shape
from ..core.problem import ADJOINT, CONJUGATE, MIXED, POS, UNIT, UPPER
from .cholesky import CHOLESKY
from .triangle import HERMITIAN, batch_and_order, nan_for


def _with_columns(shapes: tuple[Shape, ...], params: Params) -> Shape:
    return prod(shapes[0][:-2]), shapes[0][-1], shapes[-1][-1]


def _solution(shapes: tuple[Shape, ...], params: Params) -> Any:
    return ((shapes[-1], None),)


def _solution_and_info(shapes: tuple[Shape, ...], params: Params) -> Any:
    return (shapes[-1], None), (shapes[0][:-2], "int32")


def _composed_solve(xp: Any, params: Params, inputs: Any, engine: int) -> tuple[Any, ...]:
    """One factorisation serves the solution and its derivatives of any order."""
    a, b = inputs
    if params[0] & POS:
        l, info = xp.call(CHOLESKY, (xp.constant(a),), (params[0] & UPPER,), engine)
        return (*xp.call(CHOLESKY_SOLVE, (a, l, b), (params[0] & UPPER,), engine), info)
    lu, rows, info = xp.call(LU, (xp.constant(a),), (0,), engine)
    return (*xp.call(LU_SOLVE, (a, lu, rows, b), (0,), engine), info)


# ---- with numpy.linalg, if there is no native core


def _filled(a: np.ndarray, flags: int) -> np.ndarray:
    """The matrix with both triangles."""
    return HERMITIAN.reference((a,), (flags & UPPER,))[0] if flags & POS else a  # type: ignore[no-any-return]


def _lu_of_one(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    n = len(a)
    lu, rows = a.copy(), np.arange(n, dtype=np.int32)
    for j in range(n):
        p = j + int(np.argmax(np.abs(lu[j:, j])))
        if not (np.isfinite(lu[p, j]) and lu[p, j] != 0):
            lu[...] = nan_for(lu)
            return lu, rows, j + 1
        lu[[j, p]], rows[[j, p]] = lu[[p, j]], rows[[p, j]]
        lu[j + 1 :, j] /= lu[j, j]
        lu[j + 1 :, j + 1 :] -= np.outer(lu[j + 1 :, j], lu[j, j + 1 :])
    return lu, rows, 0


def _lu_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    (a,) = arrays
    lu, rows, info = np.empty_like(a), np.empty(a.shape[:-1], np.int32), np.zeros(a.shape[:-2], np.int32)
    with np.errstate(all="ignore"):
        for m in np.ndindex(info.shape):
            lu[m], rows[m], info[m] = _lu_of_one(a[m])
    return lu, rows, info


def _pivots(a: np.ndarray, flags: int) -> np.ndarray:
    """The status that the factorisation of each matrix returns."""
    return CHOLESKY.reference((a,), (flags & UPPER,))[1] if flags & POS else _lu_reference((a,), ())[2]  # type: ignore[no-any-return]


def _guarded(a: np.ndarray, flags: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrices, with the identity in place of those that fail, and the status."""
    info = _pivots(a, flags)
    return np.where(info[..., None, None] == 0, _filled(a, flags), np.eye(a.shape[-1], dtype=a.dtype)), info


def _solve_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    a, b = arrays
    safe, info = _guarded(a, params[0])
    x = np.linalg.solve(safe, b)
    x[info != 0] = nan_for(x)
    return x, info


def _inverse_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    safe, info = _guarded(arrays[0], params[0])
    x = np.linalg.inv(safe)
    if params[0] & POS:
        x = HERMITIAN.reference((x,), (0,))[0]
    x[info != 0] = nan_for(x)
    return x, info


def _triangular_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    l, b = arrays
    flags = params[0]
    part = np.triu(l) if flags & UPPER else np.tril(l)
    if flags & CONJUGATE:
        part = part.conj()
    index = np.arange(l.shape[-1])
    if flags & UNIT:
        part[..., index, index] = 1
    pivots = part[..., index, index]
    bad = ~np.isfinite(pivots) | (pivots == 0)
    info = np.where(bad.any(-1), bad.argmax(-1) + 1, 0).astype(np.int32) if l.shape[-1] else np.zeros(l.shape[:-2], np.int32)
    safe = np.where(info[..., None, None] == 0, part, np.eye(l.shape[-1], dtype=l.dtype))
    x = np.linalg.solve(safe.swapaxes(-1, -2).conj() if flags & ADJOINT else safe, b)
    x[info != 0] = nan_for(x)
    return x, info


def _lu_solve_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    _, lu, rows, b = arrays
    l, u = (UNIT,), (UPPER,)
    if params[0] & ADJOINT:
        y, _ = _triangular_reference((lu, b), (UPPER | ADJOINT,))
        z, _ = _triangular_reference((lu, y), (UNIT | ADJOINT,))
        x = np.empty_like(z)
        np.put_along_axis(x, np.broadcast_to(rows[..., None], z.shape), z, -2)
        return (x,)
    permuted = np.take_along_axis(b, np.broadcast_to(rows[..., None], b.shape), -2)
    y, _ = _triangular_reference((lu, permuted), l)
    return (_triangular_reference((lu, y), u)[0],)


def _cholesky_solve_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    _, l, b = arrays
    upper = params[0] & UPPER
    y, _ = _triangular_reference((l, b), (upper | ADJOINT if upper else 0,))
    return (_triangular_reference((l, y), (upper if upper else ADJOINT,))[0],)


def _slogdet_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    (a,) = arrays
    filled = _filled(a, params[0])
    finite = np.isfinite(filled).all((-1, -2))
    info = _pivots(a, POS | params[0]) if params[0] & POS else (~finite).astype(np.int32)
    sign, logabs = np.linalg.slogdet(np.where(finite[..., None, None], filled, 1))
    sign, logabs = np.array(sign, a.dtype), np.asarray(logabs)
    sign[info != 0], logabs[info != 0] = np.nan, np.nan
    return sign, logabs, info


SOLVE = Operation(
    "solve",
    results=_solution_and_info,
    sizes=_with_columns,
    reference=_solve_reference,
    work=lambda p: ((2 - p.pos) / 3 * p.n**3 + 2 * p.n**2 * p.sides, p.n * (p.n + 2 * p.sides)),
    ranks=(2, 2),
    composed=_composed_solve,
    by_columns=True,
    turns="pos",
)
# Every derivative is a separate solve, as a factor in lower precision cannot be kept for it.
SOLVE_MIXED = replace(
    SOLVE,
    variant="mixed",
    composed=None,
    product=derivatives.solve_product,
    adjoint=derivatives.solve_adjoint,
    jvp=derivatives.solve_jvp,
    vjp=derivatives.solve_vjp,
    example=(MIXED,),
    keeps_inputs=lambda params: True,
)
TRIANGULAR = Operation(
    "triangular",
    results=_solution_and_info,
    sizes=_with_columns,
    reference=_triangular_reference,
    work=lambda p: (p.n**2 * p.sides, p.n * (p.n + 2 * p.sides)),
    ranks=(2, 2),
    product=derivatives.triangular_product,
    jvp=derivatives.triangular_jvp,
    vjp=derivatives.triangular_vjp,
    keeps_inputs=lambda params: True,
    by_columns=True,
    turns="adjoint",
)
LU = Operation(
    "lu",
    results=lambda shapes, params: ((shapes[0], None), (shapes[0][:-1], "int32"), (shapes[0][:-2], "int32")),
    sizes=batch_and_order,
    reference=_lu_reference,
    work=lambda p: (2 / 3 * p.n**3, 2 * p.n**2),
    alias=0,
)
# The first input is the matrix that was factored. It is not read: it is there for derivatives with respect to it.
LU_SOLVE = Operation(
    "lu_solve",
    results=_solution,
    sizes=_with_columns,
    reference=_lu_solve_reference,
    work=lambda p: (2 * p.n**2 * p.sides, p.n * (p.n + 2 * p.sides)),
    ranks=(2, 2, 1, 2),
    product=derivatives.lu_product,
    jvp=derivatives.lu_solve_jvp,
    vjp=derivatives.lu_solve_vjp,
    keeps_inputs=lambda params: True,
    by_columns=True,
)
CHOLESKY_SOLVE = replace(
    LU_SOLVE,
    name="cholesky_solve",
    reference=_cholesky_solve_reference,
    ranks=(2, 2, 2),
    product=derivatives.cholesky_product,
    jvp=derivatives.cholesky_solve_jvp,
    vjp=derivatives.cholesky_solve_vjp,
)
INVERSE = Operation(
    "inverse",
    results=lambda shapes, params: ((shapes[0], None), (shapes[0][:-2], "int32")),
    sizes=batch_and_order,
    reference=_inverse_reference,
    work=lambda p: ((2 - p.pos) * p.n**3, 2 * p.n**2),
    jvp=derivatives.inverse_jvp,
    vjp=derivatives.inverse_vjp,
    alias=0,
    turns="pos",
)
SLOGDET = Operation(
    "slogdet",
    results=lambda shapes, params: ((shapes[0][:-2], None), (shapes[0][:-2], "real"), (shapes[0][:-2], "int32")),
    sizes=batch_and_order,
    reference=_slogdet_reference,
    work=lambda p: (p.n, p.n) if p.by_framework else ((2 - p.pos) / 3 * p.n**3, p.n**2),
    jvp=derivatives.slogdet_jvp,
    vjp=derivatives.slogdet_vjp,
    differentiable=2,
    keeps_inputs=lambda params: True,
    turns="pos",
)
