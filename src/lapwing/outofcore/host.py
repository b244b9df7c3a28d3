"""Work in a limited part of the host's memory, with NumPy's products and lapwing's own factorisations."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np

import lapwing

from .space import Piece
from .stores import Store

_NARROW = 16  # columns of a panel that are eliminated one by one; wider panels are halved


class HostSlot:
    def __init__(self, size: int, dtype: Any) -> None:
        self._buffer = np.empty(size, dtype)

    def fill(self, piece: Piece) -> None:
        piece.store.read(piece.rows, piece.columns, self.block(piece))

    def block(self, piece: Piece) -> np.ndarray:
        rows, columns = piece.shape
        return self._buffer[: rows * columns].reshape(rows, columns)

    def release(self) -> None:
        pass


class HostSpace:
    """``spare`` is the number of elements of the buffer that products are computed in."""

    name = "cpu"

    def __init__(self, dtype: Any, spare: int) -> None:
        self.dtype = np.dtype(dtype)
        self._product = np.empty(max(spare, 1), dtype)
        self._failure = 0
        self._writer = ThreadPoolExecutor(1, "lapwing-hosted")
        self._pending: SimpleQueue[Future[None]] = SimpleQueue()

    def enter(self) -> None:
        pass

    def empty(self, rows: int, columns: int) -> np.ndarray:
        return np.empty((rows, columns), self.dtype)

    def slots(self, count: int, size: int) -> list[HostSlot]:
        return [HostSlot(size, self.dtype) for _ in range(count)]

    def copy(self, to: np.ndarray, block: np.ndarray) -> None:
        to[...] = block

    def gemm(
        self,
        c: np.ndarray,
        a: np.ndarray,
        b: np.ndarray,
        adjoint_a: bool = False,
        adjoint_b: bool = False,
        alpha: float = -1.0,
        beta: float = 1.0,
    ) -> None:
        if c.shape[1] > 1 and c.strides[1] != c.itemsize:
            assert not adjoint_a and not adjoint_b
            self.gemm(c.T, b.T, a.T, alpha=alpha, beta=beta)
            return
        # for a product with an adjoint, conjugate the small factor and the result: A B^H = conj(conj(A) B^T)
        conjugate = (adjoint_a or adjoint_b) and self.dtype.kind == "c"
        left, right = a.T if adjoint_a else a, b.T if adjoint_b else b
        right = right.conj() if conjugate and adjoint_a else right
        columns = c.shape[1]
        if columns == 0 or len(c) == 0:
            return
        step = max(1, self._product.size // columns)
        for first in range(0, len(c), step):
            part, rows = c[first : first + step], left[first : first + step]
            if columns > self._product.size:
                product = np.empty(part.shape, self.dtype)
            else:
                product = self._product[: part.size].reshape(part.shape)
            np.matmul(rows.conj() if conjugate and adjoint_b else rows, right, out=product)
            if conjugate:
                np.conjugate(product, out=product)
            if beta == 0.0:
                np.multiply(product, alpha, out=part)
            elif alpha == -1.0:
                np.subtract(part, product, out=part)
            else:
                np.multiply(product, alpha, out=product)
                np.add(part, product, out=part)

    def trsm(
        self, t: np.ndarray, x: np.ndarray, *, lower: bool, adjoint: bool = False, unit: bool = False, right: bool = False
    ) -> None:
        if x.size == 0:
            return
        matrix = t.conj().T if adjoint else t
        assume: Any = "lower" if lower != adjoint else "upper"
        side: Any = "right" if right else "left"
        x = x if right else x.T  # worked on in strips of rows; for a solve from the left these are the columns of x
        step = max(1, self._product.size // max(1, x.shape[1]))  # the solver copies a strip a few times
        for first in range(0, len(x), step):
            part = x[first : first + step]
            part = part if right else part.T
            part[...] = lapwing.solve(matrix, part, assume=assume, unit=unit, side=side, on_fail="nan")

    def potrf(self, d: np.ndarray, before: int) -> None:
        factor, info = lapwing.cholesky_ex(d)
        d[...] = factor
        if int(info):
            self._failure = self._failure or before + int(info)

    def getrf(self, p: np.ndarray, before: int) -> np.ndarray:
        pivots = np.arange(p.shape[1])
        self._eliminate(p, pivots, before)
        return pivots

    def pivots(self, exchanges: np.ndarray) -> np.ndarray:
        return exchanges

    def _eliminate(self, p: np.ndarray, pivots: np.ndarray, before: int) -> None:
        """Gaussian elimination by halves of the columns."""
        width = p.shape[1]
        if width <= _NARROW:
            for k in range(width):
                row = k + int(np.argmax(np.abs(p[k:, k])))
                pivots[k] = row
                if not np.isfinite(p[row, k]) or p[row, k] == 0:
                    self._failure = self._failure or before + k + 1
                    return
                if row != k:
                    p[[k, row]] = p[[row, k]]
                p[k + 1 :, k] /= p[k, k]
                p[k + 1 :, k + 1 :] -= p[k + 1 :, k, None] * p[k, k + 1 :]
            return
        half = width // 2
        self._eliminate(p[:, :half], pivots[:half], before)
        if self._failure:
            return
        self.swap(p[:, half:], pivots[:half])
        self.trsm(p[:half, :half], p[:half, half:], lower=True, unit=True)
        self.gemm(p[half:, half:], p[half:, :half], p[:half, half:])
        self._eliminate(p[half:, half:], pivots[half:], before + half)
        self.swap(p[half:, :half], pivots[half:])
        pivots[half:] += half

    def swap(self, x: np.ndarray, pivots: np.ndarray, back: bool = False) -> None:
        places = np.flatnonzero(pivots != np.arange(len(pivots)))
        for k in places[::-1] if back else places:
            x[[k, pivots[k]]] = x[[pivots[k], k]]

    def qr(self, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q, r = lapwing.qr(a)
        return q, np.asarray(r)

    def failure(self) -> int:
        return self._failure

    def put(self, x: np.ndarray, to: np.ndarray) -> None:
        to[...] = x

    def get(self, x: np.ndarray) -> np.ndarray:
        return x

    def write(self, x: np.ndarray, store: Store, row: int, column: int, lower: bool = False) -> None:
        if lower:
            square = x[: x.shape[1]]
            square[np.triu_indices(len(square), 1)] = 0
        rows, columns = slice(row, row + x.shape[0]), slice(column, column + x.shape[1])
        self._pending.put(self._writer.submit(store.write, rows, columns, x))

    def flush(self) -> None:
        while not self._pending.empty():
            self._pending.get().result()

    fence = flush  # blocks are written without a copy

    def close(self) -> None:
        self._writer.shutdown()
