"""A space as points: each parameter is an axis, each value a place on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, product
from random import Random
from typing import Any

import numpy as np

from ..backends.base import Config, Space

Point = tuple[int, ...]
_TRIES = 2000  # failed draws, after which a space counts as empty
_MISSING = None  # value of a parameter that a listed configuration does not have


def canonical(config: Config) -> str:
    """The same text for equal configurations, whatever the order of their names."""
    return json.dumps(dict(config), sort_keys=True)


class Points:
    """Samples and moves in a space, within its rule."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.listed: dict[Point, Config] | None = None
        if space.listed is None:
            self.names = tuple(space.parameters)
            self.values: list[tuple[Any, ...]] = [tuple(v) for v in space.parameters.values()]
        else:
            self.names = tuple(dict.fromkeys(name for c in space.listed for name in c))
            distinct = [{c.get(name, _MISSING) for c in space.listed} for name in self.names]
            self.values = [tuple(sorted(v, key=_order)) for v in distinct]
        self._place = [{v: i for i, v in enumerate(values)} for values in self.values]
        self.sizes = tuple(len(v) for v in self.values)
        self._free = [axis for axis, size in enumerate(self.sizes) if size > 1]
        # along an axis of numbers, neighbours are similar; words have no order
        self.ordered = tuple(all(isinstance(x, int) for x in v) and len(v) > 2 for v in self.values)
        if space.listed is not None:
            self.listed = {self.point(c): c for c in space.listed}
            self._list = list(self.listed)
            self._table = np.array(self._list, np.int64).reshape(len(self._list), len(self.names))

    def point(self, config: Config) -> Point:
        """The point of a configuration. KeyError if it is not in the space."""
        names = set(self.names)
        if not set(config) <= names or (self.space.listed is None and set(config) != names):
            raise KeyError(f"{dict(config)} does not have the parameters {', '.join(self.names)}")
        point = tuple(place[config.get(name, _MISSING)] for name, place in zip(self.names, self._place, strict=True))
        if self.listed is not None and point not in self.listed:
            raise KeyError(f"{dict(config)} is not in the list")
        return point

    def config(self, point: Point) -> Config:
        if self.listed is not None:
            return self.listed[point]
        return {name: values[i] for name, values, i in zip(self.names, self.values, point, strict=True)}

    def valid(self, point: Point) -> bool:
        if self.listed is not None and point not in self.listed:
            return False
        return bool(self.space.allowed(self.config(point)))

    def random(self, rng: Random) -> Point | None:
        """A valid point, drawn uniformly; None when there seems to be none."""
        if self.listed is not None and not self.listed:
            return None
        for _ in range(_TRIES):
            if self.listed is not None:
                point = rng.choice(self._list)
            else:
                point = tuple([int(rng.random() * size) for size in self.sizes])
            if self.valid(point):
                return point
        return None

    def everything(self) -> Iterator[Point]:
        """Every valid point, in a fixed order."""
        points = iter(self.listed) if self.listed is not None else product(*[range(n) for n in self.sizes])
        return (tuple(p) for p in points if self.valid(tuple(p)))

    def moved(self, rng: Random, point: Point, hops: int, steps: int = 1) -> Point | None:
        """Change ``hops`` axes to any other value, then ``steps`` axes by one place; None if the result is not allowed."""
        if self.listed is not None and rng.random() < 0.5:
            return self._listed_near(rng, point, hops + steps)
        place = list(point)
        free = self._free
        for axis in rng.sample(free, min(hops, len(free))):
            place[axis] = (place[axis] + rng.randrange(1, self.sizes[axis])) % self.sizes[axis]
        for axis in rng.sample(free, min(steps, len(free))):
            if self.ordered[axis]:
                place[axis] = min(max(place[axis] + (1 if rng.random() < 0.5 else -1), 0), self.sizes[axis] - 1)
            else:
                place[axis] = rng.randrange(self.sizes[axis])
        moved = tuple(place)
        return moved if moved != point and self.valid(moved) else None

    def _listed_near(self, rng: Random, point: Point, reach: int) -> Point | None:
        """A listed point that differs in at most ``reach`` axes: a list has gaps that single moves cannot cross."""
        differ = (self._table != np.array(point)).sum(1)
        least = int(np.min(differ[differ > 0], initial=len(point)))
        near = np.flatnonzero((differ > 0) & (differ <= max(reach, least)))
        if not len(near):
            return None
        chosen = self._list[int(near[rng.randrange(len(near))])]
        return chosen if self.valid(chosen) else None

    def crossed(self, rng: Random, a: Point, b: Point, mutation: float) -> Point | None:
        """Take each axis from one of the two points, and give a few a new value."""
        child = tuple(
            [
                int(rng.random() * size) if rng.random() < mutation else (x if rng.random() < 0.5 else y)
                for x, y, size in zip(a, b, self.sizes, strict=True)
            ]
        )
        return child if self.valid(child) else None

    def best_by_score(self, rng: Random, draws: int, keep: int) -> list[Point]:
        """The best of some random points by the space's own estimate; empty if it has none."""
        score = self.space.score
        if score is None:
            return []
        drawn = dict.fromkeys(p for p in (self.random(rng) for _ in range(draws)) if p is not None)
        if self.listed is not None and len(self.listed) <= draws:
            drawn = dict.fromkeys(self.everything())
        return list(islice(sorted(drawn, key=lambda p: score(self.config(p))), keep))


def _order(value: Any) -> tuple[int, Any]:
    return (0, 0) if value is None else (1, value) if isinstance(value, int) else (2, str(value))
