"""Which engine a call would use, and what it would cost."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_choice, check_flag
from ..core.keywords import unknown_keyword
from ..core.plan import Plan
from ..core.problem import Spec
from .jitter import check_jitter


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
        the largest n that fits (see :mod:`lapwing.distributed`). It asks no other rank, so a single rank may call it.

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
        name = f"{op.__module__}.{op.__qualname__}" if hasattr(op, "__qualname__") else repr(op)
        raise TypeError(
            f"explain: {name} is not a function of lapwing that chooses an engine\nhint: explain(lapwing.cholesky, a)"
        )
    signature = inspect.signature(op)
    if unknown := {name: kwargs[name] for name in kwargs if name not in signature.parameters}:
        raise unknown_keyword(op, unknown)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"explain: {op.__name__} does not take these arguments: {error}{_hint(op, args)}") from None
    a = args[0]
    kind = None if isinstance(a, Spec) and a.sharding is None else frameworks.entry(a, op.__name__)
    if kind is not None and kind.sharded:
        if not hasattr(op, "request") and kind is not frameworks.foreign.FRONT:
            raise TypeError(
                f"explain: {op.__name__} is not supported for sharded matrices\nhint: explain it for lapwing.spec(shape, dtype)"
            )
        known = {"engine": engine} if "engine" in (op.__kwdefaults__ or {}) else {}
        known |= {name: value for name, value in kwargs.items() if name != "b"}
        b = args[1] if len(args) > 1 else kwargs.get("b")
        return kind.explain(op, a, b, lambda *local: _of_parts(op, local, engine, kwargs), **known)  # type: ignore[no-any-return]
    _check_options(op.__name__, kwargs)
    # these engines solve another problem
    named: dict[str, Any] = {"mixed": {"precision": "mixed"}, "tall": {"engine": "tall"}}.get(engine, {})
    return planner.plan(problem(*args, **kwargs | named), engine, op.__name__)


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Refuse wrong values of options that the problem does not contain, as the call itself would."""
    for flag in ("upper", "overwrite", "certify", "full_matrices"):
        if flag in options:
            check_flag(name, flag, options[flag])
    for choice, known in (("on_fail", ("raise", "nan")), ("side", ("left", "right"))):
        if choice in options:
            check_choice(name, choice, options[choice], known)
    if options.get("jitter") is not None:
        check_jitter(name, options["jitter"], frameworks.of(np.empty(0), name))


def _of_parts(op: Callable[..., Any], arrays: tuple[Any, ...], engine: str, options: dict[str, Any]) -> Plan:
    """The plan for the part of the arrays that one rank has."""
    if options.get("b") is not None:
        arrays, options = arrays[:1], options | {"b": arrays[1]}
    return explain(op, *arrays, engine=engine, **options)


def _hint(op: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """How to describe a right-hand side that was left out."""
    known = list(inspect.signature(op).parameters.values())
    if len(args) != 1 or len(known) < 2 or known[1].default is not known[1].empty or known[1].kind is known[1].KEYWORD_ONLY:
        return ""
    rows = getattr(args[0], "shape", ("n", "n"))[-2:][0]
    return f"\nhint: describe the right-hand side too: lw.explain(lw.{op.__name__}, a, lw.spec(({rows}, k), ...))"
