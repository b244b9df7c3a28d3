"""Least squares: the x of smallest norm among those that minimise ||b - A x||."""

from __future__ import annotations

from typing import Any, NamedTuple, Never

import numpy as np

from .. import frameworks
from ..core.checks import check_matrix, check_pair
from ..core.keywords import unknown_keyword
from ..core.problem import ADJOINT, UPPER, Problem, Spec
from ..core.request import RIGHT, VALUE, Request
from .qr import QR
from .solve import Columns
from .svd import SVD, _problem_of, _solve
from .systems import TRIANGULAR


class LstsqResult(NamedTuple):
    """The results of :func:`lstsq`."""

    x: Any
    residuals: Any
    rank: Any
    singular_values: Any


def lstsq(a: Any, b: Any, /, *, rcond: float | None = None, engine: str = "auto", **unknown: Never) -> LstsqResult:
    """Least-squares solution of A x = b for any shape and rank.

    Parameters
    ----------
    a : array, shape (..., m, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    b : array, shape (m,) or (..., m, k)
        The batch axes of ``a`` and ``b`` broadcast. Same library and device as ``a``; two dtypes are promoted to the one that
        holds both.
    rcond : float, optional
        Singular values up to ``rcond`` times the largest count as zero. By default max(m, n) eps; -1 is eps, as in NumPy.
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)
        Of smallest norm, where more than one is best.
    residuals : real array, shape (...) or (..., k)
        ||b - A x||^2 for each right-hand side, also where it is zero or the rank is not full.
    rank : integer array, shape (...)
    singular_values : real array, shape (..., min(m, n))
        Of ``a``, descending.

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf, or the iteration did not converge.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    solve : square matrices that are not singular.
    qr, svd

    Notes
    -----
    By the singular value decomposition of A: the condition number is not squared. The rank has no derivative.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> a = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])  # a line through three points
    >>> lw.lstsq(a, np.array([1.0, 3.0, 5.0])).x
    array([2., 1.])
    """
    if unknown:
        raise unknown_keyword(lstsq, unknown)
    framework = frameworks.entry(a, "lstsq")
    if framework.sharded:
        return framework.call(lstsq, a, b, rcond=rcond, engine=engine)  # type: ignore[no-any-return]
    _check(framework.shape_of(a), framework.dtype_of(a), rcond)
    a, b = check_pair("lstsq", framework, frameworks.of, a, b)
    xp = framework.Namespace
    columns = Columns("lstsq", framework, *map(_plain, (a, b)))
    a, b = columns.a, columns.b
    # A and the columns of b are near one from here on: nothing on the way to x leaves the range
    size_a, size_b = (xp.power_of_two(x) for x in (_largest(xp, _largest(xp, a, -1), -2), _largest(xp, b, -2)))
    with xp.quiet():
        near_a, near_b = a / xp.like(size_a, a), b / xp.like(size_b, b)
    u, s, vh, _ = _solve(framework, "lstsq", SVD, near_a, (0, 0), "raise", engine)
    m, n = xp.shape(a)[-2:]
    if rcond is None or rcond == -1:
        longer = 1 if rcond else max(m, n) if isinstance(m, int) and isinstance(n, int) else xp.longer(m, n, s)
        rcond = float(np.finfo(xp.dtype_name(s)).eps) * longer
    good = s > rcond * xp.largest(s)
    with xp.quiet():  # the results themselves may be out of range
        x, residuals = _minimise(xp, u, s, vh, good, near_a, near_b)
        x, s = x * xp.like(size_b / size_a, x), s * size_a[..., 0]
        residuals = residuals * size_b[..., 0, :] * size_b[..., 0, :]
    if framework.differentiates(a) and isinstance(m, int) and isinstance(n, int) and 0 not in (m, n):
        x = _where_rank_is_full(xp, good, a, b, x)
        left = b - xp.matmul(a, x)
        residuals = xp.sum(xp.real(left * xp.conj(left)), -2)
    rank = xp.sum(xp.whole(good), -1)
    return LstsqResult(columns.back(x), columns.back_row(residuals), rank, s)


def _largest(xp: Any, x: Any, axis: int) -> Any:
    """The largest size of an element along an axis, which stays."""
    size = xp.abs(x)
    return xp.largest(size) if axis == -1 else xp.swap(xp.largest(xp.swap(size)))


def _minimise(xp: Any, u: Any, s: Any, vh: Any, good: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """x <- V S^+ U^H b, and ||b - A x||^2."""
    kept = xp.like(xp.where(good, s, xp.ones_like(s)), a)[..., :, None]
    x = xp.matmul(xp.adjoint(vh), xp.like(good, a)[..., :, None] * xp.matmul(xp.adjoint(u), b) / kept)
    left = b - xp.matmul(a, x)
    return x, xp.sum(xp.real(left * xp.conj(left)), -2)


def _plain(x: Any) -> Any:
    """Products of a numpy.matrix are not those of an array."""
    return x.view(np.ndarray) if isinstance(x, np.matrix) else x


def _check(shape: tuple[Any, ...], dtype: str, rcond: Any) -> None:
    check_matrix("lstsq", shape, dtype)
    known = rcond is None or (isinstance(rcond, (int, float, np.floating)) and (rcond >= 0 or rcond == -1))
    if not known or isinstance(rcond, bool):
        raise ValueError(f"lstsq: rcond={rcond!r} is not a number >= 0\nhint: -1 means eps, None max(m, n) eps")


def _request(a: Spec, *, rcond: float | None = None, engine: str = "auto") -> Request:
    _check(a.shape, a.dtype, rcond)
    return Request(lstsq, "lstsq", (RIGHT, VALUE, VALUE, VALUE), LstsqResult, rcond=rcond, engine=engine)


lstsq.request = _request  # type: ignore[attr-defined]


def _where_rank_is_full(xp: Any, good: Any, a: Any, b: Any, x: Any) -> Any:
    """The same x by A = Q R, or A^H = Q R: its derivatives hold where singular values are equal."""
    m, n = xp.shape(a)[-2:]
    full = ~xp.any(~good, -1)[..., None, None]
    # some matrix of full rank for the way that is not taken, whose derivatives must be finite
    safe = xp.where(full, a, xp.tril(xp.triu(xp.ones_like(a), 0), 0))
    q, r = xp.call(QR, (safe if m >= n else xp.adjoint(safe),), (0, 0))
    if m >= n:
        (y, _) = xp.call(TRIANGULAR, (r, xp.matmul(xp.adjoint(q), b)), (UPPER,))
    else:
        (z, _) = xp.call(TRIANGULAR, (r, b), (UPPER | ADJOINT,))
        y = xp.matmul(q, z)
    return xp.where(full, y - xp.constant(y - x), x)


def _problem(a: Any, b: Any = None, **_: Any) -> Problem:
    return _problem_of("svd", a)


lstsq.problem = _problem  # type: ignore[attr-defined]
