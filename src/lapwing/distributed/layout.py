"""Layouts: which rank of a grid owns which rows and columns of a matrix, in blocks or block-cyclic.

The rows and the columns are divided independently (:class:`Axis`); the grid has a row of ranks for each part of the rows and a
column of ranks for each part of the columns (:class:`Layout`). Rank r is at (r // q, r % q) of a p x q grid, or at
(r % p, r // p) for order "C"; ranks from p q on own nothing.

ScaLAPACK, cuBLASMp and cuSOLVERMp accept only column-major blocks of block-cyclic layouts (:class:`Descriptor`). A row-major
block is a column-major block of the transpose, so they accept most shards without a copy.

This is arithmetic on sizes: no data, no communication, no framework.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from .tiles import block_sizes, global_indices, grid_of, numroc


@dataclass(frozen=True)
class Axis:
    """The n rows, or columns, of a matrix, divided among the parts of one side of the grid.

    Create one with :meth:`blocks`, :meth:`even`, :meth:`cyclic` or :meth:`whole`. It has either ``sizes``, the lengths of
    contiguous blocks, which may be 0, or ``tile``: tiles of that many rows go to each part in turn. With tiles there may be
    ``skip`` other rows before these n, which are in the blocks too.
    """

    n: int
    parts: int
    tile: int = 0
    sizes: tuple[int, ...] = ()
    skip: int = 0

    @classmethod
    def blocks(cls, sizes: tuple[int, ...] | list[int]) -> Axis:
        sizes = tuple(int(s) for s in sizes)
        if not sizes or min(sizes) < 0:
            raise ValueError(f"layout: blocks of {sizes!r} rows\nhint: give at least one size, each 0 or more")
        return cls(sum(sizes), len(sizes), 0, sizes)

    @classmethod
    def even(cls, n: int, parts: int) -> Axis:
        return cls.blocks(block_sizes(n, parts))

    @classmethod
    def cyclic(cls, n: int, tile: int, parts: int) -> Axis:
        if tile < 1 or parts < 1 or n < 0:
            raise ValueError(
                f"layout: {n} rows in tiles of {tile} on {parts} parts is not possible"
                "\nhint: rows are 0 or more, tile and parts 1 or more"
            )
        return cls(n, parts, tile)

    @classmethod
    def whole(cls, n: int) -> Axis:
        """One part with all rows."""
        return cls.blocks((n,))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of each contiguous block, and n."""
        return tuple(accumulate(self.sizes, initial=0))

    def length(self, part: int) -> int:
        """Rows in the block of a part."""
        return numroc(self.skip + self.n, self.tile, part, self.parts) if self.tile else self.sizes[part]

    def indices(self, part: int) -> np.ndarray:
        """The global indices of a part, in the order in which it holds them (ascending)."""
        if self.tile:
            indices = global_indices(self.skip + self.n, self.tile, part, self.parts) - self.skip
            return indices[indices >= 0] if self.skip else indices
        return np.arange(self.starts[part], self.starts[part + 1])

    def owner(self, index: Any) -> Any:
        """The part that holds a global index, or an array of them."""
        if self.tile:
            return (index + self.skip) // self.tile % self.parts
        # an empty block has the same start as the next one; the last of these owns the index
        return np.searchsorted(self.starts[1:], index, side="right")

    def local(self, index: Any) -> Any:
        """The index in the owner's block of a global index, or of an array of them."""
        if self.tile:
            index = index + self.skip
            return index // (self.tile * self.parts) * self.tile + index % self.tile
        return index - np.asarray(self.starts)[self.owner(index)]

    @cached_property
    def as_tile(self) -> int | None:
        """The tile of the block-cyclic layout that is the same as this one; None if there is none."""
        if self.tile:
            return self.tile
        tile = max(1, *self.sizes)  # one tile for each part, where only the last blocks are shorter
        return tile if all(self.sizes[i] == numroc(self.n, tile, i, self.parts) for i in range(self.parts)) else None

    def permuted_tile(self, wanted: int) -> int | None:
        """The largest tile up to ``wanted`` whose block-cyclic layout gives each part the same number of rows; else None.

        Read with that tile, the blocks are those of P A P^T; P is one permutation if rows and columns are divided alike.
        """
        if self.tile:
            return self.tile
        if len(set(self.sizes)) == 1 and self.sizes[0]:
            share = self.sizes[0]
            return next(t for t in range(min(wanted, share), 0, -1) if share % t == 0)
        return None

    def meeting(self, part: int, other: Axis, other_part: int) -> tuple[Any, Any]:
        """The indices that ``part`` shares with ``other_part`` of another axis, counted in both blocks: slices or arrays."""
        indices = self.indices(part)
        shared = indices[other.owner(indices) == other_part]
        return _places(self.local(shared)), _places(other.local(shared))

    def as_json(self) -> dict[str, Any]:
        known = {"n": self.n, "parts": self.parts, "tile": self.tile, "sizes": list(self.sizes)}
        return known | ({"skip": self.skip} if self.skip else {})

    @classmethod
    def from_json(cls, values: Any) -> Axis:
        """The axis of :meth:`as_json`; ValueError for anything else."""
        error = ValueError(f"layout: {values!r:.80} does not describe an axis")
        if not isinstance(values, dict) or not isinstance(values.get("sizes"), list):
            raise error
        numbers = [values.get("n"), values.get("parts"), values.get("tile"), values.get("skip", 0), *values["sizes"]]
        if not all(type(x) is int and 0 <= x < 2**63 for x in numbers):
            raise error
        n, parts, tile, skip, *sizes = numbers
        fits = not sizes if tile else len(sizes) == parts and sum(sizes) == n and not skip
        if not parts or not fits:
            raise error
        return cls(n, parts, tile, tuple(sizes), skip)


