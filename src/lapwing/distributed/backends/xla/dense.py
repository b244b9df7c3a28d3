"""Spectra, QR and least squares of sharded matrices of any shape, on whole arrays, and their derivatives.

A result whose shape the axes of the matrix do not divide is split along other axes of the mesh, or whole on every device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ...placement import Grid, Placement
from . import calls, factored, sharding, spectra
from .calls import cut_for, spec_of
from .cholesky import multiply
from .layout import adjoint, local_part, numbers, shard_map, to_panels
from .spectra import left_as, padded, result_grid
from .substitution import dot
from .triangle import places

_WHOLE = PartitionSpec()


def eigh(placement: Placement, upper: bool, part: tuple[int, int], vectors: bool, a: Any) -> tuple[Any, ...]:
    """The eigenvalues ``part`` on every device, their eigenvectors split like A (or None), and the status."""
    n = a.shape[0]
    cut = cut_for(n, placement.grid)
    return _hermitian(placement, part, vectors, factored.mirrored(placement, cut, upper, True, a))  # type: ignore[no-any-return]


def _hermitian(placement: Placement, part: tuple[int, int], vectors: bool, a: Any) -> Any:
    n, grid = a.shape[0], placement.grid
    local = partial(spectra.local_eigh, grid=grid, cut=cut_for(n, grid), part=part, vectors=vectors)
    out = (_WHOLE, _spec((n, part[1]), grid) if vectors else None, _WHOLE)
    function = jax.custom_jvp(shard_map(local, placement.mesh, (spec_of(grid),), out))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        (a,), (da,) = primals, tangents
        w, v, info = _hermitian(placement, (0, n), True, a)
        # M = V^H dA V: dw = diag M, dV = V (F o M) with F_ij = 1 / (w_j - w_i), 0 inside a cluster
        m = product(placement, adjoint(v), product(placement, da, v))
        dw = jnp.real(_diagonal(placement, m))
        chosen = slice(part[0], sum(part))
        values, zero = w[chosen], jax.custom_derivatives.zero_from_primal(info)
        if not vectors:
            return (values, None, info), (dw[chosen], None, zero)
        limit = 4 * n * jnp.finfo(w.dtype).eps * jnp.max(jnp.abs(w))
        f = _entries(placement, lambda m, i, j, w, limit: m * _inverse(w[j] - w[i], limit, m), m, w, limit)
        dv = product(placement, v, f)
        return (values, _columns(placement, v, part), info), (dw[chosen], _columns(placement, dv, part), zero)

    return function(a)


def svd(placement: Placement, vectors: bool, a: Any, full: bool = False) -> tuple[Any, ...]:
    """U split like A, S on every device, V^H, and the status; (None, S, None, status) without vectors.

    ``full``: U and V are square.
    """
    if a.shape[0] < a.shape[1]:
        v, s, uh, info = svd(_turned(placement), vectors, adjoint(a), full)
        return (adjoint(uh), s, adjoint(v), info) if vectors else (None, s, None, info)
    if full:
        u, s, vh, info = svd(placement, True, a)
        return complete(placement, u), s, vh, info
    (m, n), grid = a.shape, placement.grid
    spec, cut = spec_of(grid), cut_for(n, grid)
    local = partial(spectra.local_svd, grid=grid, cut=cut, vectors=vectors)
    out = (spec, _WHOLE, _spec((n, n), grid), _WHOLE) if vectors else (None, _WHOLE, None, _WHOLE)
    function = jax.custom_jvp(shard_map(local, placement.mesh, (spec,), out))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        (da,) = tangents
        u, s, vh, info = svd(placement, True, *primals)
        v, uh = adjoint(vh), adjoint(u)
        # E = U^H dA V, H and W its Hermitian and anti-Hermitian parts, K_ij = 1 / (s_j - s_i), L_ij = 1 / (s_i + s_j)
        dav = product(placement, da, v)
        e = product(placement, uh, dav)
        ds, zero = jnp.real(_diagonal(placement, e)), jax.custom_derivatives.zero_from_primal(info)
        if not vectors:
            return (None, s, None, info), (None, ds, None, zero)
        limit = 4 * m * jnp.finfo(s.dtype).eps * jnp.max(s)
        eh = _as_result(placement, adjoint(e))
        h = _entries(placement, lambda x, i, j, s, limit: x * _inverse(s[j] - s[i], limit, x), (e + eh) / 2, s, limit)
        w = _entries(placement, lambda x, i, j, s, limit: x * _inverse(s[j] + s[i], limit, x), (e - eh) / 2, s, limit)
        # dU = U (H o K + W o L) + (I - U U^H) dA V / s, dV = V (H o K - W o L)
        du, dv = product(placement, u, h + w), product(placement, v, h - w)
        if m > n:
            du = du + (dav - product(placement, u, e)) * _inverse(s, limit, e)
        return (u, s, vh, info), (du, ds, _as_result(placement, adjoint(dv)), zero)

    return function(a)  # type: ignore[no-any-return]


def complete(placement: Placement, u: Any) -> Any:
    """A square matrix with orthonormal columns that begins with those of U."""
    (m, n), grid = u.shape, placement.grid
    local = partial(spectra.local_complete, grid=grid, cut=cut_for(n, grid))
    function = jax.custom_jvp(shard_map(local, placement.mesh, (spec_of(grid),), _spec((m, m), grid)))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        text = "svd: the columns beyond min(m, n) are arbitrary, and have no derivative\nhint: full_matrices=False"
        raise NotImplementedError(text)

    return function(u)


def polar(placement: Placement, a: Any) -> tuple[Any, Any, Any]:
    """A = U P of a matrix with at least as many rows as columns, and the status."""
    u, s, vh, info = svd(placement, True, a)
    scaled = adjoint(vh) * s.astype(a.dtype)
    unitary = product(placement, u, vh)
    p = product(placement, scaled, vh)
    if isinstance(a, jax.core.Tracer):
        # P = U^H A has the same value, and a derivative even if singular values are equal
        same = product(placement, adjoint(unitary), a)
        p = jax.lax.stop_gradient(p) + (same - jax.lax.stop_gradient(same))
    # the mean with its adjoint is Hermitian to the last bit
    if _grid_of(placement, p.shape) is None:  # whole on every device
        return unitary, (p + adjoint(p)) / 2, info
    return unitary, factored.mean(placement_of(placement, p.shape), cut_for(a.shape[1], placement.grid), True, p), info


def qr(placement: Placement, a: Any) -> tuple[Any, Any]:
    """Q and R, split like A if their shapes allow it."""
    (m, n), grid = a.shape, placement.grid
    k = min(m, n)
    local = partial(spectra.local_qr, grid=grid, cut=cut_for(n, grid))
    specs = (_spec((m, k), grid), _spec((k, n), grid))
    function = jax.custom_jvp(shard_map(local, placement.mesh, (spec_of(grid),), specs))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        (a,), (da,) = primals, tangents
        q, r = function(a)
        qh = adjoint(q)
        # the first columns decide Q
        square = _columns(placement, r, (0, k)) if m < n else r
        first = _columns(placement, da, (0, k)) if m < n else da
        inverse = _inverse_of_triangle(placement, square, upper=True)
        # C = dA R^-1, X = Q^H C: dQ = C - Q T, dR = T R, X - T anti-Hermitian and T upper with a real diagonal
        c = product(placement, first, inverse)
        x = product(placement, qh, c)
        above = _entries(placement, lambda x, i, j: jnp.where(i < j, x, 0), adjoint(x))
        t = above + _entries(placement, lambda x, i, j: jnp.where(i < j, x, jnp.where(i == j, jnp.real(x), 0)), x)
        dq = c - product(placement, q, t)
        if m >= n:
            return (q, r), (dq, product(placement, t, r))
        dr = product(placement, adjoint(dq), a) + product(placement, qh, da)
        return (q, r), (dq, _entries(placement, lambda x, i, j: jnp.where(i <= j, x, 0), dr))

    return function(a)  # type: ignore[no-any-return]


def cholesky_tangent(placement: Placement, factor: Any, upper: bool, da: Any) -> Any:
    """dL = L phi(L^-1 dA L^-H), phi the lower triangle with half the diagonal; dU = phi(U^-H dA U^-1) U with the upper one."""
    inverse = _inverse_of_triangle(placement, factor, upper)
    turned = adjoint(inverse)
    left, right = (turned, inverse) if upper else (inverse, turned)
    da = factored.mean(placement, cut_for(len(factor), placement.grid), True, da)
    p = product(placement, left, product(placement, da, right))
    half = lambda x, i, j: jnp.where(i == j, x / 2, jnp.where((i < j) if upper else (i > j), x, 0))  # noqa: E731
    p = _entries(placement, half, p)
    return product(placement, p, factor) if upper else product(placement, factor, p)


def _inverse_of_triangle(placement: Placement, t: Any, upper: bool) -> Any:
    if _grid_of(placement, t.shape) is None:  # whole on every device
        return jax.lax.linalg.triangular_solve(t, jnp.eye(len(t), dtype=t.dtype), left_side=True, lower=not upper)
    where, cut = placement_of(placement, t.shape), cut_for(len(t), placement.grid)
    return factored.inverse(where, cut, "triangle", upper, t, factored.factor(where, cut, "triangle", upper, t))


def lstsq(placement: Placement, right: Grid | None, a: Any, b: Any, rcond: Any) -> tuple[Any, ...]:
    """x, residuals, rank and singular values, all on every device, and the status."""
    if b.ndim == 1:
        x, residuals, *others = lstsq(placement, right, a, b[:, None], rcond)
        return x[:, 0], residuals[0], *others
    turned = a.shape[0] < a.shape[1]
    grid = placement.grid.turned() if turned else placement.grid
    local = partial(spectra.local_lstsq, grid=grid, right=right, cut=cut_for(min(a.shape), grid), turned=turned)
    specs = (spec_of(grid), spec_of(right), _WHOLE)
    solver = shard_map(local, placement.mesh, specs, (_WHOLE,) * 5)
    function = jax.custom_jvp(lambda a, b, rcond: solver(adjoint(a) if turned else a, b, rcond))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        (a, b, rcond), (da, db, _) = primals, tangents
        x, residuals, rank, s, info = function(a, b, rcond)
        u, _, vh, _ = svd(placement, True, a)
        # G = A^+; with r = b - A x: dx = G (db - dA x) + G G^H dA^H r + (I - G A) dA^H G^H x
        weights = _inverse(s, rcond * s[0], a)
        pseudo = product(placement, adjoint(vh) * weights, adjoint(u))
        times = partial(_times, placement)
        left, gh, dah = b - times(a, x), adjoint(pseudo), adjoint(da)
        change = times(dah, times(gh, x))
        dx = times(pseudo, db - times(da, x) + times(gh, times(dah, left))) + change - times(pseudo, times(a, change))
        d_residuals = 2 * jnp.sum(jnp.real(jnp.conj(left) * (db - times(da, x))), 0)
        # the derivative of a singular value: Re (U^H dA V)
        ds = jnp.real(_diagonal(placement, product(placement, adjoint(u), product(placement, da, adjoint(vh)))))
        fixed = map(jax.custom_derivatives.zero_from_primal, (rank, info))
        return (x, residuals, rank, s, info), (dx, d_residuals, next(fixed), ds, next(fixed))

    return function(a, b, rcond)  # type: ignore[no-any-return]


# -- products of matrices that are placed as results are -----------------------------------------------------------------------


def product(placement: Placement, x: Any, y: Any) -> Any:
    """X Y; each array is split like a result of its shape (:func:`result_grid`)."""
    run = partial(_product, placement)
    x, y = (_as_result(placement, each) for each in (x, y))
    function = jax.custom_jvp(run)

    def turned(x: Any) -> Any:
        return jnp.swapaxes(x, -1, -2)

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        linear = jax.custom_derivatives.linear_call
        left = linear(lambda y, dx: run(dx, y), lambda y, out: run(out, turned(y)), y, dx)
        right = linear(run, lambda x, out: run(turned(x), out), x, dy)
        return function(x, y), left + right

    return function(x, y)


def _product(placement: Placement, x: Any, y: Any) -> Any:
    grid = placement.grid
    (m, k), n = x.shape, y.shape[1]
    inner, outer = cut_for(k, grid), cut_for(n, grid)
    grids = [_grid_of(placement, each.shape) for each in (x, y)]
    x, y = (_as_result(placement, each) for each in (x, y))
    result = result_grid((m, n), grid)

    def local(x: Any, y: Any) -> Any:
        left, right = _in_panels(x, grids[0], inner, grid), _in_panels(y, grids[1], outer, grid)
        return left_as(multiply(left, padded(right, inner), inner, grid.order), outer, m, result, grid.order)

    return shard_map(local, placement.mesh, tuple(map(spec_of, grids)), spec_of(result))(x, y)


def _in_panels(x: Any, split: Grid | None, cut: Any, grid: Grid) -> Any:
    if split is not None:
        return to_panels(x, split, cut)
    return jnp.pad(x, ((0, 0), (0, cut.padded - cut.n)))[:, numbers(cut, grid.order).reshape(-1)]


def _as_result(placement: Placement, x: Any) -> Any:
    """Split x like a result of its shape: an adjoint has the axes of its matrix exchanged, in its type if they are Explicit."""
    return sharding.resharded(x, placement.mesh, spec_of(_grid_of(placement, x.shape))) if isinstance(x, jax.core.Tracer) else x


def _grid_of(placement: Placement, shape: tuple[int, ...]) -> Grid | None:
    return result_grid((shape[0], shape[1]), placement.grid)


def placement_of(placement: Placement, shape: tuple[int, ...]) -> Placement:
    """The placement of a result of this shape."""
    return Placement(placement.mesh, _grid_of(placement, shape) or placement.grid, placement.certain)


def _times(placement: Placement, x: Any, b: Any) -> Any:
    """X B on every device, for a narrow B that every device has, or that is split."""
    grid, x = _grid_of(placement, x.shape), _as_result(placement, x)
    if grid is None:
        return dot(x, b)
    # B is whole, so that the product has no axis to be split along
    return shard_map(lambda x, b: calls.whole_product(x, b, grid), placement.mesh, (spec_of(grid), _WHOLE), _WHOLE)(x, b)


def _entries(placement: Placement, function: Any, x: Any, *vectors: Any) -> Any:
    """``function(x, i, j, *vectors)`` for each entry (i, j) of a matrix, on the device that has it."""
    grid, x = _grid_of(placement, x.shape), _as_result(placement, x)
    if grid is None:
        rows, columns = (jnp.arange(n) for n in x.shape)
        return function(x, rows[:, None], columns[None], *vectors)
    local = lambda x, *vectors: function(x, *places(x, grid), *vectors)  # noqa: E731
    return shard_map(local, placement.mesh, (spec_of(grid), *[_WHOLE] * len(vectors)), spec_of(grid))(x, *vectors)


def _inverse(x: Any, limit: Any, like: Any) -> Any:
    """1 / x, but 0 if |x| is not above the limit."""
    small = jnp.abs(x) <= limit
    return jnp.where(small, 0, 1 / jnp.where(small, 1, x)).astype(like.dtype)


def _diagonal(placement: Placement, x: Any) -> Any:
    grid = _grid_of(placement, x.shape)
    return jnp.diagonal(x) if grid is None else factored.diagonal(Placement(placement.mesh, grid), x)


def _columns(placement: Placement, x: Any, part: tuple[int, int]) -> Any:
    """Some columns of a matrix, by a product, so that it stays split."""
    n, (start, count) = x.shape[1], part
    if count == n:
        return x
    chosen = (jnp.arange(n)[:, None] == jnp.arange(start, start + count)).astype(x.dtype)
    return product(placement, x, _put(placement, chosen))


def _put(placement: Placement, x: Any) -> Any:
    """A matrix that every device has, split like a result of its shape."""
    grid = _grid_of(placement, x.shape)
    if grid is None:
        return x
    return shard_map(lambda x: local_part(x, grid), placement.mesh, (_WHOLE,), spec_of(grid))(x)


def _spec(shape: tuple[int, int], grid: Grid) -> Any:
    return spec_of(result_grid(shape, grid))


def _turned(placement: Placement) -> Placement:
    return Placement(placement.mesh, placement.grid.turned(), placement.certain)
