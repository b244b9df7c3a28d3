"""lapwing info: what is here, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import platform
import shutil
from pathlib import Path

from ..bench.environment import PACKAGES, Environment, environment, installed_version
from ..core.native import missing_reason, native
from ..core.plan import bytes_in_words
from ..core.problem import DEVICES
from ..core.settings import cache_folder
from ..engines import planner

__all__ = ["add_parser", "run"]

_HOW_TO_GET = {
    "scipy": "pip install scipy",
    "torch": "pip install lapwing[torch]",
    "jax": "pip install lapwing[jax]",
    "tensorflow": "pip install lapwing[tensorflow]",
    "cupy": "pip install cupy-cuda13x",
    "matplotlib": "pip install lapwing[plot]",
}
_RECORD_COMMAND = {
    "cpu": "lapwing bench cholesky --record",
    "cuda": "lapwing bench cholesky --record --device cuda",
}


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "what is here, what is missing, and how to get it"
    commands.add_parser("info", help=text, description=text.capitalize() + ".").set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    where = environment()
    _versions(where)
    _devices(where)
    _engines()
    _missing(where)
    _folders()
    return 0


def _versions(where: Environment) -> None:
    print("versions")
    for name, version in where.versions:
        print(f"  {name:<12}{version}")


def _devices(where: Environment) -> None:
    print("\ndevices")
    print(f"  cpu         {where.cpu}; {where.instructions}, {where.cores} cores, {where.threads} threads; {where.system}")
    for place, gpu in enumerate(where.gpus):
        major, minor = divmod(gpu.capability, 10)
        detail = f"compute capability {major}.{minor}, {bytes_in_words(gpu.memory)}, driver {where.driver or 'not told'}"
        print(f"  cuda:{place:<7}{gpu.name}; {detail}")
    if not where.gpus:
        print("  cuda        none found")


def _engines() -> None:
    print("\nengines")
    for engine in planner.engines():
        where = f"usable on {', '.join(engine.usable_on)}" if engine.usable_on else "not usable"
        print(f"  {engine.name:<12}{where:<20}{engine.what}")
        if engine.missing and engine.name != "reference" and native is not None:
            print(f"{'':14}{engine.missing}")


def _missing(where: Environment) -> None:
    lines = [
        (name, "not installed", _HOW_TO_GET[name]) for name in PACKAGES if name in _HOW_TO_GET and not installed_version(name)
    ]
    if native is None:
        hint = "pip install --force-reinstall --no-binary lapwing lapwing"
        lines.append(("native core", missing_reason, hint if shutil.which("g++") else f"install g++, then {hint}"))
    elif installed_version("tensorflow") and not _tensorflow_ops():
        lines.append(("TensorFlow ops", "not built, numpy.linalg is used", "install lapwing from source with g++"))
    if where.gpus and native is not None:
        for part, package in (("solver", "nvidia-cusolver"), ("compiler", "nvidia-cuda-nvrtc")):
            if reason := native.missing(part):
                lines.append((f"CUDA {part}", reason, f"pip install {package}"))
    print("\nmissing")
    for name, reason, hint in lines:
        print(f"  {name:<12}{reason}\n{'':14}hint: {hint}")
    if not lines:
        print("  nothing")


def _tensorflow_ops() -> bool:
    return (Path(planner.__file__).parent.parent / "_tensorflow.abi3.so").exists()


def _folders() -> None:
    print("\nfolders and records")
    folder = cache_folder("records")
    cache = str(folder.parent) if folder else "none: LAPWING_CACHE is empty, or others can write to the folder"
    print(f"  cache       {cache}")
    for device in DEVICES:
        hardware = planner.hardware_of(device)
        if hardware == "none":
            continue
        record = planner.record_for("cholesky", device)
        if record:
            used = f"{record.source}, measured {record.date} on {record.hardware}, {len(record.measurements)} points"
        else:
            used = f"built-in limits, as there is no record of {hardware}\n{'':14}hint: {_RECORD_COMMAND[device]}"
        print(f"  {device:<12}{used}")
    if platform.system() != "Linux":
        print("  native code runs on Linux only; here everything goes through numpy.linalg")
