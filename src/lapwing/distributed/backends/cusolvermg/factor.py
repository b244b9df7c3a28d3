"""Factors in tiles on the GPUs of one process: L L^H of conj(A), or P L U of A."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ....core.errors import NotPositiveDefiniteError, SingularMatrixError
from ....core.problem import REAL
from ...devices import DeviceMatrix
from .grid import Blocks, Grid, grid_of
from .operand import Operand

LOWER = 0  # the only triangle that the library reads
_NO_TRANSPOSE = 0
# Columns of a tile. One H200, n = 8192 float64: potrf in 21.8 ms with tiles of 256 columns, 13.4 with 512, 11.6 with 1024, 9.5
# with 2048; potrs with 8 sides in 27.1 ms with 256, 7.5 with 1024; syevd (n = 2048) in 294 ms with 256, 280 with 1024.
_TILE = 1024
# Right-hand sides at a time. With more than one place potrs and potri of CUDA 13.0 gave wrong numbers from column 2048 on
# (n = 2100 and 4096, 4 and 8 places of one H200, all dtypes).
_SIDES = 2048


def tile_for(n: int, places: int) -> int:
    """Columns of a tile: every place gets two tiles if there are enough columns."""
    return max(1, min(_TILE, max(-(-n // (2 * places)), min(256, -(-n // places)))))


class Factored:
    """The factor of a square matrix; ``like`` has the library, the devices and the layout of the matrix."""

    def __init__(self, like: Operand, tiles: Blocks, pivots: tuple[Any, ...] | None) -> None:
        self._like, self._tiles, self._pivots = like, tiles, pivots

    @property
    def tile(self) -> int:
        return self._tiles.layout.columns.tile

    def opened(self) -> Any:
        return grid_of(self._like.devices).opened(self._like.allocate)

    def triangle(self, grid: Grid, upper: bool) -> DeviceMatrix:
        """L, or U = L^H, of A = L L^H; conj(L) is in the tiles."""
        factor = self._like.leave(grid, self._tiles, self._like.layout, "N" if upper else "C")
        return self._like.keep_triangle(factor, upper=upper)

    def solve(self, grid: Grid, b: Operand) -> DeviceMatrix:
        """A^-1 b; the places of b are the first ones of the grid."""
        # conj(A) conj(x) = conj(b), or A x = b
        operation = "C" if self._pivots is None else "T"
        x = grid.empty(b.layout.transposed, b.dtype)
        for start, sides in self._sides(grid, b.shape[1]):
            grid.copy(b.blocks, sides, operation, shift=(-start, 0))
            self._substitute(grid, sides)
            grid.copy(sides, x, operation, shift=(0, start))
        return b.wrap(grid, x, b.layout)

    def inverse(self, grid: Grid) -> DeviceMatrix:
        """A^-1, for "pos" exactly Hermitian.

        By substitution, like the library's own inverse, which takes as long (n = 8192, one H200: 59 ms).
        """
        n = self._tiles.layout.shape[0]
        target = grid.empty(self._like.layout.transposed, self._tiles.dtype)
        for start, x in self._sides(grid, n):
            grid.set_identity(x, start)
            self._substitute(grid, x)
            if self._pivots is not None:
                grid.copy(x, target, "T", shift=(0, start))
                continue
            # the inverse of conj(A) is the transpose of that of A; its upper triangle is the adjoint of the lower one
            grid.complete_diagonal(x, start)
            tile, width = x.layout.columns.tile, x.layout.shape[1]

            def top(j: int, start: int = start, tile: int = tile) -> int:
                """The first row of the diagonal tile in column j."""
                return start + j // tile * tile

            def below(j: int, start: int = start, tile: int = tile, width: int = width) -> int:
                """The first row below it; the last tile may be narrow."""
                return start + min((j // tile + 1) * tile, width)

            grid.copy(x, target, "N", first=top, shift=(0, start))
            grid.copy(x, target, "C", first=below, shift=(0, start))
        return self._like.wrap(grid, target, self._like.layout)

    def _sides(self, grid: Grid, columns: int) -> Iterator[tuple[int, Blocks]]:
        """Some right-hand sides at a time, in tiles, with the number of the first."""
        n, places = self._tiles.layout.shape[0], self._tiles.layout.size
        for start in range(0, columns, _SIDES):
            width = min(_SIDES, columns - start)
            yield start, grid.empty(grid.tiles((n, width), tile_for(width, places), places), self._tiles.dtype)
            grid.wait()  # for the copies from these tiles

    def slogdet(self, grid: Grid) -> tuple[Any, Any]:
        diagonal = grid.diagonal(self._tiles)
        real = np.dtype(REAL[self._tiles.dtype]).type
        logabs = np.log(np.abs(diagonal)).sum(dtype=real)
        if self._pivots is None:
            return diagonal.dtype.type(1), real(2 * logabs)
        sign = np.prod(diagonal / np.abs(diagonal))
        exchanged = sum(int((pivots != rows + 1).sum()) for rows, pivots in self._exchanges(grid))
        return diagonal.dtype.type(-sign if exchanged % 2 else sign), real(logabs)

    def _exchanges(self, grid: Grid) -> Any:
        """The rows of each place, and the rows that they were exchanged with, counted from 1."""
        assert self._pivots is not None
        for place in range(self._tiles.layout.size):
            rows = self._tiles.layout.columns.indices(place)
            yield rows, grid.to_host(place, self._pivots[place][0], len(rows), np.int32)

    def _substitute(self, grid: Grid, sides: Blocks) -> None:
        """sides <- the solutions."""
        layout, (n, columns), dtype = self._tiles.layout, sides.layout.shape, sides.dtype
        grid.wait()
        if self._pivots is None:
            grid.call("Potrs", layout, LOWER, n, columns, self._tiles, sides, dtype=dtype)
        else:
            pivots = grid.pointers([pointer for pointer, _ in self._pivots])
            grid.call("Getrs", layout, _NO_TRANSPOSE, n, columns, self._tiles, pivots, sides, dtype=dtype)


def factor(grid: Grid, a: Operand, *, pos: bool, upper: bool, name: str) -> Factored:
    """Factor A. Raises NotPositiveDefiniteError or SingularMatrixError with the minor or pivot that failed."""
    n, dtype = a.shape[0], a.dtype
    layout = grid.tiles((n, n), tile_for(n, grid.size))
    if pos:
        tiles = a.bring(grid, layout, "N" if upper else "C", lower=True)
        grid.wait()
        if info := grid.call("Potrf", layout, LOWER, n, tiles, dtype=dtype):
            raise NotPositiveDefiniteError(name, minor=max(info, 1))
        return Factored(a.without_data(), tiles, None)
    tiles = a.bring(grid, layout, "T")
    pivots = tuple(grid.allocate(place, 4 * max(layout.local_shape(place)[1], 1)) for place in range(layout.size))
    grid.wait()
    info = grid.call("Getrf", layout, n, n, tiles, grid.pointers([pointer for pointer, _ in pivots]), dtype=dtype)
    if info:
        raise SingularMatrixError(name, pivot=max(info, 1))
    return Factored(a.without_data(), tiles, pivots)
