"""Least squares: the x of smallest norm among those that minimise ||b - A x||."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import frameworks
from ..core.problem import Problem
from .checks import check_matrix, check_pair
from .solve import Columns
from .svd import SVD, _problem_of, _solve

__all__ = ["LstsqResult", "lstsq"]


class LstsqResult(NamedTuple):
    """What :func:`lstsq` returns."""

    x: Any
    residuals: Any
    rank: Any
    singular_values: Any


def lstsq(a: Any, b: Any, /, *, rcond: float | None = None, engine: str = "auto") -> LstsqResult:
    """Least-squares solution of A x = b for any shape and rank.

    Parameters
    ----------
    a : array, shape (..., m, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    b : array, shape (m,) or (..., m, k)
        The batch axes of ``a`` and ``b`` broadcast. Same library, dtype and device as ``a``.
    rcond : float, optional
        Singular values up to ``rcond`` times the largest count as zero. By default max(m, n) eps.
    engine : str
        "auto", or one of ``lapwing.engines()``.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)
        Of smallest norm, where more than one is best.
    residuals : real array, shape (...) or (..., k)
        ||b - A x||^2 for each right-hand side, also where it is zero or the rank is not full.
    rank : int32 array, shape (...)
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
    framework = frameworks.of(a, "lstsq")
    check_matrix("lstsq", framework.shape_of(a), framework.dtype_of(a))
    check_pair("lstsq", framework, frameworks.of, a, b)
    if rcond is not None and not (isinstance(rcond, (int, float, np.floating)) and rcond >= 0):
        raise ValueError(f"lstsq: rcond={rcond!r} is not a number from 0 on")
    xp = framework.Namespace
    columns = Columns("lstsq", framework, a, b)
    a, b = columns.a, columns.b
    u, s, vh, _ = _solve(framework, "lstsq", SVD, a, (0, 0), "raise", engine)
    m, n = xp.shape(a)[-2:]
    if rcond is None:
        longer = max(m, n) if isinstance(m, int) and isinstance(n, int) else xp.longer(m, n, s)
        rcond = float(np.finfo(xp.dtype_name(s)).eps) * longer
    good = s > rcond * xp.largest(s)
    inverse = xp.where(good, 1 / xp.where(good, s, xp.ones_like(s)), xp.zeros_like(s))
    # x <- V S^+ U^H b
    x = xp.matmul(xp.adjoint(vh), xp.like(inverse, a)[..., :, None] * xp.matmul(xp.adjoint(u), b))
    left = b - xp.matmul(a, x)
    residuals = xp.sum(xp.real(left * xp.conj(left)), -2)
    rank = xp.sum(xp.whole(good), -1)
    return LstsqResult(columns.back(x), columns.back_row(residuals), rank, s)


def _problem(a: Any, b: Any = None, **_: Any) -> Problem:
    return _problem_of("svd", a)


lstsq.problem = _problem  # type: ignore[attr-defined]
