"""P A = L U inside shard_map, on column panels that the devices own in turn, and solves and determinants by it.

The device that owns a panel finds its pivots; all others get the panel, exchange the same rows, and update their own columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from ...placement import Grid
from .calls import in_panels, or_nan
from .cholesky import identity_slots, multiply, prepared
from .layout import adjoint, from_panels, from_slots, gathered, local_part, place, to_panels, to_slots
from .panels import WINDOWS, Panels
from .substitution import Triangle, dot, gather_solve, left_solve, scatter_solve


class FactoredLU(NamedTuple):
    """L below and U above in panels; their diagonal blocks and inverses, the order of rows, its parity and the status."""

    panels: Any
    lower: Any
    lower_inverses: Any
    upper: Any
    upper_inverses: Any
    order: Any
    parity: Any
    info: Any

    @property
    def l(self) -> Triangle:  # noqa: E743
        return Triangle(self.panels, self.lower, self.lower_inverses)

    @property
    def u(self) -> Triangle:
        return Triangle(self.panels, self.upper, self.upper_inverses)


def factor(a: Any, cut: Panels, axes: tuple[str, ...]) -> FactoredLU:
    """``a``: the columns of my panels, shape (n or padded, columns)."""
    c, first_odd = prepared(a, cut, axes, lower=False)
    b, total, device = cut.width, cut.padded, place(axes)
    blocks = jnp.zeros((4, cut.count, b, b), c.dtype)
    order = jnp.arange(total, dtype=jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    state = (c, blocks, order, zero, zero)
    for first, last in cut.windows(WINDOWS):
        top, left = first * cut.devices * b, first * b

        def step(k: Any, state: Any, top: int = top, left: int = left) -> Any:
            c, blocks, order, swaps, info = state
            owner, slot, offset = k % cut.devices, k // cut.devices, k * b - top
            m = total - top
            rows = jnp.arange(m, dtype=jnp.int32)
            mine = lax.dynamic_slice(c, (top, slot * b), (m, b))
            # the rows from the diagonal on come first; after them zeros, which are never chosen as pivots
            work = jnp.where((rows < m - offset)[:, None], jnp.roll(mine, -offset, 0), 0)
            work, chosen, moved = lax.cond(device == owner, _panel, _nothing, work)
            work, chosen, moved = lax.psum((work, chosen, moved), axes)
            # rows of the window in their new order
            chosen = jnp.clip(jnp.roll(chosen, offset) + offset, 0, m - 1)
            chosen = jnp.where(rows < offset, rows, chosen)
            c = lax.dynamic_update_slice(c, lax.slice_in_dim(c, top, total)[chosen], (top, 0))
            order = lax.dynamic_update_slice(order, order[top:][chosen], (top,))
            work = jnp.where((rows >= offset)[:, None], jnp.roll(work, offset, 0), 0)
            corner = lax.dynamic_slice(work, (offset, 0), (b, b))
            unit = jnp.tril(corner, -1) + jnp.eye(b, dtype=c.dtype)
            high = jnp.triu(corner)
            inverse = inverse_lower(unit)
            # U_12 <- L_11^-1 A_12
            wide = cut.columns - left
            panel_of = (jnp.arange(wide) + left) // b * cut.devices + device
            right = left_solve(lax.dynamic_slice(c, (k * b, left), (b, wide)), unit, inverse)
            right = jnp.where(panel_of > k, right, 0)
            # A_22 <- A_22 - L_21 U_12
            below = jnp.where((rows >= offset + b)[:, None], work, 0)
            window = lax.slice(c, (top, left), (total, cut.columns)) - dot(below, right)
            row = lax.dynamic_slice(window, (offset, 0), (b, wide))
            window = lax.dynamic_update_slice(window, jnp.where(panel_of > k, right, row), (offset, 0))
            c = lax.dynamic_update_slice(c, window, (top, left))
            kept = lax.dynamic_slice(c, (top, slot * b), (m, b))
            done = jnp.where((rows >= offset)[:, None], work, kept)
            c = lax.dynamic_update_slice(c, jnp.where(device == owner, done, kept), (top, slot * b))
            pivots = jnp.diagonal(high)
            bad = (pivots == 0) | ~jnp.isfinite(pivots)
            at = k * b + jnp.argmax(bad) + 1
            info = jnp.where((info == 0) & jnp.any(bad), at, info).astype(jnp.int32)
            new = jnp.stack([unit, inverse, high, adjoint(inverse_lower(adjoint(high)))])
            return c, lax.dynamic_update_slice(blocks, new[:, None], (0, k, 0, 0)), order, swaps + moved, info

        state = lax.fori_loop(first * cut.devices, last * cut.devices, step, state)
    c, blocks, order, swaps, info = state
    odd = first_odd < cut.n
    info = jnp.where(odd & ((info == 0) | (first_odd + 1 < info)), first_odd + 1, info).astype(jnp.int32)
    return FactoredLU(c, blocks[0], blocks[1], blocks[2], blocks[3], order, swaps % 2, info)


def _panel(x: Any) -> tuple[Any, Any, Any]:
    lu, pivots, order = lax.linalg.lu(x)
    moved = jnp.sum(pivots != jnp.arange(pivots.shape[0])).astype(jnp.int32)
    return lu, order.astype(jnp.int32), moved


def _nothing(x: Any) -> tuple[Any, Any, Any]:
    return jnp.zeros_like(x), jnp.zeros(x.shape[0], jnp.int32), jnp.zeros((), jnp.int32)


def inverse_lower(l: Any) -> Any:
    n = l.shape[0]
    index = jnp.arange(n)

    def row(j: Any, v: Any) -> Any:
        mine = lax.dynamic_index_in_dim(l, j, keepdims=False)
        pivot = lax.dynamic_index_in_dim(mine, j, keepdims=False)
        new = ((index == j) - dot(jnp.where(index < j, mine, 0), v)) / pivot
        return lax.dynamic_update_slice(v, new[None], (j, 0))

    return lax.fori_loop(0, n, row, jnp.zeros_like(l))


# -- inside shard_map: my block in, my block out ------------------------------------------------------------------------------


def local_factor(a: Any, grid: Grid, cut: Panels, upper: bool) -> FactoredLU:
    return factor(to_panels(a, grid, cut), cut, grid.order)


def apply(f: FactoredLU, b: Any, grid: Grid, right: Grid | None, cut: Panels, upper: bool, turned: bool) -> Any:
    """A^-1 B, or A^-H B. A split B is gathered, as its rows are reordered."""
    axes = grid.order
    whole = jnp.pad(b if right is None else gathered(b, right), ((0, cut.padded - cut.n), (0, 0)))
    if turned:
        z = scatter_solve(f.u, to_slots(whole, None, cut, axes), cut, axes, below=False)
        w = from_slots(scatter_solve(f.l, z, cut, axes, below=True), None, cut, axes)
        w = jnp.pad(w, ((0, cut.padded - cut.n), (0, 0)))
        x = jnp.zeros_like(w).at[f.order].set(w)[: cut.n]
    else:
        y = gather_solve(f.l, to_slots(whole[f.order], None, cut, axes), cut, axes, below=True)
        x = from_slots(gather_solve(f.u, y, cut, axes, below=False), None, cut, axes)
    x = or_nan(x, f.info)
    return x if right is None else local_part(x, right)


def inverse_of(f: FactoredLU, grid: Grid, cut: Panels, upper: bool) -> Any:
    """A^-1 in blocks."""
    eye = identity_slots(cut, grid.order, f.panels.dtype, f.order)
    y = gather_solve(f.l, eye, cut, grid.order, below=True)
    # the rows of my panels
    x = or_nan(gather_solve(f.u, y, cut, grid.order, below=False)[..., : cut.n], f.info)
    return from_slots(x, grid, cut, grid.order)


def slogdet_of(f: FactoredLU) -> tuple[Any, Any]:
    pivots = jnp.diagonal(f.upper, axis1=-2, axis2=-1).reshape(-1)
    size = jnp.abs(pivots)
    singular = jnp.any(size == 0)
    phase = jnp.where(size == 0, 0, pivots / jnp.where(size == 0, 1, size).astype(pivots.dtype))
    sign = jnp.prod(phase) * jnp.where(f.parity == 1, -1, 1)
    value = jnp.where(singular, -jnp.inf, jnp.sum(jnp.log(jnp.where(size == 0, 1, size))))
    # for a matrix with NaN only the status is right
    odd = (f.info != 0) & ~singular
    return jnp.where(odd, jnp.nan, sign).astype(pivots.dtype), jnp.where(odd, jnp.nan, value).astype(size.dtype)


def local_sandwich(x: Any, s: Any, grid: Grid, cut: Panels, transposed: bool) -> Any:
    """-X S X in blocks, or with X^T for X."""
    xs = in_panels(x.T, grid.turned(), cut) if transposed else in_panels(x, grid, cut)
    product = multiply(multiply(xs, in_panels(s, grid, cut), cut, grid.order), xs, cut, grid.order)
    return -from_panels(product, grid, cut, cut.n)
