"""Our own kernel for one matrix or a few larger ones, spread in tiles over the whole GPU."""

from __future__ import annotations

from ..core.native import AUTO, CUDA, DTYPE_CODE, ENGINES, scratch_bytes
from ..core.plan import Capability
from ..core.problem import DTYPES, Problem
from .batched import missing_gpu
from .engine import Engine

__all__ = ["ENGINE", "gpu_workspace"]


def gpu_workspace(engine: str, problem: Problem) -> tuple[int, int]:
    """Device and host bytes, asked from the native core."""
    code = ENGINES.get(engine, AUTO)
    return scratch_bytes(0, DTYPE_CODE[problem.dtype], CUDA, 0, code, 0, 0, (problem.batch, problem.n)), 0


ENGINE = Engine(
    name="tiled",
    what="our kernel for a few larger matrices",
    capabilities=(Capability("cholesky", "tiled", "cuda", DTYPES, "tiles of a matrix over all multiprocessors"),),
    missing=lambda device: missing_gpu(),
    workspace=lambda problem: gpu_workspace("tiled", problem),
)
