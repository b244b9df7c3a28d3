"""A = U S V^H: singular values and vectors, and the polar decomposition."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Literal, NamedTuple, Never

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_choice, check_flag, check_matrix
from ..core.derivatives import no_derivative, svd_jvp, svd_part_jvp, svd_part_vjp, svd_vjp, svdvals_jvp
from ..core.keywords import unknown_keyword
from ..core.operation import Operation, Params, Shape, picked
from ..core.problem import Problem, Spec
from ..core.request import MATRIX, VALUE, Request
from .eigh import EIGH
from .failure import apply_or_raise
from .operator import LinearOperator, svd_of_operator
from .qr import _smaller
from .spectrum import part_of
from .triangle import nan_for


class SVDResult(NamedTuple):
    """The results of :func:`svd`."""

    U: Any
    S: Any
    Vh: Any


class PolarResult(NamedTuple):
    """The results of :func:`polar`."""

    u: Any
    p: Any


def svd(
    a: Any,
    /,
    *,
    full_matrices: bool = False,
    subset: slice | None = None,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> SVDResult:
    """Singular value decomposition, of all singular values or some of them.

    Parameters
    ----------
    a : array, shape (..., m, n), or :func:`lapwing.operator`
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128. An operator needs a ``subset`` of
        the largest values.
    full_matrices : bool
        False: U and Vh have k = min(m, n) columns and rows. True: both are square.
    subset : slice, optional
        Which singular values, counted in descending order: ``slice(16)`` are the 16 largest. For a large matrix these take a
        small part of the time of all; the call then may wait for the device.
    on_fail : {"raise", "nan"}
        As for :func:`lapwing.eigh`.
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    U : array, shape (..., m, k)
    S : real array, shape (..., k)
        Descending.
    Vh : array, shape (..., k, n)

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf, or the iteration did not converge.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    svdvals : singular values alone.
    lstsq, polar : computed from it.

    Notes
    -----
    The derivative is that of a function that does not depend on the choice of vectors inside a cluster of equal values. With
    ``full_matrices=True`` there is none, unless the matrix is square. The derivative of the vectors of a subset computes all
    singular vectors.

    The largest values of a large matrix come from the largest eigenvalues of its Gram matrix in double precision, and the
    decomposition of the product of the matrix with their vectors, so that their accuracy is that of the full decomposition.
    ||A^H u - s v|| <= min(m, n) eps ||A|| is verified; where it is larger, the full decomposition does the work.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> u, s, vh = lw.svd(np.array([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]]))
    >>> s
    array([3., 2.])
    >>> lw.svd(np.diag([3.0, 5.0, 4.0]), subset=slice(2)).S
    array([5., 4.])
    """
    if unknown:
        raise unknown_keyword(svd, unknown)
    if subset is not None and full_matrices is not False:
        raise ValueError("svd: subset cannot be combined with full_matrices\nhint: give one of them")
    if type(a) is LinearOperator:
        return SVDResult(*svd_of_operator("svd", EIGH, a, subset, engine, on_fail, svd))
    framework = frameworks.entry(a, "svd")
    if framework.sharded:
        options = {"full_matrices": full_matrices, "subset": subset, "on_fail": on_fail, "engine": engine}
        return framework.call(svd, a, **options)  # type: ignore[no-any-return]
    if subset is not None:
        return SVDResult(*_part(framework, "svd", a, subset, on_fail, engine))
    factors = _direct(framework, SVD, a, on_fail, engine) if full_matrices is False else None
    if factors is not None:
        return SVDResult(*factors)
    shape = framework.shape_of(a)
    full = _check("svd", shape, framework.dtype_of(a), on_fail, full_matrices)
    if full and 0 in shape[-2:]:
        xp = framework.Namespace
        left, right = a @ xp.adjoint(a), xp.adjoint(a) @ a
        return SVDResult(left + xp.eye(left), xp.sum(xp.abs(a), -2 if shape[-1] == 0 else -1), right + xp.eye(right))
    operation = SVD_FULL if full else SVD
    return SVDResult(*_solve(framework, "svd", operation, a, (0, int(full)), on_fail, engine)[:3])


def svdvals(
    a: Any,
    /,
    *,
    subset: slice | None = None,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> Any:
    """Singular values, descending: all or some of them.

    Parameters
    ----------
    a, subset, on_fail, engine
        As for :func:`svd`.

    Returns
    -------
    real array, shape (..., k)

    Raises
    ------
    ConvergenceError, ValueError, TypeError
        As for :func:`svd`.

    See Also
    --------
    svd : vectors too.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.svdvals(np.array([[0.0, 2.0], [1.0, 0.0]]))
    array([2., 1.])
    """
    if unknown:
        raise unknown_keyword(svdvals, unknown)
    if type(a) is LinearOperator:
        return svd_of_operator("svdvals", EIGH, a, subset, engine, on_fail, svd)[1]
    framework = frameworks.entry(a, "svdvals")
    if framework.sharded:
        return framework.call(svdvals, a, subset=subset, on_fail=on_fail, engine=engine)
    results = _direct(framework, SVDVALS, a, on_fail, engine) if subset is None else None
    if results is not None:
        return results[0]
    shape = framework.shape_of(a)
    _check("svdvals", shape, framework.dtype_of(a), on_fail)
    chosen = None
    if subset is not None:
        k = _smaller(*shape[-2:])
        first, count = part_of("svdvals", subset, k, "singular values")
        if _iterates("svdvals", k, first, count, engine):
            return _part(framework, "svdvals", a, subset, on_fail, engine)[1]
        chosen = slice(first, first + count or None) if count > 0 else None
    s = _solve(framework, "svdvals", SVDVALS, a, (0, 0), on_fail, engine)[0]
    return s if chosen is None else s[..., chosen] * 1  # a product owns its memory


def polar(a: Any, /, *, side: Literal["right", "left"] = "right", engine: str = "auto", **unknown: Never) -> PolarResult:
    """Polar decomposition A = U P (right) or A = P U (left), P Hermitian and positive semidefinite.

    Parameters
    ----------
    a : array, shape (..., m, n)
        As for :func:`svd`.
    side : {"right", "left"}
        On which side P stands.
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    u : array, shape (..., m, n)
        Orthonormal columns (rows where m < n); the nearest such matrix to ``a``.
    p : array, shape (..., n, n) or (..., m, m)

    Raises
    ------
    ConvergenceError, ValueError, TypeError
        As for :func:`svd`.

    See Also
    --------
    svd

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> u, p = lw.polar(np.array([[0.0, -2.0], [3.0, 0.0]]))
    >>> np.allclose(u, [[0, -1], [1, 0]]), np.allclose(p, [[3, 0], [0, 2]])
    (True, True)
    """
    if unknown:
        raise unknown_keyword(polar, unknown)
    framework = frameworks.entry(a, "polar")
    if framework.sharded:
        return framework.call(polar, a, side=side, engine=engine)  # type: ignore[no-any-return]
    _check("polar", framework.shape_of(a), framework.dtype_of(a), side=side)
    xp = framework.Namespace
    w, s, vh, _ = _solve(framework, "polar", SVD, a, (0, 0), "raise", engine)
    scaled = xp.like(s, w)[..., None, :]
    # P = V S V^H, or W S W^H; the mean with its adjoint is Hermitian to the last bit
    basis = xp.adjoint(vh) if side == "right" else w
    p = xp.matmul(basis * scaled, xp.adjoint(basis))
    u = xp.matmul(w, vh)
    if framework.differentiates(a):
        # P = U^H A, or A U^H, has the same value, and a derivative even if singular values are equal
        product = xp.matmul(xp.adjoint(u), a) if side == "right" else xp.matmul(a, xp.adjoint(u))
        p = xp.constant(p) + (product - xp.constant(product))
    return PolarResult(u, (p + xp.adjoint(p)) / 2)


def _direct(framework: Any, operation: Operation, a: Any, on_fail: str, engine: str) -> Any:
    """The results without the status, by the short way for plain arrays; None if the long way must be taken."""
    if not framework.direct(a) or on_fail != "raise" or engine != "auto" or planner.logging_decisions():
        return None
    return framework.results_direct(operation, (0, 0), a)


def _check(
    name: str, shape: tuple[Any, ...], dtype: str, on_fail: str = "raise", full_matrices: Any = False, side: str = "right"
) -> bool:
    """Check the arguments; True if U and Vh are to be square and A is not."""
    check_matrix(name, shape, dtype)
    if on_fail not in ("raise", "nan"):
        check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    if side != "right":
        check_choice(name, "side", side, ("right", "left"))
    if full_matrices is False:
        return False
    return check_flag(name, "full_matrices", full_matrices) and (shape[-1] is None or shape[-1] != shape[-2])


def _request(function: Any, places: Any, result: Any = None) -> Any:
    """A function that checks a call of ``function`` and describes it."""

    def request(a: Spec, **options: Any) -> Request:
        if options.pop("subset", None) is not None:
            name = function.__name__
            raise ValueError(
                f"{name}: subset is not supported for sharded matrices\nhint: leave it out, then index the results"
            )
        checked = {name: value for name, value in options.items() if name != "engine"}
        full = _check(function.__name__, a.shape, a.dtype, **checked)
        return Request(function, function.__name__, places, result, **options | {"full_matrices": full})

    return request


svd.request = _request(svd, (MATRIX, VALUE, MATRIX), SVDResult)  # type: ignore[attr-defined]
svdvals.request = _request(svdvals, (VALUE,))  # type: ignore[attr-defined]
polar.request = _request(polar, (MATRIX, MATRIX), PolarResult)  # type: ignore[attr-defined]


def _iterates(name: str, k: Any, first: int, count: int, engine: str = "auto") -> bool:
    """Whether a part of the k singular values has its own operation. Without vectors that pays for large matrices only."""
    if first != 0 or count <= 0:
        return False
    return name != "svdvals" or engine == "krylov" or not isinstance(k, int) or (k >= 256 and 8 * count <= k)


def _part(framework: Any, name: str, a: Any, subset: slice, on_fail: str, engine: str) -> tuple[Any, Any, Any]:
    """U, S and V^H of some singular values: an operation of its own for the largest ones, else cut from all."""
    shape = framework.shape_of(a)
    _check(name, shape, framework.dtype_of(a), on_fail)
    first, count = part_of(name, subset, _smaller(*shape[-2:]), "singular values")
    if first == 0 and count > 0:
        u, s, vh, _ = _solve(framework, name, SVD_PART, a, (0, count), on_fail, engine)
        return u, s, vh
    u, s, vh, _ = _solve(framework, name, SVD, a, (0, 0), on_fail, engine)
    if count < 0:
        return u, s, vh
    chosen = slice(first, first + count or None)
    return u[..., chosen] * 1, s[..., chosen] * 1, vh[..., chosen, :] * 1  # a product owns its memory


def _solve(framework: Any, name: str, operation: Operation, a: Any, params: Params, on_fail: str, engine: str) -> Any:
    def problem() -> Problem:
        if operation is SVD_PART:
            return _problem_of("svd_part", a, part=(0, params[1]))
        return _problem_of("svdvals" if operation is SVDVALS else "svd", a, full=bool(params[1]))

    return apply_or_raise(framework, name, operation, a, params, on_fail, engine, problem)


def _problem_of(operation: str, a: Any, **known: Any) -> Problem:
    array = frameworks.describe(a, operation)
    check_matrix(operation, array.shape, array.dtype)
    return Problem.of(operation, array, columns=array.shape[-1], **known)


def _problem_with(operation: str) -> Any:
    def problem(a: Any, full_matrices: bool = False, subset: slice | None = None, engine: str = "auto", **_: Any) -> Problem:
        complete = _problem_of(operation, a, full=full_matrices)
        first, count = part_of(operation, subset, complete.short, "singular values")
        if count < 0:
            return complete
        if _iterates(operation, complete.short, first, count, engine):
            return _problem_of("svd_part", a, part=(0, count))
        return replace(complete, also="; the subset is cut from all singular values")

    return problem


svd.problem = polar.problem = _problem_with("svd")  # type: ignore[attr-defined]
svdvals.problem = _problem_with("svdvals")  # type: ignore[attr-defined]


def _results(shapes: tuple[Shape, ...], params: Params) -> Any:
    *batch, m, n = shapes[0]
    k = _smaller(m, n)
    u, vh = ((*batch, m, m), (*batch, n, n)) if params[1] else ((*batch, m, k), (*batch, k, n))
    return (u, None), ((*batch, k), "real"), (vh, None), (tuple(batch), "int32")


def _sizes(shapes: tuple[Shape, ...], params: Params) -> Shape:
    *batch, m, n = shapes[0]
    return prod(batch), m, n, params[1]


def _reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    """With numpy.linalg, which gets zeros in place of a matrix that is not finite."""
    (a,) = arrays
    good = np.isfinite(a).all((-1, -2))
    u, s, vh = np.linalg.svd(np.where(good[..., None, None], a, 0), full_matrices=bool(params[1]))
    u, s, vh = np.array(u, a.dtype), np.array(s), np.array(vh, a.dtype)
    u[~good], s[~good], vh[~good] = nan_for(a), np.nan, nan_for(a)
    return u, s, vh, np.asarray(~good).astype(np.int32)


def _part_results(shapes: tuple[Shape, ...], params: Params) -> Any:
    *batch, m, n = shapes[0]
    count = params[1]
    return ((*batch, m, count), None), ((*batch, count), "real"), ((*batch, count, n), None), (tuple(batch), "int32")


def _part_sizes(shapes: tuple[Shape, ...], params: Params) -> Shape:
    *batch, m, n = shapes[0]
    if params[1] > min(m, n):
        raise ValueError(f"svd: the matrix is {m} x {n}, and {params[1]} singular values were asked for")
    return prod(batch), m, n, params[1]


def _part_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    u, s, vh, info = _reference(arrays, (0, 0))
    k = params[1]
    return u[..., :k].copy(), s[..., :k].copy(), vh[..., :k, :].copy(), info


SVD = Operation(
    "svd",
    square=False,
    results=_results,
    sizes=_sizes,
    reference=_reference,
    work=lambda p: (6 * p.long * p.short**2 + 20 * p.short**3, 2 * p.long * p.short + p.short**2),
    example=(0, 0),
    jvp=svd_jvp,
    vjp=svd_vjp,
    differentiable=3,
)
_NO_DERIVATIVE = no_derivative(
    "svd: the columns beyond min(m, n) are arbitrary, and have no derivative\nhint: full_matrices=False"
)
SVD_FULL = replace(SVD, example=(0, 1), variant="full", jvp=_NO_DERIVATIVE, vjp=_NO_DERIVATIVE)
SVDVALS = Operation(
    "svdvals",
    square=False,
    results=picked(_results, (1, 3)),
    sizes=_sizes,
    reference=picked(_reference, (1, 3)),
    work=lambda p: (2 * p.long * p.short**2 + 2 * p.short**3, p.long * p.short),
    example=(0, 0),
    jvp=svdvals_jvp,
    derivative_from=("svd", (1, 3)),
)
SVD_PART = Operation(
    "svd_part",
    results=_part_results,
    sizes=_part_sizes,
    reference=_part_reference,
    work=lambda p: (p.long * p.short**2 + 4 / 3 * p.short**3 + 8 * p.long * p.short * p.count, p.long * p.short),
    example=(0, 1),
    jvp=svd_part_jvp,
    vjp=svd_part_vjp,
    differentiable=3,
    keeps_inputs=lambda params: True,
)
