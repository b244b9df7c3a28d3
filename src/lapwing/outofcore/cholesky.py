"""Cholesky factorisation, panel by panel: a panel reads all finished columns once, and does not change any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .plan import Sizes
from .space import WRITTEN, Piece, Space, spans, through
from .stores import Store


def cholesky(space: Space, a: Store, l: Store, sizes: Sizes, start: int, finished: Callable[[int], None]) -> int:
    """L with A = L L^H from column ``start`` on. Returns the order of the minor that failed, or 0. Reads the lower triangle."""
    n, width, chunk = a.shape[0], sizes.panel, sizes.chunk
    if start >= n:
        return 0
    panel = space.empty(n - start, min(width, n - start))
    top = space.empty(min(width, n), min(width, n)) if start or n > width else None
    slots = space.slots(sizes.slots, chunk * width)
    here = slice(start, start)  # the columns of the panel

    def items() -> Iterator[Any]:
        for columns in spans(start, n, width):
            yield lambda columns=columns: begin(columns)
            yield from _pieces(a, l, columns, sizes, start)
            yield factor

    def begin(columns: slice) -> None:
        nonlocal here
        here = columns

    def update(piece: Piece, block: Any) -> None:
        k, count = here.start, here.stop - here.start
        _update(space, panel[: n - k, :count], top, block, piece.rows.start - k, new=piece.store is a)

    def factor() -> int:
        k, count = here.start, here.stop - here.start
        _factor(space, panel[: n - k, :count], l, k, sizes.block)
        space.fence()
        if not (failed := space.failure()):
            finished(here.stop)
        return failed

    return through(space, slots, items(), update)


def _pieces(a: Store, l: Store, columns: slice, sizes: Sizes, start: int) -> Iterator[Any]:
    """The blocks that a panel reads: its part of A together with the first finished columns, so that products begin early."""
    k, n = columns.start, a.shape[0]
    panels = list(spans(0, start, sizes.panel)) + list(spans(start, k, sizes.panel))
    for rows in spans(k, n, sizes.chunk):
        yield Piece(a, rows, columns)
        for first in panels[:1] if len(panels) > 1 else []:
            yield Piece(l, rows, first)
    for before in panels[1:] if len(panels) > 1 else panels:
        if before is panels[-1]:
            yield WRITTEN  # the last panel may still be on its way
        for rows in spans(k, n, sizes.chunk):
            yield Piece(l, rows, before)


def _update(space: Space, p: Any, top: Any, block: Any, first: int, new: bool) -> None:
    """Bring a block of A into the panel, or subtract the product of a block of finished columns, from row ``first`` on."""
    width, last = p.shape[1], first + block.shape[0]
    if new:
        space.copy(p[first:last, :], block)
        return
    before = block.shape[1]
    if first < width:  # rows of the diagonal block multiply all rows below
        space.copy(top[first : min(last, width), :before], block[: min(last, width) - first, :])
    reach = min(last, width)  # columns to the right of the diagonal are not needed
    # P_r <- P_r - L_r L_top^H
    space.gemm(p[first:last, :reach], block, top[:reach, :before], adjoint_b=True)


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
