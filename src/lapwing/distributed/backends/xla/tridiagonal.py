"""Hermitian matrices to real tridiagonal form inside shard_map, on column panels that the devices own in turn.

A = Q T Q^H by reflections, a panel at a time. During a panel the matrix is not changed, and each reflection needs one product
of it with a vector, of which each device computes the entries of its own columns; then products update all columns.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from .layout import adjoint
from .panels import Panels
from .reflect import reduce_panels, reflection
from .substitution import dot


def reduce(c: Any, cut: Panels, axes: tuple[str, ...]) -> tuple[Any, Any, Any, Any]:
    """The diagonal, the off-diagonal, and the reflections: their vectors, stored as the columns of my panels, and factors.

    ``c``: the columns of my panels of a whole Hermitian matrix, shape (padded, columns), zero in the padding. The vectors begin
    one row under the diagonal.
    """
    return reduce_panels(c, cut, axes, _columns)


def _columns(a: Any, panel: Any, k: Any, top: int, rows: Any, mine: Any, known: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """The reflections of one panel, for :func:`.reflect.reduce_panels`."""
    b = cut.width

    def column(i: Any, state: Any) -> Any:
        v, w, d, e, taus = state
        at = k * b - top + i
        # the column as it is now: A_j - V W_j^H - W V_j^H
        v_j, w_j = (lax.dynamic_index_in_dim(x, at, keepdims=False) for x in (v, w))
        x = lax.dynamic_index_in_dim(panel, i, 1, keepdims=False) - dot(v, jnp.conj(w_j)) - dot(w, jnp.conj(v_j))
        new, t, beta = reflection(x, at + 1)
        # y = A v, of which I have the entries of my columns
        y = in_rows(dot(jnp.conj(new), a), cut, axes)
        y = jnp.conj(y) - dot(v, dot(adjoint(w), new)) - dot(w, dot(adjoint(v), new))
        y = t * jnp.where(rows > at, y, 0)
        y = y - jnp.conj(t) / 2 * jnp.sum(jnp.conj(new) * y) * new
        put = lax.dynamic_update_slice
        return (
            put(v, jnp.where(t == 0, 0, new)[:, None], (0, i)),
            put(w, y[:, None], (0, i)),
            put(d, jnp.real(lax.dynamic_slice(x, (at,), (1,))), (top + at,)),
            put(e, beta[None], (top + at,)),
            put(taus, t[None], (top + at,)),
        )

    zero = jnp.zeros((rows.shape[0], b), a.dtype)
    v, w, *known = lax.fori_loop(0, b, column, (zero, zero, *known))
    # A <- A - V W^H - W V^H for my columns
    return jnp.concatenate([v, w], 1), jnp.concatenate([w[mine], v[mine]], 1), v, known


def in_rows(x: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """All entries of a vector, in order; each device has the entries of its (last) panels."""
    parts = x.reshape(-1, cut.width)
    return (lax.all_gather(parts, axes, axis=1) if axes else parts).reshape(-1)
