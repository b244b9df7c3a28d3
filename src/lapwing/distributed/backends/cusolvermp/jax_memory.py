"""Blocks of JAX arrays for an engine that knows pointers only: what each process holds of a sharded array, on its own device.

The engine writes into arrays that were made for it and that nobody else has seen; JAX is told of them afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...layout import Layout

__all__ = ["JaxBlocks", "JaxMemory"]


@dataclass(frozen=True)
class JaxBlocks:
    """One process's part of a sharded array: an array on one device, its layout, and the ranks (a Communicator)."""

    local: Any
    layout: Layout
    ranks: Any

    @property
    def memory(self) -> JaxMemory:
        return JaxMemory(self.local)


class JaxMemory:
    """Device memory of JAX's own allocator."""

    def __init__(self, local: Any) -> None:
        self._local = jax.block_until_ready(local)

    @property
    def pointer(self) -> int:
        return int(self._local.unsafe_buffer_pointer())

    @property
    def device(self) -> int:
        (device,) = self._local.devices()
        return int(getattr(device, "local_hardware_id", 0) or 0)

    @property
    def dtype(self) -> str:
        return str(self._local.dtype)

    def allocate(self, count: int) -> tuple[int, Any]:
        (device,) = self._local.devices()
        with jax.default_device(device):
            made = jax.block_until_ready(jnp.zeros(max(count, 1), jnp.uint8))
        return int(made.unsafe_buffer_pointer()), made

    def blocks(self, given: Any, ranks: Any) -> JaxBlocks:
        """The memory that :meth:`allocate` gave for a row-major block."""
        rows, columns = given.layout.local_shape(ranks.rank)
        if not rows * columns:
            return JaxBlocks(jnp.zeros((rows, columns), self._local.dtype), given.layout, ranks)
        return JaxBlocks(given.owner.view(self._local.dtype).reshape(rows, columns), given.layout, ranks)

    def filled(self, layout: Layout, ranks: Any, value: float) -> JaxBlocks:
        return JaxBlocks(jnp.full(layout.local_shape(ranks.rank), value, self._local.dtype), layout, ranks)

    def finite(self, block: JaxBlocks, triangle: str | None) -> bool:
        """No NaN and no Inf in this block, or in what it has of a triangle ("lower", "upper")."""
        fine = jnp.isfinite(block.local)
        rows, columns = (jnp.asarray(np.asarray(i)) for i in block.layout.indices(block.ranks.rank))
        if triangle is not None:
            beyond = columns[None, :] > rows[:, None] if triangle == "lower" else columns[None, :] < rows[:, None]
            fine = fine | beyond
        return bool(fine.all())

    def keep_triangle(self, block: JaxBlocks, *, upper: bool) -> JaxBlocks:
        rows, columns = block.layout.indices(block.ranks.rank)
        if not len(rows) or not len(columns):
            return block
        shift = int(rows[0] - columns[0])
        return JaxBlocks((jnp.triu if upper else jnp.tril)(block.local, shift), block.layout, block.ranks)
