"""The sizes of panels and blocks within a limit of memory, and the time of a call with these sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.plan import bytes_in_words

# Rates of the model, in flop/s (float64; float32 counts twice on the CPU) and bytes/s. H200: large products in float64 (61
# Tflop/s with nothing else running), and the bus through pinned buffers (52 GB/s, 44 if 12 threads fill them). CPU: two
# cores. Disk: a solid-state one. None of them is measured on the user's machine.
FLOPS = {"cuda": 55e12, "cpu": 60e9}
BUS = 44e9
DISK = 1.5e9
_PANELS = 8  # at least, on the CPU: reading the first one, which overlaps with nothing, must stay a small part
_BLOCK = {"cpu": 256, "cuda": 512}  # columns of a panel that are finished together
_BLOCK_BYTES = 1 << 26  # of a block that is sent to a GPU: for a quarter of it, half the time went to starting threads
_ROWS_BYTES = 1 << 27  # of a block of rows: not more, as allocating pinned memory takes time
_SHARE = 0.9  # of the limit, for the buffers; the libraries get the rest


@dataclass(frozen=True)
class Sizes:
    """Sizes of the buffers of a call, in rows or columns."""

    panel: int  # columns that are factored together
    chunk: int  # rows of a block of a finished panel
    block: int  # columns of a panel that are finished together
    slots: int  # blocks that are read ahead
    bytes: int  # all buffers


class TooSmall(ValueError):
    """No panel fits."""


def factor_sizes(name: str, n: int, itemsize: int, memory: int, on_gpu: bool, pos: bool, speed: float = BUS) -> Sizes:
    """Panel and blocks of a factorisation whose blocks arrive at ``speed``; ``pos``: Cholesky, which also keeps the rows of the
    diagonal block."""
    slots = 4 if on_gpu else 3
    block = _BLOCK["cuda" if on_gpu else "cpu"]
    widest = n if n <= 256 or on_gpu else max(256, _rounded(math.ceil(n / _PANELS), block))

    limit = int(memory * _SHARE)

    def need(width: int) -> tuple[int, int]:
        chunk = min(1024, width // (8 if on_gpu else 4))
        if on_gpu:
            line = width * itemsize
            chunk = max(chunk, min(4096, _BLOCK_BYTES // line, limit // (4 * slots * line)))
        chunk = min(n, max(16, chunk))
        elements = n * width + (width * width if pos and width < n else 0)
        # on the host products and triangular solves need copies of a block
        elements += (slots + (0 if on_gpu else 4)) * chunk * width
        return elements * itemsize, chunk

    low, high = 0, max(1, min(widest, n))
    while low < high:  # the widest panel that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if need(middle)[0] <= limit else (low, middle - 1)
    if low == 0 or low < min(n, 8):
        least = int(4 / 3 * need(min(n, 8))[0] / _SHARE) + 1  # blocks may take a quarter
        raise TooSmall(
            f"{name}: memory={bytes_in_words(memory)} is too small for a matrix of order {n}\nhint: at least memory={least}"
        )
    width = _rounded_down(low, block) if low > block else low
    if on_gpu and low > block:  # the widest panel moves the fewest bytes, narrow ones hide more of the reading
        narrower = {min(width, _rounded(math.ceil(n / count), block)) for count in range(1, 17)}
        width = min(narrower | {width}, key=lambda width: sum(factor_seconds(n, width, itemsize, pos, FLOPS["cuda"], speed)))
    total, chunk = need(width)
    return Sizes(width, chunk, min(block, width), slots, total)


def factor_seconds(n: int, width: int, itemsize: int, pos: bool, rate: float, speed: float) -> tuple[float, float]:
    """Seconds of the updates from the left, including reading that does not overlap, and of the panels themselves."""
    left = panels = 0.0
    for k in range(0, n, width):
        count = min(width, n - k)
        rows = n - k if pos else n  # of the panel
        finished = k * (n - k) if pos else k * n - k * k / 2  # elements that are read again
        left += max((finished + rows * count) * itemsize / speed, 2 * finished * count / rate)
        panels += (n - k) * count * count / rate
    return left, panels


def row_sizes(name: str, n: int, columns: int, itemsize: int, memory: int, on_gpu: bool, copies: int = 2) -> tuple[Sizes, int]:
    """Rows of a block for passes over a matrix with ``columns`` vectors of length n, and how many vectors at a time.

    ``copies``: how many copies of the vectors are kept.
    """
    slots = 3 if on_gpu else 2
    limit = int(memory * _SHARE) // itemsize
    vectors = max(1, min(columns, (limit // 2) // max(1, copies * n)))
    rows = (limit - copies * n * vectors) // max(1, (slots + 1) * n)
    if rows < 1:
        least = int(itemsize * n * (slots + 7) / _SHARE)
        raise TooSmall(
            f"{name}: memory={bytes_in_words(memory)} is too small for rows of length {n}\nhint: at least memory={least}"
        )
    rows = min(rows, max(n, 1), 1024, max(64, _ROWS_BYTES // max(1, n * itemsize)))
    total = (copies * n * vectors + (slots + 1) * n * rows) * itemsize
    return Sizes(rows, rows, rows, slots, total), vectors


def _rounded(x: int, step: int) -> int:
    return -(-x // step) * step


def _rounded_down(x: int, step: int) -> int:
    return x // step * step


def tall_rows(name: str, m: int, n: int, itemsize: int, memory: int) -> int:
    """Rows of a block of a tall matrix, which is factored together with R and copied a few times."""
    limit = int(memory * _SHARE) // itemsize
    rows = (limit - 6 * n * n) // max(1, 6 * n)
    if rows < min(n, m):
        least = int(12 * n * n * itemsize / _SHARE) + 1
        raise TooSmall(
            f"{name}: memory={bytes_in_words(memory)} is too small for a tall matrix with {n} columns\nhint: at least"
            f" memory={least}"
        )
    return max(1, min(rows, m))
