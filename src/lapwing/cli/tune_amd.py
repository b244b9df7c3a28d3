"""lapwing tune on AMD GPUs: write files for AMD's tools, read what they wrote, and prove and merge the new kernels.

The tools themselves (TensileLite, hipblaslt-bench) run between these steps, on the machine with the GPU.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..bench.environment import counted
from .progress import Waiting
from .tune_output import print_configured, print_path, say
from .usage import UsageError, check_output, sentence

if TYPE_CHECKING:
    from ..tune.readers import Log

_SHOWN = 10  # bad lines
_STRATEGIES = {"auto": "genetic", "genetic": "genetic", "exhaustive": "exhaustive"}


def add_steps(steps: argparse._SubParsersAction, guarded: Callable[..., int]) -> None:
    text = "the steps after a run of AMD's tools: gather, compare, merge, override, trim"
    parser = steps.add_parser("amd", help=text, description=f"{sentence(text)}.")
    inner = parser.add_subparsers(title="steps", required=True, metavar="gather | compare | merge | override | trim")
    for name, text, call, arguments in _STEPS:
        step = inner.add_parser(name, help=text, description=f"{sentence(text)}.")
        for flags, settings in arguments:
            step.add_argument(*flags, **settings)
        step.set_defaults(run=lambda options, call=call: guarded(call, options))


def check_options(options: argparse.Namespace) -> None:
    """Refuse options that mean nothing for this backend, before anything is read."""
    if options.backend != "hipblaslt":
        for name in ("arch", "times"):
            if getattr(options, name, None):
                raise UsageError(f"tune: --{name} is for --backend hipblaslt\nhint: add --backend hipblaslt, or leave it out")
    elif getattr(options, "strategy", "auto") not in _STRATEGIES:
        raise UsageError(
            f"tune: --strategy {options.strategy} is not possible with --backend hipblaslt\n"
            "hint: genetic (AMD's own search, the default) or exhaustive (a small grid)"
        )


def configure(options: argparse.Namespace, log: Log) -> int:
    """Choose the products that matter from estimated or measured times, and write ``tunings/log.yaml`` to measure them."""
    from ..tune import configure as choose_products
    from ..tune.amd import architectures, bench

    measured_on = set().union(*(bench.devices(_existing(path, "--times")) for path in options.times or ()))
    logged = {*log.architectures, *measured_on}
    choice = architectures.choose(options.arch, logged, (call.gemm for call in log.calls), options.workdir)
    print(f"architecture: {choice}")
    times = _times(options.times, log) if options.times else None
    chosen = choose_products(log, options.workdir, backend="hipblaslt", keep_thr=options.keep_thr, times=times)
    architectures.remember(options.workdir, choice, measured=times is not None)
    print_configured(chosen, log, options.workdir)
    path = options.workdir / "tunings" / "log.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(bench.yaml_lines(call for call in log.calls if bench.unsupported(call.gemm) is None))
    if times is None:
        print("shares and times are estimated from the work of each product: nothing was measured")
        print(f"to measure them: hipblaslt-bench --yaml {path} >log.out 2>&1, then add --times log.out to this command")
    return 0


def _times(paths: Iterable[Path], log: Log) -> dict[Any, float]:
    """Seconds of each product in outputs of hipblaslt-bench."""
    from ..tune.amd import bench
    from ..tune.amd.results import match

    runs: dict[Any, list[float]] = {}
    for path in paths:
        results, problems = bench.read_results(_existing(path, "--times"))
        matched, unmatched = match(results, (call.gemm for call in log.calls))
        _print_problems(path, [*problems, *((result.line, reason) for result, reason in unmatched)])
        for result, gemm in matched:
            runs.setdefault(gemm, []).append(result.us)
    if not runs:
        raise UsageError(
            f"tune: {', '.join(map(str, paths))} has no time for a product of the log\n"
            "hint: --times needs the output of hipblaslt-bench --yaml W/tunings/log.yaml"
        )
    return {gemm: 1e-6 * median(us) for gemm, us in runs.items()}


def write_files(options: argparse.Namespace) -> int:
    """Write the files for AMD's tools."""
    from ..tune.amd import architectures
    from ..tune.amd.files import emit
    from ..tune.workdir import Workdir

    targets = Workdir(options.workdir).configs()
    choice = architectures.choose(options.arch, (), (target.gemm for target in targets), options.workdir)
    architectures.remember(options.workdir, choice)
    for path in emit(options.workdir, architecture=choice.name, strategy=_STRATEGIES[options.strategy]):
        print_path("written", path)
        if path.name == "left_out.txt":
            for line in path.read_text().splitlines():
                print(f"  not tuned: {line}")
    folder = options.workdir / "tunings"
    print(f"these files are for AMD's tools and {choice}; lapwing does not run them. On the machine with the GPU:")
    print(f"  TENSILE=.../tensilelite/Tensile/bin DEVICES=0,1 {folder / 'tune.sh'}   searches kernels")
    print(f"then: lapwing tune amd gather {options.workdir}")
    return 0


