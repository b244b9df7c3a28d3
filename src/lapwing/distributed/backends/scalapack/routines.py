"""ScaLAPACK on column-major block-cyclic blocks: one function per routine, each called by all ranks of the communicator.

A routine takes :class:`Blocks` and works in place, as LAPACK does; the status it returns is the same on all ranks. Ranks
outside of the grid only receive the status.

Blocks move between layouts by ``distributed.exchange`` and not by ``p?gemr2d``, which cannot handle uneven blocks, counts in 32
bits, and took 1.1 to 1.7 times as long (n = 3000 on 2 and 4 ranks, MKL 2026.2, 2026-11-15).
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ...layout import Axis, Layout
from ...tiles import best_grid, default_tile
from .library import Grid, Library, grid_of, library

_LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_ROWS_EACH = 16  # below that many rows a rank only adds messages


@dataclass(frozen=True, eq=False)
class Blocks:
    """This rank's block, column-major; ``layout`` says which entries it holds, ``cyclic`` how the library reads them.

    The two differ if P A P^T is read instead of A: see ``Layout.permuted_tile``.
    """

    local: np.ndarray
    layout: Layout
    cyclic: Layout
    comm: Any

    @classmethod
    def empty(cls, layout: Layout, dtype: Any, comm: Any, cyclic: Layout | None = None) -> Blocks:
        """Blocks with arbitrary values, to be filled."""
        return cls(np.empty(layout.local_shape(comm.rank), dtype, order="F"), layout, cyclic or layout, comm)

    @property
    def shape(self) -> tuple[int, int]:
        return self.cyclic.shape

    @property
    def inside(self) -> bool:
        return bool(self.comm.rank < self.cyclic.size)

    @property
    def grid(self) -> Grid:
        return grid_of(self.comm, *self.cyclic.grid, self.cyclic.order)

    @property
    def descriptor(self) -> np.ndarray:
        lib = library(self.comm.MPI)
        rows, columns = self.cyclic.rows, self.cyclic.columns
        lld = max(self.local.shape[0], 1)
        if not self.local.flags.f_contiguous:  # the leading rows of larger blocks
            lld = self.local.strides[1] // self.local.itemsize
        numbers = [1, self.grid.context, rows.n, columns.n, rows.tile, columns.tile, 0, 0, lld]
        return np.array(numbers, lib.dtype)

    def like(self, rows: int, columns: int) -> Blocks:
        """New blocks of zeros of another shape, in the same tiles on the same grid. As many rows are divided alike."""
        cyclic, layout = self._resized(rows, columns)
        return Blocks(np.zeros(cyclic.local_shape(self.comm.rank), self.local.dtype, order="F"), layout, cyclic, self.comm)

    def leading(self, rows: int, columns: int) -> Blocks:
        """The first rows and columns, which are also the first in each block. Shares the memory."""
        cyclic, layout = self._resized(rows, columns)
        r, c = cyclic.local_shape(self.comm.rank)
        return Blocks(self.local[:r, :c], layout, cyclic, self.comm)

    def some_columns(self, first: int, count: int) -> Blocks:
        """Columns from ``first`` on. Shares the memory."""
        if first == 0:
            return self.leading(self.shape[0], count)
        columns = Axis(count, self.cyclic.grid[1], self.cyclic.columns.tile, (), first)
        return replace(self, layout=replace(self.layout, columns=columns))

    def _resized(self, rows: int, columns: int) -> tuple[Layout, Layout]:
        cyclic = self.cyclic.of_shape((rows, columns))
        return cyclic, replace(cyclic, rows=self.layout.rows) if rows == self.shape[0] else cyclic


def default_layout(comm: Any, shape: tuple[int, int], operation: str) -> Layout:
    """Tiles on a grid as square as the blocks allow; for a small matrix on fewer ranks, so that each rank has a tile."""
    m, n = shape
    grid = best_grid(comm.size, max(m // _ROWS_EACH, 1), max(n // _ROWS_EACH, 1))
    return Layout.cyclic(shape, default_tile(min(m, n), grid, operation), grid)


def usable_layout(layout: Layout) -> bool:
    """Whether the library may work in this layout: square tiles, and every row and column of the grid owns one."""
    tiles = layout.rows.tile, layout.columns.tile
    if 0 in tiles or tiles[0] != tiles[1]:
        return False
    return all(-(-axis.n // axis.tile) >= axis.parts for axis in (layout.rows, layout.columns))


def potrf(a: Blocks, upper: bool) -> int:
    """A <- its Cholesky factor, in one triangle. 0, or the order of the first leading minor that fails."""
    _check_sizes("cholesky", a)
    return _run(a, "potrf", _uplo(upper), a.shape[0], *_matrix(a))


def potrs(factor: Blocks, b: Blocks, upper: bool) -> int:
    """B <- A^-1 B by the factor."""
    return _run(factor, "potrs", _uplo(upper), factor.shape[0], b.shape[1], *_matrix(factor), *_matrix(b))


def potri(factor: Blocks, upper: bool) -> int:
    """The factor <- one triangle of A^-1."""
    return _run(factor, "potri", _uplo(upper), factor.shape[0], *_matrix(factor))


def getrf(a: Blocks) -> tuple[np.ndarray, int]:
    """A <- L and U. Returns the pivots of the local rows, and 0 or the first pivot that is zero."""
    _check_sizes("solve", a)
    pivots = np.zeros(a.local.shape[0] + a.cyclic.rows.tile, library(a.comm.MPI).dtype)
    return pivots, _run(a, "getrf", *a.shape, *_matrix(a), pivots)


def getrs(lu: Blocks, pivots: np.ndarray, b: Blocks, transposed: bool) -> int:
    """B <- A^-1 B, or A^-T B."""
    return _run(lu, "getrs", b"T" if transposed else b"N", lu.shape[0], b.shape[1], *_matrix(lu), pivots, *_matrix(b))


def trtrs(a: Blocks, b: Blocks, upper: bool, transposed: bool) -> int:
    """B <- A^-1 B, or A^-T B, for a triangular A. 0, or the first zero on the diagonal."""
    _check_sizes("solve", a)
    marks = _uplo(upper), b"T" if transposed else b"N", b"N"
    return _run(a, "trtrs", *marks, a.shape[0], b.shape[1], *_matrix(a), *_matrix(b))


def gemm(a: Blocks, b: Blocks, c: Blocks, adjoint_a: bool = False, adjoint_b: bool = False) -> None:
    """C <- A B, or with the adjoint of A or B."""
    k = a.shape[0] if adjoint_a else a.shape[1]
    if 0 in (*c.shape, k) or not a.inside:
        c.local[...] = 0
        return
    one, zero = np.ones(1, a.local.dtype), np.zeros(1, a.local.dtype)
    marks = [b"C" if adjoint else b"N" for adjoint in (adjoint_a, adjoint_b)]
    _call(a, "gemm", *marks, *c.shape, k, one, *_matrix(a), *_matrix(b), zero, *_matrix(c))


def eigh(
    a: Blocks, upper: bool, *, part: tuple[int, int] | None = None, vectors: bool = True
) -> tuple[np.ndarray, Blocks | None, int]:
    """Eigenvalues on all ranks, eigenvectors (columns) in new blocks, the status. A is destroyed.

    ``part``: the first eigenvalue, counted from 0, and how many.
    """
    n = a.shape[0]
    rows, columns = a.cyclic.local_shape(0)
    # the routines need two more matrices; the library's own workspace query would overflow 32 bits
    _check_sizes("eigh", a, 2 * rows * columns + 10 * n + a.cyclic.rows.tile * (rows + 8))
    if vectors and part is None:
        return _syevd(a, upper)
    return _syevr(a, upper, part, vectors)


def _least_workspace(a: Blocks) -> int:
    """The workspace for sorting the vectors (lasrt) and transforming them back (ormtr).

    The workspace query of the routines forgets it. With large tiles ranks then hang, or vectors are wrong without an error.
    """
    (rows, columns), tile = a.cyclic.local_shape(0), a.cyclic.rows.tile
    return (rows + columns) * tile + max(tile * tile, rows * columns) + 8 * a.shape[0]


def _syevd(a: Blocks, upper: bool) -> tuple[np.ndarray, Blocks, int]:
    """Eigenvalues and vectors by divide and conquer."""
    n = a.shape[0]
    values, z = np.zeros(n, a.local.real.dtype), a.like(n, n)
    name = "heevd" if np.iscomplexobj(a.local) else "syevd"
    info = _with_workspace(
        a, name, (b"V", _uplo(upper), n, *_matrix(a), values, *_matrix(z)), integers=True, least=_least_workspace(a)
    )
    return _on_all_ranks(a, values), z, info


def _syevr(a: Blocks, upper: bool, part: tuple[int, int] | None, vectors: bool) -> tuple[np.ndarray, Blocks | None, int]:
    """Eigenvalues and vectors by multiple relatively robust representations: all, or some by their numbers."""
    n = a.shape[0]
    real = a.local.real.dtype
    scalar = C.c_float if real == np.float32 else C.c_double
    first, count = part or (0, n)
    before, wanted = 0, count
    if vectors and "mkl" not in library(a.comm.MPI).name:
        # ScaLAPACK 2.2.1 silently gives wrong vectors when fewer are asked for than a tile has columns
        wanted = min(max(count, a.cyclic.rows.tile), n)
        before = max(first + wanted - n, 0)
    integer = library(a.comm.MPI).integer
    computed, with_vectors = integer(0), integer(0)
    values, z = np.zeros(n, real), a.like(n, n)
    jobs = b"V" if vectors else b"N", b"A" if wanted == n else b"I", _uplo(upper)
    place = first - before
    limits = scalar(0), scalar(0), place + 1, place + wanted
    name = "heevr" if np.iscomplexobj(a.local) else "syevr"
    head = (*jobs, n, *_matrix(a), *limits, computed, with_vectors, values, *_matrix(z))
    info = _with_workspace(a, name, head, integers=True, least=_least_workspace(a))
    values = _on_all_ranks(a, values)[before : before + count].copy()
    return values, z.some_columns(before, count) if vectors else None, info


def svd(a: Blocks, vectors: bool = True) -> tuple[np.ndarray, Blocks, Blocks, int]:
    """Singular values on all ranks, U (m x k) and V^H (k x n) in new blocks, the status. A is destroyed."""
    m, n = a.shape
    k = min(m, n)
    _check_sizes("svd", a, prod(a.cyclic.local_shape(0)) + k * -(-(m + n) // a.cyclic.size) + 8 * max(m, n))
    values = np.zeros(k, a.local.real.dtype)
    u, vh = (a.like(m, k), a.like(k, n)) if vectors else (a.like(1, 1), a.like(1, 1))
    job = b"V" if vectors else b"N"
    head = (job, job, m, n, *_matrix(a), values, *_matrix(u), *_matrix(vh))
    extra = np.zeros(4 * max(m, n) + 16, a.local.real.dtype) if np.iscomplexobj(a.local) else None
    info = _with_workspace(a, "gesvd", head, fixed_real=extra)
    return _on_all_ranks(a, values), u, vh, info


def qr(a: Blocks, complete: bool) -> tuple[Blocks, Blocks]:
    """Q (m x k) and R (k x n, upper trapezoidal); A is destroyed, and R lies in its memory."""
    m, n = a.shape
    few, k = min(m, n), m if complete else min(m, n)
    _check_sizes("qr", a, m * k // a.cyclic.size)
    tau = np.zeros(max(a.local.shape[1], 1), a.local.dtype)
    _with_workspace(a, "geqrf", (m, n, *_matrix(a), tau))
    q = a.like(m, k)
    reflectors = a.leading(m, few)
    q.local[:, : reflectors.local.shape[1]] = reflectors.local
    _with_workspace(q, "ungqr" if np.iscomplexobj(a.local) else "orgqr", (m, k, few, *_matrix(q), tau))
    return q, a.leading(k, n)


def _uplo(upper: bool) -> bytes:
    return b"U" if upper else b"L"


def _matrix(a: Blocks) -> tuple[Any, ...]:
    """The arguments for a matrix: its block, where it starts, its descriptor."""
    return a.local, 1, 1, a.descriptor


def _call(a: Blocks, routine: str, *arguments: Any) -> None:
    library(a.comm.MPI).call(f"p{_LETTER[a.local.dtype.name]}{routine}_", *arguments)


def _run(a: Blocks, routine: str, *arguments: Any) -> int:
    """The routine on the ranks of the grid; its status on all."""
    info = library(a.comm.MPI).integer(0)
    if a.inside:
        _call(a, routine, *arguments, info)
    status: int = a.comm.status(int(info.value))
    if status < 0:
        raise RuntimeError(f"scalapack: p{_LETTER[a.local.dtype.name]}{routine} refused argument {-status} on a {a.cyclic}")
    return status


def _with_workspace(
    a: Blocks,
    routine: str,
    head: tuple[Any, ...],
    *,
    integers: bool = False,
    fixed_real: np.ndarray | None = None,
    least: int = 0,
) -> int:
    """Ask for the workspace, then run. After ``head`` come WORK, for complex RWORK, with ``integers`` IWORK, and INFO.

    ``least``: the least length of WORK and RWORK, even if the routine asks for less.
    """
    lib: Library = library(a.comm.MPI)
    dtype, real = a.local.dtype, a.local.real.dtype
    has_real = integers and dtype.kind == "c"

    def run(sizes: tuple[int, int, int], arrays: tuple[np.ndarray, ...], call: Callable[..., Any]) -> Any:
        workspace: tuple[Any, ...] = (arrays[0], sizes[0])
        if has_real:
            workspace += (arrays[1], sizes[1])
        elif fixed_real is not None:
            workspace += (fixed_real,)
        if integers:
            workspace += (arrays[2], sizes[2])
        return call(a, routine, *head, *workspace)

    answers = np.zeros(8, dtype), np.zeros(8, real), np.zeros(8, lib.dtype)
    if a.inside:
        run((-1, -1, -1), answers, lambda blocks, name, *arguments: _call(blocks, name, *arguments, lib.integer(0)))
    # in single precision the answer is rounded, possibly down
    work, rwork, iwork = (int(abs(float(x[0].real)) * (1 + 1e-6)) + 64 for x in answers)
    work, rwork = max(work, least), max(rwork, least)
    arrays = np.empty(work, dtype), np.empty(rwork if has_real else 1, real), np.empty(iwork if integers else 1, lib.dtype)
    return int(run((work, rwork, iwork), arrays, _run))


def _on_all_ranks(a: Blocks, values: np.ndarray) -> np.ndarray:
    """The values of rank 0, which is in every grid, on all ranks: the same bits everywhere."""
    spread: np.ndarray = a.comm.spread(values, 0, values.shape, values.dtype)
    return spread


def _check_sizes(operation: str, a: Blocks, need: int = 0) -> None:
    """Refuse sizes beyond 32-bit integers, which the library would silently overflow. The same on all ranks."""
    lib: Library = library(a.comm.MPI)
    need = max(need, prod(a.cyclic.local_shape(0)))  # the largest block
    if need > lib.largest:
        raise MemoryError(
            f"{operation}: {lib.name} counts in 32 bits, and {need:,} numbers on a rank are too many"
            "\nhint: use more ranks, or pip install mkl mpich, whose library counts in 64 bits"
        )
