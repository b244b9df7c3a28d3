"""Time the best candidates against the default in turns, and keep those that are really faster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from time import monotonic
from typing import Any

from ..backends import VENDOR, family, get
from ..backends.base import Config, Refused
from ..gemm import Gemm
from ..search import canonical
from ..search.worker import Busy, Candidate, Worker
from ..workdir import Target, Trial, Workdir, environment_hash, ranked
from .timing import gain, preferred

_TOP = 4  # candidates that are timed, besides the default and the vendor's best
_CHOOSING = 15  # samples to choose a winner
_JUDGING, _ROUNDS = 11, 3  # fresh samples in each round to measure its gain; every second round has the opposite order
_TIMEOUT = 300.0
_SECONDS, _FEWEST = 10.0, 7  # seconds for the samples of one product, and the fewest samples to take whatever the time
_LATE, _WORSE = "no time was left to compare it", "the best candidate failed the full check"
_UNTRIED = "it was not searched: no time was left"
_CHOICES = 3  # winners that are tried in turn when the full check rejects one
_START, _COMPILING = 30.0, 30.0  # seconds to start a process, and to compile kernels for the probes of odd sizes
_TRIALS = 6.0  # a comparison takes about as long as this many trials; corrected after each one
_SAMPLE = 2.5e-3  # seconds of one sample of a short product


@dataclass(frozen=True)
class Comparison:
    """One product. Where the default is the best, the default is the candidate, with a ratio of 1."""

    name: str
    gemm: Gemm
    count: int
    percent: float
    default_us: float
    vendor_us: float | None  # the vendor's best algorithm
    tuned_us: float
    low: float  # interval of default / tuned
    high: float
    ratio: float
    config: Config
    backend: str
    error: float  # the largest scaled error of the probes
    kept: bool
    reason: str
    validated: tuple[str, ...] = ()  # names of the probes it passed
    arithmetic: str = ""  # arithmetic of the measurement, if it differs from the product's types: "float32 arithmetic"
    compared: bool = True  # False: it was not timed against the default, and ``reason`` says why
    doubtful: bool = False  # the ratio cannot be believed (noise, or beyond what the device can do), and ``reason`` says why


def compare(
    workdir: str | os.PathLike[str] | Workdir,
    *,
    threshold: float = 1.03,
    minimum_us: float = 0.3,
    devices: Sequence[int] | None = None,
    seed: int = 0,
    until: float = inf,
    progress: Callable[[object], None] | None = None,
) -> tuple[Comparison, ...]:
    """Time the default, the vendor's best and the best few candidates of each product in turns, and keep the real winners.

    A winner is kept when its ratio is at least ``threshold``, the lower end of the ratio's interval is above 1, a call saves at
    least ``minimum_us``, and the ratio can be believed: all rounds agree, the times are steady, and the device could be that
    fast. The gain is measured with other samples than those that chose the winner, since the luckiest of many looks better than
    it is.

    Parameters
    ----------
    workdir : path or Workdir
        Holds the trials of :func:`lapwing.tune.run`.
    threshold : float
    minimum_us : float
        Microseconds.
    devices : sequence of int, optional
        The first one with trials is used; by default the device that a product was searched on.
    seed : int
        Seed of the operands and of the resampling.
    until : float
        The value of ``time.monotonic()`` at which to end. One product is compared in any case; another one is started only if
        it is likely to end in time.
    progress : callable, optional
        Called with a line of text for each product.

    Returns
    -------
    tuple of Comparison
        One for each product to tune, also for those that were not searched or not compared. Empty when nothing was searched.
    """
    folder = workdir if isinstance(workdir, Workdir) else Workdir(workdir)
    workers: dict[tuple[int, str], Worker] = {}
    comparisons: list[Comparison] = []
    pace, foreign, started = _TRIALS, list[Trial](), 0
    try:
        targets = folder.configs()
        for place, target in enumerate(targets):
            if progress is not None:
                progress(f"{place + 1}/{len(targets)} {target.name}: comparing")
            every = folder.read_trials(target.name)
            trials = _usable(every, target, devices)
            if not trials:
                foreign += every
                comparisons.append(_nothing(target, Candidate("", {}), "it was searched elsewhere" if every else _UNTRIED))
                continue
            begun, trial = monotonic(), max(median(t.took for t in trials), 1e-3)
            share = (until - begun) / (len(targets) - place)
            hurry = pace * trial > share  # then only the best candidate, which takes about half as long
            trial *= 0.5 if hurry else 1.0
            if started and begun + pace * trial > until:
                comparisons.append(_nothing(target, _default(trials, target), _LATE))
                continue
            seconds = max(0.2, min(_SECONDS, 0.5 * share))
            limits = _Limits(until, pace * trial, seconds, 1 if hurry else _TOP, first=not started)
            started += 1
            try:
                comparisons.append(_compared(target, trials, workers, threshold, minimum_us, seed, limits))
            except Busy as busy:
                comparisons.append(_nothing(target, _default(trials, target), str(busy)))
            took = monotonic() - begun
            if took < limits.longest:  # else a candidate hung, which says nothing about the next product
                # the first one also waits for a process to start
                pace = max(0.5 * pace, (0.5 if started == 1 else 1.0) * took / trial)
    finally:
        for worker in workers.values():
            worker.close()
    if started:
        return tuple(comparisons)
    places = {t.backend: t.device for t in foreign}
    here = {name: now for name, device in places.items() if (now := _environment(name, device)) is not None}
    if foreign and (reason := folder.elsewhere(foreign, here)):
        raise ValueError(
            f"compare: the trials in {folder.path} were made elsewhere: {reason}"
            "\nhint: search again on this machine with lapwing tune run"
        )
    return ()


def _environment(backend: str, device: int) -> dict[str, str] | None:
    """The environment of a backend; None when it cannot be used here."""
    with contextlib.suppress(ImportError, ValueError, RuntimeError):
        return get(backend).environment(device) if get(backend).missing() is None else None
    return None


@dataclass(frozen=True)
class _Limits:
    until: float
    expected: float  # seconds of the comparison
    seconds: float  # to fill with samples
    top: int  # number of candidates
    first: bool = False  # the first product is compared whatever the time, so its process gets the time to start

    @property
    def late(self) -> bool:
        return monotonic() >= self.until

    @property
    def longest(self) -> float:
        """Seconds of a comparison in which nothing hangs."""
        return 20 * self.expected + 10.0 + _START + _COMPILING

    def timeout(self, before: float) -> float:
        """Seconds after which one timing counts as hanging; ``before`` are seconds that it may need to get ready."""
        left = min(self.until - monotonic(), 20 * self.expected + 10.0 + before) if self.until < inf else _TIMEOUT
        return min(_TIMEOUT, max(left, self.expected, 2.0))


def _usable(trials: list[Trial], target: Target, devices: Sequence[int] | None) -> list[Trial]:
    """Trials of this machine as it is now, and of one device."""
    trials = [t for t in trials if t.gemm == target.gemm.key and (devices is None or t.device in devices)]
    places = {(t.backend, t.device) for t in trials}
    here = {place: environment_hash(now) for place in places if (now := _environment(*place)) is not None}
    trials = [t for t in trials if here.get((t.backend, t.device)) == t.environment]
    return [t for t in trials if t.device == trials[-1].device]


def _compared(
    target: Target,
    trials: list[Trial],
    workers: dict[tuple[int, str], Worker],
    threshold: float,
    minimum_us: float,
    seed: int,
    limits: _Limits,
) -> Comparison:
    gemm, device = target.gemm, trials[-1].device
    best, default = ranked(trials), _default(trials, target)
    # the default of another backend is the same untuned call, so it is no candidate
    best = [t for t in best if t.backend == default.backend or t.configuration != get(t.backend).default(gemm)]
    vendor = next((_candidate(t) for t in best if t.backend in VENDOR and _candidate(t) != default), None)
    chosen = list({_key(c): c for c in (default, vendor, *map(_candidate, best[: limits.top])) if c is not None}.values())
    name = family(get(default.backend))
    worker = workers.setdefault((device, name), Worker(device, name))
    worker.patience = limits.until if limits.until < inf else None
    known = {_key(_candidate(t)): t.time or 0.0 for t in best}

    def samples(candidates: list[Candidate], most: int) -> int:
        one = sum(max(_SAMPLE, known.get(_key(c), 0.0)) for c in candidates)
        return max(_FEWEST, min(most, int(limits.seconds / one)))

    def without(answer: Mapping[str, Any]) -> Comparison:
        return _nothing(target, default, _LATE if limits.late else f"the default does not run here: {answer['reason']}")

    times = _timed(worker, chosen, gemm, seed, samples(chosen, _CHOOSING), limits, "quick")
    if "runtimes" not in times[_key(default)]:
        return without(times[_key(default)])
    running, rejected = {_key(c): c for c in chosen if "runtimes" in times[_key(c)]}, ""
    for _ in range(_CHOICES):
        entries = [(c, median(times[k]["runtimes"]), times[k]["resources"]) for k, c in running.items()]
        winner = preferred(entries, default)
        final = [c for k, c in running.items() if c in (default, vendor, winner)]
        first = _timed(worker, final, gemm, seed + 1, samples(final, _JUDGING), limits, "all")
        if "runtimes" not in first[_key(default)]:
            return without(first[_key(default)])
        base, tuned = first[_key(default)], first[_key(winner)]
        if "runtimes" in tuned or limits.late or tuned["refused"] == "timeout":
            break
        rejected = tuned["reason"]
        running = {k: c for k, c in running.items() if "runtimes" in first.get(k, times[k])}
    if "runtimes" not in tuned:
        return _nothing(target, default, _LATE if limits.late else f"{_WORSE}: {tuned['reason']}")
    rounds = [first]
    for _ in range(_ROUNDS - 1 if winner != default else 0):
        if limits.late:
            break
        final = final[::-1]
        again = _timed(worker, final, gemm, seed + 1, samples(final, _JUDGING), limits, "none")
        if all("runtimes" in again[_key(c)] for c in final):
            rounds.append(again)

    def runtimes(c: Candidate) -> list[list[float]]:
        return [r[_key(c)]["runtimes"] for r in rounds]

    def microseconds(c: Candidate) -> float:
        return 1e6 * median(x for samples in runtimes(c) for x in samples)

    # only CPU kernels depend on the processors; other programs on them do not disturb a GPU
    others = max(r[_key(default)].get("others", 0.0) for r in rounds) if name == "cpu" else 0.0
    floor = getattr(get(winner.backend), "floor", lambda gemm, device: 0.0)(gemm, device)
    judged = gain(
        runtimes(default),
        runtimes(winner),
        floor=floor,
        first=target.seconds,
        others=others,
        seed=int(gemm.key[:8], 16) ^ seed,
    )
    interval = judged.interval
    vendors = [microseconds(c) for c in final if c.backend in VENDOR and "runtimes" in first[_key(c)]]
    arithmetic = getattr(get(winner.backend), "arithmetic", lambda gemm: "")(gemm)
    result = Comparison(
        name=target.name,
        gemm=gemm,
        count=target.count,
        percent=target.percent,
        default_us=microseconds(default),
        vendor_us=min(vendors) if vendors else None,
        tuned_us=microseconds(winner),
        low=interval.low,
        high=interval.high,
        ratio=interval.ratio,
        config=dict(winner.config),
        backend=winner.backend,
        error=max(tuned["errors"].values(), default=0.0),
        kept=False,
        reason="",
        validated=tuple(f"{probe}, {arithmetic}" if arithmetic else probe for probe in tuned["errors"]),
        arithmetic=arithmetic,
    )
    if winner == default or interval.ratio < 1.0:
        reason = f"no faster when timed again ({interval.ratio:.3f}x)"
        if winner == default:
            reason = f"{_WORSE}: {rejected}" if rejected else "the default is the fastest"
        error = max(base["errors"].values(), default=0.0)
        result = replace(result, config=dict(default.config), backend=default.backend, error=error, reason=reason)
        return replace(result, low=1.0, high=1.0, ratio=1.0, tuned_us=result.default_us)
    if judged.doubt and interval.ratio >= threshold:
        return replace(result, doubtful=True, reason=f"~{interval.ratio:.3g}x: {judged.doubt}")
    reason = _why_not(result, threshold, minimum_us)
    return replace(result, kept=not reason, reason=reason or f"{interval.ratio:.3f}x, at least {interval.low:.3f}x")


def _default(trials: list[Trial], target: Target) -> Candidate:
    """The candidate that runs untuned: the vendor's library, if it was tried."""
    backends = sorted({t.backend for t in trials}, key=lambda n: (n not in VENDOR, [t.backend for t in trials].index(n)))
    return Candidate(backends[0], get(backends[0]).default(target.gemm))


