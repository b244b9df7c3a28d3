"""lapwing tune: record the matrix products of a program, find faster kernels for them, prove it, and use them."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from .tune_output import (
    Live,
    parse_budget,
    plural,
    print_configured,
    print_path,
    print_problems,
    print_searched,
    products,
    say,
)
from .tune_steps import LATER, add_step, add_workdir, measuring, search_options, searching, write_for_amd
from .usage import UsageError, check_output

if TYPE_CHECKING:
    from ..tune.readers import Log

_SHOWN = 40  # products


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "make the matrix products of a program faster"
    parser = commands.add_parser("tune", help=text, description=text.capitalize() + ", and prove it.")
    steps = parser.add_subparsers(title="steps", required=True, metavar="all | record | read | configure | run | compare | ...")
    for add in (_all, _record, _read, _configure, *LATER):
        add(steps)


# all


def _all(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "all", "every step, from a log to a library that can be used", run_all)
    _logs(parser)
    add_workdir(parser)
    measuring(parser, "30m")
    searching(parser)
    parser.add_argument("--keep-thr", type=float, default=0.1, help="drop products below this percentage of the time (0.1)")
    parser.add_argument("--threshold", type=float, default=1.03, help="keep what is at least this many times faster (1.03)")


def run_all(options: argparse.Namespace) -> int:
    from ..tune import Metrics, RunSummary, all_steps

    search = search_options(options)
    if options.backend == "hipblaslt":
        options.device = 0
        return run_configure(options) or write_for_amd(options.workdir)
    log = _understood(options)
    live = Live()

    def done(what: object) -> None:
        live.clear()
        if isinstance(what, RunSummary):
            print_searched(what, share=True)
        elif isinstance(what, Metrics):
            print(what)
        elif isinstance(what, Path):
            print_path("library" if what.name == "final" else "report", what)
        elif isinstance(what, tuple):
            print_configured(what, log, options.workdir)

    tuned = all_steps(
        log,
        options.workdir,
        **search,
        keep_thr=options.keep_thr,
        threshold=options.threshold,
        progress=live.step,
        done=done,
    )
    if any(c.kept and c.backend == "cpu" for c in tuned.comparisons):
        print("on a CPU the library serves NumPy arrays, in lapwing.matmul; torch's own products stay as they are")
    return 0


# record


def _record(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "record", "run a program and write a table of its matrix products", run_record)
    parser.usage = "lapwing tune record [-o FILE | --workdir W] [--watch ...] -- PROGRAM ..."
    parser.add_argument("-o", "--output", type=Path, help="the table of products (default: recorded.csv, in the workdir)")
    parser.add_argument("--workdir", type=Path, default=Path(), help="a folder for recorded.csv (default: here)")
    parser.add_argument(
        "--watch",
        choices=("auto", "torch", "logs", "all"),
        default="auto",
        help="the libraries' logs, torch's operators, or all; auto: logs on a machine with a GPU, else torch",
    )
    parser.add_argument("--keep-logs", type=Path, help="a new folder for the raw logs")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="after --: the program and its arguments")


def run_record(options: argparse.Namespace) -> int:
    from ..tune import record

    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UsageError("tune record: no program was given\nhint: lapwing tune record -- python serve.py")
    options.workdir.mkdir(parents=True, exist_ok=True)
    output = options.output or options.workdir / "recorded.csv"
    check_output("--output", output)
    try:
        done = record(program, watch=options.watch, keep=options.keep_logs)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"tune record: {program[0]} cannot be started: {getattr(error, 'strerror', error)}") from error
    for note in done.notes:
        say(note)
    print_problems(done.log)
    if not done.log.calls:
        say("no matrix product was recorded")
        say(f"hint: {done.hint}")
    path = done.log.write_csv(output)
    say(f"{products(done.log)} of {plural(done.processes, 'process', 'processes')}: {path}")
    return done.code


# read


def _read(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "read", "show the products of logs, and the lines that are not understood", run_read)
    _logs(parser)
    parser.add_argument("-o", "--output", type=Path, help="write all products as a table")
    parser.epilog = (
        "It understands logs of hipBLASLt (masks 32, 64, 128), cuBLAS and cuBLASLt, files of TunableOp, traces of "
        "torch.profiler (.json, .json.gz; record_shapes=True), tables with a heading m,n,k,..., and products in words."
    )


def run_read(options: argparse.Namespace) -> int:
    if options.output:
        check_output("--output", options.output)
    log = _understood(options)
    total = sum(call.gemm.flops * call.count for call in log.calls)
    print(f"{'calls':>10}  {'flops':>6}  product")
    for call in sorted(log.calls, key=lambda call: -call.gemm.flops * call.count)[: None if options.all else _SHOWN]:
        print(f"{call.count:>10}  {100 * call.gemm.flops * call.count / total:5.1f}%  {call.gemm}")
    if len(log.calls) > _SHOWN and not options.all:
        print(f"... and {len(log.calls) - _SHOWN} more; --all shows them")
    if options.output:
        print_path("table", log.write_csv(options.output))
    return 0


# configure


def _configure(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "configure", "measure each product once, and choose those that matter", run_configure)
    _logs(parser)
    add_workdir(parser)
    parser.add_argument("--backend", default="auto", help="cublaslt, triton, cpu or hipblaslt (default: auto)")
    parser.add_argument("--device", type=int, default=0, help="which device measures (default: 0)")
    parser.add_argument("--keep-thr", type=float, default=0.1, help="drop products below this percentage of the time (0.1)")
    parser.add_argument("--budget", help="at most this long, 10m for example")


def run_configure(options: argparse.Namespace) -> int:
    from ..tune import configure

    budget = parse_budget(options.budget) if options.budget else None
    log = _understood(options)
    live = Live()
    chosen = configure(
        log,
        options.workdir,
        backend=options.backend,
        keep_thr=options.keep_thr,
        device=options.device,
        budget=budget,
        progress=live.step,
    )
    live.clear()
    print_configured(chosen, log, options.workdir)
    if options.backend == "hipblaslt":
        print("shares and times are estimated from the work of each product: nothing was measured")
    return 0


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", nargs="+", help='logs or tables, or products in words: "6144x16x4096 bf16 TN"')
    parser.add_argument("--ranks", choices=("sum", "max"), default="sum", help="counts of several files (default: sum)")
    parser.add_argument("--all", action="store_true", help="show every product and every line that is not understood")


def _understood(options: argparse.Namespace) -> Log:
    from ..tune.readers import read

    log = read(*options.log, ranks=options.ranks)
    print_problems(log, everything=options.all)
    if not log.calls:
        raise UsageError("tune: no product was found\nhint: lapwing tune read --help lists the logs that are understood")
    say(products(log))
    return log
