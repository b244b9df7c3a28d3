"""Time contenders side by side: in every repeat each has a turn, in a changing order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from time import perf_counter, sleep
from typing import Any

from .case import Timing

_SAMPLE = 5e-3  # a sample is a loop of as many calls as take this long
_TURN = 0.1  # seconds of samples in a turn
_DEVICE_SAMPLE = 20e-3
_MOST_CALLS = 1000
_MOST_QUEUED = 200  # the driver's queue holds about a thousand launches
_SETTLE = 20e-3  # calls shorter than this run once untimed at each turn, to wake their own threads
_PATIENCE = 5.0  # a call that took longer than this before is not warmed up again
_SLOW = 0.25  # a call longer than this is warm after the first, and one makes a sample


@dataclass(frozen=True)
class Contender:
    """``call()`` runs once and waits. ``queued(k)`` queues k calls and returns the device's seconds per call.

    ``rest`` is the pause after a turn on the CPU, as threads that still spin would slow down the next contender. ``before`` is
    the time of a call that already ran, if nothing was compiled in it.
    """

    name: str
    call: Callable[[], Any]
    queued: Callable[[int], float] | None = None
    rest: float = 50e-3
    before: float = 0.0


@dataclass
class _Turn:
    contender: Contender
    calls: int
    once: float  # seconds of the warm-up call
    seconds: list[float]
    waited: list[float]

    @property
    def best(self) -> float:
        return min((self.once, *self.seconds))

    def is_behind(self, turns: Sequence[_Turn], behind: float) -> bool:
        return self.best > max(_SETTLE, behind * min(t.best for t in turns))

    def take(self, samples: int = 1) -> None:
        """One time: on the CPU the least of as many samples, fewer if they are long."""
        c = self.contender
        if self.once < _SETTLE:
            for _ in range(1 + self.calls // 4):
                c.call()
        if c.queued is None:
            count = max(1, min(samples, int(_TURN / (self.calls * self.once))))
            self.seconds.append(min(_wall(c.call, self.calls) for _ in range(count)))
            sleep(c.rest)
        else:
            self.seconds.append(c.queued(self.calls))
            self.waited.append(_wall(c.call, 1))


def interleave(
    contenders: Iterable[Contender],
    repeat: int = 10,
    limit: float = inf,
    *,
    fewest: int = 3,
    behind: float = inf,
    samples: int = 1,
) -> list[Timing]:
    """One Timing per contender. After ``limit`` seconds no further repeat begins, but there are at least ``fewest``.

    A long call that is more than ``behind`` times slower than the fastest has one turn; on a GPU its warm-up is its time. On
    the CPU each turn takes the least of ``samples``: with other programs on the cores most samples are disturbed.
    """
    contenders = list(contenders)
    sleep(max((c.rest for c in contenders if c.queued is None), default=0.0))  # whatever ran before
    turns = [_first_turn(c) for c in contenders]
    for turn in turns:
        if turn.contender.queued is not None and turn.is_behind(turns, behind):
            turn.seconds.append(turn.once)
            turn.waited.append(turn.once)
    begun = perf_counter()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in range(repeat):
            if done >= fewest and perf_counter() - begun > limit:
                break
            for turn in _rotated(turns, done):
                if not (turn.seconds and turn.is_behind(turns, behind)):
                    turn.take(samples)
    finally:
        if collecting:
            gc.enable()
    return [Timing(t.contender.name, tuple(t.seconds), tuple(t.waited)) for t in turns]


def _first_turn(contender: Contender) -> _Turn:
    """Warm up twice: the first call may compile, the second shows how many calls make a sample."""
    once = contender.before if contender.before > _PATIENCE else _wall(contender.call, 1)
    if once < _SLOW:
        once = max(_wall(contender.call, 1), 1e-8)
    if contender.queued is None:
        calls = min(_MOST_CALLS, ceil(_SAMPLE / once))
        sleep(contender.rest)
    else:
        calls = min(_MOST_QUEUED, max(2 if once < _SLOW else 1, ceil(_DEVICE_SAMPLE / once)))
    return _Turn(contender, calls, once, [], [])


def _wall(call: Callable[[], Any], times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - start) / times


def _rotated(turns: Sequence[_Turn], by: int) -> list[_Turn]:
    by %= max(len(turns), 1)
    return [*turns[by:], *turns[:by]]
