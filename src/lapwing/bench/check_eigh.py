"""Checks of eigenpairs: A V = V W, V is orthonormal, and W is the part of the spectrum that the case names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .check import LIMIT, Check, adjoint, blocks, norm, probes, small_enough, wide

if TYPE_CHECKING:
    from .case import Case
    from .library import Library

_ALL_VALUES = 2048  # up to this order numpy.linalg.eigvalsh gives the right values in a second or two
_VALUES_WORK = 4e9  # batch n^3 up to which all matrices are compared with it
_COMPLETE = 16  # the number of matrices of a batch that are checked for missed values
_WRONG_PART = "these are not the eigenvalues that were asked for"
_NOT_ASCENDING = "the eigenvalues are not in ascending order"


def check_spectrum(a: np.ndarray, answer: Any, case: Case) -> Check:
    if case.operation == "eigvalsh":
        return check_values(a, np.asarray(answer), part=case.part)
    return check_pairs(a, np.asarray(answer[0]), np.asarray(answer[1]), part=case.part)


def check_pairs(a: np.ndarray, values: np.ndarray, vectors: np.ndarray, *, part: tuple[int, int] | None = None) -> Check:
    """``a`` has both triangles filled. Residual and orthogonality in the Frobenius norm, the largest of the batch."""
    n, k = a.shape[-1], a.shape[-1] if part is None else part[1]
    shapes = (*a.shape[:-2], k), (*a.shape[:-1], k)
    if (values.shape, vectors.shape) != shapes or vectors.dtype != a.dtype or values.dtype != a.real.dtype:
        return Check(float("inf"), True)
    if a.size == 0:
        return Check(0.0, True, orthogonality=0.0)
    matrices, w, v = a.reshape(-1, n, n), values.reshape(-1, k), vectors.reshape(-1, n, k)
    exact = small_enough(len(matrices) * float(n) ** 2 * k)
    vectors_z = None if exact else probes(k, np.float64)
    residual = orthogonality = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for some in blocks(len(matrices), n**2):
            r, o = _relative(matrices[some], w[some], v[some], vectors_z)
            residual, orthogonality = float(np.maximum(residual, r)), float(np.maximum(orthogonality, o))
        scale = n * float(np.finfo(a.dtype).eps)
        trouble = "" if (np.diff(w, axis=-1) >= 0).all() else _NOT_ASCENDING
        if not trouble and part is not None and residual <= LIMIT * scale:
            complete = all(_complete(matrices[i], w[i], v[i], part) for i in range(min(len(matrices), _COMPLETE)))
            trouble = "" if complete else _WRONG_PART
    return Check(residual / scale, True, not exact, orthogonality / scale, trouble)


def check_values(a: np.ndarray, values: np.ndarray, *, part: tuple[int, int] | None = None) -> Check:
    """Against numpy.linalg.eigvalsh, or for a large matrix by its trace and norm, or for a part by its outermost value."""
    n, k = a.shape[-1], a.shape[-1] if part is None else part[1]
    if values.shape != (*a.shape[:-2], k) or values.dtype != a.real.dtype:
        return Check(float("inf"), True)
    if a.size == 0:
        return Check(0.0, True)
    matrices, w = a.reshape(-1, n, n), values.reshape(-1, k).astype(np.float64)
    trouble = "" if (np.diff(w, axis=-1) >= 0).all() else _NOT_ASCENDING
    scale = n * float(np.finfo(a.dtype).eps)
    some = max(1, min(len(matrices), int(_VALUES_WORK // float(n) ** 3)))
    if n <= _ALL_VALUES:
        right = np.linalg.eigvalsh(wide(matrices[:some]))
        largest = np.abs(right).max(-1)
        chosen = right if part is None else right[:, part[0] : sum(part)]
        error = float(np.max(np.abs(chosen - w[:some]).max(-1) / np.where(largest > 0, largest, 1)))
        return Check(error / scale, True, some < len(matrices), trouble=trouble)
    size = float(np.linalg.norm(matrices[0]))
    if part is None:
        by_trace = abs(float(np.trace(matrices[0]).real) - w[0].sum()) / (size * n**0.5)
        by_norm = abs(size**2 - float((w[0] ** 2).sum())) / size**2
        return Check(max(by_trace, by_norm) / scale, True, True, trouble=trouble)
    return Check(0.0, True, True, trouble=trouble or _outermost(matrices[0], w[0], part, size))


def check_pairs_on_device(library: Library, a: Any, answer: Any, case: Case) -> Check:
    """An estimate for one large matrix on its device, including whether a value was missed."""
    from .peers import peer_of

    assert library.wide is not None
    values, vectors = answer
    n, k, eps = case.n, case.count, float(np.finfo(case.dtype).eps)
    if tuple(values.shape) != (k,) or tuple(vectors.shape) != (n, k):
        return Check(float("inf"), True)
    m, w, v = library.wide(a), library.wide(values), library.wide(vectors)
    z = library.put(probes(k, case.dtype), case.device)
    size = float(norm(m))
    y = v @ z
    residual = float(norm(m @ y - v @ (w[:, None] * z))) / size
    orthogonality = float(norm(adjoint(v) @ y - z))
    order = library.to_host(values)
    trouble = "" if (np.diff(order) >= 0).all() else _NOT_ASCENDING
    if not trouble and case.problem.at_an_end and residual <= LIMIT * n * eps:
        assert case.part is not None
        factor = peer_of(library, replace(case, operation="cholesky", part=None, upper=False), library.name).call
        trouble = "" if _none_beyond(m, w, v, case.part, LIMIT * n * eps * size, factor) else _WRONG_PART
    return Check(residual / (n * eps), True, True, orthogonality / (n * eps), trouble)


def _relative(a: np.ndarray, w: np.ndarray, v: np.ndarray, z: np.ndarray | None) -> tuple[float, float]:
    """The largest ||A V - V W|| / ||A|| and ||V^H V - I|| of some matrices; estimated by probes ``z``."""
    m, w, v = wide(a), w.astype(np.float64), wide(v)
    size = norm(m)
    if z is None:
        r, o = m @ v - v * w[:, None, :], adjoint(v) @ v - np.eye(v.shape[-1])
    else:
        y = v @ z
        r, o = m @ y - v @ (w[..., None] * z), adjoint(v) @ y - z
    return float(np.max(norm(r) / np.where(size > 0, size, 1))), float(np.max(norm(o)))


def _complete(a: np.ndarray, w: np.ndarray, v: np.ndarray, part: tuple[int, int]) -> bool:
    """Whether these are the eigenvalues of the part, of one matrix on the host."""
    n = len(a)
    m, w, v = wide(a), w.astype(np.float64), wide(v)
    tolerance = LIMIT * n * float(np.finfo(a.dtype).eps) * float(np.linalg.norm(m))
    if part[0] > 0 and sum(part) < n:
        right = np.linalg.eigvalsh(m) if n <= _ALL_VALUES else None
        return right is None or bool((np.abs(right[part[0] : sum(part)] - w) <= tolerance).all())
    return _none_beyond(m, w, v, part, tolerance, np.linalg.cholesky)


def _none_beyond(m: Any, w: Any, v: Any, part: tuple[int, int], tolerance: float, cholesky: Callable[[Any], Any]) -> bool:
    """Whether no eigenvalue beyond the cut was missed, for arrays of any library that can be written.

    Then, if the given values are shifted to the cut, all others are on one side of it, which a Cholesky factorisation shows.
    """
    sign, cut = (-1, w[0]) if part[0] > 0 else (1, w[-1])
    shifted = sign * (m - (v * (w - cut)) @ adjoint(v))
    index = np.arange(len(m))
    shifted[index, index] += tolerance - sign * cut
    return _definite(cholesky, shifted)


def _outermost(a: np.ndarray, w: np.ndarray, part: tuple[int, int], size: float) -> str:
    """Why the largest (or smallest) value is not the one given, up to the tolerance, or ""."""
    n = len(a)
    tolerance = LIMIT * n * float(np.finfo(a.dtype).eps) * size
    if part[0] > 0 and sum(part) < n:
        return ""
    sign, end = (-1.0, w[-1]) if sum(part) == n else (1.0, w[0])
    index = np.arange(n)
    for shift, definite in ((tolerance, True), (-tolerance, False)):
        m = sign * wide(a)
        m[index, index] += shift - sign * end
        if _definite(np.linalg.cholesky, m) is not definite:
            return _WRONG_PART
    return ""


def _definite(cholesky: Callable[[Any], Any], a: Any) -> bool:
    try:
        last = cholesky(a)[-1]
    except Exception:  # each library has its own error for it
        return False
    return bool(((last - last) == 0).all())  # and neither NaN nor Inf
