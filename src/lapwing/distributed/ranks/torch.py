"""The ranks of a torch process group. torch itself is not imported here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from .protocol import MissingRanksError, timeout
from .store import StoreRanks

_LEAVE = 5.0  # seconds that ranks have for reading values; ranks that gave up do not read them
_CALLS: dict[str, list[int]] = {}  # by name: a key is never used twice, also after torch was shut down and started again


class TorchRanks(StoreRanks):
    """The ranks of a torch process group (None: all ranks).

    ``dist`` is the module ``torch.distributed``. Small values go through the store with which the ranks found each other, as
    the collectives of torch wait for the group's own timeout, half an hour by default, and do not name missing ranks. Blocks of
    matrices go through the group.
    """

    def __init__(self, dist: Any, group: Any = None) -> None:
        self._dist, self.group = dist, group
        members = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        # groups that torch made by splitting may share a name, but not their first rank
        name = f"lapwing/{(dist.group.WORLD if group is None else group).group_name}/{members[0]}+{len(members)}"
        super().__init__(_Store(dist), dist.get_rank(), members, name, _CALLS.setdefault(name, [0]))

    def isend(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return self._dist.isend(self._tensor(data), self._members[rank], self.group, tag)

    def irecv(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return self._dist.irecv(self._tensor(data), self._members[rank], self.group, tag)

    def spread(self, values: np.ndarray | None, root: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The array of ``root`` on all ranks, which know its shape and dtype."""
        box = np.ascontiguousarray(values) if self.rank == root and values is not None else np.empty(shape, dtype)
        if box.size:
            self._dist.broadcast(self._tensor(box), self._members[root], self.group)
        return box

    def wait_all(self, requests: list[Any], operation: str, peers: tuple[int, ...]) -> None:
        """Wait for messages to and from ``peers``."""
        seconds = timeout()
        deadline = time.monotonic() + seconds
        for request in requests:
            try:
                # in whole milliseconds, rounded up: gloo would round down, and end the wait before the deadline
                request.wait(timedelta(milliseconds=max(math.ceil((deadline - time.monotonic()) * 1e3), 1)))
            except RuntimeError:
                if time.monotonic() < deadline:
                    raise
                raise MissingRanksError(operation, peers, seconds) from None

    @staticmethod
    def _tensor(data: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(data)


class _Store:
    """The store of all ranks. It is not kept: a reference would hold its port after ``destroy_process_group``."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist

    @property
    def _store(self) -> Any:
        return self._dist.distributed_c10d._get_default_store()

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, keys: list[str], deadline: float) -> list[bytes | None]:
        """Polls, as a blocking wait would hold the store's connection, which torch itself uses too."""
        store = self._store
        if _poll(lambda: store.check(keys), deadline):
            return [store.get(key) for key in keys]
        return [store.get(key) if store.check([key]) else None for key in keys]

    def delete(self, key: str) -> None:
        self._store.delete_key(key)

    def leave(self, key: str, process: int, count: int) -> None:
        """Wait on rank 0, which serves the store: if its script ended now, the others could not read their values."""
        store = self._store
        store.add(f"{key}/read", 1)
        if process == 0:
            _poll(lambda: store.add(f"{key}/read", 0) >= count, time.monotonic() + _LEAVE)
            store.delete_key(f"{key}/read")


def _poll(done: Callable[[], bool], deadline: float) -> bool:
    """Whether it is done before the deadline."""
    nap = 5e-5
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(nap)
        nap = min(nap * 1.5, 2e-2)
    return True
