"""Ask and tell: the part that all searches share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from math import inf, isfinite, log
from random import Random

from ..backends.base import Config, Space
from .space import Point, Points

_TRIES = 60  # repeated proposals, after which a random candidate is taken
_DRAWS, _KEPT = 400, 12  # random points ranked by the space's own estimate, and how many of the best are tried first


class Search(ABC):
    """Proposes new candidates. Several may be asked for before the first result is reported.

    ``tell`` also accepts candidates that were never asked for: the winner of a similar product, or one from an earlier run.
    """

    uses_score = True

    def __init__(self, space: Space, seed: int = 0, evaluations: int | None = None) -> None:
        self.points = Points(space)
        self.rng = Random(seed)
        self.planned = evaluations
        self.results: dict[Point, float] = {}  # log of the seconds; inf for a candidate that failed
        self.asked: set[Point] = set()
        self.best: tuple[Config, float] | None = None
        self._first: deque[Point] = deque()
        for config in space.seeds:
            self.try_first(config)
        if self.uses_score:
            self._first += self.points.best_by_score(self.rng, _DRAWS, _KEPT)
            if space.listed is not None and space.score is None:  # the vendor lists the best first
                self._first += [self.points.point(c) for c in space.listed[: _KEPT // 2]]
        self._rest: deque[Point] | None = None

    @property
    def ready(self) -> bool:
        """Whether ``ask`` should be called now. False while the strategy waits for results."""
        return True

    @property
    def evaluations(self) -> int:
        return len(self.results)

    def try_first(self, config: Config) -> bool:
        """Add a candidate to those that are tried before the search begins; False if it is not in the space."""
        try:
            point = self.points.point(config)
        except KeyError:
            return False
        if not self.points.valid(point):
            return False
        self._first.append(point)
        return True

    def ask(self) -> Config | None:
        """A new candidate; None when none is left."""
        point = self._next()
        if point is None:
            return None
        self.asked.add(point)
        return self.points.config(point)

    def tell(self, config: Config, seconds: float | None) -> None:
        """Report the seconds of a candidate; None or inf when it failed."""
        try:
            point = self.points.point(config)
        except KeyError:  # measured in an earlier version of the space
            return
        failed = seconds is None or not isfinite(seconds) or seconds <= 0
        value = inf if seconds is None or failed else log(seconds)
        self.asked.add(point)
        self.results[point] = value
        if seconds is not None and not failed and (self.best is None or seconds < self.best[1]):
            self.best = (self.points.config(point), float(seconds))
        self.learn(point, value)

    @abstractmethod
    def propose(self) -> Point | None:
        """A promising point, which may have been tried before."""

    def learn(self, point: Point, value: float) -> None:  # noqa: B027
        """Called with each result."""

    def elite(self, count: int) -> list[Point]:
        """The best points so far."""
        good = [(value, point) for point, value in self.results.items() if value < inf]
        return [point for _, point in sorted(good)[:count]]

    def _next(self) -> Point | None:
        while self._first:
            if (point := self._first.popleft()) not in self.asked:
                return point
        for _ in range(_TRIES):
            proposed = self.propose()
            if proposed is not None and proposed not in self.asked:
                return proposed
        return self._any()

    def _any(self) -> Point | None:
        """A random new point; once these are hard to draw, the next of all remaining points."""
        if self._rest is None:
            for _ in range(_TRIES):
                if (point := self.points.random(self.rng)) is None:
                    break
                if point not in self.asked:
                    return point
            everything = list(self.points.everything())
            self.rng.shuffle(everything)
            self._rest = deque(everything)
        while self._rest:
            if (point := self._rest.popleft()) not in self.asked:
                return point
        return None
