"""Default against the best candidates, side by side: which of them are really faster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from time import monotonic
from typing import Any

from .backends import FROZEN, GPU, VENDOR, get
from .backends.base import Config, Refused
from .gemm import Gemm
from .judge import interval, preferred
from .search import canonical
from .workdir import Problem, Trial, Workdir, environment_hash, ranked
from .worker import Busy, Candidate, Worker

__all__ = ["Comparison", "compare"]

_TOP = 4  # candidates, beside the default and the best of the vendor
_CHOOSING, _JUDGING = 15, 31  # samples: to choose a winner, and, anew, to say how much faster it is
_TIMEOUT = 300.0
_SECONDS, _FEWEST = 10.0, 7  # about so long for one problem at most, but no fewer samples than that
_BUSY = 3.0  # the default may take so many times as long as when it was first measured, before that is held against a winner
_LATE, _WORSE = "no time was left to compare it", "the best failed when looked at closely"
_ROUNDS = 3  # of choosing another winner, where one fails with the probes of odd sizes
_START, _COMPILING = 30.0, 30.0  # seconds in which a process starts, and in which kernels are made for the probes of odd sizes
_TRIALS = 6.0  # trials that take about as long as a comparison, until some were made
_SAMPLE = 2.5e-3  # about what a sample of a short product takes


@dataclass(frozen=True)
class Comparison:
    """One problem. Where the default is the best it is the candidate, with a ratio of 1."""

    name: str
    gemm: Gemm
    count: int
    percent: float
    default_us: float
    vendor_us: float | None  # the vendor's best algorithm
    tuned_us: float
    low: float  # of default / tuned
    high: float
    ratio: float
    config: Config
    backend: str
    error: float  # the largest scaled error of the probes
    kept: bool
    reason: str
    validated: tuple[str, ...] = ()  # the probes it passed
    arithmetic: str = ""  # in what it was timed and validated, where that is not what the product says: "float32 arithmetic"


def compare(
    workdir: str | os.PathLike[str] | Workdir,
    *,
    threshold: float = 1.03,
    minimum_us: float = 0.3,
    devices: Sequence[int] | None = None,
    seed: int = 0,
    until: float = inf,
) -> tuple[Comparison, ...]:
    """Time the default, the vendor's best and the best few candidates of each problem in turns, and keep real winners.

    A winner is kept when its ratio is at least ``threshold``, the lower end of the ratio's interval is above 1, and a call
    saves at least ``minimum_us``. The samples that choose it are not those that say how much faster it is: the luckiest of
    many would look better than it is.

    Parameters
    ----------
    workdir : path or Workdir
        With the trials of :func:`lapwing.tune.run.run`.
    threshold : float
    minimum_us : float
        Microseconds.
    devices : sequence of int, optional
        The first that has trials is used; by default the one a problem was searched on.
    seed : int
        Of the operands and of the resampling.
    until : float
        When ``time.monotonic()`` says so it should end. The first problem, the one with the most time, is compared anyway; one
        that would not be done by then, by what the others took, is not begun.

    Returns
    -------
    tuple of Comparison
        One for each problem with a default that runs here.
    """
    folder = workdir if isinstance(workdir, Workdir) else Workdir(workdir)
    workers: dict[tuple[int, str], Worker] = {}
    found: list[Comparison] = []
    pace, foreign = _TRIALS, list[Trial]()
    try:
        problems = folder.configs()
        for place, problem in enumerate(problems):
            trials = _usable(folder.read_trials(problem.name), problem, devices)
            if not trials:
                foreign += folder.read_trials(problem.name)
                continue
            begun, trial = monotonic(), max(median(t.took for t in trials), 1e-3)
            share = (until - begun) / (len(problems) - place)
            hurry = pace * trial > share  # then only the best candidate, which takes about half as long
            trial *= 0.5 if hurry else 1.0
            if found and begun + pace * trial > until:
                found.append(_nothing(problem, _default(trials, problem), _LATE))
                continue
            seconds = max(0.2, min(_SECONDS, 0.5 * share))
            limits = _Limits(until, pace * trial, seconds, 1 if hurry else _TOP)
            try:
                found.append(_compared(problem, trials, workers, threshold, minimum_us, seed, limits))
            except Busy as busy:
                found.append(_nothing(problem, _default(trials, problem), str(busy)))
            took = monotonic() - begun
            if took < limits.longest:  # else something hung, and the next need not
                # the first also waits for a process to start
                pace = max(0.5 * pace, (0.5 if len(found) == 1 else 1.0) * took / trial)
    finally:
        for worker in workers.values():
            worker.close()
    if foreign and not found and (why := folder.elsewhere(foreign, _environments(foreign))):
        raise ValueError(
            f"compare: the trials in {folder.path} were made elsewhere: {why}\nhint: search again here, lapwing tune run"
        )
    return tuple(found)


def _environments(trials: Sequence[Trial]) -> dict[str, dict[str, str]]:
    found = {}
    for name, device in {t.backend: t.device for t in trials}.items():
        with contextlib.suppress(ImportError, ValueError, RuntimeError):
            if get(name).missing() is None:
                found[name] = get(name).environment(device)
    return found


@dataclass(frozen=True)
class _Limits:
    until: float
    expected: float  # seconds of the comparison
    seconds: float  # to fill with samples
    top: int  # candidates

    @property
    def late(self) -> bool:
        return monotonic() >= self.until

    @property
    def longest(self) -> float:
        """Seconds of a comparison in which nothing hangs."""
        return 20 * self.expected + 10.0 + _START + _COMPILING

    def timeout(self, before: float) -> float:
        """Seconds of one timing, after which it counts as hanging; ``before`` it some may be needed."""
        left = min(self.until - monotonic(), 20 * self.expected + 10.0 + before) if self.until < inf else _TIMEOUT
        return min(_TIMEOUT, max(left, self.expected, 2.0))


def _usable(trials: list[Trial], problem: Problem, devices: Sequence[int] | None) -> list[Trial]:
    """Of this machine as it is now, and of one device."""
    mine = [t for t in trials if t.gemm == problem.gemm.key and (devices is None or t.device in devices)]
    same: dict[tuple[str, int], str | None] = {}
    for key in {(t.backend, t.device) for t in mine}:
        try:
            same[key] = environment_hash(get(key[0]).environment(key[1])) if get(key[0]).missing() is None else None
        except (ImportError, ValueError):  # a backend that is not here
            same[key] = None
    mine = [t for t in mine if same[t.backend, t.device] == t.environment]
    return [t for t in mine if t.device == mine[-1].device]


def _compared(
    problem: Problem,
    trials: list[Trial],
    workers: dict[tuple[int, str], Worker],
    threshold: float,
    minimum_us: float,
    seed: int,
    limits: _Limits,
) -> Comparison:
    best, default = ranked(trials), _default(trials, problem)
    # untuned is untuned: what another backend calls its default is the same call
    best = [t for t in best if t.backend == default.backend or t.configuration != get(t.backend).default(problem.gemm)]
    vendor = next((_candidate(t) for t in best if t.backend in VENDOR and _candidate(t) != default), None)
    chosen = list({_key(c): c for c in (default, vendor, *map(_candidate, best[: limits.top])) if c is not None}.values())
    device = trials[-1].device
    family = "gpu" if default.backend in (*GPU, *FROZEN) else get(default.backend).name
    worker = workers.setdefault((device, family), Worker(device, family))
    worker.patience = limits.until if limits.until < inf else None
    known = {_key(_candidate(t)): t.time or 0.0 for t in best}

    def samples(candidates: list[Candidate], most: int) -> int:
        one = sum(max(_SAMPLE, known.get(_key(c), 0.0)) for c in candidates)
        return max(_FEWEST, min(most, int(limits.seconds / one)))

    def without(answer: Mapping[str, Any]) -> Comparison:
        why = _LATE if limits.late else f"the default does not run here: {answer['reason']}"
        return _nothing(problem, default, why)

    times = _timed(worker, chosen, problem.gemm, seed, samples(chosen, _CHOOSING), limits, "quick")
    if "runtimes" not in times[_key(default)]:
        return without(times[_key(default)])
    running, lost = {_key(c): c for c in chosen if "runtimes" in times[_key(c)]}, ""
    for _ in range(_ROUNDS):
        entries = [(c, median(times[k]["runtimes"]), times[k]["resources"]) for k, c in running.items()]
        winner = preferred(entries, default)
        final = [c for k, c in running.items() if c in (default, vendor, winner)]
        again = _timed(worker, final, problem.gemm, seed + 1, samples(final, _JUDGING), limits, "all")
        if "runtimes" not in again[_key(default)]:
            return without(again[_key(default)])
        base, tuned = again[_key(default)], again[_key(winner)]
        if "runtimes" in tuned or limits.late or tuned["refused"] == "timeout":
            break
        lost = tuned["reason"]
        running = {k: c for k, c in running.items() if "runtimes" in again.get(k, times[k])}
    if "runtimes" not in tuned:
        return _nothing(problem, default, _LATE if limits.late else f"{_WORSE}: {tuned['reason']}")
    arithmetic = getattr(get(winner.backend), "arithmetic", lambda gemm: "")(problem.gemm)
    found = interval(base["runtimes"], tuned["runtimes"], seed=int(problem.gemm.key[:8], 16) ^ seed)
    vendors = [median(t["runtimes"]) for c in final if c.backend in VENDOR and "runtimes" in (t := again[_key(c)])]
    result = Comparison(
        name=problem.name,
        gemm=problem.gemm,
        count=problem.count,
        percent=problem.percent,
        default_us=1e6 * median(base["runtimes"]),
        vendor_us=1e6 * min(vendors) if vendors else None,
        tuned_us=1e6 * median(tuned["runtimes"]),
        low=found.low,
        high=found.high,
        ratio=found.ratio,
        config=dict(winner.config),
        backend=winner.backend,
        error=max(tuned["errors"].values(), default=0.0),
        kept=False,
        reason="",
        validated=tuple(f"{probe}, {arithmetic}" if arithmetic else probe for probe in tuned["errors"]),
        arithmetic=arithmetic,
    )
    if winner == default or found.ratio < 1.0:
        reason = f"no faster when timed again ({found.ratio:.3f}x)"
        if winner == default:
            reason = f"{_WORSE}: {lost}" if lost else "the default is the fastest"
        error = max(base["errors"].values(), default=0.0)
        result = replace(result, config=dict(default.config), backend=default.backend, error=error, reason=reason)
        return replace(result, low=1.0, high=1.0, ratio=1.0, tuned_us=result.default_us)
    reason = _why_not(result, threshold, minimum_us, 1e6 * problem.seconds)
    return replace(result, kept=not reason, reason=reason or f"{found.ratio:.3f}x, at least {found.low:.3f}x")


def _default(trials: list[Trial], problem: Problem) -> Candidate:
    """What runs untuned: the vendor's, where there is one."""
    backends = sorted({t.backend for t in trials}, key=lambda n: (n not in VENDOR, [t.backend for t in trials].index(n)))
    return Candidate(backends[0], get(backends[0]).default(problem.gemm))


