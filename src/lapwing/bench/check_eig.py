"""Checks of eigenvalues, eigenvectors and Schur forms of general matrices: A V = V W, A = Z T Z^H."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .check import Check, adjoint, blocks, norm, wide

if TYPE_CHECKING:
    from .case import Case
    from .library import Library


def check_general(a: np.ndarray, answer: Any, case: Case) -> Check:
    """Residuals in the Frobenius norm, the largest of the batch; vectors of unit length, or orthonormal ones."""
    n = case.n
    results = [np.asarray(x) for x in (answer if isinstance(answer, (tuple, list)) else (answer,))]
    shapes = {"eig": (a.shape[:-1], a.shape), "eigvals": (a.shape[:-1],), "schur": (a.shape,) * 2}[case.operation]
    # NumPy answers in real numbers where all eigenvalues of a batch are real
    kinds = (a.dtype,) if case.operation == "schur" else (a.dtype, np.result_type(a, np.complex64))
    known = all(x.dtype in kinds for x in results)
    if tuple(x.shape for x in results) != shapes or not known:
        return Check(float("inf"), True)
    if a.size == 0:
        return Check(0.0, True, orthogonality=0.0)
    matrices = a.reshape(-1, n, n)
    parts = [x.reshape(len(matrices), *x.shape[a.ndim - 2 :]) for x in results]
    residual = orthogonality = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for some in blocks(len(matrices), n**2):
            r, o = _RELATIVE[case.operation](wide(matrices[some]), *[wide(x[some]) for x in parts])
            residual, orthogonality = float(np.maximum(residual, r)), float(np.maximum(orthogonality, o))
    scale = n * float(np.finfo(a.dtype).eps)
    return Check(residual / scale, True, case.operation == "eigvals", orthogonality / scale)


def check_general_on_device(library: Library, a: Any, answer: Any, case: Case) -> Check:
    """The matrix and the answer are copied to the host."""
    parts = answer if isinstance(answer, (tuple, list)) else (answer,)
    return check_general(library.to_host(a), tuple(map(library.to_host, parts)), case)


def _pairs(a: np.ndarray, w: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    lengths = np.abs(np.linalg.norm(v, axis=-2) - 1)
    return _largest(norm(a @ v - v * w[:, None, :]), norm(a)), float(lengths.max())


def _values(a: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """The sum of the eigenvalues is the trace, and that of their squares the trace of A^2."""
    size, n = norm(a), a.shape[-1]
    first = np.abs(np.trace(a, axis1=-2, axis2=-1) - w.sum(-1)) / n**0.5
    second = np.abs((a * a.swapaxes(-1, -2)).sum((-1, -2)) - (w**2).sum(-1)) / np.where(size > 0, size, 1)
    return _largest(np.maximum(first, second), size), 0.0


def _schur(a: np.ndarray, t: np.ndarray, z: np.ndarray) -> tuple[float, float]:
    return _largest(norm(a - z @ t @ adjoint(z)), norm(a)), float(np.max(norm(adjoint(z) @ z - np.eye(a.shape[-1]))))


def _largest(error: np.ndarray, size: np.ndarray) -> float:
    return float(np.max(error / np.where(size > 0, size, 1)))


_RELATIVE: dict[str, Any] = {"eig": _pairs, "eigvals": _values, "schur": _schur}
