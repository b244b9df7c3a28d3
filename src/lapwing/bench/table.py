"""The table that a run prints, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill, wrap

from .case import Row, Timing
from .operations import operation_of

_WIDTHS = {"dtype": 10, "n": 6, "batch": 8, "engine": 11, "time": 9, "median": 9, "GFLOP/s": 8, "GB/s": 8}
_RATIOS = {"vs best": 8, "vs floor": 9}
_NAME_WIDTH = 10
WIDEST = 100  # characters of a line; if it would be longer, the other libraries get a line of their own
UNSTEADY = (
    "note: times marked ~ vary by more than 2x between repeats. Other processes are using the cores,\n"
    "which can make threaded libraries look many times slower than they are. Repeat on an idle machine,\n"
    "or with --threads 1"
)


class Table:
    """Columns have fixed widths, so that each row can be printed as soon as it is measured."""

    def __init__(self, others: Sequence[str], *, on_gpu: bool = False) -> None:
        self.others = tuple(others)
        self.on_gpu = on_gpu
        columns = sum(_WIDTHS.values()) + (9 if on_gpu else 0) + sum(_RATIOS.values())
        self.below = columns + 2 + sum(map(_width, self.others)) > WIDEST

    def header(self) -> str:
        columns = {**_WIDTHS, **({"waited": 9} if self.on_gpu else {}), **_RATIOS}
        names = "".join(f"{name:<{w}}" if name in ("dtype",) else f"{name:>{w}}" for name, w in columns.items())
        in_columns = self.others and not self.below
        line = names + (" |" + "".join(f"{name:>{_width(name)}}" for name in self.others) if in_columns else "")
        return f"{line}\n{'-' * len(line)}"

    def line(self, row: Row) -> str:
        case = row.case
        left = f"{case.dtype:<10}{case.n:>6}{case.batch:>8}{row.engine:>11}"
        if row.lapwing is None:
            return f"{left}  " + _trouble(row)
        waited = f"{seconds_in_words(min(row.lapwing.waited, default=None)):>9}" if self.on_gpu else ""
        cells = (
            f"{left}{_cell(row.lapwing):>9}{seconds_in_words(row.lapwing.median):>9}"
            f"{_rate(row.gflops):>8}{_rate(row.gbytes):>8}{waited}"
            f"{times_in_words(row.speedup):>8}{times_in_words(row.over_floor):>9}"
        )
        by_name = {t.name: t for t in (*row.ours[1:], *row.peers)}
        if self.below:
            named = [f"{name} {_cell(by_name.get(name))}" for name in self.others]
            # spaces inside a name and its time stay together
            text = (
                cells + "\n" + "\n".join(wrap("   ".join(n.replace(" ", "\0") for n in named), WIDEST - 4)).replace("\0", " ")
            )
            text = text.replace("\n", "\n    ")
        else:
            right = "".join(f"{_cell(by_name.get(name)):>{_width(name)}}" for name in self.others)
            text = cells + (f" |{right}" if self.others else "")
        return text + (f"\n  {_trouble(row)}" if row.wrong else "")

    @staticmethod
    def legend(*, on_gpu: bool = False, operation: str = "cholesky") -> str:
        floor = "the bytes moved at the bandwidth of a device copy" if on_gpu else "a copy of the input (numpy.copy)"
        time = "device time per queued call; waited: wall time of one call with its wait" if on_gpu else "wall time per call"
        lines = (
            f"time: {time}, the minimum of all repeats.",
            "vs best: how many times faster than the fastest peer.",
            f"vs floor: time divided by that of {floor}.",
            operation_of(operation).work,
        )
        return "\n".join(fill(line, WIDEST, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


def seconds_in_words(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 999.5 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _rate(value: float | None) -> str:
    """At most six characters, so that columns keep a space between them."""
    return "<0.001" if 0 < (value or 0) < 0.001 else f"{value or 0:.3g}" if (value or 0) < 999.5 else f"{value or 0:.0f}"


def _trouble(row: Row) -> str:
    wrong = [f"WRONG ANSWER from {name}: {check}" for name, check in row.checks if not check.ok]
    return "; ".join(wrong or [f"{a.name}: {a.reason}" for a in row.absent] or ["not measured"])


def times_in_words(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x" if ratio < 99.95 else f"{ratio:.0f}x"


def _cell(timing: Timing | None) -> str:
    return "-" if timing is None else seconds_in_words(timing.minimum) + ("~" if timing.unsteady else "")


def _width(name: str) -> int:
    return max(_NAME_WIDTH, len(name) + 2)
