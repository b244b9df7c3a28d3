"""Search faster candidates for every problem of a folder, over devices, within a budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from . import search
from .backends import FROZEN, GPU, choose, get
from .hunt import Hunt, Step
from .pool import Pool
from .workdir import Problem, Workdir
from .worker import Candidate, Worker

__all__ = ["ProblemSummary", "RunSummary", "Step", "run"]

_EVALUATIONS = 200  # for each problem, where neither budget nor number is given
_SPENT = 0.05  # with so little of the budget left after an earlier run, it counts as spent
_LEAST = 0.02  # of the budget, for a problem however small its weight


@dataclass(frozen=True)
class ProblemSummary:
    """What is known of one problem after a run."""

    name: str
    evaluations: int  # of this run
    known: int  # from earlier runs
    invalid: int  # of all
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
    """Search every problem in ``workdir/configs``.

    What was tried is kept in ``workdir/trials`` and never tried again: a run that was stopped goes on when it is started
    again, also with a larger budget, and several processes may work on one folder. Each candidate is built, checked and
    timed in another process; one that crashes or hangs is a failed trial.

    Parameters
    ----------
    workdir : path or Workdir
    backend : str
        One or several with commas: "cublaslt,triton". "auto" takes every usable one for GPUs, else "cpu".
    devices : sequence of int, optional
        Where to run; all devices of the first backend by default. A problem runs on one device.
    budget : float, optional
        Seconds for the whole search, earlier runs of the same folder included. A problem gets its share by count * seconds.
    strategy : str
        See :func:`lapwing.tune.search.make`.
    seed : int
    evaluations : int, optional
        Candidates for each problem; without it the budget alone ends the search, and without both 200.
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
        For an unknown backend, device or strategy, and for a folder without problems.

    Examples
    --------
    >>> import tempfile
    >>> from lapwing.tune import Gemm
    >>> from lapwing.tune.run import run
    >>> from lapwing.tune.workdir import Problem, Workdir
    >>> folder = Workdir(tempfile.mkdtemp())
    >>> _ = folder.add_config(Problem("SSS_NN_0", Gemm(32, 8, 64, a_type="f32", b_type="f32", c_type="f32", d_type="f32")))
    >>> summary = run(folder, backend="cpu", evaluations=3)
    >>> summary.evaluations
    3
    """
    folder = workdir if isinstance(workdir, Workdir) else Workdir(workdir)
    search.check(strategy)
    names = choose(backend)
    problems = folder.configs()
    if not problems:
        raise ValueError(f"tune: there are no problems in {folder.path / 'configs'}\nhint: lapwing tune configure LOG first")
    _positive(budget=budget, evaluations=evaluations, timeout=timeout)
    if budget is None and evaluations is None:
        evaluations = _EVALUATIONS
    places = _devices(names[0], devices)
    session = _Session(folder, names, places, budget, evaluations)
    pool = Pool(names)
    options: dict[str, Any] = {"strategy": strategy, "seed": seed, "progress": progress, "timeout": timeout}
    hunts = {p.name: Hunt(folder, p, problems, names, pool, device=places[0], **options) for p in problems}
    try:
        session.work(problems, hunts)
    finally:
        pool.close()
    seconds = monotonic() - session.begun
    late = budget is not None and any(not h.finished for h in hunts.values())
    return RunSummary(tuple(_summary(h) for h in hunts.values()), seconds, "budget" if late else "done")


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"tune: {name} is {value}; it must be more than 0")


def _devices(backend: str, asked: Sequence[int] | None) -> list[int]:
    there = get(backend).devices()
    chosen = list(dict.fromkeys(there if asked is None else asked))
    if not chosen or not set(chosen) <= set(there):
        raise ValueError(f"tune: devices {chosen} of backend {backend}; here are {there}")
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


class _Session:
    """Which device does what, and until when. One thread for each device; each has its worker."""

    def __init__(
        self, folder: Workdir, names: tuple[str, ...], devices: list[int], budget: float | None, evaluations: int | None
    ) -> None:
        self.folder, self.names, self.devices, self.evaluations = folder, names, devices, evaluations
        self.begun = monotonic()
        self.budget = budget
        self.deadline: float | None = None
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._ends: dict[int, float] = {}  # by device, when its problem must end
        self._trouble: list[BaseException] = []

    def work(self, problems: Sequence[Problem], hunts: dict[str, Hunt]) -> None:
        if self.budget is not None:
            spent = sum(h.spent for h in hunts.values()) / len(self.devices)
            if self.budget - spent < _SPENT * self.budget:
                return
            self.deadline = self.begun + self.budget - spent
        self.waiting, self.elsewhere = list(problems), list[Problem]()
        self.hunts = hunts
        # cublaslt and triton share their devices, and so the lock
        family = "gpu" if get(self.names[0]).name in (*GPU, *FROZEN) else get(self.names[0]).name
        workers = [Worker(device, family) for device in self.devices]
        threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in workers]
        try:
            for thread in threads:
                thread.start()
            while any(t.is_alive() for t in threads):
                for thread in threads:
                    thread.join(0.05)
        finally:  # Ctrl-C arrives here; a trial under way is dropped and tried again by the next run
            self.stop.set()
            for worker in workers:
                worker.kill()
            for thread in threads:
                thread.join()
        if self._trouble:
            raise self._trouble[0]

    def _serve(self, worker: Worker) -> None:
        worker.patience = self.deadline
        try:
            while (problem := self._take()) is not None and not self.stop.is_set():
                self._one(problem, worker)
            while self.elsewhere and not self.stop.is_set():
                with self._lock:
                    problem = self.elsewhere.pop(0) if self.elsewhere else None
                if problem is not None:
                    self._one(problem, worker, wait=True)
        except BaseException as error:
            self._trouble.append(error)
            self.stop.set()
        finally:
            worker.close()

    def _take(self) -> Problem | None:
        with self._lock:
            return self.waiting.pop(0) if self.waiting else None

    def _one(self, problem: Problem, worker: Worker, wait: bool = False) -> None:
        """Search one problem, if no other process does; that one is looked at again at the end."""
        hunt = self.hunts[problem.name]
        before = len(self.folder.read_trials(problem.name))
        with self.folder.lock_problem(problem.name, self._patience() if wait else 0.0) as mine:
            if not mine:
                if not wait:
                    with self._lock:
                        self.elsewhere.append(problem)
                return
            if wait and len(self.folder.read_trials(problem.name)) > before and self.deadline is not None:
                hunt.load(worker.device)
                return  # the other process has given it its share
            with self._lock:
                end = self._ends[worker.device] = self._end(problem)
            try:
                hunt.search(worker, self.evaluations, end, self.deadline, self.stop)
            finally:
                self._ends.pop(worker.device, None)

    def _patience(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    def _end(self, problem: Problem) -> float:
        """When the problem must end: its share, by weight, of the device time that is left and not given away."""
        if self.deadline is None:
            return float("inf")
        now = monotonic()
        left = max(0.0, self.deadline - now)
        free = left * len(self.devices) - sum(max(0.0, end - now) for end in self._ends.values())
        weights = [p.weight for p in (problem, *self.waiting)]
        total = sum(weights)
        share = problem.weight / total if total > 0 else 1.0 / len(weights)
        least = _LEAST * (self.budget or 0.0)
        return now + min(left, max(free * share, least))
