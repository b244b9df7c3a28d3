"""Square matrices to real upper bidiagonal form inside shard_map, on column panels that the devices own in turn.

A = Q B P^H by reflections from both sides, a panel at a time. Only those from the right are kept: with the right singular
vectors V, the left ones are the columns of A V, which are orthogonal.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from .layout import adjoint
from .panels import Panels
from .reflect import reduce_panels, reflection
from .substitution import dot
from .tridiagonal import in_rows


def reduce(c: Any, cut: Panels, axes: tuple[str, ...]) -> tuple[Any, Any, Any, Any]:
    """The diagonal, the one above it, and the reflections from the right, as :func:`.tridiagonal.reduce` returns them.

    ``c``: the columns of my panels, shape (padded, columns), zero in the padding.
    """
    return reduce_panels(c, cut, axes, _columns)


def _columns(a: Any, panel: Any, k: Any, top: int, rows: Any, mine: Any, known: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """The reflections of one panel, for :func:`.reflect.reduce_panels`."""
    b = cut.width
    # the rows of the panel, all columns
    across = lax.dynamic_slice(a, (k * b - top, 0), (b, a.shape[1]))
    parts = across.reshape(b, -1, b)
    across = (lax.all_gather(parts, axes, axis=2) if axes else parts).reshape(b, -1)

    def column(i: Any, state: Any) -> Any:
        # the matrix as it is now: A - V Y^H - X U^H
        v, y, x, u, d, e, taus = state
        at = k * b - top + i
        put = lax.dynamic_update_slice
        v_j, y_j, x_j, u_j = (lax.dynamic_index_in_dim(z, at, keepdims=False) for z in (v, y, x, u))
        column = lax.dynamic_index_in_dim(panel, i, 1, keepdims=False) - dot(v, jnp.conj(y_j)) - dot(x, jnp.conj(u_j))
        new, t, diagonal = reflection(column, at)
        new = jnp.where(t == 0, 0, new)
        # y = t A^H v
        z = jnp.conj(in_rows(dot(jnp.conj(new), a), cut, axes))
        z = t * (z - dot(y, dot(adjoint(v), new)) - dot(u, dot(adjoint(x), new)))
        v, y = put(v, new[:, None], (0, i)), put(y, jnp.where(rows > at, z, 0)[:, None], (0, i))
        v_j = lax.dynamic_index_in_dim(v, at, keepdims=False)
        row = lax.dynamic_index_in_dim(across, i, keepdims=False) - dot(v_j, adjoint(y)) - dot(x_j, adjoint(u))
        new, t, above = reflection(jnp.conj(row), at + 1)
        new = jnp.where(t == 0, 0, new)
        # x = t A u
        z = dot(a, new[mine])
        z = lax.psum(z, axes) if axes else z
        z = t * (z - dot(v, dot(adjoint(y), new)) - dot(x, dot(adjoint(u), new)))
        x, u = put(x, jnp.where(rows > at, z, 0)[:, None], (0, i)), put(u, new[:, None], (0, i))
        known = (put(d, diagonal[None], (top + at,)), put(e, above[None], (top + at,)), put(taus, t[None], (top + at,)))
        return v, y, x, u, *known

    zero = jnp.zeros((rows.shape[0], b), a.dtype)
    v, y, x, u, *known = lax.fori_loop(0, b, column, (zero, zero, zero, zero, *known))
    return jnp.concatenate([v, x], 1), jnp.concatenate([y[mine], u[mine]], 1), u, known
