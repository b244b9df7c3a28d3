"""Sizes of tiles and grids: how many rows a rank gets, which tiles fit, which grid is best. Only arithmetic."""

from __future__ import annotations

from functools import lru_cache
from math import lcm

import numpy as np


def numroc(n: int, tile: int, part: int, parts: int) -> int:
    """The number of rows of ``part``, when n rows in tiles go to ``parts`` in turn.

    Examples
    --------
    >>> [numroc(10, 2, part, 3) for part in range(3)]
    [4, 4, 2]
    """
    tiles, remainder = divmod(n, tile)
    rounds, extra = divmod(tiles, parts)
    return rounds * tile + (tile if part < extra else remainder if part == extra else 0)


def global_indices(n: int, tile: int, part: int, parts: int) -> np.ndarray:
    """The indices of these rows, in the order in which ``part`` holds them.

    Examples
    --------
    >>> global_indices(10, 2, 1, 3).tolist()
    [2, 3, 8, 9]
    """
    count = numroc(n, tile, part, parts)
    local = np.arange(count)
    return (local // tile * parts + part) * tile + local % tile


def block_sizes(n: int, parts: int) -> tuple[int, ...]:
    """n rows in contiguous blocks, as even as possible, the longer ones first (as ``numpy.array_split``).

    Examples
    --------
    >>> block_sizes(10, 4)
    (3, 3, 2, 2)
    """
    each, extra = divmod(n, parts)
    return tuple(each + (part < extra) for part in range(parts))


def valid_tiles(n: int, grid: int | tuple[int, int], *, exchange: bool = False) -> tuple[int, ...]:
    """Tiles with which n rows need no padding: every row and column of the grid owns the same number of whole tiles.

    Parameters
    ----------
    n : int
        Order of the matrix.
    grid : int or (p, q)
        The number of ranks in one row, or the grid of ranks.
    exchange : bool
        Also require that one all-to-all makes a block layout cyclic: each rank has equally many tiles for each other rank.

    Returns
    -------
    tuple of int
        Ascending. Empty if n cannot be divided among the ranks: see :func:`padding`.

    Examples
    --------
    >>> valid_tiles(24, 2)
    (1, 2, 3, 4, 6, 12)
    >>> valid_tiles(24, (2, 3))
    (1, 2, 4)
    >>> valid_tiles(24, 2, exchange=True)
    (1, 2, 3, 6)
    """
    p, q = grid_of(grid)
    parts = lcm(p * p, q * q) if exchange else lcm(p, q)
    if n <= 0 or n % parts:
        return ()
    share = n // parts
    small = [d for d in range(1, int(share**0.5) + 1) if share % d == 0]
    return tuple(sorted({*small, *(share // d for d in small)}))


def padding(n: int, tile: int, grid: int | tuple[int, int], *, exchange: bool = False) -> int:
    """Rows to add to n so that ``tile`` is one of the :func:`valid_tiles`.

    Examples
    --------
    >>> padding(10, 4, 2)
    6
    """
    p, q = grid_of(grid)
    return -n % (tile * (lcm(p * p, q * q) if exchange else lcm(p, q)))


# Each rank should own several tiles, or the ranks wait for each other. CPU: the time is flat from 64 to 128 on 2 cores
# (n = 2000 and 4000, 2026-11-15). GPU: larger tiles are better for factorisations, smaller ones for the reduction to
# tridiagonal form, according to the published runs of JAXMg on cuSOLVERMp.
_TILES = {
    "scalapack": {"": 64, "cholesky": 128, "solve": 128, "inv": 128, "slogdet": 128, "factor": 128},
    "elpa": {"": 32},
    "cusolvermp": {"": 1024, "eigh": 256, "eigvalsh": 256, "svd": 1024},
    "sharded": {"": 128},
}
_TILES_EACH = 4


def default_tile(n: int, grid: int | tuple[int, int], operation: str = "", engine: str = "scalapack") -> int:
    """The default tile of an engine for an operation (its public name); every row and column of the grid owns at least one.

    For few rows the tile shrinks until each rank has some; it is 1 if n is smaller than the grid: see :func:`best_grid`.

    Examples
    --------
    >>> default_tile(10000, (2, 2), "cholesky"), default_tile(100, (2, 2), "cholesky"), default_tile(3, (2, 2))
    (128, 8, 1)
    """
    tiles = _TILES[engine]
    wanted = tiles.get(operation, tiles[""])
    parts = max(grid_of(grid))
    if n >= wanted * parts * _TILES_EACH:
        return wanted
    small = max(n // (parts * _TILES_EACH), 1)
    return min(1 << (small.bit_length() - 1), wanted)


@lru_cache(maxsize=256)
def best_grid(ranks: int, rows: int, columns: int) -> tuple[int, int]:
    """p x q with p q <= ranks: nearly all ranks, blocks as square as possible, no rank without a row or a column.

    Examples
    --------
    >>> best_grid(6, 1000, 1000), best_grid(7, 1000, 1000), best_grid(8, 100000, 100), best_grid(6, 1, 1)
    ((2, 3), (1, 7), (8, 1), (1, 1))
    """

    def cost(p: int, q: int) -> tuple[float, int]:
        aspect = (max(rows, 1) / p) / (max(columns, 1) / q)
        # work per rank, and messages along the longer side of a block, whose weight grows with the ranks
        return (1 + 0.02 * max(aspect, 1 / aspect)) / (p * q), p

    most = max(rows, 1), max(columns, 1)
    pairs = {(p, min(ranks // p, most[1])) for p in range(1, min(ranks, most[0]) + 1)}
    return min(pairs, key=lambda pair: cost(*pair))


def grid_of(grid: int | tuple[int, int]) -> tuple[int, int]:
    p, q = (1, grid) if isinstance(grid, int) else grid
    if p < 1 or q < 1:
        raise ValueError(f"layout: grid={grid!r} has no ranks\nhint: use a number of ranks, or (rows, columns)")
    return p, q
