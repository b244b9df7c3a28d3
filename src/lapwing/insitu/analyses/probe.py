"""The history of a field at a few points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..analysis import AT_END, Analysis, CollectiveError, Context, as_names, choose_name
from ..solver.arrays import host_as_numpy, library_of, to_host
from ..solver.guard import check_shape

_WAITING = 64  # samples held on a device before they are copied to the host


class Probe(Analysis):
    """Values at points, at every step that is due.

    Parameters
    ----------
    *fields : str
    points : list
        Each point is an index (integers, one for each dimension; negative ones count from the end) or a place (floating-point
        coordinates), which selects the nearest point of the solver's mesh. With MPI, indices refer to the whole field, so the
        mesh must have ``global_shape`` and ``offset``.
    every : int

    Attributes
    ----------
    steps, times : lists
        Steps and times of the samples.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> probe = insitu.Probe("u", points=[3, -1])
    >>> with insitu.Hub([probe], output=None, quiet=True) as hub:
    ...     for n in range(3):
    ...         status = hub.step(n, 0.1 * n, u=n + np.arange(5.0))
    >>> probe.values("u")
    array([[3., 4.],
           [4., 5.],
           [5., 6.]])
    """

    collective = True
    collective_every = AT_END

    def __init__(self, *fields: str, points: Sequence[Any], every: int = 1) -> None:
        self.fields = as_names(fields, "Probe('u', points=[0])")
        self.every = every
        self.points = [tuple(p) if np.iterable(p) else (p,) for p in points]
        if not self.points:
            raise ValueError("Probe: give at least one point")
        self.steps: list[int] = []
        self.times: list[float] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, list[tuple[int, ...] | None]] = {}
        self._samples: dict[str, list[np.ndarray]] = {name: [] for name in self.fields}
        self._waiting: list[tuple[str, list[Any]]] = []
        self._all: dict[str, np.ndarray] = {}

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        samples = []
        for name, array in zip(self.fields or (), arrays, strict=True):
            array = host_as_numpy(array)
            shape = tuple(array.shape)
            if name not in self._shapes:
                self._places[name] = [_place(point, shape, name, ctx) for point in self.points]
                self._shapes[name] = shape
            check_shape("Probe", ctx.step, name, shape, self._shapes[name])
            # an element of a NumPy array is a copy; an element of a device array stays a view and must be copied now
            values = [0.0 if p is None else array[p] for p in self._places[name]]
            if not isinstance(array, np.ndarray) and library_of(array) != "jax":
                values = [v if isinstance(v, float) else v + 0 for v in values]
            samples.append((name, values))
        self._waiting += samples
        self.steps.append(ctx.step)
        self.times.append(ctx.time)
        if len(self._waiting) >= _WAITING:
            self._fetch()

    def on_finish(self, ctx: Context) -> None:
        self._fetch()
        for name in self.fields or ():
            local = np.array(self._samples[name]).reshape(-1, len(self.points))
            if ctx.size == 1:
                self._all[name] = local
                continue
            owned = np.array([p is not None for p in self._places.get(name, [None] * len(self.points))], np.float64)
            owners = ctx.comm.sum(owned)
            if (owners == 0).any():
                missing = [self.points[i] for i in np.flatnonzero(owners == 0)]
                raise CollectiveError(f"Probe: no rank has the points {missing} of the field {name!r}")  # raised on all ranks
            # a point in a halo has two owners with the same value
            total = ctx.comm.sum((local * owned).view(np.float64)).view(local.dtype).reshape(local.shape)
            self._all[name] = total / owners

    def values(self, field: str | None = None) -> np.ndarray:
        """Values of a field (the first by default), shape (steps, points); during a run with MPI, at this rank's points."""
        name = choose_name("Probe", field, self._samples)
        self._fetch()
        return self._all[name] if name in self._all else np.array(self._samples[name]).reshape(-1, len(self.points))

    def _fetch(self) -> None:
        waiting, self._waiting = self._waiting, []
        for name, values in waiting:
            self._samples[name].append(np.array([to_host(v) if library_of(v) else v for v in values]))

    def results(self) -> dict[str, Any]:
        """All results, for `Writer`."""
        results: dict[str, Any] = {"steps": np.array(self.steps), "times": np.array(self.times)}
        return results | {name: self.values(name) for name in self.fields or ()}

    def summary(self) -> str:
        return f"{len(self.steps)} samples at {len(self.points)} point{'' if len(self.points) == 1 else 's'}"

    def state(self) -> dict[str, Any]:
        self._fetch()
        return {
            "points": [list(p) for p in self.points],
            "steps": np.array(self.steps, np.int64),
            "times": np.array(self.times),
            "samples": {name: np.array(x) for name, x in self._samples.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        if [tuple(p) for p in state["points"]] != [tuple(p) for p in self.points]:
            raise ValueError(f"Probe: the checkpoint has the points {state['points']}, this run has {self.points}")
        self.steps = [int(x) for x in state["steps"]]
        self.times = [float(x) for x in state["times"]]
        self._samples = {name: list(x) for name, x in state["samples"].items()}
        self._all = {}


def _place(point: tuple[Any, ...], shape: tuple[int, ...], name: str, ctx: Context) -> tuple[int, ...] | None:
    """Index of a point in this rank's part of the field, or None if another rank holds it."""
    if not all(isinstance(x, int | np.integer) for x in point):
        if ctx.mesh is None:
            raise ValueError(f"Probe: the point {point} has coordinates, but the solver did not describe its mesh")
        place = ctx.mesh.nearest(tuple(float(x) for x in point), shape)
        if place is None and ctx.size == 1:
            raise ValueError(f"Probe: the place {point} is outside the field {name!r}")
        return place  # type: ignore[no-any-return]
    whole, offset = shape, (0,) * len(shape)
    if ctx.mesh is not None and ctx.mesh.global_shape is not None and ctx.mesh.offset is not None:
        whole, offset = ctx.mesh.global_shape, ctx.mesh.offset
    elif ctx.size > 1:
        raise ValueError("Probe: with several ranks, a point given by its index needs the mesh's global_shape and offset")
    if len(point) != len(whole) or any(not -n <= i < n for i, n in zip(point, whole, strict=True)):
        raise ValueError(f"Probe: the point {point} is outside the field {name!r} of shape {whole}")
    index = tuple(int(i) % n - o for i, n, o in zip(point, whole, offset, strict=True))
    return index if all(0 <= i < n for i, n in zip(index, shape, strict=True)) else None
