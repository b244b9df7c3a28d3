"""Which engine a call would use, and what it would cost."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import planner
from ..core.plan import Plan
from ..core.problem import Spec
from ..frameworks import foreign
from .sharded import family_of

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
        the largest n that fits (see :mod:`lapwing.distributed`). No rank is waited for: one of them alone may ask.

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
        raise TypeError(f"explain: {op.__name__} does not take these arguments: {error}{_hint(op, args)}") from None
    a = args[0]
    if isinstance(a, Spec):
        if a.sharding is not None:
            from ..distributed.fronts.explain import explain_spec  # not with the library: few need it

            return explain_spec(op, args, kwargs, engine)  # type: ignore[return-value]
    elif (family := family_of(type(a))) is not None:
        from ..distributed.fronts.explain import explain_array

        return explain_array(family, op, args, kwargs, engine)  # type: ignore[return-value]
    options = kwargs | {"precision": "mixed"} if engine == "mixed" else kwargs  # naming the engine asks for it
    try:
        return planner.plan(problem(*args, **options), engine)
    except foreign.ForeignArray:
        return planner.plan(foreign.through(problem)(*args, **options), engine)


def _hint(op: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """How to describe a right-hand side that was left out."""
    taken = list(inspect.signature(op).parameters.values())
    if len(args) != 1 or len(taken) < 2 or taken[1].default is not taken[1].empty or taken[1].kind is taken[1].KEYWORD_ONLY:
        return ""
    rows = getattr(args[0], "shape", ("n", "n"))[-2:][0]
    return f"\nhint: describe the right-hand side too: lw.explain(lw.{op.__name__}, a, lw.spec(({rows}, k), ...))"
