"""The calls on JAX matrices that lie on several devices: checks, choice of the way, run, and errors.

``CALLS`` has one function for each name; each takes what the public function takes, and the placement of ``a`` in front.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np

from ..core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ..core.placement import Placement
from ..core.plan import bytes_in_words
from ..core.problem import ITEMSIZE
from ..engines import sharded
from . import sharded_jax_factor as systems
from . import sharded_jax_processes as processes
from .checks import check_choice, check_flag, check_matrix, check_square
from .cholesky import CholeskyResult
from .eigh import EighExResult, EighResult, eigh, eigh_ex, eigvalsh
from .lstsq import LstsqResult
from .qr import QRResult
from .solve import ASSUME, ONE_TRIANGLE, InvExResult, SlogdetResult, SolveExResult
from .svd import PolarResult, SVDResult, svd, svdvals

__all__ = ["CALLS", "find", "route"]

_log = logging.getLogger("lapwing")
_OTHERS = "\nhint: the engines scalapack (pip install mkl mpich mpi4py) and cusolvermp have it, with one process per device"


def route(a: Any) -> Any:
    """None for an ordinary array; else what gives for a public function the one that takes the call."""
    from ..frameworks import jax_sharding

    return None if jax_sharding.route(a) is None else lambda function: partial(_call, function)


def _call(function: Any, a: Any, *rest: Any, **options: Any) -> Any:
    found = find(function.__name__, a, options)
    return (function if found is None else found)(a, *rest, **options)


def find(name: str, a: Any, options: dict[str, Any]) -> Any:
    """The function for this call on this array, with the placement given; None for an ordinary array.

    A matrix inside jit with Auto axes may be split or whole: there only what the engine has takes this way.
    """
    from ..frameworks import jax_sharding

    where = jax_sharding.route(a)
    if where is None or name not in CALLS:
        return None
    if not where.certain and name not in _BLOCKED:
        return None
    found = partial(CALLS[name], where)
    if options.get("engine") not in processes.ENGINES and (jax_sharding.traced(a) or a.is_fully_addressable):
        return found
    rectangular = name in ("qr", "svd", "svdvals", "polar", "lstsq")
    return processes.find(name, where, a, options, found, rectangular and a.ndim == 2 and _is_tall(where, a))


def cholesky(
    where: Placement, a: Any, /, *, upper: Any = False, overwrite: Any = False, on_fail: str = "raise", engine: str = "auto"
) -> Any:
    factor, info = _cholesky("cholesky", where, a, upper, engine)
    _check_fail("cholesky", on_fail)
    _raise_if_failed("cholesky", a, info, on_fail, "pos", bool(upper))
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
    _check_fail("solve", on_fail)
    check_choice("solve", "precision", precision, ("full", "mixed"))
    x, info = _solve("solve", where, a, b, assume, upper, engine)
    _raise_if_failed("solve", a, info, on_fail, assume, bool(upper))
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
    _check_fail("inv", on_fail)
    x, info = _inv("inv", where, a, assume, upper, engine)
    _raise_if_failed("inv", a, info, on_fail, assume, bool(upper))
    return x


def inv_ex(where: Placement, a: Any, /, *, assume: str = "general", upper: Any = False) -> InvExResult:
    return InvExResult(*_inv("inv_ex", where, a, assume, upper, "auto"))


def slogdet(
    where: Placement, a: Any, /, *, assume: str = "general", upper: Any = False, on_fail: str = "raise", engine: str = "auto"
) -> SlogdetResult:
    _check_fail("slogdet", on_fail)
    upper = _check_assumed("slogdet", where, a, assume, upper, engine)
    sign, value, info = systems.slogdet(where, a, assume, upper)
    if assume == "pos":  # a singular matrix has a determinant; one that is not positive definite is a mistake
        _raise_if_failed("slogdet", a, info, on_fail, assume, upper)
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
    _check_fail("factor", on_fail)
    check_choice("factor", "precision", precision, ("full", "mixed"))
    upper = _check_assumed("factor", where, a, assume, upper, engine)
    made = systems.JaxFactor.of(where, a, assume, upper)
    _raise_if_failed("factor", a, made.info, on_fail, assume, upper)
    return made


def eigh_(where: Placement, a: Any, /, **options: Any) -> EighResult:
    return EighResult(*_gathered("eigh", eigh, where, a, options, outputs=("values", "matrix")))


def eigh_ex_(where: Placement, a: Any, /, **options: Any) -> EighExResult:
    return EighExResult(*_gathered("eigh_ex", eigh_ex, where, a, options, outputs=("values", "matrix", "values")))


def eigvalsh_(where: Placement, a: Any, /, **options: Any) -> Any:
    return _gathered("eigvalsh", eigvalsh, where, a, options, outputs=("values",))[0]


def qr(where: Placement, a: Any, /, *, mode: str = "reduced", engine: str = "auto") -> QRResult:
    check_choice("qr", "mode", mode, ("reduced", "complete"))
    m, n = _check_tall("qr", where, a, engine)
    if mode == "complete" and m != n:
        raise ValueError(f"qr: the complete Q of a sharded {m} x {n} matrix is {m} x {m}\nhint: mode='reduced'")
    tall, turned = _tall("qr", where, a)
    if turned:
        raise ValueError(f"qr: a sharded matrix needs at least as many rows as columns, got {m} x {n}\nhint: qr of its adjoint")
    q, r = _compiled_tall("qr", tall)(a)
    return QRResult(q, r)


def svd_(where: Placement, a: Any, /, *, full_matrices: Any = False, on_fail: str = "raise", engine: str = "auto") -> SVDResult:
    _check_fail("svd", on_fail)
    m, n = _check_tall("svd", where, a, engine)
    if check_flag("svd", "full_matrices", full_matrices) and m != n:
        raise ValueError("svd: full_matrices=True is not for sharded matrices\nhint: full_matrices=False")
    if not _is_tall(where, a):
        return SVDResult(*_gathered("svd", svd, where, a, {"on_fail": on_fail}, outputs=("matrix", "values", "matrix")))
    tall, turned = _tall("svd", where, a)
    u, s, vh, info = _compiled_tall("svd", tall, turned)(a)
    _raise_if_failed("svd", a, info, on_fail, "", None)
    return SVDResult(u, s, vh)


def svdvals_(where: Placement, a: Any, /, *, on_fail: str = "raise", engine: str = "auto") -> Any:
    _check_fail("svdvals", on_fail)
    _check_tall("svdvals", where, a, engine)
    if not _is_tall(where, a):
        return _gathered("svdvals", svdvals, where, a, {"on_fail": on_fail}, outputs=("values",))[0]
    tall, turned = _tall("svdvals", where, a)
    _, s, _, info = _compiled_tall("svd", tall, turned)(a)
    _raise_if_failed("svdvals", a, info, on_fail, "", None)
    return s


def polar(where: Placement, a: Any, /, *, side: str = "right", engine: str = "auto") -> PolarResult:
    check_choice("polar", "side", side, ("right", "left"))
    m, n = _check_tall("polar", where, a, engine)
    tall, turned = _tall("polar", where, a)
    if (side == "left") != turned:
        raise ValueError(
            f"polar: of a sharded {m} x {n} matrix P on the {side} would be as large as the longer side squared"
            f"\nhint: side='{'right' if side == 'left' else 'left'}'"
        )
    u, p, info = _compiled_tall("polar", tall, turned)(a)
    _raise_if_failed("polar", a, info, "raise", "", None)
    return PolarResult(u, p)


def lstsq(where: Placement, a: Any, b: Any, /, *, rcond: float | None = None, engine: str = "auto") -> LstsqResult:
    from ..frameworks import jax_sharding

    m, n = _check_tall("lstsq", where, a, engine)
    if rcond is not None and (isinstance(rcond, bool) or not (isinstance(rcond, (int, float, np.floating)) and rcond >= 0)):
        raise ValueError(f"lstsq: rcond={rcond!r} is not a number from 0 on")
    systems.check_right("lstsq", a, b)
    tall, turned = _tall("lstsq", where, a)
    if turned:
        raise ValueError(f"lstsq: a sharded matrix needs at least as many rows as columns, got {m} x {n}{_OTHERS}")
    b, right = jax_sharding.placed_like(b, where)
    limit = float(np.finfo(str(a.dtype)).eps) * m if rcond is None else float(rcond)
    x, residuals, rank, s, info = _compiled_tall("lstsq", tall, right, limit)(a, b)
    _raise_if_failed("lstsq", a, info, "raise", "", None)
    return LstsqResult(x, residuals, rank, s)


def _cholesky(name: str, where: Placement, a: Any, upper: Any, engine: str) -> tuple[Any, Any]:
    from ..engines import sharded_calls

    upper = check_flag(name, "upper", upper)
    _check(name, where, a, engine)
    cut = sharded_calls.cut_for(a.shape[-1], where.grid)
    return sharded_calls.compiled(sharded_calls.cholesky, where, cut, upper)(a)  # type: ignore[no-any-return]


def _solve(name: str, where: Placement, a: Any, b: Any, assume: str, upper: Any, engine: str) -> tuple[Any, Any]:
    upper = _check_assumed(name, where, a, assume, upper, engine)
    systems.check_right(name, a, b)
    return systems.solve(where, a, b, assume, upper)


def _inv(name: str, where: Placement, a: Any, assume: str, upper: Any, engine: str) -> tuple[Any, Any]:
    upper = _check_assumed(name, where, a, assume, upper, engine)
    return systems.inv(where, a, assume, upper)


def _check_assumed(name: str, where: Placement, a: Any, assume: str, upper: Any, engine: str) -> bool:
    """``upper`` as a bool."""
    check_choice(name, "assume", assume, ASSUME)
    upper = check_flag(name, "upper", upper)
    if upper and assume not in ONE_TRIANGLE:
        raise ValueError(f"{name}: upper=True has no meaning with assume={assume!r}")
    _check(name, where, a, engine)
    return bool(upper)


def _check(name: str, where: Placement, a: Any, engine: str) -> None:
    check_square(name, tuple(a.shape), str(a.dtype))
    _check_engine(name, where, a, engine)


def _check_engine(name: str, where: Placement, a: Any, engine: str) -> None:
    if len(a.shape) > 2:
        raise ValueError(
            f"{name}: the matrices of a batch of shape {tuple(a.shape)} are split over devices"
            "\nhint: split the batch instead, or call once for each matrix"
        )
    if 0 in a.shape:
        raise ValueError(f"{name}: a matrix of shape {tuple(a.shape)} has nothing to split over devices")
    if engine not in ("auto", "sharded"):
        raise ValueError(f"{name}: engine={engine!r} takes no matrix split over JAX devices\nhint: engine='sharded'")
    if _log.isEnabledFor(logging.INFO):
        grid = where.grid
        _log.info(
            "%s: sharded, %s %s over %d x %d devices, because the matrix is split", name, a.shape, a.dtype, grid.p, grid.q
        )


def _check_fail(name: str, on_fail: str) -> None:
    check_choice(name, "on_fail", on_fail, ("raise", "nan"))


def _check_tall(name: str, where: Placement, a: Any, engine: str) -> tuple[int, int]:
    check_matrix(name, tuple(a.shape), str(a.dtype))
    _check_engine(name, where, a, engine)
    return a.shape[0], a.shape[1]


def _is_tall(where: Placement, a: Any) -> bool:
    """Each device has at least as many rows (columns) as there are columns (rows), once the longer side is split alone."""
    m, n = a.shape
    return bool(max(m, n) // where.grid.size >= min(m, n) and max(m, n) % where.grid.size == 0)


def _tall(name: str, where: Placement, a: Any) -> tuple[Placement, bool]:
    """Where a tall matrix lies, and whether it is the adjoint of ``a`` that is tall."""
    if not _is_tall(where, a):
        m, n = a.shape
        raise NotImplementedError(
            f"{name}: the engine inside XLA wants a long and narrow matrix, at least {min(m, n)} rows on each of"
            f" {where.grid.size} devices, got {m} x {n}{_OTHERS}"
        )
    turned = a.shape[0] < a.shape[1]
    return where, turned


def _compiled_tall(name: str, where: Placement, *fixed: Any) -> Any:
    from ..engines import sharded_calls, sharded_tall

    return sharded_calls.compiled(getattr(sharded_tall, name), where, *fixed)


def _gathered(name: str, function: Any, where: Placement, a: Any, options: dict[str, Any], outputs: tuple[str, ...]) -> Any:
    """The public function on one device, where the matrix fits; matrices go back where ``a`` was, values everywhere."""
    from ..frameworks import jax_sharding

    engine = options.pop("engine", "auto")
    (check_square if name.startswith("eig") else check_matrix)(name, tuple(a.shape), str(a.dtype))
    _check_engine(name, where, a, engine)
    if options.get("b") is not None:
        raise NotImplementedError(f"{name}: the generalised problem is not for sharded matrices{_OTHERS}")
    size = a.shape[0] * a.shape[1] * ITEMSIZE[str(a.dtype)]
    if size > sharded.GATHER_LIMIT:
        raise NotImplementedError(
            f"{name}: a {a.shape[0]} x {a.shape[1]} matrix of {bytes_in_words(size)} is too large for one device"
            f" (at most {bytes_in_words(sharded.GATHER_LIMIT)}), and there is no {name} inside XLA{_OTHERS}"
        )
    _log.info("%s: gathered to one device, %s; there is no distributed %s inside XLA", name, bytes_in_words(size), name)
    if jax_sharding.traced(a):
        made = function(jax_sharding.replicated(a), **options)
        return made if isinstance(made, tuple) else (made,)
    made = function(jax_sharding.on_one_device(a), **options)
    made = made if isinstance(made, tuple) else (made,)
    return tuple(
        jax_sharding.put_back(x, a) if kind == "matrix" else jax_sharding.put_everywhere(x, a)
        for x, kind in zip(made, outputs, strict=True)
    )


def _raise_if_failed(name: str, a: Any, info: Any, on_fail: str, assume: str, upper: bool | None) -> None:
    from ..frameworks import jax_sharding

    if on_fail != "raise" or jax_sharding.traced(a) or jax_sharding.traced(info):
        return
    at = jax_sharding.status(info)
    if not at:
        return
    if assume == "pos":
        raise NotPositiveDefiniteError(name, minor=at, nonfinite=not jax_sharding.all_finite(a, upper))
    read = upper if assume in ONE_TRIANGLE else {"lower": False, "upper": True}.get(assume)
    nonfinite = not jax_sharding.all_finite(a, read)
    if assume:
        raise SingularMatrixError(name, pivot=at, nonfinite=nonfinite)
    raise ConvergenceError(name, nonfinite=nonfinite)


_BLOCKED = ("cholesky", "cholesky_ex", "factor", "inv", "inv_ex", "slogdet", "solve", "solve_ex")
CALLS: dict[str, Any] = {
    "cholesky": cholesky,
    "cholesky_ex": cholesky_ex,
    "eigh": eigh_,
    "eigh_ex": eigh_ex_,
    "eigvalsh": eigvalsh_,
    "factor": factor,
    "inv": inv,
    "inv_ex": inv_ex,
    "lstsq": lstsq,
    "polar": polar,
    "qr": qr,
    "slogdet": slogdet,
    "solve": solve,
    "solve_ex": solve_ex,
    "svd": svd_,
    "svdvals": svdvals_,
}
