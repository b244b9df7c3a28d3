"""Derivative rules. Each is written once, in the array functions ``xp`` that every framework supplies as its ``Namespace``.

``xp`` has: ``adjoint(x)`` = x^H, ``swap(x)`` = x^T, ``tril(x, k)``, ``triu(x, k)``, ``half_tril(x)`` = the lower triangle
with its diagonal halved, ``diagonal(x)``, ``diag(x)`` = the matrix with that diagonal, ``where``, ``abs``, ``real``, ``conj``,
``any``, ``sum(x, axis)``, ``largest(x)`` = the maximum over the last axis, which is kept, ``order(x)`` = the length of that
axis, ``like(x, y)`` = a real x in the dtype of y, ``call(operation, arrays, params)``, ``constant(x)`` = x without
derivatives, ``visible(x)`` = whether its values can be read, ``if_all(flags, yes, no)`` = the result of ``yes()`` or ``no()``;
``no`` must be right for any flags. Products are ``@``.

For a Hermitian argument the derivative is that of f((A + A^H)/2): forward mode makes the tangent Hermitian first, reverse mode
returns a Hermitian gradient.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from .errors import DefectiveMatrixError
from .operation import Params, operation_named
from .problem import ADJOINT, POS, UNIT, UPPER


def cholesky_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """dL = L phi(L^-1 dA L^-H), phi the lower triangle with half the diagonal."""
    upper = params[0] & UPPER
    l = xp.adjoint(outputs[0]) if upper else outputs[0]
    s = _hermitian(xp, tangents[0])
    # P = L^-1 S L^-H, and S = S^H
    p = _solve(xp, l, xp.adjoint(_solve(xp, l, s)))
    dl = l @ xp.half_tril(p)
    return (xp.adjoint(dl) if upper else dl,)


def cholesky_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = herm(L^-H phi(L^H g) L^-1)."""
    upper = params[0] & UPPER
    l, g = (xp.adjoint(outputs[0]), xp.adjoint(grads[0])) if upper else (outputs[0], grads[0])
    p = xp.half_tril(xp.adjoint(l) @ g)
    # L^-H P L^-1 = (L^-H (L^-H P)^H)^H
    s = _solve(xp, l, xp.adjoint(_solve(xp, l, p, ADJOINT)), ADJOINT)
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


def eig_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """With P = V^-1 dA V: dw = diag P, dV = V X - V diag(Re diag(V^H V X)), X = F o P and F_ij = 1 / (w_j - w_i), 0 for equal
    eigenvalues."""
    w, v = outputs[:2]
    p = _left_vectors(xp, inputs[0], w, v) @ (xp.like(tangents[0], v) @ v)
    moved = v @ (_between(xp, w) * p)
    return xp.diagonal(p), moved - v * _lengths(xp, v, moved)


def eigvals_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """dw = diag(V^-1 dA V), from the outputs of eig."""
    w, v = outputs[:2]
    left = _left_vectors(xp, inputs[0], w, v)
    return (xp.sum(left * xp.swap(xp.like(tangents[0], v) @ v), -1),)


