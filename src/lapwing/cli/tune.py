"""lapwing tune: record the matrix products of a program, find faster kernels for them, prove it, and use them."""

from __future__ import annotations

import argparse
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.environment import counted
from . import tune_amd
from .progress import Waiting
from .tune_output import (
    Live,
    parse_budget,
    parse_devices,
    print_configured,
    print_path,
    print_problems,
    print_searched,
    products,
    say,
)
from .usage import UsageError, check_output, sentence

if TYPE_CHECKING:
    from ..tune.readers import Log

_SHOWN = 40  # products


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "make the matrix products of a program faster"
    parser = commands.add_parser("tune", help=text, description=f"{sentence(text)}, and prove it.")
    steps = parser.add_subparsers(
        title="steps", required=True, metavar="all | record | read | configure | run | compare | amd | ..."
    )
    for name, text, call, arguments, extra in _STEPS:
        step = steps.add_parser(name, help=text, description=f"{sentence(text)}.", **extra)
        for flags, settings in arguments:
            step.add_argument(*flags, **settings)
        step.set_defaults(run=lambda options, call=call: _guarded(call, options))
    tune_amd.add_steps(steps, _guarded)


def _guarded(call: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Turn the ValueError of a function into a usage error: its message and hint, without a traceback."""
    try:
        return call(options)
    except ValueError as error:
        text = str(error)
        raise UsageError(text if text.startswith("tune") else f"tune {text}") from error
    except ImportError as error:
        if "\nhint: " not in str(error):  # not a missing package, but our own mistake
            raise
        raise UsageError(str(error)) from error
    except FileNotFoundError as error:
        raise UsageError(
            f"tune: {error.filename} does not exist\nhint: check the path" if error.filename else f"tune {error}"
        ) from error


def run_all(options: argparse.Namespace) -> int:
    from ..tune import Metrics, RunSummary, all_steps

    tune_amd.check_options(options)
    if options.backend == "hipblaslt":
        return run_configure(options) or tune_amd.write_files(options)
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

    limits = {"keep_thr": options.keep_thr, "threshold": options.threshold}
    tuned = all_steps(log, options.workdir, **_search_options(options), **limits, progress=live.step, done=done)
    if any(c.kept and c.backend == "cpu" for c in tuned.comparisons):
        print("on a CPU the library serves NumPy arrays, in lapwing.matmul; torch's own products stay as they are")
    return 0


def run_record(options: argparse.Namespace) -> int:
    from ..tune import record

    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UsageError("tune record: no program was given\nhint: lapwing tune record -- python serve.py")
    options.workdir.mkdir(parents=True, exist_ok=True)
    output = options.output or options.workdir / "recorded.csv"
    check_output("--output", output)
    try:
        recorded = record(program, watch=options.watch, keep=options.keep_logs)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"tune record: {program[0]} cannot be started: {getattr(error, 'strerror', error)}\n"
            "hint: check its path and that it may be executed"
        ) from error
    for note in recorded.notes:
        say(note)
    print_problems(recorded.log)
    if not recorded.log.calls:
        say("no matrix product was recorded")
        say(f"hint: {recorded.hint}")
    path = recorded.log.write_csv(output)
    say(f"{products(recorded.log)} of {counted(recorded.processes, 'process', 'processes')}: {path}")
    return recorded.code


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


def run_configure(options: argparse.Namespace) -> int:
    from ..tune import configure

    tune_amd.check_options(options)
    log = _understood(options)
    if options.backend == "hipblaslt":
        return tune_amd.configure(options, log)
    live = Live()
    limits = {name: getattr(options, name) for name in ("backend", "keep_thr", "device", "budget")}
    chosen = configure(log, options.workdir, progress=live.step, **limits)
    live.clear()
    print_configured(chosen, log, options.workdir)
    return 0


def _understood(options: argparse.Namespace) -> Log:
    from ..tune.readers import read

    with Waiting("reading the log"):
        log = read(*options.log, ranks=options.ranks)
    print_problems(log, everything=options.all)
    if not log.calls:
        raise UsageError("tune: no product was found\nhint: lapwing tune read --help lists the logs that are understood")
    say(products(log))
    return log


def run_run(options: argparse.Namespace) -> int:
    from .. import tune

    tune_amd.check_options(options)
    _check_configured(options.workdir)
    if options.backend == "hipblaslt":
        return tune_amd.write_files(options)
    live = Live()
    searched = tune.run(options.workdir, progress=live.step, **_search_options(options))
    live.clear()
    print_searched(searched)
    print_path("trials", options.workdir / "trials")
    return 0


def _search_options(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a search, as ``run`` and ``all_steps`` take them."""
    chosen = {name: getattr(options, name) for name in ("devices", "budget", "strategy", "seed", "evaluations")}
    return chosen | {"backend": f"{options.backend},triton_frozen" if options.frozen_weights else options.backend}


def run_compare(options: argparse.Namespace) -> int:
    from .. import tune
    from ..tune.files import check_writable
    from ..tune.validate import results

    _check_configured(options.workdir)
    check_writable(options.workdir / "results", "compare")
    limits = {name: getattr(options, name) for name in ("threshold", "minimum_us", "devices")}
    live = Live()
    comparisons = tune.compare(options.workdir, **limits, progress=live.step)
    live.clear()
    if not comparisons:
        raise UsageError(f"tune compare: nothing was searched in {options.workdir}\nhint: lapwing tune run {options.workdir}")
    print(results.write(options.workdir, comparisons))
    print_path("results", options.workdir / "results")
    print_path("library", tune.build(options.workdir, comparisons))
    return 0


def run_report(options: argparse.Namespace) -> int:
    from ..tune.validate import pages

    _check_configured(options.workdir)
    with Waiting("drawing the pictures"):
        report = pages.write(options.workdir)
    print_path("report", report)
    return 0


def _check_configured(workdir: Path) -> None:
    if not any((workdir / "configs").glob("*.json")):
        raise UsageError(f"tune: {workdir} has no products to tune\nhint: lapwing tune configure LOG --workdir {workdir}")


def run_export(options: argparse.Namespace) -> int:
    from ..tune import export

    _check_libraries("export", options.library)
    with Waiting("writing the files"):
        exported = export(options.library, options.format, options.output)
    print(exported)
    return 0 if exported.written else 1  # a script must not look for a file that was not written


def run_merge(options: argparse.Namespace) -> int:
    from ..tune import merge

    _check_libraries("merge", *options.libraries)
    with Waiting("merging the libraries"):
        ledger = merge(options.libraries, options.output, policy=options.policy)
    print(*ledger, sep="\n", end="\n" * bool(ledger))
    print_path("library", options.output)
    return 0


def run_widen(options: argparse.Namespace) -> int:
    from ..tune import widen

    _check_libraries("widen", options.library)
    until = time.monotonic() + options.budget if options.budget else math.inf
    lines: list[str] = []
    with Waiting("trying fewer tokens"):
        count = widen(options.library, device=options.device, until=until, progress=lines.append)
    print(*lines, sep="\n", end="\n" * bool(lines))
    print(f"{count} entries are valid for more numbers of tokens than their own")
    return 0


def _check_libraries(step: str, *paths: Path) -> None:
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"tune {step}: the folder {path} does not exist\nhint: lapwing tune all writes W/final")


