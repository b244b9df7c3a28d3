"""Long and narrow matrices split over devices: A = Q R by a QR of each block of rows and one of the small factors together.

Only n x n matrices travel. The SVD, least squares and the polar decomposition use R. A wide matrix is the adjoint of a tall
one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ...placement import Grid, Placement
from . import sharding
from .calls import or_nan, spec_of
from .layout import adjoint, from_whole_rows, gathered, place, shard_map, whole_rows
from .substitution import dot

# -- inside shard_map: my block of whole rows in, my block out ----------------------------------------------------------------


def tsqr(a: Any, axes: tuple[str, ...]) -> tuple[Any, Any]:
    """Q for my rows, and R on every device. Each device has at least as many rows as there are columns."""
    n = a.shape[1]
    q, r = jnp.linalg.qr(a)
    # A = diag(Q_i) (R_1; R_2; ...) = diag(Q_i) Q' R
    together, r = jnp.linalg.qr(lax.all_gather(r, axes, tiled=True) if axes else r)
    mine = lax.dynamic_slice_in_dim(together, place(axes) * n, n)
    return dot(q, mine), r


def small_svd(r: Any) -> tuple[Any, Any, Any, Any]:
    """The SVD of a small matrix that every device has; the status is not zero if it held NaN or Inf."""
    good = jnp.all(jnp.isfinite(r))
    u, s, vh = jnp.linalg.svd(jnp.where(good, r, 0), full_matrices=False)
    info = 1 - good.astype(jnp.int32)
    return or_nan(u, info), or_nan(s, info), or_nan(vh, info), info


def local_qr(a: Any, grid: Grid) -> tuple[Any, Any]:
    q, r = tsqr(whole_rows(a, grid), grid.order)
    return from_whole_rows(q, grid, a.shape[0]), r


def local_svd(a: Any, grid: Grid) -> tuple[Any, Any, Any, Any]:
    q, r = tsqr(whole_rows(a, grid), grid.order)
    u, s, vh, info = small_svd(r)
    return from_whole_rows(dot(q, u), grid, a.shape[0]), s, vh, info


def local_polar(a: Any, grid: Grid) -> tuple[Any, Any, Any]:
    """A = U P."""
    q, r = tsqr(whole_rows(a, grid), grid.order)
    w, s, vh, info = small_svd(r)
    # P = V S V^H; the mean with its adjoint is Hermitian to the last bit
    p = dot(adjoint(vh) * s.astype(r.dtype), vh)
    return from_whole_rows(dot(q, dot(w, vh)), grid, a.shape[0]), (p + adjoint(p)) / 2, info


def local_lstsq(a: Any, b: Any, rcond: Any, grid: Grid, right: Grid | None) -> tuple[Any, ...]:
    rows, height = whole_rows(a, grid), a.shape[0]
    b = b if right is None else gathered(b, right)
    # the same rows of B as of A
    mine = lax.dynamic_slice_in_dim(b, place(grid.row_axes) * height, height)
    mine = jnp.pad(mine, ((0, grid.q * rows.shape[0] - height), (0, 0)))
    mine = lax.dynamic_slice_in_dim(mine, place(grid.column_axes) * rows.shape[0], rows.shape[0])
    q, r = tsqr(rows, grid.order)
    u, s, vh, info = small_svd(r)
    good = s > rcond * s[0]
    # x <- V S^+ U^H Q^H b
    projected = dot(adjoint(u), lax.psum(dot(adjoint(q), mine), grid.order))
    kept = jnp.where(good, s, 1).astype(r.dtype)[:, None]
    x = dot(adjoint(vh), good.astype(r.dtype)[:, None] * projected / kept)
    left = mine - dot(rows, x)
    residuals = lax.psum(jnp.sum(jnp.real(left * jnp.conj(left)), 0), grid.order)
    return x, residuals, jnp.sum(good).astype(jnp.int32), s, info


# -- on whole arrays ----------------------------------------------------------------------------------------------------------


def qr(placement: Placement, a: Any) -> tuple[Any, Any]:
    """Q placed as A, R on every device."""
    return _mapped(local_qr, placement, (True, False), a)  # type: ignore[no-any-return]


def svd(placement: Placement, turned: bool, a: Any) -> tuple[Any, ...]:
    """U placed as A, S and V^H on every device, and the status; for a wide matrix V^H is placed as A."""
    if turned:
        v, s, uh, info = svd(_turned(placement), False, adjoint(a))
        return adjoint(uh), s, adjoint(v), info
    return _mapped(local_svd, placement, (True, False, False, False), a)  # type: ignore[no-any-return]


def polar(placement: Placement, turned: bool, a: Any) -> tuple[Any, ...]:
    """A = U P of a tall matrix, A = P U of a wide one; U placed as A, P on every device."""
    if turned:
        u, p, info = polar(_turned(placement), False, adjoint(a))
        return adjoint(u), p, info
    return _mapped(local_polar, placement, (True, False, False), a)  # type: ignore[no-any-return]


def lstsq(placement: Placement, right: Grid | None, a: Any, b: Any, rcond: Any) -> tuple[Any, ...]:
    """x, residuals, rank and singular values, all on every device, and the status."""
    if b.ndim == 1:
        x, residuals, *others = lstsq(placement, right, a, b[:, None], rcond)
        return x[:, 0], residuals[0], *others
    function = partial(local_lstsq, grid=placement.grid, right=right)
    whole = PartitionSpec()
    specs = (spec_of(placement.grid), spec_of(right), whole)
    run = shard_map(function, placement.mesh, specs, (whole,) * 5)
    return _differentiable("lstsq", placement, run, (whole,) * 5, right)(a, b, rcond)  # type: ignore[no-any-return]


def _mapped(function: Any, placement: Placement, split: tuple[bool, ...], a: Any) -> Any:
    grid = placement.grid
    spec, whole = spec_of(grid), PartitionSpec()
    out = tuple(spec if part else whole for part in split)
    name = function.__name__.removeprefix("local_")
    return _differentiable(name, placement, shard_map(partial(function, grid=grid), placement.mesh, (spec,), out), out)(a)


def _differentiable(name: str, placement: Placement, function: Any, specs: Any, *fixed: Any) -> Any:
    """For derivatives use the algorithm for any shape, for values and tangents together, as its signs may differ."""
    guarded = jax.custom_jvp(function)

    @guarded.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        from . import dense

        general = {"svd": partial(dense.svd, placement, True)}.get(name) or partial(getattr(dense, name), placement, *fixed)
        place = lambda x, spec: sharding.resharded(x, placement.mesh, spec)  # noqa: E731
        placed = lambda *arrays: tuple(map(place, general(*arrays), specs))  # noqa: E731
        return jax.jvp(placed, primals, tangents)

    return guarded


def _turned(placement: Placement) -> Placement:
    return Placement(placement.mesh, placement.grid.turned())
