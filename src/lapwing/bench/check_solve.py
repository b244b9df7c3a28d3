"""Are solutions, inverses and decompositions right? Backward errors, residuals and orthogonality in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .check import PROBES, Check, wide

if TYPE_CHECKING:
    from .case import Case
    from .library import Library

__all__ = ["check_solution", "check_solution_on_device"]

_BLOCK = 2**22  # numbers widened at a time
_EXACT_WORK = 4e9  # batch m n^2 up to which the whole residual is formed: a second at most
_NOT_DESCENDING = "the singular values are not descending from the largest, or negative"


def check_solution(given: Any, found: Any, case: Case) -> Check:
    """``given`` is the matrix, or a pair of it and right-hand sides. The largest of the batch, in the Frobenius norm.

    solve: ||b - A x|| / (||A|| ||x|| + ||b||) for each right-hand side; inv: ||A X - I|| / (||A|| ||X||);
    qr: ||A - Q R|| / ||A||; svd: ||A - U S V^H|| / ||A||; lstsq: ||A^H (b - A x)|| / (||A|| (||A|| ||x|| + ||b||)).
    All over n eps.
    """
    given, found = _tuple(given), tuple(np.asarray(x) for x in _tuple(found))
    dtype = np.dtype(case.dtype)
    if [x.shape for x in found] != list(_shapes(case)) or any(x.dtype not in (dtype, dtype.type(0).real.dtype) for x in found):
        return Check(float("inf"), True)
    given = tuple(x.reshape(case.batch, *x.shape[len(case.lead) :]) for x in given)
    found = tuple(x.reshape(case.batch, *x.shape[len(case.lead) :]) for x in found)
    exact = _exact(case)
    probes = _probes(case, exact)
    residual = orthogonality = 0.0
    zero, trouble = True, ""
    step = max(1, _BLOCK // (case.height * case.n))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for first in range(0, case.batch, step):
            some = slice(first, first + step)
            answer = tuple(wide(x[some]) for x in found)
            r, o = _relative(case.operation, tuple(wide(x[some]) for x in given), answer, probes)
            # np.maximum keeps a NaN
            residual, orthogonality = float(np.maximum(residual, r.max())), float(np.maximum(orthogonality, o.max()))
            zero = zero and not (case.operation == "qr" and np.tril(answer[1], -1).any())
            trouble = trouble or (_NOT_DESCENDING if case.operation == "svd" and not _descending(answer[1]) else "")
    return _verdict(case, residual, orthogonality, zero, not exact, trouble)


def check_solution_on_device(library: Library, given: Any, found: Any, case: Case) -> Check:
    """The estimate for one large matrix where it lies."""
    assert library.wide is not None
    given, found = _tuple(given), _tuple(found)
    if [tuple(x.shape) for x in found] != list(_shapes(case)):
        return Check(float("inf"), True)
    probes = library.put(_probes(case, False), case.device)
    r, o = _relative(case.operation, tuple(map(library.wide, given)), tuple(map(library.wide, found)), probes)
    zero, trouble = True, ""
    if case.operation == "qr":
        rows = (found[1][i, :i] for i in range(1, case.n, max(1, case.n // 64)))
        zero = not any(float(abs(row).max()) for row in rows)
    if case.operation == "svd" and not _descending(library.to_host(found[1])):
        trouble = _NOT_DESCENDING
    return _verdict(case, float(r.max()), float(o.max()), zero, True, trouble)


def _relative(operation: str, given: tuple[Any, ...], found: tuple[Any, ...], probes: Any) -> tuple[Any, Any]:
    """Scaled residual and orthogonality of each matrix, for the arrays of any library.

    For z of independent normal numbers E ||R z||^2 = ||R||^2; with z = I it is exact.
    """
    a, norm = given[0], _norm(given[0])
    if operation in ("solve", "lstsq"):
        b, x = given[1], found[0]
        rest = b - a @ x
        scale = norm[..., None] * _norm(x, -2) + _norm(b, -2)
        if operation == "lstsq":
            rest, scale = _adjoint(a) @ rest, norm[..., None] * scale
        return _norm(rest, -2) / scale, 0 * norm
    if operation == "inv":
        return _norm(a @ (found[0] @ probes) - probes) / (norm * _norm(found[0])), 0 * norm
    left = found[0]
    orthogonality = _norm(_adjoint(left) @ (left @ probes) - probes)
    if operation == "qr":
        return _norm(a @ probes - left @ (found[1] @ probes)) / norm, orthogonality
    values, right = found[1], found[2]
    of_right = _norm(right @ (_adjoint(right) @ probes) - probes)
    residual = _norm(a @ probes - left @ (values[..., :, None] * (right @ probes))) / norm
    # the larger of the two; a NaN in either stays
    return residual, (orthogonality + of_right + abs(orthogonality - of_right)) / 2


def _shapes(case: Case) -> tuple[tuple[int, ...], ...]:
    from .operations import operation_of

    return operation_of(case.operation).shapes(case)


def _exact(case: Case) -> bool:
    return case.batch * float(case.height) * case.n**2 <= _EXACT_WORK


def _probes(case: Case, exact: bool) -> np.ndarray:
    dtype = np.result_type(case.dtype, np.float64)
    if exact:
        return np.eye(case.n, dtype=dtype)
    return np.asarray(np.random.default_rng(1).standard_normal((case.n, PROBES)) / PROBES**0.5, dtype)


def _verdict(case: Case, residual: float, orthogonality: float, zero: bool, estimated: bool, trouble: str) -> Check:
    scale = case.n * float(np.finfo(case.dtype).eps)
    whole = case.operation in ("solve", "lstsq")  # nothing is estimated there
    decomposed = orthogonality / scale if case.operation in ("qr", "svd") else None
    return Check(residual / scale, zero, estimated and not whole, decomposed, trouble)


def _descending(values: np.ndarray) -> bool:
    return bool((np.diff(values, axis=-1) <= 0).all() and (values >= 0).all())


def _norm(x: Any, axes: Any = (-2, -1)) -> Any:
    return (abs(x) ** 2).sum(axes) ** 0.5


def _adjoint(x: Any) -> Any:
    return x.swapaxes(-1, -2).conj()


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)
