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

from ....core.errors import ConvergenceError, SingularMatrixError
from ....core.problem import ITEMSIZE, REAL
from ...layout import Layout
from .blocks import Given, diagonal
from .factor import Factored, conjugated, factor, sides_of
from .library import check, missing
from .open import open_session
from .polar import polar
from .session import Session, on_device

__all__ = [
    "Factored",
    "Given",
    "Session",
    "cholesky",
    "eigh",
    "factor",
    "inv",
    "lstsq",
    "missing",
    "on_device",
    "open_session",
    "polar",
    "qr",
    "slogdet",
    "solve",
    "svd",
]

_LOWER, _NO_TRANSPOSE = 0, 0


def cholesky(session: Session, a: Given, *, upper: bool = False, tile: int | None = None, operation: str = "cholesky") -> Given:
    """The factor in the layout of ``a``. The other triangle is not cleared: the caller's framework does that."""
    return factor(session, a, pos=True, upper=upper, tile=tile, operation=operation).triangle(a.layout)


def solve(
    session: Session, a: Given, b: Given, *, pos: bool, upper: bool = False, tile: int | None = None, operation: str = "solve"
) -> Given:
    """X of A X = B, in the layout of ``b``."""
    return factor(session, a, pos=pos, upper=upper, tile=tile, operation=operation).solve(b)


def inv(session: Session, a: Given, *, pos: bool, upper: bool = False, tile: int | None = None) -> Given:
    """The inverse, in the layout of ``a``."""
    return factor(session, a, pos=pos, upper=upper, tile=tile, operation="inv").inv(a.layout)


def slogdet(session: Session, a: Given, *, pos: bool, upper: bool = False, tile: int | None = None) -> tuple[Any, float]:
    """Sign and logarithm of the absolute determinant, the same on all ranks.

    Raises
    ------
    NotPositiveDefiniteError
        Where ``pos``.
    SingularMatrixError
        With ``nonfinite`` where it has a determinant that is not 0, or none: numbers too large to add, or NaN.
    """
    return factor(session, a, pos=pos, upper=upper, tile=tile, operation="slogdet").slogdet(destroy=True)


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
    agree_finite(session, "eigh", diagonal(session, work))
    values, keep = session.reserve(n * ITEMSIZE[REAL[a.dtype]])
    q = session.empty(layout, a.dtype)
    letter = session.library.eigenvectors if vectors or not session.library.values_alone else b"N"
    job = (c_char * 2)(letter, b"\0")
    info = session.call("Syevd", layout, job, _LOWER, n, work, values, q, dtype=a.dtype)
    w = session.to_host(values, n, REAL[a.dtype]) if layout.place(session.rank) is not None else None
    if layout.size < session.size:
        w = session.told(w, "eigh")[0]
    assert w is not None
    del keep, work
    if info or not np.isfinite(w).all():
        raise ConvergenceError("eigh", nonfinite=not np.isfinite(w).all())
    w = w[first : first + count]
    if not vectors:
        session.done()
        return w, None
    target = to or a.layout.of_shape((n, count))
    if upper and a.dtype.startswith("complex"):  # those of conj(A)
        q = conjugated(session, q)
    return w, _finish(session, session.give(q, target, "N", (0, first)))


def qr(session: Session, a: Given, *, to: tuple[Layout, Layout] | None = None, tile: int | None = None) -> tuple[Given, Given]:
    """Q (m x n) and R (n x n) for m >= n. Below R's diagonal is not cleared: the caller's framework does that."""
    m, n = a.layout.shape
    if m < n:
        raise NotImplementedError(
            f"qr: cuSOLVERMp forms Q of matrices with at least as many rows as columns, and this one is {m} x {n}"
            "\nhint: qr of the conjugate transpose, A^H = Q R, gives A = R^H Q^H"
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
        raise NotImplementedError(
            f"lstsq: cuSOLVERMp takes at least as many rows as columns, and this matrix is {m} x {n}"
            "\nhint: the x of least norm is A^H y, with (A A^H) y = b: lapwing.solve(..., assume='pos')"
        )
    layout = session.tiles(a.layout.shape, "lstsq", tile)
    work, x = session.bring(a, layout), session.bring(b, sides_of(layout, b.layout.shape))
    if k and (info := session.call("Gels", layout, _NO_TRANSPOSE, m, n, k, work, x, dtype=a.dtype)):
        raise SingularMatrixError("lstsq", pivot=info)
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
    agree_finite(session, "svd", diagonal(session, work))
    u, vh = (session.empty(sides_of(layout, shape), a.dtype) for shape in ((rows, k), (k, columns)))
    values, keep = session.reserve(k * ITEMSIZE[REAL[a.dtype]])
    settings, library = c_void_p(), session.library.mp
    session.together(lambda: check(library.cusolverMpGesvdDescriptorCreate(byref(settings)), "svd"))
    job = int(vectors)
    try:
        info = session.call("Gesvd", layout, settings, job, job, rows, columns, work, values, u, vh, dtype=a.dtype)
    finally:
        library.cusolverMpGesvdDescriptorDestroy(settings)
    s = session.to_host(values, k, REAL[a.dtype]) if layout.place(session.rank) is not None else None
    if layout.size < session.size:
        s = session.told(s, "svd")[0]
    assert s is not None
    del keep, work
    if info or not np.isfinite(s).all():
        raise ConvergenceError("svd", nonfinite=not np.isfinite(s).all())
    if not vectors:
        session.done()
        return None, s, None
    to_u, to_vh = to or (a.layout.of_shape((m, k)), a.layout.of_shape((k, n)))
    left, right = (vh, u) if wide else (u, vh)
    turned = "T" if wide else "N"
    return session.give(left, to_u, turned), s, _finish(session, session.give(right, to_vh, turned))


def _finish(session: Session, given: Given) -> Given:
    session.done()
    return given


def agree_finite(session: Session, operation: str, sample: np.ndarray) -> None:
    """NaN on the diagonal is told by all ranks before an iteration starts, which some versions would not leave."""
    lost = session.told(bool(not np.isfinite(sample).all()), operation)
    if any(lost):
        session.done()
        raise ConvergenceError(operation, nonfinite=True)
