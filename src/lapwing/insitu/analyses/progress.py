"""A line of progress every few seconds."""

from __future__ import annotations

import time as clock
from typing import Any

from ..analysis import Analysis, Context


class Progress(Analysis):
    """Write a line of progress to the log and to stderr, at most every few seconds, on the first rank.

    Parameters
    ----------
    total : int, optional
        Number of steps of the run; if known, the line shows the time left.
    seconds : float
        Minimum time between two lines; 0 shows every step.
    every : int

    Examples
    --------
    >>> from lapwing import insitu
    >>> progress = insitu.Progress(total=3, seconds=0)
    >>> with insitu.Hub([progress], output=None, quiet=True) as hub:
    ...     for n in range(3):
    ...         status = hub.step(n, 0.5 * n)
    >>> progress.lines
    3
    """

    def __init__(self, total: int | None = None, *, seconds: float = 5.0, every: int = 1) -> None:
        self.total, self.seconds, self.every = total, seconds, every
        self.lines = 0
        self._first: tuple[float, int] | None = None
        self._shown = float("-inf")

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        now = clock.monotonic()
        if self._first is None:
            self._first = now, ctx.step
        if ctx.rank or now - self._shown < self.seconds:
            return
        self._shown = now
        self.lines += 1
        began, first = self._first
        text = f"step {ctx.step}, t = {ctx.time:.6g}"
        done = ctx.step - first
        if done > 0:
            each = (now - began) / done
            text += f", {1e3 * each:.3g} ms per step"
            if self.total is not None:
                text += f", {_duration(max(self.total - 1 - ctx.step, 0) * each)} left"
        ctx.log(text)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
