"""The public functions take sharded input: which arrays are sharded, and who takes the call then.

This module is loaded with the public functions; what does the work on sharded matrices is loaded at the first one.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import Any, TypeVar

from ..core import memory as device_blocks
from ..frameworks import foreign

__all__ = ["family_of", "shardable"]

Function = TypeVar("Function", bound=Callable[..., Any])
# For each type of array seen: None for an ordinary one, else route(a), which gives None where this array is an ordinary one
# after all, or what gives for a public function the one that takes the call.
_ROUTES: dict[type, Any] = {}
_UNSEEN = object()


def shardable(function: Function) -> Function:
    """Lets a public function take sharded arrays as its first argument. For an ordinary one it costs a look at its type.

    What is put before it has its very signature, spelled out: passing ``*args, **kwargs`` on took 0.2 to 0.5 us, this 0.1.
    """
    code = function.__code__
    arrays = code.co_varnames[: code.co_argcount]
    options = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    given = ", ".join([*arrays, *[f"{name}={name}" for name in options]])
    defaults = ", ".join(f"{name}=defaults[{name!r}]" for name in options)
    text = f"""def {function.__name__}({", ".join(arrays)}, /, *, {defaults}):
    route = routes.get(type({arrays[0]}), unseen)
    if route is None:
        return function({given})
    return elsewhere(function, route, {arrays[0]})({given})
"""
    # tools that read source, as TensorFlow's autograph does, find it here
    place = f"<lapwing shardable {function.__name__}>"
    linecache.cache[place] = len(text), None, text.splitlines(keepends=True), place
    names: dict[str, Any] = {"routes": _ROUTES, "unseen": _UNSEEN, "elsewhere": _elsewhere, "function": function}
    made: dict[str, Any] = {}
    exec(compile(text, place, "exec"), names | {"defaults": function.__kwdefaults__ or {}}, made)
    call = made[function.__name__]
    return functools.update_wrapper(call, function)  # type: ignore[return-value]


def _elsewhere(function: Callable[..., Any], route: Any, a: Any) -> Callable[..., Any]:
    """What takes the call for this array."""
    if route is _UNSEEN:
        route = _resolve(type(a))
    taker = None if route is None else route(a)
    return function if taker is None else taker(function)  # type: ignore[no-any-return]


# Import statements, not importlib: torch.compile follows these when the first call happens inside it.
def _resolve(kind: type) -> Any:
    route, family = None, family_of(kind)
    if family == "matrix":
        from ..distributed.fronts import calls as sharded_calls

        route = _always(sharded_calls)
    elif family == "dtensor":
        from ..distributed.fronts import dtensor_calls as sharded_dtensor

        route = _always(sharded_dtensor)
    elif family == "jax":
        from ..distributed.fronts import jax as sharded_jax

        route = sharded_jax.route
    elif foreign.accepts(kind):
        route = _through
    _ROUTES[kind] = route
    return route


def family_of(kind: type) -> str | None:
    """ "matrix", "dtensor" or "jax": whose arrays of this type may be sharded; None where they never are."""
    for base in kind.__mro__:
        module = base.__module__
        if module == "lapwing.distributed.matrix":
            return "matrix"
        if module.startswith("torch.distributed"):
            return "dtensor"
        if module.partition(".")[0] in ("jax", "jaxlib"):
            return "jax"
    return None


def _through(a: Any) -> Any:
    return foreign.through


def _always(calls: Any) -> Callable[[Any], Any]:
    return lambda a: lambda function: getattr(calls, function.__name__)


def _moves() -> Any:
    """What moves the blocks of a ShardedMatrix on GPUs."""
    from ..distributed.fronts import gpu as sharded_gpu

    return sharded_gpu


device_blocks.register(_moves)
