"""Which engine takes a call on a sharded matrix. The calls ask here, and so does explain: nothing here runs or communicates."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from ... import planner

__all__ = ["NAMES", "check_ranks", "free_memory", "on_ranks", "refuse"]

NAMES = ("scalapack", "elpa", "cusolvermp", "sharded")  # beside the planner's own
_ELPA = ("eigh", "eigvalsh")


def on_ranks(a: Any, engine: str | None) -> str:
    """For a ShardedMatrix: "cusolvermp"; "scalapack", which has ELPA beside it; or "alone", the ordinary engines."""
    if engine == "cusolvermp" or a.on_gpu:
        from . import gpu as sharded_gpu

        if sharded_gpu.taken(a, {"engine": engine}):
            return "cusolvermp"
    return "scalapack" if a.ranks.size > 1 or engine in ("scalapack", "elpa") else "alone"


def check_ranks(name: str, engine: str) -> None:
    """Of a call that goes to ScaLAPACK."""
    if engine not in ("auto", "scalapack", "elpa"):
        refuse(name, engine, "sharded matrices", "use 'auto', 'scalapack', 'elpa' or 'cusolvermp'")
    if engine == "elpa" and name not in _ELPA:
        raise NotImplementedError(f"{name}: elpa has eigh and eigvalsh only\nhint: engine='scalapack'")


def refuse(name: str, engine: Any, what: str, hint: str) -> NoReturn:
    """An engine that takes no such matrices, or that there is not."""
    if engine not in NAMES and engine not in planner.ALL:
        raise ValueError(f"{name}: engine={engine!r} is not known\nhint: {hint}")
    raise ValueError(f"{name}: engine={engine!r} takes no {what}\nhint: {hint}")


def free_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
