"""Redistribution inside shard_map: contiguous blocks to column panels that the devices own in turn, and back, by all-to-alls.

A block of rows and columns first becomes a block of whole rows (one all-to-all over the axes of the columns); then each device
sends every other its columns (one all-to-all over all axes). A matrix split by rows needs only the second, and so does one
whose blocks of columns are whole panels.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from ...placement import Grid
from .panels import Panels


def shard_map(function: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """``jax.shard_map`` of any release, without its check for replication, which many primitives do not pass."""
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    from jax.experimental.shard_map import shard_map as older

    return older(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)


def in_mesh(mesh: Any) -> Any:
    """A context for calls on arrays of this mesh, so that JAX does not use another mesh that the user has set."""
    now = jax.sharding.get_abstract_mesh() if hasattr(jax, "set_mesh") else None
    if now is None or now.empty or not isinstance(mesh, Mesh) or now == mesh.abstract_mesh:
        return nullcontext()
    try:
        return jax.set_mesh(mesh)
    except ValueError:  # inside jit, which was traced with the mesh that is set
        return nullcontext()


def adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def place(axes: tuple[str, ...]) -> Any:
    """The number of this device along these axes."""
    return lax.axis_index(axes) if axes else jnp.zeros((), jnp.int32)


def numbers(cut: Panels, axes: tuple[str, ...]) -> Any:
    """The numbers of the columns in my panels, one row for each panel."""
    panel = jnp.arange(cut.each) * cut.devices + place(axes)
    return panel[:, None] * cut.width + jnp.arange(cut.width)


def to_panels(a: Any, grid: Grid, cut: Panels) -> Any:
    """The columns of my panels, shape (padded, columns), from my block of an n x n matrix (or r x n: rows are not padded)."""
    rows = a.shape[0]
    if _holds_panels(grid, cut):
        split = a.reshape(rows, cut.each // cut.devices, cut.devices, cut.width)
        return exchange(split, grid.order, 2, 1).reshape(rows, cut.columns)
    a = whole_rows(a, grid)
    part = a.shape[0]
    a = _pad(a, 1, cut.padded).reshape(part, cut.each, grid.size, cut.width)
    if grid.size > 1:
        a = exchange(a, grid.order, 2, 0)
    else:
        a = a.reshape(1, part, cut.each, cut.width)
    a = _reorder(a, grid, grid.order, grid.row_axes + grid.column_axes)
    # the rows of padding are at the end of each block
    a = a.reshape(grid.p, grid.q * part, cut.columns)[:, :rows]
    return a.reshape(rows * grid.p, cut.columns)


def from_panels(c: Any, grid: Grid, cut: Panels, rows: int) -> Any:
    """My block of a matrix of ``rows`` rows and ``cut.n`` columns, from the columns of my panels."""
    if _holds_panels(grid, cut):
        split = c[:rows].reshape(rows, cut.devices, cut.each // cut.devices, cut.width)
        return exchange(split, grid.order, 1, 2).reshape(rows, cut.columns)
    part = -(-(rows // grid.p) // grid.q)
    c = _pad(c[:rows].reshape(grid.p, rows // grid.p, cut.columns), 1, grid.q * part)
    c = c.reshape(grid.size, part, cut.each, cut.width)
    c = _reorder(c, grid, grid.row_axes + grid.column_axes, grid.order)
    if grid.size > 1:
        c = exchange(c, grid.order, 0, 2)
    c = c.reshape(part, cut.padded)[:, : cut.n]
    if grid.q > 1:
        c = c.reshape(part, grid.q, cut.n // grid.q)
        c = exchange(c, grid.column_axes, 1, 0)
    return c.reshape(grid.q * part, cut.n // grid.q)[: rows // grid.p]


def to_slots(b: Any, grid: Grid | None, cut: Panels, order: tuple[str, ...]) -> Any:
    """The rows of my panels, shape (each, width, k), of an n x k matrix that is whole on each device (no grid) or in blocks."""
    if grid is None:
        split = _pad(b, 0, cut.padded).reshape(cut.each, cut.devices, cut.width, b.shape[1])
        return lax.dynamic_index_in_dim(split, place(order), 1, keepdims=False)
    c = to_panels(b.T, grid.turned().with_order(order), cut)
    return c.T.reshape(cut.each, cut.width, c.shape[0])


def from_slots(x: Any, grid: Grid | None, cut: Panels, order: tuple[str, ...]) -> Any:
    k = x.shape[-1]
    if grid is None:
        split = lax.all_gather(x, order, axis=1) if cut.devices > 1 else x[:, None]
        return split.reshape(cut.padded, k)[: cut.n]
    return from_panels(x.reshape(cut.columns, k).T, grid.turned().with_order(order), cut, k).T


def whole_rows(a: Any, grid: Grid) -> Any:
    """A q-th part of the rows of my block, but all columns; zeros below the last part."""
    if grid.q == 1:
        return a
    part = -(-a.shape[0] // grid.q)
    a = _pad(a, 0, grid.q * part).reshape(grid.q, part, a.shape[1])
    return exchange(a, grid.column_axes, 0, 1).reshape(part, grid.q * a.shape[2])


def from_whole_rows(x: Any, grid: Grid, rows: int) -> Any:
    """My block of ``rows`` rows again."""
    if grid.q == 1:
        return x
    x = x.reshape(x.shape[0], grid.q, x.shape[1] // grid.q)
    return exchange(x, grid.column_axes, 1, 0).reshape(-1, x.shape[2])[:rows]


def gathered(b: Any, grid: Grid) -> Any:
    """The whole matrix on each device."""
    for axis, axes in ((0, grid.row_axes), (1, grid.column_axes)):
        if axes:
            b = lax.all_gather(b, axes, axis=axis, tiled=True)
    return b


def local_part(x: Any, grid: Grid) -> Any:
    """My block of a matrix that is whole on each device."""
    m, n = x.shape[0] // grid.p, x.shape[1] // grid.q
    return lax.dynamic_slice(x, (place(grid.row_axes) * m, place(grid.column_axes) * n), (m, n))


def local_turned(x: Any, grid: Grid, cut: Panels, conjugate: bool) -> Any:
    """My block of X^H, or X^T."""
    other = adjoint(x) if conjugate else x.T
    return from_panels(to_panels(other, grid.turned(), cut), grid, cut, cut.n)


def _holds_panels(grid: Grid, cut: Panels) -> bool:
    """Whether each block of columns consists of whole panels, equally many for every device: then one exchange moves them."""
    columns = tuple(name for name in grid.column_axes if name in grid.order)
    return grid.order == columns and cut.padded == cut.n and cut.each % cut.devices == 0


def exchange(x: Any, axes: tuple[str, ...], split: int, into: int) -> Any:
    """One all-to-all: axis ``split``, which counts receivers, is replaced by a new axis ``into``, which counts senders.

    JAX has two forms of it; only the tiled one can be transposed for derivatives.
    """
    new, split = (into, split + 1) if into <= split else (into + 1, split)
    return jnp.squeeze(lax.all_to_all(jnp.expand_dims(x, new), axes, split, new, tiled=True), split)


def _reorder(x: Any, grid: Grid, order: tuple[str, ...], wanted: tuple[str, ...]) -> Any:
    """Reorder the first axis, which counts devices, from ``order`` to ``wanted``. Mesh axes of one device are ignored."""
    order, wanted = (tuple(name for name in names if name in grid.order) for names in (order, wanted))
    if order == wanted:
        return x
    sizes = dict(grid.rows + grid.columns)
    parts = x.reshape(*[sizes[name] for name in order], *x.shape[1:])
    permutation = [order.index(name) for name in wanted]
    parts = parts.transpose(*permutation, *range(len(order), parts.ndim))
    return parts.reshape(prod(sizes[name] for name in wanted), *x.shape[1:])


def _pad(x: Any, axis: int, size: int) -> Any:
    if x.shape[axis] == size:
        return x
    return jnp.pad(x, [(0, size - x.shape[i] if i == axis else 0) for i in range(x.ndim)])