def _places(local: np.ndarray) -> Any:
    if len(local) == 0:
        return slice(0, 0)
    first, last = int(local[0]), int(local[-1]) + 1
    return slice(first, last) if last - first == len(local) else local


@dataclass(frozen=True)
class Descriptor:
    """Column-major blocks of a block-cyclic matrix, as ScaLAPACK, cuBLASMp and cuSOLVERMp describe them.

    ``transposed``: it describes the transpose of the matrix. ``order`` as in BLACS: "R" numbers the ranks along the rows of the
    grid, "C" down its columns.
    """

    m: int
    n: int
    mb: int
    nb: int
    p: int
    q: int
    order: str
    transposed: bool = False

    @property
    def layout(self) -> Layout:
        """The layout of the matrix described."""
        return Layout(Axis.cyclic(self.m, self.mb, self.p), Axis.cyclic(self.n, self.nb, self.q), self.order)


@dataclass(frozen=True)
class Layout:
    """A matrix divided over a grid of ranks.

    Examples
    --------
    >>> layout = Layout.cyclic((10, 10), 2, (2, 2))
    >>> layout.local_shape(3), layout.indices(3)[0].tolist()
    ((4, 4), [2, 3, 6, 7])
    >>> Layout.rows_of((10, 3), 4).local_shape(3)
    (2, 3)
    """

    rows: Axis
    columns: Axis
    order: str = "R"

    def __post_init__(self) -> None:
        if self.order not in ("R", "C"):
            raise ValueError(f"layout: order={self.order!r} is not known\nhint: use 'R' or 'C'")

    @classmethod
    def rows_of(cls, shape: tuple[int, int], ranks: int) -> Layout:
        """Blocks of rows, as even as possible."""
        return cls(Axis.even(shape[0], ranks), Axis.whole(shape[1]))

    @classmethod
    def columns_of(cls, shape: tuple[int, int], ranks: int) -> Layout:
        """Blocks of columns, as even as possible."""
        return cls(Axis.whole(shape[0]), Axis.even(shape[1], ranks))

    @classmethod
    def blocks(cls, shape: tuple[int, int], grid: tuple[int, int], order: str = "R") -> Layout:
        """One block for each rank of the grid, as even as possible."""
        p, q = grid_of(grid)
        return cls(Axis.even(shape[0], p), Axis.even(shape[1], q), order)

    @classmethod
    def cyclic(
        cls, shape: tuple[int, int], tile: int | tuple[int, int], grid: int | tuple[int, int], order: str = "R"
    ) -> Layout:
        """Block-cyclic: tiles go to the rows and columns of the grid in turn. ``grid=4`` is one row of 4 ranks."""
        p, q = grid_of(grid)
        mb, nb = (tile, tile) if isinstance(tile, int) else tile
        return cls(Axis.cyclic(shape[0], mb, p), Axis.cyclic(shape[1], nb, q), order)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.n, self.columns.n

    @property
    def grid(self) -> tuple[int, int]:
        return self.rows.parts, self.columns.parts

    @property
    def size(self) -> int:
        """Ranks in the grid."""
        return self.rows.parts * self.columns.parts

    @property
    def transposed(self) -> Layout:
        """The layout of the transpose, in which each rank holds the transpose of its block."""
        return Layout(self.columns, self.rows, "C" if self.order == "R" else "R")

    def place(self, rank: int) -> tuple[int, int] | None:
        """Row and column of a rank in the grid; None for a rank that owns nothing."""
        if rank >= self.size:
            return None
        return divmod(rank, self.columns.parts) if self.order == "R" else divmod(rank, self.rows.parts)[::-1]

    def rank(self, i: int, j: int) -> int:
        """The rank at (i, j)."""
        return i * self.columns.parts + j if self.order == "R" else i + j * self.rows.parts

    def local_shape(self, rank: int) -> tuple[int, int]:
        place = self.place(rank)
        return (0, 0) if place is None else (self.rows.length(place[0]), self.columns.length(place[1]))

    def indices(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Global rows and columns of a rank, in the order in which it holds them."""
        place = self.place(rank)
        if place is None:
            return np.arange(0), np.arange(0)
        return self.rows.indices(place[0]), self.columns.indices(place[1])

    def bytes_on(self, rank: int, itemsize: int) -> int:
        rows, columns = self.local_shape(rank)
        return rows * columns * itemsize

    def of_shape(self, shape: tuple[int, int]) -> Layout:
        """The same kind of layout for a matrix of another shape: an axis of another length is divided again."""
        return replace(self, rows=_resized(self.rows, shape[0]), columns=_resized(self.columns, shape[1]))

    def descriptor(self, row_major: bool) -> Descriptor | None:
        """The descriptor of these blocks, row-major or column-major; None if a library needs a copy."""
        if row_major:
            turned = self.transposed.descriptor(False)
            return None if turned is None else replace(turned, transposed=True)
        mb, nb = self.rows.as_tile, self.columns.as_tile
        return None if mb is None or nb is None else Descriptor(*self.shape, mb, nb, *self.grid, self.order)

    def permuted_tile(self, wanted: int) -> int | None:
        """On a square grid: the tile for which these are the blocks of P A P^T in block-cyclic layout; else None."""
        if self.grid[0] != self.grid[1] or self.rows != self.columns:
            return None
        return self.rows.permuted_tile(wanted)

    def as_json(self) -> dict[str, Any]:
        axes = {"rows": self.rows, "columns": self.columns}
        return {**{name: axis.as_json() for name, axis in axes.items()}, "order": self.order}

    @classmethod
    def from_json(cls, values: Any) -> Layout:
        """The layout of :meth:`as_json`; ValueError for anything else."""
        if not isinstance(values, dict) or values.get("order") not in ("R", "C"):
            raise ValueError(f"layout: {values!r:.80} does not describe a layout")
        return cls(Axis.from_json(values.get("rows")), Axis.from_json(values.get("columns")), values["order"])

    def __str__(self) -> str:
        return f"{_axis(self.rows, 'rows')}, {_axis(self.columns, 'columns')} on a {self.grid[0]} x {self.grid[1]} grid"


def _resized(axis: Axis, n: int) -> Axis:
    if n == axis.n:
        return axis
    return Axis.cyclic(n, axis.tile, axis.parts) if axis.tile else Axis.even(n, axis.parts)


def _axis(axis: Axis, what: str) -> str:
    if axis.parts == 1:
        return f"all {axis.n} {what}"
    if axis.tile:
        return f"{axis.n} {what} in tiles of {axis.tile}"
    least, most = min(axis.sizes), max(axis.sizes)
    return f"{axis.n} {what} in blocks of {most}" if least == most else f"{axis.n} {what} in blocks of {least} to {most}"
