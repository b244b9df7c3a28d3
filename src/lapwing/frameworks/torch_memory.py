"""Blocks of torch tensors for an engine that knows pointers only, in memory of torch's own allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..core.layout import Layout

__all__ = ["Blocks", "TorchMemory"]


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
        except torch.OutOfMemoryError as error:
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
        for first in range(0, len(rows), 1024):
            fine = block.local[first : first + 1024].isfinite()
            shift = int(rows[first] - columns[0])
            beyond = None if triangle is None else fine.logical_not().triu(shift + 1) if triangle == "lower" else None
            if triangle == "upper":
                beyond = fine.logical_not().tril(shift - 1)
            if beyond is not None:  # what is not read may be anything
                fine |= beyond
            if not bool(fine.all()):
                return False
        return True

    def keep_triangle(self, block: Blocks, *, upper: bool) -> Blocks:
        """Of contiguous blocks: where the diagonal runs through this one."""
        rows, columns = block.layout.indices(block.ranks.rank)
        if len(rows) and len(columns):
            shift = int(rows[0] - columns[0])
            (block.local.triu_ if upper else block.local.tril_)(shift)
        return block
