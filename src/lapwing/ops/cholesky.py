"""The Cholesky factorisation A = L L^H."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Never, TypeVar

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_hermitian, check_square
from ..core.derivatives import cholesky_jvp, cholesky_vjp
from ..core.errors import NotPositiveDefiniteError
from ..core.keywords import unknown_keyword
from ..core.operation import Operation, Params
from ..core.problem import UPPER, Problem, Spec
from ..core.request import MATRIX, VALUE, Request
from .failure import first_failure
from .jitter import check_jitter, factor_with_jitter, warn_of_jitter
from .triangle import batch_and_order, finite_flags, nan_for

Array = TypeVar("Array")


class CholeskyResult(NamedTuple):
    """The results of :func:`cholesky_ex`."""

    factor: Any
    info: Any


def cholesky(
    a: Array,
    /,
    *,
    upper: bool = False,
    overwrite: bool = False,
    jitter: float | Literal["auto"] | None = None,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> Array:
    """Cholesky factor of Hermitian positive definite matrices.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128. Only the triangle named by
        ``upper`` is read.
    upper : bool
        False: the lower factor L with A = L L^H. True: the upper factor U with A = U^H U.
    overwrite : bool
        Lets the result reuse the memory of ``a`` (NumPy, PyTorch, CuPy). Under ``jax.jit``, donate ``a`` as well.
    jitter : None, "auto" or float
        Matrices that are not positive definite are tried again with this multiple of the mean of their diagonal added to the
        diagonal; the others stay as they are. "auto" tries 1e-8 to 1e-4 (1e-6 to 1e-3 in single precision) in steps of ten.
        A RuntimeWarning says how much was added at most; :func:`factor` reports the amount for each matrix. The call waits for
        the device, and ignores ``overwrite``. In traced code every step is computed, and there is no warning.
    on_fail : {"raise", "nan"}
        "raise" waits for the device and raises. "nan" never waits: a matrix that is not positive definite becomes NaN, the
        others are untouched. Inside ``jax.jit``, ``torch.compile``, ``torch.func``, ``tf.function`` and graph capture, "raise"
        behaves as "nan".
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    array, shape (..., n, n)
        The factor: same library, device and dtype; the other triangle is zero.

    Raises
    ------
    NotPositiveDefiniteError
        A matrix is not positive definite, or holds NaN or Inf in the triangle read.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    cholesky_ex : status instead of an error, never waits.
    explain : which engine a call would use, and what it costs.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> a = np.array([[4.0, 2.0], [2.0, 3.0]])
    >>> l = lw.cholesky(a)
    >>> np.allclose(l @ l.T, a)
    True
    >>> lw.cholesky(-a)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    NotPositiveDefiniteError: cholesky: the matrix is not positive definite (leading minor of order 1)
    """
    if unknown:
        raise unknown_keyword(cholesky, unknown)
    framework = frameworks.entry(a, "cholesky")
    if jitter is not None:
        check_jitter("cholesky", jitter, framework)
        overwrite = False
    if framework.sharded:
        options: dict[str, Any] = {"upper": upper, "overwrite": overwrite, "on_fail": on_fail, "engine": engine}
        return framework.call(cholesky, a, **options)  # type: ignore[no-any-return]
    plain = framework.direct(a) and overwrite is False and jitter is None and upper is False
    if plain and on_fail == "raise" and engine == "auto" and not planner.logging_decisions():
        factor = framework.solve_direct(CHOLESKY, 0, a)
        if factor is not None:
            return factor  # type: ignore[no-any-return]
    upper, overwrite = check_hermitian("cholesky", framework.shape_of(a), framework.dtype_of(a), upper, overwrite, on_fail)
    code = (
        planner.AUTO if engine == "auto" else planner.code_for(framework, a, engine, "cholesky", lambda: [_problem(a, upper)])
    )
    flags = UPPER if upper else 0
    traced = framework.traced(a)
    waits = on_fail == "raise" and not traced
    # found now, as the input may be overwritten
    finite = finite_flags(framework, a, flags) if waits and overwrite else None
    # under a trace the native core decides, when the shapes are final
    if not traced and planner.logging_decisions():
        planner.log_decision(_problem(a, upper), engine)
    if jitter is None:
        factor, info = framework.apply(CHOLESKY, (a,), (flags,), code, overwrite)
    else:
        factor, info, _, amount = factor_with_jitter(framework, a, flags, code, jitter)
        warn_of_jitter(framework, "cholesky", amount)
    if waits and framework.failed(info):
        finite = finite_flags(framework, a, flags) if finite is None else finite
        tried = {} if jitter is None else {"jitter": jitter}
        raise first_failure(NotPositiveDefiniteError, "cholesky", framework, a, info, "minor", finite=finite, **tried)
    return factor  # type: ignore[no-any-return]


def cholesky_ex(a: Any, /, *, upper: bool = False, **unknown: Never) -> CholeskyResult:
    """Cholesky factor and a status per matrix; never waits for the device.

    Parameters
    ----------
    a : array, shape (..., n, n)
        As for :func:`cholesky`.
    upper : bool
        Which triangle is read and returned.

    Returns
    -------
    factor : array, shape (..., n, n)
        NaN where the factorisation failed.
    info : int32 array, shape (...)
        0, or the order of the first leading minor whose pivot is not finite and positive.

    Raises
    ------
    ValueError, TypeError
        Wrong shape or dtype.

    See Also
    --------
    cholesky : raises on failure.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> factor, info = lw.cholesky_ex(np.array([np.eye(2), -np.eye(2)]))
    >>> info
    array([0, 1], dtype=int32)
    """
    if unknown:
        raise unknown_keyword(cholesky_ex, unknown)
    framework = frameworks.entry(a, "cholesky_ex")
    if framework.sharded:
        return framework.call(cholesky_ex, a, upper=upper)  # type: ignore[no-any-return]
    upper, _ = check_hermitian("cholesky_ex", framework.shape_of(a), framework.dtype_of(a), upper)
    if not framework.traced(a) and planner.logging_decisions():
        planner.log_decision(_problem(a, upper), "auto")
    return CholeskyResult(*framework.apply(CHOLESKY, (a,), (UPPER if upper else 0,), planner.AUTO, False))


def _request(a: Spec, *, upper: bool = False, overwrite: bool = False, on_fail: str = "raise", engine: str = "auto") -> Request:
    upper, overwrite = check_hermitian("cholesky", a.shape, a.dtype, upper, overwrite, on_fail)
    options: dict[str, Any] = {"upper": upper, "overwrite": overwrite, "on_fail": on_fail, "engine": engine}
    return Request(cholesky, "cholesky", (MATRIX,), assume="pos", **options)


def _status_request(a: Spec, *, upper: bool = False) -> Request:
    upper, _ = check_hermitian("cholesky_ex", a.shape, a.dtype, upper)
    return Request(cholesky_ex, "cholesky", (MATRIX, VALUE), CholeskyResult, True, "pos", upper, on_fail="nan")


def _problem(a: Any, upper: bool = False, **_: Any) -> Problem:
    array = frameworks.describe(a, "cholesky")
    check_square("cholesky", array.shape, array.dtype)
    return Problem.of("cholesky", array, upper=upper)


cholesky.problem = cholesky_ex.problem = _problem  # type: ignore[attr-defined]
cholesky.request, cholesky_ex.request = _request, _status_request  # type: ignore[attr-defined]


def _reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, np.ndarray]:
    """With numpy.linalg; matrix by matrix if one of the batch fails."""
    (a,) = arrays
    upper = params[0] & UPPER
    n = a.shape[-1]
    # numpy reads the lower triangle
    lower = np.tril(a.swapaxes(-1, -2) if upper else a)
    index = np.arange(n)
    lower[..., index, index] = lower[..., index, index].real
    info = np.zeros(a.shape[:-2], np.int32)
    with np.errstate(all="ignore"):
        try:
            factor = np.linalg.cholesky(lower)
            good = bool(np.isfinite(np.diagonal(factor, axis1=-2, axis2=-1).real).all())
        except np.linalg.LinAlgError:
            factor, good = np.empty_like(lower), False
        for m in np.ndindex(info.shape if not good else 0):
            info[m] = _first_bad_minor(lower[m], factor[m])
    return np.ascontiguousarray(factor.swapaxes(-1, -2)) if upper else factor, info


def _first_bad_minor(a: np.ndarray, factor: np.ndarray) -> int:
    def works(order: int) -> bool:
        try:
            l = np.linalg.cholesky(a[:order, :order])
        except np.linalg.LinAlgError:
            return False
        if not np.isfinite(np.diagonal(l).real).all():
            return False
        factor[:order, :order] = np.tril(l)
        return True

    if works(len(a)):
        return 0
    good, bad = 0, len(a)  # the minor of order `good` works, that of order `bad` does not
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if works(middle) else (good, middle)
    factor[...] = nan_for(factor)
    return bad


CHOLESKY = Operation(
    "cholesky",
    results=lambda shapes, params: ((shapes[0], None), (shapes[0][:-2], "int32")),
    sizes=batch_and_order,
    reference=_reference,
    work=lambda p: (p.n**3 / 3, 2 * p.n**2),
    jvp=cholesky_jvp,
    vjp=cholesky_vjp,
    alias=0,
    turns="factor",
    launches_only_to=32,
)
