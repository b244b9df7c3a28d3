"""numpy.linalg, where there is no native core: slow, but it works everywhere."""

from __future__ import annotations

from ..core.native import native
from ..core.plan import Capability
from ..core.problem import DTYPES, SOLVED
from .engine import Engine

__all__ = ["ENGINE"]


def _missing(device: str) -> str:
    return "" if native is None else "not needed: the native core is there"


ENGINE = Engine(
    name="reference",
    what="numpy.linalg, when the native core was not built",
    capabilities=tuple(
        Capability(op, "reference", "cpu", DTYPES, "matrix by matrix") for op in ("cholesky", "eigh", "eigvalsh", *SOLVED)
    ),
    missing=_missing,
)
