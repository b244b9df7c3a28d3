"""The polar decomposition of a square matrix by Newton's iteration, from LU factorisations and solves alone.

X <- (g X + X^-H / g) / 2 converges to the unitary factor of a nonsingular matrix: 6 to 10 steps of 8/3 n^3 flops each, with g
from the Frobenius norms of both (Higham). The library has its own routine only since version 0.9; this one works with all
versions, and uses only routines that were tested on a GPU.
"""

from __future__ import annotations

from ctypes import byref, c_double, c_float
from typing import Any

import numpy as np

from ....core.errors import ConvergenceError
from ....core.problem import REAL
from ...layout import Layout
from .blocks import Operand, identity
from .exchange import Block, exchange
from .factor import Factored, lu_of
from .library import check_blas
from .session import Session, scalar

_STEPS = 40
_PART = 1 << 30  # elements for one call of cuBLAS, which counts in 32 bits
_NORM = {"float32": "Snrm2", "float64": "Dnrm2", "complex64": "Scnrm2", "complex128": "Dznrm2"}
_SUM = {"float32": "Sgeam", "float64": "Dgeam", "complex64": "Cgeam", "complex128": "Zgeam"}


def polar(
    session: Session, a: Operand, *, left: bool = False, to: tuple[Layout, Layout] | None = None
) -> tuple[Operand, Operand]:
    """U and P of A = U P, or with ``left`` of A = P U; for square matrices.

    Raises
    ------
    SingularMatrixError
        U of a singular matrix is not unique, and the iteration finds none.
    ConvergenceError
    """
    layout = session.tiles(a.layout.shape, "solve")
    # A = P U is A^T = U^T P^T
    turned = "T" if left else "N"
    u = session.bring(a, layout, turned)
    _iterate(session, u)
    # U P = A: the solve is a product with U^H
    p = session.bring(a, layout, turned)
    Factored(session, *lu_of(session, _operand(u), layout, "polar"), False)._apply(p)
    other = _adjoint(session, p)
    _add(session, 0.5, p, 0.5, other, p)
    to_u, to_p = to or (a.layout, a.layout)
    return session.give(u, to_u, turned), session.deliver(p, to_p, turned)


def _iterate(session: Session, x: Block) -> None:
    """X <- its unitary factor."""
    n = x.layout.shape[0]
    eps = float(np.finfo(REAL[x.dtype]).eps)
    for _ in range(_STEPS):
        work, pivots = lu_of(session, _operand(x), x.layout, "polar")
        inverse = identity(session, x.layout, x.dtype)
        Factored(session, work, pivots, False)._apply(inverse)
        y = _adjoint(session, inverse)
        del inverse
        _add(session, 1.0, x, -1.0, y, work)
        away = _norm(session, work) / n**0.5
        size, other = _norm(session, x), _norm(session, y)
        if not np.isfinite([away, size, other]).all():
            raise ConvergenceError("polar", nonfinite=True)
        # close to the end, plain Newton steps, which square the distance
        g = 1.0 if away < 0.1 else other**0.5 / size**0.5  # the quotient may over- or underflow
        _add(session, g / 2, x, 0.5 / g, y, x)
        session.runtime.wait(session.stream)
        if away <= max(eps**0.5, n * eps):  # the distance after this step is at most its square
            return
    raise ConvergenceError("polar", nonfinite=False)


def _operand(x: Block) -> Operand:
    return Operand(x.pointer, x.layout, x.dtype, False, x.owner)


def _adjoint(session: Session, x: Block) -> Block:
    adjoint = exchange(session, x, x.layout, lambda: session._empty(x.layout, x.dtype), "C")
    session.runtime.wait(session.stream)
    return adjoint


def _add(session: Session, alpha: float, x: Block, beta: float, y: Block, out: Block) -> None:
    """out <- alpha X + beta Y, all in the same layout."""
    rows, columns = x.layout.local_shape(session.rank)
    if rows and columns:
        call = getattr(session.library.blas, f"cublas{_SUM[x.dtype]}")
        weights = scalar(x.dtype, alpha), scalar(x.dtype, beta)
        summands = weights[0], x.pointer, x.lead, weights[1], y.pointer, y.lead
        check_blas(call(session.blas, 0, 0, rows, columns, *summands, out.pointer, out.lead))


def _norm(session: Session, x: Block) -> float:
    """Frobenius norm, the same on all ranks."""
    rows, columns = x.layout.local_shape(session.rank)
    call: Any = getattr(session.library.blas, f"cublas{_NORM[x.dtype]}_v2")
    norms = [0.0]
    for start in range(0, rows * columns, _PART):  # the columns follow each other
        part = (c_float if REAL[x.dtype] == "float32" else c_double)()
        count = min(_PART, rows * columns - start)
        check_blas(call(session.blas, count, x.pointer + start * x.itemsize, 1, byref(part)))
        norms.append(part.value)
    parts = np.concatenate(session.allgather(np.array(norms), "polar"))
    largest = float(parts.max())
    # scaled: the squares may over- or underflow
    return largest * float(np.linalg.norm(parts / largest)) if 0 < largest < np.inf else largest
