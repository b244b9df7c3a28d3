"""Measure lapwing's own engines on this machine, and write the records from which the planner chooses."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from time import monotonic

from .. import planner
from ..bench.case import Case, Row
from ..bench.measure import usable_library
from ..bench.record import RECORDS, Grid, grid_for, measure_record, own_records_writable, record_of, rule_in_words, write_record
from ..core.problem import DEVICES, DTYPES
from ..core.records import Record, rules_of

OPERATIONS = (*RECORDS, "solve", "inv", "qr", "svd")
_LIBRARIES = {"cpu": ("numpy",), "cuda": ("torch", "cupy", "jax")}
_PLANNED = {"inv": "inverse"}  # names of the benchmark that differ in the planner
_log = logging.getLogger("lapwing")
_BUDGET = 900.0  # seconds, when the caller gives no budget
# the time of one point: pauses between turns, and about twenty calls of all engines
_POINT = 0.6  # seconds
_FLOPS = {"cpu": 2e9, "cuda": 1e12}  # operations per second of one call, divided by the number of calls
_PART_SLOWER = 4.0  # a part of a spectrum takes this many times longer, because of its iterations
_ANYWAY = 10.0  # seconds that the first part may take whatever the budget
# systems and decompositions: the only choice is between small ones in batches and one after the other
_ORDERS, _QUICK, _BATCHES = (2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256), (4, 16, 32, 64), (1, 8, 64, 512)


@dataclass(frozen=True)
class Tuned:
    """A written record, and the rules that follow from it."""

    record: Record
    path: Path
    rules: tuple[str, ...]  # in words


@dataclass(frozen=True)
class Measuring:
    """The point that is measured next, and an estimate of the remaining time."""

    case: Case
    place: int  # from 1
    points: int  # in all records
    left: float  # estimated seconds, within the budget

    def __str__(self) -> str:
        minutes, seconds = divmod(round(self.left), 60)
        return f"{self.place} of {self.points}, about {minutes}m{seconds:02}s left: {self.case}"


def tune(
    operations: Sequence[str] = ("cholesky", "eigh"),
    sizes: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    budget: float | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    device: str = "cpu",
    quick: bool = False,
    step: Callable[[Measuring], None] = lambda measuring: None,
) -> tuple[Tuned, ...]:
    """Measure every usable engine over a grid, and write records for the planner.

    Each result is checked before it is timed. Waits until everything is measured.

    Parameters
    ----------
    operations : sequence of str
        Any of "cholesky", "eigh", "solve", "inv", "qr", "svd". "eigh" also has a record for parts of a spectrum.
    sizes : sequence of int, optional
        Orders of the matrices; those of ``lapwing bench --record`` by default.
    dtypes : sequence of str, optional
        All four by default.
    budget : float, optional
        Seconds for everything, 15 minutes by default; it may end earlier. Grids that would take longer are replaced by short
        ones, as with ``quick``. The largest and smallest matrices of each record are measured first, then those in between.
        If there is no time for the first ones, the record is left out with a warning.
    out : path, optional
        A folder for the records. By default they are written where the planner looks first, and take effect at once.
    device : str
        "cpu" or "cuda".
    quick : bool
        The short grid.
    step : callable, optional
        Called with a :class:`Measuring` before each point.

    Returns
    -------
    tuple of Tuned

    Raises
    ------
    ValueError
        For an unknown operation, dtype or device.
    lapwing.bench.record.WrongAnswer
        If the result of an engine fails the check; then nothing is written.

    Examples
    --------
    >>> import tempfile
    >>> from lapwing.tune import solvers
    >>> tuned = solvers.tune(["cholesky"], sizes=[4], dtypes=["float64"], budget=1, out=tempfile.mkdtemp())
    >>> tuned[0].record.operation, tuned[0].path.suffix
    ('cholesky', '.json')
    """
    grids = _grids(operations, sizes, dtypes, budget, device, quick)
    library = usable_library(_LIBRARIES[device], device)
    if planner.hardware_of(device) == "none" or library is None:
        raise ValueError(f"tune solvers: there is only one engine on {device}\nhint: lapwing info lists the engines")
    if out is None and not own_records_writable():
        raise ValueError("tune solvers: there is no safe folder for your records\nhint: set LAPWING_CACHE, or name a folder")
    clock = _Clock(monotonic() + (budget or _BUDGET), [p for g in grids for p in _parts(g, device)], step)
    records = []
    for place, grid in enumerate(grids):
        share = _expected(grid, device) / max(sum(_expected(g, device) for g in grids[place:]), 1e-9)
        rows = _measured(grid, device, library, clock, monotonic() + share * max(0.0, clock.ends - monotonic()))
        records.append(record_of(rows, device, _PLANNED.get(grid.operation, grid.operation)))
    tuned = tuple(_written(record, out) for record in records if record.measurements)
    if out is None:
        planner.reload_records()
    return tuned


def _grids(
    operations: Sequence[str],
    sizes: Sequence[int] | None,
    dtypes: Sequence[str] | None,
    budget: float | None,
    device: str,
    quick: bool,
) -> list[Grid]:
    choices = (("operation", operations, OPERATIONS), ("dtype", dtypes or (), DTYPES), ("device", [device], DEVICES))
    for what, names, known in choices:
        for name in names:
            if name not in known:
                raise ValueError(f"tune solvers: unknown {what} {name!r}\nhint: use {', '.join(known)}")
    if not operations or (sizes is not None and not all(n > 0 for n in sizes)):
        raise ValueError(
            f"tune solvers: sizes {sizes} of operations {list(operations)}\nhint: name an operation, and positive sizes"
        )
    if budget is not None and not budget > 0:
        raise ValueError(f"tune solvers: budget is {budget}; it must be greater than 0")
    parts = [part for name in dict.fromkeys(operations) for part in RECORDS.get(name, (name,))]

    def asked(part: str, quick: bool) -> Grid:
        grid = _grid(device, quick, part)
        return replace(grid, orders=tuple(sizes or grid.orders), dtypes=tuple(dtypes or grid.dtypes))

    grids = [asked(part, quick) for part in parts]
    for longest in sorted(range(len(grids)), key=lambda i: -_expected(grids[i], device)):
        if sizes is None and sum(_expected(g, device) for g in grids) > (budget or _BUDGET):
            grids[longest] = asked(parts[longest], True)
    return grids


def _grid(device: str, quick: bool, operation: str) -> Grid:
    if any(operation in parts for parts in RECORDS.values()):
        return grid_for(device, quick=quick, operation=operation)
    seconds = 20.0 if quick else 80.0
    return Grid(_QUICK if quick else _ORDERS, _BATCHES, flops=3e9, bytes=2**29, seconds=seconds, operation=operation)


def _parts(grid: Grid, device: str) -> list[Grid]:
    """Parts with one order of one dtype each: first both ends, then the middles of the gaps between them."""
    by_dtype = []
    for dtype in grid.dtypes:
        parts = [replace(grid, orders=(n,), dtypes=(dtype,)) for n in sorted(set(grid.orders))]
        by_dtype.append(_spread([part for part in parts if _points(part, device)]))
    return [part for turn in zip_longest(*by_dtype) for part in turn if part is not None]


def _spread(orders: list[Grid]) -> list[Grid]:
    if not orders:
        return []
    spread, gaps = [orders[-1], orders[0]], [(0, len(orders) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            spread.append(orders[middle])
            gaps += [(low, middle), (middle, high)]
    return list(dict.fromkeys(spread))


@cache
def _points(part: Grid, device: str) -> int:
    return len(part.cases(device))


@cache
def _expected(part: Grid, device: str) -> float:
    slower = _PART_SLOWER if part.operation == "eigh_part" else 1.0
    return float(sum(_POINT + slower * case.flops / _FLOPS[device] for case in part.cases(device)))


class _Clock:
    """The end of the budget, and how much slower than expected this machine is."""

    def __init__(self, ends: float, parts: Sequence[Grid], step: Callable[[Measuring], None]) -> None:
        self.ends, self.step = ends, step
        self.ahead = list(parts)
        self.place, self.pace = 0, 1.0


def _measured(grid: Grid, device: str, library: str, clock: _Clock, until: float) -> list[Row]:
    """The rows of one record, as many as fit; none if its ends do not fit, since they stand for all sizes beyond them."""
    parts = _parts(grid, device)
    rows: list[Row] = []
    missing: list[Grid] = []
    for number, part in enumerate(parts):
        clock.ahead.remove(part)
        left, needs = until - monotonic(), clock.pace * _expected(part, device)
        if needs > max(1.1 * left, 0.0 if number else _ANYWAY):
            missing.append(part)
            if part.orders[0] in _ends(parts, part.dtypes[0]):  # the rest would be useless
                clock.ahead = [p for p in clock.ahead if p not in parts]
                break
            continue

        def step(case: Case) -> None:
            clock.place += 1
            now = part.cases(device)  # noqa: B023
            points = len(now) - 1 - now.index(case) + sum(_points(p, device) for p in clock.ahead)
            seconds = clock.pace * sum(_expected(p, device) for p in (part, *clock.ahead))  # noqa: B023
            clock.step(Measuring(case, clock.place, clock.place + points, max(0.0, min(clock.ends - monotonic(), seconds))))

        behind = sum(_expected(p, device) for p in parts[number:])
        begun = monotonic()
        seconds = max(0.01, left) * _expected(part, device) / behind
        rows += measure_record(replace(part, seconds=seconds), device, library, step=step)
        # the slowest recent pace: a busy machine stays busy
        clock.pace = max(0.7 * clock.pace if rows else 0.0, (monotonic() - begun) / _expected(part, device))
    if lost := [p for p in missing if p.orders[0] in _ends(parts, p.dtypes[0])]:
        needed = clock.pace * sum(_expected(p, device) for p in parts)
        _log.warning(
            "tune solvers: no record for %s: there was no time for n = %d, which decides for all larger sizes\n"
            "hint: the whole measurement takes about %d s here; give a larger budget, or fewer operations",
            grid.operation, lost[0].orders[0], needed,
        )  # fmt: skip
        return []
    if missing:
        orders = ", ".join(str(n) for n in sorted({p.orders[0] for p in missing}))
        _log.warning("tune solvers: %s: no time was left for n = %s; its neighbours are used instead", grid.operation, orders)
    order = [(c.dtype, c.n, c.batch, c.part) for c in grid.cases(device)]
    return sorted(rows, key=lambda row: order.index((row.case.dtype, row.case.n, row.case.batch, row.case.part)))


def _ends(parts: Sequence[Grid], dtype: str) -> tuple[int, int]:
    orders = [p.orders[0] for p in parts if p.dtypes[0] == dtype]
    return min(orders), max(orders)


def _written(record: Record, out: str | os.PathLike[str] | None) -> Tuned:
    path = write_record(record, None if out is None else Path(out) / f"{record.name}.json")
    return Tuned(record, path, tuple(rule_in_words(rule, record.operation) for rule in rules_of(record)))
