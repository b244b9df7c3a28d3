"""The later steps of ``lapwing tune`` (run, compare, report, export, merge, widen, solvers), and what all steps share."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .tune_output import Live, parse_budget, parse_devices, print_path, print_searched
from .usage import UsageError

FORMATS = ("tunableop", "inductor", "vllm", "hipblaslt")
POLICIES = ("winner", "force", "newest")


def _run(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "run", "search faster kernels for the products of a workdir", run_run)
    parser.add_argument("workdir", type=Path, help="the folder that tune configure wrote")
    measuring(parser, None)
    searching(parser)


def run_run(options: argparse.Namespace) -> int:
    from .. import tune

    search = search_options(options)
    _filled(options.workdir)
    if options.backend == "hipblaslt":
        return write_for_amd(options.workdir)
    live = Live()
    searched = tune.run(options.workdir, progress=live.step, **search)
    live.clear()
    print_searched(searched)
    print_path("trials", options.workdir / "trials")
    return 0


def write_for_amd(workdir: Path) -> int:
    from ..tune.amd.files import emit

    for path in emit(workdir):
        print_path("written", path)
    print("these files are for AMD's tools; lapwing does not run them")
    return 0


def _compare(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "compare", "measure the best candidates against the default, and keep what is faster", run_compare)
    parser.add_argument("workdir", type=Path, help="the folder that tune run wrote")
    parser.add_argument("--threshold", type=float, default=1.03, help="keep what is at least this many times faster (1.03)")
    parser.add_argument("--minimum-us", type=float, default=0.3, help="and saves at least this many microseconds (0.3)")
    parser.add_argument("--devices", help="0,1,...; default: all")


def run_compare(options: argparse.Namespace) -> int:
    from .. import tune
    from ..tune.files import check_writable
    from ..tune.validate import results

    devices = parse_devices(options.devices)
    _filled(options.workdir)
    check_writable(options.workdir / "results", "compare")
    comparisons = tune.compare(options.workdir, threshold=options.threshold, minimum_us=options.minimum_us, devices=devices)
    if not comparisons:
        raise UsageError(f"tune compare: nothing was searched in {options.workdir}\nhint: lapwing tune run {options.workdir}")
    print(results.write(options.workdir, comparisons))
    print_path("results", options.workdir / "results")
    print_path("library", tune.build(options.workdir, comparisons))
    return 0


def _report(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "report", "write pages with tables and pictures of the results", run_report)
    parser.add_argument("workdir", type=Path, help="the folder that tune compare wrote")


def run_report(options: argparse.Namespace) -> int:
    from ..tune.validate import pages

    _filled(options.workdir)
    print_path("report", pages.write(options.workdir))
    return 0


def _export(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "export", "write a library as another program's file", run_export)
    parser.add_argument("library", type=Path, help="the folder W/final")
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the new file; for vllm a folder, with one file for each weight"
    )


def run_export(options: argparse.Namespace) -> int:
    if not options.library.is_dir():
        raise UsageError(f"tune export: the folder {options.library} does not exist\nhint: lapwing tune all writes W/final")
    from ..tune import export

    done = export(options.library, options.format, options.output)
    print(done)
    return 0 if done.written else 1  # a script must not look for a file that was not written


def _merge(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "merge", "merge several libraries into one", run_merge)
    parser.add_argument("libraries", nargs="+", type=Path, help="folders W/final")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder for the merged library")
    parser.add_argument("--policy", choices=POLICIES, default="winner", help="which entry stays (default: winner, the faster)")


def run_merge(options: argparse.Namespace) -> int:
    for path in options.libraries:
        if not path.is_dir():
            raise UsageError(f"tune merge: the folder {path} does not exist\nhint: lapwing tune all writes W/final")
    from ..tune import merge

    print(*merge(options.libraries, options.output, policy=options.policy), sep="\n")
    print_path("library", options.output)
    return 0


def _widen(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "widen", "find for which other numbers of tokens a library is valid", run_widen)
    parser.add_argument("library", type=Path, help="the folder W/final")
    parser.add_argument("--device", type=int, default=0, help="which device measures (default: 0)")
    parser.add_argument("--budget", help="at most this long, 10m for example (default: until it is done)")


def run_widen(options: argparse.Namespace) -> int:
    if not options.library.is_dir():
        raise UsageError(f"tune widen: the folder {options.library} does not exist\nhint: lapwing tune all writes W/final")
    until = time.monotonic() + parse_budget(options.budget) if options.budget else math.inf
    from ..tune import widen

    count = widen(options.library, device=options.device, until=until, progress=print)
    print(f"{count} entries are valid for more numbers of tokens than their own")
    return 0


def _solvers(steps: argparse._SubParsersAction) -> None:
    parser = add_step(steps, "solvers", "measure lapwing's own engines here, so that it chooses the fastest", run_solvers)
    text = "cholesky, eigh, solve, inv, qr, svd (default: cholesky eigh)"
    parser.add_argument("operations", nargs="*", default=["cholesky", "eigh"], help=text)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget", help="at most about this long (default: 15m; less where it is done)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("-o", "--output", type=Path, help="a folder for the records (default: where lapwing looks for them)")


def run_solvers(options: argparse.Namespace) -> int:
    from ..tune import solvers

    budget = parse_budget(options.budget) if options.budget else None
    live = Live()
    done = solvers.tune(
        options.operations, budget=budget, out=options.output, device=options.device, quick=options.quick, step=live.step
    )
    live.clear()
    for tuned in done:
        for rule in tuned.rules:
            print(rule)
        print_path("record", tuned.path)
    return 0


LATER = (_run, _compare, _report, _export, _merge, _widen, _solvers)


# what all steps share


def add_step(
    steps: argparse._SubParsersAction, name: str, text: str, call: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=lambda options: _guarded(call, options))
    return parser


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
        raise UsageError(f"tune: {error.filename} does not exist" if error.filename else f"tune {error}") from error


def add_workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", "-w", type=Path, required=True, help="the folder for all results")


def measuring(parser: argparse.ArgumentParser, budget: str | None) -> None:
    parser.add_argument(
        "--backend", default="auto", help="cublaslt, triton, cpu, several separated by commas, or hipblaslt (default: auto)"
    )
    text = "also search kernels that are correct only while nothing writes the weights, for enable(model, frozen=True)"
    parser.add_argument("--frozen-weights", action="store_true", help=text)
    parser.add_argument("--devices", help="0,1,...; default: all")
    parser.add_argument("--budget", default=budget, help=f"at most this long (default: {budget or 'until it is done'})")


def search_options(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a search, as ``run`` and ``all_steps`` take them."""
    return {
        "backend": f"{options.backend},triton_frozen" if options.frozen_weights else str(options.backend),
        "devices": parse_devices(options.devices),
        "budget": parse_budget(options.budget) if options.budget else None,
        "strategy": options.strategy,
        "seed": options.seed,
        "evaluations": options.evaluations,
    }


def searching(parser: argparse.ArgumentParser) -> None:
    text = "auto, model, genetic, anneal, random, exhaustive, kernel_tuner:NAME or optuna (default: auto)"
    parser.add_argument("--strategy", default="auto", help=text)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random choices (0)")
    parser.add_argument("--evaluations", type=int, help="at most this many candidates for each product")


def _filled(workdir: Path) -> None:
    if not any((workdir / "configs").glob("*.json")):
        raise UsageError(f"tune: {workdir} has no products to tune\nhint: lapwing tune configure LOG --workdir {workdir}")
