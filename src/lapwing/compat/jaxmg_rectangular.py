"""JAXMg 1.x for rectangular matrices: tall ones in blocks of rows, others on one device."""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from .. import lstsq, svd
from .. import polar as _polar
from .. import qr as _qr
from ..distributed import shard
from ..distributed.backends.xla.layout import shard_map
from .jaxmg_layout import Place, check_right, discard, on_one_device, put, status


def qr(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, return_status: bool = False,
    donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(Q, R), and the status where asked for; of a matrix with at least as many rows as columns."""
    if a.shape[0] < a.shape[1]:
        raise ValueError(f"qr: A must have at least as many rows as columns, got shape {tuple(a.shape)}")
    q, r = rectangular("qr", a, (), T_A, mesh, matrix_specs, in_specs, shard.qr, _qr, (True, False))
    discard(donate, a)
    return (q, r, status(~jnp.all(jnp.isfinite(r)))) if return_status else (q, r)


def polar(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, compute_h: bool = True,
    return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(U, H) with A = U H, or U alone."""
    u, h = rectangular("polar", a, (), T_A, mesh, matrix_specs, in_specs, shard.polar, _polar, (True, False))
    discard(donate, a)
    out = (u, *((h,) if compute_h else ()), *((status(~jnp.all(jnp.isfinite(h))),) if return_status else ()))
    return out if len(out) > 1 else u


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
    return (x, status(~jnp.all(jnp.isfinite(x)))) if return_status else x


def gesvd(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None, compute_u: bool = True,
    compute_vh: bool = True, full_matrices: bool = False, return_status: bool = False, donate: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """(U, s, Vh), of these what is asked for, and the status."""
    if full_matrices:
        raise NotImplementedError("gesvd: full_matrices=True is not for sharded matrices\nhint: full_matrices=False")
    u, s, vh = rectangular("gesvd", a, (), T_A, mesh, matrix_specs, in_specs, shard.svd, svd, (True, False, False))
    discard(donate, a)
    out = (*((u,) if compute_u else ()), s, *((vh,) if compute_vh else ()))
    out = (*out, status(~jnp.all(jnp.isfinite(s)))) if return_status else out
    return out if len(out) > 1 else s


def rectangular(
    name: str, a: Any, others: Any, tile: int, mesh: Any, specs: Any, in_specs: Any, inside: Any, plain: Any, split: Any
) -> Any:
    """Work in blocks of rows where these are tall, else on one device."""
    place = Place(name, a, tile, mesh, specs, in_specs, True, square=False)
    rows = [entry is not None for entry in (*place.spec, None)[:2]] == [True, False]
    devices = prod(place.mesh.shape[each] for each in place.names)
    if rows and a.shape[0] // devices >= a.shape[1]:
        return _mapped(inside, place.mesh, place.spec, place.names, len(others), split)(a, *others)
    if isinstance(a, jax.core.Tracer) or not getattr(a, "is_fully_addressable", True):
        raise NotImplementedError(
            f"{name}: a {a.shape[0]} x {a.shape[1]} matrix split as {place.spec} over {devices} devices is not tall enough"
            f"\nhint: {_taller(rows, a.shape, devices)}"
        )
    made = on_one_device(plain, a, *others)
    return tuple(put(place.mesh, x, PartitionSpec()) for x in made)


def _taller(rows: bool, shape: tuple[int, ...], devices: int) -> str:
    if not rows:
        return "split its rows, and only these"
    fewer = f", or split it over at most {shape[0] // shape[1]} devices" if shape[0] >= shape[1] else ""
    return f"each device needs at least {shape[1]} rows and has {shape[0] // devices}: call it outside of jit{fewer}"


@lru_cache(maxsize=64)
def _mapped(inside: Any, mesh: Any, spec: Any, names: tuple[str, ...], others: int, split: tuple[bool, ...]) -> Any:
    # one for each layout: a new function would be compiled at every call
    out = tuple(spec if part else PartitionSpec() for part in split)
    return jax.jit(shard_map(partial(inside, axis_name=names), mesh, (spec, *[PartitionSpec()] * others), out))
