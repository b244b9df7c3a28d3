"""The parts of :mod:`sharded`: what a block must be, which layout blocks make, and how blocks on the host move."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.memory import matrix_memory, on_device
from ..core.problem import DTYPES
from .exchange import exchange
from .layout import Axis, Layout

__all__ = ["blocks_layout", "checked", "dtype_of", "layout_for", "misfit", "move", "on_one", "room"]


def checked(name: str, local: Any) -> Any:
    there = on_device(local)
    if not there and (not isinstance(local, np.ndarray) or isinstance(local, np.ma.MaskedArray)):
        raise TypeError(
            f"{name}: expected a NumPy array or one on a GPU, got {type(local).__module__}.{type(local).__qualname__}"
            "\nhint: numpy.asarray(block); torch DTensors and JAX arrays with a NamedSharding are taken as they are"
        )
    try:
        block = matrix_memory(local) if there else local
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}") from None
    if block.dtype.name not in DTYPES or not block.dtype.isnative:
        raise TypeError(f"{name}: dtype {block.dtype} is not supported\nhint: use one of {', '.join(DTYPES)}")
    if len(block.shape) != 2:
        raise ValueError(f"{name}: expected a block of shape (rows, columns), got shape {block.shape}")
    return local


def dtype_of(local: Any) -> np.dtype:
    """As NumPy has it; torch has names of its own."""
    return local.dtype if isinstance(local.dtype, np.dtype) else np.dtype(str(local.dtype).rpartition(".")[2])


def layout_for(name: str, shape: tuple[int, ...], layout: Layout | None, ranks: Any) -> Layout:
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"{name}: shape {shape!r} is not (rows, columns)")
    if layout is None:
        return Layout.rows_of((shape[0], shape[1]), ranks.size)
    wrong = misfit(name, shape, layout, ranks)
    if wrong is not None:
        raise wrong
    return layout


def misfit(name: str, shape: tuple[int, ...], layout: Layout, ranks: Any) -> Exception | None:
    if not isinstance(layout, Layout):
        return TypeError(f"{name}: expected a Layout, got {layout!r}\nhint: lapwing.distributed.Layout.rows_of(shape, ranks)")
    if layout.shape != tuple(shape):
        return ValueError(f"{name}: the layout is for shape {layout.shape}, and the matrix has shape {tuple(shape)}")
    if layout.size > ranks.size:
        return ValueError(f"{name}: the layout ({layout}) wants {layout.size} ranks, and there are {ranks.size}")
    return None


def blocks_layout(name: str, shapes: list[tuple[int, int]], grid: tuple[int, int]) -> Layout:
    """The layout of blocks of these shapes, by rank, on a grid that goes along its rows."""
    p, q = grid
    rows, columns = [shapes[i * q][0] for i in range(p)], [shapes[j][1] for j in range(q)]
    for rank, shape in enumerate(shapes):
        i, j = divmod(rank, q)
        if shape != (rows[i], columns[j]):
            along = "columns" if q == 1 else "rows" if p == 1 else "rows along, or as many columns across"
            raise ValueError(
                f"{name}: blocks of shapes {shapes[0]} on rank 0 and {shape} on rank {rank} do not fit a {p} x {q} grid"
                f"\nhint: all blocks must have as many {along}; an empty one too, such as numpy.empty((0, n))"
            )
    return Layout(Axis.blocks(rows), Axis.blocks(columns))


def room(name: str, shape: tuple[int, int], dtype: Any) -> tuple[np.ndarray, Exception | None]:
    """Memory, or why there is none: the other ranks must hear of it before anything is sent."""
    try:
        return np.empty(shape, dtype), None
    except MemoryError as wrong:
        return np.empty((0, 0), dtype), MemoryError(f"{name}: {wrong}\nhint: take parts of it: .local, or .redistribute")


def on_one(shape: tuple[int, int], root: int, size: int) -> Layout:
    """All of the matrix on one rank."""
    return Layout(Axis.blocks([shape[0] if rank == root else 0 for rank in range(size)]), Axis.whole(shape[1]))


def move(ranks: Any, source: np.ndarray, layout: Layout, target: np.ndarray, to: Layout) -> None:
    if ranks.size > 1 and not hasattr(ranks, "isend"):  # all ranks alike
        raise TypeError("ShardedMatrix: blocks on the host move over MPI\nhint: an mpi4py communicator, or blocks on GPUs")
    exchange(ranks, source, layout, target, to)
