"""Triangular systems inside shard_map: the devices own column panels of the matrix in turn, and those rows of the right side.

Both solves read the matrix by rows of blocks, of which every device has a part, and exchange one block of the right-hand side
for each panel.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .layout import adjoint, place
from .panels import Panels

# a GPU would keep ten bits of float32
dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class Triangle(NamedTuple):
    """My panels, of which only the triangle is read, and on every device the diagonal blocks and their inverses."""

    panels: Any
    diagonal: Any
    inverses: Any


def gather_solve(t: Any, b: Any, cut: Panels, axes: tuple[str, ...], *, below: bool) -> Any:
    """T^-1 B: x_i <- T_ii^-1 (b_i - sum_j T_ij x_j), each device with its own j.

    ``t`` is a :class:`Triangle`, or a factor with the same fields. ``below``: T is lower triangular.
    """
    device, k = place(axes), b.shape[-1]
    x = jnp.zeros_like(b)
    for first, last, mirror in _halves(cut, ascending=below):
        begin, end = (0, last) if below else (first, cut.each)  # slots that may have an x already; the others are zero

        def step(i: Any, x: Any, begin: int = begin, end: int = end, mirror: int | None = mirror) -> Any:
            i = i if mirror is None else mirror - i
            owner, slot = i % cut.devices, i // cut.devices
            row = lax.dynamic_slice(t.panels, (i * cut.width, begin * cut.width), (cut.width, (end - begin) * cut.width))
            part = -dot(row, x[begin:end].reshape((end - begin) * cut.width, k))
            part = jnp.where(device == owner, part + lax.dynamic_index_in_dim(b, slot, keepdims=False), part)
            x_i = left_solve(lax.psum(part, axes), *_blocks(t, i))
            return _store(x, x_i, slot, device == owner)

        x = lax.fori_loop(first * cut.devices, last * cut.devices, step, x)
    return x


def scatter_solve(t: Any, b: Any, cut: Panels, axes: tuple[str, ...], *, below: bool) -> Any:
    """T^-H B: x_i <- T_ii^-H b_i, then b_j <- b_j - T_ij^H x_i for my own j."""
    device, k = place(axes), b.shape[-1]
    for first, last, mirror in _halves(cut, ascending=not below):
        begin, end = (0, last) if below else (first, cut.each)  # slots that still change

        def step(i: Any, x: Any, begin: int = begin, end: int = end, mirror: int | None = mirror) -> Any:
            i = i if mirror is None else mirror - i
            owner, slot = i % cut.devices, i // cut.devices
            mine = lax.dynamic_index_in_dim(x, slot, keepdims=False)
            l, v = _blocks(t, i)
            x_i = left_solve(lax.psum(jnp.where(device == owner, mine, 0), axes), adjoint(l), adjoint(v))
            wide = (end - begin) * cut.width
            row = lax.dynamic_slice(t.panels, (i * cut.width, begin * cut.width), (cut.width, wide))
            panel_of = (jnp.arange(wide) // cut.width + begin) * cut.devices + device
            row = jnp.where(panel_of < i if below else panel_of > i, row, 0)
            change = dot(adjoint(row), x_i).reshape(end - begin, cut.width, k)
            x = lax.dynamic_update_slice(x, x[begin:end] - change, (begin, 0, 0))
            return _store(x, x_i, slot, device == owner)

        b = lax.fori_loop(first * cut.devices, last * cut.devices, step, b)
    return b


def left_solve(b: Any, t: Any, v: Any) -> Any:
    """T^-1 B with V ~ T^-1; one step of refinement makes it as good as substitution."""
    x = dot(v, b)
    return x + dot(v, b - dot(t, x))


def _halves(cut: Panels, ascending: bool) -> list[tuple[int, int, int | None]]:
    """Two ranges of slots, in the order of the work, and for a descending order the sum of the first and last step."""
    ranges = cut.windows(2)
    if ascending:
        return [(first, last, None) for first, last in ranges]
    return [(first, last, (first + last) * cut.devices - 1) for first, last in reversed(ranges)]


def _blocks(t: Any, i: Any) -> tuple[Any, Any]:
    return lax.dynamic_index_in_dim(t.diagonal, i, keepdims=False), lax.dynamic_index_in_dim(t.inverses, i, keepdims=False)


def _store(x: Any, x_i: Any, slot: Any, owner: Any) -> Any:
    # written in place: only this slot of x changes
    kept = lax.dynamic_index_in_dim(x, slot, keepdims=False)
    return lax.dynamic_update_slice(x, jnp.where(owner, x_i, kept)[None], (slot, 0, 0))
