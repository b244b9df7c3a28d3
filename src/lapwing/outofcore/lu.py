"""LU factorisation with partial pivoting, panel by panel.

The transpose B = A^T is factored, as its columns are the rows of A, which follow each other in memory and in files. A panel is
not touched again once it is finished: the exchanges of rows of later panels are not applied to it. Where a finished panel is
used, its own exchanges come just before it: B = P0 L0 P1 L1 ... U.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from .plan import Sizes
from .space import Piece, Space, spans, through
from .stores import Store
from .substitution import backward, forward


class Panel(NamedTuple):
    """A finished panel: its columns of B, and the row that each of its rows was exchanged with, counted from its first."""

    start: int
    stop: int
    pivots: np.ndarray


def lu(space: Space, a: Store, f: Store, sizes: Sizes, panels: list[Panel], finished: Callable[[int], None]) -> int:
    """Continue after the finished ``panels``, and add to them; the pivot that failed, or 0.

    ``f`` gets L and U of B = A^T by its columns: f[j, i] is U[i, j] for i <= j, else L[i, j].
    """
    n, width = a.shape[0], sizes.panel
    start = panels[-1].stop if panels else 0
    if start >= n:
        return 0
    lines = space.empty(min(width, n - start), n)
    slots = space.slots(sizes.slots, sizes.chunk * width)
    for columns in spans(start, n, width):
        k, count = columns.start, columns.stop - columns.start
        p = lines[:count, :].T
        load = (Piece(a, columns, part) for part in spans(0, n, sizes.chunk))
        through(space, slots, load, lambda piece, block, p=p: space.copy(p[piece.columns, :], block.T))  # type: ignore[misc]
        for panel in panels:
            space.swap(p[panel.start :, :], panel.pivots)
            pieces = chain.from_iterable(_below(f, part, sizes) for part in spans(panel.start, panel.stop, width))
            through(space, slots, pieces, _update(space, p))
        pivots = _factor(space, p, k, sizes.block)
        if failed := space.failure():
            return failed
        space.write(p.T, f, k, 0)
        space.flush()
        panels.append(Panel(k, columns.stop, pivots))
        finished(columns.stop)
    return 0


def _below(f: Store, part: slice, sizes: Sizes) -> Iterator[Piece]:
    """Blocks of L from the diagonal downwards."""
    for rows in chain(spans(part.start, part.stop, sizes.chunk), spans(part.stop, f.shape[0], sizes.chunk)):
        yield Piece(f, part, rows)


def _update(space: Space, p: Any) -> Callable[[Piece, Any], None]:
    def work(piece: Piece, block: Any) -> None:
        rows, part, l = piece.columns, piece.rows, block.T
        here = p[rows, :]
        before = min(rows.start, part.stop) - part.start
        # P_r <- P_r - L_r P_before, and in the diagonal block P_r <- L_rr^-1 P_r
        space.gemm(here, l[:, :before], p[part.start : part.start + before, :])
        if rows.start < part.stop:
            space.trsm(l[:, before : before + rows.stop - rows.start], here, lower=True, unit=True)

    return work


def _factor(space: Space, p: Any, k: int, block: int) -> np.ndarray:
    """Factor a panel from row k on."""
    n, width = p.shape
    pivots = np.arange(width)
    for columns in spans(0, width, block):
        s, e = columns.start, columns.stop
        rows = space.getrf(p[k + s :, s:e], k + s)
        space.swap(p[k + s :, :s], rows)
        space.swap(p[k + s :, e:], rows)
        pivots[s:e] = rows + s
        # U12 <- L11^-1 P12, P22 <- P22 - L21 U12
        space.trsm(p[k + s : k + e, s:e], p[k + s : k + e, e:], lower=True, unit=True)
        space.gemm(p[k + e : n, e:], p[k + e : n, s:e], p[k + s : k + e, e:])
    return pivots


def solve(space: Space, slots: list[Any], f: Store, x: Any, sizes: Sizes, panels: list[Panel]) -> None:
    """X <- A^-1 X: A is U^T times the transposes of L and of the exchanges, in reverse order."""
    forward(space, slots, f, x, sizes)
    for panel in reversed(panels):
        backward(space, slots, f, x, slice(panel.start, panel.stop), sizes.chunk, unit=True)
        space.swap(x[panel.start :, :], panel.pivots, back=True)


def parity(panels: list[Panel]) -> int:
    """1 or -1: the determinant of all exchanges."""
    exchanges = sum(int(np.count_nonzero(panel.pivots != np.arange(len(panel.pivots)))) for panel in panels)
    return -1 if exchanges % 2 else 1
