"""The ranks of an mpi4py communicator."""

from __future__ import annotations

import atexit
import logging
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .protocol import _TIMEOUT, MissingRanksError, agree, patience

__all__ = ["MpiRanks", "of_mpi"]

_TAG_IN, _TAG_OUT = 11, 12
_SPIN = 2e-4  # seconds of polling before a rank goes to sleep between two looks, so that others may have its core
_GRACE = 3.0  # seconds that ranks wait longer than rank 0, which knows who is missing
_LONG = 10.0  # seconds after which a waiting rank says so
_END = 2.0  # seconds that ranks wait for each other at the end of a script
_keyval: int | None = None
_open: list[MpiRanks] = []  # in the order in which they were made, which is the same on ranks that share two of them
_log = logging.getLogger("lapwing")


def of_mpi(comm: Any) -> MpiRanks:
    """The one of ours that belongs to an mpi4py communicator, made at its first use (then collective).

    The messages go over a duplicate, so that they never meet the user's. It is kept with the user's communicator.
    """
    from mpi4py import MPI

    global _keyval
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise RuntimeError("distributed: MPI is not running\nhint: MPI.Init() first, and no call after MPI.Finalize()")
    if comm == MPI.COMM_NULL:
        raise ValueError("distributed: comm is MPI.COMM_NULL: this rank is not one of its ranks")
    if comm.Is_inter():
        raise ValueError("distributed: comm is an intercommunicator\nhint: comm.Merge() makes one group of both")
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval(delete_fn=_freed)
        atexit.register(_close_at_the_end, MPI)  # after the next one
        atexit.register(_stop_others_after_an_error, MPI)
    known = comm.Get_attr(_keyval)
    if known is None:
        known = MpiRanks(comm)
        comm.Set_attr(_keyval, known)
    return known  # type: ignore[no-any-return]


def _freed(comm: Any, keyval: int, known: MpiRanks) -> None:
    """The user has freed the communicator: what belongs to it goes too. At the end of MPI all of it goes anyway."""
    if comm not in (known.MPI.COMM_WORLD, known.MPI.COMM_SELF):
        known.close()


