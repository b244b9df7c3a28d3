"""A factored sharded matrix: solve, inverse and determinant from its blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ... import frameworks
from ...ops.condition import one_norm
from ...ops.solve import SlogdetResult
from ..backends.scalapack import routines as scalapack
from ..backends.scalapack.routines import Blocks
from ..exchange import diagonal_places, keep_triangle, mirror
from ..matrix import ShardedMatrix
from ..ranks.protocol import agree
from .entry import Call, Described, diagonal, enter_columns, leave, leave_columns, told_of

__all__ = ["LoneFactor", "ShardedFactor", "nan_of"]


class ShardedFactor:
    """A factored sharded matrix, made by :func:`lapwing.factor`; its methods are collective.

    Attributes
    ----------
    assume : str
        What the matrix was said to be.
    info : int
        0, or the pivot or the leading minor that failed; the same on all ranks.
    report : dict
        How it was made: ``engine``, ``kind`` ("cholesky", "lu" or "triangular"), ``grid`` and ``tile``.
    """

    def __init__(self, call: Call, assume: str, upper: bool, x: Blocks, pivots: Any, info: int, finite: bool) -> None:
        self.assume, self.upper, self.info = assume, upper, info
        # without the user's matrix, which need not live as long
        self._call = replace(call, a=Described(call.a.layout, call.a.dtype, call.a.ranks))
        self._x, self._pivots, self._finite = x, pivots, finite
        self.norm = np.nan  # max_j sum_i |a_ij|, where it was asked for
        kind = "cholesky" if assume == "pos" else "triangular" if assume in ("lower", "upper") else "lu"
        self.report = {"engine": "scalapack", "kind": kind, "grid": x.cyclic.grid, "tile": x.cyclic.rows.tile}

    @property
    def shape(self) -> tuple[int, int]:
        return self._x.shape

    @property
    def ranks(self) -> Any:
        return self._call.ranks

    @property
    def l(self) -> ShardedMatrix:  # noqa: E743
        """The Cholesky factor, lower, or upper for ``upper=True``, in the layout of the matrix."""
        if self.assume not in ("pos", "lower", "upper"):
            raise AttributeError(
                f"ShardedFactor.l: assume={self.assume!r} gives an LU factorisation\nhint: solve, inv, slogdet"
            )
        x = self._copy()
        upper = self.upper if self.assume == "pos" else self.assume == "upper"
        keep_triangle(x.local, x.layout, x.comm.rank, upper=upper != self._call.turned)
        return leave(self._call, x, upper=upper)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (n, k), sharded or on all ranks; x is as b is. NaN if there is no factor."""
        name = "ShardedFactor.solve"
        error, told = None, {}
        try:
            told = told_of(name, self._call.a, b)
        except (TypeError, ValueError) as wrong:
            error = wrong
        agree(self._call.ranks, name, told, error=error)
        return b.copy() if 0 in (*self.shape, *b.shape) else self._solve(b)

    def inv(self) -> ShardedMatrix:
        """A^-1, exactly Hermitian or symmetric where A is."""
        agree(self._call.ranks, "ShardedFactor.inv", {"shape": self.shape})
        return leave(self._call, self._x) if 0 in self.shape else self._inverse(destroy=False)

    def slogdet(self) -> SlogdetResult:
        """Sign and logarithm of the absolute value of the determinant, on all ranks."""
        ranks, x = self._call.ranks, self._x
        scalar, real = x.local.dtype.type, x.local.real.dtype.type
        if 0 in self.shape:
            return SlogdetResult(scalar(1), real(0))
        if self.info and (self.assume == "pos" or not self._finite):
            return SlogdetResult(scalar(np.nan), real(np.nan))
        _, pivots = diagonal(x)
        size = np.abs(pivots)
        if ranks.status(1 if (size == 0).any() else 0):
            return SlogdetResult(scalar(0), real(-np.inf))
        logabs = ranks.sum(np.log(size).sum(dtype=float, keepdims=True))[0]
        if self.assume == "pos":
            return SlogdetResult(scalar(1), real(2 * logabs))
        # the phases multiply; rows were exchanged where the pivot row is another one, told by the first column of the grid
        angle = np.angle(pivots).sum(dtype=float) if self._call.complex else np.pi * np.count_nonzero(pivots < 0)
        if self._pivots is not None and x.inside and x.cyclic.place(ranks.rank)[1] == 0:  # type: ignore[index]
            rows = x.cyclic.rows.indices(x.cyclic.place(ranks.rank)[0])  # type: ignore[index]
            angle += np.pi * np.count_nonzero(self._pivots[: len(rows)] != rows + 1)
        angle = ranks.sum(np.array([angle]))[0]
        if self._call.complex:
            return SlogdetResult(scalar(np.exp(1j * angle)), real(logabs))
        return SlogdetResult(scalar(1 - 2 * (round(angle / np.pi) % 2)), real(logabs))

    def logdet(self) -> Any:
        """The logarithm of the determinant, on all ranks; NaN where a real determinant is not positive."""
        sign, logabs = self.slogdet()
        if self.assume == "pos":
            return logabs
        if self._call.complex:
            raise ValueError("ShardedFactor.logdet: a complex determinant has no real logarithm\nhint: slogdet()")
        return logabs if sign > 0 else logabs * np.nan

    def rcond(self) -> Any:
        """An estimate of 1 / (||A|| ||A^-1||) in the 1-norm, on all ranks; 0 if there is no factor, 1 for n = 0."""
        agree(self._call.ranks, "ShardedFactor.rcond", {"shape": self.shape})
        real = self._x.local.real.dtype.type
        if 0 in self.shape:
            return real(1)
        if self.info or not 0 < self.norm < np.inf:
            return real(0)
        scale = real(self.norm)

        # ||A|| A^-1 is in range wherever the answer is; A^-1 may not be
        def times(x: np.ndarray, adjoint: bool) -> np.ndarray:
            if not adjoint or self.assume in ("pos", "hermitian"):
                return np.asarray(self._solve(x * scale))
            return np.asarray(self._solve(x.conj() * scale, transposed=self.assume != "symmetric")).conj()

        with np.errstate(all="ignore"):
            like = np.empty((self.shape[0], 1), self._x.local.dtype)
            return real(1 / one_norm(frameworks.of(like, "rcond").Namespace, like, times))

    def __repr__(self) -> str:
        n = self.shape[0]
        p, q = self._x.cyclic.grid
        return f"ShardedFactor({self.report['kind']} of {n} x {n} {self._x.local.dtype}, {p} x {q} grid)"

    def _solve(self, b: Any, transposed: bool = False) -> Any:
        call = self._call
        x = enter_columns(call, self._x, b)
        if self.info:
            x.local[...] = nan_of(x)
        else:
            self._apply(x, transposed)
        return leave_columns(call, x, b)

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

    def _inverse(self, destroy: bool) -> ShardedMatrix:
        call = self._call  # not that of the user's call: a matrix may have been turned, or not, for its factor
        x = self._x if destroy else self._copy()
        if self.info:
            x.local[...] = nan_of(x)
            return leave(call, x)
        if self.assume == "pos":
            triangle = self.upper != call.turned
            scalapack.potri(x, triangle)
            mirror(call.ranks, x.local, x.cyclic, upper=triangle)
            return leave(call, x)
        eye = x.like(*x.shape)
        _, i, j = diagonal_places(x.cyclic, x.comm.rank)
        eye.local[i, j] = 1
        # of A^T the inverse is the transpose: nothing is turned
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