def run_solvers(options: argparse.Namespace) -> int:
    from ..tune import solvers

    live = Live()
    limits = {name: getattr(options, name) for name in ("budget", "device", "quick")}
    tuned_records = solvers.tune(options.operations, out=options.output, step=live.step, **limits)
    live.clear()
    for tuned in tuned_records:
        for rule in tuned.rules:
            print(rule)
        print_path("record", tuned.path)
    return 0


def _argument(*flags: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return flags, settings


def _folder(name: str, text: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return _argument(name, type=Path, help=text, **settings)


def _output(text: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return _argument("-o", "--output", type=Path, help=text, **settings)


def _budget(text: str, default: str | None = None) -> tuple[tuple[str, ...], dict[str, Any]]:
    return _argument("--budget", type=parse_budget, default=default, help=text)


_LOGS = (
    _argument("log", nargs="+", help='logs or tables, or products in words: "6144x16x4096 bf16 TN"'),
    _argument("--ranks", choices=("sum", "max"), default="sum", help="counts of several files (default: sum)"),
    _argument("--all", action="store_true", help="show every product and every line that is not understood"),
)
_RESULTS = _argument("--workdir", "-w", type=Path, required=True, help="the folder for all results")
_KEEP = _argument("--keep-thr", type=float, default=0.1, help="drop products below this percentage of the time (0.1)")
_THRESHOLD = _argument("--threshold", type=float, default=1.03, help="keep what is at least this many times faster (1.03)")
_DEVICE = _argument("--device", type=int, default=0, help="which device measures (default: 0)")
_DEVICES = _argument("--devices", type=parse_devices, help="0,1,...; default: all")
_BACKENDS = "cublaslt, triton, cpu, several separated by commas, or hipblaslt (default: auto)"
_ARCH = _argument("--arch", help="with hipblaslt: gfx90a, gfx942, gfx950, ... (default: from the log, or the GPU)")
_TIMES = _argument("--times", type=Path, nargs="+", help="with hipblaslt: outputs of hipblaslt-bench --yaml W/tunings/log.yaml")
_FROZEN = "also search kernels that are correct only while nothing writes the weights, for enable(model, frozen=True)"
_STRATEGIES = "auto, model, genetic, anneal, random, exhaustive, kernel_tuner:NAME or optuna (default: auto)"
_WATCH = "the libraries' logs, torch's operators, or all; auto: logs on a machine with a GPU, else torch"
_SEARCH = (
    _argument("--backend", default="auto", help=_BACKENDS),
    _argument("--frozen-weights", action="store_true", help=_FROZEN),
    _DEVICES,
    _argument("--strategy", default="auto", help=_STRATEGIES),
    _argument("--seed", type=int, default=0, help="seed of the random choices (0)"),
    _argument("--evaluations", type=int, help="at most this many candidates for each product"),
)
_UNDERSTOOD = (
    "It understands logs of hipBLASLt (masks 32, 64, 128), cuBLAS and cuBLASLt, files of TunableOp, traces of "
    "torch.profiler (.json, .json.gz; record_shapes=True), tables with a heading m,n,k,..., and products in words."
)
# name, what it does, its function, its arguments, and what else its parser says
_STEPS: tuple[tuple[str, str, Callable[[argparse.Namespace], int], tuple[Any, ...], dict[str, str]], ...] = (
    (
        "all", "every step, from a log to a library that can be used", run_all,
        (*_LOGS, _RESULTS, *_SEARCH, _budget("at most this long (default: 30m)", "30m"), _KEEP, _THRESHOLD, _ARCH, _TIMES), {},
    ),
    (
        "record", "run a program and write a table of its matrix products", run_record,
        (
            _output("the table of products (default: recorded.csv, in the workdir)"),
            _folder("--workdir", "a folder for recorded.csv (default: here)", default=Path()),
            _argument("--watch", choices=("auto", "torch", "logs", "all"), default="auto", help=_WATCH),
            _folder("--keep-logs", "a new folder for the raw logs"),
            _argument("program", nargs=argparse.REMAINDER, help="after --: the program and its arguments"),
        ),
        {"usage": "lapwing tune record [-o FILE | --workdir W] [--watch ...] -- PROGRAM ..."},
    ),
    (
        "read", "show the products of logs, and the lines that are not understood", run_read,
        (*_LOGS, _output("write all products as a table")), {"epilog": _UNDERSTOOD},
    ),
    (
        "configure", "measure each product once, and choose those that matter", run_configure,
        (
            *_LOGS, _RESULTS, _argument("--backend", default="auto", help="cublaslt, triton, cpu or hipblaslt (default: auto)"),
            _DEVICE, _KEEP, _budget("at most this long, 10m for example"), _ARCH, _TIMES,
        ), {},
    ),
    (
        "run", "search faster kernels for the products of a workdir", run_run,
        (_folder("workdir", "the folder that tune configure wrote"), *_SEARCH, _ARCH,
         _budget("at most this long (default: until it is done)")), {},
    ),
    (
        "compare", "measure the best candidates against the default, and keep what is faster", run_compare,
        (
            _folder("workdir", "the folder that tune run wrote"), _THRESHOLD, _DEVICES,
            _argument("--minimum-us", type=float, default=0.3, help="and saves at least this many microseconds (0.3)"),
        ), {},
    ),
    (
        "report", "write pages with tables and pictures of the results", run_report,
        (_folder("workdir", "the folder that tune compare wrote"),), {},
    ),
    (
        "export", "write a library as another program's file", run_export,
        (
            _folder("library", "the folder W/final"),
            _argument("--format", choices=("tunableop", "inductor", "vllm", "hipblaslt"), required=True),
            _output("the new file; for vllm a folder, with one file for each weight", required=True),
        ), {},
    ),
    (
        "merge", "merge several libraries into one", run_merge,
        (
            _folder("libraries", "folders W/final", nargs="+"), _output("a folder for the merged library", required=True),
            _argument("--policy", choices=("winner", "force", "newest"), default="winner",
                      help="which entry stays (default: winner, the faster)"),
        ), {},
    ),
    (
        "widen", "find for which other numbers of tokens a library is valid", run_widen,
        (
            _folder("library", "the folder W/final"), _DEVICE,
            _budget("at most this long, 10m for example (default: until it is done)"),
        ), {},
    ),
    (
        "solvers", "measure lapwing's own engines here, so that it chooses the fastest", run_solvers,
        (
            _argument("operations", nargs="*", default=["cholesky", "eigh"],
                      help="cholesky, eigh, solve, inv, qr, svd (default: cholesky eigh)"),
            _argument("--device", choices=("cpu", "cuda"), default="cpu"),
            _budget("at most about this long (default: 15m; less where it is done)"),
            _argument("--quick", action="store_true", help="fewer sizes"),
            _output("a folder for the records (default: where lapwing looks for them)"),
        ), {},
    ),
)  # fmt: skip
