"""Calls on sharded matrices: what all ranks agree on first, how blocks reach an engine, and how results leave it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.problem import DTYPES
from ..backends.scalapack import library as scalapack_library
from ..backends.scalapack import routines as scalapack
from ..backends.scalapack.routines import Blocks
from ..exchange import copy_triangle, diagonal_places, exchange, keep_triangle, mirror
from ..layout import Axis, Layout
from ..matrix import ShardedMatrix
from ..ranks.protocol import agree
from .engines import check_ranks

__all__ = [
    "Call",
    "Described",
    "diagonal",
    "enter",
    "enter_columns",
    "leave",
    "leave_columns",
    "on_lower",
    "tiles_for",
    "told_of",
]

_log = logging.getLogger("lapwing")
# A block sharding on a square grid is read as P A P^T only with tiles that are not much smaller than the usual ones
_SMALLEST_PERMUTED = 32


@dataclass(frozen=True)
class Described:
    """A sharded matrix without its blocks."""

    layout: Layout
    dtype: np.dtype
    ranks: Any

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.shape


@dataclass(frozen=True)
class Call:
    """What all ranks agreed on."""

    name: str
    a: ShardedMatrix | Described
    turned: bool  # the blocks are row-major: column-major ones of the transpose

    @property
    def ranks(self) -> Any:
        return self.a.ranks

    @property
    def complex(self) -> bool:
        return self.a.dtype.kind == "c"

    def raises(self, kind: Any, finite: bool, **fields: Any) -> Exception:
        """The same error on all ranks; ``finite``: what this rank read holds no NaN and no Inf."""
        error: Exception = kind(self.name, nonfinite=self.ranks.status(0 if finite else 1) != 0, **fields)
        return error

    @classmethod
    def agreed(
        cls, name: str, a: ShardedMatrix, check: Callable[[], None], facts: dict[str, Any], b: Any = None, engine: str = "auto"
    ) -> Call:
        """``check`` may raise; an error of one rank, or facts that differ, are raised by all."""
        error: Exception | None = None
        told: dict[str, Any] = {"shape": a.shape, "dtype": a.dtype.name, "layout": a.layout}
        told |= facts
        try:
            if a.dtype.name not in DTYPES:
                raise TypeError(f"{name}: dtype {a.dtype} is not supported\nhint: use one of {', '.join(DTYPES)}")
            check_ranks(name, engine)
            check()
            # on all ranks or on none: a library that only some of them find would leave the others waiting
            scalapack_library.library(getattr(a.ranks, "MPI", None))
            if b is not None:
                told |= told_of(name, a, b)
        except (TypeError, ValueError, NotImplementedError, scalapack_library.ScalapackMissing) as wrong:
            error = wrong
        flags = a.local.flags
        orders = agree(a.ranks, name, told, error=error, mine=(flags.c_contiguous, flags.f_contiguous))
        row_major = all(c for c, _ in orders)
        if a.ranks.rank == 0:
            m, n = a.shape
            chosen = "scalapack" if engine == "auto" else engine
            _log.info("%s: %s, %s x %s %s on %s ranks", name, chosen, m, n, a.dtype, a.ranks.size)
        return cls(name, a, row_major and not all(f for _, f in orders))


PART_OF_B = "\nhint: an array is all of b, on every rank; a rank's rows of it are ShardedMatrix.from_local(b, comm)"


def told_of(name: str, a: ShardedMatrix | Described, b: Any) -> dict[str, Any]:
    sharded = isinstance(b, ShardedMatrix)
    if not sharded and not isinstance(b, np.ndarray):
        raise TypeError(f"{name}: b must be a ShardedMatrix, or a NumPy array that every rank has, got {type(b).__name__}")
    if b.dtype != a.dtype:
        raise TypeError(f"{name}: a and b must have the same dtype, got {a.dtype} and {b.dtype}\nhint: convert one of them")
    if b.ndim not in (1, 2):
        raise ValueError(f"{name}: b must have shape (n,) or (n, k), got {b.shape}")
    if b.shape[0] != a.shape[0]:
        raise ValueError(
            f"{name}: a has {a.shape[0]} rows and b has {b.shape[0]} (shapes {a.shape} and {b.shape})"
            + ("" if sharded else PART_OF_B)
        )
    if sharded and b.ranks is not a.ranks and (b.ranks.size != a.ranks.size or b.ranks.rank != a.ranks.rank):
        raise ValueError(f"{name}: a and b are on different communicators")
    return {"shape of b": b.shape, "dtype of b": b.dtype.name, "layout of b": b.layout if sharded else "replicated"}


def enter(
    call: Call,
    operation: str,
    *,
    upper: bool | None = None,
    permute: bool = False,
    overwrite: bool = False,
    turned: bool = True,
) -> Blocks:
    """The matrix in blocks that the engine may destroy; of A^T where ``call.turned`` and ``turned``.

    ``upper``: one triangle is read, and which; new blocks are zero beside it. ``permute``: P A P^T serves as well, which
    moves less on a square grid.
    """
    a, ranks = call.a, call.ranks
    assert isinstance(a, ShardedMatrix)
    flip = call.turned and turned
    source, layout = (a.local.T, a.layout.transposed) if flip else (a.local, a.layout)
    triangle = None if upper is None else upper != flip
    if scalapack.usable_layout(layout):
        mine = overwrite and source.flags.f_contiguous and source.flags.writeable
        if not mine:
            # half of it is half of the time, which is some percent of a Cholesky's
            source = (
                np.array(source, order="F") if triangle is None else copy_triangle(source, layout, ranks.rank, upper=triangle)
            )
        return Blocks(source, layout, layout, ranks)
    target = scalapack.default_layout(ranks, layout.shape, operation)
    tile = _permuted_tile(layout, target, ranks) if permute else None
    if tile is not None:
        assert triangle is not None
        x = Blocks(np.array(source, order="F"), layout, Layout.cyclic(layout.shape, tile, layout.grid, layout.order), ranks)
        mirror(ranks, x.local, layout, upper=triangle)
        return x
    if triangle is None:
        x = Blocks.empty(target, a.dtype, ranks)
        exchange(ranks, source, layout, x.local, target, column_major=True)
        return x
    # memory that is not written to is not there yet: half of it
    x = Blocks(np.zeros(target.local_shape(ranks.rank), a.dtype, order="F"), target, target, ranks)
    beside = exchange(ranks, source, layout, x.local, target, column_major=True, upper=triangle)
    keep_triangle(x.local, target, ranks.rank, upper=triangle, beside=beside)
    return x


def on_lower(call: Call, operation: str, upper: bool, permute: bool) -> Call:
    """The call for a Cholesky factorisation: where blocks move, they are turned on the way so that A or A^T is read below.

    Turning costs next to nothing then. The upper triangle took up to 1.8 times as long on the same grid, and up to 1.3 times
    on the transposed one (n = 4000 on 2 ranks, MKL 2026.2, 2026-11-15).
    """
    layout = call.a.layout
    if scalapack.usable_layout(layout):
        return call
    if permute and _permuted_tile(layout, scalapack.default_layout(call.ranks, layout.shape, operation), call.ranks):
        return call
    return replace(call, turned=upper)


def _permuted_tile(layout: Layout, target: Layout, ranks: Any) -> int | None:
    """The tile with which blocks that stay where they are serve as those of P A P^T; None where that does not pay."""
    tile = layout.permuted_tile(target.rows.tile) if layout.size == ranks.size else None
    if tile is None or tile < min(_SMALLEST_PERMUTED, target.rows.tile):
        return None
    return tile if scalapack.usable_layout(Layout.cyclic(layout.shape, tile, layout.grid, layout.order)) else None


def tiles_for(layout: Layout, ranks: Any, operation: str, permute: bool) -> Layout:
    """How the engine will see a matrix that lies like this: what :func:`enter` makes of it, without moving anything."""
    if scalapack.usable_layout(layout):
        return layout
    target = scalapack.default_layout(ranks, layout.shape, operation)
    tile = _permuted_tile(layout, target, ranks) if permute else None
    return target if tile is None else Layout.cyclic(layout.shape, tile, layout.grid, layout.order)


def leave(
    call: Call,
    x: Blocks,
    layout: Layout | None = None,
    *,
    turned: bool = True,
    into: Any = None,
    upper: bool | None = None,
) -> ShardedMatrix:
    """A result in the layout of the input, or in another; it owns its memory, or has that of ``into``.

    ``upper``: a triangle of it is not zero, and which.
    """
    flip = call.turned and turned
    layout = call.a.layout if layout is None else layout
    to = layout.transposed if flip else layout
    # the same on all ranks: blocks are parts of others, or the user's, on all of them or on none
    if x.layout == to and (x.local.base is None or into is not None):
        out = x.local
    else:
        triangle = None if upper is None else upper != flip
        out = (np.empty if upper is None else np.zeros)(to.local_shape(call.ranks.rank), x.local.dtype, order="F")
        exchange(call.ranks, x.local, x.layout, out, to, column_major=True, upper=triangle)
    return ShardedMatrix(out.T if flip else out, layout, call.ranks)


def enter_columns(call: Call, a: Blocks, b: Any) -> Blocks:
    """Right-hand sides beside the blocks of A: the same rows on the same ranks."""
    k = 1 if b.ndim == 1 else b.shape[1]
    parts = a.cyclic.grid[1]
    columns = Axis.cyclic(k, min(a.cyclic.rows.tile, max(-(-k // parts), 1)), parts)
    layout = Layout(a.layout.rows, columns, a.cyclic.order)
    x = Blocks.empty(layout, a.local.dtype, call.ranks, Layout(a.cyclic.rows, columns, a.cyclic.order))
    if isinstance(b, ShardedMatrix):
        exchange(call.ranks, b.local, b.layout, x.local, layout, column_major=True)
    else:
        i, j = layout.indices(call.ranks.rank)
        x.local[...] = b.reshape(len(b), k)[np.ix_(i, j)]
    return x


def leave_columns(call: Call, x: Blocks, b: Any) -> Any:
    """The solution as ``b`` was: in its layout, or on all ranks."""
    rows, k = x.layout.shape
    if isinstance(b, ShardedMatrix):
        layout = b.layout.of_shape((rows, k))
        out = np.empty(layout.local_shape(call.ranks.rank), x.local.dtype, order="C" if b.local.flags.c_contiguous else "F")
        exchange(call.ranks, x.local, x.layout, out, layout, column_major=True)
        return ShardedMatrix(out, layout, call.ranks)
    whole = np.zeros((rows, k), x.local.dtype)
    i, j = x.layout.indices(call.ranks.rank)
    whole[np.ix_(i, j)] = x.local
    whole = call.ranks.sum(whole)
    return whole[:, 0] if b.ndim == 1 else whole


def diagonal(x: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Of this rank: places on the diagonal, counted from 0, and what stands there."""
    if not x.inside:
        return np.arange(0), x.local[:0, 0] if x.local.size else np.empty(0, x.local.dtype)
    places, i, j = diagonal_places(x.cyclic, x.comm.rank)
    return places, x.local[i, j]
