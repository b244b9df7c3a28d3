"""Blocks of torch tensors for an engine that knows pointers only, in memory of torch's own allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...layout import Layout

__all__ = ["Blocks", "TorchMemory"]

_ROWS = 1024  # looked at together: masks are small beside the block


@dataclass(frozen=True)
class Blocks:
    """What one rank holds of a matrix, as an engine sees it."""

    local: Any  # torch.Tensor, row-major
    layout: Layout
    ranks: Any  # a Communicator

    @property
    def memory(self) -> TorchMemory:
        return TorchMemory(self.local)


class TorchMemory:
    """Device memory of torch's own allocator, for an engine that knows pointers only."""

    def __init__(self, local: Any) -> None:
        self._local = local

    @classmethod
    def of(cls, local: Any) -> TorchMemory:
        """Of a tensor with any strides; it is copied where it lies neither way."""
        contiguous = local.is_contiguous() or (local.ndim == 2 and local.mT.is_contiguous())
        return cls(local if contiguous else local.contiguous())

    @property
    def local(self) -> Any:
        return self._local

    @property
    def row_major(self) -> bool:
        return bool(self._local.is_contiguous())

    def without_data(self) -> TorchMemory:
        """The same allocator, and no array held."""
        return TorchMemory(self._local.new_empty((0, 0)))

    def put(self, x: np.ndarray) -> Any:
        """What the host has, on the device."""
        return torch.from_numpy(np.ascontiguousarray(x)).to(self._local.device)

    @staticmethod
    def to_numpy(x: Any) -> np.ndarray:
        return x.cpu().numpy()  # type: ignore[no-any-return]

    @property
    def pointer(self) -> int:
        return int(self._local.data_ptr())

    @property
    def device(self) -> int:
        return int(self._local.device.index or 0)

    @property
    def dtype(self) -> str:
        return str(self._local.dtype).rpartition(".")[2]

    def allocate(self, count: int) -> tuple[int, Any]:
        try:
            made = torch.empty(max(count, 1), dtype=torch.uint8, device=self._local.device)
        except torch.cuda.OutOfMemoryError as error:  # newer versions know it as torch.OutOfMemoryError too
            raise MemoryError(str(error)) from None
        return int(made.data_ptr()), made

    def blocks(self, given: Any, ranks: Any) -> Blocks:
        """The memory that :meth:`allocate` gave for a row-major block."""
        shape = given.layout.local_shape(ranks.rank)
        count = shape[0] * shape[1] * self._local.element_size()
        return Blocks(given.owner[:count].view(self._local.dtype).view(shape), given.layout, ranks)

    def filled(self, layout: Layout, ranks: Any, value: float) -> Blocks:
        return Blocks(self._local.new_full(layout.local_shape(ranks.rank), value), layout, ranks)

    def finite(self, block: Blocks, triangle: str | None) -> bool:
        """No NaN and no Inf in this block, or in what it has of a triangle ("lower", "upper"); some rows at a time."""
        rows, columns = block.layout.indices(block.ranks.rank)
        if not len(rows) or not len(columns):
            return True
        for first in range(0, len(rows), _ROWS):
            fine = block.local[first : first + _ROWS].isfinite()
            if triangle is not None:  # what is not read may be anything
                fine |= self._beside(rows[first : first + _ROWS], columns, triangle == "upper")
            if not bool(fine.all()):
                return False
        return True

    def keep_triangle(self, block: Blocks, *, upper: bool) -> Blocks:
        """Zero beside the triangle, in place."""
        rows, columns = block.layout.indices(block.ranks.rank)
        if not len(rows) or not len(columns):
            return block
        if rows[-1] - rows[0] == len(rows) - 1 and columns[-1] - columns[0] == len(columns) - 1:
            # a contiguous block: where the diagonal runs through it
            (block.local.triu_ if upper else block.local.tril_)(int(rows[0] - columns[0]))
            return block
        for first in range(0, len(rows), _ROWS):
            some = rows[first : first + _ROWS]
            block.local[first : first + _ROWS].masked_fill_(self._beside(some, columns, upper), 0)
        return block

    def _beside(self, rows: np.ndarray, columns: np.ndarray, upper: bool) -> Any:
        """Where these rows and columns of the matrix are not in the triangle."""
        i, j = (torch.from_numpy(np.ascontiguousarray(x)).to(self._local.device) for x in (rows, columns))
        return j[None, :] < i[:, None] if upper else j[None, :] > i[:, None]