def run_gather(options: argparse.Namespace) -> int:
    from ..tune.amd.files import gather

    _check_workdir(options.workdir)
    with Waiting("merging the kernels"):
        gathered = gather(options.workdir, options.tunings, options.output)
    print(gathered)
    for path in gathered.paths:
        print_path("library logic", path)
    print(f"next, on the machine with the GPU: TENSILE=... {options.workdir / 'tunings' / 'compare.sh'}")
    print(f"then: lapwing tune amd compare {options.workdir}")
    return 0


def run_compare(options: argparse.Namespace) -> int:
    from ..tune.amd import architectures, override, results
    from ..tune.files import check_writable

    _check_workdir(options.workdir)
    check_writable(options.workdir / "results", "compare")
    library = options.library or options.workdir / "final"
    if (library / "manifest.json").exists():
        raise UsageError(
            f"tune amd compare: {library} has a library of another backend\nhint: name another folder with --library"
        )
    if options.override:
        check_output("--override", options.override)
    outputs = {name: _outputs(options, name) for name in ("reference", "tuned", "verify")}
    arch = architectures.recall(options.workdir)
    judged = results.compare(
        options.workdir,
        *outputs.values(),
        threshold=options.threshold,
        minimum_us=options.minimum_us,
        worst_error=options.max_error,
        unverified=options.unverified,
        architecture=arch.name if arch else None,
        measured_shares=architectures.measured_shares(options.workdir),
    )
    for problem in judged.problems[:_SHOWN]:
        say(problem)
    if len(judged.problems) > _SHOWN:
        say(f"... and {len(judged.problems) - _SHOWN} more lines without a usable result")
    for c in judged.comparisons:
        ratio = f"{'~' if c.doubtful else ''}{c.ratio:.3f}x"
        figures = f"{c.default_us:9.2f} -> {c.tuned_us:9.2f} us {ratio:>8}" if c.compared else ""
        print(f"{c.name:12} {figures:34}  {'kept' if c.kept else c.reason}")
    print(judged.metrics)
    if not architectures.measured_shares(options.workdir):
        print("shares of the time are estimates; configure with --times measures them")
    print_path("results", options.workdir / "results")
    _trim_kept(options.workdir / "libs", library, [c.gemm for c in judged.kept])
    if options.override:
        print(override.write(judged.solutions, options.override))
        if left := len(judged.kept) - len(judged.solutions):
            print(f"{counted(left, 'kept product')} without a solution number: the output needs --print_kernel_info")
    return 0


