"""A history of fields in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..analysis import Analysis, Context, as_names, choose_name
from ..solver.arrays import to_host


class Snapshots(Analysis):
    """Copies of fields on the host, within a memory limit.

    When the copies reach the limit, every second one is dropped, and from then on half as many are made: the history always
    covers the whole run evenly.

    Parameters
    ----------
    *fields : str
        Names of the fields; by default all fields of the solver.
    every : int
    limit : float
        Memory in bytes, default 1e9.

    Attributes
    ----------
    steps, times : lists
        Steps and times of the snapshots that are kept.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> snapshots = insitu.Snapshots("u", limit=4 * 80)
    >>> with insitu.Hub([snapshots], output=None, quiet=True) as hub:
    ...     for n in range(9):
    ...         status = hub.step(n, 0.1 * n, u=np.full(10, float(n)))
    >>> snapshots.steps, snapshots.history("u").shape
    ([0, 4, 8], (3, 10))
    """

    def __init__(self, *fields: str, every: int = 1, limit: float = 1e9) -> None:
        self.fields = as_names(fields) if fields else None
        self.every = every
        if not limit > 0:
            raise ValueError(f"Snapshots: limit must be positive, got {limit!r}")
        self.limit = limit
        self.steps: list[int] = []
        self.times: list[float] = []
        self.bytes = 0
        self._calls = 0
        self._stride = 1
        self._kept: list[dict[str, np.ndarray]] = []

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        calls, self._calls = self._calls, self._calls + 1
        if calls % self._stride:
            return
        names = tuple(ctx.fields) if self.fields is None else self.fields
        snapshot = {name: np.array(to_host(a), copy=True) for name, a in zip(names, arrays, strict=True)}
        size = sum(a.nbytes for a in snapshot.values())
        if size > self.limit:
            raise MemoryError(f"Snapshots: one snapshot has {size} bytes, the limit is {self.limit:g}")
        while self._kept and self.bytes + size > self.limit:
            self._thin()
            if calls % self._stride:
                return
        self._kept.append(snapshot)
        self.steps.append(ctx.step)
        self.times.append(ctx.time)
        self.bytes += size

    def _thin(self) -> None:
        """Keep every second snapshot, and make half as many from now on."""
        self._stride *= 2
        self._kept, self.steps, self.times = self._kept[::2], self.steps[::2], self.times[::2]
        self.bytes = sum(a.nbytes for snapshot in self._kept for a in snapshot.values())

    def history(self, field: str | None = None) -> np.ndarray:
        """The snapshots of a field (the first by default), shape (snapshots, *shape of the field)."""
        if not self._kept:
            raise ValueError("Snapshots: there are no snapshots yet")
        name = choose_name("Snapshots", field, self._kept[0])
        return np.stack([snapshot[name] for snapshot in self._kept])

    def results(self) -> dict[str, Any]:
        """All results, for `Writer`."""
        results: dict[str, Any] = {"steps": np.array(self.steps), "times": np.array(self.times)}
        return results | ({name: self.history(name) for name in self._kept[0]} if self._kept else {})

    def summary(self) -> str:
        thinned = f", one of every {self._stride} steps that were due" if self._stride > 1 else ""
        return f"{len(self.steps)} snapshots, {self.bytes / 1e6:.3g} MB{thinned}"

    def state(self) -> dict[str, Any]:
        names = ("steps", "times", "bytes", "_calls", "_stride", "_kept")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
