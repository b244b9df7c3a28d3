"""Options that ``lapwing tune`` parses, and what it prints."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.environment import counted
from .progress import MINUTE, Line, bar
from .usage import UsageError

if TYPE_CHECKING:
    from ..tune.readers import Log

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHOWN = 10  # bad lines


def parse_budget(text: str) -> float:
    """ "30m", "90s", "1h30m", "45": seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip().lower())
    if not parts or "".join(n + unit for n, unit in parts) != text.strip().lower() or sum(unit == "" for _, unit in parts) > 1:
        raise UsageError(f"--budget {text!r} is not a time\nhint: for example 30m, 90s or 1h30m")
    seconds = sum(float(n) * _UNITS[unit] for n, unit in parts)
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--budget {text!r} is not a positive time\nhint: for example 30m, 90s or 1h30m")
    return seconds


def parse_devices(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text.replace(" ", "")):
        raise UsageError(f"--devices {text!r} is not a list of devices\nhint: for example --devices 0,1")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def print_problems(log: Log, everything: bool = False) -> None:
    for problem in log.problems[: None if everything else _SHOWN]:
        say(f"{problem}" + (f": {problem.text[:60]!r}" if problem.text else ""))
    if len(log.problems) > _SHOWN and not everything:
        say(f"... and {len(log.problems) - _SHOWN} more lines that were not understood")


def print_configured(chosen: Iterable[Any], log: Log, workdir: Path) -> None:
    from ..tune.search.coverage import read_coverage

    chosen = list(chosen)
    for config in chosen:
        print(f"{config.name:12} {config.percent:6.2f} %  {config.seconds * 1e6:10.1f} us x {config.count:<8} {config.gemm}")
    dropped = len(log.calls) - len(chosen)
    print(f"{counted(len(chosen), 'product')} to tune, {dropped} dropped")
    if missing := str(read_coverage(workdir) or ""):
        print(missing)
    print_path("summary", workdir / "problems.csv")
    print_path("configurations", workdir / "configs")


def print_searched(summary: Any, share: bool = False) -> None:
    """``share``: the budget of the search was the part that other steps left."""
    doubtful = False
    for problem in summary.problems:
        if not problem.evaluations + problem.known:
            best = "not tried"
        elif not problem.uplift or problem.uplift < 1.0005:
            best = "nothing faster"
        else:
            best, doubtful = f"~{problem.uplift:.3g}x, {problem.best_seconds * 1e6:.2f} us", True
        before = f" (and {problem.known} before)" if problem.known else ""
        print(f"{problem.name:12} {problem.evaluations:5} tried{before}, {problem.invalid} not valid: {best}")
        for note in problem.notes:
            print(f"{'':12} {note}")
    if doubtful:
        print("~: a first look, which may be noise; compare decides")
    spent = "its share of the budget" if share else "the budget"
    ended = "everything was tried" if summary.reason == "done" else f"{spent} is spent"
    print(f"{counted(summary.evaluations, 'candidate')} in {summary.seconds:.0f} s: {ended}")


def products(log: Log) -> str:
    return f"{counted(len(log.calls), 'product')}, {counted(log.count, 'call')}"


class Live(Line):
    """Shows progress: one line that changes on a terminal, with a bar for "3/12 ..."; elsewhere a line a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.every = 0.1 if self.terminal else MINUTE
        self.shown = -math.inf if self.terminal else time.monotonic()

    def step(self, what: object) -> None:
        now = time.monotonic()
        if now - self.shown >= self.every:
            self.shown = now
            text = str(what)
            if (place := re.match(r"(\d+)/(\d+)\b", text)) and int(place[2]):
                text = f"{bar(int(place[1]) - 1, int(place[2]))} {text}"
            self.show(text)
            if not self.terminal:
                self.stream.write(f"lapwing: {what}\n")
                self.stream.flush()

    def clear(self) -> None:
        if self.terminal:
            self.shown = -math.inf  # the next step is shown at once
        super().clear()


def print_path(what: str, path: object) -> None:
    print(f"{what}: {path}")


def say(text: object) -> None:
    if sys.stderr is not None:
        print(f"lapwing: {text}", file=sys.stderr, flush=True)
