"""lapwing info: what is here, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

from .. import planner
from ..bench.environment import HOW_TO_GET, Environment, counted, environment, how_to_get, installed_version
from ..core import packs
from ..core.engines import is_amd, missing_gpu
from ..core.native import how_to_build, missing_reason, native
from ..core.plan import bytes_in_words
from ..core.problem import DEVICES
from ..core.settings import cache_folder, cache_path
from ..distributed.backends.choice import PUBLIC
from .usage import fitted, program

_RECORD_COMMAND = {"cpu": "bench cholesky --record", "cuda": "bench cholesky --record --device cuda"}


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "what is here, what is missing, and how to get it"
    commands.add_parser("info", help=text, description=text.capitalize() + ".").set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    where = environment()
    _versions(where)
    _devices(where)
    _engines(where)
    _solvers(where)
    _missing(where)
    _folders()
    return 0


def _versions(where: Environment) -> None:
    print("versions")
    for name, version in where.versions:
        print(f"  {name:<12}{version}")


def _devices(where: Environment) -> None:
    print("\ndevices")
    size = f"{counted(where.cores, 'core')}, {counted(where.threads, 'thread')}"
    print(f"  cpu         {where.cpu}; {where.instructions}, {size}; {where.system}")
    for place, gpu in enumerate(where.gpus):
        print(f"  cuda:{place:<7}{gpu.name}; {gpu}, {bytes_in_words(gpu.memory)}, driver {where.driver or 'unknown'}")
    if native is not None and (versions := native.amd_versions()):
        names = {"compiler": "hipRTC", "blas": "rocBLAS", "solver": "rocSOLVER"}
        print(f"{'':14}{', '.join(f'{names[part]} {version}' for part, version in versions.items() if part in names)}")
    if not where.gpus:
        print(f"  cuda        {missing_gpu() if native is not None else 'none found'}")


def _engines(where: Environment) -> None:
    print("\nengines")
    no_gpu = "" if where.gpus or native is None else f"cuda: {missing_gpu()}"  # said once, with the devices
    for engine in planner.engines():
        usable = f"usable on {', '.join(engine.usable_on)}" if engine.usable_on else "not usable"
        print(fitted(f"  {engine.name:<12}{usable:<20}{engine.what}", 34))
        reason = engine.missing.removesuffix(no_gpu).removesuffix("; ")
        if reason and engine.name != "reference":
            # the engines for several devices do not need the native core
            has_reason = native is not None or engine.name in {backend.name for backend in PUBLIC}
            print(fitted(f"{'':14}{reason if has_reason else 'the native core was not built, see below'}"))


def _solvers(where: Environment) -> None:
    """The copies of cuSOLVER, and which of them are used for what."""
    if not where.gpus or native is None or is_amd() or native.missing("solver"):
        return
    print("\ncopies of cuSOLVER")
    newer = False
    for path, version, problem, ordinary in native.solver_copies():
        use = ["all other routines"] if ordinary else []
        if not problem:
            newer = True
            use.insert(0, "eigenvalues of large real matrices")
        number = f"{version // 1000}.{version // 100 % 10}.{version % 100}" if version else "unknown"
        print(f"  {number:<12}{path}")
        print(f"{'':14}{'used for ' + ' and '.join(use) if use else 'not used: ' + problem}")
    if not newer:
        print(f"{'':14}hint: a newer one beside it computes eigenvalues of large real matrices in two stages:")
        print(f"{'':14}pip install --target FOLDER --no-deps nvidia-cusolver, then set LAPWING_CUDA_PATH=FOLDER")


def _missing(where: Environment) -> None:
    lines = [(name, "not installed", how_to_get(name)) for name in HOW_TO_GET if not installed_version(name)]
    if native is None:
        lines.append(("native core", missing_reason, how_to_build()))
    elif installed_version("tensorflow") and not Path(planner.__file__).with_name("_tensorflow.abi3.so").exists():
        lines.append(("TensorFlow ops", "not built, numpy.linalg is used", how_to_build()))
    if where.gpus and native is not None:
        for part, package in (("solver", "nvidia-cusolver"), ("compiler", "nvidia-cuda-nvrtc")):
            if reason := native.missing(part):
                how = "install ROCm's rocSOLVER, rocBLAS and hipRTC" if is_amd() else f"pip install {package}"
                lines.append((f"{'ROCm' if is_amd() else 'CUDA'} {part}", reason, how))
    print("\nmissing")
    for name, reason, hint in lines:
        print(fitted(f"  {name:<12}{reason}\n{'':14}hint: {hint}"))
    if not lines:
        print("  nothing")


def _folders() -> None:
    print("\nfolders and records")
    path = cache_path("records")
    cache = str(path.parent) if path else "none: LAPWING_CACHE is empty"
    unsafe = path is not None and path.exists() and not cache_folder("records")
    print(f"  cache       {cache}{': not used, as others can write there' if unsafe else ''}")
    _kernels()
    for device in DEVICES:
        hardware = planner.hardware_of(device)
        if hardware == "none":
            continue
        record = planner.record_for("cholesky", device)
        if record:
            used = f"{record.source}, measured {record.date} on {record.hardware}, {len(record.measurements)} points"
        else:
            used = f"built-in limits, as there is no record of {hardware}\n{'':14}hint: {program()} {_RECORD_COMMAND[device]}"
        print(fitted(f"  {device:<12}{used}"))
    if platform.system() != "Linux":
        print("  native code runs on Linux only; here everything goes through numpy.linalg")


def _kernels() -> None:
    """Where GPU kernels come from, if there is a GPU, or else which packs are installed."""
    gpus = native.gpus() if native is not None else []
    found = packs.in_use()
    for path, architecture, count, problem in found:
        print(f"  kernels     {path}: {f'not used, {problem}' if problem else f'sm_{architecture}, {count} kernels'}")
    if gpus and is_amd():
        print("  kernels     each kernel is compiled by hipRTC when it is first used, and kept in the cache")
    elif gpus and not any(not problem for *_, problem in found):
        architecture = min(capability for _, capability, _ in gpus) // 10 * 10
        print("  kernels     no pack for this GPU: each kernel is compiled when it is first used")
        print(f"{'':14}hint: {program()} kernels build --arch sm_{architecture}")
    elif not gpus and (paths := packs.files()):
        print(f"  kernels     {', '.join(map(str, paths))}")
