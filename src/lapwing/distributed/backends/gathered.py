"""Rank 0 does the work: the matrix is gathered there if it fits, and results go back.

This is for blocks on CPUs whose ranks were not started by MPI, as ScaLAPACK needs MPI.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...core.errors import warn
from ...core.plan import bytes_in_words
from ...core.problem import ITEMSIZE
from ...core.request import MATRIX, VALUE, Request
from ..cost import CPU_CLUSTER, Cost
from ..matrix import ShardedMatrix
from ..ranks.protocol import agree, attempt
from .protocol import Array, Backend, Part, scaled_operation

_ROOM = 4  # times the size of the matrix is needed on rank 0: the input, a copy, the results
INSTALL = "pip install mkl mpi4py mpich, and start the ranks with mpiexec (lapwing launch -n 4 script.py): ScaLAPACK needs MPI"
_log = logging.getLogger("lapwing")


class Gathered(Backend):
    """The whole matrix on rank 0, which calls the ordinary function. If that raises, every rank raises the same."""

    name, what, takes = "gathered", "the ordinary engines on rank 0", "DTensors without MPI"
    devices, refines = ("cpu",), True

    def refuses(self, array: Array) -> str:
        fits = array.kind == "dtensor" and array.device == "cpu" and not array.mpi
        return "" if fits else "gathers DTensors on CPUs whose ranks MPI did not start"

    def cost(self, request: Request, array: Array) -> Cost:
        free = float(free_memory())
        note = "on rank 0, as MPI did not start the ranks (ScaLAPACK needs it)"
        return gathered_cost(request, array, replace(CPU_CLUSTER, memory=free), note, free / _ROOM)

    def prepare(self, request: Request, a: Part) -> None:
        needed = _ROOM * a.shape[0] * a.shape[1] * ITEMSIZE[a.dtype.name]
        if a.ranks.rank == 0 and needed > (free := free_memory()):
            raise MemoryError(
                f"{request.name}: without MPI the matrix is gathered on one rank, which has {bytes_in_words(free)} free and"
                f" needs {bytes_in_words(needed)}\nhint: {INSTALL}"
            )

    def run(self, request: Request, a: Part, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        _announce(request.name, a.ranks)
        whole = [ShardedMatrix(x.local, x.layout, a.ranks).gather(0) for x in (a, b) if x is not None]
        returned = _on_root(a.ranks, request.name, lambda: request.ordinary(*whole))
        if request.operation == "factor":
            return (_Handle(returned, a),)
        results = [None] * len(request.places) if returned is None else request.results(returned)
        return tuple(_spread(place, x, a, b) for place, x in zip(request.places, results, strict=True))


class _Handle:
    """The ordinary factor on rank 0; matrices go there and back."""

    def __init__(self, factor: Any, a: Part) -> None:
        self._factor, self._like, self.ranks = factor, Part(None, a.layout, a.ranks, None, a.cut), a.ranks
        known = (factor.assume, factor.upper, int(factor.info), factor.report) if factor is not None else None
        self.assume, self.upper, self.info, self.report = a.ranks.allgather(known)[0]

    @property
    def l(self) -> Part:  # noqa: E743
        return self._matrix("Factor.l", lambda: self._factor.l)

    def solve(self, b: Part, /) -> Part:
        whole = ShardedMatrix(b.local, b.layout, self.ranks).gather(0)
        x = _on_root(self.ranks, "Factor.solve", lambda: self._factor.solve(whole))
        if "precision" in self.report:  # the refinement on rank 0 adds its steps
            self.report.update(self.ranks.allgather(None if self._factor is None else self._factor.report)[0])
        return Part(ShardedMatrix.scatter(x, self.ranks, layout=b.layout).local, b.layout, self.ranks)

    def inverse(self) -> Part:
        return self._matrix("Factor.inv", lambda: self._factor.inv())

    def slogdet(self) -> Any:
        return self._value("Factor.slogdet", lambda: tuple(self._factor.slogdet()))

    def rcond(self) -> Any:
        return self._value("Factor.rcond", lambda: self._factor.rcond())

    def _value(self, name: str, work: Callable[[], Any]) -> Any:
        return self.ranks.allgather(_on_root(self.ranks, name, work))[0]

    def _matrix(self, name: str, work: Callable[[], Any]) -> Part:
        layout = self._like.layout
        return Part(
            ShardedMatrix.scatter(_on_root(self.ranks, name, work), self.ranks, layout=layout).local, layout, self.ranks
        )


def _on_root(ranks: Any, name: str, work: Callable[[], Any]) -> Any:
    """The result of ``work`` on rank 0, None elsewhere; if it raises, all ranks raise the same."""
    returned, error = attempt(work) if ranks.rank == 0 else (None, None)
    agree(ranks, name, {}, error=error)
    return returned


def _spread(place: Any, x: Any, a: Part, b: Any) -> Any:
    if place is VALUE:
        return a.ranks.allgather(x)[0]
    shape = a.ranks.allgather(None if x is None else x.shape)[0]
    layout = (a if place is MATRIX else b).of_shape(shape)
    return Part(ShardedMatrix.scatter(x, a.ranks, layout=layout).local, layout, a.ranks)


def _announce(name: str, ranks: Any) -> None:
    """Warn on rank 0. If the user turned warnings into errors, all ranks raise it."""
    text = f"{name}: gathered on rank 0 of {ranks.size}, as MPI did not start the ranks (ScaLAPACK needs it)"
    hint = f"lapwing launch -n {ranks.size} script.py distributes the work: pip install mkl mpi4py mpich"
    if ranks.rank == 0:
        _log.info("%s", text)
    _on_root(ranks, name, lambda: warn(f"{text}\nhint: {hint}"))


def gathered_cost(request: Request, array: Array, machine: Any, note: str, limit: float) -> Cost:
    """Cost if one device has the whole matrix."""
    from .xla import cost

    operation, assume = scaled_operation(request)
    known: dict[str, Any] = {"machine": machine, "columns": array.columns, "assume": assume, "note": note, "limit": limit}
    return replace(cost.gathered(operation, array.shape, array.size, array.dtype, **known), operation=request.name)


def free_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
