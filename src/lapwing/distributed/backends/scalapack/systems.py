"""Factorisations, systems, inverses and determinants by ScaLAPACK."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .... import frameworks
from ....core.condition import one_norm
from ....core.errors import NotPositiveDefiniteError, SingularMatrixError
from ....core.request import ONE_TRIANGLE
from ...exchange import column_sums, diagonal_places, finite_triangle, keep_triangle, mirror
from ..protocol import Part, determinant, nan_of
from . import routines as scalapack
from .moves import Call, diagonal, enter, enter_columns, leave, leave_columns, on_lower
from .routines import Blocks


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
            # the matrix may have been overwritten, but NaN and Inf remain
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


def det(call: Call, b: None) -> tuple[Any]:
    sign, logabs = slogdet(call, b)
    return (determinant(sign, logabs, call.dtype),)


def slogdet(call: Call, b: None) -> tuple[Any, ...]:
    if call.request.assume != "pos":  # a singular matrix has a determinant; one that is not positive definite is an error
        call = replace(call, request=replace(call.request, on_fail="nan"))
    return tuple(_factored(call).slogdet())


def factor(call: Call, b: None) -> tuple[Factored]:
    a, assume = call.a, call.request.assume
    triangle = call.request.upper if assume in ONE_TRIANGLE else {"lower": False, "upper": True}.get(assume)
    sums = column_sums(a.local, a.layout, a.ranks.rank, upper=triangle, mirrored=assume in ONE_TRIANGLE)
    factored = _factored(call, permute=False)
    factored.norm = float(call.ranks.sum(sums).max(initial=0))
    return (factored,)


def _factored(call: Call, *, permute: bool = True, overwrite: bool | None = None) -> Factored:
    """Factor, and raise on failure if the call asks for that."""
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
    finite = not info or _finite(a, assume, upper)  # right for an overwritten matrix too: NaN and Inf remain
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
    """The first bad pivot on the diagonal, counted from 1; 0 for none. The same on all ranks."""
    indices, pivots = diagonal(x)
    failed = indices[bad(pivots)]
    first: int = x.comm.status(int(failed.min()) + 1 if len(failed) else 0)
    return first


def _finite(a: Part, assume: str, upper: bool) -> bool:
    """No NaN and no Inf in the part of this rank's block that is read."""
    if assume in ONE_TRIANGLE or assume in ("lower", "upper"):
        return finite_triangle(a.local, a.layout, a.ranks.rank, upper=upper or assume == "upper")
    return bool(np.isfinite(a.local).all())


