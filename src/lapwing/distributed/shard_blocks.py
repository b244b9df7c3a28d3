"""Blocks inside the user's shard_map: the matrix that they are part of, and checks."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..core.checks import check_choice, check_flag, check_matrix
from .backends.xla.panels import Panels, panels, panels_of_width
from .placement import Grid


def cyclic(name: str, a: Any, axis_name: Any, width: int, split: str) -> tuple[Grid, Panels]:
    check_choice(name, "split", split, ("columns", "rows"))
    check_width(name, width)
    grid = Grid((), axes_of(name, axis_name))
    return grid, panels_of_width(a.shape[1 if split == "columns" else 0] * grid.size, grid.size, width)


def square(name: str, a: Any, axis_name: Any, width: int | None, upper: Any = False) -> tuple[Grid, Panels]:
    import jax

    check_matrix(name, tuple(a.shape), str(a.dtype))
    check_flag(name, "upper", upper)
    axes = axes_of(name, axis_name)
    size = prod(count for _, count in axes)
    rows, columns = a.shape
    grid = None
    if rows * size == columns:
        grid, n = Grid(axes, ()), columns
    elif columns * size == rows:
        grid, n = Grid((), axes), rows
    elif len(axes) == 2 and rows * axes[0][1] == columns * axes[1][1]:
        grid, n = Grid(axes[:1], axes[1:]), rows * axes[0][1]
    if grid is None or n == 0:
        sizes = " x ".join(str(count) for _, count in axes)
        raise ValueError(
            f"{name}: a block of shape {tuple(a.shape)} is not part of a square matrix split over {sizes} devices"
            "\nhint: split rows or columns over all axes, or rows over the first and columns over the second"
        )
    check_width(name, width)
    return grid, panels(n, size, jax.default_backend()) if width is None else panels_of_width(n, size, width)


def dense(name: str, a: Any, axis_name: Any, tall_only: bool = False) -> tuple[Grid, Panels | None]:
    """The grid and panels of the matrix; no panels if each device has at least as many rows as there are columns.

    ``tall_only``: refuse matrices with fewer rows than columns.
    """
    import jax

    check_matrix(name, tuple(a.shape), str(a.dtype))
    axes = axes_of(name, axis_name)
    if a.shape[0] >= a.shape[1]:
        return Grid(axes, ()), None
    grid = Grid(axes, ())
    if len(axes) == 2 and a.shape[0] * axes[0][1] == a.shape[1] * axes[1][1]:
        grid = Grid(axes[:1], axes[1:])
    m, n = a.shape[0] * grid.p, a.shape[1] * grid.q
    if tall_only and m < n:
        raise ValueError(f"{name}: the matrix has fewer rows than columns, {m} and {n}\nhint: pass its conjugate transpose")
    return grid, panels(n, grid.size, jax.default_backend())


def axes_of(name: str, axis_name: Any) -> tuple[tuple[str, int], ...]:
    from jax import lax

    names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    if not names:
        raise ValueError(f"{name}: axis_name={axis_name!r} names no axis of the mesh")
    try:
        # the sum of a constant is known at once
        return tuple((each, int(lax.psum(1, each))) for each in names)
    except NameError:
        raise ValueError(
            f"{name}: axis_name={axis_name!r} is no axis of a jax.shard_map around this call"
            "\nhint: outside of shard_map the functions of lapwing itself take sharded arrays"
        ) from None


def check_width(name: str, width: Any) -> None:
    if width is not None and (isinstance(width, bool) or not isinstance(width, (int, np.integer)) or width < 1):
        raise ValueError(f"{name}: width={width!r} is not a positive number of columns")


def right_grid(name: str, b: Any, grid: Grid, n: int, split: str) -> Grid | None:
    axes = grid.rows + grid.columns
    check_choice(name, "b_split", split, ("auto", "none", "rows", "columns"))
    if split == "auto":
        split = "none" if b.shape[0] == n else "rows"
    if b.shape[0] != (n // grid.size if split == "rows" else n):
        raise ValueError(
            f"{name}: the matrix has {n} rows over {grid.size} devices, which does not match b with {b.shape[0]} on this device"
        )
    return {"none": None, "rows": Grid(axes, ()), "columns": Grid((), axes)}[split]


def method_of(name: str, assume: str) -> Any:
    """The module that factors such matrices."""
    from .backends.xla.factored import METHODS

    check_choice(name, "assume", assume, ("pos", "general"))
    return METHODS["pos" if assume == "pos" else "lu"]
