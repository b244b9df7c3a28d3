"""kernel_tuner's strategies, asked step by step.

They call a runner and go on with its answer, so one runs in a thread of its own that stops at each question. kernel_tuner has
no public way to give a Python function; this uses its runner, search space and options (checked with 1.5).
"""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from typing import Any

import numpy as np

from .space import Point, Points

__all__ = ["Dialogue"]


class Dialogue:
    """``question`` gives what the strategy wants to know next, ``answer`` tells it."""

    def __init__(self, points: Points, strategy: str, seed: int, evaluations: int) -> None:
        try:
            from kernel_tuner.interface import strategy_map
        except ImportError as error:
            raise ImportError(
                f"tune: strategy kernel_tuner:{strategy} needs kernel_tuner\nhint: pip install kernel_tuner"
            ) from error
        if strategy not in strategy_map:
            raise ValueError(f"tune: kernel_tuner has no strategy {strategy!r}\nhint: it has {', '.join(sorted(strategy_map))}")
        self._points, self._name, self._seed, self._most = points, strategy, seed, evaluations
        self._questions: queue.SimpleQueue[list[Point] | BaseException | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
        self._open: list[Point] = []  # what the strategy waits for, which may be a whole population
        self._unasked: deque[Point] = deque()
        self._thread: threading.Thread | None = None
        self._over = False
        self._random: Any = None  # the strategy's own state of the generators that it shares with the program

    def ready(self, told: dict[Point, float], asked: set[Point]) -> bool:
        """Whether there is a question that does not have to wait for an answer. Looks for one."""
        self._look(told, asked)
        return self._over or bool(self._unasked)

    def question(self, told: dict[Point, float], asked: set[Point]) -> Point | None:
        """The next point; None at the end, or while answers are missing."""
        self._look(told, asked)
        return self._unasked.popleft() if self._unasked else None

    def _look(self, told: dict[Point, float], asked_before: set[Point]) -> None:
        while not self._over:
            while self._unasked and self._unasked[0] in asked_before:  # it is known, or will be
                self._unasked.popleft()
            if self._unasked or not all(point in told for point in self._open):
                return
            asked = self._go_on([told[point] for point in self._open])
            if isinstance(asked, BaseException):
                self._over = True
                raise ValueError(f"tune: kernel_tuner's {self._name} failed: {asked}") from asked
            self._over = asked is None
            self._open = asked or []
            self._unasked = deque(self._open)

    def _go_on(self, answers: list[float]) -> list[Point] | BaseException | None:
        """The strategy runs only in here, while the program waits: its random numbers are kept apart from the program's."""
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
        except BaseException as error:  # StopCriterionReached and whatever else ends it
            self._questions.put(None if type(error).__name__ == "StopCriterionReached" else error)

    def _tune(self) -> None:
        from kernel_tuner.interface import Options, strategy_map
        from kernel_tuner.runners.runner import Runner
        from kernel_tuner.searchspace import Searchspace
        from kernel_tuner.util import TuningBudget

        points, measure = self._points, self._measure
        names = [f"p{i}" for i in range(len(points.names))]
        places = {name: list(range(size)) for name, size in zip(names, points.sizes, strict=True)}
        seen: dict[Point, float] = {}

        class Asking(Runner):  # type: ignore[misc]
            def __init__(self) -> None:
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

        # matched by argument name, so the rule gets them all
        rule = eval(f"lambda {', '.join(names)}: valid(({', '.join(names)},))", {"valid": points.valid})
        # it draws from the generators of the process
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)
        space = Searchspace(places, [rule], max_threads=1 << 30)
        limit = Options() if self._name == "brute_force" else Options(max_fevals=self._most)  # which takes none
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
    return float(min(value, 700.0)) + 1000.0  # logarithms may be negative, which it does not expect; inf is a failure
