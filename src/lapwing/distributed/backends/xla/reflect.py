"""Householder reflections inside shard_map: of one vector, of a panel, and products of many with a matrix.

H = I - t v v^H with H^H x = beta e, beta real, as LAPACK has them. A panel of them is I - V T V^H.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from .layout import adjoint, numbers, place
from .panels import Panels
from .substitution import dot


def reflection(x: Any, at: Any) -> tuple[Any, Any, Any]:
    """(v, t, beta) for ``x``, whose entries before ``at`` are ignored: v is zero there, and one at ``at``.

    ``at`` may be beyond the end: then t and beta are zero.
    """
    index = jnp.arange(x.shape[0])
    x = jnp.where(index >= at, x, 0)
    alpha = jnp.sum(jnp.where(index == at, x, 0))
    # scaled, so that squares stay in range
    scale = jnp.max(jnp.abs(x))
    scale = jnp.where(scale > 0, scale, 1)
    tail = jnp.abs(jnp.where(index > at, x, 0) / scale)
    rest = jnp.sum(tail * tail)
    size = scale * jnp.sqrt(rest + jnp.square(jnp.abs(alpha / scale)))
    beta = jnp.where(jnp.real(alpha) > 0, -size, size)
    trivial = (rest == 0) & (jnp.imag(alpha) == 0)
    beta = jnp.where(trivial, jnp.real(alpha), beta)
    safe = jnp.where(trivial, 1, beta)
    t = jnp.where(trivial, 0, (safe - alpha) / safe).astype(x.dtype)
    v = jnp.where(index == at, 1, jnp.where(trivial, 0, x / jnp.where(trivial, 1, alpha - beta)))
    return v.astype(x.dtype), t, beta


def triangle_of(v: Any, t: Any) -> Any:
    """T of I - V T V^H: T^-1 is the strict upper triangle of V^H V, with 1/t on the diagonal.

    If a t is zero, its column of V must be zero too.
    """
    b = t.shape[0]
    inverse = jnp.triu(dot(adjoint(v), v), 1)
    index = jnp.arange(b)

    def column(j: Any, out: Any) -> Any:
        # T e_j = t_j (e_j - T V^H v_j), of which only the first j rows are used
        above = jnp.where(index < j, inverse[:, j], 0)
        new = jnp.where(index == j, t[j], 0) - t[j] * dot(out, above)
        return lax.dynamic_update_slice(out, jnp.where(index <= j, new, 0)[:, None], (0, j))

    return lax.fori_loop(0, b, column, jnp.zeros((b, b), v.dtype))


def unit_lower(x: Any, first: Any) -> Any:
    """The columns of V from the stored ones: column j is zero above the row ``first + j``, and one there."""
    rows, columns = jnp.arange(x.shape[0])[:, None], jnp.arange(x.shape[1]) + first
    return jnp.where(rows > columns, x, (rows == columns).astype(x.dtype))


def panel_of(c: Any, k: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """Panel k on every device."""
    mine = lax.dynamic_slice(c, (0, k // cut.devices * cut.width), (c.shape[0], cut.width))
    return lax.psum(jnp.where(place(axes) == k % cut.devices, mine, 0), axes) if axes else mine


def reduce_panels(c: Any, cut: Panels, axes: tuple[str, ...], columns: Any) -> tuple[Any, Any, Any, Any]:
    """Reduce a matrix to two diagonals by reflections, panel by panel: diagonal, off-diagonal, stored vectors, and factors.

    ``c``: the columns of my panels, shape (padded, columns), zero in the padding. ``columns`` computes the reflections of panel
    k of ``a``, my columns of the trailing matrix from row and column ``top`` on. It returns X and Y of A <- A - X Y^H (of Y the
    rows ``mine``, which are those of my columns), the vectors to store, and ``known`` = (diagonal, off-diagonal, factors).
    """
    b, total, device = cut.width, cut.padded, place(axes)
    real = jnp.real(c[:1, 0])
    state = (jnp.zeros(total, real.dtype), jnp.zeros(total, real.dtype), jnp.zeros(total, c.dtype))
    for first, last in cut.few_windows():
        top, left = first * cut.devices * b, first * b
        rows = jnp.arange(total - top)
        mine = numbers(cut, axes)[first:].reshape(-1) - top

        def step(k: Any, state: Any, top: int = top, first: int = first, rows: Any = rows, mine: Any = mine) -> Any:
            a, *known = state
            slot = k // cut.devices - first
            panel = panel_of(a, k - first * cut.devices, cut, axes)
            x, y, vectors, known = columns(a, panel, k, top, rows, mine, known, cut, axes)
            a = a - dot(x, adjoint(y))
            kept = lax.dynamic_slice(a, (0, slot * b), vectors.shape)
            a = lax.dynamic_update_slice(a, jnp.where(device == k % cut.devices, vectors, kept), (0, slot * b))
            return a, *known

        part, *state = lax.fori_loop(first * cut.devices, last * cut.devices, step, (c[top:, left:], *state))
        c = lax.dynamic_update_slice(c, part, (top, left))
    d, e, taus = state
    return d, e, c, taus


def apply(c: Any, taus: Any, x: Any, cut: Panels, axes: tuple[str, ...], below: int, many: int) -> Any:
    """H_1 H_2 ... X for the columns of X on this device, with the reflections of the first ``many`` panels.

    V of panel k is stored in ``c`` and begins ``below`` rows under the diagonal.
    """
    b, total = cut.width, c.shape[0]
    for first, last in reversed(cut.few_windows()):
        top, end = first * cut.devices * b, min(last * cut.devices, many)
        if first * cut.devices >= end:
            continue
        window = c[top:]

        def step(i: Any, x: Any, top: int = top, end: int = end, window: Any = window) -> Any:
            k = end - 1 - i
            t = lax.dynamic_slice(taus, (k * b,), (b,))
            v = jnp.where(t == 0, 0, unit_lower(panel_of(window, k, cut, axes), k * b - top + below))
            return x - dot(v, dot(triangle_of(v, t), dot(adjoint(v), x)))

        part = lax.fori_loop(0, end - first * cut.devices, step, x[top:total])
        x = lax.dynamic_update_slice(x, part, (top, 0))
    return x
