"""The matrix as an expression, for libraries that differentiate or compile: JAX, TensorFlow, torch with gradients.

Symmetric matrices are made of block rows of the lower triangle, so that half the work is done and the symmetry is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["build", "safe_power", "safe_root"]

_LEAST_ROWS = 512
_MOST_BLOCKS = 16  # each is compiled or recorded apart


def build(xp: Any, x: Any, y: Any, formula: Callable[[Any, Any], Any], directions: bool) -> Any:
    """formula(|x_i - y_j|^2, |x_i| |y_j|); ``y`` None: ``x`` with itself."""
    r = c = None
    if directions:
        x, r = _directions(xp, x)
        y, c = (None, r) if y is None else _directions(xp, y)
    if y is not None:
        return _block(xp, x, y, formula, r, c)
    n = x.shape[0]
    if not isinstance(n, int):  # not known before it runs
        return xp.mirror(_block(xp, x, x, formula, r, c, diagonal=True))
    step = max(_LEAST_ROWS, -(-n // _MOST_BLOCKS))
    starts = range(0, n, step)
    bands = []
    for i in starts:
        end = min(i + step, n)
        a, b = (None, None) if r is None else (r[i:end], r[:end])
        band = _block(xp, x[i:end], x[:end], formula, a, b, diagonal=True)
        bands.append((i, band))
    return xp.assemble(n, bands) if bands else _block(xp, x, x, formula, r, r)


def _block(xp: Any, x: Any, y: Any, formula: Callable[[Any, Any], Any], r: Any, c: Any, diagonal: bool = False) -> Any:
    """Rows against columns; with ``diagonal`` the last rows of the columns are the rows."""
    d2 = xp.squared_distances(x, y)
    if diagonal:
        d2 = xp.zero_diagonal(d2)
    if r is None:
        return formula(d2, 1.0)
    r, c = r[:, None], c[None, :]
    return formula(xp.where((r == 0) | (c == 0), 2.0, d2), r * c)


def _directions(xp: Any, x: Any) -> tuple[Any, Any]:
    """Points over their lengths, and the lengths; a zero point stays zero, with derivative zero."""
    largest = xp.stop_gradient(xp.largest(x))
    scaled = x / xp.where(largest == 0, 1.0, largest)
    size = xp.root(xp.sum(scaled * scaled))
    return scaled / xp.where(size == 0, 1.0, size), (largest * size)[:, 0]


def safe_root(where: Any, sqrt: Any, x: Any) -> Any:
    """sqrt(x), with derivative 0 at 0."""
    zero = x == 0
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


def safe_power(where: Any, power: Any, x: Any, p: Any) -> Any:
    """x^p, with derivative 0 at 0."""
    zero = x == 0
    return where(zero, 0.0, power(where(zero, 1.0, x), p))