def eig_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = V^-H (diag(gw) + conj(F) o (V^H gV - V^H V diag(Re diag(V^H gV)))) V^H; F as in eig_jvp."""
    w, v = outputs[:2]
    gw, gv = grads[:2]
    inner = None if gw is None else xp.diag(gw)
    if gv is not None:
        if xp.visible(w):
            _warn_about_phases(xp, v, gv)
        # the component along v changes its length, which is fixed
        moved = xp.conj(_between(xp, w)) * (xp.adjoint(v) @ (gv - v * _lengths(xp, v, gv)))
        inner = moved if inner is None else inner + moved
    if inner is None:
        return (None,)
    g = xp.adjoint(_left_vectors(xp, inputs[0], w, v)) @ inner @ xp.adjoint(v)
    return (g if xp.dtype_name(inputs[0]).startswith("complex") else xp.real(g),)


def _between(xp: Any, w: Any) -> Any:
    """1 / (w_j - w_i), and 0 where the two count as equal."""
    gap = w[..., None, :] - w[..., :, None]
    close = _near(xp, gap, xp.abs(w)[..., None, :])
    # the inner where keeps second derivatives finite
    return xp.where(close, xp.zeros_like(gap), 1 / xp.where(close, xp.ones_like(gap), gap))


def _lengths(xp: Any, v: Any, x: Any) -> Any:
    """Re(v_j^H x_j) for each column, as a row of the dtype of v."""
    return xp.like(xp.real(xp.sum(xp.conj(v) * x, -2)), v)[..., None, :]


def _left_vectors(xp: Any, a: Any, w: Any, v: Any) -> Any:
    """V^-1. For a defective matrix an error where values can be read, else NaN."""
    left, _ = xp.call(operation_named("inverse"), (v,), (0,))
    size, columns, rows = (xp.abs(xp.constant(x)) for x in (a, v, left))
    eps, n = float(np.finfo(xp.dtype_name(size)).eps), xp.order(size)
    n = max(n, 1) if isinstance(n, int) else n
    gap = xp.abs(xp.constant(w)[..., None, :] - xp.constant(w)[..., :, None])
    # An eigenvalue that rounding errors in the elements of A move onto another one ...
    moved = 10 * eps * n * xp.sum(rows * xp.swap(size @ columns), -1)
    meets = xp.any((gap <= moved[..., None]) & (xp.eye(rows) == 0), -1)
    # ... and whose vector is nearly one of the others'
    condition = xp.sum(rows**2, -1) ** 0.5
    known = xp.isfinite(xp.sum(columns, -1))  # a matrix whose decomposition failed has NaN there, and is not called defective
    defective = xp.any(known & ((meets & (condition >= 0.1 / (eps * n) ** 0.5)) | ~xp.isfinite(condition)), -1)
    if xp.visible(w):
        flags = np.asarray(xp.to_numpy(defective))
        if flags.any():
            bad = np.argwhere(flags)
            first = tuple(int(i) for i in bad[0])
            raise DefectiveMatrixError("eig", batch_index=first, batch_shape=flags.shape, failures=len(bad))
    one = xp.ones_like(left)
    return left * xp.where(defective[..., None, None], one * float("nan"), one)


def hermitian_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    return (_hermitian(xp, tangents[0]),)


def hermitian_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    return (_hermitian(xp, grads[0]),)


def triangular_product(xp: Any, params: Params, inputs: Any, x: Any) -> Any:
    """L x, or L^H x: the product that the operation inverts."""
    product = _stored_product(xp, params, inputs, x)
    return product + x if params[0] & UNIT else product


def _stored_product(xp: Any, params: Params, inputs: Any, x: Any) -> Any:
    """The same without the ones on the diagonal, which are not stored and have no tangent."""
    l = _stored_triangle(xp, params, inputs[0])
    return (xp.adjoint(l) if params[0] & ADJOINT else l) @ x


def lu_product(xp: Any, params: Params, inputs: Any, x: Any) -> Any:
    return (xp.adjoint(inputs[0]) if params[0] & ADJOINT else inputs[0]) @ x


def cholesky_product(xp: Any, params: Params, inputs: Any, x: Any) -> Any:
    return _hermitian(xp, inputs[0]) @ x


def solve_product(xp: Any, params: Params, inputs: Any, x: Any) -> Any:
    return (_hermitian(xp, inputs[0]) if params[0] & POS else inputs[0]) @ x


def _solution_jvp(name: str, product: Any) -> Any:
    """A x = b: dx = A^-1 (db - dA x). The tangents of kept factors are ignored: they follow from that of A."""

    def jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> Any:
        da, right = tangents[0], tangents[-1]
        if da is not None:
            da_x = product(xp, params, (da,), outputs[0])
            right = -da_x if right is None else right - da_x
        return xp.call(operation_named(name), (*inputs[:-1], right), params)[:1]

    return jvp


triangular_jvp = _solution_jvp("triangular", _stored_product)
lu_solve_jvp = _solution_jvp("lu_solve", lu_product)
cholesky_solve_jvp = _solution_jvp("cholesky_solve", cholesky_product)
solve_jvp = _solution_jvp("solve_mixed", solve_product)  # with the same choice of precision


def triangular_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """gb = L^-H g and gL = -tril(gb x^H), or gb = L^-1 g and gL = -tril(x gb^H)."""
    l, x = inputs[0], outputs[0]
    gb = xp.call(operation_named("triangular"), (l, grads[0]), (params[0] ^ ADJOINT,))[0]
    outer = x @ xp.adjoint(gb) if params[0] & ADJOINT else gb @ xp.adjoint(x)
    return -_stored_triangle(xp, params, outer), gb


def _stored_triangle(xp: Any, params: Params, x: Any) -> Any:
    strict = 1 if params[0] & UNIT else 0
    return xp.triu(x, strict) if params[0] & UPPER else xp.tril(x, -strict)


def lu_solve_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """gb = A^-H g, gA = -gb x^H; for A^H: gb = A^-1 g, gA = -x gb^H."""
    *factors, _ = inputs
    x = outputs[0]
    (gb,) = xp.call(operation_named("lu_solve"), (*factors, grads[0]), (params[0] ^ ADJOINT,))
    outer = x @ xp.adjoint(gb) if params[0] & ADJOINT else gb @ xp.adjoint(x)
    return -outer, None, None, gb


def cholesky_solve_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """gb = A^-1 g, gA = -herm(gb x^H)."""
    *factors, _ = inputs
    (gb,) = xp.call(operation_named("cholesky_solve"), (*factors, grads[0]), params)
    return -_hermitian(xp, gb @ xp.adjoint(outputs[0])), None, gb


def solve_adjoint(xp: Any, params: Params, inputs: Any) -> tuple[Params, Any]:
    return params, inputs if params[0] & POS else (xp.adjoint(inputs[0]),)


def solve_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """gb = A^-H g, gA = -gb x^H, and its Hermitian part for a positive definite matrix."""
    params, (a,) = solve_adjoint(xp, params, inputs[:1])
    gb = xp.call(operation_named("solve_mixed"), (a, grads[0]), params)[0]
    ga = -(gb @ xp.adjoint(outputs[0]))
    return _hermitian(xp, ga) if params[0] & POS else ga, gb


def inverse_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """dX = -X dA X."""
    x, da = outputs[0], tangents[0]
    return (-(x @ (_hermitian(xp, da) if params[0] & POS else da) @ x),)


def inverse_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = -X^H g X^H."""
    xh = xp.adjoint(outputs[0])
    g = -(xh @ grads[0] @ xh)
    return (_hermitian(xp, g) if params[0] & POS else g,)


