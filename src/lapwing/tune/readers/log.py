"""The contents of logs: products with counts, and every line that was not understood."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ..files import write_csv
from ..gemm import Call, Gemm

_COLUMNS = ("count", *(field.name for field in fields(Gemm)), "source")


@dataclass(frozen=True)
class BadLine:
    """A line without a product. ``line`` counts from 1; 0 means the whole file."""

    file: str
    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.reason}"


@dataclass(frozen=True)
class Log:
    """Products, each once, and the lines that were not understood."""

    calls: tuple[Call, ...] = ()
    problems: tuple[BadLine, ...] = ()
    architectures: tuple[str, ...] = ()  # AMD GPUs that the files name, for example gfx942

    @property
    def count(self) -> int:
        """Number of calls of all products."""
        return sum(call.count for call in self.calls)

    def write_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write one line for each product; ``read`` returns the same products and counts."""
        known = [" ".join(self.architectures)] if self.architectures else []
        rows: list[Iterable[object]] = [(*_COLUMNS, *(["architecture"] if known else []))]
        for call in self.calls:
            # a source contains a file name, which may have line breaks
            rows.append([call.count, *call.gemm.to_dict().values(), " ".join(call.source.split()), *known])
        return write_csv(Path(path), rows)


def merge(rows: Log, counts: Log) -> Log:
    """Give products that were only listed (by TunableOp) the counts of another log (a trace of the profiler).

    A product gets the count of the equal product, or else of one with the same sizes, types and layout. Products that only
    ``counts`` has are kept too.

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
    for call in rows.calls:  # equal products first, so that a similar one cannot take their count
        if call.gemm in left:
            named[call.gemm] = Call(call.gemm, left.pop(call.gemm).count, call.source)
    merged = []
    for call in rows.calls:
        if call.gemm not in named:
            near = [left.pop(gemm) for gemm in alike.get(_loose(call.gemm), ()) if gemm in left]
            # a list does not say whether fast_accum is set, a log with counts does
            fast = bool(near) and all(similar.gemm.fast_accum for similar in near)
            gemm = replace(call.gemm, fast_accum=fast or call.gemm.fast_accum)
            named[call.gemm] = Call(gemm, sum(similar.count for similar in near) or call.count, call.source)
        merged.append(named[call.gemm])
    architectures = tuple(dict.fromkeys((*rows.architectures, *counts.architectures)))
    return Log((*merged, *left.values()), rows.problems + counts.problems, architectures)


def add_up(calls: Iterable[Call], choose: str = "sum") -> tuple[Call, ...]:
    """Combine equal products, in the order of their first occurrence."""
    counts: dict[Gemm, list[int]] = {}
    sources: dict[Gemm, str] = {}
    for call in calls:
        counts.setdefault(call.gemm, []).append(call.count)
        sources.setdefault(call.gemm, call.source)
    pick = sum if choose == "sum" else max
    return tuple(Call(gemm, pick(each), sources[gemm]) for gemm, each in counts.items())


def not_below(above: Iterable[Call], below: Iterable[Call]) -> list[Call]:
    """Calls of cuBLAS that cuBLASLt did not log. cuBLAS passes its calls to cuBLASLt, which also logs beta and the epilogue."""
    seen: dict[Gemm, int] = {}
    for call in below:
        plain = replace(call.gemm, alpha=1.0, beta=0.0, bias="", activation="none")
        seen[plain] = seen.get(plain, 0) + call.count
    rest = [(call, call.count - seen.get(call.gemm, 0)) for call in above]
    return [replace(call, count=count) for call, count in rest if count > 0]


def _loose(gemm: Gemm) -> tuple[object, ...]:
    return gemm.m, gemm.n, gemm.k, gemm.batch, gemm.kind, bool(gemm.bias), gemm.activation