class LoneFactor:
    """The same on one rank, by the ordinary factor."""

    def __init__(self, plain: Any, a: ShardedMatrix) -> None:
        self._plain, self._layout, self._ranks = plain, a.layout, a.ranks
        self.ranks = a.ranks
        self.assume, self.upper, self.info, self.report = plain.assume, plain.upper, int(plain.info), plain.report
        self.shape = a.shape
        self._on_gpu = a.on_gpu
        # on its device, without keeping it
        self._like = beside(a, np.empty((0, 0))) if a.on_gpu else None
        self.rcond = plain.rcond

    def slogdet(self) -> SlogdetResult:
        return SlogdetResult(*[self._on_host(x) for x in self._plain.slogdet()])

    def logdet(self) -> Any:
        return self._on_host(self._plain.logdet())

    def _on_host(self, x: Any) -> Any:
        return frameworks.of(x, "Factor").to_numpy(x)[()] if self._on_gpu else x

    @property
    def l(self) -> ShardedMatrix:  # noqa: E743
        return ShardedMatrix(self._plain.l, self._layout, self._ranks)

    def solve(self, b: Any, /) -> Any:
        if isinstance(b, ShardedMatrix):
            return ShardedMatrix(self._plain.solve(b.local), b.layout, self._ranks)
        return as_given(self._plain.solve(beside_block(self._like, b)), b)

    def inv(self) -> ShardedMatrix:
        return ShardedMatrix(self._plain.inv(), self._layout, self._ranks)

    def __repr__(self) -> str:
        return f"Sharded{self._plain!r}"


def beside(a: ShardedMatrix, b: Any) -> Any:
    """What the host has, on the GPU where the matrix is: as with more ranks, b may be NumPy's."""
    return beside_block(a.local if a.on_gpu else None, b)


def beside_block(block: Any, b: Any) -> Any:
    if block is None or type(b) is not np.ndarray:
        return b
    return frameworks.of(block, "solve").Namespace.put(np.ascontiguousarray(b), block)


def as_given(x: Any, b: Any) -> Any:
    """And the solution where b was."""
    if type(b) is not np.ndarray or type(x) is np.ndarray:
        return x
    return frameworks.of(x, "solve").to_numpy(x)


def nan_of(x: Blocks) -> Any:
    return complex(np.nan, np.nan) if np.iscomplexobj(x.local) else np.nan


def _conjugate(b: Blocks, turned: bool) -> None:
    if turned and np.iscomplexobj(b.local):
        np.conjugate(b.local, out=b.local)
