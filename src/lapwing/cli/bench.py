"""lapwing bench: check the answers, then time lapwing and its peers side by side; or measure a record for the planner."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from .. import planner
from ..bench.case import Absent, Case, Entry, Row
from ..bench.environment import HOW_TO_GET, counted, environment
from ..bench.libraries import LIBRARIES, PEERS, allow_float64_in_jax
from ..bench.matrices import MATRICES
from ..bench.measure import copy_bandwidth, every_engine, fitting, measure, peer_entries, usable_library, why_not
from ..bench.operations import operation_of
from ..bench.plot import KINDS, can_plot, plot_eigh, plot_rows
from ..bench.record import RECORDS
from ..bench.report import command_in_words, make_report, write_report
from ..bench.table import UNSTEADY, Table
from ..core.native import how_to_build, native
from ..core.plan import bytes_in_words
from .map import MAP_OPTIONS, add_map_options, check_map_options, merge_maps, run_map
from .progress import Progress
from .record import run_record
from .usage import (
    UsageError,
    add_device,
    add_subset,
    check_output,
    check_positive,
    parse_dtypes,
    parse_sizes,
    parse_subset,
    parse_words,
    sentence,
)

_OPERATIONS = (
    *("cholesky", "eigh", "eigvalsh", "solve", "inv", "slogdet", "det", "lu", "qr", "svd", "svdvals", "lstsq"),
    *("eig", "eigvals", "schur"),
)
_OF_EIGENVALUES = ("eigh", "eigvalsh")
# fields of a case that only some operations have, with their flags
_CHOICES = {"k": "--rhs", "rows": "--rows", "assume": "--assume", "precision": "--precision", "condition": "--condition"}
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_DEFAULTS = {"sizes": "4,16,64,256", "dtype": "float64", "batch": 1, "engine": "auto", "matrix": "random", "repeat": 10}
_NOT_FOR_RECORDS = ("sizes", "batch", "dtype", "peers", "plot", "engine", "matrix", "upper", "json", "subset", *_CHOICES)
_ARRAYS = 3  # held at the same time for each library: the input, the answer, one for the copy or the check


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "check the answers, then time lapwing and other libraries side by side"
    parser = commands.add_parser("bench", help=text, description=sentence(text) + ".")
    add = parser.add_argument
    known = f"one of {', '.join(_OPERATIONS)}; or map: all of them over many sizes, with a picture"
    add("operation", choices=(*_OPERATIONS, "map"), metavar="operation", help=known)
    add("--sizes", help="orders n (for tall matrices the columns), separated by commas (default: 4,16,64,256)")
    add("--repeat", type=int, help="samples per contender (default: 10, for map at most 5)")
    add("--dtype", "--dtypes", help="separated by commas: float32 (single), float64 (double), complex64, complex128")
    add("--batch", type=int, help="matrices per call (default: 1)")
    add(
        "--framework",
        choices=LIBRARIES,
        help="the array library that lapwing is called with (default: numpy, on a GPU the first that has one)",
    )
    add_device(parser)
    add(
        "--peers",
        nargs="?",
        const=",".join(PEERS),
        help="also time other libraries: all that are installed, or those you name",
    )
    add("--engine", help='"auto" (default), or a name from lapwing info')
    add(
        "--matrix",
        choices=MATRICES,
        help="random, or known: (i+j)/n^2 off the diagonal, 1..n on it; the others are for eigenvalues and systems",
    )
    add_subset(parser)
    add("--rhs", dest="k", type=int, metavar="K", help="right-hand sides, for solve and lstsq (default: 1)")
    add("--rows", type=int, metavar="M", help="rows of tall matrices, for qr, svd, svdvals and lstsq (default: square)")
    add(
        "--assume",
        choices=["general", "pos", "symmetric", "lower"],
        help="what solve, inv and slogdet may assume about the matrix (default: general)",
    )
    add("--precision", choices=["full", "mixed"], help="for solve: mixed allows a factor in lower precision (default: full)")
    add(
        "--condition",
        type=float,
        metavar="C",
        help="singular values from 1 down to 1/C; not for cholesky and eigenvalues",
    )
    add("--threads", type=int, help="CPU threads for every library")
    add("--upper", action="store_true", help="use the upper triangle")
    add("--json", type=Path, metavar="FILE", help="write all measurements to a file")
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw time and speed-up over n (.png, .pdf, .svg); for eigenvalues time and workspace of every engine",
    )
    add("--record", action="store_true", help="measure every engine over a grid; from then on lapwing chooses engines by it")
    add("--quick", action="store_true", help="with --record and map: fewer points")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="with --record: write to this file instead of your own records; with map to this folder",
    )
    add_map_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.operation == "map":
        check_map_options(options)
    else:
        _check_options(options)
    if options.threads is not None and not _limited_to(options.threads):
        return _run_limited(options.threads, options.command_line)
    if options.operation == "map" and options.merge:
        return merge_maps(options)
    library = _library(options.framework, options.device)
    if options.operation == "map":
        return run_map(options, library, _free_memory)
    if options.record:
        return run_record(options, library)
    cases = _cases(options)
    entries, absent = _entries(options, library, cases)
    _check_memory(cases, entries)
    if any(e.library == "jax" for e in entries):
        allow_float64_in_jax()
    bandwidth = copy_bandwidth(library) if options.device == "cuda" else None
    rows = _measure_all(options, cases, entries, absent, bandwidth)
    if options.json:
        command = command_in_words(["lapwing", *options.command_line])
        notes = [f"{a.name}: {a.reason}" for a in absent]
        report = make_report(rows, bandwidth=bandwidth, notes=notes, command=command)
        try:
            write_report(report, options.json)
        except OSError as error:
            raise UsageError(f"--json {options.json}: {error}\nhint: name another file, or free some space") from error
        print(f"wrote {options.json}")
    if options.plot:
        _plot(rows, options, library)
    return 1 if any(row.wrong for row in rows) else 0


def _check_options(options: argparse.Namespace) -> None:
    """Refuse what can be refused without loading a library; then set the defaults."""
    check_positive(options, "batch", "repeat", "threads")
    for name in MAP_OPTIONS:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} works only with map\nhint: lapwing bench map")
    for name in _NOT_FOR_RECORDS if options.record else ("quick", "output"):
        if getattr(options, name):
            why = "--record measures its own grid" if options.record else "it works only with --record"
            raise UsageError(f"{why}; {_CHOICES.get(name, f'--{name}')} has no effect\nhint: leave it out")
    for name, value in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.record and options.operation == "eigvalsh":
        raise UsageError("eigvalsh uses the record of eigh\nhint: lapwing bench eigh --record")
    if options.record and options.operation not in RECORDS:
        raise UsageError(f"--record is for {' and '.join(RECORDS)}\nhint: leave it out, or bench one of these")
    kinds = operation_of(options.operation).matrices
    if options.matrix not in kinds:
        raise UsageError(
            f"--matrix {options.matrix}: {options.operation} is measured with {', '.join(kinds)}\nhint: --matrix {kinds[0]}"
        )
    if options.subset is not None and options.operation not in _OF_EIGENVALUES:
        raise UsageError("--subset is for eigh and eigvalsh\nhint: leave it out, or bench eigh")
    _check_choices(options)
    if options.json:
        check_output("--json", options.json)
    if options.plot:
        check_output("--plot", options.plot, KINDS)
        if not can_plot():
            raise UsageError(f"--plot: matplotlib is not installed\nhint: {HOW_TO_GET['matplotlib']}")


def _check_choices(options: argparse.Namespace) -> None:
    """Refuse options that the operation does not have, or that contradict each other."""
    for name, flag in _CHOICES.items():
        if getattr(options, name) is not None and name not in operation_of(options.operation).choices:
            others = [other for other in _OPERATIONS if name in operation_of(other).choices]
            raise UsageError(f"{flag} is for {' and '.join(others)}\nhint: leave it out, or bench one of these")
    for name, least in (("k", 1), ("rows", max(parse_sizes(options.sizes))), ("condition", 1.0)):
        if (value := getattr(options, name)) is not None and not value >= least:
            raise UsageError(f"{_CHOICES[name]} {value:g} is less than {least:g}\nhint: use {least:g} or more")
    chosen = operation_of(options.operation).choices
    if options.upper and ("upper" not in chosen or ("assume" in chosen and options.assume != "pos")):
        raise UsageError("--upper is for cholesky, eigenvalues and --assume pos\nhint: leave it out")
    special = options.assume in ("symmetric", "lower")
    if special and (options.matrix != "random" or options.condition is not None):
        raise UsageError(
            f"--assume {options.assume} makes its own matrix; --matrix and --condition have no effect\nhint: leave them out"
        )
    if options.matrix != "random" and options.condition is not None:
        raise UsageError(f"--condition makes a matrix of its own; --matrix {options.matrix} has no effect\nhint: leave one out")
    if options.precision == "mixed" and not {*parse_dtypes(options.dtype)} <= {"float64", "complex128"}:
        raise UsageError("--precision mixed is for float64 and complex128\nhint: --dtype float64")


def _cases(options: argparse.Namespace) -> list[Case]:
    subset = None if options.subset is None else parse_subset(options.subset)
    chosen = {name: value for name in _CHOICES if (value := getattr(options, name)) is not None}
    return [
        Case(
            n, options.batch, dtype, options.device, options.upper, options.matrix, options.operation, _part(subset, n),
            **chosen,
        )
        for dtype in parse_dtypes(options.dtype)
        for n in parse_sizes(options.sizes)
    ]  # fmt: skip


def _part(subset: slice | None, n: int) -> tuple[int, int] | None:
    """Index of the first eigenvalue and their number; None for all."""
    if subset is None:
        return None
    first, last, _ = subset.indices(n)
    if last <= first:
        raise UsageError(
            f"--subset {subset.start or ''}:{subset.stop or ''} selects none of {n} eigenvalues\n"
            "hint: --subset -16: selects the 16 largest"
        )
    return None if last - first == n else (first, last - first)


def _library(name: str | None, device: str) -> str:
    if name is None:
        name = "numpy" if device == "cpu" else usable_library(("torch", "cupy", "jax"), device)
        if name is None:
            raise UsageError(f"no array library here has a {device} device\nhint: lapwing info says what is missing")
    if reason := why_not(name, device):
        raise UsageError(f"--framework {name} on {device}: {reason}\nhint: lapwing info says what is installed")
    return name


def _entries(options: argparse.Namespace, library: str, cases: list[Case]) -> tuple[list[Entry], list[Absent]]:
    try:
        for case in cases:
            planner.code_of(options.engine, case.problem)
    except ValueError as error:
        raise UsageError(str(error)) from error
    ours = [Entry("lapwing", library, options.engine)]
    if options.plot and options.operation in _OF_EIGENVALUES and options.engine == "auto":
        ours += every_engine(library, cases)
    if options.peers is None:
        return ours, []
    peers, absent = peer_entries(options.device, parse_words(options.peers, PEERS, "peer"), cases[0])
    return [*ours, *peers], absent


def _check_memory(cases: list[Case], entries: list[Entry]) -> None:
    free = _free_memory()
    for case in cases:
        names = sorted({e.library for e in entries}) if case.device == "cpu" else ["the host"]
        copy = case.input_bytes
        if free is not None and _ARRAYS * len(names) * copy > free:
            what = f"n={case.n}{f' batch={case.batch}' if case.batch > 1 else ''} {case.dtype}"
            raise UsageError(
                f"{what} needs {_ARRAYS} copies of {bytes_in_words(copy)} for each of {', '.join(names)}; "
                f"{bytes_in_words(free)} are free here\nhint: use smaller --sizes or --batch, or fewer --peers"
            )


def _free_memory() -> int | None:
    """Free bytes, or None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _measure_all(
    options: argparse.Namespace, cases: list[Case], entries: list[Entry], absent: list[Absent], bandwidth: float | None
) -> list[Row]:
    on_gpu = options.device == "cuda"
    where = environment()
    machine = where.gpus[0].name if on_gpu and where.gpus else f"{where.instructions}, {counted(where.threads, 'thread')}"
    repeats = counted(options.repeat, "repeat")
    print(f"{_what(options)} through {entries[0].library} on {options.device} ({machine}), {repeats}")
    if native is None:
        print(f"hint: {how_to_build()}")
    for a in absent:
        print(f"without {a.name}: {a.reason}")
    if bandwidth:
        print(f"device copy: {bandwidth * 1e-12:.3g} TB/s")
    table = Table([e.name for e in entries[1:]], on_gpu=on_gpu)
    print(f"\n{table.header()}")
    progress = Progress(len(cases))
    rows = []
    for case in cases:
        progress.step(str(case))
        rows.append(measure(case, fitting(case, entries), repeat=options.repeat, bandwidth=bandwidth))
        progress.clear()
        print(table.line(rows[-1]), flush=True)
        for a in rows[-1].absent:
            print(f"  without {a.name}: {a.reason}")
    print(f"\n{table.legend(on_gpu=on_gpu, operation=options.operation)}")
    if any(row.unsteady for row in rows):
        print(UNSTEADY)
    return rows


