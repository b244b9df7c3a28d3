"""Derivative rules, each written once on a small namespace ``xp`` that every framework supplies.

``xp`` has: ``adjoint(x)`` = x^H, ``half_tril(x)`` = the lower triangle with its diagonal halved, ``solve(l, b)`` = l^-1 b and
``solve_adjoint(l, b)`` = l^-H b for a lower triangular l, ``where``, ``abs``, ``real``, ``conj``, ``any``, ``sum(x, axis)``,
``largest(x)`` over the last axis, which stays, ``order(x)`` = its length, ``like(x, y)`` = a real x in the dtype of y,
``call(operation, arrays, params)``, and ``visible(x)``: whether its values can be looked at. Products are ``@``.

For a Hermitian argument the derivative is that of f((A + A^H)/2): a tangent is made Hermitian first, a gradient comes out
Hermitian.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from .operation import UPPER, Params, operation_named

__all__ = ["cholesky_jvp", "cholesky_vjp", "eigh_jvp", "eigh_vjp", "eigvalsh_jvp", "hermitian_jvp", "hermitian_vjp"]


def cholesky_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """dL = L phi(L^-1 dA L^-H), phi the lower triangle with half the diagonal."""
    upper = params[0] & UPPER
    l = xp.adjoint(outputs[0]) if upper else outputs[0]
    s = _hermitian(xp, tangents[0])
    # P = L^-1 S L^-H, and S = S^H
    p = xp.solve(l, xp.adjoint(xp.solve(l, s)))
    dl = l @ xp.half_tril(p)
    return (xp.adjoint(dl) if upper else dl,)


def cholesky_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = herm(L^-H phi(L^H g) L^-1)."""
    upper = params[0] & UPPER
    l, g = (xp.adjoint(outputs[0]), xp.adjoint(grads[0])) if upper else (outputs[0], grads[0])
    p = xp.half_tril(xp.adjoint(l) @ g)
    # L^-H P L^-1 = (L^-H (L^-H P)^H)^H
    s = xp.solve_adjoint(l, xp.adjoint(xp.solve_adjoint(l, p)))
    return (_hermitian(xp, s),)


def eigh_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """dw = diag(V^H S V), dV = U (F o U^H S V) with U all eigenvectors and F_ij = 1 / (w_j - u_i), 0 inside a cluster."""
    w, v = outputs[:2]
    sv = _hermitian(xp, tangents[0]) @ v
    dw = xp.real(xp.sum(xp.conj(v) * sv, -2))
    values, basis = _whole_spectrum(xp, params, inputs, outputs)
    f, _ = _couplings(xp, w, values)
    return dw, basis @ (xp.like(f, v) * (xp.adjoint(basis) @ sv))


def eigvalsh_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """dw = diag(V^H S V), from the outputs of eigh."""
    v = outputs[1]
    return (xp.real(xp.sum(xp.conj(v) * (_hermitian(xp, tangents[0]) @ v), -2)),)


def eigh_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = herm((V diag(gw) + U (F o U^H gV)) V^H); without gV no other eigenvector is needed."""
    w, v = outputs[:2]
    gw, gv = grads[:2]
    left = None if gw is None else v * xp.like(gw, v)[..., None, :]
    if gv is not None:
        values, basis = _whole_spectrum(xp, params, inputs, outputs)
        f, _ = _couplings(xp, w, values)
        rotated = basis @ (xp.like(f, v) * (xp.adjoint(basis) @ gv))
        left = rotated if left is None else left + rotated
    if left is None:
        return (None,)
    if xp.visible(w):
        _warn_about_clusters(xp, w, gw, None if gv is None else xp.adjoint(v) @ gv)
    return (_hermitian(xp, left @ xp.adjoint(v)),)


def hermitian_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    return (_hermitian(xp, tangents[0]),)


def hermitian_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    return (_hermitian(xp, grads[0]),)


def _hermitian(xp: Any, x: Any) -> Any:
    return (x + xp.adjoint(x)) / 2


def _whole_spectrum(xp: Any, params: Params, inputs: Any, outputs: Any) -> tuple[Any, Any]:
    """All eigenpairs: what was computed, or for a part of the spectrum one more call, never one solve for each pair."""
    flags, _, count = params
    if count < 0:
        return outputs[0], outputs[1]
    values, basis, _ = xp.call(operation_named("eigh"), (inputs[0],), (flags & UPPER, 0, -1))
    return values, basis


def _couplings(xp: Any, w: Any, values: Any) -> tuple[Any, Any]:
    """1 / (w_j - u_i), and 0 where the two count as one: |w_j - u_i| <= 10 n eps ||A||."""
    gap = w[..., None, :] - values[..., :, None]
    close = _near(xp, gap, values[..., None, :])
    # the inner choice keeps second derivatives finite
    return xp.where(close, xp.zeros_like(gap), 1 / xp.where(close, xp.ones_like(gap), gap)), close


def _near(xp: Any, gap: Any, values: Any) -> Any:
    """Whether a gap is below 10 n eps ||A||; of ``values`` the last axis is all of them."""
    eps = float(np.finfo(xp.dtype_name(values)).eps)
    return xp.abs(gap) <= 10 * eps * xp.order(values) * xp.largest(xp.abs(values))


def _warn_about_clusters(xp: Any, w: Any, gw: Any, inner: Any) -> None:
    """A function of the eigenspaces alone has a Hermitian V^H gV and one gw inside each cluster."""
    # the values ascend, so that neighbours tell whether there is a cluster at all: one number to look at
    if w.shape[-1] < 2 or not xp.any(_near(xp, w[..., 1:] - w[..., :-1], w)):
        return
    inside = xp.to_numpy(_couplings(xp, w, w)[1])
    inside = inside & ~np.eye(inside.shape[-1], dtype=bool)
    split = False
    for gradient, difference in ((gw, lambda g: g[..., None, :] - g[..., :, None]), (inner, lambda g: g - _adjoint(g))):
        if gradient is not None:
            g = xp.to_numpy(gradient)
            limit = 1000 * float(np.finfo(g.dtype).eps) * np.abs(g).max(initial=0)
            split = split or bool((np.abs(difference(g))[inside] > limit).any())
    if split:
        warnings.warn(
            "eigh: the loss depends on the choice of eigenvectors inside a cluster of equal eigenvalues, where it has no"
            " derivative; that part of the gradient is taken as zero",
            stacklevel=2,
        )


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()
