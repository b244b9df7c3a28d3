"""Solvers for NetKet, by lapwing: ``nk.optimizer.SR(solver=lapwing.plugins.netket.cholesky)``.

A solver takes a matrix, or an object with ``to_dense()``, and a vector or pytree, and returns the solution and a dictionary
or None.
Called with options alone it returns a solver with these options: ``pinv_smooth(rtol=1e-10)``.

Examples
--------
>>> import jax.numpy as jnp
>>> from lapwing.plugins.netket import cholesky
>>> x, info = cholesky(jnp.array([[2.0, 0.0], [0.0, 4.0]]), {"w": jnp.array([2.0, 8.0])})
>>> x["w"].tolist()
[1.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..frameworks.jax import Namespace as xp
from ..ops.eigh import eigh
from ..ops.solve import solve

__all__ = ["cholesky", "mixed", "pinv_smooth"]
_POWER = 6  # of the filter in arXiv:2212.11289


@dataclass(frozen=True)
class _WithOptions:
    """A solver with its options. Equal ones have equal hashes, so that JAX compiles a program that holds one only once."""

    solver: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]

    def __call__(self, A: Any, b: Any, **more: Any) -> Any:
        return self.solver(A, b, **dict(self.options) | more)


def _solver(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if not arguments and "A" not in options:
            return _WithOptions(call, tuple(sorted(options.items())))
        return function(*arguments, **options)

    return call


def _plain(A: Any, b: Any) -> tuple[jax.Array, jax.Array, Callable[[Any], Any]]:
    """The matrix, the right-hand side as one vector, and the way back from it."""
    vector, unravel = ravel_pytree(b)
    matrix = A.to_dense() if hasattr(A, "to_dense") else jnp.asarray(A)
    dtype = jnp.result_type(matrix, vector)
    return matrix.astype(dtype), vector.astype(dtype), unravel


@_solver
def cholesky(A: Any, b: Any, *, lower: bool = False, x0: Any = None) -> Any:
    """Solve a positive definite system by a Cholesky factorisation. If the matrix is not positive definite, the result is NaN.

    Use it in place of ``netket.optimizer.solver.cholesky``. Only the triangle named by ``lower`` is read. ``x0`` is ignored.
    """
    matrix, vector, unravel = _plain(A, b)
    return unravel(solve(matrix, vector, assume="pos", upper=not lower, on_fail="nan")), None


@_solver
def mixed(A: Any, b: Any, *, x0: Any = None) -> Any:
    """As :func:`cholesky`, with a factor in lower precision; the solution is refined to full accuracy.

    It helps for double precision on GPUs that are much faster in single precision. ``x0`` is ignored.
    """
    matrix, vector, unravel = _plain(A, b)
    return unravel(solve(matrix, vector, assume="pos", precision="mixed", on_fail="nan")), None


@_solver
def pinv_smooth(
    A: Any, b: Any, *, rtol: float = 1e-14, rtol_smooth: float = 1e-14, x0: Any = None, return_eigvals: bool = False
) -> Any:
    """Solve a Hermitian system by its eigenvalues, leaving out the small ones.

    Eigenvalues up to ``rtol`` times the largest count as zero, and the inverses of the others are multiplied by
    1 / (1 + (``rtol_smooth`` * largest / eigenvalue)^6). Use it in place of ``netket.optimizer.solver.pinv_smooth``. ``x0`` is
    ignored.
    """
    matrix, vector, unravel = _plain(A, b)
    w, v = eigh(matrix, on_fail="nan")
    share = jnp.abs(w / w[-1])
    inverse = jnp.where(share > rtol, 1 / w, 0.0) / (1 + (rtol_smooth / share) ** _POWER)
    x = xp.matmul(v, inverse * xp.matmul(xp.adjoint(v), vector))
    info = {"eval_min": w[0], "eval_max": w[-1], "rank": jnp.sum(w > rtol * w[-1]), "cond_number": w[-1] / w[0]}
    return unravel(x), info | ({"evals": w} if return_eigvals else {})
