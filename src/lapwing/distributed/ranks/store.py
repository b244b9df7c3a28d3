"""Ranks that communicate through a key-value store, as in torch.distributed and jax.distributed."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from typing import Any, Protocol

from .protocol import MissingRanksError, timeout


class Store(Protocol):
    def put(self, key: str, value: bytes) -> None: ...

    def get(self, keys: list[str], deadline: float) -> list[bytes | None]:
        """The values; waits for them until ``deadline`` (``time.monotonic()``). None for values that are missing then."""

    def delete(self, key: str) -> None: ...

    def leave(self, key: str, process: int, count: int) -> None:
        """Each of ``count`` processes calls this after reading; the process that serves the store waits here for the others."""


class StoreRanks:
    """A :class:`.protocol.Communicator` over a store.

    ``members`` are the numbers of the processes by rank, and ``process`` is this one's. ``name`` distinguishes users of the
    store. The n-th collective call of a communicator uses its n-th keys, so all processes must make the same calls in the same
    order. ``calls`` counts them; communicators of one name in one process must share it.
    """

    def __init__(self, store: Store, process: int, members: Sequence[int], name: str, calls: list[int] | None = None) -> None:
        self._store, self._members, self._name = store, tuple(members), name
        self._calls = [0] if calls is None else calls
        self.rank, self.size = self._members.index(process), len(self._members)

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        call = self._calls[0]
        self._calls[0] += 1
        self._store.put(self._key(call, self.rank), pickle.dumps(value))
        seconds = timeout()
        keys = [self._key(call, rank) for rank in range(self.size)]
        values = self._store.get(keys, time.monotonic() + seconds)
        missing = [rank for rank, data in enumerate(values) if data is None]
        if missing:
            raise MissingRanksError(operation, missing, seconds)
        # all have made this call, so all have read the values of the one before
        if call:
            self._store.delete(self._key(call - 1, self.rank))
        self._store.leave(f"{self._name}/{call}", self._members[self.rank], self.size)
        return [pickle.loads(data) for data in values if data is not None]

    def _key(self, call: int, rank: int) -> str:
        return f"{self._name}/{call}/{rank}"

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        return self.allgather(data if self.rank == root else None, "broadcast")[root]  # type: ignore[no-any-return]

    def barrier(self) -> None:
        self.allgather(None, "barrier")

    def split(self, color: int | None, key: int = 0) -> StoreRanks | None:
        process = self._members[self.rank]
        choices = self.allgather((color, key, process), "split")
        if color is None:
            return None
        members = [process for _, process in sorted((k, process) for c, k, process in choices if c == color)]
        return StoreRanks(self._store, process, members, f"{self._name}/{self._calls[0]}.{color}")
