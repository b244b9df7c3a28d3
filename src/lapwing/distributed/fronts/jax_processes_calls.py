"""JAX matrices over processes with one device each: what XLA has no routine for goes to ScaLAPACK, or on GPUs to cuSOLVERMp.

Not in traced code, which no other library can be called from on several devices; there, and where no such library is, the
engine inside XLA takes the call.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops.eigh import EighResult
from ...ops.lstsq import LstsqResult
from ...ops.qr import QRResult
from ...ops.solve import SlogdetResult
from ...ops.svd import PolarResult, SVDResult
from ..backends.cusolvermp import routines as cusolvermp
from ..backends.scalapack import library as scalapack_library
from ..layout import Axis, Layout
from ..matrix import ShardedMatrix
from ..ranks import launched as mpi_place

__all__ = ["ENGINES", "Taken", "call", "engine_of", "taken"]

# "m": a matrix placed as ``a`` is, "x": as ``b`` is, "v": the same everywhere
_RESULTS: dict[str, tuple[str, Any]] = {
    "cholesky": ("m", None),
    "solve": ("x", None),
    "inv": ("m", None),
    "slogdet": ("vv", SlogdetResult),
    "eigh": ("vm", EighResult),
    "eigvalsh": ("v", None),
    "svd": ("mvm", SVDResult),
    "svdvals": ("v", None),
    "polar": ("mm", PolarResult),
    "qr": ("mm", QRResult),
    "lstsq": ("xvvv", LstsqResult),
}
_SYSTEMS = ("cholesky", "solve", "inv", "slogdet")  # these are inside XLA, with derivatives
ENGINES = ("scalapack", "cusolvermp")


@dataclass(frozen=True, eq=False)
class Taken:
    """A call that goes to a library beside XLA: the block of this process, and MPI's communicator (None: to cuSOLVERMp)."""

    blocks: Any
    mpi: Any


def taken(name: str, a: Any, options: dict[str, Any], tall: bool, *, mpi_of: Any = None) -> Taken | None:
    """Whether such a library takes the call; None: the engine inside XLA does.

    ``mpi_of``: what tells the MPI communicator of ranks; by default they ask each other.
    """
    from . import jax_processes

    engine = options.get("engine", "auto")
    blocks = jax_processes.blocks_of(a) if name in _RESULTS else None
    if blocks is None:
        if engine in ENGINES:
            raise ValueError(
                f"{name}: engine={engine!r} takes JAX matrices that are split over processes with one device each, one block"
                " for each process, outside of traced code\nhint: engine='sharded'"
            )
        return None
    inside = tall or (name in _SYSTEMS and not (name == "solve" and options.get("assume", "general") != "pos"))
    if engine == "sharded" or (engine == "auto" and (inside or options.get("b") is not None)):
        return None
    if jax_processes.on_gpu(blocks):
        # the parts of every process are the same: what is installed here is installed there, or agree() says so
        usable = engine == "cusolvermp" or not cusolvermp.missing()
        return Taken(blocks, None) if usable else None
    mpi_of = mpi_of or jax_processes.mpi_of
    mpi = mpi_of(blocks.ranks, mpi_place.under_mpi() and not scalapack_library.missing())
    if mpi is None:
        if engine in ENGINES:
            why = scalapack_library.missing() or "MPI did not start the processes"
            raise ValueError(
                f"{name}: engine={engine!r} is not usable here: {why}"
                "\nhint: pip install mkl mpich mpi4py, and start with lapwing launch -n 4 script.py"
            )
        return None
    return Taken(blocks, mpi)


def call(name: str, taken: Taken, otherwise: Any, a: Any, /, *rest: Any, **options: Any) -> Any:
    """The call itself; ``otherwise`` is the one inside XLA, which traced right-hand sides need."""
    from . import jax_processes
    from .jax_factor import check_right

    if any(jax_processes.traced(x) for x in rest):
        return otherwise(a, *rest, **options)
    b = rest[0] if rest else None
    if b is not None:
        check_right(name, a, b)
    # the arrays of JAX are never written to
    options = {key: value for key, value in options.items() if key != "overwrite"}
    run = _on_gpus if taken.mpi is None else _on_cpus
    made = run(name, taken.blocks, taken.mpi, a, b, options)
    _, kind = _RESULTS[name]
    return made[0] if kind is None else kind(*made)


def _on_cpus(name: str, blocks: Any, mpi: Any, a: Any, b: Any, options: dict[str, Any]) -> list[Any]:
    from . import calls as sharded_calls
    from . import jax_processes, jax_sharding

    matrix = ShardedMatrix(np.asarray(blocks.local), blocks.layout, mpi)
    sides = _sides(blocks, b)
    given = (
        []
        if b is None
        else [jax_processes.whole_of(b) if sides is None else ShardedMatrix(np.asarray(sides.local), sides.layout, mpi)]
    )
    made = getattr(sharded_calls, name)(matrix, *given, **options | {"engine": engine_of(options)})
    made = made if isinstance(made, tuple) else (made,)
    found = []
    for kind, x in zip(_RESULTS[name][0], made, strict=True):
        if isinstance(x, ShardedMatrix):
            x = x.redistribute(_even(blocks.layout, x.shape))
            x = jax_processes.as_result(jax_processes.JaxBlocks(x.local, x.layout, blocks.ranks), a if kind == "m" else b)
        elif kind == "x":
            x = jax_processes.replicated_like(x, b, a)
        elif x is not None:
            x = jax_sharding.put_everywhere(np.asarray(x), a)
        found.append(x)
    return found


def engine_of(options: dict[str, Any]) -> str:
    engine = options.get("engine", "auto")
    return "scalapack" if engine == "auto" else str(engine)


def _on_gpus(name: str, blocks: Any, mpi: Any, a: Any, b: Any, options: dict[str, Any]) -> list[Any]:
    from . import cuda as sharded_cuda
    from . import jax_processes, jax_sharding

    sides = _sides(blocks, b)
    split = sides is not None
    if b is not None and sides is None:
        shape = (b.shape[0], 1 if len(b.shape) == 1 else b.shape[1])
        sides = jax_processes.own_part(jax_processes.whole_of(b), blocks, shape)
    place = functools.partial(_even, blocks.layout)
    made = sharded_cuda.run(name, blocks, sides, options, place, place)
    found = []
    for kind, x in zip(_RESULTS[name][0], made, strict=True):
        if kind == "m" or (kind == "x" and split):
            x = jax_processes.as_result(x, a if kind == "m" else b)
        elif kind == "x":
            whole = jax_processes.spread(x)
            x = jax_processes.replicated_like(whole[:, 0] if len(b.shape) == 1 else whole, b, a)
        elif x is not None:
            x = jax_sharding.put_everywhere(np.asarray(x), a)
        found.append(x)
    return found


def _sides(blocks: Any, b: Any) -> Any:
    """The blocks of b, where they lie on the same ranks as those of A."""
    from . import jax_processes

    found = None if b is None else jax_processes.blocks_of(b)
    return found if found is not None and found.ranks is blocks.ranks and found.layout.grid == blocks.layout.grid else None


def _even(like: Layout, shape: tuple[int, ...]) -> Layout:
    p, q = like.grid
    return Layout(Axis.even(shape[0], p), Axis.even(shape[1], q))
