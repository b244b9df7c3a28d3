"""lapwing bench --record: every usable engine over a grid, checked, timed, kept for the planner."""

from __future__ import annotations

import argparse
import os

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
from ..core.settings import cache_folder
from ..engines import planner
from .progress import Progress
from .usage import UsageError, check_output

__all__ = ["run_record"]


def run_record(options: argparse.Namespace, library: str) -> int:
    hardware = planner.hardware_of(options.device)
    if hardware == "none":
        raise UsageError("there is nothing to choose between: the native core is not there\nhint: lapwing info")
    _check_place(options)
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
    try:
        path = options.output or save_record(record)
        if options.output:
            write_record(record, path)
    except OSError as error:  # a full disk
        raise UsageError(f"--record: {error}") from error
    print(f"wrote {path}")
    if not options.output:
        planner.reload_records()
        print("the planner chooses by it from now on; delete that file to undo")
    print("\nthe rules that follow:")
    for rule in rules_of(record):
        print(f"  {rule_in_words(rule)}")
    return 0


def _check_place(options: argparse.Namespace) -> None:
    """Before the minutes that the measurement takes."""
    if options.output:
        return check_output("--output", options.output)
    folder = cache_folder("records", make=True)
    if folder is None or not os.access(folder, os.W_OK):
        raise UsageError(
            "--record: there is no safe folder for your records\n"
            "hint: set LAPWING_CACHE to a folder that only you can write, or name a file with --output"
        )
