"""Redistribute a matrix: blocks of one layout become blocks of another.

:func:`plan` says which rank sends which rows and columns to which rank, in portions. It handles any two layouts, also uneven
blocks and transposes, which the libraries' own routines do not. Two functions follow the plan: :func:`exchange` here, with
NumPy blocks over MPI or torch, and ``backends/cusolvermp/exchange.py``, with blocks on GPUs over NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, zip_longest
from operator import setitem
from typing import Any

import numpy as np

from .layout import Axis, Layout

_TAG = 21
_PORTION = 1 << 23  # bytes of a message: it stays in the cache, and the buffers stay small
_STEP = 1 << 21  # bytes of a message of a triangle: with short steps along the diagonal little of the other triangle is sent
_FEW = 24  # rows: for shorter runs one copy by indices is faster than many copies of tiles
_TILE = 64

Put = Callable[[Any, Any, Any], None]  # target, index, piece
Run = tuple[int, int, int]  # first index in the source's block, first index in the target's block, length
Portion = tuple[tuple[Run, ...], tuple[Run, ...]]  # runs of rows and of columns


@dataclass(frozen=True)
class Step:
    """One rank's part of a plan: portions that it sends to one rank, and portions that it receives from another.

    The k-th portions of all ranks travel together. In the first step both ranks are this one.
    """

    to_rank: int
    leaving: list[Portion]
    from_rank: int
    coming: list[Portion]


def plan(
    rank: int,
    size: int,
    source: Layout,
    target: Layout,
    itemsize: int,
    *,
    portion: int = _PORTION,
    offset: tuple[int, int] = (0, 0),
    upper: bool | None = None,
) -> Iterator[Step]:
    """The steps of one rank, in which the blocks of ``source``[offset:] become blocks of ``target``.

    ``portion``: at most so many bytes in a message, but at least one row. ``upper``: only the upper (or lower) triangle with
    the diagonal is needed; parts of the other triangle close to the diagonal are sent too.
    """
    sent, received = (None, None) if upper is None else (source.indices(rank), target.indices(rank))
    here, there = source.place(rank), target.place(rank)
    for step in range(size):
        to_rank, from_rank = (rank + step) % size, (rank - step) % size
        leaving = _shared(source, here, target, target.place(to_rank), offset)
        coming = _shared(source, source.place(from_rank), target, there, offset)
        yield Step(
            to_rank,
            _portions(leaving, itemsize, portion, sent, 0, upper),
            from_rank,
            _portions(coming, itemsize, portion, received, 1, upper),
        )


def exchange(
    comm: Any,
    source: np.ndarray,
    layout: Layout,
    target: np.ndarray,
    to: Layout,
    *,
    column_major: bool = False,
    put: Put = setitem,
    upper: bool | None = None,
) -> int:
    """``target`` <- ``source``: the blocks of one matrix in two layouts. Collective; ``comm`` has ``isend`` and ``irecv``.

    ``column_major`` is the order of the blocks, the same on all ranks; a wrong value only costs time. ``put(target, index,
    piece)`` may replace ``target[index] = piece``. ``upper``: see :func:`plan`. Returns how far from the diagonal, in rows,
    entries of the other triangle were sent.
    """
    if column_major:
        source, layout, target, to = source.T, layout.transposed, target.T, to.transposed
        upper = None if upper is None else not upper
    most = _PORTION if upper is None else _STEP
    send_buffer = receive_buffer = np.empty(0, source.dtype)
    source_rows, target_rows = layout.indices(comm.rank)[0], to.indices(comm.rank)[0]
    width = 0
    for step in plan(comm.rank, comm.size, layout, to, source.itemsize, portion=most, upper=upper):
        if upper is not None:
            width = max(width, _width(step.leaving, 0, source_rows), _width(step.coming, 1, target_rows))
        if step.to_rank == comm.rank:
            for rows, columns in step.leaving:
                _copy(target, source, rows, columns, put)
            continue
        for leaving, coming in zip_longest(step.leaving, step.coming):
            requests = []
            if coming is not None:
                receive_buffer, received = _room(receive_buffer, coming)
                requests.append(comm.irecv(_bytes(received), step.from_rank, _TAG))
            if leaving is not None:
                send_buffer, sent = _room(send_buffer, leaving)
                _copy(sent, source, packed(leaving[0]), packed(leaving[1]))
                requests.append(comm.isend(_bytes(sent), step.to_rank, _TAG))
            comm.wait_all(requests, "exchange", tuple(sorted({step.from_rank, step.to_rank})))
            if coming is not None:
                _copy(target, received, unpacked(coming[0]), unpacked(coming[1]), put)
    return width


def mirror(comm: Any, block: np.ndarray, layout: Layout, *, upper: bool = False, conjugate: bool = True) -> None:
    """A <- the Hermitian (or symmetric) matrix whose lower or ``upper`` triangle is in A; in place.

    One triangle is read and the other one is written, so the same memory serves both.
    """
    rows, columns = layout.indices(comm.rank)

    def put(target: np.ndarray, there: tuple[Any, Any], piece: np.ndarray) -> None:
        i, j = rows[there[0]].reshape(-1), columns[there[1]].reshape(-1)
        if (i[-1] < j[0]) if upper else (i[0] > j[-1]):  # all in the triangle that is read
            return
        piece = piece.conj() if conjugate else piece
        if (i[0] > j[-1]) if upper else (i[-1] < j[0]):
            target[there] = piece
            return
        beyond = j[None, :] - i[:, None]
        target[there] = np.where(beyond < 0 if upper else beyond > 0, piece, target[there])

    exchange(comm, block.T, layout.transposed, block, layout, put=put, upper=not upper)
    if conjugate and np.iscomplexobj(block):
        _, i, j = diagonal_places(layout, comm.rank)
        block[i, j] = block[i, j].real


def keep_triangle(
    block: np.ndarray, layout: Layout, rank: int, *, upper: bool, fill: Any = 0, within: int | None = None
) -> None:
    """Set everything outside the triangle (which includes the diagonal) to ``fill``. No communication.

    ``within``: entries farther than about this from the diagonal are ``fill`` already.
    """
    for rows, columns, part in _parts(layout, rank, not upper, 1, within):
        block[rows, columns][... if part is None else part] = fill


def copy_triangle(block: np.ndarray, layout: Layout, rank: int, *, upper: bool) -> np.ndarray:
    """A column-major copy of the triangle of this rank's block, with the diagonal; zero elsewhere. No communication."""
    out = np.zeros(block.shape, block.dtype, order="F")  # the system provides the pages when they are written
    for rows, columns, part in _parts(layout, rank, upper, 0):
        np.copyto(out[rows, columns], block[rows, columns], where=True if part is None else part)
    return out


