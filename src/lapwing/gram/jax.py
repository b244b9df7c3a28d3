"""JAX arrays: one compiled program, which works under jit, vmap, grad and jvp."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from .expression import build, safe_power, safe_root
from .formulas import Kernel
from .tiles import DIRECT


@partial(jax.jit, static_argnames="kernel")
def make(x: Any, y: Any, kernel: Kernel, numbers: tuple[Any, ...]) -> Any:
    return build(_FUNCTIONS, x, y, kernel, numbers).astype(x.dtype)


def vector(values: Any, like: Any) -> Any:
    return jnp.asarray(values, like.dtype)


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
    """Shifted to the mean of the second points, in float64 where JAX has it."""
    wide = jnp.float64 if jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64 else x.dtype
    p, q = x.astype(wide), y.astype(wide)
    centre = jnp.where(jnp.isfinite(q), q, 0).sum(0) / max(q.shape[0], 1)
    return p - centre, q - centre


# XLA's default on a GPU rounds float32 to fewer bits
_times = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def _assemble(n: int, bands: list[tuple[int, Any]]) -> Any:
    """Write each block row of the lower triangle and its mirror image; XLA does so in place."""
    out = jnp.zeros((n, n), bands[0][1].dtype)
    for start, band in bands:
        left, square = band[:, :start], band[:, start:]
        out = jax.lax.dynamic_update_slice(out, left, (start, 0))
        out = jax.lax.dynamic_update_slice(out, left.T, (0, start))
        out = jax.lax.dynamic_update_slice(out, jnp.tril(square) + jnp.tril(square, -1).T, (start, start))
    return out


# the functions that gram/expression.py and gram/formulas.py call
_FUNCTIONS = SimpleNamespace(
    squared_distances=_squared_distances,
    assemble=_assemble,
    arange=lambda n, like: jnp.arange(n),
    arctan2=jnp.arctan2,
    clip=jnp.clip,
    exp=jnp.exp,
    where=jnp.where,
    largest=lambda x: jnp.max(jnp.abs(x), -1, keepdims=True, initial=0),
    sum=partial(jnp.sum, axis=-1, keepdims=True),
    power=partial(safe_power, jnp.where, jnp.power),
    root=partial(safe_root, jnp.where, jnp.sqrt),
    shape=jnp.shape,
    stop_gradient=jax.lax.stop_gradient,
)