def slogdet_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """With t = tr(A^-1 dA): d log|det| = Re t, d sign = i Im(t) sign."""
    (a,), sign, da = inputs, outputs[0], tangents[0]
    x, _ = xp.call(operation_named("inverse"), (a,), params)
    t = xp.sum(xp.sum(xp.swap(x) * (_hermitian(xp, da) if params[0] & POS else da), -1), -1)
    if not xp.dtype_name(a).startswith("complex"):
        return xp.zeros_like(sign), t
    return (t - xp.conj(t)) / 2 * sign, xp.real(t)


def slogdet_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = (g - i Im(conj(gs) sign)) A^-H, gs the gradient of the sign."""
    (a,), sign = inputs, outputs[0]
    gs, g = grads[:2]
    is_complex = xp.dtype_name(a).startswith("complex")
    if g is None and (gs is None or not is_complex):
        return (None,)
    x, _ = xp.call(operation_named("inverse"), (a,), params)
    weight = None if g is None else xp.like(g, a)
    if gs is not None and is_complex:
        phase = xp.conj(gs) * sign
        phase = (xp.conj(phase) - phase) / 2  # -i Im
        weight = phase if weight is None else weight + phase
    assert weight is not None
    g = xp.adjoint(x) * weight[..., None, None]
    return (_hermitian(xp, g) if params[0] & POS else g,)


def det_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """d det = tr(adj(A) dA)."""
    da = _hermitian(xp, tangents[0]) if params[0] & POS else tangents[0]
    return (xp.sum(xp.sum(xp.swap(_adjugate(xp, params, inputs[0])) * da, -1), -1),)


def det_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = g adj(A)^H."""
    g = xp.adjoint(_adjugate(xp, params, inputs[0])) * grads[0][..., None, None]
    return (_hermitian(xp, g) if params[0] & POS else g,)


