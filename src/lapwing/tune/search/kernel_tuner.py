"""kernel_tuner's strategies, asked step by step.

They call a runner and go on with its answer, so one runs in a thread of its own that stops at each question. kernel_tuner has
no public way to give a Python function; this uses its runner, search space and options (checked with 1.5).
"""

from __future__ import annotations

import queue
import threading
from typing import Any

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
        self._questions: queue.SimpleQueue[Point | BaseException | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._open: Point | None = None
        self._thread: threading.Thread | None = None
        self._over = False

    def question(self, told: dict[Point, float]) -> Point | None:
        """The next point; None at the end, or while the last one has no answer yet."""
        if self._over or (self._open is not None and self._open not in told):
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._search, daemon=True, name="lapwing-kernel-tuner")
            self._thread.start()
        while True:
            if self._open is not None:
                self._answers.put(told[self._open])
            asked = self._questions.get()
            if isinstance(asked, BaseException):
                self._over = True
                raise RuntimeError(f"kernel_tuner's {self._name} failed: {asked}") from asked
            if asked is None:
                self._over = True
                return None
            self._open = asked
            if asked not in told:
                return asked

    def _measure(self, point: Point) -> float:
        self._questions.put(point)
        return self._answers.get()

    def _search(self) -> None:
        try:
            self._tune()
            self._questions.put(None)
        except BaseException as error:  # StopCriterionReached and whatever else ends it
            self._questions.put(None if type(error).__name__ == "StopCriterionReached" else error)

    def _tune(self) -> None:
        import random

        import numpy as np
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
                for config in map(tuple, configs):
                    if config not in seen:
                        seen[config] = measure(tuple(int(i) for i in config))
                        options.budget.add_evaluations(1)
                return [dict(zip(names, c, strict=True), time=_time(seen[tuple(c)])) for c in configs]

        # matched by argument name, so the rule gets them all
        rule = eval(f"lambda {', '.join(names)}: valid(({', '.join(names)},))", {"valid": points.valid})
        # it draws from the generators of the process
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)
        space = Searchspace(places, [rule], max_threads=1 << 30)
        options = Options(
            strategy_options=Options(max_fevals=self._most), objective=["time"], objective_higher_is_better=[False],
            verbose=False, tune_params=places, budget=TuningBudget(None, self._most), cache={}, restrictions=None,
            max_fevals=self._most,
        )  # fmt: skip
        strategy_map[self._name].tune(space, Asking(), options)


def _time(value: float) -> float:
    return float(min(value, 700.0)) + 1000.0  # logarithms may be negative, which it does not expect; inf is a failure
