"""A matrix that is given by its products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_choice
from ..core.errors import ConvergenceError, ShapeError
from ..core.native import DTYPE_CODE, ENGINES, how_to_build, missing_reason, native
from ..core.operation import Operation
from ..core.problem import REAL
from ..core.problem import spec as make_spec
from .spectrum import as_outputs, part_of, with_tolerance


@dataclass(frozen=True)
class LinearOperator:
    """A matrix given by its product with a block of vectors; Hermitian unless there is a product with its adjoint too."""

    matvec: Callable[[Any], Any]
    shape: tuple[int, int]
    dtype: str
    like: Any = None
    rmatvec: Callable[[Any], Any] | None = None


def operator(
    matvec: Callable[[Any], Any],
    shape: tuple[int, int],
    dtype: Any,
    *,
    rmatvec: Callable[[Any], Any] | None = None,
    like: Any = None,
) -> LinearOperator:
    """Describe a matrix by its products.

    :func:`eigh` takes it with a ``subset`` at one end of the spectrum, :func:`svd` with one of the largest singular values.

    Parameters
    ----------
    matvec : function
        Takes an array of shape (n, k) and returns A @ x of shape (m, k). It may be called with any k >= 1.
    shape : (m, n)
        :func:`eigh` needs a square one.
    dtype : str or dtype
        float32, float64, complex64 or complex128.
    rmatvec : function, optional
        Takes an array of shape (m, k) and returns A^H @ y of shape (n, k). Without it the matrix is Hermitian.
    like : array, optional
        The library and device of the arrays that ``matvec`` is called with, and of the result; NumPy if not given.

    Returns
    -------
    LinearOperator

    Raises
    ------
    ValueError, TypeError
        Wrong shape or dtype.

    See Also
    --------
    eigh, svd : take it in place of a matrix.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> d = np.arange(1000.0)
    >>> a = lw.operator(lambda x: d[:, None] * x, (1000, 1000), "float64")
    >>> w, v = lw.eigh(a, subset=slice(-2, None))
    >>> np.allclose(w, [998, 999])
    True
    """
    if not isinstance(shape, tuple):
        raise TypeError(f"operator: shape={shape!r} is not a tuple (n, n)")
    described = make_spec(shape, dtype)
    if len(described.shape) != 2 or (rmatvec is None and described.shape[0] != described.shape[1]):
        hint = "" if len(described.shape) != 2 else "\nhint: a matrix that is not square needs rmatvec too"
        raise ValueError(f"operator: expected a shape (n, n), got {tuple(shape)}{hint}")
    for keyword, function in ("matvec", matvec), ("rmatvec", rmatvec):
        if not callable(function) and (keyword == "matvec" or function is not None):
            example = "lambda x: a @ x" if keyword == "matvec" else "lambda y: a.conj().T @ y"
            raise TypeError(f"operator: {keyword} must be a function, got {type(function).__name__}\nhint: {example}")
    m, n = described.shape
    return LinearOperator(matvec, (m, n), described.dtype, like, rmatvec)


# Below this order, and for larger parts of the spectrum, the operator is multiplied by the identity to get the matrix.
_SMALLEST, _LARGEST_SHARE = 500, 8


def eigh_of_operator(
    name: str,
    operation: Operation,
    a: LinearOperator,
    subset: slice | None,
    engine: str,
    on_fail: str,
    refused: dict[str, Any],
    function: Callable[..., Any],
    tol: float = 0.0,
) -> tuple[Any, ...]:
    """The outputs of the operation, by the Krylov iteration on the products."""
    if a.rmatvec is not None:
        raise ValueError(f"{name}: an operator with rmatvec is not known to be Hermitian\nhint: use svd, or leave rmatvec out")
    n = a.shape[0]
    for keyword, value in refused.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}: an operator cannot be combined with {keyword}={value!r}\nhint: give subset alone")
    check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    if engine not in ("auto", "krylov"):
        raise ValueError(f"{name}: engine={engine!r} needs the matrix itself\nhint: for an operator use engine='krylov'")
    first, count = part_of(name, subset, n)
    count = n if count < 0 else count
    if subset is None or (first != 0 and first + count != n):
        raise ValueError(f"{name}: an operator needs a subset at one end, got {subset}\nhint: subset=slice(-16, None)")
    like = np.empty(0) if a.like is None else a.like
    framework = frameworks.of(like, name)

    def matvec(x: Any) -> Any:
        return _checked(a, "matvec", x, a.matvec(x), n)

    if n <= _SMALLEST or _LARGEST_SHARE * count > n:
        matrix = matvec(framework.Namespace.put(np.eye(n, dtype=a.dtype), like))
        return as_outputs(function(matrix, subset=subset, on_fail=on_fail))
    if native is None:
        raise RuntimeError(f"{name}: an operator needs the native core, and {missing_reason}\nhint: {how_to_build()}")
    outputs, converged = _iterate(operation, framework, matvec, a.dtype, (n, first, count, tol), like)
    if converged and not framework.failed(outputs[-1]):
        return outputs
    if on_fail == "nan":
        return tuple(x * np.nan for x in outputs[:-1])
    raise ConvergenceError(name, nonfinite=converged, operator=True)


def _iterate(
    operation: Operation, framework: Any, matvec: Any, dtype: str, part: tuple[int, int, int, float], like: Any
) -> tuple[tuple[Any, ...], bool]:
    """The outputs of the Krylov iteration with a Hermitian matrix of order n, and whether it converged."""
    n, first, count, tol = part
    params = 0, first, with_tolerance(count, tol)
    kinds = {None: dtype, "real": REAL[dtype]}
    results = [(shape, kinds.get(d, d)) for shape, d in operation.results(((n, n),), params)]
    call = (operation.code, DTYPE_CODE[dtype], ENGINES["krylov"], (1, n, *params[1:]))
    outputs, converged = framework.run_operator(call, matvec, n, dtype, results, like)
    if planner.logging_decisions():
        planner.log_notes()
    return outputs, converged


def svd_of_operator(
    name: str, eigh: Operation, a: LinearOperator, subset: slice | None, engine: str, on_fail: str, svd: Callable[..., Any]
) -> tuple[Any, Any, Any]:
    """U, S, V^H: the largest singular triplets.

    [0 A; A^H 0] has the singular values as its largest eigenvalues, with the eigenvectors (u, v) / sqrt(2). With these v as the
    columns of V, the SVD of A V gives the answer, and one more product with A^H verifies it.
    """
    (m, n), rmatvec = a.shape, a.rmatvec or a.matvec
    check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    if engine not in ("auto", "krylov"):
        raise ValueError(f"{name}: engine={engine!r} needs the matrix itself\nhint: for an operator use engine='krylov'")
    first, count = part_of(name, subset, min(m, n), "singular values")
    count = min(m, n) if count < 0 else count
    if subset is None or first != 0:
        raise ValueError(f"{name}: an operator needs a subset of the largest values, got {subset}\nhint: subset=slice(16)")
    like = np.empty(0) if a.like is None else a.like
    framework = frameworks.of(like, name)
    xp = framework.Namespace

    def apply(x: Any) -> Any:
        return _checked(a, "matvec", x, a.matvec(x), m)

    def apply_adjoint(y: Any) -> Any:
        return _checked(a, "rmatvec" if a.rmatvec else "matvec", y, rmatvec(y), n)

    if min(m, n) <= _SMALLEST or _LARGEST_SHARE * count > min(m, n):
        u, s, vh = svd(apply(xp.put(np.eye(n, dtype=a.dtype), like)), on_fail=on_fail)
        return u[:, :count] * 1, s[:count] * 1, vh[:count] * 1
    if native is None:
        raise RuntimeError(f"{name}: an operator needs the native core, and {missing_reason}\nhint: {how_to_build()}")

    def both(x: Any) -> Any:
        above, below = xp.adjoint(apply(x[m:] * 1)), xp.adjoint(apply_adjoint(x[:m] * 1))
        return xp.adjoint(xp.beside(above, below))

    outputs, converged = _iterate(eigh, framework, both, a.dtype, (m + n, m + n - count, count, 0.0), like)
    good = converged and not framework.failed(outputs[-1])
    u, s, vh = outputs[1][:m], outputs[0], xp.adjoint(outputs[1][m:])
    if good:
        basis = svd(outputs[1][m:] * 1).U
        u, s, zh = svd(apply(basis))
        vh = xp.matmul(zh, xp.adjoint(basis))
        gap = apply_adjoint(u) - xp.adjoint(vh) * xp.like(s, u)
        u, s, vh = xp.constant(u), xp.constant(s), xp.constant(vh)  # the iteration has no derivative
        gaps, size = framework.to_numpy(xp.abs(xp.constant(gap))).astype(float), float(framework.to_numpy(s).max())
        gaps /= size or 1.0
        good = bool(np.linalg.norm(gaps, axis=0).max() <= 2 * (m + n) * np.finfo(REAL[a.dtype]).eps)
    if good:
        return u, s, vh
    if on_fail == "nan":
        return u * np.nan, s * np.nan, vh * np.nan
    raise ConvergenceError(name, nonfinite=not np.isfinite(framework.to_numpy(s)).all(), operator=True)


def _checked(a: LinearOperator, word: str, x: Any, y: Any, rows: int) -> Any:
    """``y``, which the function named ``word`` returned for the block ``x``, in the dtype of the operator."""
    expected, shape = (rows, *tuple(x.shape)[1:]), tuple(getattr(y, "shape", ()))
    if shape != expected:
        raise ShapeError(
            f"operator: {word} returned shape {shape} for a block of shape {tuple(x.shape)}, expected {expected}"
            "\nhint: it gets k vectors at a time, as the columns of an array, and returns the matrix times that array"
        )
    returned = frameworks.of(y, "operator")
    if returned is not frameworks.of(x, "operator"):
        raise TypeError(
            f"operator: {word} returned {type(y).__name__} for a block that is {type(x).__name__}"
            "\nhint: like= says which arrays it gets"
        )
    dtype = returned.dtype_of(y)
    if dtype == a.dtype:
        return y
    if not np.can_cast(dtype, a.dtype, "same_kind"):
        raise TypeError(
            f"operator: {word} returned {dtype} for a block of {a.dtype}\nhint: name that dtype in lapwing.operator(...)"
        )
    return returned.Namespace.cast(y, a.dtype)
