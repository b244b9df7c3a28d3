"""All steps in one call: from the products of a program to a library that it can use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from .library import build
from .library.tokens import widen
from .readers import Log, read
from .search import check as check_strategy
from .search.selection import configure
from .search.session import RunSummary, run
from .validate.comparison import Comparison, compare
from .validate.pages import write as write_report
from .validate.results import Metrics
from .validate.results import write as write_results
from .workdir import Target

_FOR_CONFIGURING = 0.2  # largest part of the budget for measuring shares
_FOR_REPORT = 5.0, 0.1  # largest time for the report, in seconds and as part of the budget: drawing takes a while


@dataclass(frozen=True)
class Tuned:
    """The results of :func:`all_steps`, and their files."""

    configured: tuple[Target, ...]
    searched: RunSummary
    comparisons: tuple[Comparison, ...]
    metrics: Metrics
    report: Path
    library: Path


def all_steps(
    log: Log | str | os.PathLike[str],
    workdir: str | os.PathLike[str],
    *,
    backend: str = "auto",
    devices: Sequence[int] | None = None,
    budget: float = 1800.0,
    strategy: str = "auto",
    seed: int = 0,
    evaluations: int | None = None,
    keep_thr: float = 0.1,
    threshold: float = 1.03,
    progress: Callable[[object], None] | None = None,
    done: Callable[[Any], None] | None = None,
) -> Tuned:
    """Configure, search, compare, report, and build the library, within a budget.

    Parameters
    ----------
    log : Log, path or text
        The result of :func:`read`, or its argument.
    workdir : path
        Receives the results and the library, ``final``. A run that was stopped continues when it is called again.
    backend, devices, strategy, seed, evaluations
        As for :func:`run`.
    budget : float
        Seconds for everything in this call, the report included; earlier calls do not count. The product or candidate that
        is being measured at the end is finished.
    keep_thr : float
        Products below this percentage of the total time are dropped.
    threshold : float
        As for :func:`compare`.
    progress : callable, optional
        Called with the current step; ``str`` of it is one line.
    done : callable, optional
        Called with the result of each step: the configured products, the summary of the search, the metrics, the path of the
        report, the path of the library.

    Returns
    -------
    Tuned

    Examples
    --------
    >>> import tempfile
    >>> from lapwing.tune import all_steps
    >>> tuned = all_steps("64x8x256 f32 NN", tempfile.mkdtemp(), backend="cpu", evaluations=2, budget=20)
    >>> [c.name for c in tuned.comparisons], tuned.library.name
    (['SSS_NN_0'], 'final')
    """
    check_strategy(strategy)  # before minutes are spent
    announce = done or (lambda result: None)
    known = log if isinstance(log, Log) else read(log)
    begun = monotonic()
    ends = begun + budget - min(_FOR_REPORT[0], _FOR_REPORT[1] * budget)
    device = devices[0] if devices else 0
    shared: dict[str, Any] = {"backend": backend, "progress": progress}
    configured = configure(known, workdir, keep_thr=keep_thr, device=device, budget=_FOR_CONFIGURING * budget, **shared)
    announce(configured)
    left = max(ends - monotonic(), 1.0)
    each = (monotonic() - begun) / max(1, len(known.calls))
    searching = left - _for_comparing(left, len(configured), each)
    how: dict[str, Any] = {"devices": devices, "strategy": strategy, "seed": seed, "evaluations": evaluations}
    searched = run(workdir, budget=searching, **shared, **how)
    announce(searched)
    comparisons = compare(workdir, threshold=threshold, devices=devices, until=ends, progress=progress)
    metrics = write_results(workdir, comparisons)
    announce(metrics)
    library = build(workdir, comparisons)
    widen(library, device=device, until=ends, progress=progress)
    report = Path(write_report(workdir))
    announce(report)
    announce(library)
    return Tuned(tuple(configured), searched, comparisons, metrics, report, library)


def _for_comparing(left: float, problems: int, each: float) -> float:
    """Seconds to reserve for the comparison after the search: some for each product, but at most half of what is left.

    ``each`` is the time that it took to measure one product, which includes creating its operands.
    """
    return min(max(1.5 * problems, 4 * each * problems, 0.2 * left), 0.5 * left)
