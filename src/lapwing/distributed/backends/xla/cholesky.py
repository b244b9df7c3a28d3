"""A = L L^H inside shard_map, on column panels that the devices own in turn, and solves and determinants by L.

Left-looking: for each panel every device computes what its own columns subtract from it, one reduction adds these up, all
devices solve for some rows of the panel, and the panel is gathered again; its owner keeps it. There are only products: a LAPACK
call on each device with its own threads was 43 times slower on a CPU. All steps of a window share one loop, so that the time to
compile does not grow with the number of panels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .layout import adjoint, numbers, place
from .panels import WINDOWS, Panels
from .substitution import dot, gather_solve, scatter_solve

SMALL = 32  # columns of a diagonal block that are eliminated one by one
TILE = 256  # rows and columns of a product on a CPU
SOUND = 100.0  # condition number of a diagonal block up to which a product with its inverse is as good as substitution


class Factored(NamedTuple):
    """A triangular matrix in panels, shape (padded, columns); on all devices its diagonal blocks, inverses and status."""

    panels: Any
    diagonal: Any
    inverses: Any
    info: Any


def factor(a: Any, cut: Panels, axes: tuple[str, ...]) -> Factored:
    """``a``: the columns of my panels, shape (n or padded, columns), of which the lower triangle is read."""
    c, first_odd = prepared(a, cut, axes, lower=True)
    b, total = cut.width, cut.padded
    device = place(axes)
    blocks = jnp.zeros((cut.count, b, b), c.dtype)
    state = (c, blocks, blocks, jnp.zeros((), jnp.int32), jnp.zeros((b, b), c.dtype))
    for first, last in cut.windows(WINDOWS):
        top, wide = first * cut.devices * b, last * b

        def step(k: Any, state: Any, top: int = top, wide: int = wide) -> Any:
            c, diagonal, inverses, failed, bad = state
            owner, slot, offset = k % cut.devices, k // cut.devices, k * b - top
            # A_k - sum_{j < k} L_j L_kj^H, of which each device has its own j
            left = lax.dynamic_slice(c, (k * b, 0), (b, wide))
            panel_of = jnp.arange(wide) // b * cut.devices + device
            part = _subtracted(c, jnp.where(panel_of < k, left, 0), top, offset, (slot + 1) * b)
            mine = lax.dynamic_slice(c, (top, slot * b), (total - top, b))
            part = jnp.where(device == owner, part + mine, part)
            block = lax.psum(lax.dynamic_slice(part, (offset, 0), (b, b)), axes)
            # L_kk, and its inverse; the rows below: L_ik <- A_ik L_kk^-H
            l, v, good = _small_factor(block)
            below = part if cut.devices == 1 else lax.psum_scatter(part, axes, tiled=True)
            below = _right_solve(below, l, v)
            below = below if cut.devices == 1 else lax.all_gather(below, axes, tiled=True)
            below = jnp.where(jnp.arange(total - top)[:, None] >= offset + b, below, 0)
            done = lax.dynamic_update_slice(below, l, (offset, 0))
            c = lax.dynamic_update_slice(c, jnp.where(device == owner, done, mine), (top, slot * b))
            first_bad = (failed == 0) & ~good
            return (
                c,
                lax.dynamic_update_slice(diagonal, l[None], (k, 0, 0)),
                lax.dynamic_update_slice(inverses, v[None], (k, 0, 0)),
                jnp.where(first_bad, k + 1, failed).astype(jnp.int32),
                jnp.where(first_bad, block, bad),
            )

        state = lax.fori_loop(first * cut.devices, last * cut.devices, step, state)
    c, diagonal, inverses, failed, bad = state
    inside = lax.cond(failed > 0, lambda x: _eliminated(x)[2], lambda x: jnp.zeros((), jnp.int32), bad)
    minor = jnp.where(failed > 0, (failed - 1) * b + inside, 0)
    odd = first_odd < cut.n
    minor = jnp.where(odd & ((minor == 0) | (first_odd + 1 < minor)), first_odd + 1, minor)
    return Factored(c, diagonal, inverses, minor.astype(jnp.int32))


def _subtracted(c: Any, left: Any, top: int, offset: Any, used: Any) -> Any:
    """-C left^H for the rows of C from ``top`` on. The first ``offset`` may stay zero; ``left`` is zero from ``used`` on."""
    rows, (width, wide) = c.shape[0] - top, left.shape

    def at_once(c: Any, left: Any, offset: Any, used: Any) -> Any:
        return -dot(lax.slice(c, (top, 0), (top + rows, wide)), adjoint(left))

    def by_tiles(c: Any, left: Any, offset: Any, used: Any) -> Any:
        tall, deep = min(TILE, rows), min(TILE, wide)

        def strip(i: Any, part: Any) -> Any:
            at = jnp.minimum(i * tall, rows - tall)

            def tile(j: Any, total: Any) -> Any:
                start = jnp.minimum(j * deep, wide - deep)
                piece = lax.dynamic_slice(left, (0, start), (width, deep))
                # the last tile may overlap the one before
                piece = jnp.where(start + jnp.arange(deep) >= j * deep, piece, 0)
                return total - dot(lax.dynamic_slice(c, (top + at, start), (tall, deep)), adjoint(piece))

            total = lax.fori_loop(0, (used + deep - 1) // deep, tile, jnp.zeros((tall, width), c.dtype))
            return lax.dynamic_update_slice(part, total, (at, 0))

        return lax.fori_loop(offset // tall, -(-rows // tall), strip, jnp.zeros((rows, width), c.dtype))

    # on a CPU many small products cost little, so tiles skip the zeros; a GPU needs few large products
    if rows * wide <= TILE * TILE:
        return at_once(c, left, offset, used)
    return lax.platform_dependent(c, left, offset, used, cpu=by_tiles, default=at_once)


def solve(f: Factored, b: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """A^-1 B for the rows of my panels of B, shape (each, width, k)."""
    return scatter_solve(f, gather_solve(f, b, cut, axes, below=True), cut, axes, below=True)


def logdet(f: Factored) -> Any:
    """Real; padding adds log 1."""
    pivots = jnp.real(jnp.diagonal(f.diagonal, axis1=-2, axis2=-1))
    return 2 * jnp.sum(jnp.log(pivots))


def identity_slots(cut: Panels, axes: tuple[str, ...], dtype: Any, order: Any = None) -> Any:
    """The rows in my panels of the identity, or of the identity with its rows in ``order``."""
    rows = numbers(cut, axes)
    rows = rows if order is None else order[rows]
    return (rows[..., None] == jnp.arange(cut.padded)).astype(dtype)


def multiply(x: Any, y: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """X Y, all in panels: the panels of X travel, one after the other."""
    device = place(axes)

    def step(k: Any, total: Any) -> Any:
        panel = lax.dynamic_slice(x, (0, k // cut.devices * cut.width), (x.shape[0], cut.width))
        panel = lax.psum(jnp.where(device == k % cut.devices, panel, 0), axes)
        return total + dot(panel, lax.dynamic_slice(y, (k * cut.width, 0), (cut.width, y.shape[1])))

    return lax.fori_loop(0, cut.count, step, jnp.zeros((x.shape[0], y.shape[1]), x.dtype))


def prepared(a: Any, cut: Panels, axes: tuple[str, ...], lower: bool) -> tuple[Any, Any]:
    """My columns, with ones on the diagonal of the padding, and the first column that holds NaN or Inf.

    ``lower``: only the lower triangle of a Hermitian matrix is used, and the first row with NaN or Inf is returned. Entries
    that are not finite become zero, so that they do not affect earlier columns, and the first bad minor is still found.
    """
    rows = jnp.arange(cut.padded)[:, None]
    columns = numbers(cut, axes).reshape(1, cut.columns)
    a = jnp.pad(a, ((0, cut.padded - a.shape[0]), (0, 0)))
    a = jnp.where(rows >= columns, a, 0) if lower else a
    odd = ~jnp.isfinite(a)
    first = jnp.min(jnp.where(odd, rows if lower else columns, cut.padded))
    a = jnp.where(odd, 0, jnp.where((rows == columns) & (rows >= cut.n), 1, a)).astype(a.dtype)
    if lower and jnp.iscomplexobj(a):  # LAPACK reads the real part of the diagonal
        a = jnp.where(rows == columns, jnp.real(a).astype(a.dtype), a)
    return a, lax.pmin(first, axes)


def _small_factor(a: Any) -> tuple[Any, Any, Any]:
    """L and L^-1 of a diagonal block, and whether all pivots are finite and positive."""
    return lax.platform_dependent(a, cpu=_by_elimination, default=_by_library)  # type: ignore[no-any-return]


def _by_elimination(a: Any) -> tuple[Any, Any, Any]:
    l, v, bad = _eliminated(a)
    return l, v, bad == 0


def _by_library(a: Any) -> tuple[Any, Any, Any]:
    l = jnp.tril(lax.linalg.cholesky(a, symmetrize_input=False))
    eye = jnp.eye(a.shape[0], dtype=a.dtype)
    v = lax.linalg.triangular_solve(l, eye, left_side=True, lower=True)
    return l, v, jnp.all(jnp.isfinite(l)) & jnp.all(jnp.real(jnp.diagonal(l)) > 0)


def _eliminated(a: Any) -> tuple[Any, Any, Any]:
    """L, L^-1 and the first bad pivot (0: none) of a small matrix: SMALL columns at a time, and these one by one."""
    n = a.shape[0]
    # a width that does not divide n: one block
    s = SMALL if n % SMALL == 0 else n
    index, within = jnp.arange(n), jnp.arange(s)

    def block(i: Any, state: Any) -> Any:
        l, v, bad = state
        at = i * s
        row = lax.dynamic_slice(l, (at, 0), (s, n))
        part = lax.dynamic_slice(a, (0, at), (n, s)) - dot(l, adjoint(row))
        corner = lax.dynamic_slice(part, (at, 0), (s, s))

        def column(j: Any, state: Any) -> Any:
            u, w, bad = state
            before = lax.dynamic_slice(u, (j, 0), (1, s))[0]
            x = lax.dynamic_slice(corner, (0, j), (s, 1))[:, 0] - jnp.sum(u * jnp.conj(before)[None], 1)
            pivot = jnp.real(lax.dynamic_index_in_dim(x, j, keepdims=False))
            good = (pivot > 0) & jnp.isfinite(pivot)
            scale = jnp.where(good, 1 / jnp.sqrt(jnp.where(good, pivot, 1)), jnp.nan).astype(pivot.dtype)
            x = jnp.where(within >= j, x * scale, 0)
            y = ((within == j) - jnp.sum(w * jnp.where(within < j, before, 0)[:, None], 0)) * scale
            bad = jnp.where((bad == 0) & ~good, at + j + 1, bad).astype(jnp.int32)
            return lax.dynamic_update_slice(u, x[:, None], (0, j)), lax.dynamic_update_slice(w, y[None], (j, 0)), bad

        zero = jnp.zeros((s, s), a.dtype)
        u, w, bad = lax.fori_loop(0, s, column, (zero, zero, bad))
        below = jnp.where((index >= at + s)[:, None], _right_solve(part, u, w), 0)
        l = lax.dynamic_update_slice(l, lax.dynamic_update_slice(below, u, (at, 0)), (0, at))
        unit = (index[None] == (at + within)[:, None]).astype(a.dtype)
        return l, lax.dynamic_update_slice(v, dot(w, unit - dot(row, v)), (at, 0)), bad

    zero = jnp.zeros_like(a)
    return lax.fori_loop(0, n // s, block, (zero, zero, jnp.zeros((), jnp.int32)))  # type: ignore[no-any-return]


def _right_solve(b: Any, l: Any, v: Any) -> Any:
    """B L^-H with V ~ L^-1."""
    return lax.platform_dependent(b, l, v, cpu=_by_products, default=_by_substitution)


def _by_substitution(b: Any, l: Any, v: Any) -> Any:
    return lax.linalg.triangular_solve(l, b, left_side=False, lower=True, transpose_a=True, conjugate_a=True)


def _by_products(b: Any, l: Any, v: Any) -> Any:
    """With one step of refinement, unless the block is well conditioned, it is as good as substitution."""
    lh, vh = adjoint(l), adjoint(v)
    x = dot(b, vh)
    condition = jnp.max(jnp.sum(jnp.abs(l), 1)) * jnp.max(jnp.sum(jnp.abs(v), 1))
    return lax.cond(condition <= SOUND, lambda x, b: x, lambda x, b: x + dot(b - dot(x, lh), vh), x, b)
