"""Checks of LU factors and determinants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .check import Check, blocks, norm, probes, small_enough, wide

if TYPE_CHECKING:
    from .case import Case
    from .library import Library

_DETERMINANTS_WORK = 4e9  # batch n^3 up to which all determinants are compared with those of numpy.linalg


def check_lu(a: np.ndarray, answer: Any, case: Case) -> Check:
    """||A[rows] - L U|| / (n eps ||A||), the largest of the batch, in the Frobenius norm.

    Libraries return the order of the rows, or row swaps counted from 0 or from 1. All three are tried, and the one with the
    least residual counts.
    """
    lu, order = (np.asarray(x) for x in answer)
    if lu.shape != a.shape or lu.dtype != a.dtype or order.shape != a.shape[:-1]:
        return Check(float("inf"), True)
    n = case.n
    matrices, factors, orders = a.reshape(-1, n, n), lu.reshape(-1, n, n), order.reshape(-1, n).astype(np.int64)
    exact = small_enough(len(matrices) * float(n) ** 3)
    z = np.eye(n) if exact else probes(n, np.float64)
    residual = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for some in blocks(len(matrices), n**2):
            m, f = wide(matrices[some]), wide(factors[some])
            right, above = m @ z, np.triu(f) @ z
            product = np.tril(f, -1) @ above + above
            each = np.full(len(m), np.inf)
            for rows in _readings(orders[some]):
                turned = np.take_along_axis(right, rows[:, :, None], 1)
                each = np.minimum(each, norm(turned - product) / norm(m))
            residual = float(np.maximum(residual, each.max()))
    return Check(residual / (n * float(np.finfo(a.dtype).eps)), True, not exact)


def check_lu_on_device(library: Library, a: Any, answer: Any, case: Case) -> Check:
    """An estimate for one large matrix on its device, a torch tensor."""
    assert library.wide is not None
    lu, order = answer
    n = case.n
    if tuple(lu.shape) != (n, n) or tuple(order.shape) != (n,):
        return Check(float("inf"), True)
    m, f = library.wide(a), library.wide(lu)
    z = library.put(probes(n, case.dtype), case.device)
    right, above = m @ z, f.triu() @ z
    product = f.tril(-1) @ above + above
    readings = [library.put(rows[0], case.device) for rows in _readings(library.to_host(order)[None].astype(np.int64))]
    residual = min((float(norm(right[rows] - product)) for rows in readings), default=float("inf")) / float(norm(m))
    return Check(residual / (n * float(np.finfo(case.dtype).eps)), True, True)


def _readings(orders: np.ndarray) -> Iterator[np.ndarray]:
    """The row orders that these numbers may mean, one array of all matrices for each meaning."""
    n = orders.shape[-1]
    if (np.sort(orders, -1) == np.arange(n)).all():
        yield orders
    for first in (0, 1):
        swaps = orders - first
        if (swaps >= np.arange(n)).all() and (swaps < n).all():
            yield _after_swaps(swaps)


def _after_swaps(swaps: np.ndarray) -> np.ndarray:
    """The order of the rows after row i was swapped with row ``swaps[i]``, for i = 0, 1, ..."""
    count, n = swaps.shape
    rows, matrix = np.tile(np.arange(n), (count, 1)), np.arange(count)
    for i in range(n):
        other = swaps[:, i]
        rows[matrix, i], rows[matrix, other] = rows[matrix, other], rows[matrix, i].copy()
    return rows


def check_determinant(a: np.ndarray, answer: Any, case: Case) -> Check:
    """Compare sign and logarithm, or the determinant itself, with numpy.linalg.slogdet."""
    parts = tuple(np.asarray(x) for x in (answer if isinstance(answer, tuple) else (answer,)))
    if any(x.shape != case.lead or x.dtype.kind not in "fc" for x in parts):  # SciPy's det gives doubles
        return Check(float("inf"), True)
    matrices = a.reshape(-1, case.n, case.n)
    some = max(1, min(len(matrices), int(_DETERMINANTS_WORK // float(case.n) ** 3)))
    with np.errstate(all="ignore"):
        sign, logarithm = _sign_and_logarithm([wide(x.reshape(-1)[:some]) for x in parts])
        error = _determinant_error(np.linalg, wide(matrices[:some]), sign, logarithm, probes(case.n, case.dtype))
    scale = case.n * float(np.finfo(a.dtype).eps)
    return Check(float(np.max(error)) / scale, True, some < len(matrices))


def check_determinant_on_device(library: Any, a: Any, answer: Any, case: Case) -> Check:
    """For one large matrix on its device, a torch tensor: against torch.linalg.slogdet in double precision."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    sign, logarithm = _sign_and_logarithm([library.wide(x) for x in parts])
    z = library.put(probes(case.n, case.dtype), case.device)
    error = _determinant_error(library.torch.linalg, library.wide(a), sign, logarithm, z)
    return Check(float(error) / (case.n * float(np.finfo(case.dtype).eps)), True)


def _sign_and_logarithm(parts: list[Any]) -> tuple[Any, Any]:
    if len(parts) == 2:
        return parts[0], parts[1]
    size = abs(parts[0])
    return parts[0] / size, size.log() if hasattr(size, "log") else np.log(size)


def _determinant_error(linalg: Any, m: Any, sign: Any, logarithm: Any, z: Any) -> Any:
    """The error of the logarithm and the sign, relative to their change when A changes by its rounding errors.

    A change E of A changes log det(A) by the trace of A^-1 E, on average by about ||A^-1|| ||E|| / n.
    """
    right_sign, right = linalg.slogdet(m)
    sensitivity = norm(m) * norm(linalg.solve(m, z + 0 * m[..., :1])) / m.shape[-1]  # the probes, for each matrix
    return (abs(logarithm - right) + abs(sign - right_sign)) / (1 + abs(right) + sensitivity)
