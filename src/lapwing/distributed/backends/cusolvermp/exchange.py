"""Redistribute blocks on GPUs over NCCL, transposed on the way if asked: the plan of :mod:`lapwing.distributed.exchange`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ....core.problem import ITEMSIZE
from ...exchange import Portion, Run, packed, plan, total, unpacked
from ...layout import Axis, Layout

_PORTION = 1 << 28  # bytes of a message: 3 ms over a fast link, against microseconds to start it; the buffers stay small


@dataclass(frozen=True)
class Block:
    """The part of a matrix on one rank: column-major memory on its device.

    ``owner`` keeps the memory alive. Row-major memory is a column-major block of the transpose.
    """

    pointer: int
    layout: Layout
    dtype: str
    lead: int  # elements from one column to the next
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

    operation: "N", "T" (transposed), "C" (transposed and conjugated). ``session`` has ``rank``, ``size``, ``stream``,
    ``runtime``, ``together(work)``, ``buffers(bytes, bytes)``, ``turn`` and ``swap``. Copies and messages are queued on one
    stream, so a buffer can be reused without waiting.
    """
    turned = operation != "N"
    op_layout = source.layout.transposed if turned else source.layout  # the layout of op(source)
    size = source.itemsize
    local, *steps = plan(session.rank, session.size, op_layout, layout, size, portion=_PORTION, offset=offset)
    sent_most = max((_bytes(x, size) for step in steps for x in step.leaving), default=0)
    received_most = max((_bytes(x, size) for step in steps for x in step.coming), default=0)
    # no rank starts to send before all have the memory
    target: Block
    target, (out, into) = session.together(lambda: (make(), session.buffers(sent_most, received_most)))
    for portion in local.leaving:
        _copy(session, source, target, operation, *portion)
    for step in steps:
        for leaving, coming in zip_longest(step.leaving, step.coming):
            if leaving:
                rows, columns = leaving[::-1] if turned else leaving  # in the order of the source's memory
                buffer = _as_block(out, source.dtype, total(rows))
                _copy(session, source, buffer, "N", packed(rows), packed(columns))
            session.swap((out, _bytes(leaving, size), step.to_rank), (into, _bytes(coming, size), step.from_rank))
            if coming:
                rows, columns = coming
                buffer = _as_block(into, source.dtype, total(columns if turned else rows))
                _copy(session, buffer, target, operation, unpacked(rows), unpacked(columns))
    return target


def _bytes(portion: Portion | None, itemsize: int) -> int:
    return total(portion[0]) * total(portion[1]) * itemsize if portion else 0


def _as_block(pointer: int, dtype: str, lead: int) -> Block:
    return Block(pointer, Layout(Axis.whole(0), Axis.whole(0)), dtype, lead)


def _copy(session: Any, source: Block, target: Block, operation: str, rows: tuple[Run, ...], columns: tuple[Run, ...]) -> None:
    """The rows and columns are those of the target; for "T" and "C" the source has them the other way round."""
    size = source.itemsize
    for i, k, height in rows:
        for j, l, width in columns:
            if operation == "N":
                to, pitch = target.at(k, l), target.lead * size
                session.runtime.copy_2d(to, pitch, source.at(i, j), source.lead * size, height * size, width, 3, session.stream)
            else:
                session.turn(operation, height, width, source.at(j, i), source.lead, target.at(k, l), target.lead, source.dtype)
