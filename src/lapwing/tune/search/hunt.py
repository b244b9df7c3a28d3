"""Search one product: the known results, the next candidate, and the time of each one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import InitVar, dataclass, field
from math import inf
from statistics import median
from time import monotonic

from .. import search
from ..backends import get
from ..backends.base import Config, Refused
from ..workdir import Target, Trial, Workdir, ranked
from . import canonical
from .pool import Pool
from .worker import Busy, Candidate, Worker

_SAMPLES = 5  # when a candidate is tried for the first time
_CONFIRMED = (8, 4)  # the 8 best are timed again in turns with twice the samples, then the 4 best with four times as many
_RESERVE = 0.15  # part of the time of a product that is kept for that
_NEIGHBOURS = 3
_OPENING = 180.0  # seconds: the first time imports a framework, and large random operands take long
_HOPELESS = 3.0  # a candidate this many times slower than the best gets only one sample
_SLOW = 20.0  # a candidate may take this many times as long as the first one, usually the default, before it counts as hanging
_progress_lock = threading.Lock()


@dataclass(frozen=True)
class Step:
    """What a progress callback receives after each candidate."""

    name: str
    device: int
    backend: str
    evaluations: int  # candidates of this product, earlier runs included
    trial: Trial
    best_seconds: float | None
    default_seconds: float | None
    left: float | None  # seconds until the budget ends

    def __str__(self) -> str:
        best = "-" if self.best_seconds is None else f"{self.best_seconds * 1e6:.2f} us"
        base = (
            "" if not (self.best_seconds and self.default_seconds) else f" (~{self.default_seconds / self.best_seconds:.3f}x)"
        )
        return f"{self.name} device {self.device} {self.backend}: {self.evaluations} tried, best {best}{base}"


@dataclass
class Hunt:
    """One product. ``search`` may be called again; it continues from the trials on disk."""

    folder: Workdir
    problem: Target
    problems: Sequence[Target]
    names: tuple[str, ...]
    pool: Pool
    strategy: str
    seed: int
    progress: Callable[[Step], None] | None
    timeout: float
    device: InitVar[int]
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evaluations: int = 0
    known: int = 0
    finished: bool = False
    _first_took: float = 0.0

    def __post_init__(self, device: int) -> None:
        self.gemm = self.problem.gemm
        self.load(device)

    def load(self, device: int) -> None:
        """Read the trials that earlier runs made in this environment."""
        here = {n: get(n).environment(device) for n in self.names}
        self._environments = {n: self.folder.add_environment(n, environment) for n, environment in here.items()}
        trials = [t for t in self.folder.read_trials(self.problem.name) if t.gemm == self.gemm.key]
        self.trials = [t for t in trials if t.environment == self._environments.get(t.backend)]
        self.known = len(self._screened) - self.evaluations
        others = [t for t in trials if t.backend in here and t.environment != self._environments[t.backend]]
        if others and (why := self.folder.elsewhere(others, here)):
            self._say(f"{len(others)} trials were made in another environment and are ignored: {why}")

    @property
    def _screened(self) -> list[Trial]:
        return [t for t in self.trials if t.stage == "screen"]

    @property
    def invalid(self) -> int:
        return sum(t.time is None for t in self._screened)

    @property
    def best(self) -> Trial | None:
        return next(iter(ranked(self.trials)), None)

    @property
    def default_seconds(self) -> float | None:
        for name in self.names:
            default = canonical(get(name).default(self.gemm))
            for t in ranked(self.trials):
                if t.backend == name and canonical(t.configuration) == default:
                    return t.time
        return None

    def search(
        self, worker: Worker, evaluations: int | None, end: float, deadline: float | None, stop: threading.Event
    ) -> None:
        """Try candidates until ``evaluations`` are known or ``end`` comes, then time the best ones in turns."""
        self.load(worker.device)
        self.worker, self.stop, self.deadline = worker, stop, deadline
        begun = monotonic()
        screen_end = end - _RESERVE * (end - begun) if end < inf else inf
        able = [n for n in self.names if self._able(n)]
        if deadline is not None and begun >= deadline and not self._screened:
            self._say("no time was left for it")
        exhausted = []
        for place, name in enumerate(able):
            behind = len(able) - place
            left = None if evaluations is None else evaluations - len(self._screened)
            most = None if left is None else -(-left // behind)
            until = screen_end if screen_end == inf else monotonic() + max(0.0, screen_end - monotonic()) / behind
            exhausted.append(self._explore(name, most, until))
        if self.stop.is_set():
            return
        confirmed = self._confirm(end)
        enough = evaluations is not None and len(self._screened) >= evaluations
        self.finished = (enough or all(exhausted)) and confirmed

    def _able(self, name: str) -> bool:
        reason = get(name).supports(self.gemm)
        if reason is None and (note := getattr(get(name), "note", lambda gemm: "")(self.gemm)):
            self._say(note)
        if reason is not None:
            self._say(f"{name}: {reason}")
        return reason is None

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _explore(self, name: str, most: int | None, until: float) -> bool:
        """Try candidates of one backend; returns whether none is left. The default is the first candidate."""
        if most is not None and most <= 0:
            return False
        try:
            space = get(name).space(self.gemm, self.worker.device)
        except Refused as refused:
            self._say(f"{name}: {refused}")
            return True
        hunt = search.make(self.strategy, space, self.seed ^ int(self.gemm.key[:8], 16), evaluations=most)
        known = [t for t in self._screened if t.backend == name]
        for trial in known:
            hunt.tell(trial.configuration, trial.time)
        for config in self._winners_nearby(name):
            hunt.try_first(config)
        done = {canonical(t.configuration) for t in known}
        default = get(name).default(self.gemm)
        count = 0
        first = [] if canonical(default) in done else [default]

        def source(waiting: bool) -> Config | None:
            """None at the end; also while others are compiled, if the search needs their results first."""
            if first:
                return first.pop()
            return hunt.ask() if hunt.ready or not waiting else None

        place = self.worker.device
        for config, ready in self.pool.stream(name, self.gemm, source, place, self.timeout, until, self.stop.is_set):
            if self.stop.is_set() or (most is not None and count >= most) or self._late(until, count):
                return False
            if canonical(config) in done:  # the default, proposed again
                continue
            done.add(canonical(config))
            tried = self._try(name, config, ready)
            if tried is None:
                return False
            count += 1
            hunt.tell(config, tried.time)
        return True

    def _late(self, until: float, count: int) -> bool:
        """Whether another candidate would end too late. The first candidate is tried as long as any time is left."""
        now = monotonic()
        if not self._screened:
            return self.deadline is not None and now >= self.deadline
        # the first candidate also creates the operands and the reference, so its time says little about the next
        usual = median(t.took for t in self._screened[-9:]) if count > 2 else 0.0
        return now + usual > until

    def _try(self, name: str, config: Config, compiled: Future[None] | None) -> Trial | None:
        """Try one candidate and record it; None if it has no result for a reason that is not its own."""
        begun = monotonic()
        answer: dict = {}
        kind, reason = "correct", ""
        limit = max(self.timeout, _SLOW * self._first_took)
        if self.deadline is not None:
            limit = min(limit, max(1.0, self.deadline - begun))
        try:
            if compiled is not None:
                compiled.result()
            if not self._opened(name):
                return None
            opened = monotonic()
            hopeless = _HOPELESS * self.best.time if self.best is not None and self.best.time else None
            answer = self.worker.try_one(config, _SAMPLES, limit, hopeless)
            self._first_took = self._first_took or monotonic() - opened
        except Busy as busy:
            self._say(str(busy))
            return None
        except Refused as refused:
            if self.stop.is_set() or (refused.kind == "timeout" and limit < self.timeout):
                return None
            kind, reason = refused.kind, str(refused)
        trial = self._trial(name, config, answer, kind, reason, "screen", monotonic() - begun)
        self.evaluations += 1
        self._report(trial)
        return trial

    def _opened(self, name: str) -> bool:
        """Create the operands. On failure try once more: the previous candidate may have left the device in a bad state."""
        for again in (False, True):
            left = inf if self.deadline is None else max(1.0, self.deadline - monotonic())
            try:
                self.worker.open(name, self.gemm, self.seed, min(_OPENING, left))
                return True
            except Refused as refused:
                if self.stop.is_set() or again or left < _OPENING:
                    self._say(f"{name}: its operands could not be created: {refused}")
                    return False
                self.worker.close()
        return False

    def _trial(self, name: str, config: Config, answer: dict, kind: str, reason: str, stage: str, took: float) -> Trial:
        trial = Trial(
            backend=name,
            device=self.worker.device,
            gemm=self.gemm.key,
            configuration=dict(config),
            time=answer.get("time"),
            invalidity=kind,
            reason=reason,
            environment=self._environments[name],
            times={k: answer[k] for k in ("compilation_time", "runtimes", "validation") if k in answer},
            stage=stage,
            took=took,
            resources=answer.get("resources", {}),
            errors=answer.get("errors", {}),
        )
        self.folder.add_trial(self.problem.name, trial)
        self.trials.append(trial)
        return trial

    def _report(self, trial: Trial) -> None:
        if self.progress is None:
            return
        best = self.best
        left = None if self.deadline is None else max(0.0, self.deadline - monotonic())
        seconds = None if best is None else best.time
        number = len(self._screened)
        step = Step(self.problem.name, self.worker.device, trial.backend, number, trial, seconds, self.default_seconds, left)
        with _progress_lock:
            self.progress(step)

    def _confirm(self, end: float) -> bool:
        """Time the best candidates again in turns, with more samples each time; return whether that was completed."""
        samples = _SAMPLES
        for keep in _CONFIRMED:
            samples *= 2
            top = ranked(self.trials)[:keep]
            if len(top) < 2 or all(t.stage == "confirm" and len(t.times.get("runtimes", ())) >= samples for t in top):
                continue
            begun = monotonic()
            each = sum(t.took for t in self._screened[-9:]) / len(self._screened[-9:])
            if begun + each * len(top) * samples / (2 * _SAMPLES) > end:
                return False
            limit = self.timeout * len(top) if self.deadline is None else max(1.0, self.deadline - begun)
            try:
                chosen = [Candidate(t.backend, t.configuration) for t in top]
                answers = self.worker.time(chosen, self.gemm, self.seed, samples, limit, "none")
            except (Busy, Refused) as trouble:
                if not self.stop.is_set():
                    self._say(f"the best candidates could not be timed in turns: {trouble}")
                return False
            took = (monotonic() - begun) / len(top)
            for old, answer in zip(top, answers, strict=True):
                refused = answer.get("refused", "correct")
                checked = answer | {"errors": old.errors}  # from the first time it was tried
                self._trial(old.backend, old.configuration, checked, refused, answer.get("reason", ""), "confirm", took)
        return True

    def _winners_nearby(self, name: str) -> list[Config]:
        """The best candidates of similar products: same types and inner size, one more side in common; the nearest first."""

        def distance(other: Target) -> float:
            a, b = self.gemm, other.gemm
            return max(a.m, b.m) / max(1, min(a.m, b.m)) * max(a.n, b.n) / max(1, min(a.n, b.n))

        near = [
            p
            for p in self.problems
            if p.name != self.problem.name
            and (p.gemm.kind, p.gemm.k) == (self.gemm.kind, self.gemm.k)
            and (p.gemm.m == self.gemm.m or p.gemm.n == self.gemm.n)
        ]
        configs = []
        for other in sorted(near, key=distance)[:_NEIGHBOURS]:
            trials = [t for t in self.folder.read_trials(other.name) if t.backend == name]
            trials = [t for t in trials if t.environment == self._environments[name]]
            configs += [t.configuration for t in ranked(trials)[:1]]
        return configs
