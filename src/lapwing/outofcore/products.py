"""Products of a large matrix with a few vectors, for the iterations that find part of a spectrum."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any

import numpy as np

from .plan import Sizes
from .space import Piece, Space, spans, through
from .stores import Store


class Products:
    """A @ x and A^H @ y by square blocks. As many blocks as ``resident`` elements allow stay in the memory that works.

    ``triangle``: the matrix is Hermitian, and only blocks up to the diagonal are read.
    """

    def __init__(self, space: Space, a: Store, sizes: Sizes, vectors: int, triangle: bool, resident: int) -> None:
        self._space, self._a, self._sizes, self._vectors, self._triangle = space, a, sizes, vectors, triangle
        size = sizes.chunk * max(a.shape)
        self._slots = space.slots(sizes.slots, size)
        self._side = max(1, isqrt(size))  # square: products with the block and with its adjoint are both quick
        self._kept: dict[tuple[int, int], Any] = {}
        self._room = resident

    def forward(self, x: np.ndarray) -> np.ndarray:
        return self._by_columns(x, self._a.shape[0], self._forward)

    def back(self, y: np.ndarray) -> np.ndarray:
        return self._by_columns(y, self._a.shape[1], self._back)

    def _by_columns(self, x: np.ndarray, rows: int, product: Any) -> np.ndarray:
        x = np.asarray(x, self._space.dtype)
        if x.ndim == 1:
            return self._by_columns(x[:, None], rows, product)[:, 0]
        result = np.empty((rows, x.shape[1]), x.dtype)
        for columns in spans(0, x.shape[1], self._vectors):
            source = self._space.empty(len(x), columns.stop - columns.start)
            target = self._space.empty(rows, columns.stop - columns.start)
            self._space.put(x[:, columns], source)
            self._space.put(np.zeros((rows, columns.stop - columns.start), x.dtype), target)
            product(source, target)
            result[:, columns] = self._space.get(target)
        return result

    def _forward(self, x: Any, y: Any) -> None:
        def work(rows: slice, columns: slice, block: Any) -> None:
            self._space.gemm(y[rows, :], block, x[columns, :], alpha=1.0)
            if self._triangle and rows != columns:
                self._space.gemm(y[columns, :], block, x[rows, :], adjoint_a=True, alpha=1.0)

        self._each(work)

    def _back(self, y: Any, x: Any) -> None:
        def work(rows: slice, columns: slice, block: Any) -> None:
            self._space.gemm(x[columns, :], block, y[rows, :], adjoint_a=True, alpha=1.0)

        self._each(work)

    def _each(self, work: Any) -> None:
        """Call ``work`` with every block: first those that are streamed, then the resident ones."""

        def streamed(piece: Piece, block: Any) -> None:
            size = block.shape[0] * block.shape[1]
            if size <= self._room:
                self._room -= size
                kept = self._kept[piece.rows.start, piece.columns.start] = self._space.empty(*block.shape)
                self._space.copy(kept, block)
            work(piece.rows, piece.columns, block)

        before = dict(self._kept)
        through(self._space, self._slots, self._pieces(before), streamed)
        for (row, column), block in before.items():
            work(slice(row, row + block.shape[0]), slice(column, column + block.shape[1]), block)

    def _pieces(self, kept: dict[tuple[int, int], Any]) -> Iterator[Piece]:
        m, n = self._a.shape
        for rows in spans(0, m, self._side):
            for columns in spans(0, rows.stop if self._triangle else n, self._side):
                if (rows.start, columns.start) not in kept:
                    yield Piece(self._a, rows, columns)
