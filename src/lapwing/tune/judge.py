"""Which of several candidates is the fastest, and by how much, from samples that were taken side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from .backends import VENDOR
from .worker import Candidate

__all__ = ["Interval", "interval", "preferred"]

_TIE = 1.02  # nearer than this two candidates are equal
_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    low: float
    ratio: float
    high: float


def preferred(timed: Sequence[tuple[Candidate, float, dict[str, int]]], default: Candidate) -> Candidate:
    """The fastest; of those nearly as fast the same one every time.

    The default before all, then the vendor's, then those that do not split K, then the fewest resources, then by name: two runs
    that differ by noise alone choose the same.
    """

    def order(entry: tuple[Candidate, float, dict[str, int]]) -> tuple:
        c, _, resources = entry
        splits = any(str(n).lower().startswith("split") and v not in (0, 1, "none") for n, v in c.config.items())
        used = tuple(resources.get(n, 0) for n in ("spills", "workspace", "shared", "registers"))
        return (c != default, c.backend not in VENDOR, splits, used, c.backend, json.dumps(dict(c.config), sort_keys=True))

    fastest = min(seconds for _, seconds, _ in timed)
    return min((entry for entry in timed if entry[1] <= _TIE * fastest), key=order)[0]


def interval(default: Sequence[float], tuned: Sequence[float], *, seed: int = 0, coverage: float = 0.95) -> Interval:
    """The ratio of the medians, default / tuned, and its bootstrap interval. Samples are drawn in pairs, as they were taken.

    Examples
    --------
    >>> from lapwing.tune.judge import interval
    >>> interval([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    Interval(low=2.0, ratio=2.0, high=2.0)
    """
    a, b = np.asarray(default, np.float64), np.asarray(tuned, np.float64)
    if len(a) != len(b) or not len(a) or not (np.isfinite(a).all() and np.isfinite(b).all() and (b > 0).all()):
        raise ValueError(f"compare: {len(a)} and {len(b)} samples; they must be as many, finite and positive")
    drawn = np.random.default_rng(seed).integers(len(a), size=(_RESAMPLES, len(a)))
    ratios = np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1)
    low, high = np.quantile(ratios, [(1 - coverage) / 2, (1 + coverage) / 2])
    ratio = float(np.median(a) / np.median(b))
    assert isfinite(ratio)
    return Interval(float(low), ratio, float(high))
