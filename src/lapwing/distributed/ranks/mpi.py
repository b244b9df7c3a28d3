"""The ranks of an mpi4py communicator. Every wait is a loop over a non-blocking call, so that it can end: see ``patience``."""

from __future__ import annotations

import atexit
import logging
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .protocol import MissingRanksError, agree, patience, timeout

_TAG_IN, _TAG_OUT = 11, 12
_SPIN = 2e-4  # seconds of polling before a rank starts to sleep between two polls, and leaves its core to others
_GRACE = 3.0  # seconds that ranks wait longer than rank 0, which knows who is missing
_LONG = 10.0  # seconds after which a waiting rank logs a warning
_END = 2.0  # seconds that ranks wait for each other at the end of a script
_keyval: int | None = None
_open: list[MpiRanks] = []  # in the order of creation, which is the same on ranks that share two of them
_log = logging.getLogger("lapwing")


def of_mpi(comm: Any) -> MpiRanks:
    """The ranks of an mpi4py communicator; created and stored with it at its first use, which is collective.

    Messages go through a duplicate of the communicator, so that they never mix with the user's.
    """
    from mpi4py import MPI

    global _keyval
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise RuntimeError("distributed: MPI is not running\nhint: MPI.Init() first, and no call after MPI.Finalize()")
    if comm == MPI.COMM_NULL:
        raise ValueError(
            "distributed: comm is MPI.COMM_NULL: this rank is not part of the communicator\nhint: call only on its ranks"
        )
    if comm.Is_inter():
        raise ValueError("distributed: comm is an intercommunicator\nhint: comm.Merge() makes one group of both")
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval(delete_fn=_freed)
        atexit.register(_close_at_the_end, MPI)  # runs after the next one
        atexit.register(_stop_others_after_an_error, MPI)
    known = comm.Get_attr(_keyval)
    if known is None:
        known = MpiRanks(comm)
        comm.Set_attr(_keyval, known)
    return known  # type: ignore[no-any-return]


def _freed(comm: Any, keyval: int, known: MpiRanks) -> None:
    """Called when the user frees the communicator: free its duplicate and grids. MPI itself frees the rest when it ends."""
    if comm not in (known.MPI.COMM_WORLD, known.MPI.COMM_SELF):
        known.close()