def finite_triangle(block: np.ndarray, layout: Layout, rank: int, *, upper: bool) -> bool:
    """Whether the triangle of this rank's block has no NaN and no Inf."""
    for rows, columns, part in _parts(layout, rank, upper, 0):
        finite = np.isfinite(block[rows, columns])
        if not (finite if part is None else finite | ~part).all():
            return False
    return True


def column_sums(block: np.ndarray, layout: Layout, rank: int, *, upper: bool | None, mirrored: bool = False) -> np.ndarray:
    """Sums of |a_ij| over this rank's part of each column, in a triangle or (None) everywhere. No communication.

    ``mirrored``: the other triangle is the mirror image of this one, and is counted too.
    """
    i, j = layout.indices(rank)
    sums = np.zeros(layout.shape[1])
    parts = [(rows, slice(None), None) for rows in _by_rows(len(i))] if upper is None else _parts(layout, rank, upper, 0)
    for rows, columns, part in parts:
        sums[j[columns]] += np.where(True if part is None else part, np.abs(block[rows, columns]), 0).sum(0, dtype=float)
    for rows, columns, part in _parts(layout, rank, bool(upper), 1) if mirrored else ():
        sums[i[rows]] += np.where(True if part is None else part, np.abs(block[rows, columns]), 0).sum(1, dtype=float)
    return sums


