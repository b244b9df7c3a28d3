"""Blocks on a GPU: operands, the diagonal, the identity, and copies from and to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...layout import Layout
from .exchange import Block


@dataclass(frozen=True)
class Operand:
    """One rank's block of an operand, in memory on the device that nobody else writes to during the call."""

    pointer: int
    layout: Layout
    dtype: str
    row_major: bool = True
    owner: Any = None

    def block(self, rank: int) -> Block:
        """As a column-major block; for row-major memory, a block of the transpose."""
        layout = self.layout.transposed if self.row_major else self.layout
        return Block(self.pointer, layout, self.dtype, max(layout.local_shape(rank)[0], 1), self.owner)


def identity(session: Any, layout: Layout, dtype: str, into: Block | None = None) -> Block:
    """The identity, in the memory of ``into``, which has the same layout, or in new memory. Collective."""
    block = into or session.empty(layout, dtype)
    runtime, size = session.runtime, block.itemsize
    rows, columns = layout.local_shape(session.rank)
    runtime.zero(block.pointer, rows * columns * size, session.stream)
    ones = np.ones(layout.rows.tile, dtype)
    device_ones, keep = session.reserve(ones.nbytes)
    runtime.copy(device_ones, ones.ctypes.data, ones.nbytes, 1, session.stream)
    for row, column, count in diagonal_places(layout, session.rank):
        runtime.copy_2d(block.at(row, column), (block.lead + 1) * size, device_ones, size, size, count, 3, session.stream)
    runtime.wait(session.stream)  # both arrays of ones must live until they are read
    del keep
    return block


def diagonal(session: Any, block: Block) -> np.ndarray:
    """This rank's part of the diagonal of a square matrix in tiles. Collective."""
    parts, size, start = diagonal_places(block.layout, session.rank), block.itemsize, 0
    total = sum(count for _, _, count in parts)
    packed, keep = session.reserve(total * size)
    for row, column, count in parts:
        to = packed + start * size
        session.runtime.copy_2d(to, size, block.at(row, column), (block.lead + 1) * size, size, count, 3, session.stream)
        start += count
    values: np.ndarray = session.to_host(packed, total, block.dtype)
    del keep
    return values


def put(session: Any, layout: Layout, local: np.ndarray) -> Block:
    """A block with the values of an array on the host. Collective."""
    block = session.empty(layout, local.dtype.name)
    local = np.asfortranarray(local)
    session.runtime.copy(block.pointer, local.ctypes.data, local.nbytes, 1, session.stream)
    session.runtime.wait(session.stream)
    return block  # type: ignore[no-any-return]


def local_of(session: Any, block: Block) -> np.ndarray:
    """This rank's block, on the host."""
    rows, columns = block.layout.local_shape(session.rank)
    flat: np.ndarray = session.to_host(block.pointer, rows * columns, block.dtype)
    return flat.reshape(columns, rows).T


def diagonal_places(layout: Layout, rank: int) -> list[tuple[int, int, int]]:
    """Where the diagonal runs through this rank's tiles: local row, local column, length."""
    place = layout.place(rank)
    if place is None:
        return []
    n, tile = min(layout.shape), layout.rows.tile
    places = []
    for start in range(0, n, tile):
        number = start // tile
        if (number % layout.grid[0], number % layout.grid[1]) == place:
            places.append((int(layout.rows.local(start)), int(layout.columns.local(start)), min(tile, n - start)))
    return places


def diagonal_indices(layout: Layout, rank: int) -> np.ndarray:
    """The global indices of those entries."""
    rows = layout.indices(rank)[0]
    return np.concatenate([rows[i : i + count] for i, _, count in diagonal_places(layout, rank)] or [np.arange(0)])