def _what(options: argparse.Namespace) -> str:
    """The operation and its options, in words."""
    words = [options.operation, options.subset, options.assume, options.precision]
    words += [f"of {options.rows} x n" if options.rows else None, f"k={options.k}" if options.k else None]
    words += [f"condition {options.condition:.0e}" if options.condition else None]
    return " ".join(word for word in words if word)


def _plot(rows: list[Row], options: argparse.Namespace, library: str) -> None:
    if not any(row.lapwing for row in rows):
        return
    try:
        if options.operation in _OF_EIGENVALUES:
            plot_eigh([*rows, *_other_device(options)], options.plot, _what(options))
        else:
            plot_rows(rows, options.plot, f"{_what(options)}, lapwing through {library} on {options.device}")
    except OSError as error:
        raise UsageError(f"--plot {options.plot}: {error}\nhint: name another file, or free some space") from error
    print(f"wrote {options.plot}")


def _other_device(options: argparse.Namespace) -> list[Row]:
    """The same cases on the other device, CPU or GPU, for the picture that shows both."""
    device = "cpu" if options.device == "cuda" else "cuda"
    library = (
        usable_library(("numpy",) if device == "cpu" else ("torch", "cupy", "jax"), device) if environment().gpus else None
    )
    if library is None:
        return []
    other = argparse.Namespace(**{**vars(options), "device": device})
    cases = _cases(other)
    entries, absent = _entries(other, library, cases)
    _check_memory(cases, entries)
    bandwidth = copy_bandwidth(library) if device == "cuda" else None
    return _measure_all(other, cases, entries, absent, bandwidth)


def _limited_to(threads: int) -> bool:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
    return cores <= threads and all(os.environ.get(name) == str(threads) for name in _THREAD_VARIABLES)


def _run_limited(threads: int, command_line: list[str]) -> int:
    """Run the same command in a new process: BLAS and JAX read the limits only when they are loaded."""
    cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else []

    def limit() -> None:
        if cores:
            os.sched_setaffinity(0, cores)

    variables = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))}
    sys.stdout.flush()
    command = [sys.executable, "-m", "lapwing", *command_line]
    with subprocess.Popen(command, env=variables, preexec_fn=limit) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:  # the terminal interrupts the child too, which reports it
            return child.wait()
