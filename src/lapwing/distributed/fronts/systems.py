"""Factorisations, systems, inverses and determinants of sharded matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import NotPositiveDefiniteError, SingularMatrixError
from ...ops.checks import check_choice, check_flag, check_square
from ...ops.solve import ASSUME, ONE_TRIANGLE, SlogdetResult
from ..backends.scalapack import routines as scalapack
from ..backends.scalapack.routines import Blocks
from ..exchange import column_sums, finite_triangle, keep_triangle, mirror
from ..matrix import ShardedMatrix
from .entry import Call, diagonal, enter, leave, on_lower
from .factor import ShardedFactor, nan_of

__all__ = ["cholesky", "factor", "inv", "slogdet", "solve"]


def cholesky(
    a: ShardedMatrix, /, *, upper: bool = False, overwrite: bool = False, on_fail: str = "raise", engine: str = "auto"
) -> ShardedMatrix:
    call = _agreed("cholesky", a, {"assume": "pos", "upper": upper, "on_fail": on_fail, "overwrite": overwrite}, engine=engine)
    if 0 in a.shape:
        return a.copy()
    call = on_lower(call, "cholesky", upper, permute=False)
    x = enter(call, "cholesky", upper=upper, overwrite=overwrite)
    into = a.local if np.may_share_memory(x.local, a.local) else None
    info = _factor(call, x, upper)
    if info:
        if on_fail == "raise":
            # of a matrix that was overwritten too: NaN and Inf stay what they are
            raise call.raises(NotPositiveDefiniteError, _finite(a, "pos", upper), minor=info)
        x.local[...] = nan_of(x)
        return leave(call, x, into=into)
    if into is not None:
        keep_triangle(x.local, x.layout, call.ranks.rank, upper=upper != call.turned)
    return leave(call, x, into=into, upper=upper)


def solve(
    a: ShardedMatrix,
    b: Any,
    /,
    *,
    assume: str = "general",
    upper: bool = False,
    overwrite: bool = False,
    precision: str = "full",
    on_fail: str = "raise",
    engine: str = "auto",
) -> Any:
    told = {"assume": assume, "upper": upper, "on_fail": on_fail, "precision": precision, "overwrite": overwrite}
    call = _agreed("solve", a, told, b, engine)
    if 0 in (*a.shape, *b.shape):
        return b.copy()
    f = _made(call, assume, upper, overwrite, on_fail)
    return f._solve(b)


def inv(
    a: ShardedMatrix,
    /,
    *,
    assume: str = "general",
    upper: bool = False,
    overwrite: bool = False,
    on_fail: str = "raise",
    engine: str = "auto",
) -> ShardedMatrix:
    told = {"assume": assume, "upper": upper, "on_fail": on_fail, "overwrite": overwrite}
    call = _agreed("inv", a, told, engine=engine)
    if 0 in a.shape:
        return a.copy()
    return _made(call, assume, upper, overwrite, on_fail)._inverse(destroy=True)


def slogdet(
    a: ShardedMatrix, /, *, assume: str = "general", upper: bool = False, on_fail: str = "raise", engine: str = "auto"
) -> SlogdetResult:
    call = _agreed("slogdet", a, {"assume": assume, "upper": upper, "on_fail": on_fail}, engine=engine)
    real = a.local.real.dtype.type
    if 0 in a.shape:
        return SlogdetResult(a.dtype.type(1), real(0))
    # a singular matrix has a determinant; one that is not positive definite is a mistake
    return _made(call, assume, upper, False, on_fail if assume == "pos" else "nan").slogdet()


def factor(
    a: ShardedMatrix,
    /,
    *,
    assume: str = "pos",
    upper: bool = False,
    overwrite: bool = False,
    precision: str = "full",
    on_fail: str = "raise",
    engine: str = "auto",
) -> ShardedFactor:
    told = {"assume": assume, "upper": upper, "on_fail": on_fail, "precision": precision, "overwrite": overwrite}
    call = _agreed("factor", a, told, engine=engine)
    triangle = upper if assume in ONE_TRIANGLE else {"lower": False, "upper": True}.get(assume)
    sums = column_sums(a.local, a.layout, a.ranks.rank, upper=triangle, mirrored=assume in ONE_TRIANGLE)
    made = _made(call, assume, upper, overwrite, on_fail, permute=False)
    made.norm = float(call.ranks.sum(sums).max(initial=0))
    return made


def _made(call: Call, assume: str, upper: bool, overwrite: bool, on_fail: str, *, permute: bool = True) -> ShardedFactor:
    """Factor, and raise where that is wanted."""
    a = call.a
    assert isinstance(a, ShardedMatrix)
    one_triangle = assume in ONE_TRIANGLE
    permute = permute and assume == "pos"
    call = on_lower(call, "factor", upper, permute) if assume == "pos" else call
    x = enter(call, "factor", upper=upper if one_triangle else None, permute=permute, overwrite=overwrite)
    pivots = None
    if 0 in a.shape:
        info = 0
    elif assume == "pos":
        info = _factor(call, x, upper)
        if info and x.layout != x.cyclic:
            # minors of P A P^T are not those of A
            return _made(call, assume, upper, False, on_fail, permute=False)
    elif assume in ("lower", "upper"):
        info = _first_bad(x, lambda pivot: pivot == 0)
        keep_triangle(x.local, x.layout, call.ranks.rank, upper=(assume == "upper") != call.turned)
    else:
        if one_triangle:
            mirror(call.ranks, x.local, x.layout, upper=upper != call.turned, conjugate=assume == "hermitian")
        pivots, info = scalapack.getrf(x)
        info = info or _first_bad(x, lambda pivot: ~np.isfinite(pivot))
        if info and call.turned and not overwrite:
            # pivots of A^T are not those of A
            return _made(replace(call, turned=False), assume, upper, False, on_fail)
    finite = not info or _finite(a, assume, upper)  # of a matrix that was overwritten too: NaN and Inf stay what they are
    if info and on_fail == "raise":
        if assume == "pos":
            raise call.raises(NotPositiveDefiniteError, finite, minor=info)
        raise call.raises(SingularMatrixError, finite, pivot=info)
    all_finite = not info or call.ranks.status(0 if finite else 1) == 0
    return ShardedFactor(call, assume, upper, x, pivots, info, all_finite)


def _factor(call: Call, x: Blocks, upper: bool) -> int:
    """Cholesky in place; the first leading minor whose pivot is not finite and positive, or 0."""
    return scalapack.potrf(x, upper != call.turned) or _first_bad(x, lambda pivot: ~(np.isfinite(pivot) & (pivot.real > 0)))


def _first_bad(x: Blocks, bad: Any) -> int:
    """The first place on the diagonal, counted from 1, that is bad; 0 for none. The same on all ranks."""
    places, pivots = diagonal(x)
    found = places[bad(pivots)]
    first: int = x.comm.status(int(found.min()) + 1 if len(found) else 0)
    return first


def _finite(a: ShardedMatrix, assume: str, upper: bool) -> bool:
    """No NaN and no Inf in what is read of this rank's block."""
    if assume in ONE_TRIANGLE or assume in ("lower", "upper"):
        return finite_triangle(a.local, a.layout, a.ranks.rank, upper=upper or assume == "upper")
    return bool(np.isfinite(a.local).all())


def _agreed(name: str, a: ShardedMatrix, told: dict[str, Any], b: Any = None, engine: str = "auto") -> Call:
    def check() -> None:
        check_square(name, a.shape, a.dtype.name)
        check_choice(name, "assume", told["assume"], ASSUME)
        for flag in ("upper", "overwrite"):
            if flag in told:
                check_flag(name, flag, told[flag])
        if told.get("upper") and told["assume"] not in ONE_TRIANGLE:
            raise ValueError(f"{name}: upper=True goes with assume={', '.join(map(repr, ONE_TRIANGLE))}")
        check_choice(name, "on_fail", told.get("on_fail", "raise"), ("raise", "nan"))
        check_choice(name, "precision", told.get("precision", "full"), ("full", "mixed"))
        if told.get("precision") == "mixed":
            raise NotImplementedError(f'{name}: precision="mixed" is not there for sharded matrices\nhint: precision="full"')

    return Call.agreed(name, a, check, {**told, "engine": engine}, b, engine)
