"""Is the factor right? In float64 or complex128, on the host, whatever computed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LIMIT", "PROBES", "Check", "adjoint", "check_factor", "check_on_device", "wide"]

LIMIT = 10.0  # ||A - L L^H|| <= LIMIT n eps ||A||
_EXACT_WORK = 4e9  # batch n^3 up to which the whole residual is formed: a second at most
PROBES = 8
_BLOCK = 2**22  # numbers widened at a time


@dataclass(frozen=True)
class Check:
    """``residual`` is the largest ||A - L L^H|| / (n eps ||A||) of the batch, in the Frobenius norm.

    For eigenpairs it is that of A V - V W, for values alone the largest error in the same unit, and ``orthogonality`` is
    ||V^H V - I|| / (n eps).
    """

    residual: float
    triangle_is_zero: bool
    estimated: bool = False  # from products with random vectors
    orthogonality: float | None = None
    trouble: str = ""  # what else is wrong

    @property
    def ok(self) -> bool:
        orthogonal = self.orthogonality is None or self.orthogonality <= LIMIT
        return self.residual <= LIMIT and orthogonal and self.triangle_is_zero and not self.trouble  # NaN is not ok

    def __str__(self) -> str:
        if not self.triangle_is_zero:
            return "the other triangle is not zero"
        if self.trouble:
            return self.trouble
        kind = "estimated residual" if self.estimated else "residual"
        orthogonality = "" if self.orthogonality is None else f", orthogonality {self.orthogonality:.2g} n eps"
        return f"{kind} {self.residual:.2g} n eps |A|{orthogonality}, allowed {LIMIT:g}"


def check_factor(a: np.ndarray, factor: np.ndarray, *, upper: bool = False) -> Check:
    """Check A = L L^H, or A = U^H U with ``upper``, for a batch of Hermitian matrices with both triangles filled."""
    if factor.shape != a.shape or factor.dtype != a.dtype:
        return Check(float("inf"), True)
    n = a.shape[-1]
    if a.size == 0:
        return Check(0.0, True)
    matrices, factors = a.reshape(-1, n, n), factor.reshape(-1, n, n)
    exact = n**2 <= _BLOCK and len(matrices) * float(n) ** 3 <= _EXACT_WORK
    # for x of independent normal numbers, E ||R x||^2 = ||R||_F^2
    dtype = np.result_type(a.dtype, np.float64)
    probes = None if exact else np.random.default_rng(1).standard_normal((n, PROBES)).astype(dtype) / PROBES**0.5
    with np.errstate(invalid="ignore", over="ignore"):
        if probes is not None and n**2 > _BLOCK:
            pieces = [_large(m, f, probes, upper) for m, f in zip(matrices, factors, strict=True)]
        else:
            pieces = list(_small(matrices, factors, probes, upper))
    relative, zero = zip(*pieces, strict=True)
    return Check(float(np.max(relative)) / (n * float(np.finfo(a.dtype).eps)), all(zero), not exact)


def check_on_device(a: Any, factor: Any, probes: Any, widen: Callable[[Any], Any], eps: float, *, upper: bool) -> Check:
    """The same estimate for one large matrix where it lies; of its other triangle a few rows are looked at."""
    n = a.shape[-1]
    l = widen(factor)
    lower = l.mT.conj() if upper else l
    residual = widen(a) @ probes - lower @ (lower.mT.conj() @ probes)
    relative = float(abs(residual**2).sum() ** 0.5) / float(abs(widen(a) ** 2).sum() ** 0.5)
    rows = (factor[i, :i] if upper else factor[i, i + 1 :] for i in range(0, n, max(1, n // 64)))
    zero = not any(float(abs(row).max()) for row in rows if row.shape[0])
    return Check(relative / (n * eps), zero, True)


def _small(a: np.ndarray, factor: np.ndarray, probes: np.ndarray | None, upper: bool) -> Iterator[tuple[float, bool]]:
    """Many matrices at a time: the largest ||R|| / ||A||, and whether the other triangles are zero."""
    step = max(1, _BLOCK // a.shape[-1] ** 2)
    for first in range(0, len(a), step):
        x, f = wide(a[first : first + step]), wide(factor[first : first + step])
        lower = adjoint(f) if upper else f
        if probes is None:
            residual = x - lower @ adjoint(lower)
        else:
            residual = x @ probes - lower @ (adjoint(lower) @ probes)
        relative = np.linalg.norm(residual, axis=(-2, -1)) / np.linalg.norm(x, axis=(-2, -1))
        yield float(np.max(relative)), not np.triu(lower, 1).any()


def _large(a: np.ndarray, factor: np.ndarray, probes: np.ndarray, upper: bool) -> tuple[float, bool]:
    """One matrix, some rows at a time."""
    n = len(a)
    step = max(1, _BLOCK // n)
    blocks = [slice(i, min(i + step, n)) for i in range(0, n, step)]

    def times(m: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.concatenate([wide(m[b]) @ x for b in blocks])

    def adjoint_times(m: np.ndarray, x: np.ndarray) -> np.ndarray:
        return sum((adjoint(wide(m[b])) @ x[b] for b in blocks), np.zeros_like(x))

    # U^H (U x), or L (L^H x)
    product = adjoint_times(factor, times(factor, probes)) if upper else times(factor, adjoint_times(factor, probes))
    norm = sum(float(np.linalg.norm(wide(a[b]))) ** 2 for b in blocks) ** 0.5
    others = (np.tril(factor[b], b.start - 1) if upper else np.triu(factor[b], b.start + 1) for b in blocks)
    return float(np.linalg.norm(times(a, probes) - product)) / norm, not any(part.any() for part in others)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.result_type(x.dtype, np.float64), copy=False)


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.conj(np.swapaxes(x, -1, -2)))
