"""The placement of a matrix on a mesh of devices: which axes of the mesh split its rows, and which its columns."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Grid:
    """Contiguous blocks: rows over the mesh axes ``rows``, columns over ``columns``, each a tuple of (name, size).

    ``order`` has the names of the axes with more than one device (of all axes, if there is none), in the order in which the
    engine counts its devices; :meth:`turned` keeps it.
    """

    rows: tuple[tuple[str, int], ...]
    columns: tuple[tuple[str, int], ...]
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.order:
            several = tuple(name for name, size in self.rows + self.columns if size > 1)
            object.__setattr__(self, "order", several or self.row_axes + self.column_axes)

    @property
    def row_axes(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.rows)

    @property
    def column_axes(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def p(self) -> int:
        return prod(size for _, size in self.rows)

    @property
    def q(self) -> int:
        return prod(size for _, size in self.columns)

    @property
    def size(self) -> int:
        return self.p * self.q

    def turned(self) -> Grid:
        """The grid of the transposed matrix."""
        return Grid(self.columns, self.rows, self.order)

    def with_order(self, order: tuple[str, ...]) -> Grid:
        return Grid(self.rows, self.columns, order)


@dataclass(frozen=True)
class Placement:
    """A grid on a mesh of the framework (any hashable object).

    ``certain``: the array is known to be split. If not, it may be split, and the grid is the one that the caller asked for.
    """

    mesh: Any
    grid: Grid
    certain: bool = True
