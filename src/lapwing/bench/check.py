"""Is the factor right? In float64 or complex128, on the host, whatever computed it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["LIMIT", "Check", "check_factor"]

LIMIT = 10.0  # ||A - L L^H|| <= LIMIT n eps ||A||
_EXACT_WORK = 2e10  # batch n^3 up to which the whole residual is formed: a second or two
_PROBES = 8
_BLOCK = 2**22  # numbers widened at a time


@dataclass(frozen=True)
class Check:
    """``residual`` is the largest ||A - L L^H|| / (n eps ||A||) of the batch, in the Frobenius norm."""

    residual: float
    triangle_is_zero: bool
    estimated: bool = False  # from products with random vectors

    @property
    def ok(self) -> bool:
        return self.residual <= LIMIT and self.triangle_is_zero  # NaN is not ok

    def __str__(self) -> str:
        if not self.triangle_is_zero:
            return "the other triangle is not zero"
        kind = "estimated residual" if self.estimated else "residual"
        return f"{kind} {self.residual:.2g} n eps |A|, allowed {LIMIT:g}"


def check_factor(a: np.ndarray, factor: np.ndarray, *, upper: bool = False) -> Check:
    """Check A = L L^H, or A = U^H U with ``upper``, for a batch of Hermitian matrices with both triangles filled."""
    if factor.shape != a.shape or factor.dtype != a.dtype:
        return Check(float("inf"), True)
    n = a.shape[-1]
    if a.size == 0:
        return Check(0.0, True)
    matrices, factors = a.reshape(-1, n, n), factor.reshape(-1, n, n)
    estimated = len(matrices) * float(n) ** 3 > _EXACT_WORK
    pieces = _estimated(matrices, factors, upper) if estimated else _exact(matrices, factors, upper)
    relative, zero = zip(*pieces, strict=True)
    scale = n * float(np.finfo(a.dtype).eps)
    return Check(float(np.max(relative)) / scale, all(zero), estimated)


def _exact(a: np.ndarray, factor: np.ndarray, upper: bool) -> Iterator[tuple[float, bool]]:
    n = a.shape[-1]
    wide = np.result_type(a.dtype, np.float64)
    step = max(1, _BLOCK // n**2)
    for first in range(0, len(a), step):
        x = a[first : first + step].astype(wide)
        f = factor[first : first + step].astype(wide)
        lower = _adjoint(f) if upper else f
        with np.errstate(invalid="ignore", over="ignore"):
            residual = np.linalg.norm(x - lower @ _adjoint(lower), axis=(-2, -1)) / np.linalg.norm(x, axis=(-2, -1))
        yield float(np.max(residual)), not np.triu(lower, 1).any()


def _estimated(a: np.ndarray, factor: np.ndarray, upper: bool) -> Iterator[tuple[float, bool]]:
    """For x of independent normal numbers, E ||R x||^2 = ||R||_F^2; rows are widened block by block."""
    n = a.shape[-1]
    wide = np.result_type(a.dtype, np.float64)
    x = np.random.default_rng(1).standard_normal((n, _PROBES)).astype(wide)
    step = max(1, _BLOCK // n)
    blocks = [slice(i, min(i + step, n)) for i in range(0, n, step)]
    with np.errstate(invalid="ignore", over="ignore"):
        for matrix, f in zip(a, factor, strict=True):
            # F^H x and F x, both from rows of F: L (L^H x) or U^H (U x)
            def adjoint_times(y: np.ndarray, f: np.ndarray = f) -> np.ndarray:
                return sum((f[b].astype(wide).conj().T @ y[b] for b in blocks), np.zeros_like(x))

            def times(y: np.ndarray, f: np.ndarray = f) -> np.ndarray:
                return np.concatenate([f[b].astype(wide) @ y for b in blocks])

            product = adjoint_times(times(x)) if upper else times(adjoint_times(x))
            exact = np.concatenate([matrix[b].astype(wide) @ x for b in blocks])
            norm = np.sqrt(sum(np.linalg.norm(matrix[b].astype(wide)) ** 2 for b in blocks))
            zero = not any((np.tril(f[b], b.start - 1) if upper else np.triu(f[b], b.start + 1)).any() for b in blocks)
            yield float(np.linalg.norm(exact - product) / np.sqrt(_PROBES) / norm), zero


def _adjoint(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.conj(np.swapaxes(x, -1, -2)))
