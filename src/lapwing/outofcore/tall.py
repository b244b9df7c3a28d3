"""QR and SVD of tall matrices, by blocks of rows.

A block of rows and the R of the blocks above it are factored together: [R; A_i] = Q_i R_new. Q is computed from the last block
to the first: the rows of Q_i that belong to A_i, times the product of the first rows of all later Q_j.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .space import Piece, Space, spans, through
from .stores import Store


def tall_qr(
    space: Space, a: Store, q: Store | None, tops: Store | None, rows: int, finished: Callable[[int], None]
) -> np.ndarray:
    """R; the rows of each Q_i go to ``q`` and its first n rows to ``tops``, unless they are None."""
    m, n = a.shape
    stack = space.empty(n + rows, n)
    slots = space.slots(2, rows * n)
    r = np.zeros((0, n), a.dtype)
    number = 0

    def work(piece: Piece, block: Any) -> None:
        nonlocal r, number
        count, above = piece.shape[0], len(r)
        both = stack[: above + count, :]
        space.put(r, both[:above, :])
        space.copy(both[above : above + count, :], block)
        factor, r = space.qr(both)
        if q is not None and tops is not None:
            space.write(factor[above : above + count, :], q, piece.rows.start, 0)
            if above:
                space.write(factor[:above, :], tops, number * n, 0)
            space.flush()
        number += 1
        finished(piece.rows.stop)

    through(space, slots, (Piece(a, part, slice(0, n)) for part in blocks_of(m, n, rows)), work)
    return r


def multiply(space: Space, q: Store, tops: Store, c: np.ndarray, shape: tuple[int, int], rows: int) -> None:
    """Q C in place of the blocks of Q that :func:`tall_qr` has written."""
    m, n = shape
    parts = list(enumerate(blocks_of(m, n, rows)))
    left = space.empty(n, c.shape[1])
    after = space.empty(n, c.shape[1])
    product = space.empty(max(rows, n), c.shape[1])
    space.put(c, left)
    slots = space.slots(2, max(rows, n) * n)
    pieces = []
    for number, part in reversed(parts):
        pieces.append(Piece(q, part, slice(0, n)))
        if number:
            pieces.append(Piece(tops, slice(number * n, (number + 1) * n), slice(0, n)))

    def work(piece: Piece, block: Any) -> None:
        count = piece.shape[0]
        if piece.store is tops:
            space.gemm(after, block, left, alpha=1.0, beta=0.0)
            space.copy(left, after)
            return
        space.gemm(product[:count, :], block, left, alpha=1.0, beta=0.0)
        space.write(product[:count, :], q, piece.rows.start, 0)
        space.flush()

    through(space, slots, pieces, work)


def blocks_of(m: int, n: int, rows: int) -> list[slice]:
    """Blocks of rows; the first has at least n, so that the R of each is square."""
    assert rows >= n or rows >= m
    return list(spans(0, m, rows))
