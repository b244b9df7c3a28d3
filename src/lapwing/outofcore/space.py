"""The contract of a memory that does the work, and the stream of blocks through it.

The algorithms are written once over a :class:`Space`: the host's memory (``host.py``) or a GPU's (``cuda.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np

from .stores import Store


class Piece(NamedTuple):
    """A block of a matrix to be read."""

    store: Store
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


class Slot(Protocol):
    """A buffer that a block is read into."""

    def fill(self, piece: Piece) -> None:
        """Read the block; called by the thread that reads ahead."""

    def block(self, piece: Piece) -> Any:
        """The block as a matrix of the space."""

    def release(self) -> None:
        """No further work will read the block."""


class Space(Protocol):
    """A memory that does the work. Its matrices have ``shape``, ``T``, and slices of rows and columns."""

    name: str
    dtype: np.dtype

    def enter(self) -> None:
        """Prepare a thread for work with this memory."""

    def empty(self, rows: int, columns: int) -> Any: ...

    def slots(self, count: int, size: int) -> list[Any]:
        """Buffers for blocks of up to ``size`` elements."""

    def copy(self, to: Any, block: Any) -> None: ...

    def gemm(
        self, c: Any, a: Any, b: Any, adjoint_a: bool = False, adjoint_b: bool = False, alpha: float = -1.0, beta: float = 1.0
    ) -> None:
        """C <- beta C + alpha A B, or with the adjoints of A and B."""

    def trsm(self, t: Any, x: Any, *, lower: bool, adjoint: bool = False, unit: bool = False, right: bool = False) -> None:
        """X <- T^-1 X, or X T^-1 from the right; with the adjoint of T if asked for."""

    def potrf(self, d: Any, before: int) -> None:
        """The lower Cholesky factor in place; a failure is reported with ``before`` added to the order of the minor."""

    def getrf(self, p: Any, before: int) -> Any:
        """L and U of a tall panel in place; the exchanges of its rows, for :meth:`swap` and :meth:`pivots`."""

    def pivots(self, exchanges: Any) -> np.ndarray:
        """The row that each row was exchanged with, counted from the first of the panel; waits for the work."""

    def swap(self, x: Any, pivots: Any, back: bool = False) -> None:
        """Exchange rows by ``pivots``: the result of :meth:`getrf`, or an array that does not change."""

    def qr(self, a: Any) -> tuple[Any, np.ndarray]:
        """Q in the memory of ``a``, and R on the host."""

    def failure(self) -> int:
        """The first failure of ``potrf`` or ``getrf``, or 0; waits for the work."""

    def put(self, x: np.ndarray, to: Any) -> None: ...

    def get(self, x: Any) -> np.ndarray: ...

    def write(self, x: Any, store: Store, row: int, column: int, lower: bool = False) -> None:
        """Write a matrix to a store in the background; it must not change before :meth:`fence` or :meth:`flush`.

        ``lower``: write zeros above the diagonal.
        """

    def fence(self) -> None:
        """Later work may change matrices that are being written."""

    def flush(self) -> None:
        """Wait until everything is written."""

    def close(self) -> None: ...


WRITTEN = object()


def through(space: Space, slots: list[Any], items: Iterable[Any], work: Callable[[Piece, Any], None]) -> int:
    """Go through the items in order, while a thread reads the next blocks.

    For an item that is a :class:`Piece`, ``work`` is called with its block. A function is called, and a result other than 0
    ends the loop and is returned. ``WRITTEN`` waits until everything written so far is in its store before reading further
    blocks.
    """
    free: SimpleQueue[Any] = SimpleQueue()
    ready: SimpleQueue[Any] = SimpleQueue()
    reached: SimpleQueue[None] = SimpleQueue()  # an item for each WRITTEN that the work has reached
    stopped = threading.Event()
    for slot in slots:
        free.put(slot)

    def read() -> None:
        try:
            space.enter()
            for item in items:
                slot = free.get() if isinstance(item, Piece) else None
                if slot is not None and not stopped.is_set():
                    slot.fill(item)
                ready.put((item, slot))
                if item is WRITTEN:
                    reached.get()
                if stopped.is_set():
                    return
                if item is WRITTEN:
                    space.flush()
            ready.put(None)
        except BaseException as error:  # raised again by the thread that works
            ready.put(error)

    reader = threading.Thread(target=read, name="lapwing-hosted", daemon=True)
    reader.start()
    try:
        while (entry := ready.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            item, slot = entry
            if item is WRITTEN:
                reached.put(None)
            elif slot is None:
                if failed := item():
                    return int(failed)
            else:
                work(item, slot.block(item))
                slot.release()
                free.put(slot)
    finally:
        stopped.set()
        free.put(slots[0])
        reached.put(None)
        reader.join()
    return 0


def spans(start: int, stop: int, step: int) -> Iterator[slice]:
    """Slices of at most ``step`` that cover a range."""
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))
