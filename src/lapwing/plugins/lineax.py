"""Direct solvers for lineax: ``lineax.linear_solve(operator, vector, lapwing.plugins.lineax.Cholesky())``.

Use them in place of lineax's solvers of the same names. Under ``jax.vmap`` all matrices are factored by one batched kernel.
Where a matrix cannot be factored the solution is NaN, which lineax reports as a singular system.

Examples
--------
>>> import jax.numpy as jnp, lineax
>>> from lapwing.plugins.lineax import LU
>>> operator = lineax.MatrixLinearOperator(jnp.array([[0.0, 2.0], [1.0, 0.0]]))
>>> lineax.linear_solve(operator, jnp.array([2.0, 3.0]), LU()).value.tolist()
[3.0, 1.0]
"""

from __future__ import annotations

from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import lineax
import numpy as np
from lineax.internal import pack_structures, ravel_vector, transpose_packed_structures, unravel_solution

from ..core.problem import ADJOINT
from ..frameworks.jax import Namespace as xp
from ..ops.cholesky import cholesky
from ..ops.eigh import eigh
from ..ops.qr import qr
from ..ops.solve import solve
from ..ops.svd import svd
from ..ops.systems import LU as _LU
from ..ops.systems import LU_SOLVE as _LU_SOLVE

__all__ = ["LU", "QR", "SVD", "Cholesky", "Eigh"]
_OK = lineax.RESULTS.successful


def _square(name: str, operator: Any) -> Any:
    matrix = operator.as_matrix()
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name}: the operator must be square, got shape {matrix.shape}\nhint: QR and SVD take other shapes")
    return matrix


def _triangular(matrix: Any, b: Any, assume: Any) -> Any:
    return solve(matrix, b[:, None], assume=assume, on_fail="nan")[:, 0]