def _adjugate(xp: Any, params: Params, a: Any) -> Any:
    """adj(A) = det(A) A^-1, and for matrices of high condition number its limit, by their singular values."""
    with xp.quiet():
        x, _ = xp.call(operation_named("inverse"), (a,), params)
        if params[0] & POS:
            return _times_det(xp, params, a, x)
        eps, n = float(np.finfo(xp.dtype_name(a)).eps), xp.order(a)
        # Bauer and Skeel's number, which no scaling of rows changes; NaN, where the inverse failed, makes both flags false
        condition = xp.largest(xp.sum(xp.abs(xp.constant(x)) @ xp.abs(xp.constant(a)), -1))[..., None]
        well_conditioned, regular = condition <= eps**-0.5, condition <= 0.1 / (n * eps)

        def by_singular_values() -> Any:
            y, _ = xp.call(operation_named("inverse"), (xp.where(regular, a, xp.eye(a)),), params)
            product = _times_det(xp, params, xp.where(regular, a, xp.eye(a)), y)
            value = xp.constant(_adjugate_by_svd(xp, xp.where(well_conditioned, xp.eye(a), xp.constant(a))))
            # The value has the derivative of the product. For a singular matrix that is not finite, rather than wrong.
            marker = xp.where(regular, xp.ones_like(a), a - xp.constant(a)) ** 0.5
            return xp.where(well_conditioned, product, value + xp.where(regular, product - xp.constant(product), marker))

        return xp.if_all(well_conditioned, lambda: _times_det(xp, params, a, x), by_singular_values)


def _times_det(xp: Any, params: Params, a: Any, x: Any) -> Any:
    """det(A) x, where the determinant alone may be out of the range of the dtype."""
    sign, logabs, _ = xp.call(operation_named("slogdet"), (a,), params)
    size = xp.abs(xp.constant(x))
    size = xp.where((size > 0) & xp.isfinite(size), size, xp.ones_like(size))
    factor = xp.exp(logabs[..., None, None] + xp.log(size))
    return x / xp.like(size, x) * (xp.like(factor, x) * sign[..., None, None])


def _adjugate_by_svd(xp: Any, a: Any) -> Any:
    """A = U S V^H: adj(A) = det(U V^H) V adj(S) U^H, and adj(S) holds the products of all other singular values."""
    u, s, vh, _ = xp.call(operation_named("svd"), (a,), (0, 0))
    zero = s == 0
    logs = xp.log(xp.where(zero, xp.ones_like(s), s))
    others = xp.exp(xp.sum(logs, -1)[..., None] - logs)
    one = xp.where(zero, xp.ones_like(s), xp.zeros_like(s))
    others = xp.where(xp.sum(one, -1)[..., None] - one > 0, xp.zeros_like(s), others)  # another one is zero
    phase = xp.call(operation_named("det"), (u @ vh,), (0,))[0]
    return (xp.adjoint(vh) * (xp.like(others, u) * phase[..., None])[..., None, :]) @ xp.adjoint(u)


def qr_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """With C = dA R^-1 and X = Q^H C: dR = T R, dQ = C - Q T, X - T anti-Hermitian and T upper with a real diagonal."""
    q, r = outputs[:2]
    c = _times_inverse(xp, tangents[0], r)
    x = xp.adjoint(q) @ c
    # X = Omega + T with Omega anti-Hermitian and T upper triangular
    t = xp.triu(x, 1) + xp.adjoint(xp.tril(x, -1)) + xp.like(xp.diag(xp.real(xp.diagonal(x))), x)
    return c - q @ t, t @ r


