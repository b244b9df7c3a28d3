"""The matrix as an expression, for libraries that differentiate or compile: JAX, TensorFlow, torch with gradients.

A symmetric matrix is assembled from block rows of its lower triangle: half the work, and exact symmetry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .formulas import Kernel

_LEAST_ROWS = 512
_MOST_BLOCKS = 16  # each is compiled or recorded separately


def build(xp: Any, x: Any, y: Any, kernel: Kernel, numbers: tuple[Any, ...]) -> Any:
    """The kernel between the rows of ``x`` and ``y``; ``y`` None compares ``x`` with itself."""
    x, y = x + x * 0, None if y is None else y + y * 0  # Inf becomes NaN, which then fills its row and column
    r = c = None
    if kernel.directions:
        x, r = directions(xp, x)
        y, c = (None, r) if y is None else directions(xp, y)

    def block(rows: Any, columns: Any, r: Any, c: Any, diagonal: bool = False) -> Any:
        """With ``diagonal`` the last columns are the rows themselves."""
        d2 = xp.squared_distances(rows, columns)
        if diagonal:
            d2 = _zero_diagonal(xp, d2, xp.sum(rows * 0))
        if r is None:
            return kernel(xp, d2, 1.0, numbers)
        r, c = r[:, None], c[None, :]
        return kernel(xp, xp.where((r == 0) | (c == 0), 2.0, d2), r * c, numbers)

    if y is not None:
        return block(x, y, r, c)
    n = x.shape[0]
    if not isinstance(n, int):  # a graph of unknown size
        return xp.mirror(block(x, x, r, r, diagonal=True))
    step = max(_LEAST_ROWS, -(-n // _MOST_BLOCKS))
    bands = []
    for i in range(0, n, step):
        end = min(i + step, n)
        a, b = (None, None) if r is None else (r[i:end], r[:end])
        bands.append((i, block(x[i:end], x[:end], a, b, diagonal=True)))
    return xp.assemble(n, bands) if bands else block(x, x, r, r)


def directions(xp: Any, x: Any) -> tuple[Any, Any]:
    """Points divided by their lengths, and the lengths. A zero point stays zero, with derivative zero."""
    largest = xp.stop_gradient(xp.largest(x))
    scaled = x / xp.where(largest == 0, 1.0, largest)
    size = xp.root(xp.sum(scaled * scaled))
    return scaled / xp.where(size == 0, 1.0, size), (largest * size)[:, 0]


def _zero_diagonal(xp: Any, d2: Any, zeros: Any) -> Any:
    """Put ``zeros`` (NaN for a point that is not finite) on the diagonal."""
    rows, columns = xp.shape(d2)
    itself = xp.arange(rows, d2)[:, None] + (columns - rows) == xp.arange(columns, d2)[None, :]
    return xp.where(itself, zeros, d2)


def join_bands(concat: Any, transpose: Any, mirror: Any, n: int, bands: list[tuple[int, Any]]) -> Any:
    """The symmetric matrix whose lower triangle consists of these block rows, each given with its first row's index."""
    rows = []
    bounds = [*[start for start, _ in bands], n]
    for place, (start, band) in enumerate(bands):
        end = bounds[place + 1]
        right = [transpose(other[:, start:end]) for _, other in bands[place + 1 :]]
        rows.append(concat([band[:, :start], mirror(band[:, start:]), *right], 1))
    return concat(rows, 0)


def safe_root(where: Callable[..., Any], sqrt: Callable[..., Any], x: Any) -> Any:
    """sqrt(x), with derivative 0 at 0."""
    zero = x == 0
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


def safe_power(where: Callable[..., Any], power: Callable[..., Any], x: Any, p: Any) -> Any:
    """x^p, with derivative 0 at 0."""
    zero = x == 0
    return where(zero, 0.0, power(where(zero, 1.0, x), p))
