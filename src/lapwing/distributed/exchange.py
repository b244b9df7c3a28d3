"""Blocks of one layout become blocks of another: each rank sends each other what they share, in turn.

Any layout to any other, uneven blocks, permuted rows and transposes too, which the libraries' own routines do not have; and
the buffers are small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from .layout import Axis, Layout

__all__ = ["column_sums", "copy_triangle", "diagonal_places", "exchange", "finite_triangle", "keep_triangle", "mirror"]

_TAG = 21
_PORTION = 1 << 23  # bytes of a message: in the cache when it is unpacked, and no second copy of what two ranks share
_STEP = 1 << 21  # the same of a triangle: small steps along the diagonal take little of the other side along
_FEW = 24  # rows: with shorter runs one copy by indices is quicker than many copies of tiles
_TILE = 64

Put = Callable[[np.ndarray, tuple[Any, Any], np.ndarray], None]
Run = tuple[int, int, int]  # where it starts here, where there, how long
Shared = tuple[tuple[Run, ...], tuple[Run, ...]]  # runs of rows and of columns


def exchange(
    comm: Any,
    source: np.ndarray,
    layout: Layout,
    target: np.ndarray,
    to: Layout,
    *,
    column_major: bool = False,
    put: Put | None = None,
    upper: bool | None = None,
) -> int:
    """``target`` <- ``source``: the blocks of one matrix in two layouts. Collective; ``comm`` has an mpi4py one as ``own``.

    ``column_major`` says how the blocks lie, the same on all ranks; a wrong word costs time only. ``put(target, there, piece)``
    may take the place of ``target[there] = piece``. ``upper``: only the upper triangle is wanted, or only the lower one, with
    the diagonal; of the other one some come along, no further from the diagonal than the number returned.
    """
    if column_major:
        source, layout, target, to = source.T, layout.transposed, target.T, to.transposed
        upper = None if upper is None else not upper
    here, there = layout.place(comm.rank), to.place(comm.rank)
    held, wanted = (None, None) if upper is None else (layout.indices(comm.rank), to.indices(comm.rank))
    buffers: list[np.ndarray] = []
    beside = 0
    for step in range(comm.size):
        to_rank, from_rank = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        leaving = _portions(_shared(layout, here, to, to.place(to_rank)), source.itemsize, held, upper)
        if step == 0:
            beside = _widest(leaving, held)
            for portion in leaving:
                _copy(target, source, *portion, put)
            continue
        coming = _portions(_shared(to, there, layout, layout.place(from_rank)), source.itemsize, wanted, upper)
        beside = max(beside, _widest(coming, wanted))
        # the k-th portions of all ranks travel together, so that nobody waits for one that is not on its way
        for out, into in zip_longest(leaving, coming):
            if not buffers:
                buffers = [np.empty(0, source.dtype), np.empty(0, source.dtype)]
            requests = []
            if into is not None:
                packed = _room(buffers, 0, into)
                requests.append(comm.own.Irecv(_bytes(packed), from_rank, _TAG))
            if out is not None:
                sent = _room(buffers, 1, out)
                _copy(sent, source, _packed(out[0]), _packed(out[1]), None)
                requests.append(comm.own.Isend(_bytes(sent), to_rank, _TAG))
            _wait_all(comm, requests)
            if into is not None:
                turned = [tuple((k, i, length) for i, k, length in _packed(runs)) for runs in into]
                _copy(target, packed, turned[0], turned[1], put)
    return beside


def mirror(comm: Any, block: np.ndarray, layout: Layout, *, upper: bool = False, conjugate: bool = True) -> None:
    """A <- the Hermitian (or symmetric) matrix of which one triangle is read, the upper one if ``upper``; in place.

    What is read never is what is written, so that the same memory serves both.
    """
    rows, columns = layout.indices(comm.rank)

    def put(target: np.ndarray, there: tuple[Any, Any], piece: np.ndarray) -> None:
        i, j = rows[there[0]].reshape(-1), columns[there[1]].reshape(-1)
        if (i[-1] < j[0]) if upper else (i[0] > j[-1]):  # all of it is what was read
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
    block: np.ndarray, layout: Layout, rank: int, *, upper: bool, fill: Any = 0, beside: int | None = None
) -> None:
    """Set what is not in the triangle, diagonal included, to ``fill``. No communication.

    ``beside``: only what is so many rows beside the diagonal, or a little more; the rest is ``fill`` already.
    """
    for rows, columns, part in _parts(layout, rank, not upper, 1, beside):
        if part is None:
            block[rows, columns] = fill
        else:
            block[rows, columns][part] = fill


def copy_triangle(block: np.ndarray, layout: Layout, rank: int, *, upper: bool) -> np.ndarray:
    """A column-major copy of the triangle of this rank's block, diagonal included; zero beside it. No communication."""
    out = np.zeros(block.shape, block.dtype, order="F")  # memory that is not written to is not there yet
    for rows, columns, part in _parts(layout, rank, upper, 0):
        np.copyto(out[rows, columns], block[rows, columns], where=True if part is None else part)
    return out


