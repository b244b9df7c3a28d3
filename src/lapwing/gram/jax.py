"""JAX arrays: one compiled program; jit, vmap, grad and jvp go through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .expression import build, safe_power, safe_root
from .tiles import DIRECT

__all__ = ["make"]


def make(
    x: Any, y: Any, formula: Callable[..., Any], numbers: tuple[Any, ...], options: dict[str, int], directions: bool
) -> Any:
    return _compiled(x, y, numbers, formula=formula, options=tuple(options.items()), directions=directions)


@partial(jax.jit, static_argnames=("directions", "formula", "options"))
def _compiled(x: Any, y: Any, numbers: Any, *, formula: Callable[..., Any], options: Any, directions: bool) -> Any:
    kernel = build(_Namespace, x, y, lambda d2, size: formula(_Namespace, d2, size, *numbers, **dict(options)), directions)
    return kernel.astype(x.dtype)


@jax.custom_jvp
def _squared_distances(x: Any, y: Any) -> Any:
    if x.shape[1] <= DIRECT:
        return jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, -1)
    p, q = _centred(x, y)
    d2 = jnp.sum(p * p, -1)[:, None] + jnp.sum(q * q, -1)[None, :] - 2 * _times(p, q.T)
    return jnp.maximum(d2, 0).astype(x.dtype)


@_squared_distances.defjvp
def _squared_distances_jvp(primals: Any, tangents: Any) -> Any:
    # 2 (x_i - y_j) . (dx_i - dy_j)
    (x, y), (dx, dy) = primals, tangents
    p, q = _centred(x, y)
    p, q = p.astype(x.dtype), q.astype(x.dtype)
    diagonal = jnp.sum(p * dx, -1)[:, None] + jnp.sum(q * dy, -1)[None, :]
    return _squared_distances(x, y), 2 * (diagonal - _times(dx, q.T) - _times(p, dy.T))


def _centred(x: Any, y: Any) -> tuple[Any, Any]:
    """Shifted to the mean of the first points, in float64 where JAX has it."""
    wide = jnp.float64 if jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64 else x.dtype
    p, q = x.astype(wide), y.astype(wide)
    centre = jnp.where(jnp.isfinite(q), q, 0).sum(0) / max(q.shape[0], 1)
    return p - centre, q - centre


# XLA's default on a GPU rounds float32 to fewer bits
_times = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class _Namespace:
    """What gram/expression.py and gram/formulas.py work with."""

    arctan2 = staticmethod(jnp.arctan2)
    clip = staticmethod(jnp.clip)
    exp = staticmethod(jnp.exp)
    power = staticmethod(partial(safe_power, jnp.where, jnp.power))
    root = staticmethod(partial(safe_root, jnp.where, jnp.sqrt))
    squared_distances = staticmethod(_squared_distances)
    stop_gradient = staticmethod(jax.lax.stop_gradient)
    where = staticmethod(jnp.where)

    @staticmethod
    def sum(x: Any) -> Any:
        return jnp.sum(x, -1, keepdims=True)

    @staticmethod
    def largest(x: Any) -> Any:
        return jnp.max(jnp.abs(x), -1, keepdims=True, initial=0)

    @staticmethod
    def zero_diagonal(d2: Any) -> Any:
        """Zero where a row meets itself; NaN, as of a point that is not finite, stays."""
        rows, columns = d2.shape
        itself = jnp.arange(rows)[:, None] + (columns - rows) == jnp.arange(columns)[None, :]
        return jnp.where(itself & jnp.isfinite(d2), 0, d2)

    @staticmethod
    def assemble(n: int, bands: list[tuple[int, Any]]) -> Any:
        """Write each block row of the lower triangle and its mirror image; XLA does so in place."""
        out = jnp.zeros((n, n), bands[0][1].dtype)
        for start, band in bands:
            left, square = band[:, :start], band[:, start:]
            out = jax.lax.dynamic_update_slice(out, left, (start, 0))
            out = jax.lax.dynamic_update_slice(out, left.T, (0, start))
            out = jax.lax.dynamic_update_slice(out, jnp.tril(square) + jnp.tril(square, -1).T, (start, start))
        return out
