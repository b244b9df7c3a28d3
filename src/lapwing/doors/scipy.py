"""Names of scipy.linalg. ``solve`` and ``inv`` stay SciPy's own: they warn of ill-conditioned matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from ..ops.cholesky import cholesky
from ..ops.det import det
from ..ops.eig import eig, eigvals, schur
from ..ops.eigh import eigh, eigvalsh
from ..ops.functions import expm
from ..ops.qr import qr
from ..ops.svd import svd, svdvals
from .names import Kernel, replace_functions
from .numpy import is_ahead, matrices_worth_a_question, real_where_all_are

_NORM_OF_EXPM = 16  # the two differ by about this number times eps; SciPy treats diagonal and triangular matrices apart


def open_door(counts: dict[str, list[float]]) -> Callable[[], None]:
    return replace_functions([scipy.linalg], _KERNELS, matrices_worth_a_question(), counts)


def _accepted(operation: str, a: np.ndarray, check_finite: bool) -> bool:
    # SciPy looks at both triangles
    return is_ahead(operation, a) and not (check_finite and not np.isfinite(a).all())


def _results(a: np.ndarray, results: tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    """A list for a batch, as SciPy returns, a tuple for one matrix."""
    return list(results) if a.ndim > 2 else tuple(results)


def _cholesky(a: np.ndarray, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    return cholesky(a, upper=not lower) if _accepted("cholesky", a, check_finite) else None


def _det(a: np.ndarray, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    double = a.dtype in (np.float64, np.complex128)  # SciPy computes the others in double precision
    return det(a) if double and _accepted("slogdet", a, check_finite) else None


def _eig(
    a: np.ndarray,
    b: Any = None,
    left: bool = False,
    right: bool = True,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    homogeneous_eigvals: bool = False,
) -> Any:
    if b is not None or left or homogeneous_eigvals or not _accepted("eig" if right else "eigvals", a, check_finite):
        return None
    if not right:
        return eigvals(a)
    w, v = eig(a)
    return _results(a, (w, *real_where_all_are(a, w, v)))


def _eigvals(
    a: np.ndarray, b: Any = None, overwrite_a: bool = False, check_finite: bool = True, homogeneous_eigvals: bool = False
) -> Any:
    return _eig(a, b, right=False, check_finite=check_finite, homogeneous_eigvals=homogeneous_eigvals)


def _schur(
    a: np.ndarray,
    output: str = "real",
    lwork: Any = None,
    overwrite_a: bool = False,
    sort: Any = None,
    check_finite: bool = True,
) -> Any:
    if lwork is not None or sort is not None or output not in ("real", "r", "complex", "c"):
        return None
    if not _accepted("schur", a, check_finite):
        return None
    return _results(a, schur(a, output="real" if output[0] == "r" else "complex"))


def _eigh(
    a: np.ndarray,
    b: Any = None,
    *,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    if b is not None or not _accepted("eigvalsh" if eigvals_only else "eigh", a, check_finite):
        return None
    return eigvalsh(a, upper=not lower) if eigvals_only else _results(a, eigh(a, upper=not lower))


def _eigvalsh(a: np.ndarray, b: Any = None, **options: Any) -> Any:
    return _eigh(a, b, eigvals_only=True, **options)


def _svd(
    a: np.ndarray,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    square = not (full_matrices and compute_uv) or a.shape[-1] == a.shape[-2]
    if lapack_driver != "gesdd" or not square or not _accepted("svd" if compute_uv else "svdvals", a, check_finite):
        return None
    return _results(a, svd(a)) if compute_uv else svdvals(a)


def _svdvals(a: np.ndarray, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    return svdvals(a) if _accepted("svdvals", a, check_finite) else None


def _qr(
    a: np.ndarray,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> Any:
    reduced = mode == "economic" or (mode == "full" and a.shape[-1] == a.shape[-2])
    if not reduced or pivoting or lwork is not None or not _accepted("qr", a, check_finite):
        return None
    return _results(a, qr(a))


def _expm(A: np.ndarray) -> Any:
    if not _accepted("expm", A, True) or np.abs(A).sum(-2).max() > _NORM_OF_EXPM:
        return None
    return expm(A)


_KERNELS: dict[str, Kernel] = {
    "cholesky": _cholesky,
    "det": _det,
    "eig": _eig,
    "eigh": _eigh,
    "eigvals": _eigvals,
    "eigvalsh": _eigvalsh,
    "expm": _expm,
    "qr": _qr,
    "schur": _schur,
    "svd": _svd,
    "svdvals": _svdvals,
}