def _trim_kept(libs: Path, library: Path, kept: list[Any]) -> None:
    """Write the kernels of the kept products to a folder of their own."""
    from ..tune.amd.files import clear_own, note_own, trim

    if not any(libs.glob("*.yaml")):
        print(f"no library logic in {libs}, so none is written; lapwing tune amd gather writes it")
        return
    clear_own(library)  # of an earlier comparison
    with Waiting("choosing the kernels"):
        written, missing = trim(libs, library, kept)
    note_own(library, written)
    for path, sizes in written.items():
        print_path("library logic", f"{path} ({counted(len(sizes), 'size')})")
    for gemm in missing:
        say(f"kept, but {libs} has no kernel for it: {gemm}")
    if written:
        print(f"next: lapwing tune amd merge .../asm_full/ARCH/Equality {library} .../asm_full/ARCH/Equality --no-eff")
        print("then build hipBLASLt again")


def run_override(options: argparse.Namespace) -> int:
    from ..tune.amd import bench, override

    check_output("--output", options.output)
    results: list[Any] = []
    for path in options.outputs:
        measured, problems = bench.read_results(_existing(path, "override"))
        _print_problems(path, problems)
        results += measured
    chosen = bench.best(results, worst_error=options.max_error)
    solutions = {gemm: r.solution for gemm, r in chosen.items() if r.solution is not None}
    if not solutions:
        wrong = sum(r.error is not None and not r.error < options.max_error for r in results)
        reason = f"{counted(len(results), 'result')}, {wrong} with too large an error, none with a solution number"
        raise UsageError(
            f"tune amd override: nothing to write: {reason}\n"
            "hint: name the output of tunings/bench.sh, which tries all solutions and prints their numbers"
        )
    done = override.write(solutions, options.output)
    print(done)
    if done.written:
        print(f"to use it: HIPBLASLT_TUNING_OVERRIDE_FILE={options.output}")
        print("to prove it: OVERRIDE=FILE W/tunings/compare.sh on the GPU, then lapwing tune amd compare W --override FINAL")
    return 0 if done.written else 1  # a script must not look for a file that was not written


def run_merge(options: argparse.Namespace) -> int:
    from ..tune.amd.files import merge_folders

    with Waiting("merging the kernels"):
        merged = merge_folders(
            options.base, options.new, options.output, force=options.force_merge == "True", no_efficiency=options.no_eff
        )
    for name, result in merged.items():
        if result is None:
            print(f"{name}: copied, since {options.base} has no file of this name")
            continue
        words = Counter(word for word, _, _ in result.ledger)
        print(f"{name}: " + ", ".join(f"{words[word]} {word}" for word in ("added", "replaced", "refused", "kept")))
        for word, size, reason in result.ledger if options.all else ():
            print(f"  {word:8} {size}: {reason}")
    print_path("library logic", options.output)
    print("build hipBLASLt again to use it: ./install.sh -dc -a ARCH")
    return 0


def run_trim(options: argparse.Namespace) -> int:
    from ..tune.amd.files import trim
    from ..tune.readers import read

    kept = None
    if options.results:
        log = read(_existing(options.results, "--results"))
        _print_problems(options.results, [(problem.line, problem.reason) for problem in log.problems])
        if not (kept := [call.gemm for call in log.calls]):
            raise UsageError(f"tune amd trim: {options.results} has no product\nhint: name W/results/final_results.csv")
    with Waiting("choosing the kernels"):
        written, missing = trim(options.logic, options.output, kept)
    for path, sizes in written.items():
        print_path("library logic", f"{path} ({counted(len(sizes), 'size')})")
    for gemm in missing:
        say(f"{options.logic} has no kernel for {gemm}")
    if not written:
        raise UsageError(
            f"tune amd trim: no size of {options.logic} is in {options.results}\nhint: are they of the same types and layout?"
        )
    return 0


def _outputs(options: argparse.Namespace, name: str) -> list[Path]:
    """The files of an option, or the one that compare.sh writes. A missing validation is said with the results."""
    if named := getattr(options, name):
        return [_existing(path, f"--{name}") for path in named]
    usual = options.workdir / "tunings" / f"{name}.out"
    if name == "verify" and not usual.exists():
        return []
    return [_existing(usual, f"--{name}")]


