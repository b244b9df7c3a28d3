"""Whether MPI started this process, and as which rank. MPI itself is not started: that would wait for the other ranks."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec

__all__ = ["RANKS", "Place", "own", "under_mpi"]

_NAMES = (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_RANK", ""))
RANKS = tuple(rank for rank, _ in _NAMES)
_STARTED = (*[name for pair in _NAMES for name in pair if name], "MPI_LOCALRANKID")


@dataclass(frozen=True)
class Place:
    rank: int
    size: int | None  # None: unknown


def under_mpi() -> bool:
    """Whether MPI started this process. If not, importing mpi4py would start an MPI of one rank for nothing."""
    return any(name in os.environ for name in _STARTED) or "mpi4py.MPI" in sys.modules


def own() -> Place | None:
    """The own rank: from MPI where it runs already, else from the environment of mpiexec; None without MPI or mpi4py."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized():
        return Place(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
    if find_spec("mpi4py") is None:
        return None
    for rank, size in _NAMES:
        number = os.environ.get(rank, "")
        if number.isdigit():
            count = os.environ.get(size, "")
            return Place(int(number), int(count) if count.isdigit() else None)
    return None
