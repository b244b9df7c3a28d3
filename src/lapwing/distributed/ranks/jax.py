"""The processes of ``jax.distributed``, over its key-value store. JAX itself is not imported here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .store import StoreRanks


class JaxRanks(StoreRanks):
    """Some or all processes of ``jax.distributed``.

    ``client`` is ``jax._src.distributed.global_state.client``, ``process`` is ``jax.process_index()``, ``processes`` are
    ``range(jax.process_count())`` or some of them.
    """

    def __init__(self, client: Any, process: int, processes: Sequence[int], name: str = "lapwing") -> None:
        if client is None:
            raise RuntimeError("distributed: jax.distributed is not initialised\nhint: jax.distributed.initialize()")
        super().__init__(_Store(client), process, processes, name)


class _Store:
    def __init__(self, client: Any) -> None:
        self._client = client
        self.put, self.delete = client.key_value_set_bytes, client.key_value_delete

    def leave(self, key: str, process: int, count: int) -> None:
        """``jax.distributed`` keeps its store until all processes have shut down."""

    def get(self, keys: list[str], deadline: float) -> list[bytes | None]:
        return [self._get(key, deadline) for key in keys]

    def _get(self, key: str, deadline: float) -> bytes | None:
        left = max(deadline - time.monotonic(), 0.05)
        try:
            return self._client.blocking_key_value_get_bytes(key, int(left * 1000))  # type: ignore[no-any-return]
        except Exception as error:
            if "DEADLINE" not in str(error).upper():
                raise
            return None
