"""Our own kernel for one matrix or a few larger ones, spread in tiles over the whole GPU."""

from __future__ import annotations

from ..core.native import workspace
from ..core.plan import Capability
from ..core.problem import DTYPES
from .batched import missing_gpu
from .engine import Engine

__all__ = ["ENGINE"]


ENGINE = Engine(
    name="tiled",
    what="our kernel for a few larger matrices",
    capabilities=(Capability("cholesky", "tiled", "cuda", DTYPES, "tiles of a matrix over all multiprocessors"),),
    missing=lambda device: missing_gpu(),
    workspace=lambda problem: workspace(problem, "tiled"),
)
