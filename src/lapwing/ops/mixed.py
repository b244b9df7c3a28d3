"""A factor in lower precision, whose solutions are refined until they are as good as with the full one."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import frameworks
from ..core.checks import check_pair
from ..frameworks import foreign
from .factor import Factor, Factored, factor
from .solve import Columns

_STEPS = 20  # if refinement needs more, the full factor is faster
_DECIDED = 4  # after this many steps it is known whether that is so
# rounding to float32 changes 1/cond by about eps * cond: above this value by less than 0.1 %
_ACCURATE_RCOND = 2.0**-13
_FARTHEST = 1000  # 2^1000 and its inverse are normal numbers, and any number scaled by them has a square in range


class Mixed:
    """The handle of a float32 or complex64 factor. The factor in full precision is computed when it is needed.

    ``report`` describes the last solve that was refined: ``steps``, ``backward_error`` and ``fallback``.
    """

    about = ", precision='mixed'"

    def __init__(self, matrix: Any, low: Factored, options: dict[str, Any]) -> None:
        self.assume, self.upper, self.info = low.assume, low.upper, low.info
        self._report = {**low._report, "precision": "mixed", "fallback": False}
        # the matrix with both triangles, its low factor, and the options for the full factor, which is computed later
        self._matrix, self._low, self._options = matrix, low, options
        self._full: Factor | None = None

    @property
    def framework(self) -> Any:
        return frameworks.of(self._matrix, "factor")

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.framework.shape_of(self._matrix)  # type: ignore[no-any-return]

    @property
    def dtype(self) -> str:
        return self.framework.dtype_of(self._matrix)  # type: ignore[no-any-return]

    @property
    def report(self) -> dict[str, Any]:
        self._report["engine"] = self._low.report["engine"]
        return self._report

    def full(self, **changed: Any) -> Factor:
        """The factor in full precision, computed at the first call. In traced code it is computed at every call, as its values
        must not leave the trace."""
        if self._full is not None:
            return self._full
        full = factor(self._matrix, **self._options | changed)
        if not changed and not self.framework.traced(full.info):
            self._full = full
        return full

    @property
    def l(self) -> Any:  # noqa: E743
        return self.full().l

    @property
    def lu(self) -> Any:
        return self.full().lu

    def inverse(self) -> Any:
        return self.full().inv()

    def slogdet(self) -> tuple[Any, Any]:
        return self.full().slogdet()

    def logdet(self) -> Any:
        return self.full().logdet()

    def rcond(self) -> Any:
        """From the low factor if its rounding does not affect the answer, else from the full one."""
        framework = self.framework
        if self._full is None and not framework.traced(self._matrix):
            low = self._low.rcond()
            if (framework.to_numpy(low) > _ACCURATE_RCOND).all():
                return framework.Namespace.cast(low, "float64")
        return self.full(on_fail="nan").rcond()

    def solve(self, b: Any, /) -> Any:
        framework = self.framework
        try:
            _, b = check_pair("Factor.solve", framework, frameworks.of, self._matrix, b, fixed=True)
        except foreign.ForeignArray:
            return foreign.through(self.solve)(b)
        if self._full is None and not framework.traced(b) and not framework.differentiates(b):
            columns = Columns("Factor.solve", framework, self._matrix, b)
            x = framework.Namespace.zeros_like(columns.b)
            # b may be a plain array in traced code, where new arrays are tracers; refinement reads values
            if not framework.traced(x) and not framework.traced(self._matrix):
                x = self._refine(framework, columns.a, columns.b, x)
                if x is not None:
                    return columns.back(x)
                self._report["fallback"] = True
        return self.full().solve(b)

    def _refine(self, framework: Any, a: Any, b: Any, x: Any) -> Any:
        """x <- x + A_low^-1 (b - A x) from x = 0, while that halves the error; None if it does not converge.

        Each column is scaled, judged and finished by itself, so that its solution does not depend on the others.
        """
        xp = framework.Namespace
        low, high = framework.dtype_of(self._low.factor), framework.dtype_of(b)
        n = framework.shape_of(a)[-1]
        if 0 in framework.shape_of(b):
            return x
        goal = float(np.finfo(high).eps) * max(1.0, n**0.5 / 4)
        error, steps = np.inf, 0
        with np.errstate(all="ignore"):  # overflow shows in the error
            up, down = _powers(framework, b)
            b = b * down
            size, right = xp.sqrt(xp.sum(xp.sum(xp.abs(a) ** 2, -1), -1))[..., None, None], _norm(xp, b)
            for steps in range(_STEPS + 1):
                r = b - xp.matmul(a, x)
                before, each = error, xp.ratio(_norm(xp, r), size * _norm(xp, x) + right)
                error = float(framework.to_numpy(each).max())
                # done; or not a number; or too slow to reach the goal in _STEPS
                if error <= goal or not np.isfinite(error):
                    break
                if steps >= 2 and error > before / 2:
                    break
                if steps == _DECIDED and error * (error / before) ** (_STEPS - _DECIDED) > goal:
                    break
                top = _largest(xp, r)
                top = xp.like(xp.where(top > 0, top, xp.ones_like(top)), r)
                better = x + xp.cast(self._low.solve(xp.cast(r / top, low)), high) * top
                x = xp.where(each <= goal, x, better)
            self._report |= {"steps": steps, "backward_error": error}
            return x * up if error <= goal else None

    # what JAX sees; without the full factor, whose presence would change the structure
    def take_apart(self) -> tuple[tuple[Any, ...], Any]:
        low, options = self._low, self._options
        return (self._matrix, low.factor, low.rows, low.info), (low.assume, low.upper, tuple(sorted(options.items())))

    @staticmethod
    def put_together(about: Any, arrays: tuple[Any, ...]) -> Mixed:
        assume, upper, options = about
        matrix, *low = arrays
        return Mixed(matrix, Factored.put_together((assume, upper), (None, *low)), dict(options))


def _norm(xp: Any, x: Any) -> Any:
    """The 2-norm of each column, as a row."""
    return xp.sqrt(xp.sum(xp.abs(x) ** 2, -2))[..., None, :]


def _largest(xp: Any, x: Any) -> Any:
    """The largest size in each column, as a row."""
    return xp.swap(xp.largest(xp.swap(xp.abs(x))))


def _powers(framework: Any, b: Any) -> tuple[Any, Any]:
    """For each column the power of two above its largest entry, and the inverse. Multiplying by them is exact."""
    xp = framework.Namespace
    top = _largest(xp, b)
    sizes = framework.to_numpy(top)
    _, power = np.frexp(np.where(np.isfinite(sizes) & (sizes > 0), sizes, 1))
    power = np.clip(power, -_FARTHEST, _FARTHEST)
    up, down = (xp.like(xp.put(np.ldexp(1.0, e), top), b) for e in (power, -power))
    return up, down
