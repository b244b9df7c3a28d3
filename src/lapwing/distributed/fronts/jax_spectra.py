"""Eigenproblems and rectangular matrices of JAX over several devices: long and narrow ones in blocks, others gathered."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from ...core.plan import bytes_in_words
from ...core.problem import ITEMSIZE
from ...ops.checks import check_choice, check_flag, check_matrix, check_square
from ...ops.eigh import EighExResult, EighResult, eigh, eigh_ex, eigvalsh
from ...ops.lstsq import LstsqResult, check_rcond
from ...ops.lstsq import lstsq as lstsq_plain
from ...ops.qr import QRResult
from ...ops.qr import qr as qr_plain
from ...ops.svd import PolarResult, SVDResult, svd, svdvals
from ...ops.svd import polar as polar_plain
from ..backends.xla import panels as sharded
from ..placement import Placement
from .jax_checks import OTHERS, check_engine, check_fail, raise_if_failed, say_sharded
from .jax_factor import check_right

__all__ = [
    "check_gathered",
    "check_long",
    "eigh_",
    "eigh_ex_",
    "eigvalsh_",
    "is_gathered",
    "is_tall",
    "lstsq",
    "polar",
    "qr",
    "svd_",
    "svdvals_",
]

_log = logging.getLogger("lapwing")


def eigh_(where: Placement, a: Any, /, **options: Any) -> EighResult:
    return EighResult(*_gathered("eigh", eigh, where, a, options, outputs=("values", "matrix")))


def eigh_ex_(where: Placement, a: Any, /, **options: Any) -> EighExResult:
    return EighExResult(*_gathered("eigh_ex", eigh_ex, where, a, options, outputs=("values", "matrix", "values")))


def eigvalsh_(where: Placement, a: Any, /, **options: Any) -> Any:
    return _gathered("eigvalsh", eigvalsh, where, a, options, outputs=("values",))[0]


def qr(where: Placement, a: Any, /, *, mode: str = "reduced", engine: str = "auto") -> QRResult:
    check_choice("qr", "mode", mode, ("reduced", "complete"))
    m, n = _check_tall("qr", where, a, engine)
    if is_gathered("qr", where, a):
        return QRResult(*_gathered("qr", qr_plain, where, a, {"mode": mode}, outputs=("matrix", "matrix")))
    check_long("qr", m, n, mode=mode)
    q, r = _compiled_tall("qr", where)(a)
    return QRResult(q, r)


def svd_(where: Placement, a: Any, /, *, full_matrices: Any = False, on_fail: str = "raise", engine: str = "auto") -> SVDResult:
    check_fail("svd", on_fail)
    m, n = _check_tall("svd", where, a, engine)
    if check_flag("svd", "full_matrices", full_matrices) and m != n:
        raise ValueError("svd: full_matrices=True is not for sharded matrices\nhint: full_matrices=False")
    if is_gathered("svd", where, a):
        return SVDResult(*_gathered("svd", svd, where, a, {"on_fail": on_fail}, outputs=("matrix", "values", "matrix")))
    turned = m < n
    u, s, vh, info = _compiled_tall("svd", where, turned)(a)
    raise_if_failed("svd", a, info, on_fail, "", None)
    return SVDResult(u, s, vh)


def svdvals_(where: Placement, a: Any, /, *, on_fail: str = "raise", engine: str = "auto") -> Any:
    check_fail("svdvals", on_fail)
    m, n = _check_tall("svdvals", where, a, engine)
    if is_gathered("svdvals", where, a):
        return _gathered("svdvals", svdvals, where, a, {"on_fail": on_fail}, outputs=("values",))[0]
    turned = m < n
    _, s, _, info = _compiled_tall("svd", where, turned)(a)
    raise_if_failed("svdvals", a, info, on_fail, "", None)
    return s


def polar(where: Placement, a: Any, /, *, side: str = "right", engine: str = "auto") -> PolarResult:
    check_choice("polar", "side", side, ("right", "left"))
    m, n = _check_tall("polar", where, a, engine)
    if is_gathered("polar", where, a):
        return PolarResult(*_gathered("polar", polar_plain, where, a, {"side": side}, outputs=("matrix", "matrix")))
    check_long("polar", m, n, side=side)
    u, p, info = _compiled_tall("polar", where, m < n)(a)
    raise_if_failed("polar", a, info, "raise", "", None)
    return PolarResult(u, p)


def lstsq(where: Placement, a: Any, b: Any, /, *, rcond: float | None = None, engine: str = "auto") -> LstsqResult:
    from . import jax_sharding

    m, _ = _check_tall("lstsq", where, a, engine)
    check_rcond(rcond)
    check_right("lstsq", a, b)
    if is_gathered("lstsq", where, a):
        return LstsqResult(*_gathered("lstsq", lstsq_plain, where, a, {"b": b, "rcond": rcond}, outputs=("values",) * 4))
    b, right = jax_sharding.placed_like(b, where)
    precision = np.finfo(str(a.dtype))
    # an argument like the others: each value would be compiled anew
    limit = np.asarray(precision.eps * m if rcond is None else rcond, precision.dtype)
    x, residuals, rank, s, info = _compiled_tall("lstsq", where, right)(a, b, limit)
    raise_if_failed("lstsq", a, info, "raise", "", None)
    return LstsqResult(x, residuals, rank, s)


def _check_tall(name: str, where: Placement, a: Any, engine: str) -> tuple[int, int]:
    check_matrix(name, tuple(a.shape), str(a.dtype))
    check_engine(name, a, engine)
    if not is_gathered(name, where, a):
        say_sharded(name, where, a)
    return a.shape[0], a.shape[1]


def check_long(name: str, m: int, n: int, *, mode: str = "reduced", side: str = "right", **_: Any) -> None:
    """Of a matrix that stays split: results as large as its longer side squared are refused."""
    if name == "qr" and mode == "complete" and m != n:
        raise ValueError(f"qr: the complete Q of a sharded {m} x {n} matrix is {m} x {m}\nhint: mode='reduced'")
    if name == "qr" and m < n:
        raise ValueError(f"qr: a sharded matrix needs at least as many rows as columns, got {m} x {n}\nhint: qr of its adjoint")
    if name == "polar" and (side == "left") != (m < n):
        raise ValueError(
            f"polar: of a sharded {m} x {n} matrix P on the {side} would be as large as the longer side squared"
            f"\nhint: side='{'right' if side == 'left' else 'left'}'"
        )


def is_gathered(name: str, where: Placement, a: Any) -> bool:
    """Whether one device does the work: inside XLA there are only blocked factorisations and those of long, narrow matrices."""
    return name.startswith("eig") or not is_tall(where, a) or (name == "lstsq" and a.shape[0] < a.shape[1])


def is_tall(where: Placement, a: Any) -> bool:
    """Each device has at least as many rows (columns) as there are columns (rows), once the longer side is split alone."""
    m, n = max(a.shape), min(a.shape)
    grid = where.grid if a.shape[0] >= a.shape[1] else where.grid.turned()
    block = m // grid.p
    # a block is split over the axes of the columns, the last part may be shorter
    return bool(block - (grid.q - 1) * -(-block // grid.q) >= n)


def _compiled_tall(name: str, where: Placement, *fixed: Any) -> Any:
    from ..backends.xla import calls as sharded_calls
    from ..backends.xla import tall as sharded_tall

    return sharded_calls.compiled(getattr(sharded_tall, name), where, *fixed)


def check_gathered(name: str, a: Any, engine: str) -> int:
    """The bytes of a matrix that one device has room for."""
    (check_square if name.startswith("eig") else check_matrix)(name, tuple(a.shape), str(a.dtype))
    check_engine(name, a, engine)
    size: int = a.shape[0] * a.shape[1] * ITEMSIZE[str(a.dtype)]
    if size > sharded.GATHER_LIMIT:
        raise NotImplementedError(
            f"{name}: a {a.shape[0]} x {a.shape[1]} matrix of {bytes_in_words(size)} is too large for one device"
            f" (at most {bytes_in_words(sharded.GATHER_LIMIT)}), and there is no {name} inside XLA{OTHERS}"
        )
    return size


def _gathered(name: str, function: Any, where: Placement, a: Any, options: dict[str, Any], outputs: tuple[str, ...]) -> Any:
    """The public function on one device, where the matrix fits; matrices go back where ``a`` was, values everywhere."""
    from ..backends.xla.layout import in_mesh
    from . import jax_sharding

    size = check_gathered(name, a, options.pop("engine", "auto"))
    _log.info("%s: gathered to one device, %s; there is no distributed %s inside XLA", name, bytes_in_words(size), name)
    # the function itself: what it is given is not split any more
    plain, b = function.__wrapped__, options.pop("b", None)

    def run(a: Any, b: Any) -> Any:
        if b is None:
            return plain(a, **options)
        return plain(a, b, **options) if name == "lstsq" else plain(a, b=b, **options)

    if jax_sharding.traced(a) or jax_sharding.traced(b):
        made = run(jax_sharding.replicated(a, a), b if b is None else jax_sharding.replicated(b, a))
        return made if isinstance(made, tuple) else (made,)
    whole = jax_sharding.on_one_device(a)
    with in_mesh(jax_sharding.mesh_of(whole)):
        made = run(whole, b if b is None else jax_sharding.on_the_device(b, whole))
    made = made if isinstance(made, tuple) else (made,)
    return tuple(
        x if x is None else jax_sharding.put_back(x, a) if kind == "matrix" else jax_sharding.put_everywhere(x, a)
        for x, kind in zip(made, outputs, strict=True)
    )
