"""lapwing tune: record the matrix products of a program, find faster kernels for them, prove it, and use them."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .usage import UsageError, check_output

if TYPE_CHECKING:
    from ..tune.readers import Log

__all__ = ["add_parser", "parse_budget"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHOWN = 10  # bad lines, and products
# of what is left when the search begins, the part that the comparison afterwards may need
_FOR_COMPARING = 0.2
_FOR_CONFIGURING = 0.2
FORMATS = ("tunableop", "inductor", "vllm", "hipblaslt")
POLICIES = ("winner", "force", "newest")


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "make the matrix products of a program faster"
    parser = commands.add_parser("tune", help=text, description=text.capitalize() + ", and prove it.")
    steps = parser.add_subparsers(title="steps", required=True, metavar="all | record | read | configure | run | compare | ...")
    for add in (_all, _record, _read, _configure, _run, _compare, _report, _export, _merge, _solvers):
        add(steps)


def parse_budget(text: str) -> float:
    """ "30m", "90s", "1h30m", "45": seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip().lower())
    if not parts or "".join(n + unit for n, unit in parts) != text.strip().lower() or sum(unit == "" for _, unit in parts) > 1:
        raise UsageError(f"--budget {text!r} is not a time\nhint: for example 30m, 90s or 1h30m")
    seconds = sum(float(n) * _UNITS[unit] for n, unit in parts)
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--budget {text!r} is no time at all\nhint: for example 30m, 90s or 1h30m")
    return seconds


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

    compare, library, report, results, run = map(_part, ("compare", "library", "report", "results", "run"))

    budget = parse_budget(options.budget)
    devices = _devices(options.devices)
    ends = time.monotonic() + budget
    workdir = options.workdir
    log = _understood(options)
    chosen = configure(
        log,
        workdir,
        backend=options.backend,
        keep_thr=options.keep_thr,
        device=devices[0] if devices else 0,
        budget=_FOR_CONFIGURING * budget,
        progress=_say,
    )
    _tell_configured(chosen, log, workdir)
    left = max(ends - time.monotonic(), 1.0)
    run.run(
        workdir,
        backend=options.backend,
        devices=devices,
        budget=(1 - _FOR_COMPARING) * left,
        strategy=options.strategy,
        seed=options.seed,
        evaluations=options.evaluations,
        progress=_say,
    )
    comparisons = compare.compare(workdir, threshold=options.threshold, devices=devices)
    print(results.write(workdir, comparisons))
    _tell("report", report.write(workdir))
    _tell("library", library.build(workdir, comparisons))
    return 0


# record


