"""A factor in lower precision, whose solutions are refined until they are as good as with the full one."""

from __future__ import annotations

from typing import Any

import numpy as np

from .factor import Factor, LUFactor, factor
from .solve import Columns, SlogdetResult

__all__ = ["MixedFactor"]

_STEPS = 20  # where refinement needs more, the full factor is faster
_DECIDED = 4  # by then it is known


class MixedFactor(Factor):
    """As :class:`Factor`, with a float32 or complex64 factor inside. The full one is made when it is needed.

    ``report`` tells of the last solve: ``steps``, ``backward_error`` and ``fallback``.
    """

    def __init__(self, matrix: Any, low: Factor, options: dict[str, Any]) -> None:
        self.assume, self.upper, self.info = low.assume, low.upper, low.info
        self.report = {**low.report, "precision": "mixed", "fallback": False}
        self._a = None
        # the whole matrix; its factor; what to ask the full one for, and that one once it is there
        self._matrix, self._low, self._options = matrix, low, options
        self._full: Factor | None = None

    @property
    def full(self) -> Factor:
        """The factor in full precision, made at the first ask."""
        if self._full is None:
            self._full = factor(self._matrix, **self._options)
        return self._full

    @property
    def _factor(self) -> Any:  # type: ignore[override]
        return self.full._factor

    @property
    def _rows(self) -> Any:  # type: ignore[override]
        return self.full._rows

    @property
    def l(self) -> Any:  # noqa: E743
        return self.full.l

    @property
    def lu(self) -> LUFactor:
        return self.full.lu

    def inv(self) -> Any:
        return self.full.inv()

    def slogdet(self) -> SlogdetResult:
        return self.full.slogdet()

    def rcond(self) -> Any:
        return self._low.rcond()

    def solve(self, b: Any, /) -> Any:
        if self._full is None:
            framework = self._low._framework
            columns = Columns("Factor.solve", framework, self._matrix, b)
            x = self._refine(framework, columns.a, columns.b)
            if x is not None:
                return columns.back(x)
            self.report["fallback"] = True
        return self.full.solve(b)

    def _refine(self, framework: Any, a: Any, b: Any) -> Any:
        """x <- x + A_low^-1 (b - A x), while that halves the error; None where it will not do."""
        xp = framework.Namespace
        low, high = framework.dtype_of(self._low._factor), framework.dtype_of(b)
        n = framework.shape_of(a)[-1]
        goal = float(np.finfo(high).eps) * max(1.0, n**0.5 / 4)
        size = _norm(xp, a)
        x, error, steps = xp.zeros_like(b), np.inf, 0
        for steps in range(_STEPS + 1):
            r = b - xp.matmul(a, x)
            before = error
            error = float(framework.to_numpy(xp.ratio(_norm(xp, r), size * _norm(xp, x) + _norm(xp, b))).max(initial=0))
            # done; or not a number; or too slow to arrive in time
            if error <= goal or not np.isfinite(error):
                break
            if steps >= 2 and error > before / 2:
                break
            if steps == _DECIDED and error * (error / before) ** (_STEPS - _DECIDED) > goal:
                break
            scale = float(framework.to_numpy(_norm(xp, r)).max(initial=0)) or 1.0
            x = x + xp.cast(self._low.solve(xp.cast(r / scale, low)), high) * scale
        self.report |= {"steps": steps, "backward_error": error}
        return x if error <= goal else None


def _norm(xp: Any, x: Any) -> Any:
    """The Frobenius norm of each matrix of a batch."""
    return xp.sqrt(xp.sum(xp.sum(xp.abs(x) ** 2, -1), -1))
