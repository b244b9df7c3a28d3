"""Measure every usable engine over a grid of problems, and write the record that the planner's rules come from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from .. import planner
from ..core.problem import DTYPES
from ..core.records import Measurement, Record, Rule, as_json, save_record
from ..core.settings import cache_folder
from .case import Case, Entry, Report, Row
from .environment import Environment, environment
from .measure import measure

# The records of each operation. A part of a spectrum has its own, with the number of values in place of the batch.
RECORDS = {"cholesky": ("cholesky",), "eigh": ("eigh", "eigh_part")}

_BEHIND = 4.0  # an engine this many times slower at a smaller batch is not measured at a larger one
_LEAST = 0.05  # seconds for each point, whatever the budget


class WrongAnswer(Exception):
    """An engine's answer failed the check, so nothing is recorded."""


@dataclass(frozen=True)
class Grid:
    """Orders, batches and dtypes; points beyond ``flops`` or ``bytes`` are left out.

    For "eigh_part" the batches are numbers of values at the upper end of one Wishart matrix. Its values are close together:
    an iteration that is faster there is faster on most matrices.
    """

    orders: tuple[int, ...]
    batches: tuple[int, ...]
    dtypes: tuple[str, ...] = DTYPES
    flops: float = 5e9
    bytes: float = 2**28
    seconds: float = 110.0  # for the whole grid
    operation: str = "cholesky"

    def cases(self, device: str) -> list[Case]:
        """Ordered by dtype and n, smaller batches first."""
        everything = [self._case(n, b, d, device) for d in self.dtypes for n in self.orders for b in self.batches]
        return [c for c in everything if c is not None and c.flops <= self.flops and c.bytes_moved <= self.bytes]

    def _case(self, n: int, second: int, dtype: str, device: str) -> Case | None:
        if self.operation != "eigh_part":
            return Case(n, second, dtype, device, operation=self.operation)
        if second >= n:
            return None
        return Case(n, 1, dtype, device, matrix="wishart", operation="eigh", part=(n - second, second))


# Large orders need few batches and large batches few orders; every point takes well below a second.
_GRIDS = {
    ("cholesky", "cpu", False): Grid(
        (2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 720, 1024, 2048),
        (1, 2, 8, 64, 512), flops=3e9, bytes=2**30, seconds=100.0,
    ),
    ("cholesky", "cpu", True): Grid((4, 16, 64, 256, 1024), (1, 16, 256), flops=1.5e9, bytes=2**29, seconds=20.0),
    ("cholesky", "cuda", False): Grid(
        (4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192),
        (1, 4, 16, 64, 256, 1024, 4096, 32768), flops=2e12, bytes=2**31, seconds=300.0,
    ),
    ("cholesky", "cuda", True): Grid(
        (32, 64, 128, 256, 1024, 2048, 4096, 8192), (1, 16, 256), flops=6e11, bytes=2**31, seconds=60.0,
    ),
    ("eigh", "cpu", False): Grid(
        (2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024),
        (1, 8, 64, 512), flops=6e9, bytes=2**29, seconds=120.0, operation="eigh",
    ),
    ("eigh", "cpu", True): Grid((3, 8, 16, 32, 64, 256), (1, 64, 512), flops=2e9, bytes=2**28, seconds=30.0, operation="eigh"),
    ("eigh", "cuda", False): Grid(
        (2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096),
        (1, 16, 256, 4096, 32768), flops=4e11, bytes=2**31, seconds=300.0, operation="eigh",
    ),
    ("eigh", "cuda", True): Grid((3, 8, 32, 64, 128, 256, 1024), (1, 64, 4096), flops=1e11, bytes=2**30, seconds=60.0,
                                 operation="eigh"),
    ("eigh_part", "cpu", False): Grid(
        (256, 512, 1024, 2048, 4096), (1, 16, 64, 256),
        flops=1.1e11, bytes=2**28, seconds=300.0, operation="eigh_part",
    ),
    # the largest order decides for all larger ones, for which the iteration gains the most, so it must not be too small
    ("eigh_part", "cpu", True): Grid((512, 2048), (1, 16), flops=5e10, bytes=2**28, seconds=60.0, operation="eigh_part"),
    ("eigh_part", "cuda", False): Grid(
        (512, 1024, 2048, 4096, 8192), (1, 16, 64, 256, 1024), flops=4e12, bytes=2**31, seconds=240.0, operation="eigh_part",
    ),
    ("eigh_part", "cuda", True): Grid((1024, 4096), (16, 256), flops=1e12, bytes=2**31, seconds=60.0, operation="eigh_part"),
}  # fmt: skip


