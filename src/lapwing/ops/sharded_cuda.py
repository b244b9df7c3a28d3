"""The public calls on blocks that lie on GPUs, one process for each: their options, the choice of cuSOLVERMp, their results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.communicator import agree
from ..core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ..core.layout import Layout
from ..core.problem import REAL
from ..engines import cusolvermp
from . import spectrum
from .checks import check_square

__all__ = ["run"]

_log = logging.getLogger("lapwing")
Shape = Callable[[tuple[int, ...]], Layout]
_TAKES = {
    "cholesky": {"upper", "overwrite"},
    "solve": {"assume", "upper", "overwrite"},
    "inv": {"assume", "upper", "overwrite"},
    "slogdet": {"assume", "upper"},
    "eigh": {"upper", "subset", "overwrite"},
    "eigvalsh": {"upper", "subset", "overwrite"},
}
_ITERATIONS = ("eigh", "eigvalsh", "svd", "svdvals")
_FAILURES = (NotPositiveDefiniteError, SingularMatrixError, ConvergenceError)


def run(name: str, a: Any, b: Any, options: dict[str, Any], layout_of: Shape, sides_of: Shape) -> list[Any]:
    """The results of an operation, matrices as blocks like ``a``.

    ``a`` and ``b`` have ``local`` (row-major), ``layout``, ``ranks``, ``memory``, as :mod:`frameworks.torch_memory` has them.
    ``layout_of(shape)`` is where results of another shape lie, ``sides_of(shape)`` where a solution does.
    """
    options = dict(options)
    on_fail = options.pop("on_fail", "raise")
    error = _tried(lambda: _check(name, a, b, options))
    agree(a.ranks, name, {"shape": a.layout.shape, "dtype": a.memory.dtype, "options": repr((options, on_fail))}, error=error)
    options = {key: value for key, value in options.items() if key in _TAKES.get(name, ()) and key != "overwrite"}
    if a.ranks.rank == 0:
        m, n = a.layout.shape
        _log.info("%s: cusolvermp, %s x %s %s on %s ranks", name, m, n, a.memory.dtype, a.ranks.size)
    with cusolvermp.on_device(a.memory.device):
        return _run(name, a, b, options, on_fail, layout_of, sides_of)


def _run(name: str, a: Any, b: Any, options: dict[str, Any], on_fail: str, layout_of: Shape, sides_of: Shape) -> list[Any]:
    session = cusolvermp.open_session(a.ranks, a.memory.device, a.memory.allocate)
    given = [cusolvermp.Given(x.memory.pointer, x.layout, x.memory.dtype, True, x.local) for x in (a, b) if x is not None]
    triangle = None
    if name in ("cholesky", "eigh", "eigvalsh") or options.get("assume") == "pos":
        triangle = "upper" if options.get("upper") else "lower"

    def finite() -> bool:
        return all(session.told(a.memory.finite(a, triangle), name))

    try:
        if name in _ITERATIONS and not finite():  # which may not end with NaN
            raise ConvergenceError(name, nonfinite=True)
        made = _OPERATIONS[name](session, *given, sides_of if name == "lstsq" else layout_of, **options)
    except _FAILURES as error:
        if on_fail == "raise":
            fields = {key: value for key, value in vars(error).items() if key in ("minor", "pivot")}
            raise type(error)(name, nonfinite=not finite(), **fields) from None
        return _failed(name, a, b, layout_of, options)
    found = [a.memory.blocks(x, a.ranks) if isinstance(x, cusolvermp.Given) else x for x in made]
    kept = {"cholesky": (0, bool(options.get("upper"))), "qr": (1, True)}.get(name)
    if kept is not None:
        found[kept[0]] = a.memory.keep_triangle(found[kept[0]], upper=kept[1])
    return found


def _check(name: str, a: Any, b: Any, options: dict[str, Any]) -> None:
    engine = options.get("engine", "auto")
    if engine not in ("auto", "cusolvermp"):
        raise ValueError(f"{name}: engine {engine!r} takes no sharded matrices on GPUs\nhint: use 'auto' or 'cusolvermp'")
    if name not in _OPERATIONS:
        hint = "svd gives both factors: A = U S V^H = (U V^H) (V S V^H)" if name == "polar" else "gather the matrix"
        raise NotImplementedError(f"{name}: cuSOLVERMp has no routine for it that this library uses\nhint: {hint}")
    left = {
        key: value
        for key, value in options.items()
        if key not in {"engine", *_TAKES.get(name, ())} and value not in (None, False, "full", "reduced")
    }
    if left:
        raise NotImplementedError(f"{name}: {', '.join(left)} is not there for sharded matrices on GPUs")
    if options.get("assume", "general") not in ("general", "pos"):
        raise NotImplementedError(
            f"{name}: assume={options['assume']!r} is not there for sharded matrices on GPUs\nhint: 'general' or 'pos'"
        )
    if name not in ("qr", "svd", "svdvals", "lstsq"):
        check_square(name, a.layout.shape, a.memory.dtype)
    if 0 in a.layout.shape:
        raise ValueError(f"{name}: an empty matrix cannot be sharded over GPUs, got shape {a.layout.shape}")
    if b is not None and b.memory.dtype != a.memory.dtype:
        raise TypeError(f"{name}: a and b must have the same dtype, got {a.memory.dtype} and {b.memory.dtype}")
    if b is not None and b.layout.shape[0] != a.layout.shape[0]:
        raise ValueError(f"{name}: a has {a.layout.shape[0]} rows and b has {b.layout.shape[0]}")
    if missing := cusolvermp.missing():
        raise RuntimeError(f"{name}: {missing.removeprefix('distributed: ')}")


def _tried(check: Callable[[], None]) -> Exception | None:
    try:
        check()
    except Exception as error:
        return error
    return None


def _part(name: str, subset: slice | None, n: int) -> tuple[int, int] | None:
    return None if subset is None else spectrum.part_of(name, subset, n)


def _do_cholesky(session: Any, a: Any, layout_of: Shape, **options: Any) -> tuple[Any, ...]:
    return (cusolvermp.cholesky(session, a, **options),)


def _do_solve(session: Any, a: Any, b: Any, layout_of: Shape, assume: str = "general", upper: bool = False) -> tuple[Any, ...]:
    return (cusolvermp.solve(session, a, b, pos=assume == "pos", upper=upper),)


def _do_inv(session: Any, a: Any, layout_of: Shape, assume: str = "general", upper: bool = False) -> tuple[Any, ...]:
    return (cusolvermp.inv(session, a, pos=assume == "pos", upper=upper),)


def _do_slogdet(session: Any, a: Any, layout_of: Shape, assume: str = "general", upper: bool = False) -> tuple[Any, ...]:
    sign, logabs = cusolvermp.slogdet(session, a, pos=assume == "pos", upper=upper)
    return np.asarray(sign), np.asarray(logabs, REAL[a.dtype])


def _do_eigh(session: Any, a: Any, layout_of: Shape, upper: bool = False, subset: slice | None = None) -> tuple[Any, ...]:
    n = a.layout.shape[0]
    part = _part("eigh", subset, n)
    return cusolvermp.eigh(session, a, upper=upper, part=part, to=layout_of((n, n if part is None else part[1])))


def _do_eigvalsh(session: Any, a: Any, layout_of: Shape, upper: bool = False, subset: slice | None = None) -> tuple[Any, ...]:
    part = _part("eigvalsh", subset, a.layout.shape[0])
    return (cusolvermp.eigh(session, a, upper=upper, part=part, vectors=False)[0],)


def _do_qr(session: Any, a: Any, layout_of: Shape, mode: str = "reduced") -> tuple[Any, ...]:
    n = a.layout.shape[1]
    return cusolvermp.qr(session, a, to=(a.layout, layout_of((n, n))))


def _do_lstsq(session: Any, a: Any, b: Any, layout_of: Shape, rcond: None = None) -> tuple[Any, ...]:
    # full rank is what the routine assumes: it says nothing of residuals, rank or singular values
    shape = a.layout.shape[1], b.layout.shape[1]
    return cusolvermp.lstsq(session, a, b, to=layout_of(shape)), None, None, None


def _do_svd(session: Any, a: Any, layout_of: Shape, full_matrices: bool = False) -> tuple[Any, ...]:
    (m, n), k = a.layout.shape, min(a.layout.shape)
    return cusolvermp.svd(session, a, to=(layout_of((m, k)), layout_of((k, n))))


def _do_svdvals(session: Any, a: Any, layout_of: Shape) -> tuple[Any, ...]:
    return (cusolvermp.svd(session, a, vectors=False)[1],)


_OPERATIONS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "cholesky": _do_cholesky,
    "solve": _do_solve,
    "inv": _do_inv,
    "slogdet": _do_slogdet,
    "eigh": _do_eigh,
    "eigvalsh": _do_eigvalsh,
    "qr": _do_qr,
    "lstsq": _do_lstsq,
    "svd": _do_svd,
    "svdvals": _do_svdvals,
}


def _failed(name: str, a: Any, b: Any, layout_of: Shape, options: dict[str, Any]) -> list[Any]:
    """NaN in the place of each result."""
    real, (m, n) = REAL[a.memory.dtype], a.layout.shape
    k = min(m, n)
    if name in ("eigh", "eigvalsh"):
        k = (_part(name, options.get("subset"), n) or (0, n))[1]
    lost = {"cholesky": [a.layout], "inv": [a.layout], "solve": [b.layout] if b is not None else []}
    lost |= {"eigh": [k, layout_of((n, k))], "eigvalsh": [k], "svdvals": [k], "slogdet": [a.memory.dtype, real]}
    lost |= {"svd": [layout_of((m, k)), k, layout_of((k, n))]}
    found: list[Any] = []
    for what in lost[name]:
        if isinstance(what, Layout):
            found.append(a.memory.filled(what, a.ranks, np.nan))
        else:
            found.append(np.full((), np.nan, what) if isinstance(what, str) else np.full(what, np.nan, real))
    return found
