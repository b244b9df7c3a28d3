"""cuSOLVERMp: matrices spread over NVIDIA GPUs, one process for each GPU, an NCCL communicator of its own.

Each operation here: the blocks are brought into tiles over a grid (:mod:`device_exchange`), one or two routines of the library
run in that copy, all ranks compare what they report, and the results go back into the layout that was asked for. The calls wait
for the device, as the library's own do.

Blocks are row-major or column-major (:class:`Given`); the library knows column-major ones of the lower triangle only. The upper
triangle of A is the lower one of its transpose, which is the conjugate of A: then the same memory is read without turning it.

More than one GPU: the same code over NCCL. It was run against a stand-in on several ranks, and on one H200 with one rank.
"""

from __future__ import annotations

from ctypes import byref, c_char, c_void_p
from typing import Any

import numpy as np

from ..core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ..core.layout import Axis, Layout
from ..core.problem import ITEMSIZE, REAL
from .cusolvermp_library import check, missing
from .cusolvermp_session import Given, Session, diagonal_indices, on_device, open_session
from .device_exchange import Block

__all__ = [
    "Given",
    "Session",
    "cholesky",
    "eigh",
    "inv",
    "lstsq",
    "missing",
    "on_device",
    "open_session",
    "qr",
    "slogdet",
    "solve",
    "svd",
]

_LOWER, _NO_TRANSPOSE = 0, 0


def cholesky(session: Session, a: Given, *, upper: bool = False, tile: int | None = None, operation: str = "cholesky") -> Given:
    """The factor in the layout of ``a``. The other triangle is not cleared: the caller's framework does that."""
    layout = session.tiles(a.layout.shape, operation, tile)
    lower = _positive(session, a, layout, upper, operation)
    return _finish(session, session.give(lower, a.layout, "T" if upper else "N"))


def solve(
    session: Session, a: Given, b: Given, *, pos: bool, upper: bool = False, tile: int | None = None, operation: str = "solve"
) -> Given:
    """X of A X = B, in the layout of ``b``."""
    layout = session.tiles(a.layout.shape, operation, tile)
    sides = _sides(layout, b.layout.shape)
    n, k = b.layout.shape
    if not pos:
        lu, pivots = _lu(session, a, layout, operation)
        x = session.bring(b, sides)
        if k:
            session.call("Getrs", layout, _NO_TRANSPOSE, n, k, lu, pivots[0], x, dtype=a.dtype)
        return _finish(session, session.give(x, b.layout))
    # conj(A) X' = conj(B) has X' = conj(X): turned and conjugated twice
    lower = _positive(session, a, layout, upper, operation)
    x = session.bring(b, sides)
    if upper and a.dtype.startswith("complex"):
        x = _conjugated(session, x)
    if k:
        session.call("Potrs", layout, _LOWER, n, k, lower, x, dtype=a.dtype)
    if upper and a.dtype.startswith("complex"):
        x = _conjugated(session, x)
    return _finish(session, session.give(x, b.layout))


def inv(session: Session, a: Given, *, pos: bool, upper: bool = False, tile: int | None = None) -> Given:
    """The inverse, by a solve with the identity: the library has no routine of its own for it."""
    layout = session.tiles(a.layout.shape, "inv", tile)
    n = a.layout.shape[0]
    if pos:
        lower = _positive(session, a, layout, upper, "inv")
        x = session.identity(layout, a.dtype)
        session.call("Potrs", layout, _LOWER, n, n, lower, x, dtype=a.dtype)
        return _finish(session, session.give(x, a.layout, "T" if upper else "N"))
    lu, pivots = _lu(session, a, layout, "inv")
    x = session.identity(layout, a.dtype)
    session.call("Getrs", layout, _NO_TRANSPOSE, n, n, lu, pivots[0], x, dtype=a.dtype)
    return _finish(session, session.give(x, a.layout))


def slogdet(session: Session, a: Given, *, pos: bool, upper: bool = False, tile: int | None = None) -> tuple[Any, float]:
    """Sign and logarithm of the absolute determinant, the same on all ranks."""
    layout = session.tiles(a.layout.shape, "slogdet", tile)
    if pos:
        factor = _positive(session, a, layout, upper, "slogdet")
        mine = 2 * float(np.sum(np.log(np.abs(session.diagonal(factor)).astype(np.float64))))
        session.done()
        return np.ones((), a.dtype)[()], float(sum(session.told(mine, "slogdet")))
    if session.size > 1:
        raise NotImplementedError(
            "slogdet: cuSOLVERMp does not say which rank holds which pivots, so that the sign is not known on several GPUs"
            '\nhint: assume="pos" for a positive definite matrix'
        )
    try:
        lu, pivots = _lu(session, a, layout, "slogdet")
    except SingularMatrixError:
        return np.zeros((), a.dtype)[()], -np.inf
    n = a.layout.shape[0]
    diagonal = session.diagonal(lu)
    swapped = session.to_host(pivots[0], n, np.int64) != np.arange(1, n + 1)
    session.done()
    size = np.abs(diagonal)
    sign = np.prod(diagonal / size) * (-1) ** int(np.count_nonzero(swapped))
    return np.asarray(sign, a.dtype)[()], float(np.sum(np.log(size.astype(np.float64))))


