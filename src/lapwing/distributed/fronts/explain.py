"""What a call on a sharded array would use, and what that costs: decided by what the calls themselves ask.

Nothing runs, and no rank is waited for: one of them alone may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ... import planner
from ...core.plan import Plan
from ...core.problem import Spec
from ...ops import spectrum
from ...ops.checks import check_matrix, check_square
from .. import scaling
from ..backends.xla import cost as sharded_cost
from ..layout import Layout
from ..scaling import CPU_CLUSTER, H200, Cost
from .engines import check_ranks, free_memory, on_ranks, refuse

__all__ = ["explain_array", "explain_spec"]

_RECTANGULAR = ("qr", "svd", "svdvals", "lstsq", "polar")
_DESCRIBED = {"cpu": ("scalapack", "elpa", "sharded"), "cuda": ("cusolvermp", "sharded")}


@dataclass(frozen=True)
class _Ranks:
    """Ranks that are counted, and not asked."""

    size: int


class _Asked:
    """A call: its function, the matrix described, and the options that the cost depends on."""

    def __init__(self, op: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], engine: str) -> None:
        self.op, self.args, self.engine = op, args, engine
        self.name, self.base = op.__name__, op.__name__.removesuffix("_ex")  # which have the same way
        self.given = options
        self.options = options | {"engine": engine}
        self.assume = options.get("assume", "pos" if self.base in ("cholesky", "factor") else "general")

    @property
    def columns(self) -> int:
        shape = tuple(getattr(self.args[1], "shape", ())) if len(self.args) > 1 else ()
        return shape[1] if len(shape) == 2 else 1

    def check(self, shape: tuple[int, ...], dtype: str) -> tuple[int, int]:
        if self.base not in scaling.OPERATIONS and self.base != "factor":
            raise TypeError(f"explain: {self.name} takes no sharded matrices")
        (check_matrix if self.base in _RECTANGULAR else check_square)(self.name, shape, dtype)
        if len(shape) != 2:
            raise ValueError(f"{self.name}: a sharded matrix has shape (m, n), got {shape}")
        right = tuple(getattr(self.args[1], "shape", ())) if len(self.args) > 1 else ()
        if right and right[0] != shape[0]:
            raise ValueError(f"{self.name}: a has {shape[0]} rows and b has {right[0]} (shapes {shape} and {right})")
        return shape[0], shape[1]

    def ordinary(self, own: Callable[[Any], Any] = lambda x: x) -> Plan:
        """By the planner; ``own``: what this rank has of an array."""
        options = {key: own(value) for key, value in self.given.items()}
        return planner.plan(self.op.problem(*[own(x) for x in self.args], **options), self.engine)  # type: ignore[attr-defined]

    def tiled(self, shape: tuple[int, int], dtype: str, devices: Any, machine: Any, tile: int | None = None) -> Cost:
        """On tiles over a grid, by ScaLAPACK or cuSOLVERMp."""
        operation, pos = self._work()
        made = scaling.cost(
            operation, shape[1], devices, dtype, machine=machine, tile=tile, columns=self.columns, pos=pos, rows=shape[0]
        )
        return replace(made, operation=self.name)

    def panels(self, shape: tuple[int, int], dtype: str, devices: int, machine: Any, cut: Any = None) -> Cost:
        """In panels, or of long and narrow matrices by TSQR, inside XLA."""
        known: dict[str, Any] = {"machine": machine, "columns": self.columns}
        if self.base in sharded_cost.TALL:
            made = sharded_cost.tall(self.base, shape, devices, dtype, **known)
        else:
            made = sharded_cost.blocked(self.base, shape[0], devices, dtype, **known, assume=self.assume, cut=cut)
        return replace(made, operation=self.name)

    def gathered(self, shape: tuple[int, int], dtype: str, devices: int, machine: Any, note: str, limit: float) -> Cost:
        operation, pos = self._work()
        known: dict[str, Any] = {"machine": machine, "columns": self.columns, "pos": pos}
        made = sharded_cost.gathered(operation, shape, devices, dtype, note=note, limit=limit, **known)
        return replace(made, operation=self.name)

    def inside_xla(self) -> str:
        return f"to one device: there is no distributed {self.name} inside XLA"

    def _work(self) -> tuple[str, bool]:
        pos = self.base not in ("solve", "inv", "slogdet") or self.assume == "pos"
        return ("cholesky" if self.assume == "pos" else "lu") if self.base == "factor" else self.base, pos


def explain_spec(op: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], engine: str) -> Cost:
    """A description: planned for a cluster."""
    asked, a = _Asked(op, args, options, engine), args[0]
    shape = asked.check(a.shape, a.dtype)
    names = _DESCRIBED[a.device]
    if engine != "auto" and engine not in names:
        refuse(f"explain: {asked.name}", engine, f"sharded matrices on {a.device}", f"use one of {', '.join(names)}")
    devices, tile = a.sharding, None
    if isinstance(devices, Layout):
        tile = devices.rows.tile or None
        devices = devices.grid
    grid = isinstance(devices, tuple) and len(devices) == 2 and all(isinstance(x, int) and x > 0 for x in devices)
    if not grid and (not isinstance(devices, int) or devices < 1):
        raise ValueError(f"explain: sharding={a.sharding!r} is not a number of devices, a grid (p, q) or a Layout")
    machine = scaling.MACHINES[a.device]
    if engine == "sharded":
        return _described_inside_xla(asked, shape, a, devices[0] * devices[1] if grid else devices)
    made = asked.tiled(shape, a.dtype, devices, machine, tile)
    return made if engine == "auto" else replace(made, engine=engine)


def _described_inside_xla(asked: _Asked, shape: tuple[int, int], a: Spec, devices: int) -> Cost:
    from ..backends.xla.panels import GATHER_LIMIT

    machine = scaling.MACHINES[a.device]
    # cut along its longer side
    long = max(shape) // devices >= min(shape) and not (asked.base == "lstsq" and shape[0] < shape[1])
    if asked.base in sharded_cost.BLOCKED or (asked.base in sharded_cost.TALL and long):
        return asked.panels(shape, a.dtype, devices, machine)
    return asked.gathered(shape, a.dtype, devices, machine, asked.inside_xla(), GATHER_LIMIT)


def explain_array(
    family: str, op: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], engine: str
) -> Cost | Plan:
    """``family``: of the array, as :func:`sharded.family_of` tells it."""
    way = {"matrix": _matrix, "dtensor": _dtensor, "jax": _jax}[family]
    return way(args[0], _Asked(op, args, options, engine))


def _matrix(a: Any, asked: _Asked) -> Cost | Plan:
    engine = on_ranks(a, asked.engine)
    if engine == "alone":
        return asked.ordinary(lambda x: x.local if hasattr(x, "ranks") and hasattr(x, "layout") else x)
    shape = asked.check(a.shape, a.dtype.name)
    return _cusolvermp(asked, shape, a.dtype.name, a.ranks) if engine == "cusolvermp" else _scalapack(asked, a.layout, a)


def _scalapack(asked: _Asked, layout: Layout, a: Any, ranks: Any = None) -> Cost:
    """``a``: what has the dtype, and the ranks unless they are given."""
    from ..backends import elpa
    from ..backends.scalapack import library as scalapack_library
    from .entry import tiles_for
    from .spectra import takes_elpa

    check_ranks(asked.base, asked.engine)
    dtype = str(a.dtype).rpartition(".")[2]
    shape = asked.check(layout.shape, dtype)
    systems = asked.base in ("solve", "inv", "slogdet", "factor")
    # as the calls enter: see sharded_systems and sharded_spectra
    permute = asked.base in ("eigh", "eigvalsh") or (systems and asked.name in ("solve", "inv", "slogdet"))
    tiles = tiles_for(layout, ranks or a.ranks, "factor" if systems else asked.base, permute)
    part = None
    if asked.base in ("eigh", "eigvalsh"):
        first, count = spectrum.part_of(asked.base, asked.options.get("subset"), shape[0])
        part = None if count < 0 else (first, count)
    made = asked.tiled(shape, dtype, tiles.grid, CPU_CLUSTER, tiles.rows.tile or None)
    missing = scalapack_library.missing()
    if asked.base in ("eigh", "eigvalsh") and takes_elpa(asked.engine, part, shape[0], asked.base == "eigh", dtype, tiles.size):
        return replace(made, engine="elpa", missing=missing or elpa.missing())
    return replace(made, missing=missing)


def _cusolvermp(asked: _Asked, shape: tuple[int, int], dtype: str, ranks: Any) -> Cost:
    from ..backends.cusolvermp import routines as cusolvermp
    from .cuda import check_options

    options = dict(asked.options)
    check_options(asked.base, shape, dtype, options, options.pop("on_fail", "raise"))
    return replace(asked.tiled(shape, dtype, ranks.size, H200), missing=cusolvermp.missing().removeprefix("distributed: "))


def _dtensor(a: Any, asked: _Asked) -> Cost | Plan:
    from . import dtensor
    from . import dtensor_checks as checks

    if not dtensor.cuts_matrix(a) and asked.engine != "cusolvermp":
        return asked.ordinary(lambda x: x.to_local() if hasattr(x, "to_local") else x)
    layout, dtype = dtensor.standard_layout(asked.name, a), dtensor.dtype_of(a)
    shape, ranks = asked.check(tuple(a.shape), dtype), _Ranks(a.device_mesh.size())
    if dtensor.on_gpu(a):
        return _cusolvermp(asked, shape, dtype, ranks)
    if dtensor.mpi_seen():
        return _cusolvermp(asked, shape, dtype, ranks) if asked.engine == "cusolvermp" else _scalapack(asked, layout, a, ranks)
    checks.check_gathered_engine(asked.name, asked.engine)
    free = float(free_memory())
    note = "on rank 0, as MPI did not start the ranks (ScaLAPACK needs it)"
    return asked.gathered(shape, dtype, ranks.size, replace(CPU_CLUSTER, memory=free), note, free / checks.ROOM)


def _jax(a: Any, asked: _Asked) -> Cost | Plan:
    from ...frameworks import jax
    from ..backends.xla import calls as sharded_calls
    from ..backends.xla.panels import GATHER_LIMIT
    from . import jax as sharded_jax
    from . import jax_checks as sharded_jax_checks
    from . import jax_processes, jax_sharding
    from . import jax_spectra as sharded_jax_spectra
    from .jax_processes_calls import engine_of

    where = jax_sharding.route(a)
    if where is None or not sharded_jax.takes(asked.name, a, where):
        return asked.ordinary()
    dtype, devices = str(a.dtype), where.grid.size
    taken = sharded_jax.outside(asked.name, a, asked.options, where, mpi_of=jax_processes.mpi_seen)
    if taken is not None:
        shape, ranks = asked.check(tuple(a.shape), dtype), taken.blocks.ranks
        if taken.mpi is None or engine_of(asked.options) == "cusolvermp":
            return _cusolvermp(asked, shape, dtype, ranks)
        return _scalapack(asked, taken.blocks.layout, a, ranks)
    sharded_jax_checks.check_engine(asked.name, a, asked.engine)
    shape = asked.check(tuple(a.shape), dtype)
    machine = scaling.MACHINES[jax.describe(a).device]
    if asked.base not in sharded_cost.BLOCKED and sharded_jax_spectra.is_gathered(asked.name, where, a):
        sharded_jax_spectra.check_gathered(asked.name, a, asked.engine)
        if machine.device == "cpu":  # a device of which is all of the host
            machine = replace(machine, memory=float(free_memory()))
        return asked.gathered(shape, dtype, devices, machine, asked.inside_xla(), GATHER_LIMIT)
    if asked.base in sharded_cost.TALL:
        sharded_jax_spectra.check_long(asked.base, *shape, **asked.given)
    cut = sharded_calls.cut_for(shape[0], where.grid) if asked.base in sharded_cost.BLOCKED else None
    return asked.panels(shape, dtype, devices, machine, cut)
