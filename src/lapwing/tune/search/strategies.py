"""Our strategies. They compare logarithms of times, so that 10 % counts the same for every product."""

from __future__ import annotations

from math import erf, exp, inf, pi, sqrt
from random import Random as PythonRandom

import numpy as np

from ..backends.processors import blas_threads
from .core import Search
from .space import Point


class Random(Search):
    uses_score = False

    def propose(self) -> Point | None:
        return self.points.random(self.rng)


class Exhaustive(Search):
    """Tries everything: by the space's own estimate, or in the listed order, since a vendor lists the best first."""

    uses_score = False

    def propose(self) -> Point | None:
        if self._rest is None:
            self._rest = type(self._first)(self._in_order())
        return self._any()

    def _in_order(self) -> list[Point]:
        score = self.points.space.score
        everything = list(self.points.everything())
        return everything if score is None else sorted(everything, key=lambda p: score(self.points.config(p)))


class Genetic(Search):
    """A genetic search with one child at a time, whose parents won a tournament among the best so far."""

    population = 24

    def propose(self) -> Point | None:
        parents = self.elite(self.population)
        if len(parents) < 4:
            return self.points.random(self.rng)
        if self.rng.random() < 0.25:  # a child of one parent: a small step from a good point
            return self.points.moved(self.rng, _winner(self.rng, parents), self.rng.randrange(2))
        return self.points.crossed(
            self.rng, _winner(self.rng, parents), _winner(self.rng, parents), 1.0 / len(self.points.names)
        )


def _winner(rng: PythonRandom, ordered: list[Point]) -> Point:
    """The winner of a tournament between two."""
    return ordered[min(rng.randrange(len(ordered)), rng.randrange(len(ordered)))]


class Anneal(Search):
    """Moves from a current point, and accepts worse ones with falling probability. When stuck, it returns to a good one."""

    hot, cold, usual = 0.15, 0.01, 100

    def __init__(self, *args: object, **options: object) -> None:
        self.current: tuple[Point, float] | None = None
        self.stuck = 0
        super().__init__(*args, **options)  # type: ignore[arg-type]

    @property
    def progress(self) -> float:
        return min(1.0, self.evaluations / (self.planned or self.usual))

    def propose(self) -> Point | None:
        if self.current is None:
            return self.points.random(self.rng)
        if self.stuck > 12:
            best = self.elite(4)
            point = self.rng.choice(best)
            self.current, self.stuck = (point, self.results[point]), 0
        hops = sum(self.rng.random() < 0.6 * (1.0 - self.progress) for _ in range(3))  # early jumps are large
        return self.points.moved(self.rng, self.current[0], hops, 1 + int(self.rng.random() < 0.3))

    def learn(self, point: Point, value: float) -> None:
        temperature = self.hot * (self.cold / self.hot) ** self.progress
        if value < inf and (
            self.current is None or value <= self.current[1] or self.rng.random() < exp((self.current[1] - value) / temperature)
        ):
            self.current, self.stuck = (point, value), 0
        else:
            self.stuck += 1


