"""Sharded matrices that are factored once, on whole arrays: systems, inverses, determinants, and their derivatives.

``kind`` is one of METHODS, and ``upper`` the triangle that is read for "pos" and "triangle". Each function takes the matrix and
its factor: derivatives are with respect to the matrix, and the factor is a constant.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ...placement import Grid, Placement
from . import calls, lu, triangle
from .calls import cholesky_tangent, spec_of
from .cholesky import Factored
from .layout import local_turned, shard_map
from .panels import Panels

METHODS: dict[str, Any] = {"pos": calls, "lu": lu, "triangle": triangle}
_WHOLE = PartitionSpec()
# JAX 0.7.2 cannot transpose a loop that it has not differentiated before, so inverses have only first derivatives there
_TURNS_LOOPS = jax.__version_info__ >= (0, 10)


def factor(placement: Placement, cut: Panels, kind: str, upper: bool, a: Any) -> Any:
    """The factor in panels that the devices own in turn."""
    grid = placement.grid
    local = partial(METHODS[kind].local_factor, grid=grid, cut=cut, upper=upper)
    return shard_map(local, placement.mesh, (spec_of(grid),), _parts(kind, grid))(lax.stop_gradient(a))


def _parts(kind: str, grid: Grid) -> Any:
    split = PartitionSpec(grid.order)
    return lu.FactoredLU(split, *[_WHOLE] * 7) if kind == "lu" else Factored(split, *[_WHOLE] * 3)


def solve(placement: Placement, right: Grid | None, cut: Panels, kind: str, upper: bool, a: Any, f: Any, b: Any) -> Any:
    """A^-1 B, placed as B."""
    if b.ndim == 1:
        return solve(placement, right, cut, kind, upper, a, f, b[:, None])[:, 0]
    grid, mesh = placement.grid, placement.mesh
    spec, b_spec = spec_of(grid), spec_of(right)
    f = jax.tree.map(lax.stop_gradient, f)

    def local_product(a: Any, x: Any) -> Any:
        a = triangle.local_triangle(a, grid, upper) if kind == "triangle" else a
        return calls.local_product(a, x, grid, right, hermitian=kind == "pos")

    product = shard_map(local_product, mesh, (spec, b_spec), b_spec)
    forward, backward = (_way(placement, right, cut, kind, upper, turned) for turned in (False, True))
    return lax.custom_linear_solve(
        lambda x: product(a, x),
        b,
        lambda _, c: forward(f, c),
        # A^T y = c is A^H conj(y) = conj(c)
        lambda _, c: jnp.conj(backward(f, jnp.conj(c))),
    )


def _way(placement: Placement, right: Grid | None, cut: Panels, kind: str, upper: bool, turned: bool) -> Any:
    """A^-1 B, or A^-H B, from the factor."""
    grid, b_spec = placement.grid, spec_of(right)
    local = partial(METHODS[kind].apply, grid=grid, right=right, cut=cut, upper=upper, turned=turned)
    return shard_map(local, placement.mesh, (_parts(kind, grid), b_spec), b_spec)


def at_once(
    placement: Placement, call: Any, first: tuple[Any, ...], cut: Panels, kind: str, upper: bool, a: Any, *b: Any
) -> Any:
    """Factor, then ``call``, one of the functions here, whose static arguments begin with ``first``; returns the status too."""
    f = factor(placement, cut, kind, upper, a)
    return call(placement, *first, cut, kind, upper, a, f, *b), f.info


def inverse(placement: Placement, cut: Panels, kind: str, upper: bool, a: Any, f: Any) -> Any:
    """A^-1, placed as A; exactly Hermitian for "pos"."""
    grid, mesh = placement.grid, placement.mesh
    spec = spec_of(grid)
    local = partial(METHODS[kind].inverse_of, grid=grid, cut=cut, upper=upper)
    function = jax.custom_jvp(lambda a, f: shard_map(local, mesh, (_parts(kind, grid),), spec)(f))

    def mapped(local: Any, count: int) -> Any:
        return shard_map(partial(local, grid=grid, cut=cut), mesh, (spec,) * count, spec)

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        a, x, da = primals[0], function(*primals), tangents[0]
        # dX = -X dA X solves -A dX A = dA: in this form it can be differentiated again, and transposed
        if kind == "pos":
            sandwich = mapped(partial(lu.local_sandwich, transposed=False), 2)
            # the transpose is the same with conj(X), whose panels need not be kept
            ways: Any = sandwich, lambda x, g: jnp.conj(sandwich(x, jnp.conj(g)))
        else:
            ways = tuple(mapped(partial(lu.local_sandwich, transposed=transposed), 2) for transposed in (False, True))
        whole, d_whole = jax.jvp(partial(read, placement, cut, kind, upper), (a,), (da,))
        if not _TURNS_LOOPS:
            return x, jax.custom_derivatives.linear_call(ways[0], ways[1], x, d_whole)
        product = mapped(partial(lu.local_sandwich, transposed=False), 2)
        return x, lax.custom_linear_solve(
            lambda y: product(whole, y), d_whole, lambda _, s: ways[0](x, s), lambda _, g: ways[1](x, g)
        )

    return function(a, jax.tree.map(lax.stop_gradient, f))


def det(placement: Placement, cut: Panels, kind: str, upper: bool, a: Any, f: Any) -> Any:
    """The determinant, the same on every device. Except for triangles its derivative at a singular matrix is NaN."""
    if kind == "triangle":
        pivots = diagonal(placement, a)
        size = jnp.abs(lax.stop_gradient(pivots))
        size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
        # partial products of the pivots may be out of range; those of their phases are not
        phase, factor = jnp.prod(pivots / size), jnp.exp(jnp.sum(jnp.log(size)))
        return jnp.where((phase == 0) & ~jnp.isfinite(factor), phase, phase * factor)
    sign, logabs = slogdet(placement, cut, kind, upper, a, f)
    return sign * jnp.exp(logabs).astype(sign.dtype)


def slogdet(placement: Placement, cut: Panels, kind: str, upper: bool, a: Any, f: Any) -> tuple[Any, Any]:
    """Sign and log |det A|, the same on every device."""
    grid, mesh = placement.grid, placement.mesh
    spec = spec_of(grid)
    if kind == "triangle":
        pivots = diagonal(placement, a)
        size = jnp.abs(pivots)
        zero = size == 0
        return jnp.prod(jnp.where(zero, 0, pivots / jnp.where(zero, 1, size).astype(pivots.dtype))), jnp.sum(jnp.log(size))

    def local_sum(x: Any, da: Any) -> Any:
        return lax.psum(jnp.sum(local_turned(x, grid, cut, False) * da), grid.order)

    values = shard_map(METHODS[kind].slogdet_of, mesh, (_parts(kind, grid),), (_WHOLE, _WHOLE))
    function = jax.custom_jvp(lambda a, f: values(f))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        sign, value = function(*primals)
        if kind == "pos":
            x = inverse(placement, cut, kind, upper, *primals)
            trace = shard_map(partial(_local_trace, grid=grid), mesh, (spec, spec), _WHOLE)
            return (sign, value), (jnp.zeros_like(sign), trace(x, tangents[0]))
        # t = tr(A^-1 dA): d log|det| = Re t, d sign = i Im(t) sign
        t = shard_map(local_sum, mesh, (spec, spec), _WHOLE)(inverse(placement, cut, kind, upper, *primals), tangents[0])
        return (sign, value), ((t - jnp.conj(t)) / 2 * sign, jnp.real(t))

    return function(a, jax.tree.map(lax.stop_gradient, f))  # type: ignore[no-any-return]


def diagonal(placement: Placement, a: Any) -> Any:
    """The diagonal, the same on every device."""
    grid = placement.grid
    return shard_map(partial(triangle.local_diagonal, grid=grid), placement.mesh, (spec_of(grid),), _WHOLE)(a)


def rcond(placement: Placement, cut: Panels, kind: str, upper: bool, a: Any, f: Any) -> Any:
    """1 / (||A|| ||A^-1||) in the 1-norm: Hager's estimate for A^-1, with Higham's vector at the end."""
    whole = read(placement, cut, kind, upper, a)
    size = jnp.max(jnp.sum(jnp.abs(whole), 0))
    good = (f.info == 0) & (size > 0) & jnp.isfinite(size)
    size = jnp.where(good, size, 1)
    forward, backward = (_way(placement, None, cut, kind, upper, turned) for turned in (False, True))

    # ||A|| A^-1 is in range if the answer is; A^-1 may not be
    def norm(x: Any) -> tuple[Any, Any]:
        y = forward(f, x * size.astype(x.dtype))
        return y, jnp.sum(jnp.abs(y))

    index = jnp.arange(cut.n)[:, None]

    def climb(_: Any, state: Any) -> Any:
        x, best = state
        y, estimate = norm(x)
        length = jnp.abs(y)
        signs = jnp.where(length == 0, 1, y / jnp.where(length == 0, 1, length).astype(y.dtype))
        z = backward(f, signs * size.astype(x.dtype))
        return (index == jnp.argmax(jnp.abs(z))).astype(x.dtype), jnp.maximum(best, estimate)

    start = jnp.full((cut.n, 1), 1 / cut.n, a.dtype), jnp.zeros_like(size)
    _, best = lax.fori_loop(0, 4, climb, start)
    last = jnp.where(index % 2 == 0, 1, -1) * (1 + index / max(cut.n - 1, 1))
    best = jnp.maximum(best, 2 * norm(last.astype(a.dtype))[1] / (3 * cut.n))
    return jnp.where(good, 1 / best, 0).astype(size.dtype)


def cholesky(placement: Placement, cut: Panels, upper: bool, a: Any) -> tuple[Any, Any]:
    """L, or L^H, placed as A, and the status."""
    f = factor(placement, cut, "pos", upper, a)
    return cholesky_factor(placement, cut, upper, a, f), f.info


def cholesky_factor(placement: Placement, cut: Panels, upper: bool, a: Any, f: Any) -> Any:
    """L, or L^H, placed as A."""
    grid, spec = placement.grid, spec_of(placement.grid)
    local = partial(calls.triangle_of, grid=grid, cut=cut, upper=upper)
    function = jax.custom_jvp(lambda a, f: shard_map(local, placement.mesh, (_parts("pos", grid),), spec)(f))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        l = function(*primals)
        if placement.certain:
            from . import dense

            return l, dense.cholesky_tangent(placement, l, upper, tangents[0])
        # XLA decides on the placement, as it would for an ordinary array
        return l, cholesky_tangent(l, upper, tangents[0])

    return function(a, jax.tree.map(lax.stop_gradient, f))


def mirrored(placement: Placement, cut: Panels, upper: bool, conjugate: bool, a: Any) -> Any:
    """The matrix with both triangles, of which one is read. The derivative is that of (A + A^H)/2, or with A^T."""
    grid, spec = placement.grid, spec_of(placement.grid)

    local = partial(triangle.local_mirrored, grid=grid, cut=cut, upper=upper, conjugate=conjugate)
    function = jax.custom_jvp(shard_map(local, placement.mesh, (spec,), spec))

    @function.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        return function(*primals), mean(placement, cut, conjugate, tangents[0])

    return function(a)


def mean(placement: Placement, cut: Panels, conjugate: bool, x: Any) -> Any:
    """(X + X^H)/2, or with X^T."""
    grid, spec = placement.grid, spec_of(placement.grid)
    return shard_map(lambda x: (x + local_turned(x, grid, cut, conjugate)) / 2, placement.mesh, (spec,), spec)(x)


def read(placement: Placement, cut: Panels, kind: str, upper: bool, a: Any) -> Any:
    """The matrix that the call means: both triangles for "pos", zeros outside of a triangle."""
    if kind == "pos":
        return mirrored(placement, cut, upper, True, a)
    if kind == "lu":
        return a
    spec = spec_of(placement.grid)
    local = partial(triangle.local_triangle, grid=placement.grid, upper=upper)
    return shard_map(local, placement.mesh, (spec,), spec)(a)


def _local_trace(x: Any, da: Any, grid: Grid) -> Any:
    """Re tr(X dA) for a Hermitian X, which needs no communication of elements."""
    return lax.psum(jnp.sum(jnp.real(jnp.conj(x) * da)), grid.order)
