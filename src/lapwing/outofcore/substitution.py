"""Triangular systems: each block of rows of the triangle is read once for each pass."""

from __future__ import annotations

from typing import Any

from .plan import Sizes
from .space import Piece, Space, spans, through
from .stores import Store


def forward(space: Space, slots: list[Any], t: Store, x: Any, sizes: Sizes, start: int = 0) -> None:
    """X <- T^-1 X with the lower triangle of T; ``x`` begins at row ``start``, above which X is zero."""

    def work(piece: Piece, block: Any) -> None:
        first, last = piece.rows.start - start, piece.rows.stop - start
        # X_j <- T_jj^-1 (X_j - T_j X_before)
        space.gemm(x[first:last, :], block[:, :first], x[:first, :])
        space.trsm(block[:, first:last], x[first:last, :], lower=True)

    rows = spans(start, t.shape[0], sizes.chunk)
    through(space, slots, (Piece(t, r, slice(start, r.stop)) for r in rows), work)


def backward_adjoint(space: Space, slots: list[Any], t: Store, x: Any, sizes: Sizes, start: int = 0) -> None:
    """X <- T^-H X with the lower triangle of T."""

    def work(piece: Piece, block: Any) -> None:
        first, last = piece.rows.start - start, piece.rows.stop - start
        # X_j <- T_jj^-H X_j, X_before <- X_before - T_j^H X_j
        space.trsm(block[:, first:last], x[first:last, :], lower=True, adjoint=True)
        space.gemm(x[:first, :], block[:, :first], x[first:last, :], adjoint_a=True)

    rows = reversed(list(spans(start, t.shape[0], sizes.chunk)))
    through(space, slots, (Piece(t, r, slice(start, r.stop)) for r in rows), work)


def backward(space: Space, slots: list[Any], t: Store, x: Any, rows: slice, chunk: int, unit: bool) -> None:
    """X <- T^-1 X with the upper triangle of T, for these rows; the rows below are done already."""
    n = t.shape[0]

    def work(piece: Piece, block: Any) -> None:
        first, last = piece.rows.start, piece.rows.stop
        # X_j <- T_jj^-1 (X_j - T_j X_after)
        space.gemm(x[first:last, :], block[:, last - first :], x[last:, :])
        space.trsm(block[:, : last - first], x[first:last, :], lower=False, unit=unit)

    parts = reversed(list(spans(rows.start, rows.stop, chunk)))
    through(space, slots, (Piece(t, r, slice(r.start, n)) for r in parts), work)
