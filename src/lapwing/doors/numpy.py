"""Names of numpy.linalg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ops.cholesky import cholesky
from ..ops.det import det
from ..ops.eig import eig, eigvals
from ..ops.eigh import eigh, eigvalsh
from ..ops.qr import qr
from ..ops.solve import inv, slogdet, solve
from ..ops.svd import svd, svdvals
from .ahead import ahead, smallest
from .names import Kernel, replace_functions

# NumPy's functions call each other by the names of this module; it was renamed in NumPy 2.
_inner: Any = getattr(np.linalg, "_linalg", None) or getattr(np.linalg, "linalg")  # noqa: B009


def open_door(counts: dict[str, list[float]]) -> Callable[[], None]:
    return replace_functions([np.linalg, _inner], _KERNELS, matrices_worth_a_question(), counts)


def matrices_worth_a_question() -> Callable[[Any], bool]:
    least = smallest("arrays", "one")
    return lambda a: type(a) is np.ndarray and a.size >= least and a.ndim > 1


def is_ahead(operation: str, a: np.ndarray) -> bool:
    # SciPy refuses some arrays whose bytes are in the other order
    return ahead(operation, "arrays" if a.ndim > 2 else "one", a.shape) and a.dtype.char in "fdFD" and a.dtype.isnative


def _named(name: str, values: tuple[Any, ...]) -> Any:
    """The named tuple of NumPy 2, or the plain tuple of NumPy 1."""
    return getattr(_inner, name, lambda *x: x)(*values)


_DOUBLE, _SINGLE = {"f": "d", "F": "D"}, {"d": "f", "D": "F"}


def _run(function: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> Any:
    """The results in row-major memory, as NumPy's are.

    float32 and complex64 as NumPy computes them: in double precision, the results rounded.
    """
    double = _DOUBLE.get(arrays[0].dtype.char)
    if double is None:
        result, finish = function(*arrays, **options), _row_major
    else:
        result, finish = function(*(x.astype(double) for x in arrays), **options), _rounded
    return tuple(map(finish, result)) if isinstance(result, tuple) else finish(result)


def _row_major(x: Any) -> Any:
    return x if x.flags.c_contiguous else x.copy()


def _rounded(x: Any) -> Any:
    with np.errstate(over="ignore"):  # an infinite determinant is left to NumPy, which warns
        return x.astype(_SINGLE[x.dtype.char], order="C")


def _cholesky(a: np.ndarray, /, *, upper: bool = False) -> Any:
    return _run(cholesky, a, upper=bool(upper)) if is_ahead("cholesky", a) else None


def _det(a: np.ndarray) -> Any:
    value = _run(det, a) if is_ahead("slogdet", a) else None
    # NumPy warns of overflow and NaN, and has its own value for a matrix with Inf
    return value if value is not None and np.isfinite(value).all() else None


def _slogdet(a: np.ndarray) -> Any:
    parts = _run(slogdet, a) if is_ahead("slogdet", a) else None
    return _named("SlogdetResult", parts) if parts is not None and (parts[1] < np.inf).all() else None


def real_where_all_are(a: np.ndarray, w: np.ndarray, *results: np.ndarray) -> tuple[np.ndarray, ...]:
    """The results, as real numbers where the matrices and all of their eigenvalues are real."""
    if np.iscomplexobj(a) or w.imag.any():
        return results
    return tuple(np.ascontiguousarray(x.real) for x in results)


def _eig(a: np.ndarray) -> Any:
    if not is_ahead("eig", a):
        return None
    w, v = _run(eig, a)
    return _named("EigResult", real_where_all_are(a, w, w, v))


def _eigvals(a: np.ndarray) -> Any:
    w = _run(eigvals, a) if is_ahead("eigvals", a) else None
    return None if w is None else real_where_all_are(a, w, w)[0]


def _eigh(a: np.ndarray, UPLO: str = "L") -> Any:
    return _named("EighResult", _run(eigh, a, upper=_upper(UPLO))) if is_ahead("eigh", a) else None


def _eigvalsh(a: np.ndarray, UPLO: str = "L") -> Any:
    return _run(eigvalsh, a, upper=_upper(UPLO)) if is_ahead("eigvalsh", a) else None


def _upper(uplo: str) -> bool:
    if uplo.upper() not in ("L", "U"):
        raise ValueError(uplo)  # NumPy says what is wrong
    return uplo.upper() == "U"


def _inv(a: np.ndarray) -> Any:
    return _run(inv, a) if is_ahead("inv", a) else None


def _solve(a: np.ndarray, b: Any) -> Any:
    plain = (
        type(b) is np.ndarray and b.dtype is a.dtype and (b.shape[:-1] == a.shape[:-1] or b.shape == a.shape[:1] == a.shape[1:])
    )
    # without right-hand sides NumPy factors the matrices all the same, and says which is singular
    return _run(solve, a, b) if plain and b.size and is_ahead("solve", a) else None


def _qr(a: np.ndarray, mode: str = "reduced") -> Any:
    q, r = _run(qr, a) if mode == "reduced" and is_ahead("qr", a) else (None, None)
    # which elements are NaN beside Inf and NaN depends on LAPACK's blocks
    return _named("QRResult", (q, r)) if r is not None and np.isfinite(r).all() else None


def _svd(a: np.ndarray, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    if hermitian or not is_ahead("svd" if compute_uv else "svdvals", a):
        return None
    if not compute_uv:
        return _run(svdvals, a)
    return None if full_matrices and a.shape[-1] != a.shape[-2] else _named("SVDResult", _run(svd, a))


def _svdvals(x: np.ndarray, /) -> Any:
    return _run(svdvals, x) if is_ahead("svdvals", x) else None


_KERNELS: dict[str, Kernel] = {
    "cholesky": _cholesky,
    "det": _det,
    "eig": _eig,
    "eigh": _eigh,
    "eigvals": _eigvals,
    "eigvalsh": _eigvalsh,
    "inv": _inv,
    "qr": _qr,
    "slogdet": _slogdet,
    "solve": _solve,
    "svd": _svd,
    "svdvals": _svdvals,
}
