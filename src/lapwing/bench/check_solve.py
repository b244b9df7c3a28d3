"""Checks of solutions, inverses and decompositions: backward errors, residuals and orthogonality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .check import Check, adjoint, blocks, norm, probes, small_enough, wide

if TYPE_CHECKING:
    from .case import Case
    from .library import Library

_EXACT_VALUES = 1024  # up to this order numpy.linalg.svd gives the right values in a second or two
_VALUES_WORK = 4e9  # batch m n^2 up to which all matrices are compared with it
_NOT_DESCENDING = "the singular values are not descending from the largest, or negative"


def check_solution(inputs: Any, answer: Any, case: Case) -> Check:
    """``inputs`` is the matrix, or a pair of it and right-hand sides. The largest residual of the batch, in the Frobenius norm.

    solve: ||b - A x|| / (||A|| ||x|| + ||b||) for each right-hand side; inv: ||A X - I|| / (||A|| ||X||);
    qr: ||A - Q R|| / ||A||; svd: ||A - U S V^H|| / ||A||; lstsq: ||A^H (b - A x)|| / (||A|| (||A|| ||x|| + ||b||)).
    All are divided by n eps.
    """
    inputs, answer = _tuple(inputs), tuple(np.asarray(x) for x in _tuple(answer))
    dtype = np.dtype(case.dtype)
    if [x.shape for x in answer] != list(_shapes(case)) or any(
        x.dtype not in (dtype, dtype.type(0).real.dtype) for x in answer
    ):
        return Check(float("inf"), True)
    inputs, answer = (tuple(x.reshape(case.batch, *x.shape[len(case.lead) :]) for x in each) for each in (inputs, answer))
    exact = small_enough(case.batch * float(case.height) * case.n**2)
    vectors = np.eye(case.n, dtype=np.result_type(dtype, np.float64)) if exact else probes(case.n, dtype)
    residual = orthogonality = 0.0
    zero, trouble = True, ""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for some in blocks(case.batch, case.height * case.n):
            part = tuple(wide(x[some]) for x in answer)
            r, o = _relative(case.operation, tuple(wide(x[some]) for x in inputs), part, vectors)
            # np.maximum keeps a NaN
            residual, orthogonality = float(np.maximum(residual, r.max())), float(np.maximum(orthogonality, o.max()))
            zero = zero and not (case.operation == "qr" and np.tril(part[1], -1).any())
            trouble = trouble or (_NOT_DESCENDING if case.operation == "svd" and not _descending(part[1]) else "")
    return _verdict(case, residual, orthogonality, zero, not exact, trouble)


def check_solution_on_device(library: Library, inputs: Any, answer: Any, case: Case) -> Check:
    """An estimate for one large matrix on its device."""
    assert library.wide is not None
    inputs, answer = _tuple(inputs), _tuple(answer)
    if [tuple(x.shape) for x in answer] != list(_shapes(case)):
        return Check(float("inf"), True)
    vectors = library.put(probes(case.n, case.dtype), case.device)
    r, o = _relative(case.operation, tuple(map(library.wide, inputs)), tuple(map(library.wide, answer)), vectors)
    zero, trouble = True, ""
    if case.operation == "qr":
        rows = (answer[1][i, :i] for i in range(1, case.n, max(1, case.n // 64)))
        zero = not any(float(abs(row).max()) for row in rows)
    if case.operation == "svd" and not _descending(library.to_host(answer[1])):
        trouble = _NOT_DESCENDING
    return _verdict(case, float(r.max()), float(o.max()), zero, True, trouble)


def check_singular_values(a: np.ndarray, values: Any, case: Case) -> Check:
    """Against numpy.linalg.svd, or for a large matrix by the sum of their squares, ||A||^2."""
    values = np.asarray(values)
    if values.shape != (*case.lead, case.n) or values.dtype != a.real.dtype:
        return Check(float("inf"), True)
    matrices, s = a.reshape(-1, case.height, case.n), values.reshape(-1, case.n).astype(np.float64)
    trouble = "" if _descending(s) else _NOT_DESCENDING
    some = max(1, min(len(matrices), int(_VALUES_WORK // (float(case.height) * case.n**2))))
    exact = case.n <= _EXACT_VALUES
    if exact:
        right = np.linalg.svd(wide(matrices[:some]), compute_uv=False)
        error = float(np.max(np.abs(right - s[:some]).max(-1) / right[:, 0]))
    else:
        size = norm(wide(matrices))
        error = float(np.max(np.abs(size**2 - (s**2).sum(-1)) / size**2))
    scale = case.n * float(np.finfo(case.dtype).eps)
    return Check(error / scale, True, not exact or some < len(matrices), trouble=trouble)


def _relative(operation: str, inputs: tuple[Any, ...], answer: tuple[Any, ...], z: Any) -> tuple[Any, Any]:
    """Scaled residual and orthogonality of each matrix, for arrays of any library: exact for z = I, estimated by probes z."""
    a, size = inputs[0], norm(inputs[0])
    if operation in ("solve", "lstsq"):
        b, x = inputs[1], answer[0]
        residual = b - a @ x
        scale = size[..., None] * norm(x, -2) + norm(b, -2)
        if operation == "lstsq":
            residual, scale = adjoint(a) @ residual, size[..., None] * scale
        return norm(residual, -2) / scale, 0 * size
    if operation == "inv":
        return norm(a @ (answer[0] @ z) - z) / (size * norm(answer[0])), 0 * size
    left = answer[0]
    orthogonality = norm(adjoint(left) @ (left @ z) - z)
    if operation == "qr":
        return norm(a @ z - left @ (answer[1] @ z)) / size, orthogonality
    values, right = answer[1], answer[2]
    of_right = norm(right @ (adjoint(right) @ z) - z)
    residual = norm(a @ z - left @ (values[..., :, None] * (right @ z))) / size
    # the larger of the two; a NaN in either stays
    return residual, (orthogonality + of_right + abs(orthogonality - of_right)) / 2


def _shapes(case: Case) -> tuple[tuple[int, ...], ...]:
    from .operations import operation_of

    return operation_of(case.operation).shapes(case)


def _verdict(case: Case, residual: float, orthogonality: float, zero: bool, estimated: bool, trouble: str) -> Check:
    scale = case.n * float(np.finfo(case.dtype).eps)
    whole = case.operation in ("solve", "lstsq")  # whose residuals are always formed
    decomposed = orthogonality / scale if case.operation in ("qr", "svd") else None
    return Check(residual / scale, zero, estimated and not whole, decomposed, trouble)


def _descending(values: np.ndarray) -> bool:
    return bool((np.diff(values, axis=-1) <= 0).all() and (values >= 0).all())


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)
