"""lapwing bench map: every operation, dtype, order and batch against every library; the red cells first, and a picture."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import perf_counter

from .. import planner
from ..bench.case import Report, Row
from ..bench.environment import HOW_TO_GET, counted
from ..bench.libraries import PEERS, allow_float64_in_jax
from ..bench.map import GRIDS, OPERATIONS, map_title, measure_map, merge, part_of, red_in_words, summary, wrong_peers_in_words
from ..bench.measure import peer_entries
from ..bench.plot import can_plot, plot_map
from ..bench.record import own_records_writable, records_of, write_record
from ..bench.report import command_in_words, make_report, read_report, write_report
from ..bench.turn import Turn
from ..core.native import how_to_build, native
from .progress import MINUTE, Progress, Waiting
from .usage import UsageError, check_positive, parse_dtypes, parse_words

MAP_OPTIONS = ("ops", "part", "save", "merge", "seconds", "turns")
_NOT_FOR_MAPS = (
    "sizes",
    "batch",
    "engine",
    "matrix",
    "subset",
    "k",
    "rows",
    "assume",
    "precision",
    "condition",
    "json",
    "plot",
)
_NAMED = 8  # cells that were left out: the file has the others
_SAVE_EVERY = 20.0  # seconds: what was measured is not lost when the run is stopped


def add_map_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("map").add_argument
    add("--ops", metavar="NAMES", help=f"operations, separated by commas (default: all: {', '.join(OPERATIONS)})")
    add("--part", metavar="K/N", help="measure the K-th of N parts, so that each is short; --merge puts them together")
    text = "where the results (.json) and the picture (.png) go; made if it does not exist (default: here)"
    add("--save", type=Path, metavar="FOLDER", help=text)
    add("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing: put the results of several runs together")
    text = "parts that run side by side and name the same file take turns with the GPU; the host's work they do side by side"
    add("--turns", type=Path, metavar="FILE", help=text)
    add("--seconds", type=float, help="after this time no cell begins; the file names those that are left out")


def check_map_options(options: argparse.Namespace) -> None:
    """Refuse what can be refused without loading a library; then set the defaults."""
    for name in _NOT_FOR_MAPS:
        if getattr(options, name) is not None:
            raise UsageError(f"map measures its own grid; --{'rhs' if name == 'k' else name} has no effect\nhint: leave it out")
    if options.upper:
        raise UsageError("map measures its own grid; --upper has no effect\nhint: leave it out")
    check_positive(options, "repeat", "threads")
    if options.seconds is not None and not options.seconds > 0:
        raise UsageError(f"--seconds {options.seconds:g} is not a positive number\nhint: --seconds 60")
    if options.output is not None and not options.record:
        raise UsageError("--output works only with --record\nhint: add --record, or leave --output out")
    options.operations = tuple(OPERATIONS) if options.ops is None else parse_words(options.ops, OPERATIONS, "operation")
    options.dtypes = () if options.dtype is None else parse_dtypes(options.dtype)
    options.k_of_n = (1, 1) if options.part is None else _parse_part(options.part)
    options.save = options.save or Path()
    if options.output is not None and not options.output.is_dir():
        raise UsageError(f"--output {options.output}: there is no such folder\nhint: mkdir -p {options.output}")
    try:
        options.save.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--save {options.save}: {error.strerror}\nhint: name another folder") from error
    if options.merge:
        for name in ("ops", "dtype", "part", "seconds", "peers", "repeat", "quick", "turns"):
            if getattr(options, name):
                raise UsageError(f"--merge measures nothing; --{name} has no effect\nhint: leave it out")
    if options.turns is not None and options.device == "cpu":
        raise UsageError("--turns is for a GPU: parts that share the CPU would slow each other down\nhint: --device cuda")
    if options.record and options.output is None and not own_records_writable():
        raise UsageError(
            "--record: there is no safe folder for your records\n"
            "hint: set LAPWING_CACHE to a folder that only you can write, or name a folder with --output"
        )


def _parse_part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part[0] <= part[1]:
        raise UsageError(f"--part {text!r} is not K/N with K from 1 to N\nhint: for example --part 2/4")
    return part


def run_map(options: argparse.Namespace, library: str, free: Callable[[], int | None]) -> int:
    allow_float64_in_jax()
    peers = PEERS if options.peers is None else parse_words(options.peers, PEERS, "peer")
    grid = GRIDS[options.device, options.quick]
    cases = part_of(grid.cases(options.device, options.operations, options.dtypes), options.k_of_n)
    present, absent = peer_entries(options.device, peers)
    machine = planner.hardware_of(options.device)
    print(f"{len(cases)} cells through {library} on {options.device} ({machine}), against {', '.join(p.name for p in present)}")
    if native is None:
        print(f"hint: {how_to_build()}")
    notes = [f"without {a.name}: {a.reason}" for a in absent]
    for note in notes:
        print(note, flush=True)
    stem = f"map-{options.device}" + (f"-{options.k_of_n[0]}-of-{options.k_of_n[1]}" if options.part else "")
    path = options.save / f"{stem}.json"
    command = command_in_words(["lapwing", *options.command_line])

    def report(rows: Sequence[Row], left_out: Sequence[str]) -> Report:
        return make_report(rows, notes=notes, command=command, left_out=left_out)

    progress, saved = Progress(len(cases), every=MINUTE), perf_counter()

    def done(rows: Sequence[Row], left_out: Sequence[str]) -> None:
        nonlocal saved
        if perf_counter() - saved > _SAVE_EVERY:
            rest = [f"{case}: the run was stopped" for case in cases[len(rows) + len(left_out) :]]
            _write(report(rows, [*left_out, *rest]), path)
            saved = perf_counter()

    rows, left_out = measure_map(
        cases,
        library,
        repeat=options.repeat,
        seconds=inf if options.seconds is None else options.seconds,
        engines=options.record,
        peers=peers,
        free=free,
        turn=None if options.turns is None else Turn(options.turns),
        step=lambda case: progress.step(str(case)),
        done=done,
    )
    progress.clear()
    return _conclude(options, report(rows, left_out), path)


def merge_maps(options: argparse.Namespace) -> int:
    try:
        reports = [read_report(path) for path in options.merge]
        merged = merge(reports)
    except (OSError, ValueError) as error:
        raise UsageError(f"--merge: {error}\nhint: name files that bench map --save wrote") from error
    devices = sorted({row.case.device for row in merged.rows})
    return _conclude(options, merged, options.save / f"map-{'-'.join(devices)}.json")


def _conclude(options: argparse.Namespace, report: Report, path: Path) -> int:
    """Say what is red, wrong and left out; write the files. 1 when an answer was wrong."""
    wrong = [row for row in report.rows if row.wrong]
    lines = red_in_words(report.rows)
    count = f"{counted(len(lines), 'red cell')} of {len(report.rows)}"
    print(f"\n{count}: lapwing's time, the best other library's, the ratio, the engine")
    for line in lines:
        print(f"  {line}")
    for row in wrong:
        trouble = "; ".join(f"{name}: {check}" for name, check in row.checks if not check.ok)
        print(f"  WRONG ANSWER, not timed: {row.case}: {trouble}")
    if others := wrong_peers_in_words(report.rows):
        print(f"other libraries whose answer was wrong, so that they are no peers there ({len(others)}):")
        for line in others:
            print(f"  {line}")
    if report.left_out:
        print(f"left out ({len(report.left_out)}):")
        for line in report.left_out[:_NAMED]:
            print(f"  {line}")
        if (more := len(report.left_out) - _NAMED) > 0:
            print(f"  and {more} more: {path} names them")
    print()
    print("\n".join(summary(report.rows)))
    _write(report, path)
    print(f"wrote {path}")
    if report.rows and can_plot():
        picture = path.with_suffix(".png")
        with Waiting("drawing the picture"):
            plot_map(report, picture, map_title(report))
        print(f"wrote {picture}")
    elif report.rows:
        print(f"no picture: matplotlib is not installed\nhint: {HOW_TO_GET['matplotlib']}")
    if options.record and not wrong:
        _write_records(options, report)
    elif options.record:
        print("an answer was wrong: nothing was recorded")
    return 1 if wrong else 0


def _write(report: Report, path: Path) -> None:
    try:
        write_report(report, path)
    except OSError as error:
        raise UsageError(f"--save {path}: {error}\nhint: name another folder, or free some space") from error


def _write_records(options: argparse.Namespace, report: Report) -> None:
    records = records_of(report)
    if not records:
        print("nothing was recorded: no engines were timed by name\nhint: lapwing bench map --record")
    for record in records:
        place = None if options.output is None else options.output / f"{record.name}.json"
        print(f"wrote {write_record(record, place)}")
    if records and options.output is None:
        planner.reload_records()
        print("the planner chooses by them from now on; delete those files to undo")
