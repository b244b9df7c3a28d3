"""Which engine a call would use, and what it would cost."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.plan import Plan
from ..core.problem import Spec
from ..engines import planner
from .checks import check_square

if TYPE_CHECKING:
    from ..engines.scaling import Cost

__all__ = ["explain"]


def explain(op: Callable[..., Any], /, *args: Any, engine: str = "auto", **kwargs: Any) -> Plan:
    """Say how a call would run, without running it.

    Parameters
    ----------
    op : function
        A lapwing function, such as ``lw.cholesky``.
    *args, **kwargs
        Its arguments. An array may be described by :func:`lapwing.spec` instead.
    engine : str
        As for the function itself.

    Returns
    -------
    Plan
        ``engine``, ``reason``, ``device_bytes``, ``host_bytes``, ``flops``, ``bytes_moved``, ``predicted_seconds``. Printing it
        shows a summary. For a matrix over many devices a ``Cost``: bytes, messages and seconds for each device, grid, tile, and
        the largest n that fits (see :mod:`lapwing.distributed`).

    Raises
    ------
    TypeError
        ``op`` is not a lapwing function that chooses an engine.

    See Also
    --------
    spec : describe an array without allocating it.

    Examples
    --------
    >>> import lapwing as lw
    >>> plan = lw.explain(lw.cholesky, lw.spec((100000, 8, 8), "float32"))
    >>> plan.bytes_moved
    51200000

    A matrix over 64 GPUs:

    >>> plan = lw.explain(lw.cholesky, lw.spec((400000, 400000), "float32", "cuda", sharding=64))
    >>> plan.grid, plan.tile
    ((8, 8), 1024)
    """
    problem = getattr(op, "problem", None)
    if problem is None:
        name = getattr(op, "__qualname__", repr(op))
        raise TypeError(f"explain: {name} does not choose an engine\nhint: explain(lapwing.cholesky, a)")
    try:
        inspect.signature(op).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"explain: {op.__name__} does not take these arguments: {error}") from None
    described = _spread(args[0]) if args else None
    if described is not None:
        return _sharded(op.__name__, described, args, kwargs, engine)  # type: ignore[return-value]
    return planner.plan(problem(*args, **kwargs), engine)


def _spread(a: Any) -> Spec | None:
    """A matrix over many devices, described; None for any other."""
    if isinstance(a, Spec):
        return a if a.sharding is not None else None
    if hasattr(a, "layout") and hasattr(a, "ranks"):  # a ShardedMatrix
        return Spec(a.shape, a.dtype.name, "cpu", a.layout.grid)
    mesh = getattr(a, "device_mesh", None)
    if mesh is not None:  # a torch DTensor
        return Spec(tuple(a.shape), str(a.dtype).rpartition(".")[2], str(mesh.device_type), mesh.size())
    devices = getattr(getattr(a, "sharding", None), "device_set", ())
    if len(devices) > 1 and not getattr(a.sharding, "is_fully_replicated", True):  # a JAX array
        kind = "cpu" if next(iter(devices)).platform == "cpu" else "cuda"
        return Spec(tuple(a.shape), str(a.dtype), kind, len(devices))
    return None


_ENGINES = {"cpu": ("scalapack", "elpa", "sharded"), "cuda": ("cusolvermp", "sharded")}


def _sharded(name: str, a: Spec, args: tuple[Any, ...], kwargs: dict[str, Any], engine: str) -> Cost:
    from ..core.layout import Layout  # not with the library: few need it
    from ..engines import scaling

    if len(a.shape) != 2:
        raise ValueError(f"explain: {name}: a sharded matrix has shape (m, n), got {a.shape}")
    if name not in scaling.OPERATIONS:
        raise TypeError(f"explain: {name} takes no sharded matrices")
    if name not in ("qr", "svd", "svdvals", "lstsq", "polar"):
        check_square(f"explain: {name}", a.shape, a.dtype)
    if engine != "auto" and engine not in _ENGINES[a.device]:
        raise ValueError(f"explain: engine {engine!r} takes no sharded matrices\nhint: {', '.join(_ENGINES[a.device])}")
    devices, tile = a.sharding, None
    if isinstance(devices, Layout):
        tile = devices.rows.tile or None
        devices = devices.grid
    grid = isinstance(devices, tuple) and len(devices) == 2 and all(isinstance(x, int) and x > 0 for x in devices)
    if not grid and (not isinstance(devices, int) or devices < 1):
        raise ValueError(f"explain: sharding={a.sharding!r} is not a number of devices, a grid (p, q) or a Layout")
    columns = next((x.shape[1] for x in args[1:] if len(getattr(x, "shape", ())) == 2), 1)
    made = scaling.cost(
        name,
        a.shape[1],
        devices,
        a.dtype,
        machine=scaling.MACHINES[a.device],
        tile=tile,
        columns=columns,
        pos=name not in ("solve", "inv", "slogdet") or kwargs.get("assume", "general") == "pos",
        rows=a.shape[0],
    )
    return made if engine == "auto" else replace(made, engine=engine)
