"""Products of a large matrix with a few vectors, for the iterations that find part of a spectrum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .plan import Sizes
from .space import Piece, Space, spans, through
from .stores import Store


class Products:
    """A @ x and A^H @ y by blocks of rows. Blocks that fit in ``resident`` elements stay where the work is done.

    ``triangle``: the matrix is Hermitian, and only blocks up to the diagonal are read.
    """

    def __init__(self, space: Space, a: Store, sizes: Sizes, vectors: int, triangle: bool, resident: int) -> None:
        self._space, self._a, self._sizes, self._vectors, self._triangle = space, a, sizes, vectors, triangle
        self._slots = space.slots(sizes.slots, sizes.chunk * a.shape[1])
        self._kept: dict[int, Any] = {}
        self._room = resident
        self.passes = 0

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
            self.passes += 1
            source = self._space.empty(len(x), columns.stop - columns.start)
            target = self._space.empty(rows, columns.stop - columns.start)
            self._space.put(x[:, columns], source)
            self._space.put(np.zeros((rows, columns.stop - columns.start), x.dtype), target)
            product(source, target)
            result[:, columns] = self._space.get(target)
        return result

    def _forward(self, x: Any, y: Any) -> None:
        def work(rows: slice, block: Any) -> None:
            reach = block.shape[1]
            self._space.gemm(y[rows, :], block, x[:reach, :], alpha=1.0)
            if self._triangle and rows.start:
                left = block[:, : rows.start]
                self._space.gemm(y[: rows.start, :], left, x[rows, :], adjoint_a=True, alpha=1.0)

        self._each(work)

    def _back(self, y: Any, x: Any) -> None:
        self._each(lambda rows, block: self._space.gemm(x, block, y[rows, :], adjoint_a=True, alpha=1.0))

    def _each(self, work: Any) -> None:
        """Call ``work`` with every block of rows: first those that are streamed, then those that stayed."""

        def streamed(piece: Piece, block: Any) -> None:
            size = block.shape[0] * block.shape[1]
            if size <= self._room:
                self._room -= size
                kept = self._kept[piece.rows.start] = self._space.empty(*block.shape)
                self._space.copy(kept, block)
            work(piece.rows, block)

        before = dict(self._kept)
        through(self._space, self._slots, self._pieces(before), streamed)
        for start, block in before.items():
            work(slice(start, start + block.shape[0]), block)

    def _pieces(self, kept: dict[int, Any]) -> Iterator[Piece]:
        m, n = self._a.shape
        for rows in spans(0, m, self._sizes.chunk):
            if rows.start not in kept:
                yield Piece(self._a, rows, slice(0, rows.stop if self._triangle else n))
