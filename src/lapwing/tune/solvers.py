"""Lapwing's own choices on this machine: measure its engines, and write the records by which the planner chooses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..bench.case import Case
from ..bench.measure import usable_library
from ..bench.record import RECORDS, Grid, grid_for, measure_record, record_of, rule_in_words, write_record
from ..core.problem import DEVICES, DTYPES
from ..core.records import Record, rules_of, save_record
from ..core.settings import cache_folder
from ..engines import planner

__all__ = ["OPERATIONS", "Tuned", "tune"]

OPERATIONS = (*RECORDS, "solve", "inv", "qr", "svd")
_LIBRARIES = {"cpu": ("numpy",), "cuda": ("torch", "cupy", "jax")}
_PLANNED = {"inv": "inverse"}  # where the planner has another name for what the benchmark calls so
# Systems and decompositions: small ones in batches against one after the other, which is all there is to choose.
_ORDERS, _QUICK, _BATCHES = (2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256), (4, 16, 32, 64), (1, 8, 64, 512)


@dataclass(frozen=True)
class Tuned:
    """One record that was written, and what follows from it."""

    record: Record
    path: Path
    rules: tuple[str, ...]  # in words


def tune(
    operations: Sequence[str] = ("cholesky", "eigh"),
    sizes: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    budget: float | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    device: str = "cpu",
    quick: bool = False,
    step: Callable[[Case], None] = lambda case: None,
) -> tuple[Tuned, ...]:
    """Measure every usable engine over a grid, and write what the planner reads.

    Each answer is checked before it is timed. Waits until all is measured.

    Parameters
    ----------
    operations : sequence of str
        Of "cholesky", "eigh", "solve", "inv", "qr", "svd". For "eigh" there is also a record for parts of a spectrum.
    sizes : sequence of int, optional
        Orders of the matrices; those of ``lapwing bench --record`` by default.
    dtypes : sequence of str, optional
        All four by default.
    budget : float, optional
        Seconds for everything, shared by the records as their grids are; a point takes a little whatever the budget.
    out : path, optional
        A folder for the records. By default they go where the planner looks first, and count from now on.
    device : str
        "cpu" or "cuda".
    quick : bool
        The short grid.
    step : callable, optional
        Called with each case before it is measured.

    Returns
    -------
    tuple of Tuned

    Raises
    ------
    ValueError
        For an operation, dtype or device that is not known.
    lapwing.bench.record.WrongAnswer
        Where an engine's answer fails the check; nothing is written then.

    Examples
    --------
    >>> import tempfile
    >>> from lapwing.tune import solvers
    >>> found = solvers.tune(["cholesky"], sizes=[4], dtypes=["float64"], budget=1, out=tempfile.mkdtemp())
    >>> found[0].record.operation, found[0].path.suffix
    ('cholesky', '.json')
    """
    grids = _grids(operations, sizes, dtypes, budget, device, quick)
    library = usable_library(_LIBRARIES[device], device)
    if planner.hardware_of(device) == "none" or library is None:
        raise ValueError(f"tune solvers: there is nothing to choose between on {device}\nhint: lapwing info")
    if out is None:
        folder = cache_folder("records", make=True)
        if folder is None or not os.access(folder, os.W_OK):
            raise ValueError("tune solvers: there is no safe folder for your records\nhint: set LAPWING_CACHE, or name one")
    records = [_record(g, device, library, step) for g in grids]
    found = tuple(_written(record, out) for record in records if record.measurements)
    if out is None:
        planner.reload_records()
    return found


def _grids(
    operations: Sequence[str],
    sizes: Sequence[int] | None,
    dtypes: Sequence[str] | None,
    budget: float | None,
    device: str,
    quick: bool,
) -> list[Grid]:
    choices = (("operation", operations, OPERATIONS), ("dtype", dtypes or (), DTYPES), ("device", [device], DEVICES))
    for what, given, known in choices:
        for name in given:
            if name not in known:
                raise ValueError(f"tune solvers: unknown {what} {name!r}\nhint: use {', '.join(known)}")
    if not operations or (sizes is not None and not all(n > 0 for n in sizes)):
        raise ValueError(f"tune solvers: sizes {sizes} of operations {list(operations)}: name some, all positive")
    if budget is not None and not budget > 0:
        raise ValueError(f"tune solvers: budget is {budget}; it must be more than 0")
    grids = [_grid(device, quick, part) for name in operations for part in RECORDS.get(name, (name,))]
    whole = sum(g.seconds for g in grids)
    share = 1.0 if budget is None else budget / whole
    return [
        replace(g, orders=tuple(sizes or g.orders), dtypes=tuple(dtypes or g.dtypes), seconds=share * g.seconds) for g in grids
    ]


def _grid(device: str, quick: bool, operation: str) -> Grid:
    if any(operation in parts for parts in RECORDS.values()):
        return grid_for(device, quick=quick, operation=operation)
    seconds = 20.0 if quick else 80.0
    return Grid(_QUICK if quick else _ORDERS, _BATCHES, flops=3e9, bytes=2**29, seconds=seconds, operation=operation)


def _record(grid: Grid, device: str, library: str, step: Callable[[Case], None]) -> Record:
    rows = measure_record(grid, device, library, step=step)
    return record_of(rows, device, _PLANNED.get(grid.operation, grid.operation))


def _written(record: Record, out: str | os.PathLike[str] | None) -> Tuned:
    if out is None:
        path = save_record(record)
    else:
        path = Path(out) / f"{record.name}.json"
        write_record(record, path)
    return Tuned(record, path, tuple(rule_in_words(rule, record.operation) for rule in rules_of(record)))