def qr_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = (gQ + Q M) R^-H, M the Hermitian matrix whose lower triangle is that of R gR^H - gQ^H Q."""
    q, r = outputs[:2]
    gq, gr = grads[:2]
    m = None if gr is None else r @ xp.adjoint(xp.triu(gr, 0))
    if gq is not None:
        inner = xp.adjoint(gq) @ q
        m = -inner if m is None else m - inner
    if m is None:
        return (None,)
    low = xp.tril(m, -1)
    right = q @ (low + xp.adjoint(low) + xp.like(xp.diag(xp.real(xp.diagonal(m))), m))
    if gq is not None:
        right = right + gq
    # G R^H = right: R G^H = right^H
    return (xp.adjoint(xp.call(operation_named("triangular"), (r, xp.adjoint(right)), (UPPER,))[0]),)


def _times_inverse(xp: Any, b: Any, r: Any) -> Any:
    """b R^-1 for an upper triangular R."""
    return xp.adjoint(xp.call(operation_named("triangular"), (r, xp.adjoint(b)), (UPPER | ADJOINT,))[0])


def no_derivative(message: str) -> Any:
    """A rule that raises NotImplementedError with this message."""

    def rule(*_: Any) -> Any:
        raise NotImplementedError(message)

    return rule


def svd_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """With E = U^H dA V, H and W its Hermitian and anti-Hermitian parts, K_ij = 1 / (s_j - s_i), L_ij = 1 / (s_i + s_j):
    ds = Re diag E, dU = U (H o K + W o L) + (I - U U^H) dA V / s, dV = V (H o K - W o L) + (I - V V^H) dA^H U / s.
    """
    u, s, vh = outputs[:3]
    da, v = tangents[0], xp.adjoint(vh)
    dav = da @ v
    e = xp.adjoint(u) @ dav
    k, l, inverse = _pairs(xp, s)
    h, w = xp.like(k, e) * _hermitian(xp, e), xp.like(l, e) * (e - xp.adjoint(e)) / 2
    weights = xp.like(inverse, e)[..., None, :]
    du, dv = u @ (h + w), v @ (h - w)
    if _is_thin(u):
        du = du + (dav - u @ e) * weights
    if _is_thin(v):
        dv = dv + (xp.adjoint(da) @ u - v @ xp.adjoint(e)) * weights
    return du, xp.real(xp.diagonal(e)), xp.adjoint(dv)


def svdvals_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """ds = Re diag(U^H dA V), from the outputs of svd."""
    u, _, vh = outputs[:3]
    return (xp.real(xp.sum(xp.conj(u) * (tangents[0] @ xp.adjoint(vh)), -2)),)


def svd_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """G = U (herm((X + Y) o K) + skew((X - Y) o L) + diag gs) V^H + (gU - U X) / s V^H + U / s (gV - V Y)^H, X = U^H gU and
    Y = V^H gV; K and L as in svd_jvp."""
    u, s, vh = outputs[:3]
    gu, gs, gvh = grads[:3]
    if gu is None and gvh is None:
        return (None,) if gs is None else ((u * xp.like(gs, u)[..., None, :]) @ vh,)
    v, gv = xp.adjoint(vh), None if gvh is None else xp.adjoint(gvh)
    k, l, inverse = _pairs(xp, s)
    k, l, weights = xp.like(k, u), xp.like(l, u), xp.like(inverse, u)[..., None, :]
    x = None if gu is None else xp.adjoint(u) @ gu
    y = None if gv is None else xp.adjoint(v) @ gv
    total = x if y is None else y if x is None else x + y
    difference = x if y is None else -y if x is None else x - y
    hermitian, skew = total * k, difference * l
    inner = _hermitian(xp, hermitian) + (skew - xp.adjoint(skew)) / 2
    if gs is not None:
        inner = inner + xp.like(xp.diag(gs), u)
    g = u @ inner @ vh
    if gu is not None and _is_thin(u):
        g = g + ((gu - u @ x) * weights) @ vh
    if gv is not None and _is_thin(v):
        g = g + (u * weights) @ xp.adjoint(gv - v @ y)
    return (g,)


def svd_part_jvp(xp: Any, params: Params, inputs: Any, outputs: Any, tangents: Any) -> tuple[Any, ...]:
    """The first columns of the result of :func:`svd_jvp` with all singular vectors."""
    k = params[1]
    du, ds, dvh = svd_jvp(xp, params, inputs, _whole_svd(xp, params, inputs, outputs), tangents)
    return du[..., :k], ds[..., :k], dvh[..., :k, :]


def svd_part_vjp(xp: Any, params: Params, inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    """:func:`svd_vjp` with all singular vectors, whose gradients are zero outside of the part. With neither gU nor gV the
    vectors of the part are enough."""
    gu, gs, gvh = grads[:3]
    if gu is None and gvh is None:
        return svd_vjp(xp, params, inputs, outputs, grads)
    k, whole = params[1], _whole_svd(xp, params, inputs, outputs)
    u, s, vh = whole
    gu = None if gu is None else xp.beside(gu, u[..., k:] * 0)
    gs = None if gs is None else xp.beside(gs, s[..., k:] * 0)
    gvh = None if gvh is None else xp.adjoint(xp.beside(xp.adjoint(gvh), xp.adjoint(vh[..., k:, :]) * 0))
    return svd_vjp(xp, params, inputs, whole, (gu, gs, gvh))


def _whole_svd(xp: Any, params: Params, inputs: Any, outputs: Any) -> tuple[Any, Any, Any]:
    """All singular triplets: those of the part, and the others by one more call."""
    k, (u, s, vh) = params[1], outputs[:3]
    whole_u, whole_s, whole_vh, _ = xp.call(operation_named("svd"), (inputs[0],), (0, 0))
    v = xp.beside(xp.adjoint(vh), xp.adjoint(whole_vh[..., k:, :]))
    return xp.beside(u, whole_u[..., k:]), xp.beside(s, whole_s[..., k:]), xp.adjoint(v)


def _is_thin(u: Any) -> bool:
    """Whether I - U U^H may differ from zero; for a square U it would only add rounding errors."""
    if getattr(u.shape, "rank", 2) is None:  # TensorFlow may not know the shape yet
        return True
    rows, columns = u.shape[-2:]
    return rows is None or columns is None or rows != columns


def _pairs(xp: Any, s: Any) -> tuple[Any, Any, Any]:
    """1 / (s_j - s_i), 1 / (s_i + s_j) and 1 / s, each 0 where the denominator is at most 10 k eps s_max."""

    def reciprocal(x: Any) -> Any:
        close = xp.abs(x) <= limit
        # the inner where keeps second derivatives finite
        return xp.where(close, xp.zeros_like(x), 1 / xp.where(close, xp.ones_like(x), x))

    largest = xp.largest(s)
    limit = 10 * float(np.finfo(xp.dtype_name(s)).eps) * xp.order(s) * largest
    inverse = reciprocal(s)
    limit = limit[..., None]
    return reciprocal(s[..., None, :] - s[..., :, None]), reciprocal(s[..., None, :] + s[..., :, None]), inverse


def _solve(xp: Any, l: Any, b: Any, flags: int = 0) -> Any:
    """L^-1 b for a lower triangular L."""
    return xp.call(operation_named("triangular"), (l, b), (flags,))[0]


def _hermitian(xp: Any, x: Any) -> Any:
    return (x + xp.adjoint(x)) / 2


def _whole_spectrum(xp: Any, params: Params, inputs: Any, outputs: Any) -> tuple[Any, Any]:
    """All eigenpairs: those already computed, or for a part of the spectrum those of one more call."""
    flags, _, count = params
    if count < 0:
        return outputs[0], outputs[1]
    values, basis, _ = xp.call(operation_named("eigh"), (inputs[0],), (flags & UPPER, 0, -1))
    return values, basis


def _couplings(xp: Any, w: Any, values: Any) -> tuple[Any, Any]:
    """1 / (w_j - u_i), and 0 where the two count as equal: |w_j - u_i| <= 10 n eps ||A||."""
    gap = w[..., None, :] - values[..., :, None]
    close = _near(xp, gap, values[..., None, :])
    # the inner where keeps second derivatives finite
    return xp.where(close, xp.zeros_like(gap), 1 / xp.where(close, xp.ones_like(gap), gap)), close


def _near(xp: Any, gap: Any, values: Any) -> Any:
    """Whether a gap is below 10 n eps ||A||; the last axis of ``values`` holds all eigenvalues."""
    eps = float(np.finfo(xp.dtype_name(values)).eps)
    return xp.abs(gap) <= 10 * eps * xp.order(values) * xp.largest(xp.abs(values))


def _warn_about_clusters(xp: Any, w: Any, gw: Any, inner: Any) -> None:
    """Warn if the loss depends on more than the eigenspaces: then V^H gV is not Hermitian, or gw not constant, in a cluster."""
    # the values ascend, so comparing neighbours shows whether there is a cluster at all
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


def _warn_about_phases(xp: Any, v: Any, gv: Any) -> None:
    """Warn if the loss changes when an eigenvector is multiplied by a number of size one: then v^H gv is not real."""
    products = xp.conj(xp.constant(v)) * xp.constant(gv)
    # summed where they are, so that a GPU copies few numbers; the loss may have been computed in single precision
    sums, sizes = (xp.to_numpy(xp.sum(x, -2)) for x in (products, xp.abs(products)))
    if (np.abs(sums.imag) > 1000 * float(np.finfo("float32").eps) * sizes).any():
        warnings.warn(
            "eig: the loss depends on the phases of the eigenvectors, which are arbitrary; that part of the gradient is taken"
            " as zero",
            stacklevel=2,
        )


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()
