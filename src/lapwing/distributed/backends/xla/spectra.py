"""Spectra of matrices of any shape inside shard_map: reduction, divide and conquer, and back; dense.py has the calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from ...placement import Grid
from . import bidiagonal, orthogonal, reflect, tridiagonal
from .calls import or_nan
from .cholesky import multiply
from .divide import tree_for, tridiagonal_eigh
from .layout import adjoint, exchange, from_panels, gathered, numbers, to_panels
from .panels import Panels
from .substitution import dot


def local_eigh(a: Any, grid: Grid, cut: Panels, part: tuple[int, int], vectors: bool) -> tuple[Any, Any, Any]:
    """The eigenvalues ``part``, my block of their eigenvectors (or None), and the status, which is not zero for NaN and Inf.

    ``a``: my block of a Hermitian matrix with both triangles.
    """
    axes = grid.order
    c = to_panels(a, grid, cut)
    c, scale, info = scaled(padded(c, cut), axes)
    d, e, c, taus = tridiagonal.reduce(c, cut, axes)
    tree = tree_for(cut.n, grid.size)
    w, rows = tridiagonal_eigh(d[: cut.n], e[: cut.n - 1], tree, axes, vectors=vectors, part=part)
    w = or_nan(w * scale, info)
    if rows is None:
        return w, None, info
    columns = one_panel(part[1], grid)
    x = padded(in_columns(rows, columns, axes)[: cut.n].astype(c.dtype), cut)
    x = or_nan(reflect.apply(c, taus, x, cut, axes, 1, cut.count)[: cut.n], info)
    return w, left_as(x, columns, cut.n, result_grid((cut.n, part[1]), grid), axes), info


class Values(NamedTuple):
    """A singular value decomposition in panels; None for vectors that are not needed."""

    u: Any
    s: Any
    v: Any
    info: Any


def singular(c: Any, rows: int, cut: Panels, axes: tuple[str, ...], vectors: bool) -> Values:
    """A = U S V^H from the columns of my panels of a matrix with at least as many rows as columns.

    The right vectors are eigenvectors of the matrix (0, B^T; B, 0), which is tridiagonal with its rows interleaved. For a small
    singular value they may lose their length; a QR decomposition restores it and does not change the vectors of larger values.
    The error of a vector is of the size eps ||A|| / s and is multiplied by s, so that errors stay as small as eps ||A||.
    """
    c, scale, info = scaled(c[:rows], axes)
    n = cut.n
    b = c
    if rows > n:
        b = orthogonal.upper_part(orthogonal.factor(c, cut, axes)[0], n, cut, axes)
    d, e, right, taus = bidiagonal.reduce(padded(b, cut), cut, axes)
    e = jnp.stack([d[:n], e[:n]], 1).reshape(-1)[: 2 * n - 1]
    tree = tree_for(2 * n, cut.devices)
    s, x = tridiagonal_eigh(jnp.zeros(2 * n, e.dtype), e, tree, axes, vectors=vectors, part=(n, n), stride=2)
    s = or_nan(jnp.maximum(s[::-1], 0) * scale, info)
    if x is None:
        return Values(None, s, None, info)
    v = padded(in_columns(x[..., ::-1], cut, axes)[:n].astype(c.dtype), cut)
    v = reflect.apply(right, taus, v, cut, axes, 1, cut.count)[:n]
    v = orthogonal.near_orthonormal(v, cut, axes)
    u = orthogonal.near_orthonormal(multiply(c, padded(v, cut), cut, axes), cut, axes)
    return Values(or_nan(u, info), s, or_nan(v, info), info)


def local_svd(a: Any, grid: Grid, cut: Panels, vectors: bool) -> tuple[Any, Any, Any, Any]:
    """My block of U, S, my block of V^H, and the status; of a matrix with at least as many rows as columns."""
    m, n, axes = a.shape[0] * grid.p, cut.n, grid.order
    u, s, v, info = singular(to_panels(a, grid, cut), m, cut, axes, vectors)
    if not vectors:
        return None, s, None, info
    vh = left_as(turned_panels(v, cut, axes), cut, n, result_grid((n, n), grid), axes)
    return from_panels(u, grid, cut, m), s, vh, info


def local_polar(a: Any, grid: Grid, cut: Panels) -> tuple[Any, Any, Any]:
    """A = U P: my blocks, and the status."""
    m, n, axes = a.shape[0] * grid.p, cut.n, grid.order
    u, s, v, info = singular(to_panels(a, grid, cut), m, cut, axes, True)
    vh = padded(turned_panels(v, cut, axes), cut)
    mine = numbers(cut, axes).reshape(-1)
    p = multiply(v * jnp.pad(s, (0, cut.padded - n))[mine].astype(v.dtype), vh, cut, axes)
    # the mean with its adjoint is Hermitian to the last bit
    p = (p + turned_panels(p, cut, axes)) / 2
    u = multiply(u, vh, cut, axes)
    return from_panels(u, grid, cut, m), left_as(p, cut, n, result_grid((n, n), grid), axes), info


def local_lstsq(a: Any, b: Any, rcond: Any, grid: Grid, right: Grid | None, cut: Panels, turned: bool) -> tuple[Any, ...]:
    """x, residuals, rank, singular values and the status; with ``turned`` ``a`` is the adjoint of the matrix."""
    axes, m = grid.order, a.shape[0] * grid.p
    b = b if right is None else gathered(b, right)
    c = to_panels(a, grid, cut)
    u, s, v, info = singular(c, m, cut, axes, True)
    u, v = (v, u) if turned else (u, v)
    good = s > rcond * s[0]
    factor = jnp.where(good, 1 / jnp.where(good, s, 1), 0).astype(a.dtype)
    mine = numbers(cut, axes).reshape(-1)
    factor = jnp.pad(factor, (0, cut.padded - cut.n))[mine]
    # x <- V S^+ U^H b
    x = lax.psum(dot(v, factor[:, None] * dot(adjoint(u), b)), axes)
    if turned:
        product = in_rows_of(dot(adjoint(c[:m]), x), cut, axes)[: cut.n]
    else:
        product = lax.psum(dot(c[:m], jnp.pad(x, ((0, cut.padded - cut.n), (0, 0)))[mine]), axes)
    left = b - product
    residuals = jnp.sum(jnp.real(left * jnp.conj(left)), 0)
    return x, residuals, jnp.sum(good).astype(jnp.int32), s, info


def local_complete(u: Any, grid: Grid, cut: Panels) -> Any:
    """My block of a square matrix with orthonormal columns that begins with those of U."""
    axes, m = grid.order, u.shape[0] * grid.p
    columns = one_panel(m, grid)
    f, taus = orthogonal.factor(to_panels(u, grid, cut), cut, axes)
    phases = lax.psum(orthogonal.phases(f, cut, axes), axes)
    phases = jnp.concatenate([phases[: cut.n], jnp.ones(columns.padded - cut.n, phases.dtype)])
    q = orthogonal.q_of(f, taus, m, cut, axes, columns) * phases[numbers(columns, axes).reshape(-1)]
    return left_as(q, columns, m, result_grid((m, m), grid), axes)


def local_qr(a: Any, grid: Grid, cut: Panels) -> tuple[Any, Any]:
    """My blocks of Q and R."""
    axes, m, n = grid.order, a.shape[0] * grid.p, cut.n
    f, taus = orthogonal.factor(to_panels(a, grid, cut), cut, axes)
    k = min(m, n)
    columns = cut if m >= n else one_panel(m, grid)
    q = orthogonal.q_of(f, taus, m, cut, axes, columns)
    r = orthogonal.upper_part(f, k, cut, axes)
    return left_as(q, columns, m, result_grid((m, k), grid), axes), left_as(r, cut, k, result_grid((k, n), grid), axes)


def scaled(c: Any, axes: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """The matrix divided by its largest entry, that entry, and the status; zeros if an entry is not finite."""
    good = jnp.all(jnp.isfinite(c))
    largest = lax.pmax(jnp.stack([jnp.max(jnp.abs(jnp.where(good, c, 0))), 1 - good.astype(jnp.real(c).dtype)]), axes)
    scale = jnp.where(largest[0] > 0, largest[0], 1)
    info = (largest[1] > 0).astype(jnp.int32)
    return jnp.where(info == 0, c / scale.astype(c.dtype), 0), scale, info


def one_panel(n: int, grid: Grid) -> Panels:
    """Columns in contiguous blocks, one for each device."""
    return Panels(n, max(1, -(-n // grid.size)), grid.size, 1)


def padded(x: Any, cut: Panels) -> Any:
    """With rows of zeros added, up to the padded number of columns."""
    return jnp.pad(x, ((0, cut.padded - x.shape[0]), (0, 0)))


def in_columns(rows: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """The columns of my panels, from a matrix whose blocks of rows the devices own in turn: (blocks, width, n)."""
    x = jnp.pad(rows, ((0, 0), (0, 0), (0, cut.padded - cut.n)))
    x = x.reshape(*rows.shape[:2], cut.each, cut.devices, cut.width)
    return exchange(x, axes, 3, 1).reshape(-1, cut.columns)


def in_rows_of(x: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """All rows of a narrow matrix, of which each device has the rows of its panels."""
    parts = x.reshape(cut.each, cut.width, -1)
    return lax.all_gather(parts, axes, axis=1).reshape(cut.padded, -1)


def turned_panels(x: Any, cut: Panels, axes: tuple[str, ...]) -> Any:
    """The columns of my panels of X^H, from those of a square X, without padding."""
    x = padded(x[: cut.n], cut).reshape(cut.each, cut.devices, cut.width, cut.each, cut.width)
    # the rows of my panels: (each, width) of them, columns by panel, device and place
    x = exchange(x, axes, 1, 3)
    return adjoint(x.reshape(cut.columns, cut.padded))[: cut.n]


def result_grid(shape: tuple[int, int], grid: Grid) -> Grid | None:
    """How a result of another shape is split: like the matrix, or its transpose, or along one axis; None: not at all."""
    both = grid.rows + grid.columns
    grids = (grid, grid.turned(), Grid(both, (), grid.order), Grid((), both, grid.order))
    fits = (each for each in grids if shape[0] % each.p == 0 and shape[1] % each.q == 0)
    return next(fits, None)


def left_as(c: Any, cut: Panels, rows: int, grid: Grid | None, axes: tuple[str, ...]) -> Any:
    """My block of a result in panels."""
    if grid is not None:
        return from_panels(c, grid, cut, rows)
    parts = lax.all_gather(c[:rows].reshape(rows, cut.each, cut.width), axes, axis=2)
    return parts.reshape(rows, cut.padded)[:, : cut.n]
