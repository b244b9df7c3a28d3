"""The rows of `lapwing.insitu.analyses.rows` in a JAX array."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..solver.streams import wide
from .rows import Layout


class JaxRows:
    """Rows in a JAX array on a GPU. Each change donates the old array, so that XLA can reuse its memory."""

    def __init__(self, like: Any, layout: Layout, capacity: int, dtype: np.dtype) -> None:
        self.library, self.layout, self.dtype, self.capacity = "jax", layout, dtype, capacity
        self._device = next(iter(like.devices()))
        with wide():
            self.data = self._zeros((layout.chunks, capacity, layout.width), dtype)

    def grow(self, capacity: int) -> None:
        with wide():
            more = self._zeros((self.layout.chunks, capacity - self.capacity, self.layout.width), self.dtype)
            self.data = jnp.concatenate([self.data, more], axis=1)
        self.capacity = capacity

    def put(self, row: int, arrays: Sequence[Any], scale: Any = None, shift: Any = None) -> None:
        with wide():
            self.data = _put(self.data, row, tuple(arrays), scale, shift, self.layout)
            # the copy must be complete before the solver continues, because it may donate or overwrite its arrays
            self.data.block_until_ready()

    def zero(self, row: int) -> None:
        with wide():
            self.data = self.data.at[:, row].set(0)

    def not_finite(self, row: int) -> list[str]:
        parts = self.fields_of(self.data[:, row])
        return [name for name, x in zip(self.layout.names, parts, strict=True) if not bool(jnp.isfinite(x).all())]

    def gram(self, count: int, left: np.ndarray | None = None) -> np.ndarray:
        with wide():
            return np.asarray(_gram(self.data, count, left))

    def rotate(self, count: int, w: np.ndarray, extra: np.ndarray | None = None) -> Any:
        factor = w.conj().T if extra is None else np.vstack([w.conj().T, extra])
        with wide():
            self.data, combined = _rotate(self.data, count, factor.astype(self.dtype), w.shape[1])
        return combined

    def combine(self, count: int, c: np.ndarray, scale: Any = None) -> list[Any]:
        with wide():
            return self.layout.split(_combine(self.data, count, c.astype(self.dtype), scale))

    def pick(self, chunks: np.ndarray, columns: np.ndarray, factors: np.ndarray, scale: Any = None) -> Any:
        with wide():
            values = self.data[chunks, : len(factors), columns] * factors
            return (values if scale is None else values / scale[chunks, columns][:, None]).T

    def fields_of(self, vector: Any) -> list[Any]:
        with wide():
            return self.layout.split(vector)

    def vector(self, arrays: Sequence[Any] | None = None, dtype: np.dtype | None = None) -> Any:
        with wide():
            if arrays is None:
                return self._zeros((self.layout.chunks, self.layout.width), dtype or self.dtype)
            fields = [jnp.asarray(array, dtype or self.dtype) for array in arrays]
            return jax.device_put(_join(fields, self.layout), self._device)

    def take_vector(self, values: np.ndarray) -> Any:
        with wide():
            return jax.device_put(values, self._device)

    def to_host(self, count: int) -> np.ndarray:
        with wide():
            return np.array(self.data[:, :count])

    def from_host(self, rows: np.ndarray) -> None:
        with wide():
            self.data = self.data.at[:, : rows.shape[1]].set(rows)

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return jax.device_put(jnp.zeros(shape, dtype), self._device)


def _join(arrays: Sequence[Any], layout: Layout) -> Any:
    """One vector (chunks, width) from the fields."""
    pieces = []
    for count, array in zip(layout.counts, arrays, strict=True):
        pieces.append(jnp.pad(array.reshape(-1), (0, count * layout.width - array.size)).reshape(count, layout.width))
    return jnp.concatenate(pieces)


@partial(jax.jit, static_argnums=5, donate_argnums=0)
def _put(data: Any, row: Any, arrays: Any, scale: Any, shift: Any, layout: Layout) -> Any:
    x = _join([array.astype(data.dtype) for array in arrays], layout)
    x = x if scale is None else x * scale
    x = x if shift is None else x - shift
    return jax.lax.dynamic_update_slice_in_dim(data, x.astype(data.dtype)[:, None], row, 1)


@partial(jax.jit, static_argnums=1)
def _gram(data: Any, count: int, left: Any) -> Any:
    wider = jnp.promote_types(data.dtype, jnp.float64)

    def add(total: Any, chunk: Any) -> Any:
        x = chunk[:count].astype(wider)
        x = x if left is None else left @ x
        return total + jnp.matmul(x, x.conj().T, precision="highest"), None

    size = count if left is None else left.shape[0]
    return jax.lax.scan(add, jnp.zeros((size, size), wider), data)[0]


@partial(jax.jit, static_argnums=(1, 3), donate_argnums=0)
def _rotate(data: Any, count: int, factor: Any, k: int) -> Any:
    def rotate_chunk(carry: Any, chunk: Any) -> Any:
        product = jnp.matmul(factor, chunk[:count], precision="highest")
        combined = product[k] if factor.shape[0] > k else jnp.zeros(0, data.dtype)
        return carry, (chunk.at[:k].set(product[:k]), combined)

    return jax.lax.scan(rotate_chunk, 0, data)[1]


@partial(jax.jit, static_argnums=1)
def _combine(data: Any, count: int, c: Any, scale: Any) -> Any:
    product = jnp.einsum("kr,crw->kcw", c, data[:, :count], precision="highest")
    return product if scale is None else product * scale