def _why_not(c: Comparison, threshold: float, minimum_us: float) -> str:
    if c.ratio < threshold:
        return f"{c.ratio:.3f}x is below {threshold:g}x"
    if c.low <= 1.0:
        return f"{c.ratio:.3f}x may be chance: the interval begins at {c.low:.3f}"
    if c.default_us - c.tuned_us < minimum_us:
        return f"it saves {c.default_us - c.tuned_us:.2f} us a call, less than {minimum_us:g}"
    return ""


def _nothing(target: Target, default: Candidate, reason: str) -> Comparison:
    us = 1e6 * target.seconds
    return Comparison(
        target.name, target.gemm, target.count, target.percent, us, None, us, 1.0, 1.0, 1.0,
        dict(default.config), default.backend, inf, False, reason, compared=False,
    )  # fmt: skip


def _timed(
    worker: Worker, candidates: list[Candidate], gemm: Gemm, seed: int, samples: int, limits: _Limits, checks: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """For each candidate its runtimes and errors, or the reason why there are none, even if it crashed the process.

    If the candidates run alone but not together, the first one is the only one that is trusted.
    """
    keys = list(map(_key, candidates))
    try:
        patience = limits.timeout(_START)
        worker.start(candidates[0].backend, gemm, seed, max(patience, _START) if limits.first else patience)
    except Refused as refused:
        return {key: {"refused": refused.kind, "reason": str(refused)} for key in keys}
    try:
        answers = worker.time(candidates, gemm, seed, samples, limits.timeout(_COMPILING if checks == "all" else 0.0), checks)
        return dict(zip(keys, answers, strict=True))
    except Refused as refused:
        failure = {"refused": refused.kind, "reason": str(refused)}
        if len(candidates) == 1 or limits.late:
            return dict.fromkeys(keys, failure)
    # one of them crashed or hung: find those that run alone, then time these together
    alone = {_key(c): _timed(worker, [c], gemm, seed, 1, limits, checks)[_key(c)] for c in candidates}
    alive = [c for c in candidates if "runtimes" in alone[_key(c)]]
    if len(alive) == len(candidates):  # one of them crashes now and then, and it is not the default
        return dict.fromkeys(keys, failure) | {keys[0]: alone[keys[0]]}
    return alone | (_timed(worker, alive, gemm, seed, samples, limits, checks) if alive else {})


def _candidate(trial: Trial) -> Candidate:
    return Candidate(trial.backend, trial.configuration)


def _key(c: Candidate) -> tuple[str, str]:
    return c.backend, canonical(c.config)
