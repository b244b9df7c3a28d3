"""A x = w B x with B positive definite: reduced to C y = w y with C = L^-1 A L^-H, B = L L^H, x = L^-H y.

It is composed of operations with derivatives, so it has derivatives with respect to both matrices.
"""

from __future__ import annotations

from typing import Any

from .. import frameworks
from ..core.checks import check_pair
from ..core.errors import NotPositiveDefiniteError, ShapeError
from ..core.problem import ADJOINT, UPPER
from .cholesky import cholesky
from .systems import TRIANGULAR
from .triangle import whole_matrix


def check(name: str, framework: Any, a: Any, b: Any) -> tuple[Any, Any]:
    a, b = check_pair(name, framework, frameworks.of, a, b)
    shapes = framework.shape_of(a), framework.shape_of(b)
    known = [(m, n) for m, n in zip(*shapes, strict=False) if m is not None and n is not None]
    if len(shapes[0]) != len(shapes[1]) or any(m is not n and m != n for m, n in known):
        raise ShapeError(f"{name}: a and b must have the same shape, got {tuple(shapes[0])} and {tuple(shapes[1])}")
    return a, b


def solve(name: str, framework: Any, a: Any, b: Any, function: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """``function`` is eigh or eigvalsh, which solves the reduced problem."""
    xp = framework.Namespace
    upper, on_fail = options["upper"], options["on_fail"]
    try:
        factor = cholesky(b, upper=upper, on_fail=on_fail)
    except NotPositiveDefiniteError as error:
        fields = {k: v for k, v in vars(error).items() if k != "operation"}
        raise NotPositiveDefiniteError(f"{name}: in b", **fields) from None
    l = xp.adjoint(factor) if upper else factor
    # C <- L^-1 A L^-H
    half = xp.call(TRIANGULAR, (l, whole_matrix(framework, a, UPPER if upper else 0)), (0,))[0]
    c = xp.call(TRIANGULAR, (l, xp.adjoint(half)), (0,))[0]
    result = function(c, **{**options, "upper": False})
    if not isinstance(result, tuple):
        return (result,)
    # X <- L^-H Y
    return result[0], xp.call(TRIANGULAR, (l, result[1]), (ADJOINT,))[0]
