"""Factored matrices on cuSOLVERMp: L L^H or P L U in tiles on the GPUs; solutions, inverses and determinants from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....core.errors import NotPositiveDefiniteError, SingularMatrixError
from ...layout import Axis, Layout
from .blocks import Operand, diagonal, diagonal_indices, identity, local_of, put
from .exchange import Block
from .session import Session

_LOWER, _NO_TRANSPOSE = 0, 0
_DIGIT = 1024  # smaller integers are exact in every format that products are computed in, even TensorFloat-32


@dataclass(eq=False)
class Factored:
    """The factors of a matrix; their memory is freed with this object. All methods are collective, and wait for the device."""

    session: Session
    block: Block  # the lower triangle is L; or L below the diagonal and U
    pivots: tuple[int, Any] | None  # None: Cholesky
    upper: bool  # the upper triangle of A was read: L is the factor of conj(A)
    rows_sign: int = 0  # the sign of the permutation of the rows; 0: not computed yet

    def __post_init__(self) -> None:
        self.layout, self.dtype = self.block.layout, self.block.dtype

    def solve(self, b: Operand) -> Operand:
        """A^-1 B in the layout of ``b``."""
        session = self.session
        x = session.bring(b, sides_of(self.layout, b.layout.shape))
        # conj(A) X' = conj(B) has X' = conj(X)
        turned = self.upper and self.dtype.startswith("complex")
        if b.layout.shape[1]:
            x = conjugated(session, x) if turned else x
            self._apply(x)
            x = conjugated(session, x) if turned else x
        return session.deliver(x, b.layout)

    def inv(self, to: Layout) -> Operand:
        """A^-1, by a solve with the identity, as the library has no routine for it."""
        x = identity(self.session, self.layout, self.dtype)
        self._apply(x)
        return self.session.deliver(x, to, "T" if self.upper else "N")

    def triangle(self, to: Layout) -> Operand:
        """L, or its adjoint if the upper triangle was read. The caller clears the other triangle."""
        return self.session.deliver(self.block, to, "T" if self.upper else "N")

    def slogdet(self, *, destroy: bool = False) -> tuple[Any, float]:
        """Sign and logarithm of the absolute determinant, the same on all ranks. ``destroy``: the factor is not used again."""
        pivots = diagonal(self.session, self.block)
        size = np.abs(pivots)
        logabs = float(np.sum(np.log(size.astype(np.float64))))
        parts = self.session.allgather((complex(np.prod(pivots / size)), logabs), "slogdet")
        total = sum(part for _, part in parts)
        if self.pivots is None:
            return np.ones((), self.dtype)[()], 2 * total
        if not self.rows_sign:
            self.rows_sign = self._sign_of_rows(destroy)
        sign = complex(np.prod([phase for phase, _ in parts])) * self.rows_sign
        return np.asarray(sign if self.dtype.startswith("complex") else sign.real).astype(self.dtype)[()], total

    def _apply(self, x: Block) -> None:
        """X <- A^-1 X."""
        n, k = x.layout.shape
        if self.pivots is None:
            self.session.call("Potrs", self.layout, _LOWER, n, k, self.block, x, dtype=self.dtype)
        else:
            self.session.call("Getrs", self.layout, _NO_TRANSPOSE, n, k, self.block, self.pivots[0], x, dtype=self.dtype)

    def _sign_of_rows(self, destroy: bool) -> int:
        """1 or -1, for an even or odd permutation.

        It is not documented which rank holds which pivots, so the library itself applies the permutation: with L = U = 1 that
        is all that a solve does. The right-hand sides are the numbers of the rows, digit by digit.
        """
        session, n = self.session, self.layout.shape[0]
        unit = identity(session, self.layout, self.dtype, self.block if destroy else None)
        digits = 1
        while _DIGIT**digits < n:
            digits += 1
        layout = sides_of(self.layout, (n, digits))
        rows, columns = layout.indices(session.rank)
        weights = _DIGIT ** columns.astype(np.int64)
        x = put(session, layout, (rows[:, None] // weights % _DIGIT).astype(self.dtype))
        Factored(session, unit, self.pivots, False)._apply(x)
        order = np.zeros(n, np.int64)
        numbers = (local_of(session, x).real.round().astype(np.int64) * weights).sum(1)
        for rank, part in enumerate(session.allgather(numbers, "slogdet")):
            if len(part):
                order[layout.indices(rank)[0]] += part
        session.done()
        return _parity(order)


def factor(session: Session, a: Operand, *, pos: bool, upper: bool = False, operation: str) -> Factored:
    """Factor a copy of ``a``.

    Raises
    ------
    NotPositiveDefiniteError, SingularMatrixError
        On all ranks alike.
    """
    layout = session.tiles(a.layout.shape, operation)
    if pos:
        return Factored(session, _positive(session, a, layout, upper, operation), None, upper)
    return Factored(session, *lu_of(session, a, layout, operation), False)


def _positive(session: Session, a: Operand, layout: Layout, upper: bool, operation: str) -> Block:
    """L of A = L L^H; the factor of conj(A) if the upper triangle is read.

    Only NaN and Inf on the diagonal are reported as such; the caller's framework can look at the whole matrix.
    """
    lower = session.bring(a, layout, "T" if upper else "N")
    finite = bool(np.isfinite(diagonal(session, lower)).all())  # checked now, as the routine writes NaN after a failing pivot
    info = session.call("Potrf", layout, _LOWER, layout.shape[0], lower, dtype=a.dtype)
    pivots = diagonal(session, lower)
    bad = ~(np.isfinite(pivots) & (pivots.real > 0))
    indices = diagonal_indices(layout, session.rank)[bad]
    failed = int(indices.min()) + 1 if len(indices) else 0
    # the routine may not report NaN
    reports = session.allgather((failed, finite), operation)
    if info or any(minor for minor, _ in reports):
        del lower
        nonfinite = not all(finite for _, finite in reports)
        minor = info if info > 0 else _first_minor(session, a, layout, upper)
        raise NotPositiveDefiniteError(operation, minor=minor, nonfinite=nonfinite)
    return lower


def _first_minor(session: Session, a: Operand, layout: Layout, upper: bool) -> int:
    """The first leading minor that is not positive, by bisection, as not every routine reports it."""
    low, high = 0, layout.shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        work = session.bring(a, layout, "T" if upper else "N")
        info = session.call("Potrf", layout, _LOWER, middle, work, dtype=a.dtype)
        pivots = diagonal(session, work)[diagonal_indices(layout, session.rank) < middle]
        del work  # before the next one
        bad = not (np.isfinite(pivots) & (pivots.real > 0)).all()
        if info > 0:
            return info
        low, high = (low, middle) if any(session.allgather(bool(info) or bad, "cholesky")) else (middle, high)
    return high


def lu_of(session: Session, a: Operand, layout: Layout, operation: str) -> tuple[Block, tuple[int, Any]]:
    """L and U in tiles, and the pivots: their pointer, and the object that keeps their memory."""
    lu = session.bring(a, layout)
    rows, columns = layout.local_shape(session.rank)
    # the library's documentation contradicts itself on whether pivots follow the rows or the columns: room for both
    pivots = session.reserve(8 * (max(rows, columns) + layout.rows.tile))
    n = layout.shape[0]
    info = session.call("Getrf", layout, n, n, lu, pivots[0], dtype=a.dtype)
    diagonal_u = diagonal(session, lu)
    bad = np.flatnonzero((diagonal_u == 0) | ~np.isfinite(diagonal_u))  # the routine divides by zero and goes on
    places = diagonal_indices(layout, session.rank)[bad]
    first = (int(places.min()) + 1, float(np.abs(diagonal_u[bad[places.argmin()]]))) if len(bad) else (n + 1, 1.0)
    place, size = min(session.allgather(first, operation), key=lambda x: x[0])
    if info or place <= n:
        del lu
        singular = info > 0 or size == 0 or (np.isnan(size) and not _may_overflow(session, a, layout, operation))
        pivot = min(place, info if info > 0 else n)
        raise SingularMatrixError(operation, pivot=pivot, nonfinite=not singular)
    return lu, pivots


def _may_overflow(session: Session, a: Operand, layout: Layout, operation: str) -> bool:
    """Whether the numbers are too large to add. The routine may return NaN for them, as it does for a zero pivot."""
    work = session.bring(a, layout)
    largest = max(session.allgather(float(np.abs(local_of(session, work)).max(initial=0)), operation))
    return not largest * layout.shape[0] < np.finfo(a.dtype).max  # NaN too


def sides_of(layout: Layout, shape: tuple[int, int]) -> Layout:
    """Right-hand sides in the same tiles on the same grid, as the library needs square tiles."""
    return Layout(
        Axis.cyclic(shape[0], layout.rows.tile, layout.rows.parts),
        Axis.cyclic(shape[1], layout.rows.tile, layout.columns.parts),
    )


def conjugated(session: Session, block: Block) -> Block:
    """X <- conj(X), by two transposes, one with and one without conjugation."""
    turned = session.empty(block.layout.transposed, block.dtype)
    rows, columns = block.layout.local_shape(session.rank)
    if rows and columns:
        session.turn("C", columns, rows, block.pointer, block.lead, turned.pointer, turned.lead, block.dtype)
        session.turn("T", rows, columns, turned.pointer, turned.lead, block.pointer, block.lead, block.dtype)
    session.runtime.wait(session.stream)
    return block


def _parity(rows: np.ndarray) -> int:
    """1 or -1: each cycle of even length is an odd permutation."""
    if not np.array_equal(np.sort(rows), np.arange(len(rows))):
        raise RuntimeError(
            "slogdet: cuSOLVERMp did not apply its own permutation of the rows, so the sign is unknown"
            "\nhint: use another version of cuSOLVERMp"
        )
    order: list[int] = rows.tolist()
    visited = bytearray(len(order))
    sign = 1
    for start in range(len(order)):
        length, at = 0, start
        while not visited[at]:
            visited[at] = 1
            at, length = order[at], length + 1
        if length and length % 2 == 0:
            sign = -sign
    return sign