def _why_not(c: Comparison, threshold: float, minimum_us: float, first_us: float) -> str:
    if c.ratio < threshold:
        return f"{c.ratio:.3f}x is below {threshold:g}x"
    if c.low <= 1.0:
        return f"{c.ratio:.3f}x may be chance: the interval begins at {c.low:.3f}"
    if c.default_us - c.tuned_us < minimum_us:
        return f"it saves {c.default_us - c.tuned_us:.2f} us a call, less than {minimum_us:g}"
    if 0 < _BUSY * first_us < c.default_us and c.tuned_us > first_us:
        times = c.default_us / first_us
        return f"the default took {first_us:.1f} us at first and {times:.0f} times that now: is the machine busy?"
    return ""


def _nothing(problem: Problem, default: Candidate, reason: str) -> Comparison:
    us = 1e6 * problem.seconds
    return Comparison(
        problem.name, problem.gemm, problem.count, problem.percent, us, None, us, 1.0, 1.0, 1.0,
        dict(default.config), default.backend, inf, False, reason,
    )  # fmt: skip


def _timed(
    worker: Worker, candidates: list[Candidate], gemm: Gemm, seed: int, samples: int, limits: _Limits, checks: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """For each candidate its runtimes and errors, or the reason why there are none, also when it took the process with it.

    The first is the default.
    """
    keys = list(map(_key, candidates))
    try:
        worker.start(candidates[0].backend, gemm, seed, limits.timeout(_START))
    except Refused as refused:
        return {key: {"refused": refused.kind, "reason": str(refused)} for key in keys}
    try:
        answers = worker.time(candidates, gemm, seed, samples, limits.timeout(_COMPILING if checks == "all" else 0.0), checks)
        return dict(zip(keys, answers, strict=True))
    except Refused as refused:
        lost = {"refused": refused.kind, "reason": str(refused)}
        if len(candidates) == 1 or limits.late:
            return dict.fromkeys(keys, lost)
    # one of them crashed or hung: find those that live, then time them together
    alone = {_key(c): _timed(worker, [c], gemm, seed, 1, limits, checks)[_key(c)] for c in candidates}
    alive = [c for c in candidates if "runtimes" in alone[_key(c)]]
    if len(alive) == len(candidates):  # alone they run, but not together: one crashes at times, and it is not the default
        return dict.fromkeys(keys, lost) | {keys[0]: alone[keys[0]]}
    return alone | (_timed(worker, alive, gemm, seed, samples, limits, checks) if alive else {})


def _candidate(trial: Trial) -> Candidate:
    return Candidate(trial.backend, trial.configuration)


def _key(c: Candidate) -> tuple[str, str]:
    return c.backend, canonical(c.config)
