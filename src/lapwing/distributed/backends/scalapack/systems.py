"""Factorisations, systems, inverses and determinants by ScaLAPACK."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ....core.errors import NotPositiveDefiniteError, SingularMatrixError
from ....core.request import ONE_TRIANGLE
from ...exchange import column_sums, finite_triangle, keep_triangle, mirror
from ..protocol import Part, nan_of
from . import routines as scalapack
from .handle import Factored
from .moves import Call, diagonal, enter, leave, on_lower
from .routines import Blocks

__all__ = ["cholesky", "factor", "inv", "slogdet", "solve"]


def cholesky(call: Call, b: None) -> tuple[Part]:
    request, a = call.request, call.a
    upper = request.upper
    if 0 in a.shape:
        return (replace(a, local=a.local.copy()),)
    call = on_lower(call, "cholesky", upper, permute=False)
    x = enter(call, "cholesky", upper=upper, overwrite=request.overwrite)
    into = a.local if np.may_share_memory(x.local, a.local) else None
    info = _factor_in_place(call, x, upper)
    if info:
        if request.on_fail == "raise":
            # the matrix may have been overwritten: NaN and Inf stay what they are
            raise call.error(NotPositiveDefiniteError, _finite(a, "pos", upper), minor=info)
        x.local[...] = nan_of(call.dtype)
        return (leave(call, x, into=into),)
    if into is not None:
        keep_triangle(x.local, x.layout, call.ranks.rank, upper=upper != call.turned)
    return (leave(call, x, into=into, upper=upper),)


def solve(call: Call, b: Any) -> tuple[Any]:
    if 0 in (*call.a.shape, *b.shape):
        return (replace(b, local=b.local.copy()) if isinstance(b, Part) else b.copy(),)
    return (_factored(call).solve(b),)


def inv(call: Call, b: None) -> tuple[Part]:
    return (_factored(call).inverse(destroy=True),)


def slogdet(call: Call, b: None) -> tuple[Any, ...]:
    if call.request.assume != "pos":  # a singular matrix has a determinant; one that is not positive definite is a mistake
        call = replace(call, request=replace(call.request, on_fail="nan"))
    return tuple(_factored(call).slogdet())


def factor(call: Call, b: None) -> tuple[Factored]:
    a, assume = call.a, call.request.assume
    triangle = call.request.upper if assume in ONE_TRIANGLE else {"lower": False, "upper": True}.get(assume)
    sums = column_sums(a.local, a.layout, a.ranks.rank, upper=triangle, mirrored=assume in ONE_TRIANGLE)
    made = _factored(call, permute=False)
    made.norm = float(call.ranks.sum(sums).max(initial=0))
    return (made,)


def _factored(call: Call, *, permute: bool = True, overwrite: bool | None = None) -> Factored:
    """Factor, and raise where that is wanted."""
    a, request = call.a, call.request
    assume, upper, on_fail = request.assume, request.upper, request.on_fail
    overwrite = request.overwrite if overwrite is None else overwrite
    one_triangle = assume in ONE_TRIANGLE
    permute = permute and assume == "pos"
    call = on_lower(call, "factor", upper, permute) if assume == "pos" else call
    x = enter(call, "factor", upper=upper if one_triangle else None, permute=permute, overwrite=overwrite)
    pivots = None
    if 0 in a.shape:
        info = 0
    elif assume == "pos":
        info = _factor_in_place(call, x, upper)
        if info and x.layout != x.cyclic:
            # minors of P A P^T are not those of A
            return _factored(call, permute=False, overwrite=False)
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
            return _factored(replace(call, turned=False), overwrite=False)
    finite = not info or _finite(a, assume, upper)  # also of an overwritten matrix: NaN and Inf stay what they are
    if info and on_fail == "raise":
        if assume == "pos":
            raise call.error(NotPositiveDefiniteError, finite, minor=info)
        raise call.error(SingularMatrixError, finite, pivot=info)
    all_finite = not info or call.ranks.status(0 if finite else 1) == 0
    return Factored(call, x, pivots, info, all_finite)


def _factor_in_place(call: Call, x: Blocks, upper: bool) -> int:
    """Cholesky in place; the first leading minor whose pivot is not finite and positive, or 0."""
    return scalapack.potrf(x, upper != call.turned) or _first_bad(x, lambda pivot: ~(np.isfinite(pivot) & (pivot.real > 0)))


def _first_bad(x: Blocks, bad: Any) -> int:
    """The first place on the diagonal, counted from 1, that is bad; 0 for none. The same on all ranks."""
    places, pivots = diagonal(x)
    wrong = places[bad(pivots)]
    first: int = x.comm.status(int(wrong.min()) + 1 if len(wrong) else 0)
    return first


def _finite(a: Part, assume: str, upper: bool) -> bool:
    """No NaN and no Inf in what is read of this rank's block."""
    if assume in ONE_TRIANGLE or assume in ("lower", "upper"):
        return finite_triangle(a.local, a.layout, a.ranks.rank, upper=upper or assume == "upper")
    return bool(np.isfinite(a.local).all())
