"""Blocks of CuPy arrays for an engine that knows pointers only, in memory of CuPy's own pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

from ...layout import Layout

__all__ = ["CupyBlocks", "CupyMemory"]

_ROWS = 1024  # looked at together: masks are small beside the block


@dataclass(frozen=True)
class CupyBlocks:
    """What one rank holds of a matrix, as an engine sees it."""

    local: Any  # cupy.ndarray, row-major
    layout: Layout
    ranks: Any  # a Communicator

    @property
    def memory(self) -> CupyMemory:
        return CupyMemory(self.local)


class CupyMemory:
    """Device memory of CuPy's pool."""

    def __init__(self, local: Any) -> None:
        self.local = local

    @classmethod
    def of(cls, local: Any) -> CupyMemory:
        """Of an array with any strides; it is copied where it lies neither way."""
        flags = local.flags
        return cls(local if flags.c_contiguous or flags.f_contiguous else cp.ascontiguousarray(local))

    @property
    def pointer(self) -> int:
        return int(self.local.data.ptr)

    @property
    def device(self) -> int:
        return int(self.local.device.id)

    @property
    def dtype(self) -> str:
        return str(self.local.dtype.name)

    @property
    def row_major(self) -> bool:
        return bool(self.local.flags.c_contiguous)

    def without_data(self) -> CupyMemory:
        """The same device, and no array held."""
        with self.local.device:
            return CupyMemory(cp.empty((0, 0), self.local.dtype))

    def put(self, x: np.ndarray) -> Any:
        """What the host has, on the device."""
        with self.local.device:
            return cp.asarray(np.ascontiguousarray(x))

    @staticmethod
    def to_numpy(x: Any) -> np.ndarray:
        return cp.asnumpy(x)  # type: ignore[no-any-return]

    def allocate(self, count: int) -> tuple[int, Any]:
        with self.local.device:
            try:
                made = cp.empty(max(count, 1), np.uint8)
            except cp.cuda.memory.OutOfMemoryError as error:
                raise MemoryError(str(error)) from None
        return int(made.data.ptr), made

    def blocks(self, given: Any, ranks: Any) -> CupyBlocks:
        """The memory that :meth:`allocate` gave for a row-major block."""
        shape = given.layout.local_shape(ranks.rank)
        count = shape[0] * shape[1] * self.local.dtype.itemsize
        return CupyBlocks(given.owner[:count].view(self.local.dtype).reshape(shape), given.layout, ranks)

    def filled(self, layout: Layout, ranks: Any, value: float) -> CupyBlocks:
        with self.local.device:
            return CupyBlocks(cp.full(layout.local_shape(ranks.rank), value, self.local.dtype), layout, ranks)

    def finite(self, block: Any, triangle: str | None) -> bool:
        """No NaN and no Inf in this block, or in what it has of a triangle ("lower", "upper"); some rows at a time."""
        rows, columns = block.layout.indices(block.ranks.rank)
        with self.local.device:
            for first in range(0, len(rows) if len(columns) else 0, _ROWS):
                fine = cp.isfinite(block.local[first : first + _ROWS])
                if triangle is not None:  # what is not read may be anything
                    fine |= _beside(rows[first : first + _ROWS], columns, triangle == "upper")
                if not bool(fine.all()):
                    return False
        return True

    def keep_triangle(self, block: Any, *, upper: bool) -> Any:
        """Zero beside the triangle, in place."""
        rows, columns = block.layout.indices(block.ranks.rank)
        with self.local.device:
            for first in range(0, len(rows) if len(columns) else 0, _ROWS):
                part = block.local[first : first + _ROWS]
                part[_beside(rows[first : first + _ROWS], columns, upper)] = 0
        return block


def _beside(rows: np.ndarray, columns: np.ndarray, upper: bool) -> Any:
    """Where these rows and columns of the matrix are not in the triangle."""
    i, j = cp.asarray(rows), cp.asarray(columns)
    return j[None, :] < i[:, None] if upper else j[None, :] > i[:, None]
