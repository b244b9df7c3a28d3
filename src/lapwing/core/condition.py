"""How near a matrix is to a singular one, from a few products with its inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["one_norm"]


def one_norm(times: Callable[[np.ndarray, bool], np.ndarray], n: int, dtype: Any) -> float:
    """Hager's estimate of the 1-norm of what ``times(x, adjoint)`` multiplies by: climb from column to column.

    Last comes Higham's vector, 1, -(1 + 1/n), 1 + 2/n, ..., for the matrices where the climb stops at the start.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing.core.condition import one_norm
    >>> a = np.array([[1.0, -3.0], [2.0, 4.0]])
    >>> one_norm(lambda x, adjoint: (a.T if adjoint else a) @ x, 2, float)
    7.0
    """
    x, best = np.full(n, 1 / n, dtype), 0.0
    for _ in range(4):
        y = times(x, False)
        size = np.abs(y)
        best = max(best, float(size.sum(dtype=float)))
        climbed = np.abs(times(np.where(size == 0, 1, y / np.where(size == 0, 1, size)).astype(dtype), True))
        x = np.zeros(n, dtype)
        x[np.argmax(climbed)] = 1
    place = np.arange(n)
    x = ((1 - 2 * (place % 2)) * (1 + place / max(n - 1, 1))).astype(dtype)
    return max(best, 2 * float(np.abs(times(x, False)).sum(dtype=float)) / (3 * n))
