"""lapwing kernels: compile GPU kernels ahead into packs, and say what packs hold. Needs no GPU."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from .._version import __version__
from ..core import packs
from ..core.native import AUTO, how_to_build, missing_reason, native
from ..core.plan import bytes_in_words
from .kernel_calls import GPUS, common_kernels
from .progress import MINUTE, Progress, Waiting
from .usage import UsageError, check_output, check_positive, parse_words, program, sentence

_ARCHITECTURES = tuple(f"sm_{code}" for code in GPUS)
# Seconds of one core for a kernel: 40 of the 4684 of sm_90, drawn at random, took 0.29 on an EPYC with NVRTC 13.
_SECONDS = 0.45


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "compile GPU kernels ahead, so that no first call waits for the compiler"
    parser = commands.add_parser("kernels", help=text, description=sentence(text) + ".")
    actions = parser.add_subparsers(title="commands", required=True, metavar="build | list | info")

    text = "make kernel packs, one for each architecture"
    build = actions.add_parser("build", help=text, description=sentence(text) + ". Needs no GPU.")
    build.add_argument("--arch", default="sm_90", help=f"architectures, separated by commas, of {', '.join(_ARCHITECTURES)}")
    build.add_argument("--output", type=Path, help="folder for the packs, or a file *.pack (default: lapwing's own folder)")
    build.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile (default: all cores)")
    build.add_argument("--list", type=Path, help="also compile the kernels that this file names: a source and options a line")
    build.add_argument("--dry", action="store_true", help="only list the kernels, in the form of --list")
    build.set_defaults(run=run_build)

    text = "the packs that lapwing finds"
    actions.add_parser("list", help=text, description=sentence(text) + ".").set_defaults(run=run_list)

    text = "what a pack holds"
    info = actions.add_parser("info", help=text, description=sentence(text) + ".")
    info.add_argument("pack", type=Path)
    info.add_argument("--all", action="store_true", help="each kernel: its source and its options")
    info.set_defaults(run=run_info)


def run_build(options: argparse.Namespace) -> int:
    check_positive(options, "jobs")
    if native is None:
        raise UsageError(f"kernels build: {missing_reason}\nhint: {how_to_build()}")
    names = parse_words(options.arch, _ARCHITECTURES, "--arch")
    output = _outputs(names, options.output)
    more = _listed(options.list) if options.list else set()
    native.prefer(AUTO)  # a pack is for every machine, whatever LAPWING_ENGINE says here
    status = 0
    for name, path in output.items():
        architecture = int(name.removeprefix("sm_"))
        with Waiting(f"{name}: finding the kernels that calls need"):
            wanted = common_kernels(architecture) | more
        if options.dry:
            print(*(" ".join(kernel) for kernel in sorted(wanted)), sep="\n")
        else:
            status |= _build(path, architecture, sorted(wanted), options.jobs)
    return status


def _outputs(names: Iterable[str], output: Path | None) -> dict[str, Path]:
    names = tuple(names)
    if output is not None and output.suffix == ".pack":
        if len(names) > 1:
            raise UsageError(f"--output {output}: a pack holds one architecture, not {', '.join(names)}\nhint: name a folder")
        check_output("--output", output)
        return {names[0]: output}
    folder = output or packs.FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"kernels build: cannot write to {folder}: {error}\nhint: name a folder with --output") from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"kernels build: cannot write to {folder}\nhint: name a folder with --output")
    return {name: folder / f"{name}.pack" for name in names}


def _listed(path: Path) -> set[tuple[str, str]]:
    """Kernels by name; sources that no longer exist are left out."""
    lines = [line.partition(" ") for line in path.read_text().splitlines()]
    return {(source, options) for source, _, options in lines if (packs.FOLDER.parent / source).exists()}


def _build(path: Path, architecture: int, wanted: list[tuple[str, str]], jobs: int) -> int:
    """Write one pack; kernels of the pack in its place that are still right are kept."""
    assert native is not None
    if reason := native.missing("compiler"):
        raise UsageError(f"kernels build: {reason}\nhint: pip install nvidia-cuda-nvrtc")
    number = native.cuda_versions()["compiler"]
    compiler = f"{number // 1000}.{number % 1000 // 10}"
    keys = {native.kernel_key(source, options): (source, options) for source, options in wanted}
    kept = {k.key: k for k in _existing(path, architecture, compiler) if k.key in keys}
    missing = [(key, *kernel, f"sm_{architecture}") for key, kernel in keys.items() if key not in kept]
    print(f"sm_{architecture}: {len(keys)} kernels, {len(kept)} of them in {path} already", flush=True)
    if (minutes := _SECONDS * len(missing) / jobs / MINUTE) >= 1:
        each = "a process" if jobs == 1 else f"{jobs} processes"
        work = f"compiling {len(missing)} in {each}"
        print(f"{work} may take {minutes:.0f} minutes; Ctrl-C keeps those that are done", flush=True)
    failed = []
    progress = Progress(len(missing), every=MINUTE)
    # fresh processes: this one may hold threads and libraries that a copy of it would not survive
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        for result in pool.map(_compile, missing, chunksize=4):
            progress.step("compiled")
            if isinstance(result, packs.Kernel):
                kept[result.key] = result
            else:
                failed.append(result)
    finally:  # also after Ctrl-C: the next build goes on from here
        progress.clear()
        pool.shutdown(cancel_futures=True)
        packs.write(path, architecture, kept.values(), compiler=compiler, lapwing=__version__)
        print(f"{path}: {len(kept)} kernels, {bytes_in_words(path.stat().st_size)}")
    if failed:
        print(f"{len(failed)} kernels do not compile; the first: {failed[0]}")
    return 1 if failed else 0


def _existing(path: Path, architecture: int, compiler: str) -> Iterable[packs.Kernel]:
    try:
        pack = packs.read(path)
    except (OSError, packs.PackError):
        return ()
    return packs.kernels_of(path) if (pack.architecture, pack.compiler) == (architecture, compiler) else ()


def _compile(job: tuple[str, str, str, str]) -> packs.Kernel | str:
    """The kernel, or what is wrong with it."""
    key, source, options, architecture = job
    assert native is not None
    try:
        binary, _ = native.compile_kernel(source, options, architecture)
        is_same = native.kernel_key(source, options) == key
    except RuntimeError as error:
        return f"{source} {options}: {error}"
    return packs.Kernel(source, options, key, binary) if is_same else f"{source} was changed while the pack was built"


def run_list(options: argparse.Namespace) -> int:
    files = packs.files()
    for path in files:
        try:
            print(_described(packs.read(path)))
        except packs.PackError as error:
            print(f"{error}; not used")
    if not files:
        print(f"no kernel packs: kernels are compiled when they are first used\nhint: {program()} kernels build --arch sm_90")
    return 0


def run_info(options: argparse.Namespace) -> int:
    if not options.pack.is_file():
        raise UsageError(f"kernels info: there is no file {options.pack}\nhint: lapwing kernels build writes one")
    try:
        pack = packs.read(options.pack)
    except packs.PackError as error:
        raise UsageError(f"kernels info: {error}\nhint: build it again, lapwing kernels build") from error
    print(_described(pack))
    counts = Counter(source for source, _, _ in pack.kernels)
    for source, count in sorted(counts.items()):
        print(f"  {source:<20}{count}")
    if options.all:
        print(*(f"{source} {flags}" for source, flags, _ in pack.kernels), sep="\n")
    return 0


def _described(pack: packs.Pack) -> str:
    current = sum(_is_current(kernel) for kernel in pack.kernels)
    stale = f", {len(pack.kernels) - current} of another version" if current < len(pack.kernels) else ""
    made = f"lapwing {pack.lapwing}, compiler {pack.compiler}"
    return f"{pack.path}: sm_{pack.architecture}, {len(pack.kernels)} kernels{stale}, {bytes_in_words(pack.size)}; {made}"


def _is_current(kernel: tuple[str, str, str]) -> bool:
    """Whether this lapwing would ask for the kernel under its key."""
    if native is None:
        return False
    source, options, key = kernel
    try:
        return bool(native.kernel_key(source, options) == key)
    except RuntimeError:  # the source no longer exists
        return False
