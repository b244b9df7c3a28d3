"""lapwing doctor: one line for each part, whether it works, and the cure where it does not."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np

from ..bench.environment import gpus_here, how_to_get, installed_version
from ..bench.library import silenced
from ..core import packs
from ..core.engines import is_amd, library_engine, missing_gpu
from ..core.native import how_to_build, missing_reason, native
from ..core.settings import cache_folder, cache_path
from ..planner import ALL
from .progress import Waiting


class Finding(NamedTuple):
    part: str
    works: bool | None  # None: not here, and not needed
    text: str
    cure: str = ""


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "check every part, and say how to mend what does not work"
    commands.add_parser("doctor", help=text, description=text.capitalize() + ".").set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0: nothing is broken."""
    broken = False
    for finding in _findings():
        broken |= finding.works is False
        mark = {True: "ok", False: "BAD", None: "-"}[finding.works]
        print(f"{mark:<5}{finding.part:<12}{finding.text}")
        if finding.cure:
            print(f"{'':17}{'to use it' if finding.works is None else 'cure'}: {finding.cure}")
    return int(broken)


def _findings() -> Iterator[Finding]:
    yield _native()
    for name in ("torch", "jax", "tensorflow", "cupy"):
        yield _framework(name)
    yield from _gpu()
    yield _mpi()
    yield from _caches()


def _native() -> Finding:
    if native is None:
        return Finding("native core", False, missing_reason, how_to_build())
    from ..ops.solve import solve

    a = np.array([[4.0, 1.0], [1.0, 3.0]])
    x = solve(a, np.array([1.0, 2.0]))
    good = bool(np.abs(a @ x - [1.0, 2.0]).max() < 1e-14)
    return Finding("native core", good, f"{native.simd()}, {native.allowed_threads()} threads; a small system is solved")


def _framework(name: str) -> Finding:
    version = installed_version(name)
    if not version:
        return Finding(name, None, "not installed", how_to_get(name))
    try:
        module = _imported(name)
    except Exception as error:  # whatever a broken installation raises
        again = " --force-reinstall" if how_to_get(name).startswith("pip") else " again"
        return Finding(name, False, f"{version} does not import: {str(error).splitlines()[0]}", f"{how_to_get(name)}{again}")
    rocm = getattr(getattr(module, "version", None), "hip", None)
    return Finding(name, True, f"{version}{f', built for ROCm {rocm}' if rocm else ''}")


def _imported(name: str) -> ModuleType:
    """What a library prints while it is imported is not shown between the lines of the doctor."""
    if sys.stderr is None:  # it was closed
        return importlib.import_module(name)
    with open(os.dup(2), "w") as stderr, Waiting(f"importing {name}", stderr), silenced():
        return importlib.import_module(name)


def _gpu() -> Iterator[Finding]:
    if native is None:
        return
    if reason := native.missing("driver"):
        yield Finding("GPU", None, f"none: {reason}", "install the driver of your GPU")
        return
    for place, gpu in enumerate(gpus_here()):
        yield Finding(f"GPU {place}", True, f"{gpu.name}; {gpu}")
    for part, reason in (("kernels", missing_gpu()), (library_engine(), ALL[library_engine()].missing("cuda"))):
        text, _, cure = reason.partition("\nhint: ")
        versions = native.amd_versions() if is_amd() else {}
        fine = {"kernels": versions.get("compiler") and f"compiled by hipRTC {versions['compiler']}"}.get(part)
        yield Finding(part, not reason, text or fine or versions.get("solver") or "usable", cure)


def _mpi() -> Finding:
    try:
        from mpi4py import MPI
    except ImportError:
        return Finding(
            "MPI", None, "mpi4py is not installed; only matrices over many ranks need it", "pip install mpich mpi4py"
        )
    except Exception as error:  # an MPI library that does not load
        return Finding("MPI", False, str(error).splitlines()[0], "install an MPI library: pip install mpich")
    return Finding("MPI", True, " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split()))


def _caches() -> Iterator[Finding]:
    for part, what in (("kernels", "compiled kernels"), ("records", "records")):
        path = cache_path(part)
        if path is None:
            yield Finding("cache", None, f"{what} are not kept: LAPWING_CACHE is empty", "unset LAPWING_CACHE")
        elif path.exists() and cache_folder(part) is None:
            yield Finding("cache", False, f"{path} is not used: others can write to it", f"chmod 700 {path} {path.parent}")
        else:
            yield Finding("cache", True, f"{what} in {path}")
    for pack, _, _, problem in packs.in_use():
        if problem:
            yield Finding(
                "kernel pack",
                False,
                f"{pack} is not used: {problem}",
                "delete it, or make it again with lapwing kernels build",
            )