def eigh(
    session: Session,
    a: Given,
    *,
    vectors: bool = True,
    upper: bool = False,
    part: tuple[int, int] | None = None,
    to: Layout | None = None,
    tile: int | None = None,
) -> tuple[np.ndarray, Given | None]:
    """Eigenvalues, the same on all ranks, and vectors in the layout ``to`` (by default that of ``a``); ``part``: first, count.

    All of them are computed: the library has no routine for a part of the spectrum.
    """
    n = a.layout.shape[0]
    first, count = part or (0, n)
    layout = session.tiles(a.layout.shape, "eigh", tile)
    work = session.bring(a, layout, "T" if upper else "N")
    agree_finite(session, "eigh", session.diagonal(work))
    values, keep = session.reserve(n * ITEMSIZE[REAL[a.dtype]])
    q = session.empty(layout, a.dtype)
    letter = session.library.eigenvectors if vectors or not session.library.values_alone else b"N"
    job = (c_char * 2)(letter, b"\0")
    info = session.call("Syevd", layout, job, _LOWER, n, work, values, q, dtype=a.dtype)
    w = session.to_host(values, n, REAL[a.dtype]) if layout.place(session.rank) is not None else None
    if layout.size < session.size:
        w = session.told(w, "eigh")[0]
    assert w is not None
    del keep
    if info or not np.isfinite(w).all():
        raise ConvergenceError("eigh", nonfinite=not np.isfinite(w).all())
    w = w[first : first + count]
    if not vectors:
        session.done()
        return w, None
    target = to or a.layout.of_shape((n, count))
    if upper and a.dtype.startswith("complex"):  # those of conj(A)
        q = _conjugated(session, q)
    return w, _finish(session, session.give(q, target, "N", (0, first)))


def qr(session: Session, a: Given, *, to: tuple[Layout, Layout] | None = None, tile: int | None = None) -> tuple[Given, Given]:
    """Q (m x n) and R (n x n) for m >= n. Below R's diagonal is not cleared: the caller's framework does that."""
    m, n = a.layout.shape
    if m < n:
        raise NotImplementedError(
            f"qr: cuSOLVERMp forms Q of matrices with at least as many rows as columns, and this one is {m} x {n}"
            "\nhint: the transpose has an RQ-free form: qr of its conjugate transpose gives A = R^H Q^H"
        )
    layout = session.tiles(a.layout.shape, "qr", tile)
    work = session.bring(a, layout)
    tau, keep = session.reserve((layout.local_shape(session.rank)[1] + layout.columns.tile) * ITEMSIZE[a.dtype])
    session.call("Geqrf", layout, m, n, work, tau, dtype=a.dtype, skip=(3,))
    q_layout, r_layout = to or (a.layout, a.layout.of_shape((n, n)))
    r = session.give(work, r_layout)
    session.call("Orgqr", layout, m, n, n, work, tau, dtype=a.dtype)
    del keep
    return _finish(session, session.give(work, q_layout)), r


def lstsq(session: Session, a: Given, b: Given, *, to: Layout | None = None, tile: int | None = None) -> Given:
    """The least-squares solution for m >= n and full rank."""
    (m, n), k = a.layout.shape, b.layout.shape[1]
    if m < n:
        raise NotImplementedError(f"lstsq: cuSOLVERMp takes at least as many rows as columns, and this matrix is {m} x {n}")
    layout = session.tiles(a.layout.shape, "lstsq", tile)
    work, x = session.bring(a, layout), session.bring(b, _sides(layout, b.layout.shape))
    if k:
        session.call("Gels", layout, _NO_TRANSPOSE, m, n, k, work, x, dtype=a.dtype)
    return _finish(session, session.give(x, to or b.layout.of_shape((n, k))))


def svd(
    session: Session,
    a: Given,
    *,
    vectors: bool = True,
    to: tuple[Layout, Layout] | None = None,
    tile: int | None = None,
) -> tuple[Given | None, np.ndarray, Given | None]:
    """U (m x k), the singular values on all ranks, V^H (k x n), k = min(m, n). Needs cuSOLVERMp 0.9."""
    m, n = a.layout.shape
    k = min(m, n)
    wide = m < n  # A^T = (V^H)^T S U^T
    rows, columns = (n, m) if wide else (m, n)
    session.library.routine("Gesvd")
    layout = session.tiles((rows, columns), "svd", tile)
    work = session.bring(a, layout, "T" if wide else "N")
    agree_finite(session, "svd", session.diagonal(work))
    tile, grid = layout.rows.tile, layout.grid
    u, vh = (session.empty(Layout.cyclic(s, tile, grid), a.dtype) for s in ((rows, k), (k, columns)))
    values, keep = session.reserve(k * ITEMSIZE[REAL[a.dtype]])
    settings = c_void_p()
    check(session.library.mp.cusolverMpGesvdDescriptorCreate(byref(settings)), "svd")
    job = int(vectors)
    info = session.call("Gesvd", layout, settings, job, job, rows, columns, work, values, u, vh, dtype=a.dtype)
    session.library.mp.cusolverMpGesvdDescriptorDestroy(settings)
    s = session.to_host(values, k, REAL[a.dtype]) if layout.place(session.rank) is not None else None
    if layout.size < session.size:
        s = session.told(s, "svd")[0]
    assert s is not None
    del keep
    if info or not np.isfinite(s).all():
        raise ConvergenceError("svd", nonfinite=not np.isfinite(s).all())
    if not vectors:
        session.done()
        return None, s, None
    to_u, to_vh = to or (a.layout.of_shape((m, k)), a.layout.of_shape((k, n)))
    left, right = (vh, u) if wide else (u, vh)
    turned = "T" if wide else "N"
    return session.give(left, to_u, turned), s, _finish(session, session.give(right, to_vh, turned))


