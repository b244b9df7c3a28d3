"""How near a matrix is to a singular one, from a few products with its inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def one_norm(xp: Any, like: Any, times: Callable[[Any, bool], Any]) -> Any:
    """Hager's estimate of the 1-norm of the matrix that ``times(x, adjoint)`` multiplies by: climb from column to column.

    ``like`` is any array of the shape of x, (..., n, 1). For matrices where the climb stops at the start, Higham's vector
    1, -(1 + 1/n), 1 + 2/n, ... is tried at the end.
    """
    n = xp.order(like[..., 0])
    x = (xp.zeros_like(like) + 1) / n
    best = None
    for _ in range(4):
        y = times(x, False)
        size = xp.abs(y)
        norm = _sum_in_range(xp, size)
        best = norm if best is None else xp.where(norm > best, norm, best)
        y, size, _ = raise_subnormal(xp, y)
        plain = (size == 0) | ~xp.isfinite(size)
        with xp.quiet():  # Inf and NaN are replaced
            sign = xp.where(plain, xp.ones_like(y), y / xp.like(xp.where(plain, xp.ones_like(size), size), y))
        x = xp.one_hot(xp.argmax(xp.abs(times(sign, True))[..., 0], -1), like)
    index = xp.places(xp.whole(xp.zeros_like(xp.real(like[..., 0]))))
    # divided by its own norm, so that no product of it is larger than the answer
    x = xp.like(1 - 2 * (index % 2), like) * (1 + xp.like(index, like) / n) * 2 / (3 * n - 1)
    norm = _sum_in_range(xp, xp.abs(times(x[..., None], False)))
    return xp.where(norm > best, norm, best)


def raise_subnormal(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """Multiply subnormal elements by a power of two, as their sizes would have few digits.

    Returns x, the sizes of its elements, and the logarithm of each element's factor.
    """
    size = xp.abs(x)
    limits = np.finfo(xp.dtype_name(size))
    one, factor = xp.ones_like(size), float(limits.eps) ** -2
    small = size < float(limits.tiny / limits.eps)
    x = x * xp.like(xp.where(small, one * factor, one), x)
    return x, xp.abs(x), xp.where(small, one * float(np.log(factor)), 0 * one)


def _sum_in_range(xp: Any, sizes: Any) -> Any:
    """The sum of each column; Inf where it is not finite, as a solve that overflows may give NaN."""
    total = xp.sum(sizes, -2)[..., 0]
    return xp.where(xp.isfinite(total), total, xp.zeros_like(total) + np.inf)
