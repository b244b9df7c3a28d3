"""Factorisations, systems, inverses and determinants of sharded matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..core.communicator import agree
from ..core.errors import NotPositiveDefiniteError, SingularMatrixError
from ..core.exchange import diagonal_places, finite_triangle, keep_triangle, mirror
from ..core.sharded import ShardedMatrix
from ..engines import scalapack
from ..engines.scalapack import Blocks
from .checks import check_choice, check_flag, check_square
from .sharded_entry import Call, Described, diagonal, enter, enter_columns, leave, leave_columns, told_of
from .solve import ASSUME, ONE_TRIANGLE, SlogdetResult

__all__ = ["ShardedFactor", "cholesky", "factor", "inv", "slogdet", "solve"]


def cholesky(
    a: ShardedMatrix, /, *, upper: bool = False, overwrite: bool = False, on_fail: str = "raise", engine: str = "auto"
) -> ShardedMatrix:
    call = _agreed("cholesky", a, {"assume": "pos", "upper": upper, "on_fail": on_fail, "overwrite": overwrite}, engine=engine)
    if 0 in a.shape:
        return a.copy()
    x = enter(call, "cholesky", upper=upper, overwrite=overwrite)
    into = a.local if x.local.base is a.local or x.local is a.local else None
    finite = _finite(a, "pos", upper) if into is not None else True
    info = _factor(call, x, upper)
    if info:
        if on_fail == "raise":
            raise call.raises(NotPositiveDefiniteError, finite and (into is not None or _finite(a, "pos", upper)), minor=info)
        x.local[...] = _nan(x)
    else:
        keep_triangle(x.local, x.layout, call.ranks.rank, upper=upper != call.turned)
    return leave(call, x, into=into)


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
    return f._solve(call, b)


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
    return _made(call, assume, upper, overwrite, on_fail)._inverse(call, destroy=True)


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
    return _made(call, assume, upper, overwrite, on_fail, permute=False)


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
        kind = "cholesky" if assume == "pos" else "triangular" if assume in ("lower", "upper") else "lu"
        self.report = {"engine": "scalapack", "kind": kind, "grid": x.cyclic.grid, "tile": x.cyclic.rows.tile}

    @property
    def shape(self) -> tuple[int, int]:
        return self._x.shape

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
        return leave(self._call, x)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (n, k), sharded or on all ranks; x is as b is. NaN if there is no factor."""
        name = "ShardedFactor.solve"
        error, told = None, {}
        try:
            told = told_of(name, self._call.a, b)
        except (TypeError, ValueError) as wrong:
            error = wrong
        agree(self._call.ranks, name, told, error=error)
        return b.copy() if 0 in (*self.shape, *b.shape) else self._solve(self._call, b)

    def inv(self) -> ShardedMatrix:
        """A^-1, exactly Hermitian or symmetric where A is."""
        agree(self._call.ranks, "ShardedFactor.inv", {"shape": self.shape})
        return leave(self._call, self._x) if 0 in self.shape else self._inverse(self._call, destroy=False)

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

    def __repr__(self) -> str:
        n = self.shape[0]
        p, q = self._x.cyclic.grid
        return f"ShardedFactor({self.report['kind']} of {n} x {n} {self._x.local.dtype}, {p} x {q} grid)"

    def _solve(self, call: Call, b: Any) -> Any:
        x = enter_columns(call, self._x, b)
        if self.info:
            x.local[...] = _nan(x)
        else:
            self._apply(x)
        return leave_columns(call, x, b)

    def _apply(self, b: Blocks) -> None:
        """B <- A^-1 B."""
        turned = self._call.turned
        if self.assume == "pos":
            # turned, the factor is that of A^T, which is the conjugate of A
            _conjugate(b, turned)
            scalapack.potrs(self._x, b, self.upper != turned)
            _conjugate(b, turned)
        elif self.assume in ("lower", "upper"):
            scalapack.trtrs(self._x, b, (self.assume == "upper") != turned, turned)
        else:
            scalapack.getrs(self._x, self._pivots, b, turned)

    def _inverse(self, call: Call, destroy: bool) -> ShardedMatrix:
        x = self._x if destroy else self._copy()
        if self.info:
            x.local[...] = _nan(x)
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


def _made(call: Call, assume: str, upper: bool, overwrite: bool, on_fail: str, *, permute: bool = True) -> ShardedFactor:
    """Factor, and raise where that is wanted."""
    a = call.a
    assert isinstance(a, ShardedMatrix)
    one_triangle = assume in ONE_TRIANGLE
    permute = permute and assume == "pos"
    x = enter(call, "factor", upper=upper if one_triangle else None, permute=permute, overwrite=overwrite)
    finite = _finite(a, assume, upper) if overwrite else None
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
    if info and finite is None:
        finite = _finite(a, assume, upper)
    if info and on_fail == "raise":
        if assume == "pos":
            raise call.raises(NotPositiveDefiniteError, bool(finite), minor=info)
        raise call.raises(SingularMatrixError, bool(finite), pivot=info)
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
        if engine == "elpa":
            raise NotImplementedError(f"{name}: elpa has eigh and eigvalsh only\nhint: engine='scalapack'")

    return Call.agreed(name, a, check, {**told, "engine": engine}, b, engine)


def _nan(x: Blocks) -> Any:
    return complex(np.nan, np.nan) if np.iscomplexobj(x.local) else np.nan


def _conjugate(b: Blocks, turned: bool) -> None:
    if turned and np.iscomplexobj(b.local):
        np.conjugate(b.local, out=b.local)


class LoneFactor:
    """The same on one rank, by the ordinary factor."""

    def __init__(self, plain: Any, a: ShardedMatrix) -> None:
        self._plain, self._layout, self._ranks = plain, a.layout, a.ranks
        self.assume, self.upper, self.info, self.report = plain.assume, plain.upper, int(plain.info), plain.report
        self.shape = a.shape
        self.slogdet, self.logdet = plain.slogdet, plain.logdet

    @property
    def l(self) -> ShardedMatrix:  # noqa: E743
        return ShardedMatrix(self._plain.l, self._layout, self._ranks)

    def solve(self, b: Any, /) -> Any:
        if isinstance(b, ShardedMatrix):
            return ShardedMatrix(self._plain.solve(b.local), b.layout, self._ranks)
        return self._plain.solve(b)

    def inv(self) -> ShardedMatrix:
        return ShardedMatrix(self._plain.inv(), self._layout, self._ranks)

    def __repr__(self) -> str:
        return f"Sharded{self._plain!r}"
