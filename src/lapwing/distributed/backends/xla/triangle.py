"""Triangular matrices inside shard_map: their panels with inverted diagonal blocks, and solves and inverses from these."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...placement import Grid
from .calls import in_slots, or_nan
from .cholesky import Factored, identity_slots, prepared
from .layout import adjoint, from_slots, local_turned, place, to_panels
from .lu import inverse_lower
from .panels import Panels
from .substitution import gather_solve, scatter_solve


def local_factor(a: Any, grid: Grid, cut: Panels, upper: bool) -> Factored:
    c, first_odd = prepared(to_panels(local_triangle(a, grid, upper), grid, cut), cut, grid.order, lower=False)
    b, device = cut.width, place(grid.order)
    mine = jax.vmap(lambda s: lax.dynamic_slice(c, ((s * cut.devices + device) * b, s * b), (b, b)))(jnp.arange(cut.each))
    blocks = lax.all_gather(mine, grid.order, axis=1) if cut.devices > 1 else mine[:, None]
    blocks = blocks.reshape(cut.count, b, b)
    inverses = adjoint(jax.vmap(inverse_lower)(adjoint(blocks))) if upper else jax.vmap(inverse_lower)(blocks)
    zero = jnp.diagonal(blocks, axis1=-2, axis2=-1).reshape(-1) == 0
    first_zero = jnp.where(jnp.any(zero), jnp.argmax(zero), cut.padded)
    first = jnp.minimum(first_zero, first_odd)
    return Factored(c, blocks, inverses, jnp.where(first < cut.n, first + 1, 0).astype(jnp.int32))


def apply(f: Factored, b: Any, grid: Grid, right: Grid | None, cut: Panels, upper: bool, turned: bool) -> Any:
    """T^-1 B, or T^-H B."""
    substitute = scatter_solve if turned else gather_solve
    x = in_slots(b, grid, right, cut, lambda x: substitute(f, x, cut, grid.order, below=not upper))
    return or_nan(x, f.info)


def inverse_of(f: Factored, grid: Grid, cut: Panels, upper: bool) -> Any:
    """T^-1 in blocks."""
    eye = identity_slots(cut, grid.order, f.panels.dtype)
    x = or_nan(gather_solve(f, eye, cut, grid.order, below=not upper)[..., : cut.n], f.info)
    return from_slots(x, grid, cut, grid.order)


def local_triangle(a: Any, grid: Grid, upper: bool, strict: bool = False) -> Any:
    """My block, with zeros outside of the triangle."""
    rows, columns = places(a, grid)
    shift = 1 if strict else 0
    return jnp.where(columns - rows >= shift if upper else rows - columns >= shift, a, 0)


def local_mirrored(a: Any, grid: Grid, cut: Panels, upper: bool, conjugate: bool) -> Any:
    """My block of the Hermitian (or symmetric) matrix of which one triangle is read."""
    kept, strict = local_triangle(a, grid, upper), local_triangle(a, grid, upper, strict=True)
    if conjugate and jnp.iscomplexobj(a):  # the real part of the diagonal is read
        kept = strict + jnp.real(kept - strict)
    return kept + local_turned(strict, grid, cut, conjugate)


def local_diagonal(a: Any, grid: Grid) -> Any:
    """The whole diagonal, on every device."""
    rows, columns = places(a, grid)
    mine = jnp.sum(jnp.where(rows == columns, a, 0), 1)
    whole = jnp.zeros(a.shape[0] * grid.p, a.dtype)
    whole = lax.dynamic_update_slice_in_dim(whole, mine, place(grid.row_axes) * a.shape[0], 0)
    return lax.psum(whole, grid.order)


def places(a: Any, grid: Grid) -> tuple[Any, Any]:
    """The numbers of the rows and columns in my block."""
    rows = place(grid.row_axes) * a.shape[0] + jnp.arange(a.shape[0])
    columns = place(grid.column_axes) * a.shape[1] + jnp.arange(a.shape[1])
    return rows[:, None], columns[None]
