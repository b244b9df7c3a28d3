"""lapwing bench --record: every usable engine over a grid, checked, timed, kept for the planner."""

from __future__ import annotations

import argparse

from ..bench.libraries import allow_float64_in_jax
from ..bench.record import (
    WrongAnswer,
    grid_for,
    measure_record,
    record_of,
    rule_in_words,
    write_record,
)
from ..core.records import rules_of, save_record
from ..engines import planner
from .progress import Progress
from .usage import UsageError

__all__ = ["run_record"]


def run_record(options: argparse.Namespace, library: str) -> int:
    hardware = planner.hardware_of(options.device)
    if hardware == "none":
        raise UsageError("there is nothing to choose between: the native core is not there\nhint: lapwing info")
    if library == "jax":
        allow_float64_in_jax()
    grid = grid_for(options.device, quick=options.quick)
    cases = grid.cases(options.device)
    print(f"{len(cases)} points on {hardware}, about {grid.seconds:.0f} s at most")
    progress = Progress(len(cases))
    try:
        rows = measure_record(grid, options.device, library, repeat=options.repeat, step=lambda case: progress.step(str(case)))
    except WrongAnswer as error:
        progress.clear()
        print(f"WRONG ANSWER, nothing was recorded: {error}")
        return 1
    progress.clear()
    record = record_of(rows, options.device)
    if options.output:
        path = options.output
        write_record(record, path)
    else:
        try:
            path = save_record(record)
        except OSError as error:
            raise UsageError(str(error)) from error
        planner.reload_records()
    print(f"wrote {path}\n\nthe rules that follow:")
    for rule in rules_of(record):
        print(f"  {rule_in_words(rule)}")
    return 0