# ---- their parts ---------------------------------------------------------------------------------------------------------


def _positive(session: Session, a: Given, layout: Layout, upper: bool, operation: str) -> Block:
    """L of A = L L^H; of conj(A) where A is given by its upper triangle.

    Of NaN and Inf in the input only those on the diagonal are named as such here; the caller's framework can look at all of it.
    """
    lower = session.bring(a, layout, "T" if upper else "N")
    finite = bool(np.isfinite(session.diagonal(lower)).all())  # behind a failing pivot the routine leaves NaN itself
    info = session.call("Potrf", layout, _LOWER, layout.shape[0], lower, dtype=a.dtype)
    pivots = session.diagonal(lower)
    bad = ~(np.isfinite(pivots) & (pivots.real > 0))
    places = diagonal_indices(layout, session.rank)[bad]
    mine = int(places.min()) + 1 if len(places) else 0
    # what is NaN may go through the routine without a word
    told = session.told((mine, finite), operation)
    if info or any(place for place, _ in told):
        nonfinite = not all(fine for _, fine in told)
        minor = info if info > 0 else _first_minor(session, a, layout, upper)
        raise NotPositiveDefiniteError(operation, minor=minor, nonfinite=nonfinite)
    return lower


def _first_minor(session: Session, a: Given, layout: Layout, upper: bool) -> int:
    """The first leading minor that is not positive, where the routine did not say: by bisection."""
    low, high = 0, layout.shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        work = session.bring(a, layout, "T" if upper else "N")
        info = session.call("Potrf", layout, _LOWER, middle, work, dtype=a.dtype)
        pivots = session.diagonal(work)[diagonal_indices(layout, session.rank) < middle]
        bad = not (np.isfinite(pivots) & (pivots.real > 0)).all()
        if info > 0:
            return info
        low, high = (low, middle) if info or any(session.told(bad, "cholesky")) else (middle, high)
    return high


def _lu(session: Session, a: Given, layout: Layout, operation: str) -> tuple[Block, tuple[int, Any]]:
    lu = session.bring(a, layout)
    rows, columns = layout.local_shape(session.rank)
    # the library's own pages differ on whether pivots go with the rows or the columns: room for either
    pivots = session.reserve(8 * (max(rows, columns) + layout.rows.tile))
    n = layout.shape[0]
    info = session.call("Getrf", layout, n, n, lu, pivots[0], dtype=a.dtype)
    diagonal = session.diagonal(lu)
    zero, lost = diagonal == 0, ~np.isfinite(diagonal)
    places = diagonal_indices(layout, session.rank)
    mine = int(places[zero | lost].min()) + 1 if (zero | lost).any() else 0
    told = [x for x in session.told((mine, bool(lost.any())), operation) if x[0]]
    if info or told:
        pivot = min([x[0] for x in told] + ([info] if info > 0 else []), default=n)
        raise SingularMatrixError(operation, pivot=pivot, nonfinite=any(nan for _, nan in told))
    return lu, pivots


def _sides(layout: Layout, shape: tuple[int, int]) -> Layout:
    """Right-hand sides in the same tiles and on the same grid: the library wants square ones."""
    return Layout(
        Axis.cyclic(shape[0], layout.rows.tile, layout.rows.parts),
        Axis.cyclic(shape[1], layout.rows.tile, layout.columns.parts),
    )


def _conjugated(session: Session, block: Block) -> Block:
    """conj(X), by turning it twice: the transpose conjugated, the other one not."""
    turned = session.empty(block.layout.transposed, block.dtype)
    rows, columns = block.layout.local_shape(session.rank)
    if rows and columns:
        session.turn("C", columns, rows, block.pointer, block.lead, turned.pointer, turned.lead, block.dtype)
        session.turn("T", rows, columns, turned.pointer, turned.lead, block.pointer, block.lead, block.dtype)
    session.runtime.wait(session.stream)
    return block


def _finish(session: Session, given: Given) -> Given:
    session.done()
    return given


def agree_finite(session: Session, operation: str, sample: np.ndarray) -> None:
    """NaN on the diagonal is told by all ranks before an iteration starts, which some versions would not leave."""
    lost = session.told(bool(not np.isfinite(sample).all()), operation)
    if any(lost):
        session.done()
        raise ConvergenceError(operation, nonfinite=True)
