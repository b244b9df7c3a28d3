"""Checks of answers, in float64 or complex128 on the host, whatever computed them; here that of the Cholesky factor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .case import Case
    from .library import Library

LIMIT = 10.0  # ||A - L L^H|| <= LIMIT n eps ||A||
_EXACT_WORK = 4e9  # multiplications up to which the whole residual is formed: a second at most
_PROBES = 8
_BLOCK = 2**22  # numbers widened at a time


@dataclass(frozen=True)
class Check:
    """``residual`` is the largest ||A - L L^H|| / (n eps ||A||) of the batch, in the Frobenius norm.

    For eigenpairs it is that of A V - V W, for values alone the largest error in the same unit. ``orthogonality`` is
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
    exact = n**2 <= _BLOCK and small_enough(len(matrices) * float(n) ** 3)
    vectors = None if exact else probes(n, a.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        if vectors is not None and n**2 > _BLOCK:
            pieces = [_large(m, f, vectors, upper) for m, f in zip(matrices, factors, strict=True)]
        else:
            pieces = [_small(matrices[some], factors[some], vectors, upper) for some in blocks(len(matrices), n**2)]
    relative, zero = zip(*pieces, strict=True)
    return Check(float(np.max(relative)) / (n * float(np.finfo(a.dtype).eps)), all(zero), not exact)


def check_cholesky_on_device(library: Library, a: Any, factor: Any, case: Case) -> Check:
    """An estimate for one large matrix on its device; only a few rows of the other triangle are checked."""
    assert library.wide is not None
    n = case.n
    z = library.put(probes(n, case.dtype), case.device)
    m, l = library.wide(a), library.wide(factor)
    lower = l.mT.conj() if case.upper else l
    residual = m @ z - lower @ (lower.mT.conj() @ z)
    rows = (factor[i, :i] if case.upper else factor[i, i + 1 :] for i in range(0, n, max(1, n // 64)))
    zero = not any(float(abs(row).max()) for row in rows if row.shape[0])
    return Check(float(norm(residual)) / float(norm(m)) / (n * float(np.finfo(case.dtype).eps)), zero, True)


def _small(a: np.ndarray, factor: np.ndarray, vectors: np.ndarray | None, upper: bool) -> tuple[float, bool]:
    """Many matrices at a time: the largest ||R|| / ||A||, and whether the other triangles are zero."""
    x, f = wide(a), wide(factor)
    lower = adjoint(f) if upper else f
    residual = x - lower @ adjoint(lower) if vectors is None else x @ vectors - lower @ (adjoint(lower) @ vectors)
    return float(np.max(norm(residual) / norm(x))), not np.triu(lower, 1).any()


def _large(a: np.ndarray, factor: np.ndarray, vectors: np.ndarray, upper: bool) -> tuple[float, bool]:
    """One matrix, some rows at a time."""
    n = len(a)
    parts = list(blocks(n, n))

    def times(m: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.concatenate([wide(m[b]) @ x for b in parts])

    def adjoint_times(m: np.ndarray, x: np.ndarray) -> np.ndarray:
        return sum((adjoint(wide(m[b])) @ x[b] for b in parts), np.zeros_like(x))

    # U^H (U x), or L (L^H x)
    product = adjoint_times(factor, times(factor, vectors)) if upper else times(factor, adjoint_times(factor, vectors))
    size = sum(float(norm(wide(a[b]))) ** 2 for b in parts) ** 0.5
    others = (np.tril(factor[b], b.start - 1) if upper else np.triu(factor[b], b.start + 1) for b in parts)
    return float(norm(times(a, vectors) - product)) / size, not any(part.any() for part in others)


def small_enough(work: float) -> bool:
    """Whether to form the whole residual; if not, it is estimated with ``probes``."""
    return work <= _EXACT_WORK


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of ``count`` items of ``size`` numbers each, to be widened one slice after the other."""
    step = max(1, _BLOCK // size)
    return (slice(i, min(i + step, count)) for i in range(0, count, step))


def probes(n: int, dtype: Any) -> np.ndarray:
    """Vectors z of independent normal numbers, for which E ||R z||^2 = ||R||_F^2."""
    return np.asarray(np.random.default_rng(1).standard_normal((n, _PROBES)) / _PROBES**0.5, np.result_type(dtype, np.float64))


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.result_type(x.dtype, np.float64), copy=False)


def adjoint(x: Any) -> Any:
    return x.swapaxes(-1, -2).conj()


def norm(x: Any, axes: Any = (-2, -1)) -> Any:
    """The Frobenius norm, for arrays of any library."""
    return (abs(x) ** 2).sum(axes) ** 0.5
