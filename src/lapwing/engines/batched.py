"""Our own kernels for many small matrices: across SIMD lanes and threads on the CPU, across warps and blocks on a GPU."""

from __future__ import annotations

from ..core.native import missing_reason, native
from ..core.plan import Capability
from ..core.problem import DTYPES, Problem
from .engine import Engine

__all__ = ["ENGINE", "missing_gpu"]

# one block keeps the lower triangle of its matrix in shared memory
_LARGEST_ON_GPU = 128


def missing_gpu() -> str:
    """Why our GPU kernels cannot run here, or ""."""
    if native is None:
        return missing_reason
    if reason := native.missing("driver"):
        return f"no usable GPU: {reason}"
    if reason := native.missing("compiler"):
        return f"kernels are compiled at run time: {reason}\nhint: pip install nvidia-cuda-nvrtc"
    return ""


def _missing(device: str) -> str:
    return missing_gpu() if device == "cuda" else ("" if native is not None else missing_reason)


def _largest(problem: Problem) -> int | None:
    return _LARGEST_ON_GPU if problem.device == "cuda" else None


ENGINE = Engine(
    name="batched",
    what="our kernels for many small matrices",
    capabilities=(
        Capability("cholesky", "batched", "cpu", DTYPES, "SIMD across the batch, threads over it"),
        Capability("cholesky", "batched", "cuda", DTYPES, "a thread, warp or block per matrix"),
    ),
    missing=_missing,
    largest=_largest,
)