def _conj(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(jnp.conj(x) for x in arrays)


class Cholesky(lineax.AbstractLinearSolver):  # type: ignore[misc]
    """For operators tagged as positive or negative semidefinite, which must be definite."""

    def init(self, operator: Any, options: dict[str, Any]) -> Any:
        negative = lineax.is_negative_semidefinite(operator)
        if not negative and not lineax.is_positive_semidefinite(operator):
            raise ValueError(
                "Cholesky: the operator has no tag that says it is definite\nhint: tag it with lineax.positive_semidefinite_tag"
            )
        matrix = _square("Cholesky", operator)
        l = cholesky(-matrix if negative else matrix, on_fail="nan")
        return l, eqxi.Static(negative), pack_structures(operator)

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        l, negative, structures = state
        # L L^H x = b
        b = ravel_vector(vector, structures)
        x = _triangular(xp.adjoint(l), _triangular(l, b, "lower"), "upper")
        return unravel_solution(-x if negative.value else x, structures), _OK, {}

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        l, negative, structures = state
        return (jnp.conj(l), negative, transpose_packed_structures(structures)), options

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        l, negative, structures = state
        return (jnp.conj(l), negative, structures), options

    def assume_full_rank(self) -> bool:
        return True


class LU(lineax.AbstractLinearSolver):  # type: ignore[misc]
    """For square operators that are not singular."""

    def init(self, operator: Any, options: dict[str, Any]) -> Any:
        lu, rows, _ = xp.call(_LU, (_square("LU", operator),), (0,))
        return (lu, rows), eqxi.Static(False), pack_structures(operator)

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        (lu, rows), transposed, structures = state
        b = ravel_vector(vector, structures)[:, None].astype(lu.dtype)
        if transposed.value:  # A^T x = b is A^H conj(x) = conj(b)
            x = jnp.conj(xp.call(_LU_SOLVE, (lu, lu, rows, jnp.conj(b)), (ADJOINT,))[0])
        else:
            x = xp.call(_LU_SOLVE, (lu, lu, rows, b), (0,))[0]
        return unravel_solution(x[:, 0], structures), _OK, {}

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        factors, transposed, structures = state
        return (factors, eqxi.Static(not transposed.value), transpose_packed_structures(structures)), {}

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        (lu, rows), transposed, structures = state
        return ((jnp.conj(lu), rows), transposed, structures), {}

    def assume_full_rank(self) -> bool:
        return True


class QR(lineax.AbstractLinearSolver):  # type: ignore[misc]
    """For operators of any shape and full rank: least squares, or the solution of smallest norm."""

    def init(self, operator: Any, options: dict[str, Any]) -> Any:
        matrix = operator.as_matrix()
        wide = matrix.shape[0] < matrix.shape[1]
        return tuple(qr(matrix.T if wide else matrix)), eqxi.Static(wide), pack_structures(operator)

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        (q, r), transposed, structures = state
        b = ravel_vector(vector, structures)
        if transposed.value:  # A = R^T Q^T
            x = xp.matmul(jnp.conj(q), _triangular(r.T, b, "lower"))
        else:
            x = _triangular(r, xp.matmul(xp.adjoint(q), b), "upper")
        return unravel_solution(x, structures), _OK, {}

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        factors, transposed, structures = state
        return (factors, eqxi.Static(not transposed.value), transpose_packed_structures(structures)), {}

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        factors, transposed, structures = state
        return (_conj(factors), transposed, structures), {}

    def assume_full_rank(self) -> bool:
        return True


class SVD(lineax.AbstractLinearSolver):  # type: ignore[misc]
    """For any operator: the pseudo-inverse. Singular values up to ``rcond`` times the largest count as zero."""

    rcond: float | None = None

    def init(self, operator: Any, options: dict[str, Any]) -> Any:
        return tuple(svd(operator.as_matrix(), on_fail="nan")), pack_structures(operator)

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        (u, s, vh), structures = state
        inverse, rank = _inverse(s, self.rcond, max(u.shape[0], vh.shape[1]))
        inner = inverse.astype(u.dtype) * xp.matmul(xp.adjoint(u), ravel_vector(vector, structures))
        return unravel_solution(xp.matmul(xp.adjoint(vh), inner), structures), _OK, {"rank": rank}

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        (u, s, vh), structures = state
        return ((vh.T, s, u.T), transpose_packed_structures(structures)), {}

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        (u, s, vh), structures = state
        return ((jnp.conj(u), s, jnp.conj(vh)), structures), {}

    def assume_full_rank(self) -> bool:
        return False


class Eigh(lineax.AbstractLinearSolver):  # type: ignore[misc]
    """For real symmetric operators, and Hermitian ones tagged as semidefinite: the pseudo-inverse by eigenvalues.

    Eigenvalues up to ``rcond`` times the largest in size count as zero.
    """

    rcond: float | None = None

    def init(self, operator: Any, options: dict[str, Any]) -> Any:
        matrix = _square("Eigh", operator)
        definite = lineax.is_positive_semidefinite(operator) or lineax.is_negative_semidefinite(operator)
        real = not jnp.issubdtype(matrix.dtype, jnp.complexfloating)
        if not definite and not (real and lineax.is_symmetric(operator)):
            raise ValueError("Eigh: the operator has no tag that says it is symmetric\nhint: lineax.symmetric_tag")
        return tuple(eigh(matrix, on_fail="nan")), pack_structures(operator)

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        (w, v), structures = state
        inverse, rank = _inverse(w, self.rcond, v.shape[0])
        inner = inverse.astype(v.dtype) * xp.matmul(xp.adjoint(v), ravel_vector(vector, structures))
        return unravel_solution(xp.matmul(v, inner), structures), _OK, {"rank": rank}

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        (w, v), structures = state
        return ((w, jnp.conj(v)), transpose_packed_structures(structures)), options

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        (w, v), structures = state
        return ((w, jnp.conj(v)), structures), options

    def assume_full_rank(self) -> bool:
        return False


def _inverse(s: jax.Array, rcond: float | None, longest: int) -> tuple[jax.Array, jax.Array]:
    """1 / s, with 0 for values that count as zero, and how many do not."""
    rcond = float(np.finfo(s.dtype).eps) * longest if rcond is None else rcond
    good = jnp.abs(s) > rcond * jnp.max(jnp.abs(s), initial=0)
    return jnp.where(good, 1 / jnp.where(good, s, 1), 0 * s), jnp.sum(good)
