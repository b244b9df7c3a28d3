"""A picture of the rank that owns each part of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layout import Layout

_MOST = 48  # tiles drawn with lines between them; more lines would make a grey square


def plot_layout(
    n: int | tuple[int, int], tile: int, grid: int | tuple[int, int], *, before: Layout | None = None, order: str = "R"
) -> tuple[Any, Any]:
    """Draw which rank owns which part of a matrix: as it is sharded, and in the tiles of the engines.

    Parameters
    ----------
    n : int or (m, n)
        Shape of the matrix.
    tile : int
    grid : int or (p, q)
        The number of ranks in one row, or the grid of ranks.
    before : Layout, optional
        How the matrix is sharded; by default one block for each rank, on the same grid.
    order : str
        "R": ranks are numbered along the rows of the grid; "C": down its columns.

    Returns
    -------
    figure, axes
        A matplotlib figure and its two axes.

    Examples
    --------
    >>> figure, axes = plot_layout(16, 2, (2, 2))  # doctest: +SKIP
    >>> figure.savefig("layout.png")  # doctest: +SKIP
    """
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plot_layout: matplotlib is not installed\nhint: pip install matplotlib") from None
    sizes: Any = (n, n) if np.ndim(n) == 0 else n
    shape = (int(sizes[0]), int(sizes[1]))
    if min(shape) < 1:
        raise ValueError(f"plot_layout: a matrix of shape {shape} has nothing to draw")
    after = Layout.cyclic(shape, tile, grid, order)
    first = Layout.blocks(shape, after.grid, order) if before is None else before
    if first.shape != after.shape:
        raise ValueError(f"plot_layout: before is a layout for shape {first.shape}, and the matrix has shape {after.shape}")
    p, q = after.grid
    figure = Figure(figsize=(9, 4.9), layout="constrained")
    axes = figure.subplots(1, 2)
    ranks = max(first.size, after.size)
    colours = ListedColormap([_colour(rank, ranks) for rank in range(ranks)])
    titles = (f"before: {first.grid[0]} x {first.grid[1]} blocks", f"after: tiles of {tile} on a {p} x {q} grid")
    for ax, layout, title in zip(axes, (first, after), titles, strict=True):
        owner = owners(layout)
        ax.imshow(owner, cmap=colours, vmin=-0.5, vmax=ranks - 0.5, interpolation="nearest", aspect="equal")
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("columns")
        ax.set_ylabel("rows")
        _lines(ax, owner, tile if layout is after else None)
        _names(ax, owner)
    return figure, axes


def owners(layout: Layout) -> np.ndarray:
    """The rank that owns each entry."""
    ranks = np.empty(layout.shape, int)
    for rank in range(layout.size):
        ranks[np.ix_(*layout.indices(rank))] = rank
    return ranks


def _colour(rank: int, ranks: int) -> tuple[float, float, float]:
    """A light colour, on which black numbers are readable, and which differs much from those of neighbours."""
    import colorsys

    return colorsys.hls_to_rgb((rank * 0.61803) % 1.0, 0.70 + 0.12 * (rank % 2), 0.55 + 0.2 * (rank * 7 % 3 == 0))


def _lines(ax: Any, owner: np.ndarray, tile: int | None) -> None:
    for axis, length in enumerate(owner.shape):
        change = np.flatnonzero(np.any(np.diff(owner, axis=axis) != 0, axis=1 - axis)) + 1
        edges = set(change.tolist()) | (set(range(tile, length, tile)) if tile and length / tile <= _MOST else set())
        for edge in edges:
            (ax.axhline if axis == 0 else ax.axvline)(edge - 0.5, color="white", linewidth=1.2 if edge in change else 0.4)


def _names(ax: Any, owner: np.ndarray) -> None:
    """Write the number of each rank into its first block."""
    size = 13 if owner.max() < 16 else 8
    for rank in range(int(owner.max()) + 1):
        places = np.argwhere(owner == rank)
        if not len(places):
            continue
        top, left = places[0]
        below = np.flatnonzero(owner[top:, left] != rank)
        right = np.flatnonzero(owner[top, left:] != rank)
        height = below[0] if len(below) else owner.shape[0] - top
        width = right[0] if len(right) else owner.shape[1] - left
        ax.text(left + width / 2 - 0.5, top + height / 2 - 0.5, str(rank), ha="center", va="center", fontsize=size)
