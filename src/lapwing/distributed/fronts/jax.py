"""The calls on JAX matrices that lie on several devices: checks, choice of the way, run, and errors.

``CALLS`` has one function for each name; each takes what the public function takes, and the placement of ``a`` in front.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from ...ops.checks import check_choice, check_flag
from ...ops.cholesky import CholeskyResult
from ...ops.solve import InvExResult, SlogdetResult, SolveExResult
from ..placement import Placement
from . import jax_factor as systems
from . import jax_processes_calls as processes
from . import jax_spectra as spectra
from .jax_checks import check_assumed, check_fail, check_system, raise_if_failed

__all__ = ["CALLS", "find", "outside", "route", "takes"]

_log = logging.getLogger("lapwing")


def route(a: Any) -> Any:
    """None for an ordinary array; else what gives for a public function the one that takes the call."""
    from . import jax_sharding

    where = jax_sharding.route(a)
    return None if where is None else lambda function: partial(_call, function, where)


def _call(function: Any, where: Placement, a: Any, *rest: Any, **options: Any) -> Any:
    found = find(function.__name__, a, options, where)
    return (function if found is None else found)(a, *rest, **options)


def find(name: str, a: Any, options: dict[str, Any], where: Placement | None = None) -> Any:
    """The function for this call on this array, with the placement given; None for an ordinary array.

    A matrix inside jit with Auto axes may be split or whole: there only what the engine has takes this way.
    """
    from . import jax_sharding

    where = jax_sharding.route(a) if where is None else where
    if where is None or not takes(name, a, where):
        return None
    inside = partial(CALLS[name], where)
    taken = outside(name, a, options, where)
    return inside if taken is None else partial(processes.call, name, taken, inside)


def takes(name: str, a: Any, where: Placement) -> bool:
    """Whether the call is for this module at all; the ordinary function has it otherwise."""
    return name in CALLS and 0 not in a.shape and (where.certain or name in _BLOCKED)


def outside(name: str, a: Any, options: dict[str, Any], where: Placement, **asked: Any) -> processes.Taken | None:
    """The library beside XLA that takes the call, or None; ``asked`` as for :func:`sharded_jax_processes.taken`."""
    from . import jax_sharding

    if options.get("engine") not in processes.ENGINES and (jax_sharding.traced(a) or a.is_fully_addressable):
        return None
    rectangular = name in ("qr", "svd", "svdvals", "polar", "lstsq")
    return processes.taken(name, a, options, rectangular and a.ndim == 2 and spectra.is_tall(where, a), **asked)


def cholesky(
    where: Placement, a: Any, /, *, upper: Any = False, overwrite: Any = False, on_fail: str = "raise", engine: str = "auto"
) -> Any:
    check_fail("cholesky", on_fail)
    check_flag("cholesky", "overwrite", overwrite)  # the arrays of JAX are never written to
    factor, info = _cholesky("cholesky", where, a, upper, engine)
    raise_if_failed("cholesky", a, info, on_fail, "pos", bool(upper))
    return factor


def cholesky_ex(where: Placement, a: Any, /, *, upper: Any = False) -> CholeskyResult:
    return CholeskyResult(*_cholesky("cholesky_ex", where, a, upper, "auto"))


def solve(
    where: Placement,
    a: Any,
    b: Any,
    /,
    *,
    assume: str = "general",
    upper: Any = False,
    overwrite: Any = False,
    precision: str = "full",
    on_fail: str = "raise",
    engine: str = "auto",
) -> Any:
    check_fail("solve", on_fail)
    check_flag("solve", "overwrite", overwrite)
    _check_precision("solve", precision)
    x, info = _solve("solve", where, a, b, assume, upper, engine)
    raise_if_failed("solve", a, info, on_fail, assume, bool(upper))
    return x


def solve_ex(where: Placement, a: Any, b: Any, /, *, assume: str = "general", upper: Any = False) -> SolveExResult:
    return SolveExResult(*_solve("solve_ex", where, a, b, assume, upper, "auto"))


def inv(
    where: Placement,
    a: Any,
    /,
    *,
    assume: str = "general",
    upper: Any = False,
    overwrite: Any = False,
    on_fail: str = "raise",
    engine: str = "auto",
) -> Any:
    check_fail("inv", on_fail)
    check_flag("inv", "overwrite", overwrite)
    x, info = _inv("inv", where, a, assume, upper, engine)
    raise_if_failed("inv", a, info, on_fail, assume, bool(upper))
    return x


def inv_ex(where: Placement, a: Any, /, *, assume: str = "general", upper: Any = False) -> InvExResult:
    return InvExResult(*_inv("inv_ex", where, a, assume, upper, "auto"))


def slogdet(
    where: Placement, a: Any, /, *, assume: str = "general", upper: Any = False, on_fail: str = "raise", engine: str = "auto"
) -> SlogdetResult:
    check_fail("slogdet", on_fail)
    upper = check_assumed("slogdet", where, a, assume, upper, engine)
    sign, value, info = systems.slogdet(where, a, assume, upper)
    if assume == "pos":  # a singular matrix has a determinant; one that is not positive definite is a mistake
        raise_if_failed("slogdet", a, info, on_fail, assume, upper)
    return SlogdetResult(sign, value)


def factor(
    where: Placement,
    a: Any,
    /,
    *,
    assume: str = "pos",
    upper: Any = False,
    overwrite: Any = False,
    precision: str = "full",
    on_fail: str = "raise",
    engine: str = "auto",
) -> systems.JaxFactor:
    check_fail("factor", on_fail)
    check_flag("factor", "overwrite", overwrite)
    _check_precision("factor", precision)
    upper = check_assumed("factor", where, a, assume, upper, engine)
    made = systems.JaxFactor.of(where, a, assume, upper)
    raise_if_failed("factor", a, made.info, on_fail, assume, upper)
    return made


def _cholesky(name: str, where: Placement, a: Any, upper: Any, engine: str) -> tuple[Any, Any]:
    from ..backends.xla import calls as sharded_calls

    upper = check_flag(name, "upper", upper)
    check_system(name, where, a, engine)
    cut = sharded_calls.cut_for(a.shape[-1], where.grid)
    return sharded_calls.compiled(sharded_calls.cholesky, where, cut, upper)(a)  # type: ignore[no-any-return]


def _solve(name: str, where: Placement, a: Any, b: Any, assume: str, upper: Any, engine: str) -> tuple[Any, Any]:
    upper = check_assumed(name, where, a, assume, upper, engine)
    systems.check_right(name, a, b)
    return systems.solve(where, a, b, assume, upper)


def _inv(name: str, where: Placement, a: Any, assume: str, upper: Any, engine: str) -> tuple[Any, Any]:
    upper = check_assumed(name, where, a, assume, upper, engine)
    return systems.inv(where, a, assume, upper)


def _check_precision(name: str, precision: str) -> None:
    check_choice(name, "precision", precision, ("full", "mixed"))
    if precision == "mixed":  # allowed, not demanded
        _log.info("%s: in full precision; there is no refinement of sharded matrices", name)


_BLOCKED = ("cholesky", "cholesky_ex", "factor", "inv", "inv_ex", "slogdet", "solve", "solve_ex")
CALLS: dict[str, Any] = {
    "cholesky": cholesky,
    "cholesky_ex": cholesky_ex,
    "eigh": spectra.eigh_,
    "eigh_ex": spectra.eigh_ex_,
    "eigvalsh": spectra.eigvalsh_,
    "factor": factor,
    "inv": inv,
    "inv_ex": inv_ex,
    "lstsq": spectra.lstsq,
    "polar": spectra.polar,
    "qr": spectra.qr,
    "slogdet": slogdet,
    "solve": solve,
    "solve_ex": solve_ex,
    "svd": spectra.svd_,
    "svdvals": spectra.svdvals_,
}
