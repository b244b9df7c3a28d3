"""JAXMg 1.x for rectangular matrices: tall ones in blocks of rows, others on one device."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
from jax.sharding import PartitionSpec

from .. import lstsq, svd
from .. import polar as _polar
from .. import qr as _qr
from ..distributed import shard
from ..distributed.backends.protocol import check_right
from ..distributed.backends.xla.sharding import put
from .jaxmg_layout import Place, asked_for, compiled, discard, finite_status, on_one_device


def qr(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, return_status: bool = False,
    donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(Q, R), and the status where asked for; of a matrix with at least as many rows as columns."""
    if a.shape[0] < a.shape[1]:
        raise ValueError(f"qr: A must have at least as many rows as columns, got shape {tuple(a.shape)}")
    q, r = rectangular("qr", a, (), T_A, mesh, matrix_specs, in_specs, shard.qr, _qr, (True, False))
    discard(donate, a)
    return asked_for((q, True), (r, True), (finite_status(r), return_status))


def polar(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, compute_h: bool = True,
    return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(U, H) with A = U H, or U alone."""
    u, h = rectangular("polar", a, (), T_A, mesh, matrix_specs, in_specs, shard.polar, _polar, (True, False))
    discard(donate, a)
    return asked_for((u, True), (h, compute_h), (finite_status(h), return_status))


def least_squares(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None,
    return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """x that minimises ||b - A x||, and the status where asked for."""
    if a.shape[0] < a.shape[1]:
        raise ValueError(f"least_squares: A must have at least as many rows as columns, got shape {tuple(a.shape)}")
    check_right("least_squares", a, b)
    x, *_others = rectangular("least_squares", a, (b,), T_A, mesh, matrix_specs, in_specs, shard.lstsq, lstsq, (False,) * 4)
    discard(donate, a, b)
    return asked_for((x, True), (finite_status(x), return_status))


def gesvd(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, compute_u: bool = True,
    compute_vh: bool = True, full_matrices: bool = False, return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(U, s, Vh), of these what is asked for, and the status."""
    if full_matrices:
        raise NotImplementedError("gesvd: full_matrices=True is not for sharded matrices\nhint: full_matrices=False")
    u, s, vh = rectangular("gesvd", a, (), T_A, mesh, matrix_specs, in_specs, shard.svd, svd, (True, False, False))
    discard(donate, a)
    return asked_for((u, compute_u), (s, True), (vh, compute_vh), (finite_status(s), return_status))


def rectangular(
    name: str, a: Any, others: Any, tile: int, mesh: Any, specs: Any, in_specs: Any, inside: Any, plain: Any, split: Any
) -> Any:
    """Work in blocks of rows where these are tall, else on one device."""
    place = Place(name, a, tile, mesh, specs, in_specs, True, square=False)
    rows = [entry is not None for entry in (*place.spec, None)[:2]] == [True, False]
    devices = prod(place.mesh.shape[each] for each in place.names)
    if rows and a.shape[0] // devices >= a.shape[1]:
        whole = PartitionSpec()
        out = tuple(place.spec if part else whole for part in split)
        return compiled(inside, place.mesh, (place.spec, *[whole] * len(others)), out, axis_name=place.names)(a, *others)
    if isinstance(a, jax.core.Tracer) or not getattr(a, "is_fully_addressable", True):
        raise NotImplementedError(
            f"{name}: a {a.shape[0]} x {a.shape[1]} matrix split as {place.spec} over {devices} devices is not tall enough"
            f"\nhint: {_taller(rows, a.shape, devices)}"
        )
    return tuple(put(x, place.mesh, PartitionSpec()) for x in on_one_device(plain, a, *others))


def _taller(rows: bool, shape: tuple[int, ...], devices: int) -> str:
    if not rows:
        return "split its rows, and only these"
    fewer = f", or split it over at most {shape[0] // shape[1]} devices" if shape[0] >= shape[1] else ""
    return f"each device needs at least {shape[1]} rows and has {shape[0] // devices}: call it outside of jit{fewer}"
