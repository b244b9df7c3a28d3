"""LU factorisation with partial pivoting, panel by panel.

The transpose B = A^T is factored, as its columns are the rows of A, which are contiguous in memory and in files. A finished
panel does not change: the row exchanges of later panels are not applied to it. Whoever uses a finished panel applies its own
exchanges just before it: B = P0 L0 P1 L1 ... U.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from .plan import Sizes
from .space import WRITTEN, Piece, Space, spans, through
from .stores import Store
from .substitution import backward, forward


class Panel(NamedTuple):
    """A finished panel: its columns of B, and for each of its rows the row it was exchanged with, counted from its first
    row."""

    start: int
    stop: int
    pivots: np.ndarray


def lu(space: Space, a: Store, f: Store, sizes: Sizes, panels: list[Panel], finished: Callable[[int], None]) -> int:
    """Continue after the finished ``panels``, and append to them. Returns the pivot that failed, or 0.

    ``f`` gets L and U of B = A^T by its columns: f[j, i] is U[i, j] for i <= j, else L[i, j].
    """
    n, width, size = a.shape[0], sizes.panel, sizes.chunk * sizes.panel
    start = panels[-1].stop if panels else 0
    if start >= n:
        return 0
    lines = space.empty(min(width, n - start), n)
    slots = space.slots(sizes.slots, size)
    here = slice(start, start)  # the columns of the panel
    resumed = [slice(panel.start, panel.stop) for panel in panels]

    def items() -> Iterator[Any]:
        for columns in spans(start, n, width):
            yield lambda columns=columns: begin(columns)
            for rows in spans(columns.start, columns.stop, max(1, size // n)):
                yield from (Piece(a, rows, part) for part in spans(0, n, size))
            before = [*resumed, *spans(start, columns.start, width)]
            for number, panel in enumerate(before):
                if panel is before[-1]:
                    yield WRITTEN  # the last panel may still be on its way
                yield lambda number=number: swap(panels[number])
                yield from chain.from_iterable(_below(f, part, sizes) for part in spans(panel.start, panel.stop, width))
            yield factor

    def begin(columns: slice) -> None:
        nonlocal here
        here = columns

    def swap(panel: Panel) -> None:
        space.swap(lines[: here.stop - here.start, panel.start :].T, panel.pivots)

    def update(piece: Piece, block: Any) -> None:
        p = lines[: here.stop - here.start, :].T
        if piece.store is a:
            space.copy(p[piece.columns, piece.rows.start - here.start : piece.rows.stop - here.start], block.T)
        else:
            _update(space, p, piece, block)

    def factor() -> int:
        p = lines[: here.stop - here.start, :].T
        pivots = _factor(space, p, here.start, sizes.block)
        if failed := space.failure():
            return failed
        space.write(p.T, f, here.start, 0)
        space.fence()
        panels.append(Panel(here.start, here.stop, pivots))
        finished(here.stop)
        return 0

    return through(space, slots, items(), update)


def _below(f: Store, part: slice, sizes: Sizes) -> Iterator[Piece]:
    """Blocks of L from the diagonal downwards."""
    for rows in chain(spans(part.start, part.stop, sizes.chunk), spans(part.stop, f.shape[0], sizes.chunk)):
        yield Piece(f, part, rows)


def _update(space: Space, p: Any, piece: Piece, block: Any) -> None:
    rows, part, l = piece.columns, piece.rows, block.T
    here = p[rows, :]
    before = min(rows.start, part.stop) - part.start
    # P_r <- P_r - L_r P_before, and in the diagonal block P_r <- L_rr^-1 P_r
    space.gemm(here, l[:, :before], p[part.start : part.start + before, :])
    if rows.start < part.stop:
        space.trsm(l[:, before : before + rows.stop - rows.start], here, lower=True, unit=True)


def _factor(space: Space, p: Any, k: int, block: int) -> np.ndarray:
    """Factor a panel from row k on."""
    n, width = p.shape
    exchanges = []
    for columns in spans(0, width, block):
        s, e = columns.start, columns.stop
        rows = space.getrf(p[k + s :, s:e], k + s)
        space.swap(p[k + s :, :s], rows)
        space.swap(p[k + s :, e:], rows)
        exchanges.append((s, rows))
        # U12 <- L11^-1 P12, P22 <- P22 - L21 U12
        space.trsm(p[k + s : k + e, s:e], p[k + s : k + e, e:], lower=True, unit=True)
        space.gemm(p[k + e : n, e:], p[k + e : n, s:e], p[k + s : k + e, e:])
    return np.concatenate([s + space.pivots(rows) for s, rows in exchanges])


def solve(space: Space, slots: list[Any], f: Store, x: Any, sizes: Sizes, panels: list[Panel]) -> None:
    """X <- A^-1 X: A is U^T times the transposes of L and of the exchanges, in reverse order."""
    forward(space, slots, f, x, sizes)
    for panel in reversed(panels):
        backward(space, slots, f, x, slice(panel.start, panel.stop), sizes.chunk, unit=True)
        space.swap(x[panel.start :, :], panel.pivots, back=True)


def solve_transposed(space: Space, slots: list[Any], f: Store, x: Any, sizes: Sizes, panels: list[Panel]) -> None:
    """X <- B^-1 X with B = A^T: the panels of L from left to right, then U. ``x`` is stored by columns."""
    n = f.shape[0]

    def items() -> Iterator[Any]:
        for panel in panels:
            yield lambda panel=panel: space.swap(x[panel.start :, :], panel.pivots)
            yield from (Piece(f, rows, slice(rows.start, n)) for rows in spans(panel.start, panel.stop, sizes.chunk))

    def lower(piece: Piece, block: Any) -> None:
        (first, last), count = (piece.rows.start, piece.rows.stop), piece.shape[0]
        # X_j <- L_jj^-1 X_j, X_after <- X_after - L_j X_j
        space.trsm(block[:, :count].T, x[first:last, :], lower=True, unit=True)
        space.gemm(x[last:, :], block[:, count:].T, x[first:last, :])

    def upper(piece: Piece, block: Any) -> None:
        first, last = piece.rows.start, piece.rows.stop
        # X_j <- U_jj^-1 X_j, X_before <- X_before - U_j X_j
        space.trsm(block[:, first:last].T, x[first:last, :], lower=False)
        space.gemm(x[:first, :], block[:, :first].T, x[first:last, :])

    through(space, slots, items(), lower)
    parts = reversed(list(spans(0, n, sizes.chunk)))
    through(space, slots, (Piece(f, rows, slice(0, rows.stop)) for rows in parts), upper)


def parity(panels: list[Panel]) -> int:
    """1 or -1: the determinant of all exchanges."""
    exchanges = sum(int(np.count_nonzero(panel.pivots != np.arange(len(panel.pivots)))) for panel in panels)
    return -1 if exchanges % 2 else 1
