"""Cholesky factorisation, panel by panel: a panel reads all finished columns once, and is then never touched again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .plan import Sizes
from .space import Piece, Space, spans, through
from .stores import Store


def cholesky(space: Space, a: Store, l: Store, sizes: Sizes, start: int, finished: Callable[[int], None]) -> int:
    """L with A = L L^H from column ``start`` on; the order of the minor that failed, or 0. The lower triangle of A is read."""
    n, width, chunk = a.shape[0], sizes.panel, sizes.chunk
    if start >= n:
        return 0
    panel = space.empty(n - start, min(width, n - start))
    top = space.empty(min(width, n), min(width, n)) if n > width else None
    slots = space.slots(sizes.slots, chunk * width)
    for columns in spans(start, n, width):
        k, count = columns.start, columns.stop - columns.start
        p = panel[: n - k, :count]
        through(space, slots, _pieces(a, l, columns, sizes), _update(space, a, p, top, columns))
        _factor(space, p, l, k, sizes.block)
        if failed := space.failure():
            return failed
        space.flush()
        finished(columns.stop)
    return 0


def _pieces(a: Store, l: Store, columns: slice, sizes: Sizes) -> Iterator[Piece]:
    """The blocks that a panel reads: its part of A along with the first finished columns, so that products begin early."""
    k, n = columns.start, a.shape[0]
    for rows in spans(k, n, sizes.chunk):
        yield Piece(a, rows, columns)
        if k:
            yield Piece(l, rows, slice(0, min(sizes.panel, k)))
    for before in spans(min(sizes.panel, k), k, sizes.panel):
        for rows in spans(k, n, sizes.chunk):
            yield Piece(l, rows, before)


def _update(space: Space, a: Store, p: Any, top: Any, columns: slice) -> Callable[[Piece, Any], None]:
    k, width = columns.start, columns.stop - columns.start

    def work(piece: Piece, block: Any) -> None:
        first, last = piece.rows.start - k, piece.rows.stop - k
        if piece.store is a:
            space.copy(p[first:last, :], block)
            return
        before = block.shape[1]
        if first < width:  # rows of the diagonal block multiply all rows below
            space.copy(top[first : min(last, width), :before], block[: min(last, width) - first, :])
        reach = min(last, width)  # columns to the right of the diagonal are not needed
        # P_r <- P_r - L_r L_top^H
        space.gemm(p[first:last, :reach], block, top[:reach, :before], adjoint_b=True)

    return work


def _factor(space: Space, p: Any, l: Store, k: int, block: int) -> None:
    """Factor a panel whose updates from the left are done, and write each block of columns as soon as it is finished."""
    m, width = p.shape
    for columns in spans(0, width, block):
        s, e = columns.start, columns.stop
        here = p[s:m, s:e]
        if s:
            # P_s <- P_s - L_s L_top^H
            space.gemm(here, p[s:m, :s], p[s:e, :s], adjoint_b=True)
        # L11 <- chol(P11), L21 <- P21 L11^-H
        space.potrf(here[: e - s, :], k + s)
        space.trsm(here[: e - s, :], here[e - s :, :], lower=True, adjoint=True, right=True)
        space.write(here, l, k + s, k + s, lower=True)
