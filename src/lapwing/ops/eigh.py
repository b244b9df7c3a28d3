"""Eigenvalues and eigenvectors of Hermitian matrices: A V = V W."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Literal, NamedTuple, Never

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_flag, check_hermitian, check_square
from ..core.derivatives import eigh_jvp, eigh_vjp, eigvalsh_jvp
from ..core.errors import ConvergenceError
from ..core.keywords import unknown_keyword
from ..core.operation import Operation, Params, Shape, picked
from ..core.plan import bytes_in_words
from ..core.problem import UPPER, Problem, Spec
from ..core.request import MATRIX, VALUE, Request
from . import generalised, spectrum
from .failure import first_failure
from .operator import LinearOperator, eigh_of_operator
from .triangle import finite_flags, nan_for

_logging = planner.logging_decisions  # saves a look-up in each call


class EighResult(NamedTuple):
    """The results of :func:`eigh`."""

    eigenvalues: Any
    eigenvectors: Any


class EighExResult(NamedTuple):
    """The results of :func:`eigh_ex`."""

    eigenvalues: Any
    eigenvectors: Any
    info: Any


def eigh(
    a: Any,
    /,
    *,
    b: Any = None,
    subset: slice | None = None,
    window: tuple[float, float] | None = None,
    upper: bool = False,
    overwrite: bool = False,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    certify: bool = False,
    tol: float | None = None,
    **unknown: Never,
) -> EighResult:
    """Eigenvalues and eigenvectors of Hermitian matrices, all or some of them.

    Parameters
    ----------
    a : array, shape (..., n, n), or :func:`lapwing.operator`
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128. Only the triangle named by
        ``upper`` is read. An operator needs a ``subset`` at one end.
    b : array, shape (..., n, n), optional
        A positive definite matrix: solves A x = w B x instead, with eigenvectors V such that V^H B V = 1.
    subset : slice, optional
        Which eigenvalues, counted in ascending order: ``slice(-16, None)`` are the 16 largest, ``slice(3)`` the 3 smallest.
    window : (low, high), optional
        Eigenvalues in (low, high], for one matrix outside of traced code, as their number is not known beforehand.
    upper : bool
        Which triangle of ``a`` and ``b`` is read.
    overwrite : bool
        Lets the call reuse the memory of ``a`` (NumPy, PyTorch, CuPy); ``a`` is then destroyed.
    on_fail : {"raise", "nan"}
        "raise" waits for the device and raises. "nan" never waits: a matrix that failed becomes NaN, the others are
        untouched. Inside ``jax.jit``, ``torch.compile``, ``torch.func``, ``tf.function`` and graph capture, "raise" behaves as
        "nan".
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them. "krylov" finds a few values at one
        end of a large spectrum; it may wait for the device.
    certify : bool
        Proves with one Cholesky factorisation that no eigenvalue beyond the subset was missed; for one matrix and a subset at
        one end, outside of traced code. Where the proof fails the direct routine takes over.
    tol : float, optional
        With a ``subset``: the largest residual ||A v - w v||, relative to the norm of A, at which engine "krylov" stops. By
        default n eps. A larger one is faster, a smaller one more accurate; where rounding keeps the iteration from reaching it,
        the direct routine takes over. The other engines ignore it: their residuals are about n eps.

    Returns
    -------
    eigenvalues : real array, shape (..., k)
        Ascending.
    eigenvectors : array, shape (..., n, k)
        Column j belongs to eigenvalue j; orthonormal. The results keep no n x n buffer alive.

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf in the triangle read, or an iteration did not converge.
    NotPositiveDefiniteError
        ``b`` is not positive definite.
    MemoryError
        The workspace does not fit; the message names an engine that would.
    ValueError, TypeError
        Wrong shape, dtype or choice; an empty subset.

    See Also
    --------
    eigvalsh : eigenvalues alone.
    eigh_ex : status instead of an error, never waits.
    explain : which engine a call would use, and its workspace.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> a = np.diag([3.0, 1.0, 2.0])
    >>> w, v = lw.eigh(a)
    >>> w
    array([1., 2., 3.])
    >>> lw.eigh(a, subset=slice(-1, None)).eigenvalues
    array([3.])
    """
    if unknown:
        raise unknown_keyword(eigh, unknown)
    outputs = _solve(eigh, EIGH, a, b, subset, window, upper, overwrite, on_fail, engine, certify, tol)
    return EighResult(*outputs[:2])


def eigvalsh(
    a: Any,
    /,
    *,
    b: Any = None,
    subset: slice | None = None,
    window: tuple[float, float] | None = None,
    upper: bool = False,
    overwrite: bool = False,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    certify: bool = False,
    tol: float | None = None,
    **unknown: Never,
) -> Any:
    """Eigenvalues of Hermitian matrices, all or some of them.

    Parameters
    ----------
    a, b, subset, window, upper, overwrite, on_fail, engine, certify, tol
        As for :func:`eigh`.

    Returns
    -------
    real array, shape (..., k)
        Ascending.

    Raises
    ------
    ConvergenceError, NotPositiveDefiniteError, MemoryError, ValueError, TypeError
        As for :func:`eigh`.

    See Also
    --------
    eigh : eigenvectors too.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.eigvalsh(np.array([[2.0, 1.0], [1.0, 2.0]]))
    array([1., 3.])
    """
    if unknown:
        raise unknown_keyword(eigvalsh, unknown)
    return _solve(eigvalsh, EIGVALSH, a, b, subset, window, upper, overwrite, on_fail, engine, certify, tol)[0]


def eigh_ex(a: Any, /, *, subset: slice | None = None, upper: bool = False, **unknown: Never) -> EighExResult:
    """Eigenvalues, eigenvectors and a status per matrix; never raises for a matrix that fails.

    Parameters
    ----------
    a : array, shape (..., n, n)
        As for :func:`eigh`.
    subset : slice, optional
        Which eigenvalues.
    upper : bool
        Which triangle is read.

    Returns
    -------
    eigenvalues, eigenvectors : arrays
        As for :func:`eigh`; NaN where it failed.
    info : int32 array, shape (...)
        0, or not 0 for a matrix that holds NaN or Inf or did not converge.

    Raises
    ------
    ValueError, TypeError
        Wrong shape or dtype; an empty subset.

    See Also
    --------
    eigh : raises on failure.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> w, v, info = lw.eigh_ex(np.array([np.eye(2), np.full((2, 2), np.nan)]))
    >>> info
    array([0, 1], dtype=int32)
    """
    if unknown:
        raise unknown_keyword(eigh_ex, unknown)
    framework = frameworks.entry(a, "eigh_ex")
    if framework.sharded:
        return framework.call(eigh_ex, a, subset=subset, upper=upper)  # type: ignore[no-any-return]
    shape = framework.shape_of(a)
    upper, _ = check_hermitian("eigh_ex", shape, framework.dtype_of(a), upper)
    flags = UPPER if upper else 0
    part = spectrum.part_of("eigh_ex", subset, shape[-1])
    if not framework.traced(a):
        _log(EIGH, a, bool(flags), part, "auto")
    outputs = framework.apply(EIGH, (a,), (flags, *part), planner.AUTO, False)
    if planner.logging_decisions():
        planner.log_notes()
    return EighExResult(*outputs)


def _solve(
    function: Any,
    operation: Operation,
    a: Any,
    b: Any,
    subset: slice | None,
    window: tuple[float, float] | None,
    upper: bool,
    overwrite: bool,
    on_fail: str,
    engine: str,
    certify: bool,
    tol: float | None,
) -> tuple[Any, ...]:
    """The outputs of the operation, after all checks."""
    name = function.__name__
    tolerance = spectrum.check_tolerance(name, tol, subset) if tol is not None else 0.0
    if type(a) is LinearOperator:
        refused = {"b": b, "window": window, "upper": upper, "overwrite": overwrite, "certify": certify}
        return eigh_of_operator(name, operation, a, subset, engine, on_fail, refused, function, tolerance)
    framework = frameworks.entry(a, name)
    if framework.sharded:
        known = {"subset": subset, "window": window, "upper": upper, "overwrite": overwrite, "certify": certify, "tol": tol}
        result = framework.call(function, a, b, on_fail=on_fail, engine=engine, **known)
        return result if function is eigh else (result,)  # type: ignore[no-any-return]
    plain = framework.direct(a) and b is None and subset is None and window is None and tol is None and certify is False
    if plain and upper is False and overwrite is False and on_fail == "raise" and engine == "auto" and not _logging():
        results = framework.results_direct(operation, (0, 0, -1), a)
        if results is not None:
            return results  # type: ignore[no-any-return]
    shape = framework.shape_of(a)
    upper, overwrite = check_hermitian(name, shape, framework.dtype_of(a), upper, overwrite, on_fail)
    options: dict[str, Any] = {"upper": upper, "on_fail": on_fail, "engine": engine}
    traced = framework.traced(a)
    if b is not None:
        a, b = generalised.check(name, framework, a, b)
        options |= {"subset": subset, "window": window, "certify": certify, "tol": tol}
        return generalised.solve(name, framework, a, b, function, options)
    if window is not None:
        bounds = spectrum.check_window(name, window, subset, shape, traced)
        if certify is not False:
            raise ValueError(f"{name}: certify goes with a subset, not with a window\nhint: leave certify out, or give subset=")
        values = eigvalsh(a, **options)
        return spectrum.cut_to_window(framework, bounds, values, lambda part: eigh(a, subset=part, **options), function is eigh)
    first, count = spectrum.part_of(name, subset, shape[-1])
    if certify is not False and check_flag(name, "certify", certify):
        options |= {"subset": subset, "tol": tol}
        return spectrum.certified(framework, name, a, (first, count), function, eigh, options, tolerance)
    flags = UPPER if upper else 0
    part = None if count < 0 else (first, count)
    code = planner.code_for(framework, a, engine, name, lambda: [_problem_of(operation, a, upper, part, tolerance)])
    waits = on_fail == "raise" and not traced
    # found now, as the input may be overwritten
    finite = finite_flags(framework, a, flags) if waits and overwrite else None
    logging = not traced and planner.logging_decisions()
    if logging:
        _log(operation, a, upper, (first, count), engine, tolerance)
    params = flags, first, spectrum.with_tolerance(count, tolerance)
    try:
        outputs = framework.apply(operation, (a,), params, code, overwrite)
        if waits and framework.failed(outputs[-1]):
            finite = finite_flags(framework, a, flags) if finite is None else finite
            raise first_failure(ConvergenceError, name, framework, a, outputs[-1], finite=finite)
    except Exception as error:
        if traced or isinstance(error, ConvergenceError) or not framework.out_of_memory(error):
            raise
        raise _no_memory(name, _problem_of(operation, a, upper, part, tolerance), engine) from error
    if logging:
        planner.log_notes()
    return outputs  # type: ignore[no-any-return]


def _request(function: Any, places: Any, result: Any = None, status: bool = False) -> Any:
    """A function that checks a call of ``function`` and describes it."""

    def request(a: Spec, **options: Any) -> Request:
        options = {**function.__kwdefaults__, **options}
        options.pop("b", None)
        name, subset, window = function.__name__, options["subset"], options.get("window")
        options["upper"], options["overwrite"] = check_hermitian(
            name, a.shape, a.dtype, options["upper"], options.get("overwrite", False), options.setdefault("on_fail", "nan")
        )
        options["certify"] = check_flag(name, "certify", options.get("certify", False))
        spectrum.check_tolerance(name, options.get("tol"), subset)
        first, count = spectrum.part_of(name, subset, a.shape[-1])
        if window is not None:
            options["window"] = spectrum.check_window(name, window, subset, a.shape, False)
        part = None if count < 0 else (first, count)
        return Request(function, name.removesuffix("_ex"), places, result, status, part=part, **options)

    return request


eigh.request = _request(eigh, (VALUE, MATRIX), EighResult)  # type: ignore[attr-defined]
eigvalsh.request = _request(eigvalsh, (VALUE,))  # type: ignore[attr-defined]
eigh_ex.request = _request(eigh_ex, (VALUE, MATRIX, VALUE), EighExResult, True)  # type: ignore[attr-defined]


def _problem_with(operation: Operation) -> Any:
    """A function that describes the main operation of a call; the reason also lists the others that run."""

    def problem(
        a: Any,
        b: Any = None,
        subset: slice | None = None,
        window: Any = None,
        upper: bool = False,
        certify: bool = False,
        tol: float | None = None,
        **_: Any,
    ) -> Problem:
        shape = a.shape if isinstance(a, Spec) else frameworks.of(a, operation.name).shape_of(a)
        first, count = spectrum.part_of(operation.name, subset, shape[-1])
        also = "; the Cholesky factor of b and triangular solves with it run too" if b is not None else ""
        also += "; one Cholesky factorisation proves the result" if certify else ""
        if window is not None and operation is EIGH:
            also += "; the vectors follow, as the subset that the window turns out to be"
        part = None if count < 0 or window is not None else (first, count)
        upper = upper and b is None  # both triangles of the reduced problem are filled
        main = EIGVALSH if window is not None else EIGH if certify else operation  # the proof needs the vectors
        tolerance = spectrum.check_tolerance(operation.name, tol, subset)
        return replace(_problem_of(main, a, upper, part, tolerance), also=also)

    return problem


def _problem_of(operation: Operation, a: Any, upper: bool, part: tuple[int, int] | None, tol: float = 0.0) -> Problem:
    array = frameworks.describe(a, operation.name)
    check_square(operation.name, array.shape, array.dtype)
    return Problem.of(operation.name, array, upper=upper, part=part, tol=tol)


def _log(operation: Operation, a: Any, upper: bool, part: tuple[int, int], engine: str, tol: float = 0.0) -> None:
    if planner.logging_decisions():
        planner.log_decision(_problem_of(operation, a, upper, None if part[1] < 0 else part, tol), engine)


def _no_memory(name: str, problem: Problem, engine: str) -> MemoryError:
    plan = planner.plan(problem, engine)
    need = max(plan.device_bytes, plan.host_bytes)
    text = f"{name}: engine {plan.engine} needs a workspace of {bytes_in_words(need)} besides input and result"
    if problem.device == "cuda" and (free := planner.free_memory()):
        text += f", and {bytes_in_words(free)} are free"
    smaller = [other for other in plan.others if max(other.device_bytes, other.host_bytes) < need]
    if smaller:
        best = min(smaller, key=lambda other: max(other.device_bytes, other.host_bytes))
        need = max(best.device_bytes, best.host_bytes)
        return MemoryError(f"{text}\nhint: engine={best.engine!r} needs {bytes_in_words(need)}")
    return MemoryError(f"{text}\nhint: overwrite=True saves a copy; for a few values give subset=slice(-k, None)")


def _results(shapes: tuple[Shape, ...], params: Params) -> tuple[tuple[Shape, str | None], ...]:
    (shape,) = shapes
    count = shape[-1] if params[2] < 0 else spectrum.count_in(params[2])
    return ((*shape[:-2], count), "real"), ((*shape[:-1], count), None), (shape[:-2], "int32")


def _sizes(shapes: tuple[Shape, ...], params: Params) -> Shape:
    n = shapes[0][-1]
    first, count = params[1:]
    if count < 0:
        return prod(shapes[0][:-2]), n, 0, n
    first = first + n if first < 0 else first
    if first < 0 or first + spectrum.count_in(count) > n:
        raise ValueError(f"eigh: the matrix has order {n}, and {spectrum.count_in(count)} eigenvalues were asked for")
    return prod(shapes[0][:-2]), n, first, count


def _reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    """With numpy.linalg, which gets zeros in place of a matrix that is not finite."""
    (a,) = arrays
    upper = bool(params[0] & UPPER)
    good = np.isfinite(np.triu(a) if upper else np.tril(a)).all((-1, -2))
    w, v = np.linalg.eigh(np.where(good[..., None, None], a, 0), UPLO="U" if upper else "L")
    w[~good], v[~good] = np.nan, nan_for(v)
    _, _, first, count = _sizes((a.shape,), params)
    chosen = slice(first, first + spectrum.count_in(count))
    return w[..., chosen].copy(), v[..., chosen].copy(), np.asarray(~good).astype(np.int32)


EIGH = Operation(
    "eigh",
    results=_results,
    sizes=_sizes,
    reference=_reference,
    work=lambda p: (4 / 3 * p.n**3 + 4 * p.n**2 * p.count, p.n * (p.n + p.count)),
    example=(0, 0, -1),
    jvp=eigh_jvp,
    vjp=eigh_vjp,
    differentiable=2,
    keeps_inputs=lambda params: params[2] >= 0,
    alias=1,
    turns="real",
    launches_only_to=4,
)
EIGVALSH = Operation(
    "eigvalsh",
    results=picked(_results, (0, 2)),
    sizes=_sizes,
    reference=picked(_reference, (0, 2)),
    work=lambda p: (4 / 3 * p.n**3, p.n**2),
    example=(0, 0, -1),
    turns="real",
    launches_only_to=4,
    jvp=eigvalsh_jvp,
    derivative_from=("eigh", (0, 2)),
)

eigh.problem = eigh_ex.problem = _problem_with(EIGH)  # type: ignore[attr-defined]
eigvalsh.problem = _problem_with(EIGVALSH)  # type: ignore[attr-defined]
