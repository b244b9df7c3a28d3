"""The matrix in place, tile by tile: n x m numbers of output and a few tiles beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["DIRECT", "fill"]

# Up to this many coordinates the differences are summed one coordinate after the other, which is exact to the last digits and
# on a CPU takes 0.6 (d = 2) to 1.6 (d = 8) times as long as the product.
DIRECT = 8
# A product's squared distance has an error of a few eps (|x|^2 + |y|^2): below this share of it too few digits are left.
_CLOSE = 1e-4
_PAIR_NUMBERS = 2**20  # coordinates of close pairs gathered at a time


def fill(xp: Any, out: Any, x: Any, y: Any, formula: Callable[[Any, Any], Any], lengths: Any) -> None:
    """out[i, j] <- formula(|x_i - y_j|^2, lengths of i and j); ``y`` None: ``x`` with itself.

    ``lengths`` is a pair of vectors, |x_i| and |y_j|, or None for directions that all have length one.
    """
    same = y is None
    squares = _direct(x, x if same else y) if x.shape[1] <= DIRECT else _by_product(xp, x, x if same else y)
    for rows in _ranges(x.shape[0], xp.tile):
        for columns in _ranges(rows.stop if same else y.shape[0], xp.tile):
            d2 = squares(rows, columns)
            on_diagonal = same and rows.start == columns.start
            if on_diagonal:
                d2.reshape(-1)[:: d2.shape[0] + 1] = (x[rows] * 0).sum(-1)  # zero, or NaN for a point that is not finite
            size = 1.0
            if lengths is not None:
                r, c = lengths[0][rows, None], lengths[1][None, columns]
                d2 = xp.where((r == 0) | (c == 0), 2.0, d2)  # no direction: at a right angle to every other point
                size = r * c
            k = formula(d2, size)
            if on_diagonal:
                k = xp.tril(k) + xp.tril(k, -1).T
            out[rows, columns] = k
            if same and not on_diagonal:
                out[columns, rows] = k.T


def _ranges(n: int, step: int) -> Iterator[slice]:
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


def _direct(x: Any, y: Any) -> Callable[[slice, slice], Any]:
    def squares(rows: slice, columns: slice) -> Any:
        a, b = x[rows], y[columns]
        total = (a[:, :1] - b[:, :1].T) ** 2 if x.shape[1] else a @ b.T
        for k in range(1, x.shape[1]):
            difference = a[:, k, None] - b[None, :, k]
            difference *= difference
            total += difference
        return total

    return squares


def _by_product(xp: Any, x: Any, y: Any) -> Callable[[slice, slice], Any]:
    """|x|^2 + |y|^2 - 2 x.y on points shifted to their mean, in float64."""
    again = x.dtype == xp.float64
    p = xp.wide(x)
    centre = xp.where(xp.isfinite(p), p, 0.0).mean(0) if p.shape[0] else 0.0
    p = p - centre
    q = p if y is x else xp.wide(y) - centre
    pp, qq = (p * p).sum(-1), (q * q).sum(-1)

    def squares(rows: slice, columns: slice) -> Any:
        a, b = p[rows], q[columns]
        scale = pp[rows, None] + qq[None, columns]
        d2 = a @ b.T
        d2 *= -2
        d2 += scale
        if again:
            scale *= _CLOSE
            _repeat_close(xp, d2, a, b, d2 <= scale)
        return xp.clip(d2, 0.0, None)

    return squares


def _repeat_close(xp: Any, d2: Any, a: Any, b: Any, close: Any) -> None:
    i, j = xp.nonzero(close)
    step = max(1, _PAIR_NUMBERS // a.shape[1])
    for k in range(0, len(i), step):
        r, c = i[k : k + step], j[k : k + step]
        difference = a[r] - b[c]
        d2[r, c] = (difference * difference).sum(-1)