def diagonal_places(layout: Layout, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The diagonal entries of a rank: their global index, and their row and column in its block."""
    return np.intersect1d(*layout.indices(rank), assume_unique=True, return_indices=True)


def _by_rows(count: int, each: int = 256) -> list[slice]:
    return [slice(at, at + each) for at in range(0, count, each)]


def _parts(
    layout: Layout, rank: int, upper: bool, distance: int, within: int | None = None
) -> Iterator[tuple[slice, slice, np.ndarray | None]]:
    """The triangle of a block, as rectangles of some columns each, and on the diagonal as small rectangles with a mask.

    ``distance`` is 1 without the diagonal. ``within``: the largest distance of a rectangle from the diagonal.
    """
    rows, columns = layout.indices(rank)
    if not len(rows):
        return
    for first in range(0, len(columns), _TILE):
        here = slice(first, min(first + _TILE, len(columns)))
        some = columns[here]
        # rows and columns ascend, so the triangle has the first rows of each column, or the last ones
        low, high = (int(np.searchsorted(rows, c + (1 - distance if upper else distance))) for c in (some[0], some[-1]))
        near = rows[low:high, None]
        yield slice(low, high), here, near <= some - distance if upper else near >= some + distance
        if upper:
            yield slice(0 if within is None else int(np.searchsorted(rows, some[0] - within)), low), here, None
        else:
            yield slice(high, None if within is None else int(np.searchsorted(rows, some[-1] + within + 1))), here, None


def _shared(source: Layout, here: Any, target: Layout, there: Any, offset: tuple[int, int]) -> Portion | None:
    """The rows and columns that a place of the source shares with a place of the target; None if there are none."""
    if here is None or there is None:
        return None
    rows = _runs(source.rows, here[0], target.rows, there[0], offset[0])
    columns = _runs(source.columns, here[1], target.columns, there[1], offset[1]) if rows else ()
    return (rows, columns) if rows and columns else None


@lru_cache(maxsize=4096)
def _runs(axis: Axis, part: int, other: Axis, other_part: int, offset: int) -> tuple[Run, ...]:
    indices = axis.indices(part)
    if offset or other.n < axis.n:
        indices = indices[(indices >= offset) & (indices < offset + other.n)]
    shared = indices[other.owner(indices - offset) == other_part]
    if not len(shared):
        return ()
    here, there = axis.local(shared), other.local(shared - offset)
    breaks = np.flatnonzero((np.diff(here) != 1) | (np.diff(there) != 1)) + 1
    edges = [0, *breaks.tolist(), len(shared)]
    return tuple((int(here[a]), int(there[a]), b - a) for a, b in pairwise(edges))


def packed(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """From the source's block to a buffer, in which the runs follow each other."""
    return tuple((here, start, length) for start, (here, _, length) in _starts(runs))


def unpacked(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """From that buffer to the target's block."""
    return tuple((start, there, length) for start, (_, there, length) in _starts(runs))


def _starts(runs: tuple[Run, ...]) -> Iterator[tuple[int, Run]]:
    start = 0
    for run in runs:
        yield start, run
        start += run[2]


def total(runs: tuple[Run, ...]) -> int:
    """Rows, or columns, in all runs together."""
    return sum(length for _, _, length in runs)


def _portions(
    shared: Portion | None,
    itemsize: int,
    most: int,
    indices: tuple[np.ndarray, np.ndarray] | None,
    side: int,
    upper: bool | None,
) -> list[Portion]:
    """The shared rows in portions of at most ``most`` bytes, the same ones on both ranks.

    With ``upper``, each has only the columns of that triangle; ``indices`` are then the global ones of the block on this rank,
    which is the source's for ``side`` 0 and the target's for 1.
    """
    if shared is None:
        return []
    portions = _rows_each(shared, itemsize, most)
    if indices is not None:
        portions = [_cut_triangle(portion, indices, side, bool(upper)) for portion in portions]
    return [portion for portion in portions if portion[1]]


def _width(portions: list[Portion], side: int, rows: np.ndarray) -> int:
    """The largest distance from the first row to the last one of a portion."""
    ends = ((runs[0][side], runs[-1][side] + runs[-1][2] - 1) for runs, _ in portions)
    return max((int(rows[last] - rows[first]) for first, last in ends), default=0)


def _cut_triangle(portion: Portion, indices: tuple[np.ndarray, np.ndarray], side: int, upper: bool) -> Portion:
    """The columns from the first row on, or up to the last row."""
    rows, columns = portion
    run = rows[0 if upper else -1]
    edge = indices[0][run[side]] if upper else indices[0][run[side] + run[2] - 1] + 1
    kept = []
    for here, there, length in columns:
        first = (here, there)[side]
        at = int(np.searchsorted(indices[1][first : first + length], edge))
        kept.append((here + at, there + at, length - at) if upper else (here, there, at))
    return rows, tuple(run for run in kept if run[2])


def _rows_each(shared: Portion, itemsize: int, most: int) -> list[Portion]:
    rows, columns = shared
    each = max(most // (total(columns) * itemsize), 1)
    portions: list[Portion] = []
    portion: list[Run] = []
    room = each
    for i, k, length in rows:
        at = 0
        while at < length:
            take = min(room, length - at)
            portion.append((i + at, k + at, take))
            at, room = at + take, room - take
            if not room:
                portions.append((tuple(portion), columns))
                portion, room = [], each
    return [*portions, (tuple(portion), columns)] if portion else portions


def _room(buffer: np.ndarray, portion: Portion) -> tuple[np.ndarray, np.ndarray]:
    """The buffer, larger if it has to be, and the part of it for a portion."""
    shape = total(portion[0]), total(portion[1])
    count = shape[0] * shape[1]
    buffer = np.empty(count, buffer.dtype) if buffer.size < count else buffer
    return buffer, buffer[:count].reshape(shape)


def _copy(target: np.ndarray, source: np.ndarray, rows: tuple[Run, ...], columns: tuple[Run, ...], put: Put = setitem) -> None:
    """target <- source, run by run; short runs by their indices."""
    if min(total(rows) / len(rows), total(columns) / len(columns)) < _FEW and len(rows) * len(columns) > 1:
        here, there = (np.ix_(_flat(rows, side), _flat(columns, side)) for side in (0, 1))
        put(target, there, source[here])
        return
    if (target.strides[0] < target.strides[1]) != (source.strides[0] < source.strides[1]):
        rows, columns = _cut(rows), _cut(columns)
    for i, k, height in rows:
        for j, l, width in columns:
            piece = source[i : i + height, j : j + width]
            put(target, (slice(k, k + height), slice(l, l + width)), piece)


def _cut(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Runs no longer than a tile that fits into the cache both ways: for copies that transpose."""
    return tuple((i + at, k + at, min(_TILE, length - at)) for i, k, length in runs for at in range(0, length, _TILE))


def _flat(runs: tuple[Run, ...], side: int) -> np.ndarray:
    return np.concatenate([np.arange(run[side], run[side] + run[2]) for run in runs])


def _bytes(buffer: np.ndarray) -> np.ndarray:
    return buffer.reshape(-1).view(np.uint8)
