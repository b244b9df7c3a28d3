"""What was read: products with their counts, and every line that could not be read."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ..files import write_atomic
from ..gemm import Call, Gemm

__all__ = ["BadLine", "Log", "add_up", "merge", "not_below"]

_COLUMNS = ("count", *(field.name for field in fields(Gemm)), "source")


@dataclass(frozen=True)
class BadLine:
    """A line that gave no product. ``line`` counts from 1; 0 means the whole file."""

    file: str
    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.reason}"


@dataclass(frozen=True)
class Log:
    """Products, each once, those that are called most first as far as the log knows; and the lines that were not understood."""

    calls: tuple[Call, ...] = ()
    problems: tuple[BadLine, ...] = ()

    @property
    def count(self) -> int:
        """Calls in all."""
        return sum(call.count for call in self.calls)

    def write_csv(self, path: str | os.PathLike[str]) -> Path:
        """One line for each product, in a form that ``read`` reads back to equal products and counts."""
        out = io.StringIO()
        table = csv.writer(out, lineterminator="\n")
        table.writerow(_COLUMNS)
        for call in self.calls:
            values = call.gemm.to_dict()
            # a source is a file's name and a line, and names may hold anything but must stay on their line
            source = " ".join(call.source.split())
            table.writerow([call.count, *(values[name] for name in _COLUMNS[1:-1]), source])
        return write_atomic(Path(path), out.getvalue())


def merge(rows: Log, counts: Log) -> Log:
    """Rows that were only listed (TunableOp's) get the counts of a log that counted (a profiler's trace).

    A row takes the count of the equal product; failing that, of one with the same sizes, types and layout. Products that only
    ``counts`` has stay, with their counts.

    Examples
    --------
    >>> from lapwing.tune.readers import merge, read
    >>> rows = read("GemmTunableOp_float_TN,tn_64_8_32_ld_32_32_64")
    >>> merge(rows, read("64x8x32 f32 TN count=500")).calls[0].count
    500
    """
    left = {call.gemm: call for call in counts.calls}
    alike: dict[tuple[object, ...], list[Gemm]] = {}
    for gemm in left:
        alike.setdefault(_loose(gemm), []).append(gemm)
    named: dict[Gemm, Call] = {}
    for call in rows.calls:  # exact ones first, so that a near relative cannot take their count
        if call.gemm in left:
            named[call.gemm] = Call(call.gemm, left.pop(call.gemm).count, call.source)
    merged = []
    for call in rows.calls:
        if call.gemm not in named:
            near = [left.pop(gemm) for gemm in alike.get(_loose(call.gemm), ()) if gemm in left]
            # what is listed does not say how sums are kept; what was counted does
            fast = bool(near) and all(found.gemm.fast_accum for found in near)
            gemm = replace(call.gemm, fast_accum=fast or call.gemm.fast_accum)
            named[call.gemm] = Call(gemm, sum(found.count for found in near) or call.count, call.source)
        merged.append(named[call.gemm])
    return Log((*merged, *left.values()), rows.problems + counts.problems)


def add_up(calls: Iterable[Call], choose: str = "sum") -> tuple[Call, ...]:
    """Equal products once, in the order in which they first came."""
    counts: dict[Gemm, list[int]] = {}
    sources: dict[Gemm, str] = {}
    for call in calls:
        counts.setdefault(call.gemm, []).append(call.count)
        sources.setdefault(call.gemm, call.source)
    pick = sum if choose == "sum" else max
    return tuple(Call(gemm, pick(found), sources[gemm]) for gemm, found in counts.items())


def not_below(above: Iterable[Call], below: Iterable[Call]) -> list[Call]:
    """Calls of cuBLAS that cuBLASLt, to which it hands them, did not log; only cuBLASLt knows beta and the epilogue."""
    seen: dict[Gemm, int] = {}
    for call in below:
        plain = replace(call.gemm, alpha=1.0, beta=0.0, bias="", activation="none")
        seen[plain] = seen.get(plain, 0) + call.count
    rest = [(call, call.count - seen.get(call.gemm, 0)) for call in above]
    return [replace(call, count=count) for call, count in rest if count > 0]


def _loose(gemm: Gemm) -> tuple[object, ...]:
    return gemm.m, gemm.n, gemm.k, gemm.batch, gemm.kind, bool(gemm.bias), gemm.activation
