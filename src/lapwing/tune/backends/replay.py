"""A recorded space instead of a device: every candidate has its recorded time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..gemm import Gemm
from ..search.space import canonical
from ..workdir import Trial
from .base import Config, Kernel, Refused, Space


@dataclass(frozen=True)
class Recorded:
    """The trials of one product."""

    gemm: str
    trials: Mapping[str, Trial]  # by canonical configuration

    @cached_property
    def seconds(self) -> Mapping[str, float | None]:
        """By canonical configuration; None for one that failed."""
        return {config: trial.time for config, trial in self.trials.items()}

    @property
    def optimum(self) -> float:
        return min(s for s in self.seconds.values() if s is not None)

    def space(self) -> Space:
        return Space({}, listed=tuple(json.loads(text) for text in self.trials))


def read_space(path: str | Path) -> dict[str, Recorded]:
    """Read a file of trials, plain or gzip, by product. Other lines are skipped; a later timing replaces an earlier one."""
    path = Path(path)
    products: dict[str, dict[str, Trial]] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            try:
                trial = Trial.from_json(line)
            except (ValueError, TypeError):
                continue
            products.setdefault(trial.gemm, {})[canonical(trial.configuration)] = trial
    if not products:
        raise ValueError(f"tune: {path} holds no trials\nhint: name a trials file that lapwing tune run wrote")
    return {key: Recorded(key, trials) for key, trials in products.items()}


class Replay:
    """``get("replay:FILE")``. It takes no time, so that a search can be tested without the device."""

    precompiles = False

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = f"replay:{path}"

    @cached_property
    def recorded(self) -> dict[str, Recorded]:
        return read_space(self.path)

    def missing(self) -> str | None:
        return None if self.path.is_file() else f"the file {self.path} does not exist"

    def environment(self, device: int) -> dict[str, str]:
        return {"device": "replay", "file": self.path.name}

    def devices(self) -> list[int]:
        return [0]

    def supports(self, gemm: Gemm) -> str | None:
        return None if gemm.key in self.recorded else f"{gemm} is not in the recording {self.path.name}"

    def default(self, gemm: Gemm) -> Config:
        """The first recorded configuration: a run tries the default first."""
        trials = self.recorded[gemm.key].trials
        return next(iter(trials.values())).configuration

    def space(self, gemm: Gemm, device: int) -> Space:
        return self.recorded[gemm.key].space()

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        """There is nothing to compile."""

    def open(self, gemm: Gemm, device: int, seed: int) -> _Bench:
        return _Bench(self.recorded[gemm.key])

    def callable(self, gemm: Gemm, config: Config, device: int) -> Callable[..., Any]:
        raise Refused("runtime", "a recording has no kernels to run")


class _Bench:
    sets = 1

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def build(self, config: Config) -> Kernel:
        trial = self.recorded.trials.get(canonical(config))
        if trial is None:
            raise Refused("constraints", "it is not in the recording")
        if trial.time is None:
            raise Refused(trial.invalidity, trial.reason)
        return Kernel(config, lambda i: None, float(trial.times.get("compilation_time", 0.0)))

    def time(self, kernels: Sequence[Kernel], samples: int) -> list[list[float]]:
        times = []
        for kernel in kernels:
            trial = self.recorded.trials[canonical(kernel.config)]
            runtimes = trial.times.get("runtimes") or [trial.time]
            times.append([float(runtimes[i % len(runtimes)]) for i in range(samples)])
        return times

    def check(self, kernel: Kernel) -> Mapping[str, float]:
        return dict(self.recorded.trials[canonical(kernel.config)].errors)

    def close(self) -> None:
        """There is nothing to close."""
