"""Functions of square matrices: exponential, square root, logarithm, inverse roots.

They are composed of lapwing's eigh, schur, solve and inv and of products. A function of a Hermitian matrix has its value from
eigh, and its derivative from :func:`_with_derivatives`, which is right at equal eigenvalues too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, comb, factorial, inf, log, log2
from typing import Any, Literal, Never

import numpy as np

from .. import frameworks
from ..core.checks import as_array, check_choice, check_square
from ..core.errors import ConvergenceError, NotPositiveDefiniteError
from ..core.keywords import unknown_keyword
from .cholesky import cholesky_ex
from .eig import schur
from .eigh import eigh
from .failure import first_failure
from .singular_values import matrix_norm
from .solve import inv, slogdet, solve
from .triangle import whole_matrix

# Orders of Pade's approximation to exp, and the norms up to which they are exact to rounding (Higham, 2005).
_PADE = {
    "float32": (3.925724783138660, (17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1)),
    "float64": (
        5.371920351148152,
        (
            *(64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600),
            *(670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1),
        ),
    ),
}
_SQUARINGS = 24  # in traced code, where the norm is not known: norms up to 5e7
_ROOT_STEPS = 30  # scaled Newton converges in about ten steps
_TRACED_ROOT_STEPS = 16
_ROOTS_OF_LOG = 40
_TRACED_ROOTS_OF_LOG = 8
_LOG_RADIUS, _LOG_NODES = 0.25, 8  # |A - I| up to which 8 nodes give log(A) to rounding (Higham, 2001)
_EIGH_TO = 96  # orders up to which eigh gives inverse roots faster than products on a GPU


def expm(a: Any, /, **unknown: Never) -> Any:
    """Matrix exponential, by scaling and squaring.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.

    Returns
    -------
    array, shape (..., n, n)
        NaN for a matrix with NaN or Inf; in traced code also for most with a 1-norm above 5e7.

    Raises
    ------
    ValueError, TypeError
        Wrong shape or dtype.

    See Also
    --------
    logm : the inverse function.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.expm(np.array([[0.0, 1.0], [0.0, 0.0]]))
    array([[1., 1.],
           [0., 1.]])
    """
    if unknown:
        raise unknown_keyword(expm, unknown)
    framework, a = _checked(expm, a)
    if framework.sharded:
        return framework.call(expm, a)
    return _expm(framework, a)


def _expm(framework: Any, a: Any) -> Any:
    xp = framework.Namespace
    with xp.quiet():
        norm = xp.constant(xp.largest(xp.sum(xp.abs(a), -2)))[..., None]
        radius, coefficients = _PADE[xp.dtype_name(norm)]
        count, known = _SQUARINGS, not framework.traced(a)
        if not known or _largest(framework, norm) > radius:
            norm = _size_of_powers(xp, xp.constant(a), norm, radius, len(coefficients) - 1)
        if known:
            largest = _largest(framework, norm)
            count = max(0, ceil(log2(largest / radius))) if largest > 0 else 0
        scale = xp.ones_like(norm)
        for k in range(count):
            scale = xp.where(norm > radius * 2.0**k, 2 * scale, scale)
        scale = xp.where(norm <= scale * radius, scale, scale * float("nan"))

        def square(state: tuple[Any, Any]) -> tuple[Any, Any]:
            x, left = state
            more = left > 1
            return xp.where(more, xp.matmul(x, x), x), xp.where(more, left / 2, left)

        return xp.repeat(count, square, (_pade(xp, a / xp.like(scale, a), coefficients), scale))[0]


def _largest(framework: Any, norm: Any) -> float:
    """The largest finite norm, so that a matrix with NaN or Inf does not decide for the others."""
    norms = framework.to_numpy(norm)
    return float(norms[np.isfinite(norms)].max(initial=0))


def _size_of_powers(xp: Any, a: Any, norm: Any, radius: float, order: int) -> Any:
    """A bound to use instead of the norm, far smaller for some matrices that are far from normal.

    It avoids needless squarings, which lose digits. The bound is max(|A^4|^(1/4), |A^6|^(1/6)), or more if the terms of Pade's
    approximation would cancel (Al-Mohy and Higham, 2009).
    """

    def root(x: Any, p: int, factor: float = 0.0) -> Any:  # (exp(factor) |x|)^(1/p)
        return xp.exp((xp.log(xp.largest(xp.sum(xp.abs(x), -2)))[..., None] + factor) / p)

    limits = np.finfo(xp.dtype_name(norm))
    b = a / xp.like(xp.where(norm > 0, norm, xp.ones_like(norm)), a)
    square = xp.matmul(b, b)
    fourth = xp.matmul(square, square)
    cancelled = log(4 / float(limits.eps)) - log(comb(2 * order, order) * factorial(2 * order + 1))
    size = xp.zeros_like(norm) + float(limits.tiny) ** (1 / 6)  # below, A^6 is no longer in the range
    for bound in (
        root(fourth, 4),
        root(xp.matmul(fourth, square), 6),
        radius * root(power(xp, xp.abs(b), 2 * order + 1), 2 * order, cancelled),
    ):
        size = xp.where(bound > size, bound, size)
    # two squarings more than needed cost less accuracy than Pade's approximation at the end of its radius
    return norm * xp.where(4 * size < 1, 4 * size, xp.ones_like(size))


def _pade(xp: Any, a: Any, coefficients: tuple[int, ...]) -> Any:
    """exp(A) = (V - U)^-1 (V + U), U the odd terms and V the even ones."""
    one, square = xp.eye(a), xp.matmul(a, a)
    powers = [one, square, xp.matmul(square, square)]
    powers.append(xp.matmul(powers[2], square))
    sums = []
    for first in (1, 0):
        terms = [float(x) for x in coefficients[first::2]]
        low = sum((c * x for c, x in zip(terms, powers, strict=False)), start=0 * a)
        # the terms beyond A^6 share the factor A^6
        high = [c * x for c, x in zip(terms[4:], powers[1:], strict=False)]
        sums.append(low + xp.matmul(powers[3], sum(high[1:], start=high[0])) if high else low)
    u, v = xp.matmul(a, sums[0]), sums[1]
    return solve(v - u, v + u, on_fail="nan")


def sqrtm(
    a: Any,
    /,
    *,
    assume: Literal["general", "pos"] = "general",
    on_fail: Literal["raise", "nan"] = "raise",
    **unknown: Never,
) -> Any:
    """Principal square root: the X with X X = A whose eigenvalues have positive real parts.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    assume : {"general", "pos"}
        "pos": Hermitian and positive semidefinite, by eigh; only the lower triangle is read. "general": by Newton's iteration
        in products and inverses, which needs a matrix that is not singular and has no eigenvalue on the negative real axis.
        Outside of traced code, and where no derivative is asked for, the Schur form gives what the iteration cannot.
    on_fail : {"raise", "nan"}
        "raise" waits for the device and raises. "nan": a matrix that failed becomes NaN. In traced code "raise" behaves as
        "nan".

    Returns
    -------
    array, shape (..., n, n)
        Of the dtype of ``a``; Hermitian with "pos".

    Raises
    ------
    ConvergenceError
        With "general": there is no such root in this dtype, or it was not found to full accuracy.
    NotPositiveDefiniteError
        With "pos": an eigenvalue is below -10 n eps times the largest.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    Notes
    -----
    The result of "general" is checked: ||X X - A|| <= 10 n eps ||X||^2 in the Frobenius norm. With "pos" a part of the
    derivative that belongs to eigenvalues which are both zero is taken as zero, as it is not finite.

    See Also
    --------
    inv_root : A^(-1/2), and other inverse roots.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.sqrtm(np.diag([4.0, 9.0]), assume="pos")
    array([[2., 0.],
           [0., 3.]])
    """
    if unknown:
        raise unknown_keyword(sqrtm, unknown)
    framework, a = _checked(sqrtm, a, assume, on_fail)
    if framework.sharded:
        return framework.call(sqrtm, a, assume=assume, on_fail=on_fail)
    xp = framework.Namespace
    if assume == "general":
        x, good = _or_by_schur(framework, a, *_newton_root(framework, a), _root_by_schur)
        return _or_failure("sqrtm", framework, a, x, good, on_fail)
    w, v, good = _spectrum(xp, a)
    root = xp.sqrt(xp.where(w > 0, w, xp.zeros_like(w)))
    x = _of_spectrum(xp, v, root)
    if framework.differentiates(a):
        whole = whole_matrix(framework, a, 0)
        sums = root[..., :, None] + root[..., None, :]
        x = _with_derivatives(xp, x, v, sums, lambda x: whole - xp.matmul(x, x))
    return _or_failure("sqrtm", framework, a, x, good, on_fail, positive=True)


def logm(
    a: Any,
    /,
    *,
    assume: Literal["general", "pos"] = "general",
    on_fail: Literal["raise", "nan"] = "raise",
    **unknown: Never,
) -> Any:
    """Principal logarithm: the X with exp(X) = A whose eigenvalues have imaginary parts between -pi and pi.

    Parameters
    ----------
    a, on_fail
        As for :func:`sqrtm`.
    assume : {"general", "pos"}
        "pos": Hermitian and positive definite, by eigh; only the lower triangle is read. "general": by repeated square roots,
        as in :func:`sqrtm`. It needs a matrix that is not singular and has no eigenvalue on the negative real axis.

    Returns
    -------
    array, shape (..., n, n)
        Of the dtype of ``a``; Hermitian with "pos".

    Raises
    ------
    ConvergenceError
        With "general": there is no such logarithm in this dtype, or it was not found to full accuracy.
    NotPositiveDefiniteError
        With "pos".
    ValueError, TypeError
        Wrong shape, dtype or choice.

    Notes
    -----
    The result of "general" is checked: ||exp(X) - A|| <= 10 n eps cond ||A||, cond being the condition number of A times the
    norm of X where that is above one.

    See Also
    --------
    expm : the inverse function.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.logm(np.eye(2), assume="pos")
    array([[0., 0.],
           [0., 0.]])
    """
    if unknown:
        raise unknown_keyword(logm, unknown)
    framework, a = _checked(logm, a, assume, on_fail)
    if framework.sharded:
        return framework.call(logm, a, assume=assume, on_fail=on_fail)
    xp = framework.Namespace
    if assume == "general":
        x, good = _or_by_schur(framework, a, *_log_by_roots(framework, a), _log_by_schur)
        return _or_failure("logm", framework, a, x, good, on_fail)
    w, v, good = _spectrum(xp, a, definite=True)
    safe = xp.where(w > 0, w, xp.ones_like(w))
    logs = xp.log(safe)
    x = _of_spectrum(xp, v, logs)
    if framework.differentiates(a):
        whole = whole_matrix(framework, a, 0)
        x = _with_derivatives(xp, x, v, _quotients_of_exp(xp, safe, logs), lambda x: whole - _expm(framework, x))
    return _or_failure("logm", framework, a, x, good, on_fail, positive=True)


def _quotients_of_exp(xp: Any, w: Any, logs: Any) -> Any:
    """(w_i - w_j) / (log w_i - log w_j), and its limit if the two are near each other."""
    gap, mean = logs[..., :, None] - logs[..., None, :], xp.sqrt(w)[..., :, None] * xp.sqrt(w)[..., None, :]
    near = xp.abs(gap) < 0.1
    # sqrt(w_i w_j) sinh(d/2) / (d/2), by its series
    square = gap * gap / 4
    series = mean * (1 + square / 6 * (1 + square / 20 * (1 + square / 42 * (1 + square / 72))))
    return xp.where(near, series, (w[..., :, None] - w[..., None, :]) / xp.where(near, xp.ones_like(gap), gap))


def inv_root(
    a: Any,
    p: int,
    /,
    *,
    ridge: float = 0.0,
    on_fail: Literal["raise", "nan"] = "raise",
    method: Literal["auto", "eigh", "products"] = "auto",
    **unknown: Never,
) -> Any:
    """Inverse root A^(-1/p) of Hermitian positive definite matrices.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128. Only the lower triangle is read.
    p : int
        The root, not zero. 2 gives the inverse square root, and -2 the square root.
    ridge : float
        The root of A + ridge I is computed.
    on_fail : {"raise", "nan"}
        "raise" waits for the device and raises. "nan": a matrix that failed becomes NaN. In traced code "raise" behaves as
        "nan".
    method : {"auto", "eigh", "products"}
        "products": a coupled Newton iteration, which is faster for large matrices on a GPU. Its result is checked, and eigh
        takes over where ||X^p A - I|| is above 10 n eps cond(A). "auto" takes the faster one; traced code and derivatives use
        eigh.

    Returns
    -------
    array, shape (..., n, n)
        Hermitian.

    Raises
    ------
    NotPositiveDefiniteError
        A matrix is not positive definite, with the ridge.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    sqrtm, inv

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.inv_root(np.diag([16.0, 81.0]), 4).round(4)
    array([[0.5   , 0.    ],
           [0.    , 0.3333]])
    """
    if unknown:
        raise unknown_keyword(inv_root, unknown)
    if isinstance(p, bool) or not isinstance(p, (int, np.integer)) or p == 0:
        raise ValueError(f"inv_root: p={p!r} is not an integer other than zero\nhint: p=2 is the inverse square root")
    if isinstance(ridge, bool) or not isinstance(ridge, (int, float, np.floating)) or not 0 <= ridge < inf:
        raise ValueError(f"inv_root: ridge={ridge!r} is not a number >= 0")
    check_choice("inv_root", "method", method, ("auto", "eigh", "products"))
    framework, a = _checked(inv_root, a, on_fail=on_fail)
    if framework.sharded:
        return framework.call(inv_root, a, int(p), ridge=ridge, on_fail=on_fail, method=method)
    xp, p = framework.Namespace, int(p)
    smooth, traced = framework.differentiates(a), framework.traced(a)
    whole = whole_matrix(framework, a, 0)
    if ridge:
        whole = whole + float(ridge) * xp.eye(whole)
    if method == "auto" and not smooth and not traced:
        large = framework.describe(a).device != "cpu" and framework.shape_of(a)[-1] > _EIGH_TO
        method = "products" if large and p > 0 else "eigh"
    if method == "products" and p > 0 and not smooth and not traced:
        x, good = _coupled_newton(framework, whole, p)
        if not framework.failed(1 - xp.whole(good)):
            return x
    w, v, good = _spectrum(xp, whole, definite=True)
    safe = xp.where(w > 0, w, xp.ones_like(w))
    root = xp.exp(xp.log(safe) * (-1 / p))
    x = _of_spectrum(xp, v, root)
    if smooth:
        slopes = _slopes_of_power(root, abs(p))
        if p > 0:
            one = xp.eye(whole)
            x = _with_derivatives(xp, x, v, slopes * safe[..., None, :], lambda x: one - xp.matmul(power(xp, x, p), whole))
        else:
            x = _with_derivatives(xp, x, v, slopes, lambda x: whole - power(xp, x, -p))
    return _or_failure("inv_root", framework, whole, x, good, on_fail, positive=True)


def _slopes_of_power(r: Any, p: int) -> Any:
    """The sum of r_i^k r_j^(p-1-k) over k < p: how X^p changes with X, in the eigenvectors of X."""
    total, left = 1 + 0 * (r[..., :, None] + r[..., None, :]), r[..., :, None]
    power = left
    for _ in range(p - 1):
        total = total * r[..., None, :] + power
        power = power * left
    return total


def power(xp: Any, x: Any, p: int) -> Any:
    """x^p for p > 0, by the binary digits of p."""
    result = None
    while p:
        if p & 1:
            result = x if result is None else xp.matmul(result, x)
        p >>= 1
        x = xp.matmul(x, x) if p else x
    return result


def _coupled_newton(framework: Any, a: Any, p: int) -> tuple[Any, Any]:
    """X <- X T and M <- T^p M with T = ((p + 1) I - M) / p: M goes from c A to I, and X from I to A^(-1/p) up to a factor."""
    xp = framework.Namespace
    n, eps = framework.shape_of(a)[-1], float(np.finfo(framework.dtype_of(a)).eps)
    one = xp.eye(a)
    with xp.quiet():
        norm = matrix_norm(a, "fro", True)
        # the eigenvalues of M start in (0, (p + 1) / 2), where the iteration converges
        start = (p + 1) / (2 * xp.where(norm > 0, norm, xp.ones_like(norm)))
        m, x, last = a * xp.like(start, a), one * xp.like(xp.exp(xp.log(start) / p), a), inf
        for _ in range(100):
            t = ((p + 1) * one - m) / p
            x, m = xp.matmul(x, t), xp.matmul(power(xp, t, p), m)
            distance = float(framework.to_numpy(matrix_norm(m - one, "fro")).max(initial=0))
            if not distance > n * eps or (distance < 0.1 and not distance < 0.5 * last):
                break
            last = distance
        x = (x + xp.adjoint(x)) / 2
        error = matrix_norm(xp.matmul(power(xp, x, p), a) - one, "fro")
        cond = norm[..., 0, 0] * matrix_norm(x, "fro") ** p
        # cond is large or Inf if the iteration diverged; the caller then uses eigh
        return x, (error <= 10 * n * eps * cond) & (error < 0.5)


# ---- Hermitian matrices, by their spectrum


def _spectrum(xp: Any, a: Any, definite: bool = False) -> tuple[Any, Any, Any]:
    """Eigenvalues and eigenvectors without derivatives, and which matrices are positive semidefinite, or ``definite``."""
    w, v = eigh(xp.constant(a), on_fail="nan")
    if definite:
        return w, v, xp.sum(xp.whole(~(w > 0)), -1) == 0
    limit = -10 * float(np.finfo(xp.dtype_name(w)).eps) * xp.order(w) * xp.largest(xp.abs(w))
    return w, v, xp.sum(xp.whole(~(w >= limit)), -1) == 0


def _of_spectrum(xp: Any, v: Any, values: Any) -> Any:
    """V f(w) V^H, Hermitian to the last bit."""
    x = xp.matmul(v * xp.like(values, v)[..., None, :], xp.adjoint(v))
    return (x + xp.adjoint(x)) / 2


def _with_derivatives(xp: Any, x: Any, v: Any, slopes: Any, residual: Callable[[Any], Any]) -> Any:
    """Give the value x of a function of A right first and second derivatives.

    ``residual(x)`` is zero at the value of the function, and ``slopes`` is how it changes with x, in the basis of eigenvectors
    ``v``. Each step of Newton's method with these constant slopes keeps the value and makes one more derivative right.
    """
    flat = slopes == 0
    inverse = xp.like(xp.where(flat, xp.zeros_like(slopes), 1 / xp.where(flat, xp.ones_like(slopes), slopes)), v)
    vh, step = xp.adjoint(v), xp.constant(x)
    for _ in range(2):
        inner = xp.matmul(xp.matmul(vh, residual(step)), v)
        step = step + xp.matmul(xp.matmul(v, inner * inverse), vh)
    return x + (step - xp.constant(step))


# ---- general matrices, by products and inverses


def _newton_root(framework: Any, a: Any) -> tuple[Any, Any]:
    """The square root, and for which matrices it is accurate.

    X <- X (1/s + s M^-1) / 2 and M <- (I + (s^2 M + M^-1 / s^2) / 2) / 2 go from A and A to the root and to I (Denman and
    Beavers' iteration in product form); s brings the determinant of M near one in size.
    """
    xp = framework.Namespace
    eps, n = float(np.finfo(xp.dtype_name(a)).eps), xp.order(xp.real(a))
    traced, extra = framework.traced(a), 1 + framework.differentiates(a)
    one = xp.eye(a)
    a, scale = _into_range(xp, a)

    def step(state: tuple[Any, Any], scaled: bool = True) -> tuple[Any, Any]:
        x, m = state
        inverse = inv(m, on_fail="nan")
        if scaled:
            logs = xp.constant(slogdet(m, on_fail="nan").logabsdet)[..., None, None]
            s = xp.like(xp.exp(-logs / (2 * n)), m)
            far = xp.constant(matrix_norm(m - one, "fro", True)) > 0.01
            s = xp.where(far, s, xp.ones_like(s))
            m, inverse, x = m * s * s, inverse / (s * s), x * s
        return xp.matmul(x, one + inverse) / 2, (one + (m + inverse) / 2) / 2

    with xp.quiet():
        state = (a, a)
        if traced:
            state = xp.repeat(_TRACED_ROOT_STEPS, step, state)
        else:
            for _ in range(_ROOT_STEPS):
                state = step(state)
                distance = framework.to_numpy(xp.constant(matrix_norm(state[1] - one, "fro")))
                # written so that NaN ends the iteration too
                if not (distance > 100 * eps * framework.shape_of(a)[-1]).any():
                    break
        for _ in range(extra):
            state = step(state, scaled=False)
        x = state[0]
        error = matrix_norm(xp.constant(xp.matmul(x, x) - a), "fro")
        size = matrix_norm(xp.constant(x), "fro")
        return x * xp.like(xp.sqrt(scale), a), error <= 10 * n * eps * size * size


def _into_range(xp: Any, a: Any) -> tuple[Any, Any]:
    """A / s and s, so that squares of norms do not overflow; s is 1 for ordinary matrices."""
    with xp.quiet():
        norm = xp.constant(xp.largest(xp.sum(xp.abs(a), -2)))[..., None]
        big = float(np.finfo(xp.dtype_name(norm)).max) ** 0.25
        scale = xp.where((norm > big) | (norm < 1 / big), xp.power_of_two(norm), xp.ones_like(norm))
        return a / xp.like(scale, a), scale


def _log_by_roots(framework: Any, a: Any) -> tuple[Any, Any]:
    """log(A) = 2^k log(A^(1/2^k)), with the roots taken until they are near I, and for which matrices it is accurate."""
    xp = framework.Namespace
    one, traced = xp.eye(a), framework.traced(a)
    a, range_scale = _into_range(xp, a)

    def far(x: Any) -> Any:
        return xp.constant(matrix_norm(x - one, 1, True)) > _LOG_RADIUS

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        x, scale = state
        more = far(x)
        root, good = _newton_root(framework, xp.where(more, x, one + xp.zeros_like(x)))
        root = xp.where(good[..., None, None], root, xp.ones_like(root) * float("nan"))
        return xp.where(more, root, x), xp.where(more, 2 * scale, scale)

    with xp.quiet():
        state = (a, xp.ones_like(xp.real(a[..., :1, :1])))
        if traced:
            state = xp.repeat(_TRACED_ROOTS_OF_LOG, step, state)
        else:
            for _ in range(_ROOTS_OF_LOG):
                if not framework.to_numpy(xp.whole(far(state[0]))).any():
                    break
                state = step(state)
        root, scale = state
        x, good = _checked_log(framework, a, _log_near_one(xp, root - one, one) * xp.like(scale, a))
        return x + xp.like(xp.log(range_scale), a) * one, good


def _log_near_one(xp: Any, e: Any, one: Any, assume: Literal["general", "upper"] = "general") -> Any:
    """log(I + E), the integral of E (I + t E)^-1 over t from 0 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(_LOG_NODES)
    terms = [
        float(weight) / 2 * solve(one + (float(node) + 1) / 2 * e, e, assume=assume, on_fail="nan")
        for node, weight in zip(nodes, weights, strict=True)
    ]
    return sum(terms[1:], start=terms[0])


def _checked_log(framework: Any, a: Any, x: Any) -> tuple[Any, Any]:
    """The logarithm, corrected for the digits of A - I that its roots lost, and for which matrices it is accurate."""
    xp = framework.Namespace
    eps, n, one = float(np.finfo(xp.dtype_name(a)).eps), xp.order(xp.real(a)), xp.eye(a)
    # log(A) = X + log(I + R), R = exp(-X) A - I
    r = xp.matmul(_expm(framework, -x), a) - one
    x = x + r - xp.matmul(r, r) / 2
    fixed, size = xp.constant(x), matrix_norm(xp.constant(x), "fro")
    back, forth = (matrix_norm(_expm(framework, y), "fro") for y in (-fixed, fixed))
    error = matrix_norm(_expm(framework, fixed) - xp.constant(a), "fro")
    size = xp.where(size > 1, size, xp.ones_like(size))
    return x, error <= 10 * n * eps * back * forth * size * forth


# ---- general matrices that the iterations cannot do, by the Schur form on the host


def _or_by_schur(framework: Any, a: Any, x: Any, good: Any, function: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Any:
    """x and good; outside of traced code and derivatives, ``function`` computes the matrices that are not good anew."""
    xp = framework.Namespace
    if framework.traced(a) or framework.differentiates(a) or not framework.failed(1 - xp.whole(good)):
        return x, good
    n = framework.shape_of(a)[-1]
    matrices, values = (framework.to_numpy(y).reshape(-1, n, n) for y in (a, x))
    flags, values = framework.to_numpy(good).reshape(-1).copy(), values.copy()
    bad = ~flags & np.isfinite(matrices).all((-1, -2))
    if not bad.any():
        return x, good
    with np.errstate(all="ignore"):
        values[bad], flags[bad] = function(frameworks.of(matrices, "schur"), matrices[bad])
    shape = framework.shape_of(good)
    return xp.put(values.reshape(framework.shape_of(a)), a), xp.put(flags.reshape(shape), a)


def _root_by_schur(framework: Any, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, scale = _into_range(framework.Namespace, a)
    t, z = schur(a, output="complex", on_fail="nan")
    x = _like(a, z @ _root_of_triangle(t) @ _adjoint(z))
    error, size = (np.linalg.norm(y, axis=(-2, -1)) for y in (x @ x - a, x))
    return x * np.sqrt(scale), error <= 10 * a.shape[-1] * np.finfo(a.dtype).eps * size * size


def _log_by_schur(framework: Any, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, range_scale = _into_range(framework.Namespace, a)
    t, z = schur(a, output="complex", on_fail="nan")
    one, diagonal = np.eye(a.shape[-1], dtype=t.dtype), np.diagonal(t, axis1=-2, axis2=-1).copy()
    scale = np.ones((len(a), 1, 1))
    for _ in range(_ROOTS_OF_LOG):
        far = np.abs(t - one).sum(-2).max(-1, initial=0) > _LOG_RADIUS
        if not far.any():
            break
        t[far] = _root_of_triangle(t[far])
        scale[far] *= 2
    log = _log_near_one(framework.Namespace, t - one, np.broadcast_to(one, t.shape), "upper") * scale
    index = np.arange(a.shape[-1])
    log[..., index, index] = np.log(diagonal)
    x = _like(a, z @ log @ _adjoint(z))
    error, size, norm = (np.linalg.norm(y, axis=(-2, -1)) for y in (_expm(framework, x) - a, x, a))
    scale = a.shape[-1] * float(np.finfo(a.dtype).eps)
    # the logarithm of an eigenvalue that is only rounding error means nothing
    regular = np.abs(diagonal).min(-1, initial=np.inf) > scale * norm
    good = regular & (error <= 10 * scale * norm * np.maximum(1, size))
    return x + np.log(range_scale) * np.eye(a.shape[-1], dtype=a.dtype), good


def _root_of_triangle(t: np.ndarray) -> np.ndarray:
    """The principal square root of upper triangles, column by column: (X11 + x I) y = t."""
    root = np.sqrt(np.diagonal(t, axis1=-2, axis2=-1))
    n, x = t.shape[-1], np.zeros_like(t)
    largest = np.finfo(t.dtype).max ** 0.5
    for j in range(n):
        x[..., j, j] = root[..., j]
        if not j:
            continue
        index, left = np.arange(j), x[..., :j, :j].copy()
        sums = root[..., :j] + root[..., j : j + 1]
        # if two eigenvalues are zero, so is the element that belongs to both
        left[..., index, index] = np.where(sums == 0, largest, sums)
        x[..., :j, j] = solve(left, t[..., :j, j : j + 1], assume="upper", on_fail="nan")[..., 0]
    return x


def _like(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (x if np.iscomplexobj(a) else x.real).astype(a.dtype)


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()


# ---- checks


def _checked(function: Any, a: Any, assume: str = "pos", on_fail: str = "raise") -> tuple[Any, Any]:
    """Check the arguments; returns the framework of the matrices, and the matrices."""
    name, a = function.__name__, as_array(a)
    framework = frameworks.ordinary(a, name)
    check_choice(name, "assume", assume, ("general", "pos"))
    check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    if not framework.sharded:
        check_square(name, framework.shape_of(a), framework.dtype_of(a))
    return framework, a


def _or_failure(name: str, framework: Any, a: Any, x: Any, good: Any, on_fail: str, positive: bool = False) -> Any:
    """The result, with NaN for matrices that are not ``good``; or raise the error for the first of them."""
    xp = framework.Namespace
    if on_fail == "raise" and not framework.traced(a):
        info = 1 - xp.whole(good)
        if not framework.failed(info):
            return x
        if not positive:
            raise first_failure(ConvergenceError, name, framework, a, info)
        minors = cholesky_ex(xp.constant(a)).info
        minors = xp.where(good, 0 * minors, xp.where(minors == 0, 0 * minors + framework.shape_of(a)[-1], minors))
        raise first_failure(NotPositiveDefiniteError, name, framework, xp.constant(a), minors, "minor", np.tril)
    return xp.where(good[..., None, None], x, xp.ones_like(x) * float("nan"))