def _existing(path: Path, what: str) -> Path:
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise UsageError(
            f"tune: {what}: {path} {problem}\n"
            "hint: run tunings/compare.sh or hipblaslt-bench on the GPU first, and name its output"
        )
    return path


def _check_workdir(workdir: Path) -> None:
    if not any((workdir / "configs").glob("*.json")):
        raise UsageError(
            f"tune: {workdir} has no products to tune\n"
            f"hint: lapwing tune configure LOG --workdir {workdir} --backend hipblaslt --arch gfx942"
        )


def _print_problems(path: Path, problems: list[tuple[int, str]] | tuple[tuple[int, str], ...]) -> None:
    for line, reason in problems[:_SHOWN]:
        say(f"{path}:{line}: {reason}")
    if len(problems) > _SHOWN:
        say(f"... and {len(problems) - _SHOWN} more lines of {path}")


def _argument(*flags: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return flags, settings


_WORKDIR = _argument("workdir", type=Path, help="the folder that tune configure wrote")
_MAX_ERROR = _argument("--max-error", type=float, default=0.03, help="the largest norm error of a valid kernel (0.03)")
_OUTPUTS = "outputs of hipblaslt-bench; several are several runs (default: the file in W/tunings that compare.sh writes)"
_STEPS: tuple[tuple[str, str, Callable[[argparse.Namespace], int], tuple[Any, ...]], ...] = (
    (
        "gather", "merge the kernels of all searches into one folder", run_gather,
        (
            _WORKDIR, _argument("--tunings", type=Path, help="where the searches ran (default: W/tunings)"),
            _argument("-o", "--output", type=Path, help="a folder for the library logic (default: W/libs)"),
        ),
    ),
    (
        "compare", "compare the new kernels with the default, and keep those that are valid and faster", run_compare,
        (
            _WORKDIR, _argument("--reference", type=Path, nargs="+", help=f"of the default library: {_OUTPUTS}"),
            _argument("--tuned", type=Path, nargs="+", help="of the new library"),
            _argument("--verify", type=Path, nargs="+", help="of the new library, with verify.yaml"),
            _argument("--threshold", type=float, default=1.03, help="keep what is at least this many times faster (1.03)"),
            _argument("--minimum-us", type=float, default=0.3, help="and saves at least this many microseconds (0.3)"),
            _MAX_ERROR, _argument("--unverified", action="store_true", help="keep also what was not validated"),
            _argument("--library", type=Path, help="a folder for the library logic of what is kept (default: W/final)"),
            _argument("--override", type=Path, help="also write the solutions of what is kept as hipBLASLt's override file"),
        ),
    ),
    (
        "merge", "merge library logic into a folder of hipBLASLt, as TensileMergeLibrary does", run_merge,
        (
            _argument("base", type=Path, help="the folder Equality of hipBLASLt"),
            _argument("new", type=Path, help="the folder W/final"),
            _argument("output", type=Path, help="a folder for the result; it may be the base"),
            _argument("--no-eff", "--no_eff", action="store_true", help="store 0 as efficiency"),
            _argument("--force-merge", "--force_merge", choices=("True", "False"), default="True",
                      help="replace sizes that the base has (True), or only less efficient ones (False)"),
            _argument("--all", action="store_true", help="print what happened to each size"),
        ),
    ),
    (
        "override", "choose the fastest of hipBLASLt's own solutions, as its override file", run_override,
        (
            _argument("outputs", type=Path, nargs="+", help="outputs of hipblaslt-bench --algo_method all (tunings/bench.sh)"),
            _argument("-o", "--output", type=Path, required=True, help="the new file"), _MAX_ERROR,
        ),
    ),
    (
        "trim", "remove sizes and kernels that are not needed from library logic", run_trim,
        (
            _argument("logic", type=Path, help="a file, or a folder of files"),
            _argument("-o", "--output", type=Path, required=True, help="a folder for the result"),
            _argument("--results", type=Path, help="keep only the products of this table (W/results/final_results.csv)"),
        ),
    ),
)  # fmt: skip