def finite_triangle(block: np.ndarray, layout: Layout, rank: int, *, upper: bool) -> bool:
    """No NaN and no Inf in the triangle of this rank's block."""
    for rows, columns, part in _parts(layout, rank, upper, 0):
        finite = np.isfinite(block[rows, columns])
        if not (finite if part is None else finite | ~part).all():
            return False
    return True


def column_sums(block: np.ndarray, layout: Layout, rank: int, *, upper: bool | None, mirrored: bool = False) -> np.ndarray:
    """Sums of |a_ij| over what this rank has of each column, of a triangle or with None of all. No communication.

    ``mirrored``: the other triangle is the image of the one that is read.
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
    rows, columns = layout.indices(rank)
    found, i, j = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
    return found, i, j


def _by_rows(count: int, each: int = 256) -> list[slice]:
    return [slice(at, at + each) for at in range(0, count, each)]


def _parts(
    layout: Layout, rank: int, upper: bool, distance: int, beside: int | None = None
) -> Iterator[tuple[slice, slice, np.ndarray | None]]:
    """The triangle of a block as rectangles of some columns each, and on the diagonal as small ones with a mask.

    ``distance`` is 1 without the diagonal. ``beside``: no rectangles further from the diagonal than that.
    """
    rows, columns = layout.indices(rank)
    if not len(rows):
        return
    for first in range(0, len(columns), _TILE):
        here = slice(first, min(first + _TILE, len(columns)))
        some = columns[here]
        # rows and columns ascend: of each column the rows before a place are meant, or those from it on
        low, high = (int(np.searchsorted(rows, c + (1 - distance if upper else distance))) for c in (some[0], some[-1]))
        near = rows[low:high, None]
        yield slice(low, high), here, near <= some - distance if upper else near >= some + distance
        if upper:
            yield slice(0 if beside is None else int(np.searchsorted(rows, some[0] - beside)), low), here, None
        else:
            yield slice(high, None if beside is None else int(np.searchsorted(rows, some[-1] + beside + 1))), here, None


def _shared(layout: Layout, here: Any, other: Layout, there: Any) -> Shared | None:
    """Runs of rows and of columns that a place of one layout and a place of another have in common; None for nothing."""
    if here is None or there is None:
        return None
    rows = _runs(layout.rows, here[0], other.rows, there[0])
    columns = _runs(layout.columns, here[1], other.columns, there[1]) if rows else ()
    return (rows, columns) if rows and columns else None


@lru_cache(maxsize=4096)
def _runs(axis: Axis, part: int, other: Axis, other_part: int) -> tuple[Run, ...]:
    mine = axis.indices(part)
    shared = mine[other.owner(mine) == other_part]
    if not len(shared):
        return ()
    here, there = axis.local(shared), other.local(shared)
    breaks = np.flatnonzero((np.diff(here) != 1) | (np.diff(there) != 1)) + 1
    edges = [0, *breaks.tolist(), len(shared)]
    return tuple((int(here[a]), int(there[a]), b - a) for a, b in pairwise(edges))


def _packed(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The same runs one after the other."""
    start, out = 0, []
    for first, _, length in runs:
        out.append((first, start, length))
        start += length
    return tuple(out)


def _total(runs: tuple[Run, ...]) -> int:
    return sum(length for _, _, length in runs)


