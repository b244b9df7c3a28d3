"""lapwing bench --record: every usable engine over a grid, checked, timed, kept for the planner."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import planner
from ..bench.libraries import allow_float64_in_jax
from ..bench.record import (
    RECORDS,
    WrongAnswer,
    grid_for,
    measure_record,
    own_records_writable,
    record_of,
    rule_in_words,
    write_record,
)
from ..core.records import Record, rules_of
from .progress import MINUTE, Progress
from .usage import UsageError, check_output


def run_record(options: argparse.Namespace, library: str) -> int:
    hardware = planner.hardware_of(options.device)
    if hardware == "none":
        raise UsageError("there are no engines to choose from, as the native core was not built\nhint: lapwing info")
    _check_place(options)
    if library == "jax":
        allow_float64_in_jax()
    records = []
    for operation in RECORDS[options.operation]:
        record = _measure(options, library, operation, hardware)
        if record is None:
            return 1
        records.append(record)
    for record in records:
        try:
            path = write_record(record, _place(options.output, record))
        except OSError as error:  # a full disk
            raise UsageError(f"--record: {error}\nhint: name a folder with --output") from error
        print(f"wrote {path}")
    if not options.output:
        planner.reload_records()
        print(f"the planner chooses by {'it' if len(records) == 1 else 'them'} from now on; delete that file to undo")
    for record in records:
        what = ", for a part of a spectrum" if record.operation == "eigh_part" else ""
        print(f"\nthe rules that follow{what}:")
        for rule in rules_of(record):
            print(f"  {rule_in_words(rule, record.operation)}")
    return 0


def _measure(options: argparse.Namespace, library: str, operation: str, hardware: str) -> Record | None:
    """The record, or None where an answer was wrong."""
    grid = grid_for(options.device, quick=options.quick, operation=operation)
    cases = grid.cases(options.device)
    print(f"{len(cases)} points on {hardware}, about {grid.seconds:.0f} s at most")
    progress = Progress(len(cases), every=MINUTE)
    try:
        rows = measure_record(grid, options.device, library, repeat=options.repeat, step=lambda case: progress.step(str(case)))
    except WrongAnswer as error:
        progress.clear()
        print(f"WRONG ANSWER, nothing was recorded: {error}")
        return None
    progress.clear()
    return record_of(rows, options.device, operation)


def _place(output: Path | None, record: Record) -> Path | None:
    """The named file; the record of parts of a spectrum has one next to it. None stands for the user's own records."""
    if output is None or record.operation != "eigh_part":
        return output
    return output.with_name(f"{output.stem}-part{output.suffix}")


def _check_place(options: argparse.Namespace) -> None:
    """Refuse a place that cannot be written before minutes are spent on measuring."""
    if options.output:
        check_output("--output", options.output)
    elif not own_records_writable():
        raise UsageError(
            "--record: there is no safe folder for your records\n"
            "hint: set LAPWING_CACHE to a folder that only you can write, or name a file with --output"
        )
