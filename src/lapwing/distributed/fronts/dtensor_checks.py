"""What calls on torch DTensors check before the ranks wait for each other: what is wrong on one of them is raised by all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.plan import bytes_in_words
from ...core.problem import ITEMSIZE
from ...ops.checks import check_matrix
from ..ranks.protocol import agree
from . import dtensor
from .engines import NAMES, free_memory, refuse

__all__ = ["ROOM", "Entered", "check_gathered_engine", "enter", "enter_right"]

ROOM = 4  # matrices of its size that one rank needs room for: the input, a copy, the results
_INSTALL = "pip install mkl mpi4py mpich, and start the ranks with mpiexec (lapwing launch -n 4 script.py): ScaLAPACK needs MPI"


@dataclass(frozen=True)
class Entered:
    """What all ranks agreed on: this rank's block, and the MPI communicator of the ranks (None: MPI did not start them)."""

    blocks: Any
    mpi: Any

    @property
    def gpu(self) -> bool:
        return dtensor.on_gpu(self.blocks.local)

    @property
    def ranks(self) -> Any:
        return self.blocks.ranks if self.mpi is None else self.mpi


def enter(name: str, a: Any, options: dict[str, Any], *sides: Any) -> Entered:
    """``a``: a standard DTensor; ``sides``: right-hand sides, as they were given."""
    ranks = dtensor.ranks_of(a.device_mesh)
    gpu = dtensor.on_gpu(a)
    mpi = None if gpu else ranks.mpi()
    error: Exception | None = None
    blocks: Any = None
    try:
        check_matrix(name, tuple(a.shape), dtensor.dtype_of(a))
        blocks = dtensor.blocks_of(name, a)
        for b in sides:
            _check_right(name, tuple(a.shape), a.dtype, b)
        if not gpu and mpi is None:
            _check_gathered(name, a, options, ranks)
    except (TypeError, ValueError, MemoryError) as wrong:
        error = wrong
    told = {"shape": tuple(a.shape), "dtype": dtensor.dtype_of(a), "placements": str(a.placements)}
    chosen = sorted((key, value) for key, value in options.items() if key != "b")
    agree(ranks, name, told | {"options": repr(chosen)} | _told(sides), error=error)
    return Entered(blocks, mpi)


def enter_right(name: str, like: Any, shape: tuple[int, ...], dtype: Any, b: Any) -> None:
    """The same for right-hand sides of a factor of that shape, on the mesh of ``like``."""
    error: Exception | None = None
    try:
        _check_right(name, shape, dtype, b)
    except (TypeError, ValueError) as wrong:
        error = wrong
    agree(dtensor.ranks_of(like.device_mesh), name, _told((b,)), error=error)


def _check_right(name: str, shape: tuple[int, ...], dtype: Any, b: Any) -> None:
    if not dtensor.is_tensor(b):
        raise TypeError(f"{name}: b must be a DTensor, or a torch tensor that every rank has, got {type(b).__name__}")
    if b.dtype != dtype:
        one, other = (str(x).rpartition(".")[2] for x in (dtype, b.dtype))
        raise TypeError(f"{name}: a and b must have the same dtype, got {one} and {other}\nhint: convert one of them")
    if b.ndim not in (1, 2):
        raise ValueError(f"{name}: b must have shape (n,) or (n, k) for a sharded matrix, got {tuple(b.shape)}")
    if b.shape[0] != shape[0]:
        hint = "\nhint: a tensor is all of b, on every rank; a rank's rows of it are DTensor.from_local(b, mesh, [Shard(0)])"
        raise ValueError(
            f"{name}: a has {shape[0]} rows and b has {b.shape[0]} (shapes {shape} and {tuple(b.shape)})"
            + ("" if dtensor.is_sharded(b) else hint)
        )


def _told(sides: tuple[Any, ...]) -> dict[str, Any]:
    fields = ("shape", "dtype", "placements")
    return {f"{field} of b": str([str(getattr(b, field, "none")) for b in sides]) for field in fields}


def _check_gathered(name: str, a: Any, options: dict[str, Any], ranks: Any) -> None:
    check_gathered_engine(name, options.get("engine", "auto"))
    needed = ROOM * a.shape[0] * a.shape[1] * ITEMSIZE[dtensor.dtype_of(a)]
    if ranks.rank == 0 and needed > (free := free_memory()):
        raise MemoryError(
            f"{name}: without MPI the matrix is gathered on one rank, which has {bytes_in_words(free)} free and needs"
            f" {bytes_in_words(needed)}\nhint: {_INSTALL}"
        )


def check_gathered_engine(name: str, engine: str) -> None:
    if engine in NAMES:
        raise ValueError(f"{name}: engine={engine!r} needs ranks that MPI started\nhint: {_INSTALL}")
    if engine != "auto":
        refuse(name, engine, "sharded matrices", "use 'auto'")
