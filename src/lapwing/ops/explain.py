"""Which engine a call would use, and what it would cost."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..core.plan import Plan
from ..engines import planner

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
        shows a summary.

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
    """
    problem = getattr(op, "problem", None)
    if problem is None:
        name = getattr(op, "__qualname__", repr(op))
        raise TypeError(f"explain: {name} does not choose an engine\nhint: explain(lapwing.cholesky, a)")
    try:
        inspect.signature(op).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"explain: {op.__name__} does not take these arguments: {error}") from None
    return planner.plan(problem(*args, **kwargs), engine)
