"""Decide from samples taken in turns which candidate is fastest, by how much, and whether that can be believed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

import numpy as np

from ..backends import VENDOR
from ..search.worker import Candidate

_TIE = 1.02  # candidates closer than this count as equally fast
_RESAMPLES = 2000
UNSTEADY = 2.0  # samples whose median is this many times their minimum are unsteady, as in lapwing.bench
_DISAGREE = 1.5  # largest / smallest ratio of the rounds, above which they contradict each other
_BUSY = 0.25  # share of the processors that other programs may take


@dataclass(frozen=True)
class Interval:
    low: float
    ratio: float
    high: float


@dataclass(frozen=True)
class Gain:
    """How many times faster the tuned candidate is, and why that is doubtful ("" when it is not)."""

    interval: Interval
    doubt: str = ""


def preferred(timed: Sequence[tuple[Candidate, float, dict[str, int]]], default: Candidate) -> Candidate:
    """The fastest candidate. Among those nearly as fast, always the same one.

    The order among equals: the default, the vendor's, those that do not split K, the fewest resources, the name. So two runs
    that differ only by noise choose the same candidate.
    """

    def order(entry: tuple[Candidate, float, dict[str, int]]) -> tuple:
        c, _, resources = entry
        splits = any(str(n).lower().startswith("split") and v not in (0, 1, "none") for n, v in c.config.items())
        used = tuple(resources.get(n, 0) for n in ("spills", "workspace", "shared", "registers"))
        return (c != default, c.backend not in VENDOR, splits, used, c.backend, json.dumps(dict(c.config), sort_keys=True))

    fastest = min(seconds for _, seconds, _ in timed)
    return min((entry for entry in timed if entry[1] <= _TIE * fastest), key=order)[0]


def gain(
    default: Sequence[Sequence[float]],
    tuned: Sequence[Sequence[float]],
    *,
    floor: float = 0.0,
    first: float = 0.0,
    others: float = 0.0,
    seed: int = 0,
) -> Gain:
    """Judge samples of several rounds.

    Parameters
    ----------
    default, tuned : sequences of sequences of float
        Seconds per call: the samples of each round. Rounds have both orders, so that what comes first has no advantage.
    floor : float
        Seconds that no kernel can beat, from bytes and operations; 0 when unknown. A gain that needs less is impossible.
    first : float
        Seconds of the default when it was first measured; 0 when unknown.
    others : float
        Share of the processors, 0 to 1, that other programs took meanwhile.

    Examples
    --------
    >>> from lapwing.tune.validate.timing import gain
    >>> gain([[2.0, 2.1], [2.0, 2.0]], [[1.0, 1.0], [1.0, 1.1]]).doubt
    ''
    >>> print(gain([[2.0, 2.0]], [[1.0, 1.0]], floor=1.5).doubt)
    impossible: 1e+06 us is less than the 1.5e+06 us that its bytes and operations need on this device
    """
    base, best = [x for r in default for x in r], [x for r in tuned for x in r]
    ratio_interval = interval(base, best, seed=seed)
    rounds = [median(a) / median(b) for a, b in zip(default, tuned, strict=True)]
    return Gain(ratio_interval, _doubt(ratio_interval.ratio, rounds, base, best, floor, first, others))


def _doubt(
    ratio: float, rounds: list[float], base: list[float], best: list[float], floor: float, first: float, others: float
) -> str:
    if median(best) < floor:
        return (
            f"impossible: {1e6 * median(best):.3g} us is less than the {1e6 * floor:.3g} us that its bytes and operations "
            "need on this device"
        )
    # noise only adds time, so the fastest sample of the default is the best estimate of its true time
    fastest = min([*base, *([first] if first > 0 else [])])
    if floor > 0 and ratio > max(fastest / floor, 1.0):
        return (
            f"impossible: {ratio:.3g}x, but a perfect kernel would be {max(fastest / floor, 1.0):.3g}x as fast as the default"
        )
    if others > _BUSY:
        return f"the machine is busy: other programs took {100 * others:.0f} % of the processors"
    if max(rounds) > _DISAGREE * min(rounds):
        return f"the rounds disagree: {min(rounds):.3g}x to {max(rounds):.3g}x"
    for name, samples in (("default", base), ("candidate", best)):
        if median(samples) > UNSTEADY * min(samples):
            return f"the times of the {name} are unsteady: {1e6 * min(samples):.3g} to {1e6 * max(samples):.3g} us"
    if ratio > 1 and min(base) / min(best) < 1 + 0.5 * (ratio - 1):
        return f"the fastest samples differ by {min(base) / min(best):.3g}x only"
    if 0 < 3 * first < median(base) and median(best) > first:
        return f"the default took {1e6 * first:.3g} us when first measured and {median(base) / first:.0f} times that now"
    return ""


def interval(default: Sequence[float], tuned: Sequence[float], *, seed: int = 0, coverage: float = 0.95) -> Interval:
    """The ratio of the medians, default / tuned, with its bootstrap interval. Samples are drawn in pairs, as they were taken.

    Examples
    --------
    >>> from lapwing.tune.validate.timing import interval
    >>> interval([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    Interval(low=2.0, ratio=2.0, high=2.0)
    """
    a, b = np.asarray(default, np.float64), np.asarray(tuned, np.float64)
    if len(a) != len(b) or not len(a) or not (np.isfinite(a).all() and np.isfinite(b).all() and (b > 0).all()):
        raise ValueError(f"compare: {len(a)} and {len(b)} samples\nhint: pass the same number of both, all finite and positive")
    drawn = np.random.default_rng(seed).integers(len(a), size=(_RESAMPLES, len(a)))
    ratios = np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1)
    low, high = np.quantile(ratios, [(1 - coverage) / 2, (1 + coverage) / 2])
    ratio = float(np.median(a) / np.median(b))
    assert isfinite(ratio)
    return Interval(float(low), ratio, float(high))