def _portions(
    shared: Shared | None, itemsize: int, indices: tuple[np.ndarray, np.ndarray] | None = None, upper: bool | None = None
) -> list[Shared]:
    """What two ranks share in portions of some rows each, the same ones on both sides.

    With ``upper``, each only as wide as that triangle; ``indices`` are then the global ones of the places here.
    """
    if shared is None:
        return []
    if indices is not None:
        cut = [_beside_diagonal(portion, indices, bool(upper)) for portion in _rows_each(shared, itemsize, _STEP)]
        return [portion for portion in cut if portion[1]]
    return _rows_each(shared, itemsize, _PORTION)


def _widest(portions: list[Shared], indices: tuple[np.ndarray, np.ndarray] | None) -> int:
    """From the first row to the last one of a portion, at most."""
    if indices is None:
        return 0
    return max((int(indices[0][rows[-1][0] + rows[-1][2] - 1] - indices[0][rows[0][0]]) for rows, _ in portions), default=0)


def _beside_diagonal(portion: Shared, indices: tuple[np.ndarray, np.ndarray], upper: bool) -> Shared:
    """The columns from the first row on, or up to the last row."""
    rows, columns = portion
    i, _, length = rows[0 if upper else -1]
    edge = indices[0][i] if upper else indices[0][i + length - 1] + 1
    kept = []
    for j, l, width in columns:
        at = int(np.searchsorted(indices[1][j : j + width], edge))
        run = (j + at, l + at, width - at) if upper else (j, l, at)
        if run[2]:
            kept.append(run)
    return rows, tuple(kept)


def _rows_each(shared: Shared, itemsize: int, most: int) -> list[Shared]:
    rows, columns = shared
    each = max(most // (_total(columns) * itemsize), 1)
    portions: list[Shared] = []
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


def _room(buffers: list[np.ndarray], which: int, shared: Shared) -> np.ndarray:
    """A buffer for a portion, row by row as both sides pack it; the memory is used again."""
    shape = _total(shared[0]), _total(shared[1])
    if buffers[which].size < shape[0] * shape[1]:
        buffers[which] = np.empty(shape[0] * shape[1], buffers[which].dtype)
    return buffers[which][: shape[0] * shape[1]].reshape(shape)


def _copy(target: np.ndarray, source: np.ndarray, rows: tuple[Run, ...], columns: tuple[Run, ...], put: Put | None) -> None:
    """target[there] <- source[here], run by run; short runs by their indices."""
    if min(_total(rows) / len(rows), _total(columns) / len(columns)) < _FEW and len(rows) * len(columns) > 1:
        here: Any = np.ix_(_flat(rows, 0), _flat(columns, 0))
        there: Any = np.ix_(_flat(rows, 1), _flat(columns, 1))
        if put is not None:
            put(target, there, source[here])
        else:
            target[there] = source[here]
        return
    if (target.strides[0] < target.strides[1]) != (source.strides[0] < source.strides[1]):
        rows, columns = _cut(rows), _cut(columns)
    for i, k, height in rows:
        for j, l, width in columns:
            piece = source[i : i + height, j : j + width]
            if put is not None:
                put(target, (slice(k, k + height), slice(l, l + width)), piece)
            else:
                target[k : k + height, l : l + width] = piece


def _cut(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Runs no longer than a tile that fits the cache both ways: for copies that transpose."""
    return tuple((i + at, k + at, min(_TILE, length - at)) for i, k, length in runs for at in range(0, length, _TILE))


def _flat(runs: tuple[Run, ...], side: int) -> np.ndarray:
    return np.concatenate([np.arange(run[side], run[side] + run[2]) for run in runs])


def _bytes(buffer: np.ndarray) -> np.ndarray:
    return buffer.reshape(-1).view(np.uint8)


def _wait_all(comm: Any, requests: list[Any]) -> None:
    """As MPI_Waitall, but asleep between two looks after a moment, so that others may have the core."""
    start, nap = time.monotonic(), 1e-5
    while not comm.MPI.Request.Testall(requests):
        if time.monotonic() - start > 1e-3:
            time.sleep(nap)
            nap = min(nap * 2, 1e-3)
