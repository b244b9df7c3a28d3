"""lapwing tune: record the matrix products of a program, find faster kernels for them, prove it, and use them."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tune_output import (
    Live,
    parse_budget,
    parse_devices,
    plural,
    products,
    say,
    tell,
    tell_configured,
    tell_problems,
    tell_searched,
)
from .usage import UsageError, check_output

if TYPE_CHECKING:
    from ..tune.readers import Log

__all__ = ["add_parser"]

_SHOWN = 40  # products
_FOR_CONFIGURING = 0.2  # of the budget, at most
FORMATS = ("tunableop", "inductor", "vllm", "hipblaslt")
POLICIES = ("winner", "force", "newest")


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "make the matrix products of a program faster"
    parser = commands.add_parser("tune", help=text, description=text.capitalize() + ", and prove it.")
    steps = parser.add_subparsers(title="steps", required=True, metavar="all | record | read | configure | run | compare | ...")
    for add in (_all, _record, _read, _configure, _run, _compare, _report, _export, _merge, _solvers):
        add(steps)


# all


def _all(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "all", "every step, from a log to a library that can be used", run_all)
    _logs(parser)
    _workdir(parser)
    _measuring(parser, "30m")
    _searching(parser)
    parser.add_argument("--keep-thr", type=float, default=0.1, help="drop products below this percentage of the time (0.1)")
    parser.add_argument("--threshold", type=float, default=1.03, help="keep what is at least this much faster (1.03)")


def run_all(options: argparse.Namespace) -> int:
    from ..tune.configure import configure

    budget = parse_budget(options.budget)
    devices = parse_devices(options.devices)
    compare, library, report, results, run = map(_part, ("compare", "library", "report", "results", "run"))
    ends = time.monotonic() + budget
    workdir = options.workdir
    log = _understood(options)
    live = Live()
    chosen = configure(
        log,
        workdir,
        backend=options.backend,
        keep_thr=options.keep_thr,
        device=devices[0] if devices else 0,
        budget=_FOR_CONFIGURING * budget,
        progress=live.step,
    )
    live.clear()
    tell_configured(chosen, log, workdir)
    left = max(ends - time.monotonic(), 1.0)
    searched = run.run(
        workdir,
        backend=options.backend,
        devices=devices,
        budget=left - _for_comparing(left, len(chosen)),
        strategy=options.strategy,
        seed=options.seed,
        evaluations=options.evaluations,
        progress=live.step,
    )
    live.clear()
    tell_searched(searched)
    comparisons = compare.compare(workdir, threshold=options.threshold, devices=devices)
    print(results.write(workdir, comparisons))
    tell("report", report.write(workdir))
    tell("library", library.build(workdir, comparisons))
    return 0


def _for_comparing(left: float, problems: int) -> float:
    """Seconds to keep for the comparison after the search: a little for each product, within reason."""
    return min(max(1.5 * problems, 0.2 * left), 0.5 * left)


# record


def _record(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "record", "run a program and write down its matrix products", run_record)
    parser.usage = "lapwing tune record [-o FILE | --workdir W] [--watch ...] -- PROGRAM ..."
    parser.add_argument("-o", "--output", type=Path, help="the table of products (default: recorded.csv, in the workdir)")
    parser.add_argument("--workdir", type=Path, default=Path(), help="a folder for recorded.csv (default: here)")
    parser.add_argument(
        "--watch",
        choices=("auto", "torch", "logs", "all"),
        default="auto",
        help="the libraries' logs, torch's operations, or all; auto: logs with a GPU",
    )
    parser.add_argument("--keep-logs", type=Path, help="a new folder for the raw logs")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="after --: the program and its arguments")


def run_record(options: argparse.Namespace) -> int:
    from ..tune.record import record

    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UsageError("tune record: no program\nhint: lapwing tune record -- python serve.py")
    options.workdir.mkdir(parents=True, exist_ok=True)
    output = options.output or options.workdir / "recorded.csv"
    check_output("--output", output)
    try:
        done = record(program, watch=options.watch, keep=options.keep_logs)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"tune record: {program[0]} cannot be started: {getattr(error, 'strerror', error)}") from error
    for note in done.notes:
        say(note)
    tell_problems(done.log)
    if not done.log.calls:
        say("no matrix product was recorded")
        say("hint: --watch torch sees every product of torch, --watch logs those of cuBLAS, cuBLASLt and hipBLASLt")
    path = done.log.write_csv(output)
    say(f"{products(done.log)} of {plural(done.processes, 'process', 'processes')}: {path}")
    return done.code


# read


def _read(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "read", "show the products of logs, and the lines that are not understood", run_read)
    _logs(parser)
    parser.add_argument("-o", "--output", type=Path, help="write all products as a table")
    parser.epilog = (
        "Understood are logs of hipBLASLt (masks 32, 64, 128), cuBLAS and cuBLASLt, files of TunableOp, traces of "
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
        tell("table", log.write_csv(options.output))
    return 0


# configure


def _configure(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "configure", "measure each product once, and choose those that matter", run_configure)
    _logs(parser)
    _workdir(parser)
    parser.add_argument("--backend", default="auto", help="cublaslt, triton or cpu (default: auto)")
    parser.add_argument("--device", type=int, default=0, help="which device measures (default: 0)")
    parser.add_argument("--keep-thr", type=float, default=0.1, help="drop products below this percentage of the time (0.1)")
    parser.add_argument("--budget", help="at most this long, 10m for example")


def run_configure(options: argparse.Namespace) -> int:
    from ..tune.configure import configure

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
    tell_configured(chosen, log, options.workdir)
    return 0


# run, compare, report


def _run(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "run", "search faster kernels for the products of a workdir", run_run)
    parser.add_argument("workdir", type=Path, help="what tune configure filled")
    _measuring(parser, None)
    _searching(parser)


def run_run(options: argparse.Namespace) -> int:
    budget = parse_budget(options.budget) if options.budget else None
    devices = parse_devices(options.devices)
    _filled(options.workdir)
    run = _part("run")

    live = Live()
    searched = run.run(
        options.workdir,
        backend=options.backend,
        devices=devices,
        budget=budget,
        strategy=options.strategy,
        seed=options.seed,
        evaluations=options.evaluations,
        progress=live.step,
    )
    live.clear()
    tell_searched(searched)
    tell("trials", options.workdir / "trials")
    return 0


def _compare(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "compare", "measure the best candidates against the default, and keep what is faster", run_compare)
    parser.add_argument("workdir", type=Path, help="what tune run filled")
    parser.add_argument("--threshold", type=float, default=1.03, help="keep what is at least this much faster (1.03)")
    parser.add_argument("--minimum-us", type=float, default=0.3, help="and saves at least this many microseconds (0.3)")
    parser.add_argument("--devices", help="0,1,...; default: all")


def run_compare(options: argparse.Namespace) -> int:
    devices = parse_devices(options.devices)
    _filled(options.workdir)
    compare, library, results = map(_part, ("compare", "library", "results"))

    comparisons = compare.compare(options.workdir, threshold=options.threshold, minimum_us=options.minimum_us, devices=devices)
    print(results.write(options.workdir, comparisons))
    tell("results", options.workdir / "results")
    tell("library", library.build(options.workdir, comparisons))
    return 0


def _report(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "report", "pages with tables and pictures of what was found", run_report)
    parser.add_argument("workdir", type=Path, help="what tune compare filled")


def run_report(options: argparse.Namespace) -> int:
    _filled(options.workdir)
    report = _part("report")

    tell("report", report.write(options.workdir))
    return 0


# export, merge, solvers


def _export(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "export", "a library as another program's file", run_export)
    parser.add_argument("library", type=Path, help="the folder final of a workdir")
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)


def run_export(options: argparse.Namespace) -> int:
    if not options.library.is_dir():
        raise UsageError(f"tune export: there is no folder {options.library}")
    export = _part("export")

    print(export.export(options.library, options.format, options.output))
    return 0


def _merge(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "merge", "several libraries as one", run_merge)
    parser.add_argument("libraries", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--policy", choices=POLICIES, default="winner", help="which entry stays (default: winner, the faster)")


def run_merge(options: argparse.Namespace) -> int:
    for path in options.libraries:
        if not path.is_dir():
            raise UsageError(f"tune merge: there is no folder {path}")
    library = _part("library")

    ledger = library.merge(options.libraries, options.output, policy=options.policy)
    print(ledger if isinstance(ledger, str) else "\n".join(map(str, ledger)))
    tell("library", options.output)
    return 0


def _solvers(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "solvers", "measure lapwing's own kernels here, for its choice of engine", run_solvers)
    parser.add_argument("operations", nargs="*", default=["cholesky", "eigh"], help="cholesky, eigh, ... (default: both)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget", help="at most this long, 10m for example")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("-o", "--output", type=Path, help="a folder for the records (default: where lapwing looks for them)")


def run_solvers(options: argparse.Namespace) -> int:
    budget = parse_budget(options.budget) if options.budget else None
    solvers = _part("solvers")
    live = Live()
    done = solvers.tune(
        options.operations, budget=budget, out=options.output, device=options.device, quick=options.quick, step=live.step
    )
    live.clear()
    for tuned in done:
        for rule in tuned.rules:
            print(rule)
        tell("record", tuned.path)
    return 0


# what the steps share


def _part(name: str) -> Any:
    """A module by its name: in the package the same name may be its function."""
    return importlib.import_module(f"lapwing.tune.{name}")


def _step(
    steps: argparse._SubParsersAction, name: str, text: str, call: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=lambda options: _guarded(call, options))
    return parser


def _guarded(call: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """A value that a function refuses is wrong usage here: its message and hint, without a traceback."""
    try:
        return call(options)
    except ValueError as error:
        text = str(error)
        raise UsageError(text if text.startswith("tune") else f"tune {text}") from error
    except FileNotFoundError as error:
        raise UsageError(f"tune: there is no {error.filename}" if error.filename else f"tune {error}") from error


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", nargs="+", help='logs or tables, or products in words: "6144x16x4096 bf16 TN"')
    parser.add_argument("--ranks", choices=("sum", "max"), default="sum", help="counts of several files (default: sum)")
    parser.add_argument("--all", action="store_true", help="show every product and every line that is not understood")


def _workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", "-w", type=Path, required=True, help="a folder for everything that is found")


def _measuring(parser: argparse.ArgumentParser, budget: str | None) -> None:
    parser.add_argument("--backend", default="auto", help="cublaslt, triton, cpu, or several by commas (default: auto)")
    parser.add_argument("--devices", help="0,1,...; default: all")
    parser.add_argument("--budget", default=budget, help=f"at most this long (default: {budget or 'until it is done'})")


def _searching(parser: argparse.ArgumentParser) -> None:
    text = "auto, genetic, anneal, random, exhaustive, kernel_tuner:NAME or optuna"
    parser.add_argument("--strategy", default="auto", help=text)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, help="candidates for each product")


def _filled(workdir: Path) -> None:
    if not any((workdir / "configs").glob("*.json")):
        raise UsageError(f"tune: {workdir} has no products to tune\nhint: lapwing tune configure LOG --workdir {workdir}")


def _understood(options: argparse.Namespace) -> Log:
    from ..tune.readers import read

    log = read(*options.log, ranks=options.ranks)
    tell_problems(log, everything=options.all)
    if not log.calls:
        raise UsageError("tune: no product was found\nhint: lapwing tune read --help says which logs are understood")
    say(products(log))
    return log