class Factored:
    """Blocks of L or of L and U, in the tiles of the library."""

    def __init__(self, call: Call, x: Blocks, pivots: Any, info: int, finite: bool) -> None:
        request = call.request
        self.assume, self.upper, self.info = request.assume, request.upper, info
        self.layout, self.ranks = call.a.layout, call.ranks
        self._call, self._x, self._pivots, self._finite = call.without_data(), x, pivots, finite
        self.norm = np.nan  # max_j sum_i |a_ij|, if it is needed
        kind = "cholesky" if self.assume == "pos" else "triangular" if self.assume in ("lower", "upper") else "lu"
        self.report = {"engine": "scalapack", "kind": kind, "grid": x.cyclic.grid, "tile": x.cyclic.rows.tile}

    @property
    def shape(self) -> tuple[int, int]:
        return self._x.shape

    @property
    def l(self) -> Part:  # noqa: E743
        """The Cholesky factor or the triangle, in the layout of the matrix; NaN if there is none."""
        x = self._copy()
        upper = self.upper if self.assume == "pos" else self.assume == "upper"
        if self.info:
            x.local[...] = nan_of(x.local.dtype)
            return leave(self._call, x)
        keep_triangle(x.local, x.layout, x.comm.rank, upper=upper != self._call.turned)
        return leave(self._call, x, upper=upper)

    def solve(self, b: Any, /, transposed: bool = False) -> Any:
        """A^-1 b, or A^-T b; NaN if there is no factor."""
        if 0 in (*self.shape, *b.shape):
            return b if isinstance(b, Part) else b.copy()
        call = self._call
        x = enter_columns(call, self._x, b)
        if self.info:
            x.local[...] = nan_of(x.local.dtype)
        else:
            self._apply(x, transposed)
        return leave_columns(call, x, b)

    def slogdet(self) -> tuple[Any, Any]:
        ranks, x = self._call.ranks, self._x
        scalar, real = x.local.dtype.type, x.local.real.dtype.type
        if 0 in self.shape:
            return scalar(1), real(0)
        if self.info and (self.assume == "pos" or not self._finite):
            return scalar(np.nan), real(np.nan)
        _, pivots = diagonal(x)
        size = np.abs(pivots)
        if ranks.status(1 if (size == 0).any() else 0):
            return scalar(0), real(-np.inf)
        logabs = ranks.sum(np.log(size).sum(dtype=float, keepdims=True))[0]
        if self.assume == "pos":
            return scalar(1), real(2 * logabs)
        # the product of the phases; a pivot row other than its own was an exchange; the first column of the grid has them
        angle = np.angle(pivots).sum(dtype=float) if self._call.complex else np.pi * np.count_nonzero(pivots < 0)
        if self._pivots is not None and x.inside and x.cyclic.place(ranks.rank)[1] == 0:  # type: ignore[index]
            rows = x.cyclic.rows.indices(x.cyclic.place(ranks.rank)[0])  # type: ignore[index]
            angle += np.pi * np.count_nonzero(self._pivots[: len(rows)] != rows + 1)
        angle = ranks.sum(np.array([angle]))[0]
        if self._call.complex:
            return scalar(np.exp(1j * angle)), real(logabs)
        return scalar(1 - 2 * (round(angle / np.pi) % 2)), real(logabs)

    def rcond(self) -> Any:
        real = self._x.local.real.dtype.type
        if 0 in self.shape:
            return real(1)
        if self.info or not 0 < self.norm < np.inf:
            return real(0)
        scale = real(self.norm)

        # ||A|| A^-1 is in range if the answer is; A^-1 may not be
        def times(x: np.ndarray, adjoint: bool) -> np.ndarray:
            if not adjoint or self.assume in ("pos", "hermitian"):
                return np.asarray(self.solve(x * scale))
            return np.asarray(self.solve(x.conj() * scale, transposed=self.assume != "symmetric")).conj()

        with np.errstate(all="ignore"):
            like = np.empty((self.shape[0], 1), self._x.local.dtype)
            return real(1 / one_norm(frameworks.of(like, "rcond").Namespace, like, times))

    def _apply(self, b: Blocks, transposed: bool) -> None:
        """B <- A^-1 B, or A^-T B if A is not its own adjoint."""
        turned = self._call.turned
        if self.assume == "pos":
            # turned, the factor is that of A^T, which is the conjugate of A
            _conjugate(b, turned)
            scalapack.potrs(self._x, b, self.upper != turned)
            _conjugate(b, turned)
        elif self.assume in ("lower", "upper"):
            scalapack.trtrs(self._x, b, (self.assume == "upper") != turned, turned != transposed)
        else:
            scalapack.getrs(self._x, self._pivots, b, turned != transposed)

    def inverse(self, destroy: bool = False) -> Part:
        """A^-1, exactly Hermitian or symmetric if A is; ``destroy``: the factor is not used again."""
        call = self._call
        x = self._x if destroy else self._copy()
        if 0 in self.shape:
            return leave(call, x)
        if self.info:
            x.local[...] = nan_of(x.local.dtype)
            return leave(call, x)
        if self.assume == "pos":
            triangle = self.upper != call.turned
            scalapack.potri(x, triangle)
            mirror(call.ranks, x.local, x.cyclic, upper=triangle)
            return leave(call, x)
        eye = x.like(*x.shape)
        _, i, j = diagonal_places(x.cyclic, x.comm.rank)
        eye.local[i, j] = 1
        # the inverse of A^T is the transpose of the inverse: nothing is turned
        if self.assume in ("lower", "upper"):
            scalapack.trtrs(x, eye, (self.assume == "upper") != call.turned, False)
        else:
            scalapack.getrs(x, self._pivots, eye, False)
        if self.assume in ("hermitian", "symmetric"):
            mirror(call.ranks, eye.local, eye.layout, conjugate=self.assume == "hermitian")
        return leave(call, eye)

    def _copy(self) -> Blocks:
        x = self._x
        return Blocks(x.local.copy(order="F"), x.layout, x.cyclic, x.comm)


def _conjugate(b: Blocks, turned: bool) -> None:
    if turned and np.iscomplexobj(b.local):
        np.conjugate(b.local, out=b.local)
