"""Measured records: what each engine took, on which machine, and the rules that follow from it.

A record is a JSON file:

    {"schema": 1, "operation": "cholesky", "device": "cuda", "hardware": "NVIDIA H200", "date": "2026-11-15",
     "versions": {...}, "measurements": [{"dtype": "float32", "n": 4, "batch": 1000, "seconds": {"batched": 1e-5, ...}}, ...]}

``hardware`` is the GPU's name, or the CPU's instruction set level. A record of other hardware is never used. Between measured
points the nearest one decides, by ratios of n and batch. The engine "cusolver newest" is cusolver with the newest copy of the
library, for machines that have such a copy besides their framework's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log, sqrt
from pathlib import Path
from typing import Any

from .problem import DEVICES, DTYPES
from .settings import cache_folder

SCHEMA = 1
_MOST = 2**62
NEWEST = " newest"
_log = logging.getLogger("lapwing")


@dataclass(frozen=True)
class Measurement:
    dtype: str
    n: int
    batch: int
    seconds: dict[str, float]  # by engine

    @property
    def best(self) -> str:
        return min(self.seconds, key=self.seconds.__getitem__)


@dataclass(frozen=True)
class Record:
    operation: str
    device: str
    hardware: str
    date: str
    versions: dict[str, str]
    measurements: tuple[Measurement, ...]
    source: str = ""  # the file it came from

    @property
    def name(self) -> str:
        """The name of its file without the ending: "cholesky-cuda-nvidia-h200"."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.operation}-{self.device}-{self.hardware}".lower()).strip("-")

    def predict(self, dtype: str, n: int, batch: int, engine: str) -> float | None:
        """Seconds at the nearest measured point, scaled by the work; None when none is within a factor of two."""
        near, distance = None, log(2.0) + 1e-9
        for m in self.measurements:
            if m.dtype == dtype and engine in m.seconds and n > 0 and batch > 0:
                d = max(abs(log(n / m.n)), abs(log(batch / m.batch)))
                if d < distance:
                    near, distance = m, d
        if near is None:
            return None
        # a smaller problem is not promised to be faster: below some size only latency is left
        return near.seconds[engine] * max(1.0, _work(n, batch) / _work(near.n, near.batch))


def _work(n: int, batch: int) -> float:
    return batch * (float(n) ** 3 / 3 + 8.0 * n * n)


@dataclass(frozen=True)
class Rule:
    """``engine`` takes n_min <= n <= n_max and batch_min <= batch <= batch_max; None: no upper limit."""

    dtype: str
    engine: str
    n_min: int = 0
    n_max: int | None = None
    batch_min: int = 0
    batch_max: int | None = None
    newest: bool = False  # only if the newest copy of the engine's library is installed

    def fits(self, dtype: str, n: int, batch: int) -> bool:
        return (
            self.dtype == dtype
            and self.n_min <= n <= (inf if self.n_max is None else self.n_max)
            and self.batch_min <= batch <= (inf if self.batch_max is None else self.batch_max)
        )


def rules_of(record: Record) -> list[Rule]:
    """Cut the plane halfway between measured points, by n and then by batch, and name the fastest engine of each piece.

    Rules that need the newest copy of a library come first."""
    if not any(name.endswith(NEWEST) for m in record.measurements for name in m.seconds):
        return _cut(record, record.measurements)
    plain = _cut(record, [_with_copies(m, newest=False) for m in record.measurements])
    newest = _cut(record, [_with_copies(m, newest=True) for m in record.measurements])
    return [replace(r, newest=True) for r in newest if r.engine == "cusolver" and r not in plain] + plain


def _with_copies(measured: Measurement, newest: bool) -> Measurement:
    """The seconds of the engines with or without the newest copies of their libraries."""
    seconds = {name: s for name, s in measured.seconds.items() if not name.endswith(NEWEST)}
    for name in measured.seconds.keys() - seconds.keys() if newest else ():
        engine = name.removesuffix(NEWEST)
        seconds[engine] = min(measured.seconds[name], seconds.get(engine, inf))
    return replace(measured, seconds=seconds)


