"""The ranks of a torch process group. torch itself is not imported here."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import numpy as np

from .protocol import MissingRanksError, timeout
from .store import StoreRanks

__all__ = ["TorchRanks"]

_CALLS: dict[str, list[int]] = {}  # by name: a key is never used twice, also after torch was shut down and started again


class TorchRanks(StoreRanks):
    """The ranks of a torch process group (None: all ranks).

    ``dist`` is the module ``torch.distributed``. Small values go through the store with which its ranks found each other: its
    collectives wait as long as the group's own timeout, half an hour by default, and do not say who is missing. Blocks of
    matrices go through the group.
    """

    def __init__(self, dist: Any, group: Any = None) -> None:
        self._dist, self.group = dist, group
        members = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        # groups that torch split off one another may share a name, but not their first rank
        name = f"lapwing/{(dist.group.WORLD if group is None else group).group_name}/{members[0]}+{len(members)}"
        store = _Store(dist.distributed_c10d._get_default_store())
        super().__init__(store, dist.get_rank(), members, name, _CALLS.setdefault(name, [0]))

    def isend(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return self._dist.isend(self._tensor(data), self._members[rank], self.group, tag)

    def irecv(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return self._dist.irecv(self._tensor(data), self._members[rank], self.group, tag)

    def wait_all(self, requests: list[Any], operation: str, peers: tuple[int, ...]) -> None:
        """Wait for messages to and from ``peers``."""
        seconds = timeout()
        deadline = time.monotonic() + seconds
        for request in requests:
            try:
                request.wait(timedelta(seconds=max(deadline - time.monotonic(), 1e-3)))
            except RuntimeError:
                if time.monotonic() < deadline:
                    raise
                raise MissingRanksError(operation, peers, seconds) from None

    @staticmethod
    def _tensor(data: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(data)


class _Store:
    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, keys: list[str], deadline: float) -> list[bytes | None]:
        """By looking again and again: a blocking wait would hold the store's connection, which torch itself uses too."""
        nap = 5e-5
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                return [self._store.get(key) if self._store.check([key]) else None for key in keys]
            time.sleep(nap)
            nap = min(nap * 1.5, 2e-2)
        return [self._store.get(key) for key in keys]

    def delete(self, key: str) -> None:
        self._store.delete_key(key)
