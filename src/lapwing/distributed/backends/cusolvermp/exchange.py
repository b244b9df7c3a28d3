"""Blocks on GPUs: from one layout to another, transposed on the way where asked, over NCCL.

Each rank sends each other what they share, in turn, so that no buffer is larger than what two ranks share. Any layout to any
other: uneven blocks too, which the library's own routine does not take. One rank sends nothing: its blocks are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from ....core.problem import ITEMSIZE
from ...layout import Axis, Layout

__all__ = ["Block", "exchange"]

Run = tuple[int, int, int]  # where it starts here, where there, how long
Shared = tuple[tuple[Run, ...], tuple[Run, ...]] | None  # runs of rows and of columns


@dataclass(frozen=True)
class Block:
    """The part of a matrix that one rank holds: column-major memory on its device.

    ``owner`` keeps the memory. Row-major memory is a column-major block of the transpose.
    """

    pointer: int
    layout: Layout
    dtype: str
    lead: int  # numbers from one column to the next
    owner: Any = None

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    def at(self, row: int, column: int) -> int:
        return self.pointer + (row + column * self.lead) * self.itemsize


def exchange(
    session: Any,
    source: Block,
    layout: Layout,
    make: Callable[[], Block],
    operation: str = "N",
    offset: tuple[int, int] = (0, 0),
) -> Block:
    """op(``source``)[offset:] in the block of ``layout`` that ``make`` allocates. Collective.

    operation: "N", "T" (transposed), "C" (transposed and conjugated). ``session``: has ``rank``, ``size``, ``stream``,
    ``runtime``, ``together(work)``, ``buffers(bytes, bytes)``, ``turn`` and ``swap``.
    """
    # the layout of the source as the target sees it
    seen = source.layout if operation == "N" else source.layout.transposed
    here, there = seen.place(session.rank), layout.place(session.rank)
    steps: list[tuple[Shared, int, Shared, int]] = []
    leaves, comes = [0], [0]
    for step in range(session.size):
        to_rank, from_rank = (session.rank + step) % session.size, (session.rank - step) % session.size
        leaving = _shared(seen, here, layout, layout.place(to_rank), offset)
        coming = _shared(seen, seen.place(from_rank), layout, there, offset)
        steps.append((leaving, to_rank, coming, from_rank))
        leaves.append(_numbers(leaving) * source.itemsize if step else 0)
        comes.append(_numbers(coming) * source.itemsize if step else 0)
    # all have room, or none starts to send
    target: Block
    target, (out, into) = session.together(lambda: (make(), session.buffers(max(leaves), max(comes))))
    if steps[0][0]:
        _copy(session, source, target, operation, *steps[0][0])
    for (leaving, to_rank, coming, from_rank), sent, received in zip(steps[1:], leaves[2:], comes[2:], strict=True):
        if leaving:
            rows, columns = leaving if operation == "N" else leaving[::-1]  # as they lie in the source's memory
            packed = _as_block(out, source.dtype, _total(rows))
            _copy(session, source, packed, "N", _packed(rows), _packed(columns))
        session.swap((out, sent, to_rank), (into, received, from_rank))
        if coming:
            rows, columns = coming
            packed = _as_block(into, source.dtype, _total(rows if operation == "N" else columns))
            _copy(session, packed, target, operation, _unpacked(rows), _unpacked(columns))
    return target


def _numbers(shared: Shared) -> int:
    return _total(shared[0]) * _total(shared[1]) if shared else 0


def _as_block(pointer: int, dtype: str, lead: int) -> Block:
    return Block(pointer, Layout(Axis.whole(0), Axis.whole(0)), dtype, lead)


def _shared(seen: Layout, here: Any, other: Layout, there: Any, offset: tuple[int, int]) -> Shared:
    """Runs of rows and columns that two places have in common: where here, where there, how long; None for nothing."""
    if here is None or there is None:
        return None
    rows = _runs(seen.rows, here[0], other.rows, there[0], offset[0])
    columns = _runs(seen.columns, here[1], other.columns, there[1], offset[1]) if rows else ()
    return (rows, columns) if rows and columns else None


@lru_cache(maxsize=4096)
def _runs(axis: Axis, part: int, other: Axis, other_part: int, offset: int) -> tuple[Run, ...]:
    mine = axis.indices(part)
    mine = mine[(mine >= offset) & (mine < offset + other.n)]
    shared = mine[other.owner(mine - offset) == other_part]
    if not len(shared):
        return ()
    here, there = axis.local(shared), other.local(shared - offset)
    breaks = np.flatnonzero((np.diff(here) != 1) | (np.diff(there) != 1)) + 1
    edges = [0, *breaks.tolist(), len(shared)]
    return tuple((int(here[a]), int(there[a]), b - a) for a, b in pairwise(edges))


def _packed(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """From here to one after the other."""
    start, out = 0, []
    for first, _, length in runs:
        out.append((first, start, length))
        start += length
    return tuple(out)


def _unpacked(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """From one after the other to there."""
    start, out = 0, []
    for _, there, length in runs:
        out.append((start, there, length))
        start += length
    return tuple(out)


def _total(runs: tuple[Run, ...]) -> int:
    return sum(length for _, _, length in runs)


def _copy(session: Any, source: Block, target: Block, operation: str, rows: tuple[Run, ...], columns: tuple[Run, ...]) -> None:
    """The rows and columns are those of the target; for "T" and "C" they lie the other way round in the source."""
    size = source.itemsize
    for i, k, height in rows:
        for j, l, width in columns:
            if operation == "N":
                session.runtime.copy_2d(
                    target.at(k, l),
                    target.lead * size,
                    source.at(i, j),
                    source.lead * size,
                    height * size,
                    width,
                    3,
                    session.stream,
                )
            else:
                session.turn(operation, height, width, source.at(j, i), source.lead, target.at(k, l), target.lead, source.dtype)
