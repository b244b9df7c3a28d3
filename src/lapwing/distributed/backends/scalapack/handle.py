"""A matrix that ScaLAPACK factored: solve, inverse and determinant from its blocks. All methods are collective."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import frameworks
from ....core.condition import one_norm
from ...exchange import diagonal_places, keep_triangle, mirror
from ..protocol import Part, nan_of
from . import routines as scalapack
from .moves import Call, diagonal, enter_columns, leave, leave_columns
from .routines import Blocks

__all__ = ["Factored"]


class Factored:
    """Blocks of L or of L and U, in the tiles of the library."""

    def __init__(self, call: Call, x: Blocks, pivots: Any, info: int, finite: bool) -> None:
        request = call.request
        self.assume, self.upper, self.info = request.assume, request.upper, info
        self.layout, self.ranks = call.a.layout, call.ranks
        self._call, self._x, self._pivots, self._finite = call.without_data(), x, pivots, finite
        self.norm = np.nan  # max_j sum_i |a_ij|, where it was asked for
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
        # the phases multiply; a row was exchanged where the pivot row is another one, which the first column of the grid knows
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

        # ||A|| A^-1 is in range wherever the answer is; A^-1 may not be
        def times(x: np.ndarray, adjoint: bool) -> np.ndarray:
            if not adjoint or self.assume in ("pos", "hermitian"):
                return np.asarray(self.solve(x * scale))
            return np.asarray(self.solve(x.conj() * scale, transposed=self.assume != "symmetric")).conj()

        with np.errstate(all="ignore"):
            like = np.empty((self.shape[0], 1), self._x.local.dtype)
            return real(1 / one_norm(frameworks.of(like, "rcond").Namespace, like, times))

    def _apply(self, b: Blocks, transposed: bool) -> None:
        """B <- A^-1 B, or A^-T B of a matrix that is not its own adjoint."""
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
        """A^-1, exactly Hermitian or symmetric where A is; ``destroy``: the factor is not used again."""
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
