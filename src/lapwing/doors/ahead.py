"""Where lapwing is ahead of the other libraries: the one place that the doors ask.

Each row gives the largest order (of the longer side) and the least number of elements in all matrices together; with fewer the
cost of a call outweighs the gain. On the CPU they were measured through the doors against torch 2.13, NumPy 2.4 and SciPy 1.17
(x86-64-v4, one thread, 2026-11-16; orders 3 to 64, batches of 8, 64 and 1,000; float32, float64, complex128): lapwing is 1.2 to
50 times as fast in these cells. On CUDA the rows follow the tables of docs/performance.md. "cholesky_ex" is torch's, whose
factor has to be in column-major memory.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ..core.native import native


class Cells(NamedTuple):
    largest_order: int
    least_elements: int


AHEAD = {
    ("cholesky", "cpu"): Cells(32, 4_000),
    ("cholesky_ex", "cpu"): Cells(32, 30_000),
    ("eig", "cpu"): Cells(64, 1_000),
    ("eigh", "cpu"): Cells(32, 1_000),
    ("eigvals", "cpu"): Cells(64, 1_000),
    ("eigvalsh", "cpu"): Cells(32, 1_000),
    ("expm", "cpu"): Cells(8, 4_000),
    ("inv", "cpu"): Cells(32, 4_000),
    ("qr", "cpu"): Cells(32, 4_000),
    ("schur", "cpu"): Cells(64, 1_000),
    ("slogdet", "cpu"): Cells(32, 4_000),
    ("solve", "cpu"): Cells(32, 4_000),
    ("svd", "cpu"): Cells(16, 4_000),
    ("svdvals", "cpu"): Cells(8, 4_000),
    ("cholesky", "cuda"): Cells(1024, 10_000),
    ("cholesky_ex", "cuda"): Cells(1024, 10_000),
    ("eigh", "cuda"): Cells(32, 4_000),
    ("eigvalsh", "cuda"): Cells(32, 4_000),
    ("inv", "cuda"): Cells(32, 4_000),
    ("qr", "cuda"): Cells(32, 4_000),
    ("svd", "cuda"): Cells(32, 4_000),
    ("svdvals", "cuda"): Cells(32, 4_000),
}


def ahead(operation: str, device: str, shape: tuple[int, ...]) -> bool:
    """Whether lapwing is known to be faster than the library's function for a batch of this shape, in each dtype it has."""
    cells = AHEAD.get((operation, device))
    if cells is None or native is None or prod(shape) < cells.least_elements:
        return False
    return max(shape[-2:]) <= cells.largest_order
