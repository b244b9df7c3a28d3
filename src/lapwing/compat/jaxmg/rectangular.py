"""JAXMg 1.x for rectangular matrices."""

from __future__ import annotations

from typing import Any

import jax

from ... import lstsq, svd
from ... import polar as _polar
from ... import qr as _qr
from ...distributed import shard
from ...distributed.backends.xla import dense, sharding
from ...distributed.placement import Placement
from .layout import Place, asked_for, check_rows, discard, finite_status, inside, manual_axes, placed


def qr(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, return_status: bool = False,
    donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(Q, R), and the status where asked for; of a matrix with at least as many rows as columns."""
    _check_tall("qr", a)
    place = Place("qr", a, T_A, mesh, matrix_specs, in_specs, True, square=False)
    q, r = _called(place, _qr, dense.qr, place.put(a, place.spec))
    discard(donate, a)
    return asked_for((q, True), (r, True), (finite_status(r), return_status))


def polar(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, compute_h: bool = True,
    return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(U, H) with A = U H, or U alone; of a matrix with at least as many rows as columns."""
    _check_tall("polar", a)
    place = Place("polar", a, T_A, mesh, matrix_specs, in_specs, True, square=False)
    u, h, *_info = _called(place, _polar, dense.polar, place.put(a, place.spec))
    discard(donate, a)
    return asked_for((u, True), (h, compute_h), (finite_status(h), return_status))


def least_squares(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None,
    return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """x that minimises ||b - A x||, and the status where asked for."""
    _check_tall("least_squares", a)
    if b.shape[0] != a.shape[0]:
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
    compute_vh: bool = True, full_matrices: bool = False, return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(U, s, Vh), of these what is asked for, and the status."""
    place = Place("gesvd", a, T_A, mesh, matrix_specs, in_specs, True, square=False)
    full = full_matrices and a.shape[0] != a.shape[1]
    u, s, vh, *_info = _called(
        place, lambda a: svd(a, full_matrices=full, on_fail="nan"), lambda where, a: dense.svd(where, True, a, full),
        place.put(a, place.spec),
    )  # fmt: skip
    discard(donate, a)
    return asked_for((u, compute_u), (s, True), (vh, compute_vh), (finite_status(s), return_status))


def qr_shardmap_ctx(a: Any, T_A: int, *more: Any, **options: Any) -> tuple[Any, ...]:
    """(A's work space, Q, R, status), of whole arrays in a jit of the caller, or of my block in a shard_map."""
    return _context(a, shard.qr, qr, (a, T_A, *more), options)


def polar_shardmap_ctx(a: Any, T_A: int, *more: Any, **options: Any) -> tuple[Any, ...]:
    """(A's work space, U, H, status), as :func:`qr_shardmap_ctx`."""
    return _context(a, shard.polar, polar, (a, T_A, *more), options)


def gesvd_shardmap_ctx(a: Any, T_A: int, *more: Any, **options: Any) -> tuple[Any, ...]:
    """(A's work space, U, s, Vh, status), as :func:`qr_shardmap_ctx`."""
    return _context(a, shard.svd, gesvd, (a, T_A, *more), options)


def least_squares_shardmap_ctx(a: Any, b: Any, T_A: int, *more: Any, **options: Any) -> tuple[Any, ...]:
    """(A's work space, b's work space, x, status), as :func:`qr_shardmap_ctx`."""
    if inside(a):
        x, *_others = shard.lstsq(a, b, axis_name=manual_axes(a))
        return a, b, x, finite_status(x)[None]
    x, info = least_squares(a, b, T_A, *more, return_status=True, **options)
    return a, b, x, info


def _context(a: Any, local: Any, whole: Any, arguments: Any, options: Any) -> tuple[Any, ...]:
    if inside(a):
        results = local(a, axis_name=manual_axes(a))
        return a, *results, finite_status(results[1])[None]
    return a, *whole(*arguments, return_status=True, **options)


def _called(place: Place, plain: Any, traced: Any, *arrays: Any) -> Any:
    """``plain``, one of lapwing's functions; in traced code ``traced``, which is told how the matrix is split."""
    if not place.planned(*arrays):
        grid = sharding.grid_of(place.spec, place.mesh)
        return plain(*arrays) if grid.size == 1 else traced(Placement(place.mesh, grid), *arrays)
    results = placed(place, lambda *x: tuple(plain(*x)), (jax.sharding.PartitionSpec(),) * 4, *arrays)
    return results


def _check_tall(name: str, a: Any) -> None:
    if a.ndim == 2 and a.shape[0] < a.shape[1]:
        raise ValueError(f"{name}: A must have at least as many rows as columns, got shape {tuple(a.shape)}")
