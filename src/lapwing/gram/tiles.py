"""The matrix in place, tile by tile: memory for the n x m result and a few tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .expression import directions
from .formulas import Kernel

# Up to this many coordinates the differences are summed one coordinate after the other, which is exact to the last digits and
# on a CPU takes 0.6 (d = 2) to 1.6 (d = 8) times as long as the product.
DIRECT = 8
_CPU_TILE = 256  # half a MiB of float64 stays in the second cache: 1.3 to 1.5 times as fast as 512
_GPU_TILE = 4096
# A product in float64 gives squared distances with an error of a few eps (|x|^2 + |y|^2). Below this share of that sum too few
# digits are left for the result's dtype, and the pair is computed again from its differences.
_CLOSE = {"float64": 1e-4, "float32": 1e-7}
_PAIR_NUMBERS = 2**20  # coordinates of close pairs gathered at a time


def fill(xp: Any, out: Any, x: Any, y: Any, kernel: Kernel, numbers: tuple[Any, ...], on_gpu: bool = False) -> None:
    """out <- the kernel between the rows of ``x`` and ``y``; ``y`` None compares ``x`` with itself."""
    same = y is None
    x, y = x + x * 0, None if same else y + y * 0  # Inf becomes NaN, which then fills its row and column
    r: Any = None
    c: Any = None
    if kernel.directions:
        x, r = directions(xp, x)
        y, c = (None, r) if same else directions(xp, y)
    columns_of = x if same else y
    squares = _direct(x, columns_of) if x.shape[1] <= DIRECT else _by_product(xp, x, columns_of)
    tile = _GPU_TILE if on_gpu else _CPU_TILE
    for rows in _ranges(x.shape[0], tile):
        for columns in _ranges(rows.stop if same else y.shape[0], tile):
            d2 = squares(rows, columns)
            on_diagonal = same and rows.start == columns.start
            if on_diagonal:
                d2.reshape(-1)[:: d2.shape[0] + 1] = (x[rows] * 0).sum(-1)  # zero, or NaN for a point that is not finite
            lengths = 1.0
            if kernel.directions:
                a, b = r[rows, None], c[None, columns]
                d2 = xp.where((a == 0) | (b == 0), 2.0, d2)  # a zero point counts as at a right angle to every other
                lengths = a * b
            k = kernel(xp, d2, lengths, numbers)
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
    close = _CLOSE[str(x.dtype).rpartition(".")[2]]
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
        scale *= close
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
