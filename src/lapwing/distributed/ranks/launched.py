"""Whether MPI started this process, as which rank, and the communicator of some ranks.

Only :func:`communicator` starts MPI, as that waits for the other ranks.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

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


def launched_place() -> Place | None:
    """This process's rank: from MPI if it runs already, else from the environment of mpiexec; None without MPI or mpi4py."""
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


@cache
def communicator(ranks: Any, usable: bool, expected: int | None = None) -> Any:
    """The mpi4py communicator of the same ranks in the same order. Collective at its first use.

    None if MPI did not start them, if ``usable`` is false on one of them, or if the rank in COMM_WORLD is not the ``expected``
    one.
    """
    place = None
    if usable:
        try:
            from mpi4py import MPI

            place = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        except ImportError:
            pass
    places = ranks.allgather(place if expected is None or place is None or place[0] == expected else None, "MPI")
    if None in places or len({size for _, size in places}) != 1 or len({rank for rank, _ in places}) != ranks.size:
        return None
    from mpi4py import MPI

    order = [rank for rank, _ in places]
    if order == list(range(places[0][1])):
        return MPI.COMM_WORLD
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group().Incl(order))
