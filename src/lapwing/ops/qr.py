"""A = Q R with orthonormal columns in Q and R upper triangular."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Literal, NamedTuple, Never, overload

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_choice, check_matrix
from ..core.derivatives import no_derivative, qr_jvp, qr_vjp
from ..core.keywords import unknown_keyword
from ..core.native import DTYPE_CODE, ENGINES, native
from ..core.operation import Operation, Params, Shape
from ..core.problem import Problem, Spec
from ..core.request import MATRIX, Request
from .triangle import nan_for


class QRResult(NamedTuple):
    """The results of :func:`qr`."""

    Q: Any
    R: Any


class RawQRResult(NamedTuple):
    """The results of :func:`qr` with ``mode="raw"``."""

    h: Any
    tau: Any


MODES = ("reduced", "complete", "r", "raw")
Mode = Literal["reduced", "complete", "r"]


@overload
def qr(a: Any, /, *, mode: Mode = "reduced", engine: str = "auto", **unknown: Never) -> QRResult: ...
@overload
def qr(a: Any, /, *, mode: Literal["raw"], engine: str = "auto", **unknown: Never) -> RawQRResult: ...
def qr(
    a: Any, /, *, mode: Literal["reduced", "complete", "r", "raw"] = "reduced", engine: str = "auto", **unknown: Never
) -> QRResult | RawQRResult:
    """QR factorisation.

    Parameters
    ----------
    a : array, shape (..., m, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    mode : {"reduced", "complete", "r", "raw"}
        "reduced": Q has k = min(m, n) columns. "complete": Q is square, k = m. "r": R as in "reduced", and an empty Q of shape
        (0,), as torch returns it. "raw": the compact form, as NumPy returns it.
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    Q : array, shape (..., m, k)
        Orthonormal columns. Q and R are NaN for a matrix with NaN or Inf in its first min(m, n) columns.
    R : array, shape (..., k, n)
        Upper triangular; the signs of its diagonal are not fixed.
    h : array, shape (..., n, m)
        With "raw", in place of Q: the transpose of LAPACK's compact form. R is on and above its diagonal. Below the diagonal,
        column i holds the vector v of the reflection I - tau_i v v^H, without its leading one. Q is the product of them.
    tau : array, shape (..., min(m, n))
        With "raw", in place of R.

    Raises
    ------
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    lstsq : least squares.

    Notes
    -----
    Derivatives exist where the first min(m, n) columns are independent; for "complete" where m <= n. With "r" they cost the
    Q that the call itself saves. "raw" has none.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> a = np.array([[3.0, 1.0], [4.0, 1.0], [0.0, 2.0]])
    >>> q, r = lw.qr(a)
    >>> np.allclose(q @ r, a), np.allclose(q.T @ q, np.eye(2))
    (True, True)
    """
    if unknown:
        raise unknown_keyword(qr, unknown)
    framework = frameworks.entry(a, "qr")
    if framework.sharded:
        return framework.call(qr, a, mode=mode, engine=engine)  # type: ignore[no-any-return]
    shape = framework.shape_of(a)
    plain = mode == "reduced" and engine == "auto" and framework.direct(a) and len(shape) > 1 and shape[-2] >= shape[-1]
    if plain and not planner.logging_decisions():
        factors = framework.results_direct(QR, (0, 0), a)
        if factors is not None:
            return QRResult(*factors)
    _check(shape, framework.dtype_of(a), mode)
    code = planner.code_for(framework, a, engine, "qr", lambda: [_problem(a, mode=mode, engine=engine)])
    m, n = shape[-2:]
    if mode in ("r", "raw"):
        return _without_q(framework, a, mode, code, engine)
    if n == 0 and mode == "complete":
        square = a @ framework.Namespace.adjoint(a)
        q = square + framework.Namespace.eye(square)
        return QRResult(q, framework.Namespace.matmul(q, a))  # a product has its own memory and the native byte order
    if m is None or n is None or m < n:
        xp = framework.Namespace
        return QRResult(*_wide(xp, a, lambda first: _decompose(framework, first, mode, code, engine)))
    return QRResult(*_decompose(framework, a, mode, code, engine))


def _wide(xp: Any, a: Any, decompose: Any) -> tuple[Any, Any]:
    """The first m columns decide Q: A = Q (R1 | Q^H A2). A2 may be empty if the shape is not known yet."""
    first = xp.shape(a)[-2]
    q, r = decompose(a[..., :first])
    return q, xp.beside(r, xp.matmul(xp.adjoint(q), a[..., first:]))


def reduced_factors(xp: Any, a: Any, engine: int) -> tuple[Any, Any]:
    """Q and R with derivatives, inside a composed operation."""
    m, n = a.shape[-2:]
    if m is None or n is None or m < n:
        return _wide(xp, a, lambda first: xp.call(QR, (first,), (0, 0), engine))
    return xp.call(QR, (a,), (0, 0), engine)  # type: ignore[no-any-return]


def _check(shape: tuple[Any, ...], dtype: str, mode: str) -> None:
    check_matrix("qr", shape, dtype)
    check_choice("qr", "mode", mode, MODES)


def _request(a: Spec, *, mode: str = "reduced", engine: str = "auto") -> Request:
    _check(a.shape, a.dtype, mode)
    if mode in ("r", "raw"):
        raise ValueError(f'qr: mode={mode!r} is not supported for sharded matrices\nhint: mode="reduced"')
    return Request(qr, "qr", (MATRIX, MATRIX), QRResult, mode=mode, engine=engine)


qr.request = _request  # type: ignore[attr-defined]


def _without_q(framework: Any, a: Any, mode: str, code: int, engine: str) -> QRResult | RawQRResult:
    if not framework.traced(a) and planner.logging_decisions():
        planner.log_decision(_problem(a, mode=mode, engine=engine), engine)
    if mode == "raw":
        return RawQRResult(*framework.apply(QR_RAW, (a,), (0,), code, False))
    xp = framework.Namespace
    (r,) = framework.apply(QR_R, (a,), (0,), code, False)
    return QRResult(xp.reshape(xp.constant(r), (-1,))[:0], r)


def _decompose(framework: Any, a: Any, mode: str, code: int, engine: str) -> tuple[Any, Any]:
    if not framework.traced(a) and planner.logging_decisions():
        planner.log_decision(_problem(a, mode=mode, engine=engine), engine)
    m, n = framework.shape_of(a)[-2:]
    # complete is the same as reduced for a square matrix, and then has derivatives
    complete = mode == "complete" and (m is None or m != n)
    return framework.apply(QR_COMPLETE if complete else QR, (a,), (0, int(complete)), code, False)  # type: ignore[no-any-return]


def _problem(a: Any, mode: str = "reduced", engine: str = "auto", **_: Any) -> Problem:
    array = frameworks.describe(a, "qr")
    check_matrix("qr", array.shape, array.dtype)
    if mode == "raw" or (mode == "r" and (array.device == "cpu" or native_on_gpu(array.shape, engine, array.dtype))):
        return Problem.of(f"qr_{mode}", array, columns=array.shape[-1])
    columns = min(array.shape[-2:])  # the first m columns decide
    return Problem.of("qr", array, columns=columns, full=mode == "complete" and array.shape[-2] != columns)


qr.problem = _problem  # type: ignore[attr-defined]


def _results(shapes: tuple[Shape, ...], params: Params) -> Any:
    *batch, m, n = shapes[0]
    c = m if params[1] else _smaller(m, n)
    return ((*batch, m, c), None), ((*batch, c, n), None)


def _smaller(m: Any, n: Any) -> Any:
    return None if m is None or n is None else min(m, n)


def _sizes(shapes: tuple[Shape, ...], params: Params) -> Shape:
    *batch, m, n = shapes[0]
    return prod(batch), m, n, m if params[1] else min(m, n)


def _reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    (a,) = arrays
    good = np.isfinite(a).all((-1, -2))[..., None, None]
    q, r = np.linalg.qr(np.where(good, a, 0), mode="complete" if params[1] else "reduced")
    nan = nan_for(a)
    return np.where(good, q, nan).astype(a.dtype), np.where(good, r, nan).astype(a.dtype)


QR = Operation(
    "qr",
    results=_results,
    sizes=_sizes,
    reference=_reference,
    work=lambda p: (4 * p.long * p.short**2 - 4 / 3 * p.short**3, 2 * p.long * p.short + p.short**2),
    example=(0, 0),
    square=False,
    jvp=qr_jvp,
    vjp=qr_vjp,
    differentiable=2,
)
_NO_DERIVATIVE = no_derivative(
    'qr: the columns of Q beyond those of A are arbitrary, and have no derivative\nhint: mode="reduced"'
)
QR_COMPLETE = replace(QR, example=(0, 1), variant="complete", jvp=_NO_DERIVATIVE, vjp=_NO_DERIVATIVE)


def _reference_r(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    return (_reference(arrays, (0, 0))[1],)


def _reference_raw(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    (a,) = arrays
    good = np.isfinite(a).all((-1, -2))
    h, tau = np.linalg.qr(np.where(good[..., None, None], a, 0), mode="raw")
    h, tau = np.where(good[..., None, None], h, nan_for(a)), np.where(good[..., None], tau, nan_for(a))
    return np.ascontiguousarray(h).astype(a.dtype), tau.astype(a.dtype)


def _rows_and_columns(shapes: tuple[Shape, ...], params: Params) -> Shape:
    *batch, m, n = shapes[0]
    return prod(batch), m, n


def _r_results(shapes: tuple[Shape, ...], params: Params) -> Any:
    *batch, m, n = shapes[0]
    return (((*batch, _smaller(m, n), n), None),)


def _raw_results(shapes: tuple[Shape, ...], params: Params) -> Any:
    *batch, m, n = shapes[0]
    return ((*batch, n, m), None), ((*batch, _smaller(m, n)), None)


def _r_composed(xp: Any, params: Params, inputs: Any, engine: int) -> tuple[Any, ...]:
    return reduced_factors(xp, inputs[0], engine)[1:]


# On a GPU, R alone and least squares are composed of the QR if the QR is fastest: up to this order it is one kernel for a batch
# (MAX_QR_M in native/gpu/solve.cc), and for tall matrices engine "tall" does it (tall_pays in native/methods/tall.cc).
_SMALL = 32


def native_on_gpu(shape: Any, engine: str | int = "auto", dtype: str = "float64") -> bool:
    """Whether R alone, or least squares, is one native operation for such matrices on a GPU. Engine "tall" has only the QR."""
    m, n = shape[-2:]
    if not (isinstance(m, int) and isinstance(n, int) and m and n) or engine in ("tall", ENGINES.get("tall")):
        return False
    long, short = max(m, n), min(m, n)
    return long > _SMALL and not (native is not None and native.tall_pays(DTYPE_CODE[dtype], long, short))


QR_R = Operation(
    "qr_r",
    results=_r_results,
    sizes=_rows_and_columns,
    reference=_reference_r,
    work=lambda p: (2 * p.long * p.short**2 - 2 / 3 * p.short**3, p.long * p.short + p.short**2),
    composed=_r_composed,
    elsewhere=_r_composed,
    native_elsewhere=lambda shapes, engine, dtype: native_on_gpu(shapes[0], engine, dtype),
)
_NO_RAW_DERIVATIVE = no_derivative('qr: the compact form of mode="raw" has no derivative here\nhint: mode="reduced"')
QR_RAW = Operation(
    "qr_raw",
    results=_raw_results,
    sizes=_rows_and_columns,
    reference=_reference_raw,
    work=lambda p: (2 * p.long * p.short**2 - 2 / 3 * p.short**3, 2 * p.long * p.short),
    jvp=_NO_RAW_DERIVATIVE,
    vjp=_NO_RAW_DERIVATIVE,
    differentiable=2,
)