def grid_for(device: str, *, quick: bool = False, operation: str = "cholesky") -> Grid:
    return _GRIDS[operation, device, quick]


def measure_record(
    grid: Grid, device: str, library: str, *, repeat: int = 10, step: Callable[[Case], None] = lambda case: None
) -> list[Row]:
    """One row per point of the grid, with one timing per engine. Raises WrongAnswer."""
    rows: list[Row] = []
    behind: dict[tuple[str, int], set[str]] = {}  # by dtype and n
    cases = grid.cases(device)
    begun = perf_counter()
    for place, case in enumerate(cases):
        step(case)
        left = grid.seconds - (perf_counter() - begun)
        skipped = behind.setdefault((case.dtype, case.n), set())
        names = [n for n in planner.ALL if n not in skipped and not planner.refusal(n, case.problem) and not hopeless(n, case)]
        entries = [Entry(n, library, n) for n in names]
        row = measure(case, entries, repeat=repeat, limit=max(_LEAST, left / (len(cases) - place)))
        if row.wrong:
            raise WrongAnswer(f"{case}: " + "; ".join(f"{name}: {check}" for name, check in row.checks if not check.ok))
        if row.ours:
            best = min(t.minimum for t in row.ours)
            skipped |= {t.name for t in row.ours if t.minimum > _BEHIND * best}
            rows.append(row)
    return rows


def hopeless(engine: str, case: Case) -> bool:
    """One matrix after the other takes minutes for many small ones."""
    if engine == "two_stage":
        return case.batch > 1 or case.n < 2048
    return engine == "cusolver" and case.operation != "cholesky" and case.batch > 4096 and case.n <= 32


def records_of(report: Report) -> list[Record]:
    """The records from a map whose engines were timed by name: one for each kind of problem that has a choice of engines.

    Least squares uses the engine of the decomposition, and eigvalsh that of eigh.
    """
    by_name: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        engines = tuple(t for t in row.ours if t.name in planner.ALL)
        if engines and row.case.operation not in ("lstsq", "eigvalsh"):
            by_name.setdefault((row.case.problem.record, row.case.device), []).append(replace(row, ours=engines))
    return [
        record_of(rows, device, name, report.environment)
        for (name, device), rows in by_name.items()
        if len({t.name for row in rows for t in row.ours}) > 1
    ]


def record_of(rows: Sequence[Row], device: str, operation: str = "cholesky", where: Environment | None = None) -> Record:
    where, second = where or environment(), "count" if operation == "eigh_part" else "batch"
    return Record(
        operation=operation,
        device=device,
        hardware=where.hardware(device),
        date=datetime.now(UTC).date().isoformat(),
        versions={**dict(where.versions), **({"driver": where.driver} if where.driver else {})},
        measurements=tuple(
            Measurement(r.case.dtype, r.case.n, getattr(r.case, second), {t.name: t.minimum for t in r.ours}) for r in rows
        ),
    )


def write_record(record: Record, path: Path | None = None) -> Path:
    """Write a record to a file; by default where the planner looks first."""
    if path is None:
        return save_record(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(record), indent=1) + "\n")
    return path


def own_records_writable() -> bool:
    """Whether there is a safe folder for the user's own records."""
    folder = cache_folder("records", make=True)
    return folder is not None and os.access(folder, os.W_OK)


def rule_in_words(rule: Rule, operation: str = "cholesky") -> str:
    n, batch = _span(rule.n_min, rule.n_max), _span(rule.batch_min, rule.batch_max)
    second = "values" if operation == "eigh_part" else "batch"
    return f"{rule.dtype:<11} n {n:<14} {second} {batch:<14} {rule.engine}"


def _span(low: int, high: int | None) -> str:
    if high is None:
        return f"from {low}" if low else "any"
    return f"{low} to {high}" if low else f"up to {high}"
