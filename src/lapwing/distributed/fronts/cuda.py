"""The public calls on blocks that lie on GPUs, one process for each: their options, the choice of cuSOLVERMp, their results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ...core.problem import REAL
from ...ops import spectrum
from ...ops.checks import check_choice, check_flag, check_square
from ...ops.solve import ASSUME
from ..backends.cusolvermp import routines as cusolvermp
from ..layout import Layout
from ..ranks.protocol import agree
from .engines import refuse

__all__ = ["FAILURES", "agreed", "as_told", "check_options", "finite_on_all", "given_of", "opened", "run"]

_log = logging.getLogger("lapwing")
Shape = Callable[[tuple[int, ...]], Layout]
_TAKES = {
    "cholesky": {"upper", "overwrite"},
    "solve": {"assume", "upper", "overwrite"},
    "inv": {"assume", "upper", "overwrite"},
    "slogdet": {"assume", "upper"},
    "eigh": {"upper", "subset", "overwrite"},
    "eigvalsh": {"upper", "subset", "overwrite"},
    "factor": {"assume", "upper", "overwrite"},
    "polar": {"side"},
}
_ITERATIONS = ("eigh", "eigvalsh", "svd", "svdvals", "polar")
FAILURES = (NotPositiveDefiniteError, SingularMatrixError, ConvergenceError)


def run(name: str, a: Any, b: Any, options: dict[str, Any], layout_of: Shape, sides_of: Shape) -> list[Any]:
    """The results of an operation, matrices as blocks like ``a``.

    ``a`` and ``b`` have ``local`` (row-major), ``layout``, ``ranks``, ``memory``, as in ``torch_memory``.
    ``layout_of(shape)`` is where results of another shape lie, ``sides_of(shape)`` where a solution does.
    """
    options, on_fail = agreed(name, a, b, options)
    with opened(a) as session:
        return _run(session, name, a, b, options, on_fail, layout_of, sides_of)


def agreed(name: str, a: Any, b: Any, options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """All ranks compare what they were asked; the options of the engine, and what is done about a failure. One line of log."""
    options = dict(options)
    on_fail = options.pop("on_fail", "raise")
    error = _tried(lambda: _check(name, a, b, options, on_fail))
    agree(a.ranks, name, {"shape": a.layout.shape, "dtype": a.memory.dtype, "options": repr((options, on_fail))}, error=error)
    if a.ranks.rank == 0:
        m, n = a.layout.shape
        _log.info("%s: cusolvermp, %s x %s %s on %s ranks", name, m, n, a.memory.dtype, a.ranks.size)
    return {key: value for key, value in options.items() if key in _TAKES.get(name, ()) and key != "overwrite"}, on_fail


@contextmanager
def opened(a: Any, memory: Any = None) -> Iterator[cusolvermp.Session]:
    """The session of these blocks, with their device as the current one; the memory is that of their framework."""
    memory = memory or a.memory
    with cusolvermp.on_device(memory.device):
        session = cusolvermp.open_session(a.ranks, memory.device, memory.allocate)
        try:
            yield session
        finally:
            session.release()


def given_of(x: Any) -> cusolvermp.Given:
    memory = x.memory
    return cusolvermp.Given(memory.pointer, x.layout, memory.dtype, getattr(memory, "row_major", True), (x.local, memory))


def finite_on_all(session: cusolvermp.Session, name: str, a: Any, options: dict[str, Any]) -> bool:
    """No NaN and no Inf in what is read of the matrix, on any rank."""
    triangle = None
    if name in ("cholesky", "eigh", "eigvalsh") or options.get("assume") == "pos":
        triangle = "upper" if options.get("upper") else "lower"
    return all(session.told(session.together(lambda: a.memory.finite(a, triangle)), name))


def _run(
    session: cusolvermp.Session,
    name: str,
    a: Any,
    b: Any,
    options: dict[str, Any],
    on_fail: str,
    layout_of: Shape,
    sides_of: Shape,
) -> list[Any]:
    try:
        if name in _ITERATIONS and not finite_on_all(session, name, a, options):  # which may not end with NaN
            raise ConvergenceError(name, nonfinite=True)
        given = [session.together(lambda x=x: given_of(x)) for x in (a, b) if x is not None]  # type: ignore[misc]
        made = _OPERATIONS[name](session, *given, sides_of if name == "lstsq" else layout_of, **options)
        del given
    except FAILURES as error:
        if name == "slogdet" and isinstance(error, SingularMatrixError):
            # a singular matrix has a determinant; NaN has none, and that is no mistake of the call
            if finite_on_all(session, name, a, options) and not error.nonfinite:
                return [np.zeros((), a.memory.dtype), np.full((), -np.inf, REAL[a.memory.dtype])]
        elif on_fail == "raise":
            raise as_told(error, name, not finite_on_all(session, name, a, options)) from None
        return _failed(name, a, b, layout_of, options)
    return session.together(lambda: _results(name, a, made, bool(options.get("upper"))))


def _results(name: str, a: Any, made: tuple[Any, ...], upper: bool) -> list[Any]:
    found = [a.memory.blocks(x, a.ranks) if isinstance(x, cusolvermp.Given) else x for x in made]
    kept = {"cholesky": (0, upper), "qr": (1, True)}.get(name)
    if kept is not None:
        found[kept[0]] = a.memory.keep_triangle(found[kept[0]], upper=kept[1])
    return found


def as_told(error: Any, name: str, nonfinite: bool) -> Exception:
    """An error of the engine in the words of the public call."""
    fields = {key: value for key, value in vars(error).items() if key in ("minor", "pivot")}
    return type(error)(name, nonfinite=nonfinite, **fields)  # type: ignore[no-any-return]


def _check(name: str, a: Any, b: Any, options: dict[str, Any], on_fail: str) -> None:
    check_options(name, a.layout.shape, a.memory.dtype, options, on_fail)
    if b is not None and b.memory.dtype != a.memory.dtype:
        raise TypeError(f"{name}: a and b must have the same dtype, got {a.memory.dtype} and {b.memory.dtype}")
    if b is not None and b.layout.shape[0] != a.layout.shape[0]:
        raise ValueError(f"{name}: a has {a.layout.shape[0]} rows and b has {b.layout.shape[0]}")
    if missing := cusolvermp.missing():
        raise RuntimeError(f"{name}: {missing.removeprefix('distributed: ')}")


def check_options(name: str, shape: tuple[int, int], dtype: str, options: dict[str, Any], on_fail: str) -> None:
    """What the engine can do with such a matrix; asks no other rank."""
    engine = options.get("engine", "auto")
    if engine not in ("auto", "cusolvermp"):
        refuse(name, engine, "sharded matrices on GPUs", "use 'auto' or 'cusolvermp'")
    check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    for flag in ("upper", "overwrite"):
        check_flag(name, flag, options.get(flag, False))
    if name not in _OPERATIONS and name != "factor":
        raise NotImplementedError(f"{name}: cuSOLVERMp has no routine for it that this library uses\nhint: gather the matrix")
    if name == "polar":
        check_choice(name, "side", options.get("side", "right"), ("right", "left"))
        if shape[0] != shape[1]:
            raise NotImplementedError(
                f"polar: on GPUs it is there for square matrices, and this one has shape {shape}"
                "\nhint: svd gives both factors: A = U S V^H = (U V^H) (V S V^H)"
            )
    left = {
        key: value
        for key, value in options.items()
        if key not in {"engine", *_TAKES.get(name, ())} and value not in (None, False, "full", "reduced")
    }
    if left:
        raise NotImplementedError(f"{name}: {', '.join(left)} is not there for sharded matrices on GPUs")
    if "assume" in options:
        check_choice(name, "assume", options["assume"], ASSUME)
    if options.get("assume", "general") not in ("general", "pos"):
        raise NotImplementedError(
            f"{name}: assume={options['assume']!r} is not there for sharded matrices on GPUs\nhint: 'general' or 'pos'"
        )
    if options.get("upper") and options.get("assume", "pos") != "pos":
        raise ValueError(f"{name}: upper=True goes with assume='pos' here")
    if name not in ("qr", "svd", "svdvals", "lstsq"):
        check_square(name, shape, dtype)
    if 0 in shape:
        raise ValueError(f"{name}: an empty matrix cannot be sharded over GPUs, got shape {shape}")


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


def _do_polar(session: Any, a: Any, layout_of: Shape, side: str = "right") -> tuple[Any, ...]:
    return cusolvermp.polar(session, a, left=side == "left", to=(a.layout, layout_of(a.layout.shape)))


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
    "polar": _do_polar,
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
            found.append(a.memory.filled(what, a.ranks, not_a_number(a.memory.dtype)))
        else:
            found.append(np.full((), np.nan, what) if isinstance(what, str) else np.full(what, np.nan, real))
    return found


def not_a_number(dtype: str) -> Any:
    return complex(np.nan, np.nan) if dtype.startswith("complex") else np.nan
