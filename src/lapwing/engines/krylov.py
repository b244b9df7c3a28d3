"""Our block Krylov iteration, for a few eigenvalues at either end of a large spectrum."""

from __future__ import annotations

from ..core.native import missing_reason, native, workspace
from ..core.plan import Capability
from ..core.problem import DTYPES, Problem
from . import lapack
from .batched import missing_gpu
from .engine import Engine

__all__ = ["ENGINE"]


def _missing(device: str) -> str:
    if native is None:
        return missing_reason
    if device == "cpu":
        return lapack.ENGINE.missing("cpu")
    if reason := missing_gpu() or native.missing("blas") or "":
        return f"{reason}\nhint: pip install nvidia-cublas" if "blas" in reason else reason
    return ""


def _refuses(problem: Problem) -> str:
    if problem.at_an_end:
        return ""
    return "krylov finds the smallest or the largest eigenvalues: give subset=slice(k) or subset=slice(-k, None)"


ENGINE = Engine(
    name="krylov",
    what="our block Krylov iteration for the ends of a spectrum",
    capabilities=tuple(
        Capability(op, "krylov", device, DTYPES, "part of a spectrum at either end; verified, else the direct routine")
        for op in ("eigh", "eigvalsh")
        for device in ("cpu", "cuda")
    ),
    missing=_missing,
    refuses=_refuses,
    workspace=lambda problem: workspace(problem, "krylov"),
)