def _cut(record: Record, measurements: Sequence[Measurement]) -> list[Rule]:
    measurements = [m for m in measurements if m.seconds]
    rules: list[Rule] = []
    for dtype in dict.fromkeys(m.dtype for m in measurements):
        points = {(m.n, m.batch): m for m in measurements if m.dtype == dtype}
        below: dict[int, str] = {}  # by batch: the engine at the next smaller n
        for n, n_min, n_max in _intervals({n for n, _ in points}):
            column = {batch: m for (k, batch), m in points.items() if k == n}
            row: list[Rule] = []
            for batch, batch_min, batch_max in _intervals(column):
                engine = below[batch] = _keep_if_close(column[batch], below.get(batch))
                if row and row[-1].engine == engine:
                    batch_min = row.pop().batch_min
                row.append(Rule(dtype, engine, n_min, n_max, batch_min, batch_max))
            rules = _join(rules, row)
    if record.operation != "eigvalsh":
        return rules
    # below the smallest measured order eigvalsh follows the rules of eigh
    least = {dtype: min(m.n for m in measurements if m.dtype == dtype) for dtype in {m.dtype for m in measurements}}
    return [replace(r, n_min=max(r.n_min, least[r.dtype])) for r in rules]


# Engines this close are a tie, won by the engine of the neighbouring piece, else by the one listed first: a rule must not
# follow noise.
_TIE = 1.05


def _keep_if_close(measured: Measurement, neighbour: str | None) -> str:
    limit = _TIE * measured.seconds[measured.best]
    close = [engine for engine, seconds in measured.seconds.items() if seconds <= limit]
    return neighbour if neighbour in close else close[0]


def _join(rules: list[Rule], row: list[Rule]) -> list[Rule]:
    """Add a row of rules; one that begins where a rule for the same batches ends extends that rule."""
    joined = list(rules)
    for rule in row:
        for i, old in enumerate(joined):
            if old.n_max == rule.n_min - 1 and old == replace(rule, n_min=old.n_min, n_max=old.n_max):
                joined[i] = replace(rule, n_min=old.n_min)
                break
        else:
            joined.append(rule)
    return joined


def _intervals(values: Iterable[int]) -> Iterable[tuple[int, int, int | None]]:
    ordered = sorted(values)
    cuts = [int(sqrt(a * b)) for a, b in pairwise(ordered)]
    lows, highs = [0, *[c + 1 for c in cuts]], [*cuts, None]
    return zip(ordered, lows, highs, strict=True)


def load_records(folders: Sequence[Path]) -> list[Record]:
    """Every readable record in the folders, in their order. A damaged file is named in the log and skipped."""
    records = []
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            try:
                records.append(load_record(path))
            except Exception as error:  # lapwing must start whatever is in the file
                _log.warning("record %s is not usable and was skipped: %s", path, error)
    return records


def load_record(path: Path) -> Record:
    if not path.is_file():
        raise ValueError("it is not a file")
    data = json.loads(path.read_text())
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']} is not {SCHEMA}")
    rows = tuple(
        Measurement(str(m["dtype"]), int(m["n"]), int(m["batch"]), {str(k): float(v) for k, v in m["seconds"].items()})
        for m in data["measurements"]
    )
    for m in rows:
        sizes_fit = 0 < m.n < _MOST and 0 < m.batch < _MOST
        if m.dtype not in DTYPES or not sizes_fit or not m.seconds or not all(0 < s < inf for s in m.seconds.values()):
            raise ValueError(f"a measurement makes no sense: {m}")
    text = {k: str(data[k]) for k in ("operation", "device", "hardware", "date")}
    if text["device"] not in DEVICES or not text["hardware"].isprintable():
        raise ValueError(f"unknown device {text['device']!r} or hardware {text['hardware']!r}")
    return Record(**text, versions=dict(data["versions"]), measurements=rows, source=str(path))


def save_record(record: Record) -> Path:
    """Write a record to the user's own folder; it then takes precedence over a shipped one."""
    folder = cache_folder("records", make=True)
    if folder is None:
        raise OSError("there is no safe cache folder for records\nhint: set LAPWING_CACHE to a folder that only you can write")
    path = folder / f"{record.name}.json"
    temporary = path.with_suffix(f".{id(record):x}.tmp")
    temporary.write_text(json.dumps(as_json(record), indent=1))
    temporary.replace(path)
    return path


def as_json(record: Record) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "operation": record.operation,
        "device": record.device,
        "hardware": record.hardware,
        "date": record.date,
        "versions": record.versions,
        "measurements": [{"dtype": m.dtype, "n": m.n, "batch": m.batch, "seconds": m.seconds} for m in record.measurements],
    }
