"""The calls that give a status instead of an error, for matrices over ranks: made of those that raise."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.cholesky import CholeskyResult
from ...ops.eigh import EighExResult
from ...ops.solve import InvExResult, SolveExResult

__all__ = ["status_calls"]


def status_calls(cholesky: Any, factor: Any, eigh: Any) -> tuple[Any, Any, Any, Any]:
    """``cholesky_ex``, ``solve_ex``, ``inv_ex``, ``eigh_ex`` from three plain calls; ``info`` is on all ranks."""

    def cholesky_ex(a: Any, /, *, upper: bool = False) -> CholeskyResult:
        f = factor(a, assume="pos", upper=upper, on_fail="nan")
        # of a matrix that cannot be factored NaN is wanted, not what the library left
        return CholeskyResult(cholesky(a, upper=upper, on_fail="nan") if f.info else f.l, np.int32(f.info))

    def solve_ex(a: Any, b: Any, /, *, assume: str = "general", upper: bool = False) -> SolveExResult:
        f = factor(a, assume=assume, upper=upper, on_fail="nan")
        return SolveExResult(f.solve(b), np.int32(f.info))

    def inv_ex(a: Any, /, *, assume: str = "general", upper: bool = False) -> InvExResult:
        f = factor(a, assume=assume, upper=upper, on_fail="nan")
        return InvExResult(f.inv(), np.int32(f.info))

    def eigh_ex(a: Any, /, *, subset: slice | None = None, upper: bool = False) -> EighExResult:
        w, v = eigh(a, subset=subset, upper=upper, on_fail="nan")
        values = w.to_local() if hasattr(w, "to_local") else w
        return EighExResult(w, v, np.int32(bool((values != values).any())))

    return cholesky_ex, solve_ex, inv_ex, eigh_ex
