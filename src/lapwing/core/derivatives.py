"""Derivative rules, each written once on a small namespace ``xp`` that every framework supplies.

``xp`` has: ``adjoint(x)`` = x^H, ``half_tril(x)`` = the lower triangle with its diagonal halved, ``solve(l, b)`` = l^-1 b and
``solve_adjoint(l, b)`` = l^-H b for a lower triangular l. Products are ``@``.

For a Hermitian argument the derivative is that of f((A + A^H)/2): a tangent is made Hermitian first, a gradient comes out
Hermitian.
"""

from __future__ import annotations

from typing import Any

from .operation import UPPER

__all__ = ["cholesky_jvp", "cholesky_vjp"]


def cholesky_jvp(xp: Any, flags: int, factor: Any, da: Any) -> Any:
    """dL = L phi(L^-1 dA L^-H), phi the lower triangle with half the diagonal."""
    upper = flags & UPPER
    l = xp.adjoint(factor) if upper else factor
    s = (da + xp.adjoint(da)) / 2
    # P = L^-1 S L^-H, and S = S^H
    p = xp.solve(l, xp.adjoint(xp.solve(l, s)))
    dl = l @ xp.half_tril(p)
    return xp.adjoint(dl) if upper else dl


def cholesky_vjp(xp: Any, flags: int, factor: Any, g: Any) -> Any:
    """G = herm(L^-H phi(L^H g) L^-1)."""
    upper = flags & UPPER
    l, g = (xp.adjoint(factor), xp.adjoint(g)) if upper else (factor, g)
    p = xp.half_tril(xp.adjoint(l) @ g)
    # L^-H P L^-1 = (L^-H (L^-H P)^H)^H
    s = xp.solve_adjoint(l, xp.adjoint(xp.solve_adjoint(l, p)))
    return (s + xp.adjoint(s)) / 2
