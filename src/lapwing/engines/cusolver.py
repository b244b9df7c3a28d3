"""cuSOLVER's 64-bit routines, found at run time: for large matrices."""

from __future__ import annotations

from ..core.native import native, workspace
from ..core.plan import Capability
from ..core.problem import DTYPES, SOLVED
from .batched import missing_gpu
from .engine import Engine

__all__ = ["ENGINE"]


def _missing(device: str) -> str:
    # the triangle is turned and cleaned by kernels of our own
    if reason := missing_gpu():
        return reason
    assert native is not None
    reason = native.missing("solver")
    return f"{reason}\nhint: pip install nvidia-cusolver" if reason else ""


ENGINE = Engine(
    name="cusolver",
    what="cuSOLVER, one large matrix after the other",
    capabilities=(
        Capability("cholesky", "cusolver", "cuda", DTYPES, "64-bit sizes"),
        *[Capability(op, "cusolver", "cuda", DTYPES, "64-bit sizes; batches together") for op in ("eigh", "eigvalsh")],
        *[Capability(op, "cusolver", "cuda", DTYPES, "64-bit sizes; one matrix after the other") for op in SOLVED],
    ),
    missing=_missing,
    workspace=lambda problem: workspace(problem, "cusolver"),
)
