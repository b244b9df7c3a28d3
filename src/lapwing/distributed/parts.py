"""Helpers of :mod:`.matrix`: checks of a block, the layout that blocks form, and moving blocks of the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.memory import matrix_memory, on_device
from ..core.problem import DTYPES
from .exchange import exchange
from .layout import Axis, Layout

__all__ = ["blocks_layout", "checked", "dtype_of", "layout_for", "misfit", "move", "on_one", "room"]


def checked(name: str, local: Any) -> Any:
    """The block, if it is a matrix of a supported dtype on the host or on a GPU."""
    device = on_device(local)
    if not device and (not isinstance(local, np.ndarray) or isinstance(local, np.ma.MaskedArray)):
        raise TypeError(
            f"{name}: expected a NumPy array or one on a GPU, got {type(local).__module__}.{type(local).__qualname__}"
            "\nhint: use numpy.asarray(block); torch DTensors and sharded JAX arrays go to lapwing's functions as they are"
        )
    try:
        block = matrix_memory(local) if device else local
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}") from None
    if block.dtype.name not in DTYPES or not block.dtype.isnative:
        raise TypeError(f"{name}: dtype {block.dtype} is not supported\nhint: use one of {', '.join(DTYPES)}")
    if len(block.shape) != 2:
        raise ValueError(f"{name}: expected a block of shape (rows, columns), got shape {block.shape}")
    return local


def dtype_of(local: Any) -> np.dtype:
    """As a NumPy dtype."""
    return local.dtype if isinstance(local.dtype, np.dtype) else np.dtype(str(local.dtype).rpartition(".")[2])


def layout_for(name: str, shape: tuple[int, ...], layout: Layout | None, ranks: Any) -> Layout:
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"{name}: shape {shape!r} is not (rows, columns)")
    if layout is None:
        return Layout.rows_of((shape[0], shape[1]), ranks.size)
    error = misfit(name, shape, layout, ranks)
    if error is not None:
        raise error
    return layout


def misfit(name: str, shape: tuple[int, ...], layout: Layout, ranks: Any) -> Exception | None:
    if not isinstance(layout, Layout):
        return TypeError(f"{name}: expected a Layout, got {layout!r}\nhint: lapwing.distributed.Layout.rows_of(shape, ranks)")
    if layout.shape != tuple(shape):
        return ValueError(f"{name}: the layout is for shape {layout.shape}, and the matrix has shape {tuple(shape)}")
    if layout.size > ranks.size:
        return ValueError(f"{name}: the layout ({layout}) needs {layout.size} ranks, and there are {ranks.size}")
    return None


def blocks_layout(name: str, shapes: list[tuple[int, int]], grid: tuple[int, int]) -> Layout:
    """The layout of blocks of these shapes (by rank) on a grid, row by row."""
    p, q = grid
    rows, columns = [shapes[i * q][0] for i in range(p)], [shapes[j][1] for j in range(q)]
    for rank, shape in enumerate(shapes):
        i, j = divmod(rank, q)
        if shape != (rows[i], columns[j]):
            equal = "columns" if q == 1 else "rows" if p == 1 else "rows in a row of the grid, and columns in a column of it"
            raise ValueError(
                f"{name}: blocks of shapes {shapes[0]} on rank 0 and {shape} on rank {rank} do not fit a {p} x {q} grid"
                f"\nhint: blocks must have the same number of {equal}; also empty ones, such as numpy.empty((0, n))"
            )
    return Layout(Axis.blocks(rows), Axis.blocks(columns))


def room(name: str, shape: tuple[int, int], dtype: Any) -> tuple[np.ndarray, Exception | None]:
    """New memory, and the error if there is none: the other ranks must know it before anything is sent."""
    try:
        return np.empty(shape, dtype), None
    except MemoryError as full:
        return np.empty((0, 0), dtype), MemoryError(f"{name}: {full}\nhint: use parts of it: .local, or .redistribute")


def on_one(shape: tuple[int, int], root: int, size: int) -> Layout:
    """The layout with the whole matrix on one rank."""
    return Layout(Axis.blocks([shape[0] if rank == root else 0 for rank in range(size)]), Axis.whole(shape[1]))


def move(ranks: Any, source: np.ndarray, layout: Layout, target: np.ndarray, to: Layout) -> None:
    """``target`` <- ``source``, blocks of the host in two layouts. Collective."""
    if ranks.size > 1 and not hasattr(ranks, "isend"):  # all ranks alike
        raise TypeError(
            "ShardedMatrix: moving blocks of the host needs MPI\nhint: use an mpi4py communicator, or blocks on GPUs"
        )
    exchange(ranks, source, layout, target, to)
