"""Stop the run when it has reached its goal, or when it has diverged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..analysis import Analysis, Context, StopRun, as_names
from ..solver.arrays import host_as_numpy, library_of, private_copy, restore_array, to_host
from ..solver.guard import check_shape

_CONDITIONS = ("steady", "diverged")


class Stop(Analysis):
    """Ask the solver to stop. All ranks stop at the same step.

    Parameters
    ----------
    *fields : str
    when : callable, "steady" or "diverged"
        A function ``f(ctx, *arrays)`` that returns True, or the reason as a string, when the run should stop; one rank is
        enough. "steady": between two calls the fields change by at most ``tol`` times their size, in the 2-norm over all ranks.
        "diverged": a value is not finite, or its size exceeds ``limit``.
    tol, limit : float
    every : int

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> stop = insitu.Stop("u", when="steady", tol=1e-3)
    >>> with insitu.Hub([stop], output=None, quiet=True) as hub:
    ...     for n in range(100):
    ...         if hub.step(n, 0.1 * n, u=1 + np.exp(-n) * np.ones(3)) == 2:
    ...             break
    >>> n, hub.stop_reason
    (8, "steady: field 'u' changed by 0.000576 of its size (tol 0.001)")
    """

    collective = True

    def __init__(
        self,
        *fields: str,
        when: str | Callable[..., Any],
        tol: float = 1e-8,
        limit: float = float("inf"),
        every: int = 1,
    ) -> None:
        if not callable(when) and when not in _CONDITIONS:
            raise ValueError(f"Stop: when must be a function or one of {', '.join(_CONDITIONS)}, got {when!r}")
        if not callable(when) and not fields:
            raise TypeError(f"Stop: name at least one field for when={when!r}")
        self.fields = as_names(fields)
        self.when, self.tol, self.limit, self.every = when, tol, limit, every
        self.change: float | None = None  # the last relative change
        self._before: list[Any] = []
        self._sums: list[np.ndarray] = []

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        if callable(self.when):
            answer = self.when(ctx, *arrays)
            if isinstance(answer, str) and answer:
                raise StopRun(answer)
            if bool(answer):
                raise StopRun(f"requested by {getattr(self.when, '__name__', 'a function')}")
            return
        arrays = tuple(host_as_numpy(a) for a in arrays)
        if self.when == "diverged":
            self._diverged(ctx, arrays)
            return
        self._sums = []
        for name, old, new in zip(self.fields or (), self._before, arrays, strict=False):
            check_shape("Stop", ctx.step, name, new.shape, old.shape)
            new, old = _widened(new), _widened(old)
            # scaled by the largest value: squares of tiny and huge values would under- or overflow
            largest = max(_largest(new), _largest(old))
            unit = largest if np.isfinite(largest) and largest > 0 else 1.0
            self._sums.append(np.array([unit, _square((new - old) / unit), _square(new / unit)]))
        self._before = [private_copy(a) for a in arrays]

    def _diverged(self, ctx: Context, arrays: tuple[Any, ...]) -> None:
        for name, array in zip(self.fields or (), arrays, strict=True):
            largest = _largest(_widened(array))  # NaN if one value is NaN
            if not np.isfinite(largest) or largest > self.limit:
                raise StopRun(f"diverged: field {name!r} reaches {largest:g} at step {ctx.step}")

    def on_collective(self, ctx: Context) -> None:
        if self.when != "steady":
            return
        # before the second step there are no sums yet, on any rank
        if not self._sums:
            return
        local = np.array(self._sums)
        units = ctx.comm.maximum(local[:, 0].copy())
        total = ctx.comm.sum(local[:, 1:] * ((local[:, 0] / units) ** 2)[:, None])
        worst = 0.0
        for name, (change, size) in zip(self.fields or (), total, strict=True):
            relative = float(np.sqrt(change / size)) if size > 0 else (0.0 if change == 0 else float("inf"))
            if not relative <= self.tol:
                self.change = relative
                return
            if relative >= worst:
                worst, which = relative, name
        self.change = worst
        ctx.stop(f"steady: field {which!r} changed by {worst:.3g} of its size (tol {self.tol:g})")

    def summary(self) -> str:
        return "" if self.change is None else f"last change {self.change:.3g}"

    def status(self) -> dict[str, Any]:
        return {} if self.change is None else {"change": self.change}

    def state(self) -> dict[str, Any]:
        return {"before": self._before, "change": self.change, "library": [library_of(x) for x in self._before]}

    def restore(self, state: dict[str, Any]) -> None:
        self._before = [restore_array(lib, x) for lib, x in zip(state["library"], state["before"], strict=True)]
        self.change = state["change"]


def _widened(x: Any) -> Any:
    """Integers and booleans as float64, so that differences do not wrap around."""
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind in "biu" else x


def _largest(x: Any) -> float:
    size = x.size if isinstance(x, np.ndarray) else np.prod(x.shape)
    return float(abs(x).max()) if size else 0.0


def _square(x: Any) -> float:
    """Sum of squares."""
    if isinstance(x, np.ndarray):
        x = x.astype(np.result_type(x.dtype, np.float64), copy=False).reshape(-1)
        return float(np.vdot(x, x).real)
    return float(to_host((abs(x) ** 2).sum()))
