"""Searches of other packages behind the same ask and tell: kernel_tuner and Optuna, where they are installed."""

from __future__ import annotations

from typing import Any

from ..backends.base import Space
from .core import Search
from .space import Point

__all__ = ["KernelTuner", "Optuna"]


class Optuna(Search):
    """Optuna's TPE over the places of each axis. What the rule forbids is told to it as pruned."""

    def __init__(self, space: Space, seed: int = 0, evaluations: int | None = None) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ImportError("tune: strategy optuna needs Optuna\nhint: pip install optuna") from error
        # no print for each trial; put back at the end, since it is a setting of the whole process
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
        elif value < float("inf"):  # a seed, or measured by an earlier run
            places = zip(self.points.names, self.points.sizes, point, strict=True)
            distributions = {n: self._optuna.distributions.IntDistribution(0, size - 1) for n, size, _ in places}
            params = dict(zip(self.points.names, point, strict=True))
            self._study.add_trial(self._optuna.trial.create_trial(params=params, distributions=distributions, value=value))


class KernelTuner(Search):
    """A strategy of kernel_tuner. It wants to call and be answered, so it runs in a thread that waits at each question."""

    def __init__(self, space: Space, seed: int = 0, evaluations: int | None = None, *, strategy: str) -> None:
        from .kernel_tuner import Dialogue

        super().__init__(space, seed, evaluations)
        self._dialogue = Dialogue(self.points, strategy, seed, evaluations or 10_000)

    @property
    def ready(self) -> bool:
        return bool(self._first) or self._dialogue.ready(self.told, self.asked)

    def propose(self) -> Point | None:
        return self._dialogue.question(self.told, self.asked)
