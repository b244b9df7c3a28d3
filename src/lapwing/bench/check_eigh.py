"""Are the eigenpairs right? A V = V W, V orthonormal, and W the part of the spectrum that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .check import LIMIT, PROBES, Check, adjoint, wide

if TYPE_CHECKING:
    from .case import Case
    from .library import Library

__all__ = ["check_pairs", "check_pairs_on_device", "check_values", "check_values_on_device"]

_BLOCK = 2**22  # numbers widened at a time
_EXACT_WORK = 4e9  # batch n^2 k up to which the whole residual is formed: a second at most
_ALL_VALUES = 2048  # up to this order numpy.linalg.eigvalsh says what is right, in a second or two
_COMPLETE = 16  # of a batch, so many matrices are asked whether a value was missed
_WRONG_PART = "these are not the eigenvalues that were asked for"
_NOT_ASCENDING = "the eigenvalues are not in ascending order"


def check_pairs(a: np.ndarray, values: np.ndarray, vectors: np.ndarray, *, part: tuple[int, int] | None = None) -> Check:
    """``a`` has both triangles filled. Residual and orthogonality in the Frobenius norm, the largest of the batch."""
    n, k = a.shape[-1], a.shape[-1] if part is None else part[1]
    shapes = (*a.shape[:-2], k), (*a.shape[:-1], k)
    if (values.shape, vectors.shape) != shapes or vectors.dtype != a.dtype or values.dtype != a.real.dtype:
        return Check(float("inf"), True)
    if a.size == 0:
        return Check(0.0, True, orthogonality=0.0)
    matrices, w, v = a.reshape(-1, n, n), values.reshape(-1, k), vectors.reshape(-1, n, k)
    exact = len(matrices) * float(n) ** 2 * k <= _EXACT_WORK
    # for z of independent normal numbers, E ||R z||^2 = ||R||_F^2
    probes = None if exact else np.random.default_rng(1).standard_normal((k, PROBES)) / PROBES**0.5
    residual = orthogonality = 0.0
    step = max(1, _BLOCK // n**2)
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(matrices), step):
            some = slice(first, first + step)
            r, o = _relative(matrices[some], w[some], v[some], probes)
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
    some = max(1, min(len(matrices), int(_EXACT_WORK // float(n) ** 3)))
    if n <= _ALL_VALUES:
        right = np.linalg.eigvalsh(wide(matrices[:some]))
        norm = np.abs(right).max(-1)
        chosen = right if part is None else right[:, part[0] : sum(part)]
        error = float(np.max(np.abs(chosen - w[:some]).max(-1) / np.where(norm > 0, norm, 1)))
        return Check(error / scale, True, some < len(matrices), trouble=trouble)
    norm = float(np.linalg.norm(matrices[0]))
    if part is None:
        by_trace = abs(float(np.trace(matrices[0]).real) - w[0].sum()) / (norm * n**0.5)
        by_norm = abs(norm**2 - float((w[0] ** 2).sum())) / norm**2
        return Check(max(by_trace, by_norm) / scale, True, True, trouble=trouble)
    return Check(0.0, True, True, trouble=trouble or _outermost(matrices[0], w[0], part, norm))


def check_pairs_on_device(library: Library, a: Any, values: Any, vectors: Any, case: Case) -> Check:
    """The estimate for one large matrix where it lies; that no value was missed is asked there too."""
    assert library.wide is not None
    n, k, eps = case.n, case.count, float(np.finfo(case.dtype).eps)
    if tuple(values.shape) != (k,) or tuple(vectors.shape) != (n, k):
        return Check(float("inf"), True)
    m, w, v = library.wide(a), library.wide(values), library.wide(vectors)
    host = np.random.default_rng(1).standard_normal((k, PROBES)) / PROBES**0.5
    z = library.put(host.astype(np.result_type(case.dtype, np.float64)), case.device)
    norm = float(abs(m**2).sum() ** 0.5)
    y = v @ z
    residual = float(abs((m @ y - v @ (w[:, None] * z)) ** 2).sum() ** 0.5) / norm
    orthogonality = float(abs((v.mT.conj() @ y - z) ** 2).sum() ** 0.5)
    order = library.to_host(values)
    trouble = "" if (np.diff(order) >= 0).all() else _NOT_ASCENDING
    if not trouble and case.problem.at_an_end and residual <= LIMIT * n * eps:
        assert case.part is not None
        top = case.part[0] > 0
        cut = w[0] if top else w[-1]
        rest = m - (v * (w - cut)) @ v.mT.conj()
        rest = (-rest if top else rest) + 0
        rest.diagonal()[...] += (cut if top else -cut) + LIMIT * n * eps * norm
        trouble = "" if _definite(library, rest) else _WRONG_PART
    return Check(residual / (n * eps), True, True, orthogonality / (n * eps), trouble)


def check_values_on_device(library: Library, a: Any, values: Any, case: Case) -> Check:
    """On the host, where the values are few; the matrix is brought there."""
    return check_values(library.to_host(a), library.to_host(values), part=case.part)


def _relative(a: np.ndarray, w: np.ndarray, v: np.ndarray, probes: np.ndarray | None) -> tuple[float, float]:
    """The largest ||A V - V W|| / ||A|| and ||V^H V - I|| of some matrices."""
    m, w, v = wide(a), w.astype(np.float64), wide(v)
    norm = np.linalg.norm(m, axis=(-2, -1))
    norm = np.where(norm > 0, norm, 1)
    if probes is None:
        r, o = m @ v - v * w[:, None, :], adjoint(v) @ v - np.eye(v.shape[-1])
    else:
        y = v @ probes
        r, o = m @ y - v @ (w[..., None] * probes), adjoint(v) @ y - probes
    return float(np.max(np.linalg.norm(r, axis=(-2, -1)) / norm)), float(np.max(np.linalg.norm(o, axis=(-2, -1))))


def _complete(a: np.ndarray, w: np.ndarray, v: np.ndarray, part: tuple[int, int]) -> bool:
    """Whether no eigenvalue beyond the cut was missed.

    With the found values moved to the cut, all of A lies on one side of it: a Cholesky factorisation tells.
    """
    n = len(a)
    m, w, v = wide(a), w.astype(np.float64), wide(v)
    tolerance = LIMIT * n * float(np.finfo(a.dtype).eps) * float(np.linalg.norm(m))
    if part[0] > 0 and sum(part) < n:
        right = np.linalg.eigvalsh(m) if n <= _ALL_VALUES else None
        return right is None or bool((np.abs(right[part[0] : sum(part)] - w) <= tolerance).all())
    top = sum(part) == n
    cut = w[0] if top else w[-1]
    rest = m - (v * (w - cut)) @ adjoint(v)
    if top:
        np.negative(rest, out=rest)
    index = np.arange(n)
    rest[index, index] += (cut if top else -cut) + tolerance
    try:
        return bool(np.isfinite(np.linalg.cholesky(rest)).all())
    except np.linalg.LinAlgError:
        return False


def _outermost(a: np.ndarray, w: np.ndarray, part: tuple[int, int], norm: float) -> str:
    """Is the largest (or smallest) value within the tolerance of the one given?"""
    n = len(a)
    tolerance = LIMIT * n * float(np.finfo(a.dtype).eps) * norm
    if part[0] > 0 and sum(part) < n:
        return ""
    sign, end = (-1.0, w[-1]) if sum(part) == n else (1.0, w[0])
    index = np.arange(n)
    for shift, definite in ((tolerance, True), (-tolerance, False)):
        m = sign * wide(a)
        m[index, index] += shift - sign * end
        try:
            np.linalg.cholesky(m)
            found = True
        except np.linalg.LinAlgError:
            found = False
        if found is not definite:
            return _WRONG_PART
    return ""


def _definite(library: Library, a: Any) -> bool:
    try:
        factor = library.own(False)(a)
    except Exception:  # each library has its own error for it
        return False
    return bool(np.isfinite(library.to_host(factor[-1])).all())
