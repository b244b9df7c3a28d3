"""How matrices enter ScaLAPACK's tiles and leave them, and the record of a call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....core.request import Request
from ...exchange import copy_triangle, diagonal_places, exchange, keep_triangle, mirror
from ...layout import Axis, Layout
from ..protocol import Part
from . import routines as scalapack
from .routines import Blocks

# A block sharding on a square grid is read as P A P^T only with tiles that are not much smaller than the usual ones
_SMALLEST_PERMUTED = 32


@dataclass(frozen=True)
class Call:
    """A request that all ranks agreed on, and its matrix."""

    request: Request
    a: Part
    dtype: np.dtype
    turned: bool  # the blocks are row-major: column-major blocks of the transpose

    @property
    def ranks(self) -> Any:
        return self.a.ranks

    @property
    def complex(self) -> bool:
        return self.dtype.kind == "c"

    def error(self, kind: Any, finite: bool, **fields: Any) -> Exception:
        """The same error on all ranks; ``finite``: the part that this rank read holds no NaN and no Inf."""
        nonfinite = self.ranks.status(0 if finite else 1) != 0
        return kind(self.request.name, nonfinite=nonfinite, **fields)  # type: ignore[no-any-return]

    def without_data(self) -> Call:
        """For a factor, which must not keep the user's matrix alive."""
        return replace(self, a=replace(self.a, local=None))


def enter(
    call: Call,
    operation: str,
    *,
    upper: bool | None = None,
    permute: bool = False,
    overwrite: bool = False,
    turned: bool = True,
) -> Blocks:
    """The matrix in blocks that the library may destroy; its transpose if both ``turned`` and ``call.turned`` are true.

    ``upper``: which triangle is read, None for both; the other triangle of new blocks is zero. ``permute``: P A P^T will do,
    for which less data moves on a square grid.
    """
    a, ranks = call.a, call.ranks
    flip = call.turned and turned
    source, layout = (a.local.T, a.layout.transposed) if flip else (a.local, a.layout)
    triangle = None if upper is None else upper != flip
    if scalapack.usable_layout(layout):
        if not (overwrite and source.flags.f_contiguous and source.flags.writeable):
            # copying half of it takes half of the time, which is some percent of a Cholesky factorisation
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
        x = Blocks.empty(target, call.dtype, ranks)
        exchange(ranks, source, layout, x.local, target, column_major=True)
        return x
    # memory of zeros takes up no space until it is written, which happens to half of it
    x = Blocks(np.zeros(target.local_shape(ranks.rank), call.dtype, order="F"), target, target, ranks)
    written = exchange(ranks, source, layout, x.local, target, column_major=True, upper=triangle)
    keep_triangle(x.local, target, ranks.rank, upper=triangle, within=written)
    return x


def on_lower(call: Call, operation: str, upper: bool, permute: bool) -> Call:
    """The call for a Cholesky factorisation: blocks that move anyway are also transposed, so that the lower triangle of A or
    A^T is read.

    The transpose then costs next to nothing. The upper triangle took up to 1.8 times as long on the same grid, and up to 1.3
    times on the transposed one (n = 4000 on 2 ranks, MKL 2026.2, 2026-11-15).
    """
    layout = call.a.layout
    if scalapack.usable_layout(layout):
        return call
    if permute and _permuted_tile(layout, scalapack.default_layout(call.ranks, layout.shape, operation), call.ranks):
        return call
    return replace(call, turned=upper)


def _permuted_tile(layout: Layout, target: Layout, ranks: Any) -> int | None:
    """The tile for which the blocks, unmoved, are those of P A P^T; None if that does not pay."""
    tile = layout.permuted_tile(target.rows.tile) if layout.size == ranks.size else None
    if tile is None or tile < min(_SMALLEST_PERMUTED, target.rows.tile):
        return None
    return tile if scalapack.usable_layout(Layout.cyclic(layout.shape, tile, layout.grid, layout.order)) else None


def tiles_for(layout: Layout, ranks: Any, operation: str, permute: bool) -> Layout:
    """The layout in which :func:`enter` brings a matrix of this layout; nothing moves."""
    if scalapack.usable_layout(layout):
        return layout
    target = scalapack.default_layout(ranks, layout.shape, operation)
    tile = _permuted_tile(layout, target, ranks) if permute else None
    return target if tile is None else Layout.cyclic(layout.shape, tile, layout.grid, layout.order)


def leave(
    call: Call, x: Blocks, layout: Layout | None = None, *, turned: bool = True, into: Any = None, upper: bool | None = None
) -> Part:
    """A result in the layout of the input, or in another; it has its own memory, or that of ``into``.

    ``upper``: the triangle that is not zero, None for both.
    """
    flip = call.turned and turned
    layout = call.a.layout if layout is None else layout
    to = layout.transposed if flip else layout
    # the answer is the same on all ranks: blocks are views, or the user's own, on all of them or on none
    if x.layout == to and (x.local.base is None or into is not None):
        out = x.local
    else:
        triangle = None if upper is None else upper != flip
        out = (np.empty if upper is None else np.zeros)(to.local_shape(call.ranks.rank), x.local.dtype, order="F")
        exchange(call.ranks, x.local, x.layout, out, to, column_major=True, upper=triangle)
    return Part(out.T if flip else out, layout, call.ranks)


def enter_columns(call: Call, a: Blocks, b: Any) -> Blocks:
    """Right-hand sides in blocks: the rows are on the same ranks as those of A."""
    k = 1 if b.ndim == 1 else b.shape[1]
    parts = a.cyclic.grid[1]
    columns = Axis.cyclic(k, min(a.cyclic.rows.tile, max(-(-k // parts), 1)), parts)
    layout = Layout(a.layout.rows, columns, a.cyclic.order)
    x = Blocks.empty(layout, a.local.dtype, call.ranks, Layout(a.cyclic.rows, columns, a.cyclic.order))
    if isinstance(b, Part):
        exchange(call.ranks, b.local, b.layout, x.local, layout, column_major=True)
    else:
        i, j = layout.indices(call.ranks.rank)
        x.local[...] = b.reshape(len(b), k)[np.ix_(i, j)]
    return x


def leave_columns(call: Call, x: Blocks, b: Any) -> Any:
    """The solution as ``b`` was: in its layout, or on all ranks."""
    rows, k = x.layout.shape
    if isinstance(b, Part):
        layout = b.of_shape((rows, k))
        out = np.empty(layout.local_shape(call.ranks.rank), x.local.dtype, order="C" if b.local.flags.c_contiguous else "F")
        exchange(call.ranks, x.local, x.layout, out, layout, column_major=True)
        return Part(out, layout, call.ranks)
    whole = np.zeros((rows, k), x.local.dtype)
    i, j = x.layout.indices(call.ranks.rank)
    whole[np.ix_(i, j)] = x.local
    whole = call.ranks.sum(whole)
    return whole[:, 0] if b.ndim == 1 else whole


def diagonal(x: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of the diagonal: the indices, counted from 0, and the values."""
    if not x.inside:
        return np.arange(0), x.local[:0, 0] if x.local.size else np.empty(0, x.local.dtype)
    places, i, j = diagonal_places(x.cyclic, x.comm.rank)
    return places, x.local[i, j]
