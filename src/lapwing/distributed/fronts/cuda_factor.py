"""A factored matrix on GPUs, one process for each: its blocks stay where they are, right-hand sides come and go."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.problem import REAL
from ...ops.solve import SlogdetResult
from ..backends.cusolvermp import routines as cusolvermp
from ..layout import Layout
from ..ranks.protocol import agree
from .cuda import FAILURES, agreed, as_told, finite_on_all, given_of, not_a_number, opened

__all__ = ["BlocksFactor", "factor"]


def factor(a: Any, options: dict[str, Any]) -> BlocksFactor:
    """Blocks as in :mod:`.cuda`, with the options of :func:`lapwing.factor`. Collective."""
    options = {"assume": "pos", **options}
    known, on_fail = agreed("factor", a, None, options)
    with opened(a) as session:
        try:
            given = session.together(lambda: given_of(a))
            made = cusolvermp.factor(
                session, given, pos=known["assume"] == "pos", upper=bool(known.get("upper")), operation="factor"
            )
            return BlocksFactor(a, known, made, 0, True)
        except FAILURES as error:
            finite = finite_on_all(session, "factor", a, known)
            if on_fail == "raise":
                raise as_told(error, "factor", not finite) from None
            info = getattr(error, "minor", None) or getattr(error, "pivot", None) or 1
            return BlocksFactor(a, known, None, int(info), finite and not error.nonfinite)


class BlocksFactor:
    """A factor over the ranks of a communicator. Its methods are collective; matrices are blocks.

    Attributes
    ----------
    assume : str
        "pos" or "general".
    info : int
        0, or the leading minor or the pivot that failed; the same on all ranks.
    report : dict
        How it was made: ``engine``, ``kind`` ("cholesky" or "lu"), ``grid`` and ``tile``.
    """

    def __init__(self, a: Any, options: dict[str, Any], made: cusolvermp.Factored | None, info: int, finite: bool) -> None:
        self.assume, self.upper, self.info = options["assume"], bool(options.get("upper")), info
        self.layout: Layout = a.layout
        self.ranks, self.dtype = a.ranks, a.memory.dtype
        self.memory = a.memory.without_data()  # of the user's matrix nothing is kept
        self._made, self._finite = made, finite
        self.report: dict[str, Any] = {"engine": "cusolvermp", "kind": "cholesky" if self.assume == "pos" else "lu"}
        if made is not None:
            self.report |= {"grid": made.layout.grid, "tile": made.layout.rows.tile}

    @property
    def l(self) -> Any:  # noqa: E743
        """The Cholesky factor, lower, or upper for ``upper=True``, in the layout of the matrix."""
        if self.assume != "pos":
            raise AttributeError(f"Factor.l: assume={self.assume!r} gives an LU factorisation\nhint: solve, inv, slogdet")
        agree(self.ranks, "Factor.l", {"shape": self.layout.shape})
        if self._made is None:
            return self._lost(self.layout)
        with opened(self, self.memory) as session:
            found = self.memory.blocks(self._made.triangle(self.layout), self.ranks)
            return session.together(lambda: self.memory.keep_triangle(found, upper=self.upper))

    def solve(self, b: Any) -> Any:
        """A^-1 B for blocks that were looked at, on all ranks; NaN if there is no factor."""
        if self._made is None:
            return self._lost(b.layout)
        with opened(self, self.memory) as session:
            given = session.together(lambda: given_of(b))
            return self.memory.blocks(self._made.solve(given), self.ranks)

    def inv(self) -> Any:
        agree(self.ranks, "Factor.inv", {"shape": self.layout.shape})
        if self._made is None:
            return self._lost(self.layout)
        with opened(self, self.memory):
            return self.memory.blocks(self._made.inv(self.layout), self.ranks)

    def slogdet(self) -> SlogdetResult:
        """Sign and logarithm of the absolute value of the determinant, on all ranks."""
        agree(self.ranks, "Factor.slogdet", {"shape": self.layout.shape})
        scalar, real = np.dtype(self.dtype).type, np.dtype(REAL[self.dtype]).type
        if self._made is None:
            if self.assume == "pos" or not self._finite:
                return SlogdetResult(scalar(not_a_number(self.dtype)), real(np.nan))
            return SlogdetResult(scalar(0), real(-np.inf))
        with opened(self, self.memory):
            sign, logabs = self._made.slogdet()
        return SlogdetResult(scalar(sign), real(logabs))

    def logdet(self) -> Any:
        """The logarithm of the determinant, on all ranks; NaN where a real determinant is not positive."""
        if self.assume != "pos" and self.dtype.startswith("complex"):
            raise ValueError("Factor.logdet: a complex determinant has no real logarithm\nhint: slogdet()")
        sign, logabs = self.slogdet()
        return logabs if self.assume == "pos" or sign > 0 else logabs * np.nan

    def rcond(self) -> Any:
        raise NotImplementedError("Factor.rcond: there is no estimate for a sharded matrix\nhint: lapwing.svdvals")

    def __repr__(self) -> str:
        n = self.layout.shape[0]
        return f"BlocksFactor({self.report['kind']} of {n} x {n} {self.dtype} on {self.ranks.size} ranks)"

    def _lost(self, layout: Layout) -> Any:
        with cusolvermp.on_device(self.memory.device):
            return self.memory.filled(layout, self.ranks, not_a_number(self.dtype))
