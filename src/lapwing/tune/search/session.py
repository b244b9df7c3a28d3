"""Search faster candidates for every product of a folder, on several devices, within a budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from .. import search
from ..backends import choose, family, get
from ..workdir import Target, Workdir
from .hunt import Hunt, Step
from .pool import Pool
from .worker import Candidate, Worker

_EVALUATIONS = 200  # candidates for each product, when neither a budget nor a number is given
_EQUAL = 0.25  # part of the budget that is shared equally, so that light products are tried too; the rest goes by weight


@dataclass(frozen=True)
class ProblemSummary:
    """What is known about one product after a run."""

    name: str
    evaluations: int  # candidates that this run tried
    known: int  # candidates that earlier runs tried
    invalid: int  # candidates that failed, in all runs
    default_seconds: float | None
    best_seconds: float | None
    best: Candidate | None
    notes: tuple[str, ...] = ()

    @property
    def uplift(self) -> float | None:
        return None if not self.default_seconds or not self.best_seconds else self.default_seconds / self.best_seconds


@dataclass(frozen=True)
class RunSummary:
    problems: tuple[ProblemSummary, ...]
    seconds: float
    reason: str  # why it ended: "done" or "budget"

    @property
    def evaluations(self) -> int:
        return sum(p.evaluations for p in self.problems)


def run(
    workdir: str | os.PathLike[str] | Workdir,
    *,
    backend: str = "auto",
    devices: Sequence[int] | None = None,
    budget: float | None = None,
    strategy: str = "auto",
    seed: int = 0,
    evaluations: int | None = None,
    progress: Callable[[Step], None] | None = None,
    timeout: float = 60.0,
) -> RunSummary:
    """Search for faster candidates for every product in ``workdir/configs``.

    Every trial is kept in ``workdir/trials`` and is never repeated: a run that was stopped continues when it is started again,
    and several processes may work on one folder. Each candidate is built, checked and timed in another process; one that
    crashes or hangs counts as a failed trial.

    Parameters
    ----------
    workdir : path or Workdir
    backend : str
        One name, or several separated by commas: "cublaslt,triton". "auto" takes every usable GPU backend, else "cpu".
    devices : sequence of int, optional
        Where to run; all devices of the first backend by default. A product is searched on one device.
    budget : float, optional
        Seconds for this run; what earlier runs in the same folder took does not count. A quarter is shared equally by all
        products, the rest by the time they take in the program (count * seconds).
    strategy : str
        See :func:`lapwing.tune.search.make`.
    seed : int
    evaluations : int, optional
        Candidates for each product, earlier runs included. Without it the budget ends the search; without both it is 200.
    progress : callable, optional
        Called with a :class:`Step` after each candidate.
    timeout : float
        Seconds after which a candidate counts as hanging.

    Returns
    -------
    RunSummary

    Raises
    ------
    ValueError
        For an unknown backend, device or strategy, and for a folder without configurations.

    Examples
    --------
    >>> import tempfile
    >>> from lapwing.tune import Gemm
    >>> from lapwing.tune import run
    >>> from lapwing.tune.workdir import Target, Workdir
    >>> folder = Workdir(tempfile.mkdtemp())
    >>> _ = folder.add_config(Target("SSS_NN_0", Gemm(32, 8, 64, a_type="f32", b_type="f32", c_type="f32", d_type="f32")))
    >>> summary = run(folder, backend="cpu", evaluations=3)
    >>> summary.evaluations
    3
    """
    folder = workdir if isinstance(workdir, Workdir) else Workdir(workdir)
    search.check(strategy)
    names = choose(backend)
    problems = folder.configs()
    if not problems:
        raise ValueError(
            f"tune: there are no products to tune in {folder.path / 'configs'}\nhint: run lapwing tune configure first"
        )
    _positive(budget=budget, evaluations=evaluations, timeout=timeout)
    if budget is None and evaluations is None:
        evaluations = _EVALUATIONS
    places = _devices(names[0], devices)
    session = _Session(folder, names, places, budget, evaluations)
    options: dict[str, Any] = {"strategy": strategy, "seed": seed, "progress": progress, "timeout": timeout}
    with closing(Pool(names)) as pool:
        hunts = {p.name: Hunt(folder, p, problems, names, pool, device=places[0], **options) for p in problems}
        session.work(problems, hunts)
    seconds = monotonic() - session.begun
    late = budget is not None and any(not h.finished for h in hunts.values())
    return RunSummary(tuple(_summary(h) for h in hunts.values()), seconds, "budget" if late else "done")


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"tune: {name} is {value}; it must be greater than 0")


def _devices(backend: str, asked: Sequence[int] | None) -> list[int]:
    present = get(backend).devices()
    chosen = list(dict.fromkeys(present if asked is None else asked))
    if not chosen or not set(chosen) <= set(present):
        raise ValueError(f"tune: backend {backend} does not have all of the devices {chosen}\nhint: it has {present}")
    return chosen


def _summary(hunt: Hunt) -> ProblemSummary:
    best = hunt.best
    return ProblemSummary(
        hunt.problem.name,
        hunt.evaluations,
        hunt.known,
        hunt.invalid,
        hunt.default_seconds,
        best.time if best else None,
        Candidate(best.backend, best.configuration) if best else None,
        tuple(hunt.notes),
    )


@dataclass
class _Session:
    """Hands products to devices, each with a deadline. Every device has one thread and one worker."""

    folder: Workdir
    names: tuple[str, ...]
    devices: list[int]
    budget: float | None
    evaluations: int | None
    begun: float = field(default_factory=monotonic)
    deadline: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    waiting: list[Target] = field(default_factory=list)
    elsewhere: list[Target] = field(default_factory=list)  # products that another process is searching
    _lock: Any = field(default_factory=threading.Lock)
    _ends: dict[int, float] = field(default_factory=dict)  # by device, when its current product must end
    _errors: list[BaseException] = field(default_factory=list)

    def work(self, problems: Sequence[Target], hunts: dict[str, Hunt]) -> None:
        if self.budget is not None:
            self.deadline = self.begun + self.budget
        self.waiting, self.hunts = list(problems), hunts
        workers = [Worker(device, family(get(self.names[0]))) for device in self.devices]
        threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in workers]
        try:
            for thread in threads:
                thread.start()
            while any(t.is_alive() for t in threads):
                for thread in threads:
                    thread.join(0.05)
        finally:  # Ctrl-C arrives here; the current trial is dropped, and the next run repeats it
            self.stop.set()
            for worker in workers:
                worker.kill()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _serve(self, worker: Worker) -> None:
        worker.patience = self.deadline
        try:
            for products in (self.waiting, self.elsewhere):
                while not self.stop.is_set() and (problem := self._take(products)) is not None:
                    self._one(problem, worker, wait=products is self.elsewhere)
        except BaseException as error:
            self._errors.append(error)
            self.stop.set()
        finally:
            worker.close()

    def _take(self, products: list[Target]) -> Target | None:
        with self._lock:
            return products.pop(0) if products else None

    def _one(self, problem: Target, worker: Worker, wait: bool = False) -> None:
        """Search one product. If another process is searching it, put it aside and look at it again at the end."""
        hunt = self.hunts[problem.name]
        before = len(self.folder.read_trials(problem.name))
        patience = None if self.deadline is None else max(0.0, self.deadline - monotonic())
        with self.folder.lock_problem(problem.name, patience if wait else 0.0) as locked:
            if not locked:
                if not wait:
                    with self._lock:
                        self.elsewhere.append(problem)
                return
            if wait and len(self.folder.read_trials(problem.name)) > before and self.deadline is not None:
                hunt.load(worker.device)
                return  # the other process has searched it meanwhile
            with self._lock:
                end = self._ends[worker.device] = self._end(problem)
            try:
                hunt.search(worker, self.evaluations, end, self.deadline, self.stop)
            finally:
                self._ends.pop(worker.device, None)

    def _end(self, target: Target) -> float:
        """When the product must end: its share of the device time that is left and not promised to others."""
        if self.deadline is None:
            return float("inf")
        now = monotonic()
        left = max(0.0, self.deadline - now)
        free = left * len(self.devices) - sum(max(0.0, end - now) for end in self._ends.values())
        weights = [t.weight for t in (target, *self.waiting)]
        equal = 1.0 / len(weights)
        by_weight = target.weight / sum(weights) if sum(weights) > 0 else equal
        return now + min(left, free * (_EQUAL * equal + (1 - _EQUAL) * by_weight))
