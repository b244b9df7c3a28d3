"""cuSOLVERMp: matrices spread over NVIDIA GPUs, one process for each GPU, an NCCL communicator of its own.

Each operation copies its operands into tiles over a grid (:mod:`.exchange`), runs one or two routines of the library on the
copy, compares the statuses of all ranks, and moves the results into the layout that was asked for. The calls wait for the
device, as the library's own do.

Blocks are row-major or column-major (:class:`Operand`); the library takes column-major blocks and lower triangles only. The
upper triangle of A is the lower one of its transpose, which is the conjugate of A, so the same memory serves.

This code was run on several ranks with a stand-in for the libraries, and on one H200 with one rank.
"""

from __future__ import annotations

from ctypes import byref, c_char, c_void_p

import numpy as np

from ....core.errors import ConvergenceError, SingularMatrixError
from ....core.problem import ITEMSIZE, REAL
from ...layout import Layout
from .blocks import Operand, diagonal
from .factor import conjugated, sides_of
from .library import check
from .session import Session

_LOWER, _NO_TRANSPOSE = 0, 0


def eigh(
    session: Session,
    a: Operand,
    *,
    vectors: bool = True,
    upper: bool = False,
    part: tuple[int, int] | None = None,
    to: Layout | None = None,
) -> tuple[np.ndarray, Operand | None]:
    """Eigenvalues, the same on all ranks, and vectors in the layout ``to`` (by default that of ``a``); ``part``: first, count.

    All eigenvalues are computed, as the library has no routine for a part of the spectrum.
    """
    n = a.layout.shape[0]
    first, count = part or (0, n)
    layout = session.tiles(a.layout.shape, "eigh")
    work = session.bring(a, layout, "T" if upper else "N")
    agree_finite(session, "eigh", diagonal(session, work))
    values, keep = session.reserve(n * ITEMSIZE[REAL[a.dtype]])
    q = session.empty(layout, a.dtype)
    letter = session.library.eigenvectors if vectors or not session.library.values_alone else b"N"
    job = (c_char * 2)(letter, b"\0")
    info = session.call("Syevd", layout, job, _LOWER, n, work, values, q, dtype=a.dtype)
    w = _values(session, "eigh", layout, values, n, REAL[a.dtype], info)
    del keep, work
    w = w[first : first + count]
    if not vectors:
        session.done()
        return w, None
    target = to or a.layout.of_shape((n, count))
    if upper and a.dtype.startswith("complex"):  # those of conj(A)
        q = conjugated(session, q)
    return w, session.deliver(q, target, "N", (0, first))


def qr(session: Session, a: Operand, *, to: tuple[Layout, Layout] | None = None) -> tuple[Operand, Operand]:
    """Q (m x n) and R (n x n) for m >= n. The lower triangle of R is not cleared: the caller does that."""
    m, n = a.layout.shape
    if m < n:
        raise NotImplementedError(
            f"qr: cuSOLVERMp forms Q only for at least as many rows as columns, and this matrix is {m} x {n}"
            "\nhint: qr of the conjugate transpose, A^H = Q R, gives A = R^H Q^H"
        )
    layout = session.tiles(a.layout.shape, "qr")
    work = session.bring(a, layout)
    tau, keep = session.reserve((layout.local_shape(session.rank)[1] + layout.columns.tile) * ITEMSIZE[a.dtype])
    session.call("Geqrf", layout, m, n, work, tau, dtype=a.dtype, skip=(3,))
    q_layout, r_layout = to or (a.layout, a.layout.of_shape((n, n)))
    r = session.give(work, r_layout)
    session.call("Orgqr", layout, m, n, n, work, tau, dtype=a.dtype)
    del keep
    return session.deliver(work, q_layout), r


def lstsq(session: Session, a: Operand, b: Operand, *, to: Layout | None = None) -> Operand:
    """The least-squares solution for m >= n and full rank."""
    (m, n), k = a.layout.shape, b.layout.shape[1]
    if m < n:
        raise NotImplementedError(
            f"lstsq: cuSOLVERMp needs at least as many rows as columns, and this matrix is {m} x {n}"
            "\nhint: the x of least norm is A^H y, with (A A^H) y = b: lapwing.solve(..., assume='pos')"
        )
    layout = session.tiles(a.layout.shape, "lstsq")
    work, x = session.bring(a, layout), session.bring(b, sides_of(layout, b.layout.shape))
    if k and (info := session.call("Gels", layout, _NO_TRANSPOSE, m, n, k, work, x, dtype=a.dtype)):
        raise SingularMatrixError("lstsq", pivot=info)
    return session.deliver(x, to or b.layout.of_shape((n, k)))


def svd(
    session: Session,
    a: Operand,
    *,
    vectors: bool = True,
    to: tuple[Layout, Layout] | None = None,
) -> tuple[Operand | None, np.ndarray, Operand | None]:
    """U (m x k), the singular values on all ranks, V^H (k x n), k = min(m, n). Needs cuSOLVERMp 0.9."""
    m, n = a.layout.shape
    k = min(m, n)
    wide = m < n  # A^T = (V^H)^T S U^T
    rows, columns = (n, m) if wide else (m, n)
    session.library.routine("Gesvd")
    layout = session.tiles((rows, columns), "svd")
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
    s = _values(session, "svd", layout, values, k, REAL[a.dtype], info)
    del keep, work
    if not vectors:
        session.done()
        return None, s, None
    to_u, to_vh = to or (a.layout.of_shape((m, k)), a.layout.of_shape((k, n)))
    left, right = (vh, u) if wide else (u, vh)
    turned = "T" if wide else "N"
    return session.give(left, to_u, turned), s, session.deliver(right, to_vh, turned)


def _values(session: Session, operation: str, layout: Layout, pointer: int, count: int, dtype: str, info: int) -> np.ndarray:
    """Eigenvalues or singular values, on all ranks; ConvergenceError if the routine failed."""
    values = session.to_host(pointer, count, dtype) if layout.place(session.rank) is not None else None
    if layout.size < session.size:
        values = session.allgather(values, operation)[0]
    assert values is not None
    finite = bool(np.isfinite(values).all())
    if info or not finite:
        raise ConvergenceError(operation, nonfinite=not finite)
    return values


def agree_finite(session: Session, operation: str, sample: np.ndarray) -> None:
    """Raise on all ranks if one of them has NaN on the diagonal: in some versions the iteration would never end."""
    if any(session.allgather(bool(not np.isfinite(sample).all()), operation)):
        session.done()
        raise ConvergenceError(operation, nonfinite=True)
