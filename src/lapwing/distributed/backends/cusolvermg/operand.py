"""Arrays on the GPUs of one process as cuSOLVERMg sees them, and its results as arrays of the same library.

Blocks are row-major: as column-major memory they hold the transpose. For a Hermitian A this is conj(A), whose lower triangle
is the upper one of A: the calls for Hermitian matrices work on conj(A), and the factors and solutions are conjugated on their
way back, together with the transpose that they need anyway.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ....core.memory import library_of
from ...devices import DeviceMatrix
from ...layout import Layout
from ..cusolvermp.memory import DeviceMemory
from ..protocol import Part
from .grid import Blocks, Grid


class Operand:
    """The blocks of a matrix, row-major, with their memory."""

    def __init__(self, layout: Layout, memories: list[DeviceMemory]) -> None:
        self.layout, self.memories = layout, memories
        self.dtype = memories[0].dtype
        self.devices = tuple(memory.device for memory in memories)

    @classmethod
    def of(cls, a: DeviceMatrix) -> Operand:
        memories = [DeviceMemory(block) for block in a.blocks]
        return cls(a.layout, [x if x.row_major else DeviceMemory(_row_major(x.local)) for x in memories])

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.shape

    @property
    def blocks(self) -> Blocks:
        """The transpose, as column-major blocks."""
        return Blocks(self.layout.transposed, self.dtype, tuple(memory.pointer for memory in self.memories))

    def without_data(self) -> Operand:
        """The same library, devices and layout, and no blocks."""
        return Operand(self.layout, [memory.without_data() for memory in self.memories])

    def allocate(self, place: int, count: int) -> tuple[int, Any]:
        return self.memories[place].allocate(count)

    def finite(self, triangle: str | None) -> bool:
        """No NaN and no Inf, in the matrix or in one triangle of it."""
        return all(
            memory.finite(Part(memory.local, self.layout, SimpleNamespace(rank=i)), triangle)
            for i, memory in enumerate(self.memories)
        )

    def full(self, layout: Layout, value: Any) -> DeviceMatrix:
        return DeviceMatrix(
            [memory.library.full(memory.local, layout.local_shape(i), value) for i, memory in enumerate(self.memories)], layout
        )

    def bring(self, grid: Grid, layout: Layout, operation: str, *, lower: bool = False) -> Blocks:
        """op(A^T) in tiles; ``lower``: only the lower triangle is needed. See :meth:`.grid.Grid.copy`."""
        tiles = grid.empty(layout, self.dtype)
        grid.copy(self.blocks, tiles, operation, lower=lower)
        return tiles

    def leave(self, grid: Grid, x: Blocks, layout: Layout, operation: str) -> DeviceMatrix:
        """op(X)^T in row-major blocks of a layout."""
        target = grid.empty(layout.transposed, x.dtype)
        grid.copy(x, target, operation)
        return self.wrap(grid, target, layout)

    def wrap(self, grid: Grid, target: Blocks, layout: Layout) -> DeviceMatrix:
        """Arrays of the library in the memory of ``target``, once the copies into it are done."""
        grid.wait()
        arrays = []
        for i, memory in enumerate(self.memories):
            shape = layout.local_shape(i)
            grid.at(i)
            if 0 in shape:
                arrays.append(memory.library.full(memory.local, shape, 0))
            else:
                arrays.append(memory.library.typed(target.owners[i], memory.local, shape))
        return DeviceMatrix(arrays, layout)

    def keep_triangle(self, x: DeviceMatrix, *, upper: bool) -> DeviceMatrix:
        """Zero outside of the triangle."""
        parts = [
            memory.keep_triangle(Part(block, x.layout, SimpleNamespace(rank=i)), upper=upper)
            for i, (memory, block) in enumerate(zip(self.memories, x.blocks, strict=True))
        ]
        return DeviceMatrix([part.local for part in parts], x.layout)


def _row_major(block: Any) -> Any:
    return block.contiguous() if library_of(block) == "torch" else block.copy(order="C")
