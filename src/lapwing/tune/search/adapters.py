"""Searches of other packages, with the same ask and tell: kernel_tuner and Optuna, if they are installed.

kernel_tuner has no public way to tune a Python function; this uses its runner, search space and options (checked with 1.5).
"""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from typing import Any

import numpy as np

from ..backends.base import Space
from .core import Search
from .space import Point


class Optuna(Search):
    """Optuna's TPE over the places of each axis. Points that the rule forbids are reported as pruned."""

    def __init__(self, space: Space, seed: int = 0, evaluations: int | None = None) -> None:
        import optuna

        # no output for each trial; restored below, since the level is a setting of the whole process
        self._optuna, level = optuna, optuna.logging.get_verbosity()
        self._trials: dict[Point, Any] = {}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        finally:
            optuna.logging.set_verbosity(level)
        super().__init__(space, seed, evaluations)

    def propose(self) -> Point | None:
        trial = self._study.ask()
        sizes = zip(self.points.names, self.points.sizes, strict=True)
        point: Point = tuple(trial.suggest_int(name, 0, size - 1) for name, size in sizes)
        if point in self.asked or not self.points.valid(point):
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
            return None
        self._trials[point] = trial
        return point

    def learn(self, point: Point, value: float) -> None:
        states = self._optuna.trial.TrialState
        trial = self._trials.pop(point, None)
        if trial is not None and value < float("inf"):
            self._study.tell(trial, value)
        elif trial is not None:
            self._study.tell(trial, state=states.FAIL)
        elif value < float("inf"):  # a seed, or from an earlier run
            places = zip(self.points.names, self.points.sizes, point, strict=True)
            distributions = {n: self._optuna.distributions.IntDistribution(0, size - 1) for n, size, _ in places}
            params = dict(zip(self.points.names, point, strict=True))
            self._study.add_trial(self._optuna.trial.create_trial(params=params, distributions=distributions, value=value))


class KernelTuner(Search):
    """A strategy of kernel_tuner. It calls a function and waits for its result, so it runs in a thread of its own."""

    def __init__(self, space: Space, seed: int = 0, evaluations: int | None = None, *, strategy: str) -> None:
        from kernel_tuner.interface import strategy_map

        if strategy not in strategy_map:
            raise ValueError(f"tune: kernel_tuner has no strategy {strategy!r}\nhint: it has {', '.join(sorted(strategy_map))}")
        super().__init__(space, seed, evaluations)
        self._name, self._seed, self._most = strategy, seed, evaluations or 10_000
        self._questions: queue.SimpleQueue[list[Point] | BaseException | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
        self._open: list[Point] = []  # points whose results the strategy waits for; may be a whole population
        self._unasked: deque[Point] = deque()
        self._thread: threading.Thread | None = None
        self._over = False
        self._random: Any = None  # state of the strategy's random generators, which it shares with the program

    @property
    def ready(self) -> bool:
        if not self._first:
            self._look()
        return bool(self._first) or self._over or bool(self._unasked)

    def propose(self) -> Point | None:
        """The next point that the strategy wants to measure; None at its end, or while results are missing."""
        self._look()
        return self._unasked.popleft() if self._unasked else None

    def _look(self) -> None:
        """Let the strategy run until it asks for a new point or waits for results."""
        while not self._over:
            while self._unasked and self._unasked[0] in self.asked:  # its result is known, or will be
                self._unasked.popleft()
            if self._unasked or not all(point in self.results for point in self._open):
                return
            asked = self._go_on([self.results[point] for point in self._open])
            if isinstance(asked, BaseException):
                self._over = True
                raise ValueError(f"tune: kernel_tuner's {self._name} failed: {asked}") from asked
            self._over = asked is None
            self._open = asked or []
            self._unasked = deque(self._open)

    def _go_on(self, answers: list[float]) -> list[Point] | BaseException | None:
        """Let the strategy run while the program waits, with random generators of its own."""
        before = _generators()
        if self._random is not None:
            _set_generators(self._random)
        try:
            if self._thread is None:
                self._thread = threading.Thread(target=self._search, daemon=True, name="lapwing-kernel-tuner")
                self._thread.start()
            else:
                self._answers.put(answers)
            return self._questions.get()
        finally:
            self._random = _generators()
            _set_generators(before)

    def _measure(self, points: list[Point]) -> list[float]:
        self._questions.put(points)
        return self._answers.get()

    def _search(self) -> None:
        try:
            self._tune()
            self._questions.put(None)
        except BaseException as error:  # StopCriterionReached, or any error
            self._questions.put(None if type(error).__name__ == "StopCriterionReached" else error)

    def _tune(self) -> None:
        from kernel_tuner.interface import Options, strategy_map
        from kernel_tuner.runners.runner import Runner
        from kernel_tuner.searchspace import Searchspace
        from kernel_tuner.util import TuningBudget

        points, measure = self.points, self._measure
        names = [f"p{i}" for i in range(len(points.names))]
        places = {name: list(range(size)) for name, size in zip(names, points.sizes, strict=True)}
        seen: dict[Point, float] = {}

        class Asking(Runner):  # type: ignore[misc]
            def __init__(self) -> None:  # abstract in some releases
                super().__init__()

            def get_device_info(self) -> Any:
                return type("Device", (), {"max_threads": 1 << 30, "name": "lapwing"})()

            def get_environment(self, options: Any) -> dict[str, str]:
                return {}

            def run(self, configs: Any, options: Any) -> list[dict[str, Any]]:
                new = [c for c in dict.fromkeys(map(tuple, configs)) if c not in seen]
                if new:
                    answers = measure([tuple(int(i) for i in c) for c in new])
                    seen.update(zip(new, answers, strict=True))
                    options.budget.add_evaluations(len(new))
                return [dict(zip(names, c, strict=True), time=_time(seen[tuple(c)])) for c in configs]

        # kernel_tuner matches arguments by name, so the rule takes them all
        rule = eval(f"lambda {', '.join(names)}: valid(({', '.join(names)},))", {"valid": points.valid})
        # it uses the random generators of the process
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)
        space = Searchspace(places, [rule], max_threads=1 << 30)
        limit = Options() if self._name == "brute_force" else Options(max_fevals=self._most)  # brute_force takes no limit
        options = Options(
            strategy_options=limit, objective=["time"], objective_higher_is_better=[False],
            verbose=False, tune_params=places, budget=TuningBudget(None, self._most), cache={}, restrictions=None,
            max_fevals=self._most,
        )  # fmt: skip
        strategy_map[self._name].tune(space, Asking(), options)


def _generators() -> Any:
    return random.getstate(), np.random.get_state()


def _set_generators(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


def _time(value: float) -> float:
    return float(min(value, 700.0)) + 1000.0  # logarithms may be negative, which kernel_tuner does not expect; inf is a failure