class MpiRanks:
    """A :class:`.protocol.Communicator` over mpi4py, with the array exchanges that sharded matrices need."""

    def __init__(self, mpi: Any) -> None:
        from mpi4py import MPI

        self.MPI = MPI
        self.mpi = mpi  # the user's
        self.rank, self.size = int(mpi.Get_rank()), int(mpi.Get_size())
        self._calls = 0
        self._abandoned: list[Any] = []  # requests that timed out, with buffers that MPI may still use
        self.duplicate, request = mpi.Idup()
        self._finish(request, "distributed")
        self.duplicate.Set_errhandler(MPI.ERRORS_RETURN)  # MPI's errors become exceptions
        self._owns_mpi = False  # whether ``mpi`` was created here, and not by the user
        self._closed = False
        _open.append(self)
        self.kept: dict[Any, Any] = {}  # the grids of the engines; closed with the communicator

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        """Through rank 0, which knows who is missing. Waiting ranks sleep."""
        if self.size == 1:
            return [value]
        seconds = timeout()
        self._calls += 1
        if self.rank:
            sent = self.duplicate.isend((self._calls, pickle.dumps(value)), 0, _TAG_IN)
            answer = self._expect(0, _TAG_OUT, time.monotonic(), seconds + _GRACE, operation)
            if answer is None:
                raise MissingRanksError(operation, (0,), seconds + _GRACE)
            sent.wait()  # rank 0 has received it
        else:
            values: list[Any] = [pickle.dumps(value), *[None] * (self.size - 1)]
            start = time.monotonic()
            for rank in range(1, self.size):
                values[rank] = self._expect(rank, _TAG_IN, start, seconds, operation)
            unique: dict[bytes, bytes] = {}  # most values are equal: pickled once, or the answers grow with the ranks squared
            answer = pickle.dumps([None if data is None else unique.setdefault(data, data) for data in values])
            # missing ranks get it too: they may only be late, and then learn why the others are gone
            answers = [self.duplicate.isend((self._calls, answer), rank, _TAG_OUT) for rank in range(1, self.size)]
            if None in values:
                self._abandoned += answers
            else:
                self.wait_all(answers, operation, tuple(range(1, self.size)))
        values = pickle.loads(answer)
        missing = [rank for rank, data in enumerate(values) if data is None]
        if missing:
            raise MissingRanksError(operation, missing, seconds)
        return [pickle.loads(data) for data in values]

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        length = np.array([len(data or b"")])
        self._finish(self.duplicate.Ibcast(length, root), "broadcast", length)
        box = np.frombuffer(data, np.uint8).copy() if self.rank == root and data else np.empty(int(length[0]), np.uint8)
        self._finish(self.duplicate.Ibcast(box, root), "broadcast", box)
        return box.tobytes()

    def barrier(self) -> None:
        self.allgather(None, "barrier")

    def split(self, color: int | None, key: int = 0) -> MpiRanks | None:
        self.allgather(None, "split")  # MPI has no non-blocking split: it starts when all ranks are here
        part_comm = self.mpi.Split(self.MPI.UNDEFINED if color is None else color, key)
        if color is None:
            return None
        part = of_mpi(part_comm)
        part._owns_mpi = True
        return part

    def status(self, info: int) -> int:
        """One status for all ranks: the lowest if any is negative, else the smallest that is not zero, else zero."""
        none = np.iinfo(np.int64).max
        lowest, first = (int(x) for x in self._reduce(np.array([info, info if info > 0 else none], np.int64), self.MPI.MIN))
        return lowest if lowest < 0 else 0 if first == none else first

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over all ranks, the same bits on each."""
        return self._reduce(values, self.MPI.SUM)

    def _reduce(self, values: np.ndarray, op: Any) -> np.ndarray:
        result = np.empty_like(values)
        self._finish(self.duplicate.Iallreduce(values, result, op=op), "allreduce", values, result)
        return result

    def spread(self, values: np.ndarray | None, root: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The array of ``root`` on all ranks, which know its shape and dtype. The arrays of the others are overwritten."""
        box = np.empty(shape, dtype) if values is None else np.ascontiguousarray(values)
        self._finish(self.duplicate.Ibcast(box, root), "broadcast", box)
        return box

    def isend(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return self.duplicate.Isend(data, rank, tag)

    def irecv(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return self.duplicate.Irecv(data, rank, tag)

    def wait_all(self, requests: list[Any], operation: str, peers: tuple[int, ...]) -> None:
        """Wait for messages to and from ``peers``."""
        self._poll(lambda: self.MPI.Request.Testall(requests) or None, operation, peers, requests)

    def _finish(self, request: Any, operation: str, *buffers: np.ndarray) -> None:
        """Wait for a collective call. MPI does not say which ranks are missing."""
        self._poll(lambda: request.Test() or None, operation, (), [request, *buffers])

    def _poll(self, done: Callable[[], Any], operation: str, peers: tuple[int, ...], in_use: list[Any]) -> None:
        seconds = timeout()
        if _wait(done, time.monotonic() + seconds, spin=1e-3, longest=1e-3) is None:
            self._abandoned += in_use
            raise MissingRanksError(operation, peers, seconds)

    def close(self) -> None:
        """Free everything that was created for this communicator, the last first. Collective; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        _open.remove(self)
        if self.MPI.Is_finalized():  # MPI has freed it
            return
        for grid in reversed(self.kept.values()):
            grid.close()
        self.kept.clear()
        self.duplicate.Free()
        if self._owns_mpi and self.mpi != self.MPI.COMM_NULL:
            self.mpi.Free()

    def abort(self, code: int = 1) -> None:
        _flush()
        self.mpi.Abort(code)

    def _expect(self, source: int, tag: int, start: float, seconds: float, operation: str) -> Any:
        """As :meth:`_receive`, with a warning after a long wait: the other rank may have left the script."""
        data = self._receive(source, tag, start + min(seconds, _LONG))
        if data is None and seconds > _LONG:
            if time.monotonic() - start < _LONG + 1:  # not again for each missing rank
                text = "%s: rank %s has waited %g s for rank %s; it gives up after %g s (lapwing.distributed.patience)"
                _log.warning(text, operation, self.rank, _LONG, source, seconds)
            data = self._receive(source, tag, start + seconds)
        return data

    def _receive(self, source: int, tag: int, deadline: float) -> Any:
        """The message of another rank for this call, or None if it does not come in time."""
        call, data = 0, None
        while call < self._calls:  # late messages of calls that were given up are skipped
            message = _wait(lambda: self.duplicate.improbe(source, tag), deadline)
            if message is None:
                return None
            call, data = message.recv()
        return data

    def __repr__(self) -> str:
        return f"MpiRanks(rank {self.rank} of {self.size})"


def _wait(look: Callable[[], Any], deadline: float, spin: float = _SPIN, longest: float = 2e-3) -> Any:
    """Call ``look()`` until it is not None; None after the deadline. Naps are short for large messages, which they slow
    down."""
    start = time.monotonic()
    nap = 1e-5
    while (answer := look()) is None:
        now = time.monotonic()
        if now > deadline:
            return None
        if now - start > spin:
            time.sleep(nap)
            nap = min(nap * 2, longest)
    return answer


def _close_at_the_end(MPI: Any) -> None:
    """At exit: free the grids and communicators if all ranks have reached the end; else MPI's own end does it.

    A rank that is still in another call learns here that this one has left.
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
    """At exit: a rank that ends with a traceback stops the others.

    Without this, it waits for them in MPI_Finalize, and they for it in their next collective call.
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