def _record(steps: argparse._SubParsersAction) -> None:
    from ..tune.record import WATCH

    parser = _step(steps, "record", "run a program and write down its matrix products", run_record)
    parser.usage = "lapwing tune record [-o FILE | --workdir W] [--watch ...] -- PROGRAM ..."
    parser.add_argument("-o", "--output", type=Path, help="the table of products (default: recorded.csv, in the workdir)")
    parser.add_argument("--workdir", type=Path, default=Path(), help="a folder for recorded.csv (default: here)")
    parser.add_argument(
        "--watch", choices=WATCH, default="auto", help="the libraries' logs, torch's operations, or all; auto: logs with a GPU"
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
        _say(note)
    _tell_problems(done.log)
    if not done.log.calls:
        _say("no matrix product was recorded")
        _say("hint: --watch torch sees every product of torch, --watch logs those of cuBLAS, cuBLASLt and hipBLASLt")
    path = done.log.write_csv(output)
    _say(f"{_products(done.log)} of {_plural(done.processes, 'process', 'processes')}: {path}")
    return done.code


# read


def _read(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "read", "show the products of logs, and the lines that are not understood", run_read)
    _logs(parser)
    parser.add_argument("-o", "--output", type=Path, help="write all products as a table")


def run_read(options: argparse.Namespace) -> int:
    if options.output:
        check_output("--output", options.output)
    log = _understood(options)
    total = sum(call.gemm.flops * call.count for call in log.calls)
    print(f"{'calls':>10}  {'flops':>6}  product")
    for call in sorted(log.calls, key=lambda call: -call.gemm.flops * call.count)[: None if options.all else _SHOWN * 4]:
        print(f"{call.count:>10}  {100 * call.gemm.flops * call.count / total:5.1f}%  {call.gemm}")
    if len(log.calls) > _SHOWN * 4 and not options.all:
        print(f"... and {len(log.calls) - _SHOWN * 4} more; --all shows them")
    if options.output:
        _tell("table", log.write_csv(options.output))
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
    chosen = configure(
        log,
        options.workdir,
        backend=options.backend,
        keep_thr=options.keep_thr,
        device=options.device,
        budget=budget,
        progress=_say,
    )
    _tell_configured(chosen, log, options.workdir)
    return 0


# run, compare, report


def _run(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "run", "search faster kernels for the products of a workdir", run_run)
    parser.add_argument("workdir", type=Path, help="what tune configure filled")
    _measuring(parser, None)
    _searching(parser)


def run_run(options: argparse.Namespace) -> int:
    budget = parse_budget(options.budget) if options.budget else None
    devices = _devices(options.devices)
    _filled(options.workdir)
    run = _part("run")

    summary = run.run(
        options.workdir,
        backend=options.backend,
        devices=devices,
        budget=budget,
        strategy=options.strategy,
        seed=options.seed,
        evaluations=options.evaluations,
        progress=_say,
    )
    print(summary)
    _tell("trials", options.workdir / "trials")
    return 0


def _compare(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "compare", "measure the best candidates against the default, and keep what is faster", run_compare)
    parser.add_argument("workdir", type=Path, help="what tune run filled")
    parser.add_argument("--threshold", type=float, default=1.03, help="keep what is at least this much faster (1.03)")
    parser.add_argument("--minimum-us", type=float, default=0.3, help="and saves at least this many microseconds (0.3)")
    parser.add_argument("--devices", help="0,1,...; default: all")


def run_compare(options: argparse.Namespace) -> int:
    devices = _devices(options.devices)
    _filled(options.workdir)
    compare, library, results = map(_part, ("compare", "library", "results"))

    comparisons = compare.compare(options.workdir, threshold=options.threshold, minimum_us=options.minimum_us, devices=devices)
    print(results.write(options.workdir, comparisons))
    _tell("results", options.workdir / "results")
    _tell("library", library.build(options.workdir, comparisons))
    return 0


def _report(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "report", "pages with tables and pictures of what was found", run_report)
    parser.add_argument("workdir", type=Path, help="what tune compare filled")


def run_report(options: argparse.Namespace) -> int:
    _filled(options.workdir)
    report = _part("report")

    _tell("report", report.write(options.workdir))
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

    _tell(options.format, export.export(options.library, options.format, options.output))
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
    _tell("library", options.output)
    return 0


def _solvers(steps: argparse._SubParsersAction) -> None:
    parser = _step(steps, "solvers", "measure lapwing's own kernels here, for its choice of engine", run_solvers)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget", help="at most this long, 10m for example")
    parser.add_argument("-o", "--output", type=Path, help="a folder for the records (default: where lapwing looks for them)")


def run_solvers(options: argparse.Namespace) -> int:
    budget = parse_budget(options.budget) if options.budget else None
    solvers = _part("solvers")

    for path in solvers.solvers(device=options.device, budget=budget, out=options.output, progress=_say):
        _tell("record", path)
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
    except (ValueError, TypeError) as error:
        raise UsageError(f"tune {error}") from error
    except FileNotFoundError as error:
        raise UsageError(f"tune: there is no {error.filename}") from error


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


def _devices(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text.replace(" ", "")):
        raise UsageError(f"--devices {text!r} is not a list of devices\nhint: for example --devices 0,1")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def _filled(workdir: Path) -> None:
    if not any((workdir / "configs").glob("*.json")):
        raise UsageError(f"tune: {workdir} has no products to tune\nhint: lapwing tune configure LOG --workdir {workdir}")


def _understood(options: argparse.Namespace) -> Log:
    from ..tune.readers import read

    log = read(*options.log, ranks=options.ranks)
    _tell_problems(log, everything=options.all)
    if not log.calls:
        raise UsageError("tune: no product was found\nhint: lapwing tune read --help says which logs are understood")
    _say(_products(log))
    return log


def _tell_problems(log: Log, everything: bool = False) -> None:
    for problem in log.problems[: None if everything else _SHOWN]:
        _say(f"{problem}" + (f": {problem.text[:60]!r}" if problem.text else ""))
    if len(log.problems) > _SHOWN and not everything:
        _say(f"... and {len(log.problems) - _SHOWN} more lines that were not understood")


def _tell_configured(chosen: Iterable[Any], log: Log, workdir: Path) -> None:
    chosen = list(chosen)
    for config in chosen:
        print(f"{config.name:12} {config.percent:6.2f} %  {config.seconds * 1e6:10.1f} us x {config.count:<8} {config.gemm}")
    dropped = len(log.calls) - len(chosen)
    print(f"{_plural(len(chosen), 'product')} to tune, {dropped} dropped")
    _tell("summary", workdir / "problems.csv")
    _tell("configurations", workdir / "configs")


def _products(log: Log) -> str:
    return f"{_plural(len(log.calls), 'product')}, {_plural(log.count, 'call')}"


def _plural(count: int, word: str, many: str = "") -> str:
    return f"{count} {word if count == 1 else many or word + 's'}"


def _tell(what: str, path: object) -> None:
    print(f"{what}: {path}")


def _say(text: object) -> None:
    if sys.stderr is not None:
        print(f"lapwing: {text}", file=sys.stderr, flush=True)