class Model(Search):
    """Moves and crossovers propose many points; a Gaussian process fitted to the times so far picks the most promising.

    Half of its covariance is a product over the axes, half a sum, since most parameters of a kernel act independently. The
    length scale of both is chosen by likelihood.
    """

    lengths = (0.35, 0.7, 1.4, 2.8)
    noise = 1e-3
    rounds = 16  # rounds of proposals for one candidate
    refit = 8  # results after which the length scale is chosen again
    most = 400  # points that are fitted: the best and the latest

    def __init__(self, *args: object, **options: object) -> None:
        self._length, self._chosen_at = self.lengths[1], 0
        self._covariances = 0.0, np.zeros((0, 0), np.intp), np.zeros((0, 0))  # length scale, points and matrix of the last fit
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def propose(self) -> Point | None:
        good = self.elite(16)
        if len(good) < 4:
            return self.points.random(self.rng)
        pool = [p for p in dict.fromkeys(self._pool(good)) if p not in self.asked]
        if not pool:
            return None
        with blas_threads(1):  # more threads do not help with a small matrix, and would disturb the timing
            mean, deviation, best = self._predict(pool)
        return pool[int(np.argmax(_improvement(mean, deviation, best)))]

    def _pool(self, good: list[Point]) -> list[Point]:
        proposed: list[Point | None] = []
        for _ in range(self.rounds):
            a, b = _winner(self.rng, good), _winner(self.rng, good)
            proposed.append(self.points.moved(self.rng, a, 0, 1))
            proposed.append(self.points.moved(self.rng, a, self.rng.randrange(3), 1))
            proposed.append(self.points.crossed(self.rng, a, b, 0.1))
        proposed += [self.points.random(self.rng) for _ in range(self.rounds // 3)]
        return [p for p in proposed if p is not None]

    def _predict(self, pool: list[Point]) -> tuple[np.ndarray, np.ndarray, float]:
        points = list(self.results)
        if len(points) > self.most:
            points = list(dict.fromkeys([*self.elite(self.most // 2), *points[-self.most // 2 :]]))
        values = np.array([self.results[p] for p in points])
        finite = values[values < inf]
        # a failed candidate counts as slow; far outliers would spoil the fit among the good ones
        y = np.minimum(values, min(finite.max(), finite.min() + 2.0))
        y = (y - y.mean()) / max(y.std(), 1e-6)
        known, new = np.array(points, np.intp), np.array(pool, np.intp)
        if self.evaluations >= self._chosen_at + self.refit or not self._chosen_at:
            self._length = max(self.lengths, key=lambda length: self._likelihood(known, y, length))
            self._chosen_at = self.evaluations
        inverse = np.linalg.inv(self._grown(known) + self.noise * np.eye(len(points)))
        cross = self._covariance(known, new, self._length)
        variance = 1.0 - (cross * (inverse @ cross)).sum(0)
        return cross.T @ (inverse @ y), np.sqrt(np.maximum(variance, 1e-9)), float(y.min())

    def _grown(self, points: np.ndarray) -> np.ndarray:
        """The covariance of all points; only the rows of new ones are computed."""
        length, before, covariance = self._covariances
        old = len(before)
        if length != self._length or len(points) < old or not np.array_equal(points[:old], before):
            old, covariance = 0, np.zeros((0, 0))
        rows = self._covariance(points[old:], points, self._length)
        covariance = np.block([[covariance, rows[:, :old].T], [rows]])
        self._covariances = self._length, points, covariance
        return covariance

    def _likelihood(self, points: np.ndarray, y: np.ndarray, length: float) -> float:
        covariance = self._covariance(points, points, length) + self.noise * np.eye(len(y))
        return float(-0.5 * y @ np.linalg.solve(covariance, y) - 0.5 * np.linalg.slogdet(covariance)[1])

    def _covariance(self, a: np.ndarray, b: np.ndarray, length: float) -> np.ndarray:
        """The covariance of points. An axis has few values, so its exponentials come from a table, which is faster."""
        distance, alone, axes = np.zeros((len(a), len(b))), np.zeros((len(a), len(b))), 0
        for axis, size in enumerate(self.points.sizes):
            steps = np.abs(a[:, axis, None] - b[None, :, axis])
            if size > 1 and self.points.ordered[axis]:
                distance += steps / (size - 1)
                alone += np.exp(np.arange(size) / (-length * (size - 1)))[steps]
                axes += 1
            elif size > 1:  # n words are n axes, of which two differ by 0.5
                differ = steps > 0
                distance += differ
                alone += size - 2 * (1 - exp(-0.5 / length)) * differ
                axes += size
        if not axes:
            return np.ones((len(a), len(b)))
        return np.asarray(0.5 * np.exp(-distance / (length * sqrt(axes))) + 0.5 * alone / axes)


def _improvement(mean: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement over the best."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z * z) / sqrt(2 * pi)
    below = 0.5 * (1.0 + np.array([erf(x / sqrt(2)) for x in z]))
    return np.asarray((best - mean) * below + deviation * density)