class MpiRanks:
    """A :class:`.protocol.Communicator` over mpi4py, with the array exchanges that sharded matrices need."""

    def __init__(self, mpi: Any) -> None:
        from mpi4py import MPI

        self.MPI = MPI
        self.mpi = mpi  # the user's
        self.own = mpi.Dup()
        self.own.Set_errhandler(MPI.ERRORS_RETURN)  # an error of ours becomes an exception
        self.rank, self.size = int(mpi.Get_rank()), int(mpi.Get_size())
        self._calls = 0
        self._mine = False  # the communicator was made here, and not by the user
        self._closed = False
        _open.append(self)
        self.kept: dict[Any, Any] = {}  # what engines keep with a communicator: their grids

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        """Over rank 0, which knows who is missing. Waiting ranks sleep."""
        if self.size == 1:
            return [value]
        timeout = _TIMEOUT.get()
        self._calls += 1
        if self.rank:
            sent = self.own.isend((self._calls, pickle.dumps(value)), 0, _TAG_IN)
            answer = self._expect(0, _TAG_OUT, time.monotonic(), timeout + _GRACE, operation)
            if answer is None:
                raise MissingRanksError(operation, (0,), timeout + _GRACE)
            sent.wait()
        else:
            told: list[Any] = [pickle.dumps(value), *[None] * (self.size - 1)]
            start = time.monotonic()
            for rank in range(1, self.size):
                told[rank] = self._expect(rank, _TAG_IN, start, timeout, operation)
            same: dict[bytes, bytes] = {}  # most say the same: once in the answer, or it grows with the square of the ranks
            answer = pickle.dumps([None if data is None else same.setdefault(data, data) for data in told])
            # also to those that are missing: they may only be late, and then learn why the others are gone
            self._answers = [self.own.isend((self._calls, answer), rank, _TAG_OUT) for rank in range(1, self.size)]
            if None not in told:
                self.MPI.Request.Waitall(self._answers)
        told = pickle.loads(answer)
        missing = [rank for rank, data in enumerate(told) if data is None]
        if missing:
            raise MissingRanksError(operation, missing, timeout)
        return [pickle.loads(data) for data in told]

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        return self.own.bcast(data, root)  # type: ignore[no-any-return]

    def barrier(self) -> None:
        self.allgather(None, "barrier")

    def split(self, color: int | None, key: int = 0) -> MpiRanks | None:
        made = self.mpi.Split(self.MPI.UNDEFINED if color is None else color, key)
        if color is None:
            return None
        part = of_mpi(made)
        part._mine = True
        return part

    def status(self, info: int) -> int:
        """One status for all ranks: the lowest if any is negative, else the first that is not zero."""
        mine, all_of = np.array([info, info if info > 0 else np.iinfo(np.int64).max], np.int64), np.empty(2, np.int64)
        self.own.Allreduce(mine, all_of, op=self.MPI.MIN)
        lowest, first = (int(x) for x in all_of)
        return lowest if lowest < 0 else 0 if first == np.iinfo(np.int64).max else first

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Over all ranks, the same bits on each."""
        result = np.empty_like(values)
        self.own.Allreduce(values, result, op=self.MPI.SUM)
        return result

    def spread(self, values: np.ndarray | None, root: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The array of ``root`` on all ranks, which know its shape and dtype; what the others give is overwritten."""
        box = np.empty(shape, dtype) if values is None else np.ascontiguousarray(values)
        self.own.Bcast(box, root)
        return box

    def close(self) -> None:
        """Give back what was made for this communicator, the last first. Collective; a second time it does nothing."""
        if self._closed:
            return
        self._closed = True
        _open.remove(self)
        if self.MPI.Is_finalized():  # all of it is gone
            return
        for thing in reversed(self.kept.values()):
            thing.close()
        self.kept.clear()
        self.own.Free()
        if self._mine and self.mpi != self.MPI.COMM_NULL:
            self.mpi.Free()

    def abort(self, code: int = 1) -> None:
        _flush()
        self.mpi.Abort(code)

    def _expect(self, source: int, tag: int, start: float, timeout: float, operation: str) -> Any:
        """As :meth:`_receive`, but who waits for long says so: the other rank may have left the script."""
        data = self._receive(source, tag, start + min(timeout, _LONG))
        if data is None and timeout > _LONG:
            if time.monotonic() - start < _LONG + 1:  # not again for each rank that is missing
                words = "%s: rank %s has waited %g s for rank %s; it gives up after %g s (lapwing.distributed.patience)"
                _log.warning(words, operation, self.rank, _LONG, source, timeout)
            data = self._receive(source, tag, start + timeout)
        return data

    def _receive(self, source: int, tag: int, deadline: float) -> Any:
        """What another rank sent for this call, or None when it does not come in time; of calls given up it may be late."""
        call, data = 0, None
        while call < self._calls:
            message = _wait(lambda: self.own.improbe(source, tag), deadline)
            if message is None:
                return None
            call, data = message.recv()
        return data

    def __repr__(self) -> str:
        return f"MpiRanks(rank {self.rank} of {self.size})"


def _wait(look: Callable[[], Any], deadline: float) -> Any:
    start = time.monotonic()
    nap = 2e-5
    while (found := look()) is None:
        now = time.monotonic()
        if now > deadline:
            return None
        if now - start > _SPIN:
            time.sleep(nap)
            nap = min(nap * 2, 2e-3)
    return found


def _close_at_the_end(MPI: Any) -> None:
    """At exit: grids and communicators of engines go, where all ranks have come to the end; else MPI's own end takes them.

    One that is still in another call learns here that this one has left.
    """
    uncaught = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if uncaught is not None or not MPI.Is_initialized() or MPI.Is_finalized():
        return
    world = next((ranks for ranks in _open if ranks.mpi == MPI.COMM_WORLD), None)
    if world is None:
        return
    try:
        with patience(_END):
            agree(world, "the end of the script", {})
    except Exception:
        return
    for ranks in reversed(_open.copy()):
        ranks.close()
    MPI.COMM_WORLD.Delete_attr(_keyval)


def _stop_others_after_an_error(MPI: Any) -> None:
    """At exit: a rank that ends with a traceback takes the others along, or they would wait for it for ever.

    Without this, it waits for them in MPI_Finalize, and they for it in the next collective call.
    """
    uncaught = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if uncaught is None or hasattr(sys, "ps1") or sys.flags.interactive:
        return
    if MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1:
        rank = MPI.COMM_WORLD.Get_rank()
        print(f"lapwing: rank {rank} ended with {type(uncaught).__name__}; stopping the other ranks", file=sys.stderr)
        _flush()
        MPI.COMM_WORLD.Abort(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
