"""Functions computed from singular values: pseudo-inverse, rank, condition number, norms."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Never

import numpy as np

from .. import frameworks
from ..core.checks import as_array, check_flag, check_matrix, check_square
from ..core.errors import ConvergenceError
from ..core.keywords import unknown_keyword
from .eigh import eigh, eigvalsh
from .solve import inv, solve
from .svd import svd, svdvals
from .triangle import whole_matrix

_EPS = {name: float(np.finfo(name).eps) for name in ("float32", "float64")}
_NORMS = ("fro", "nuc", 1, -1, 2, -2, inf, -inf)


def pinv(a: Any, /, *, rcond: Any = None, hermitian: bool = False, **unknown: Never) -> Any:
    """Pseudo-inverse of Moore and Penrose, for matrices of any shape and rank.

    Parameters
    ----------
    a : array, shape (..., m, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    rcond : float or array, shape (...), optional
        Singular values up to ``rcond`` times the largest count as zero. By default max(m, n) eps.
    hermitian : bool
        The matrices are Hermitian, and only the lower triangle is read.

    Returns
    -------
    array, shape (..., n, m)

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf, or the iteration did not converge.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    Notes
    -----
    The derivative is right at equal singular values too. Where the rank is not full it is that of a change that keeps the rank:
    for other changes the pseudo-inverse is not continuous.

    See Also
    --------
    lstsq : pinv(A) b, without the matrix pinv(A).

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.pinv(np.array([[2.0, 0.0], [0.0, 0.0], [0.0, 4.0]]))
    array([[0.5 , 0.  , 0.  ],
           [0.  , 0.  , 0.25]])
    """
    if unknown:
        raise unknown_keyword(pinv, unknown)
    framework = frameworks.ordinary(a, "pinv")
    if framework.sharded:
        return framework.call(pinv, a, rcond=rcond, hermitian=hermitian)
    xp = framework.Namespace
    if _check("pinv", framework, a, hermitian):
        w, v = _factored("pinv", eigh, xp.constant(a))
        s, vh = xp.abs(w), xp.adjoint(v)
        u = v * xp.like(xp.where(w < 0, -xp.ones_like(w), xp.ones_like(w)), v)[..., None, :]
        a, largest = whole_matrix(framework, a, 0) if framework.differentiates(a) else a, xp.largest(s)
    else:
        u, s, vh = _factored("pinv", svd, xp.constant(a))
        largest = s[..., :1]
    good = _above(xp, a, s, largest, rcond, "pinv: rcond")
    inverse = xp.like(xp.where(good, 1 / xp.where(good, s, xp.ones_like(s)), xp.zeros_like(s)), u)
    # A^+ = V S^+ U^H
    left, right = xp.adjoint(vh) * inverse[..., None, :], xp.adjoint(u)
    value = xp.matmul(left, right)
    if not framework.differentiates(a):
        return value
    smooth = _smooth_pinv(xp, a, left, inverse[..., :, None] * right, xp.like(good, u))
    return value + (smooth - xp.constant(smooth))


def _smooth_pinv(xp: Any, a: Any, w: Any, z: Any, good: Any) -> Any:
    """The pseudo-inverse as a function of A near one that has the same rank; W = V S^+ and Z = S^+ U^H are constants.

    A = E M^+ F with E = A W, F = Z A and M = Z A W, so A^+ = F^+ M E^+. E has orthonormal columns and F orthonormal rows, so
    E^H E and F F^H are well conditioned. A one is added to the diagonal for columns of zeros.
    """
    e, f = xp.matmul(a, w), xp.matmul(z, a)
    m, eh, fh = xp.matmul(z, e), xp.adjoint(e), xp.adjoint(f)
    ones = xp.diag(1 - good)
    inner = xp.matmul(m, solve(xp.matmul(eh, e) + ones, eh, assume="pos", on_fail="nan"))
    return xp.matmul(fh, solve(xp.matmul(f, fh) + ones, inner, assume="pos", on_fail="nan"))


def matrix_rank(a: Any, /, *, rtol: Any = None, hermitian: bool = False, **unknown: Never) -> Any:
    """How many singular values are not zero.

    Parameters
    ----------
    a : array, shape (..., m, n)
        As for :func:`pinv`.
    rtol : float or array, shape (...), optional
        Singular values up to ``rtol`` times the largest count as zero. By default max(m, n) eps.
    hermitian : bool
        The matrices are Hermitian, and only the lower triangle is read.

    Returns
    -------
    integer array, shape (...)

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf, or the iteration did not converge.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    svdvals

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> int(lw.matrix_rank(np.ones((3, 3))))
    1
    """
    if unknown:
        raise unknown_keyword(matrix_rank, unknown)
    framework = frameworks.ordinary(a, "matrix_rank")
    if framework.sharded:
        return framework.call(matrix_rank, a, rtol=rtol, hermitian=hermitian)
    xp = framework.Namespace
    hermitian = _check("matrix_rank", framework, a, hermitian)
    a = xp.constant(a)
    s = xp.abs(_factored("matrix_rank", eigvalsh, a)) if hermitian else _factored("matrix_rank", svdvals, a)
    return xp.scalar(xp.sum(xp.whole(_above(xp, a, s, xp.largest(s), rtol, "matrix_rank: rtol")), -1))


def cond(a: Any, /, *, p: Any = None, **unknown: Never) -> Any:
    """Condition number ||A|| ||A^-1||.

    Parameters
    ----------
    a : array, shape (..., m, n)
        As for :func:`pinv`; square where ``p`` is neither 2 nor -2.
    p : {None, 2, -2, 1, -1, inf, -inf, "fro", "nuc"}
        The norm. None is 2: the ratio of the largest and the smallest singular value. -2 is its reciprocal.

    Returns
    -------
    real array, shape (...)
        Inf for a singular matrix, NaN for one with NaN or Inf.

    Raises
    ------
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    Factor.rcond : an estimate that costs less once a matrix is factored.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> float(lw.cond(np.diag([4.0, 2.0])))
    2.0
    """
    if unknown:
        raise unknown_keyword(cond, unknown)
    framework = frameworks.ordinary(a, "cond")
    if framework.sharded:
        return framework.call(cond, a, p=p)
    check_norm("cond", "p", p, (None, *_NORMS))
    a = as_array(a)
    check_matrix("cond", framework.shape_of(a), framework.dtype_of(a))
    xp = framework.Namespace
    if p in (None, 2, -2):
        s = svdvals(a, on_fail="nan")
        if s.shape[-1] == 0:
            raise ValueError(f"cond: an empty matrix has no condition number, got shape {tuple(framework.shape_of(a))}")
        with xp.quiet():
            ratio = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
            # 0 / 0 of a matrix of zeros
            limit = xp.zeros_like(ratio) if p == -2 else xp.ones_like(ratio) * inf
            return xp.scalar(xp.where(s[..., 0] == 0, limit, ratio))
    check_square("cond", framework.shape_of(a), framework.dtype_of(a))
    with xp.quiet():
        product = matrix_norm(a, p) * matrix_norm(inv(a, on_fail="nan"), p)
        finite = xp.isfinite(matrix_norm(a, 1))
        # the inverse of a singular matrix is NaN
        return xp.scalar(xp.where(finite & (product != product), xp.ones_like(product) * inf, product))


def matrix_norm(a: Any, ord: Any = "fro", keepdims: bool = False) -> Any:
    """The norm of each matrix; norms from singular values are NaN for a matrix with NaN or Inf."""
    framework = frameworks.of(a, "matrix_norm")
    if ord not in (2, -2, "nuc"):
        return framework.light.matrix_norm(a, ord=ord, keepdims=keepdims)
    check_matrix("matrix_norm", framework.shape_of(a), framework.dtype_of(a))
    xp = framework.Namespace
    s = svdvals(a, on_fail="nan")
    if ord == -2 and s.shape[-1] == 0:
        shape = tuple(framework.shape_of(a))
        raise ValueError(f"matrix_norm: an empty matrix has no smallest singular value, got shape {shape}")
    norm = xp.sum(s, -1) if ord == "nuc" else s[..., -1] if ord == -2 else xp.largest(s)[..., 0]
    return norm[..., None, None] if keepdims else xp.scalar(norm)


def check_norm(name: str, word: str, value: Any, known: tuple[Any, ...] = _NORMS) -> None:
    if isinstance(value, bool) or value not in known:
        raise ValueError(f"{name}: {word}={value!r} is not known\nhint: use one of {', '.join(map(repr, known))}")


def _factored(name: str, function: Callable[..., Any], a: Any) -> Any:
    """``function(a)``; errors name the public function ``name``."""
    try:
        return function(a)
    except ConvergenceError as error:
        raise error.changed(operation=name) from None


def _check(name: str, framework: Any, a: Any, hermitian: bool) -> bool:
    hermitian = check_flag(name, "hermitian", hermitian)
    (check_square if hermitian else check_matrix)(name, framework.shape_of(a), framework.dtype_of(a))
    return hermitian


def _above(xp: Any, a: Any, s: Any, largest: Any, rtol: Any, name: str) -> Any:
    """Which singular values are above rtol times the largest. ``name``: the function and option for error messages."""
    if isinstance(rtol, (list, tuple)):
        raise TypeError(
            f"{name} must be a number or an array, got {type(rtol).__name__}\nhint: make it an array of the matrix's library"
        )
    if rtol is None:
        m, n = xp.shape(a)[-2:]
        known = isinstance(m, int) and isinstance(n, int)
        rtol = _EPS[xp.dtype_name(s)] * (max(m, n) if known else xp.longer(m, n, s))
    elif len(getattr(rtol, "shape", ())):
        rtol = xp.like(rtol, s)[..., None]
    return s > rtol * largest
