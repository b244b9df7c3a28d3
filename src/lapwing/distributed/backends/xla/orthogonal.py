"""A = Q R inside shard_map for matrices of any shape, by Householder reflections on column panels that the devices own in turn.

The owner of a panel computes its reflections; all others get them and update their own columns. Q is their product.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from .layout import adjoint, numbers, place
from .panels import Panels
from .reflect import apply, reflection, triangle_of, unit_lower
from .substitution import dot


def factor(c: Any, cut: Panels, axes: tuple[str, ...]) -> tuple[Any, Any]:
    """R above and the vectors of the reflections below, and their factors. ``c``: the columns of my panels."""
    b, device, rows = cut.width, place(axes), c.shape[0]
    total = max(rows, cut.padded)
    c = jnp.pad(c, ((0, total - rows), (0, 0)))
    taus = jnp.zeros(cut.padded, c.dtype)
    many = panels_used(rows, cut)
    for first, last in cut.few_windows():
        top, left, end = first * cut.devices * b, first * b, min(last * cut.devices, many)
        if first * cut.devices >= end:
            continue
        panel_number = numbers(cut, axes)[first:].reshape(-1) // b

        def step(k: Any, state: Any, top: int = top, first: int = first, number: Any = panel_number) -> Any:
            a, taus = state
            slot, offset = (k // cut.devices - first) * b, k * b - top
            mine = lax.dynamic_slice(a, (0, slot), (a.shape[0], b))
            done, t = lax.cond(device == k % cut.devices, _panel, _nothing, mine, offset)
            done, t = lax.psum((done, t), axes) if axes else (done, t)
            v = jnp.where(t == 0, 0, unit_lower(done, offset))
            # A <- (I - V T^H V^H) A for the columns behind the panel
            right = jnp.where(number > k, dot(adjoint(v), a), 0)
            a = a - dot(v, dot(adjoint(triangle_of(v, t)), right))
            kept = lax.dynamic_slice(a, (0, slot), (a.shape[0], b))
            a = lax.dynamic_update_slice(a, jnp.where(device == k % cut.devices, done, kept), (0, slot))
            return a, lax.dynamic_update_slice(taus, t, (k * b,))

        part, taus = lax.fori_loop(first * cut.devices, end, step, (c[top:, left:], taus))
        c = lax.dynamic_update_slice(c, part, (top, left))
    return c, taus


def panels_used(rows: int, cut: Panels) -> int:
    """How many panels contain a part of the diagonal."""
    return min(cut.count, -(-min(rows, cut.n) // cut.width))


def _panel(x: Any, offset: Any) -> tuple[Any, Any]:
    """R and the vectors of a panel whose diagonal begins at row ``offset``, and the factors."""
    index = jnp.arange(x.shape[0])

    def column(j: Any, state: Any) -> Any:
        x, taus = state
        v, t, beta = reflection(lax.dynamic_index_in_dim(x, j, 1, keepdims=False), offset + j)
        # the columns behind this one: X <- (I - conj(t) v v^H) X
        right = jnp.where(jnp.arange(x.shape[1]) > j, dot(jnp.conj(v), x), 0)
        x = x - jnp.conj(t) * v[:, None] * right
        old = lax.dynamic_index_in_dim(x, j, 1, keepdims=False)
        new = jnp.where(index < offset + j, old, jnp.where(index == offset + j, beta, v))
        return lax.dynamic_update_slice(x, new.astype(x.dtype)[:, None], (0, j)), taus.at[j].set(t)

    return lax.fori_loop(0, x.shape[1], column, (x, jnp.zeros(x.shape[1], x.dtype)))  # type: ignore[no-any-return]


def _nothing(x: Any, offset: Any) -> tuple[Any, Any]:
    return jnp.zeros_like(x), jnp.zeros(x.shape[1], x.dtype)


def upper_part(c: Any, rows: int, cut: Panels, axes: tuple[str, ...]) -> Any:
    """R in my panels."""
    return jnp.where(jnp.arange(rows)[:, None] <= numbers(cut, axes).reshape(-1), c[:rows], 0)


def q_of(c: Any, taus: Any, rows: int, cut: Panels, axes: tuple[str, ...], columns: Panels) -> Any:
    """My panels, cut as ``columns``, of the first columns of Q."""
    mine = numbers(columns, axes).reshape(-1)
    eye = (jnp.arange(c.shape[0])[:, None] == mine).astype(c.dtype)
    return apply(c, taus, eye, cut, axes, 0, panels_used(rows, cut))[:rows]


def near_orthonormal(c: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """Q of the matrix, with the phases of its columns chosen so that R has a positive diagonal."""
    rows = c.shape[0]
    f, taus = factor(c, cut, axes)
    mine = numbers(cut, axes).reshape(-1)
    return q_of(f, taus, rows, cut, axes, cut) * phases(f, cut, axes)[mine]


def phases(f: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """The phases of the diagonal of R for my columns; zero for the others."""
    mine = numbers(cut, axes).reshape(-1)
    pivots = jnp.sum(jnp.where(jnp.arange(f.shape[0])[:, None] == mine, f, 0), 0)
    size = jnp.abs(pivots)
    phase = jnp.where(size > 0, pivots / jnp.where(size > 0, size, 1).astype(f.dtype), 1)
    return jnp.zeros(cut.padded, f.dtype).at[mine].set(phase)
