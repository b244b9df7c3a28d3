"""JAXMg 1.x for rectangular matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from ... import ConvergenceError, lstsq, svd
from ... import polar as _polar
from ... import qr as _qr
from ...distributed import shard
from ...distributed.backends.xla import dense, sharding
from ...distributed.placement import Placement
from .layout import Place, asked_for, check_matrix, check_rows, discard, finite_status, inside, manual_axes, placed


def qr(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, return_status: bool = False,
    pad: bool = True, donate: bool = False,
) -> Any:  # fmt: skip
    """(Q, R), or (Q, R, status), of a matrix with at least as many rows as columns."""
    _check_tall("qr", a)
    place = Place("qr", a, T_A, mesh, matrix_specs, in_specs, True, square=False)
    q, r = _called(place, _qr, dense.qr, place.put(a, place.spec))
    discard(donate, a)
    return asked_for((q, True), (r, True), (finite_status(r), return_status))


def polar(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, compute_h: bool = True,
    return_status: bool = False, pad: bool = True, donate: bool = False,
) -> Any:  # fmt: skip
    """(U, H) with A = U H, or U alone; of a matrix with at least as many rows as columns."""
    _check_tall("polar", a)
    place = Place("polar", a, T_A, mesh, matrix_specs, in_specs, True, square=False)
    u, h, *_info = _called(place, _polar, dense.polar, place.put(a, place.spec))
    discard(donate, a)
    return asked_for((u, True), (h, compute_h), (finite_status(h), return_status))


def least_squares(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None,
    return_status: bool = False, pad: bool = True, donate: bool = False,
) -> Any:  # fmt: skip
    """x that minimises ||b - A x||, or (x, status)."""
    _check_tall("least_squares", a)
    if getattr(b, "shape", ())[:1] != a.shape[:1]:
        check_rows("least_squares", a, b)
    place = Place("least_squares", a, T_A, mesh, matrix_specs, in_specs, True, square=False, sides=True)
    x, *_others = _called(place, lstsq, _lstsq, place.put(a, place.spec), place.put(b, place.b_spec))
    discard(donate, a, b)
    return asked_for((x, True), (finite_status(x), return_status))


def _lstsq(placement: Placement, a: Any, b: Any) -> tuple[Any, ...]:
    limit = max(a.shape) * float(jax.numpy.finfo(a.dtype).eps)
    return dense.lstsq(placement, None, a, b, jax.numpy.asarray(limit, jax.numpy.finfo(a.dtype).dtype))


def gesvd(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, compute_u: bool = True,
    compute_vh: bool = True, full_matrices: bool = False, return_status: bool = False, pad: bool = True, donate: bool = False,
) -> Any:  # fmt: skip
    """The singular value decomposition: the parts of (U, s, Vh, status) that the options select."""
    place = Place("gesvd", a, T_A, mesh, matrix_specs, in_specs, True, square=False)
    full = full_matrices and a.shape[0] != a.shape[1]
    u, s, vh, *_info = _called(
        place, lambda a: svd(a, full_matrices=full, on_fail="nan"), lambda where, a: dense.svd(where, True, a, full),
        place.put(a, place.spec),
    )  # fmt: skip
    discard(donate, a)
    return asked_for((u, compute_u), (s, True), (vh, compute_vh), (finite_status(s), return_status))


def qr_shardmap_ctx(a: Any, T_A: int, *more: Any, **options: Any) -> tuple[Any, ...]:
    """(Q, R, status): for whole arrays inside your jit, or for this device's block inside a shard_map."""
    if inside(a):
        q, r = shard.qr(a, axis_name=manual_axes(a))
        return q, r, finite_status(r)[None]
    return qr(a, T_A, *more, return_status=True, **options)  # type: ignore[no-any-return]


def polar_shardmap_ctx(a: Any, T_A: int, *more: Any, compute_h: bool = True, **options: Any) -> tuple[Any, ...]:
    """(U, H, status), or (U, status); called like :func:`qr_shardmap_ctx`."""
    if inside(a):
        u, h = shard.polar(a, axis_name=manual_axes(a))
        return asked_for((u, True), (h, compute_h), (finite_status(h)[None], True))  # type: ignore[no-any-return]
    return polar(a, T_A, *more, compute_h=compute_h, return_status=True, **options)  # type: ignore[no-any-return]


def gesvd_shardmap_ctx(
    a: Any, T_A: int, *more: Any, compute_u: bool = True, compute_vh: bool = True, **options: Any
) -> tuple[Any, ...]:
    """(A's work space, U, s, Vh, status), with vectors only on request; called like :func:`qr_shardmap_ctx`."""
    if inside(a):
        u, s, vh = shard.svd(a, axis_name=manual_axes(a))
        return a, *asked_for((u, compute_u), (s, True), (vh, compute_vh), (finite_status(s)[None], True))
    return a, *gesvd(a, T_A, *more, compute_u=compute_u, compute_vh=compute_vh, return_status=True, **options)


def least_squares_shardmap_ctx(a: Any, b: Any, T_A: int, *more: Any, **options: Any) -> tuple[Any, ...]:
    """(A's work space, b's work space, x, status); called like :func:`qr_shardmap_ctx`."""
    if inside(a):
        x, *_others = shard.lstsq(a, b, axis_name=manual_axes(a))
        return a, b, x, finite_status(x)[None]
    x, info = least_squares(a, b, T_A, *more, return_status=True, **options)
    return a, b, x, info


def _called(place: Place, plain: Any, traced: Any, *arrays: Any) -> Any:
    """Call ``plain``, one of lapwing's functions, or in traced code ``traced``, which gets the placement of the matrix."""
    if not place.planned(*arrays):
        grid = sharding.grid_of(place.spec, place.mesh)
        return plain(*arrays) if grid.size == 1 else traced(Placement(place.mesh, grid), *arrays)
    try:
        return placed(place, lambda *x: tuple(plain(*x)), (jax.sharding.PartitionSpec(),) * 4, *arrays)
    except ConvergenceError:  # the caller gets a status; in traced code the results are NaN
        grid = sharding.grid_of(place.spec, place.mesh)
        return jax.jit(partial(traced, Placement(place.mesh, grid)))(*arrays)


def _check_tall(name: str, a: Any) -> None:
    check_matrix(name, "a", a)
    if a.shape[0] < a.shape[1]:
        raise ValueError(f"{name}: A must have at least as many rows as columns, got shape {tuple(a.shape)}")
