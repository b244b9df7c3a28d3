"""Positive definite matrices inside shard_map, and code for all kinds of matrices; factored.py has the calls on whole arrays.

The modules of the other kinds, lu.py and triangle.py, have the same functions: ``local_factor``, ``apply``, ``inverse_of`` and
(except for triangles) ``slogdet_of``. ``right`` is the grid of a right-hand side; None: it is whole on every device.
"""

from __future__ import annotations

from functools import lru_cache, partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ...placement import Grid, Placement
from . import cholesky as spd
from .layout import adjoint, from_panels, from_slots, gathered, in_mesh, local_part, place, to_panels, to_slots
from .panels import Panels, panels, panels_of_width
from .substitution import dot


def cut_for(n: int, grid: Grid, width: int | None = None) -> Panels:
    return panels(n, grid.size, jax.default_backend()) if width is None else panels_of_width(n, grid.size, width)


def spec_of(grid: Grid | None) -> Any:
    if grid is None:
        return PartitionSpec()
    return PartitionSpec(_names(grid.row_axes), _names(grid.column_axes))


def _names(axes: tuple[str, ...]) -> Any:
    return axes[0] if len(axes) == 1 else axes or None


@lru_cache(maxsize=256)
def compiled(function: Any, placement: Placement, *fixed: Any) -> Any:
    """One jitted function for each set of static arguments."""
    jitted = jax.jit(partial(function, placement, *fixed))

    @wraps(function)
    def call(*arrays: Any) -> Any:
        with in_mesh(placement.mesh):
            return jitted(*arrays)

    return call


# -- inside shard_map: my block in, my block out ------------------------------------------------------------------------------


def local_factor(a: Any, grid: Grid, cut: Panels, upper: bool) -> spd.Factored:
    """``a``: my block of A. The adjoint of an upper triangle is a lower one, on the transposed grid."""
    if upper:
        a, grid = adjoint(a), grid.turned()
    return spd.factor(to_panels(a, grid, cut), cut, grid.order)


def triangle_of(f: spd.Factored, grid: Grid, cut: Panels, upper: bool) -> Any:
    """My block of L, or of L^H."""
    l = from_panels(or_nan(f.panels, f.info), grid.turned() if upper else grid, cut, cut.n)
    return adjoint(l) if upper else l


def apply(f: spd.Factored, b: Any, grid: Grid, right: Grid | None, cut: Panels, upper: bool, turned: bool) -> Any:
    """A^-1 B, which is A^-H B."""
    return or_nan(in_slots(b, grid, right, cut, lambda x: spd.solve(f, x, cut, grid.order)), f.info)


def in_slots(b: Any, grid: Grid, right: Grid | None, cut: Panels, work: Any) -> Any:
    """``work`` on the rows of my panels. A B that is split over other axes than the matrix is gathered, as it is smaller."""
    same = right is not None and set(right.order) == set(grid.order)
    b = b if right is None or same else gathered(b, right)
    x = work(to_slots(b, right if same else None, cut, grid.order))
    x = from_slots(x, right if same else None, cut, grid.order)
    return x if right is None or same else local_part(x, right)


def inverse_of(f: spd.Factored, grid: Grid, cut: Panels, upper: bool) -> Any:
    """A^-1 in blocks, exactly Hermitian."""
    x = spd.solve(f, spd.identity_slots(cut, grid.order, f.panels.dtype), cut, grid.order)
    # the adjoints of the rows of X in my panels are the columns of X^H in my panels
    x = or_nan(adjoint(x.reshape(cut.columns, cut.padded)), f.info)
    one = from_panels(x, grid, cut, cut.n)
    other = adjoint(from_panels(x, grid.turned(), cut, cut.n))
    return (one + other) / 2


def slogdet_of(f: spd.Factored) -> tuple[Any, Any]:
    """Sign and log |det A|."""
    return or_nan(jnp.ones((), f.panels.dtype), f.info), or_nan(spd.logdet(f), f.info)


def local_product(a: Any, x: Any, grid: Grid, right: Grid | None, hermitian: bool) -> Any:
    """A x, or (A + A^H)/2 x."""
    x = x if right is None else gathered(x, right)
    y = whole_product(a, x, grid)
    y = (y + whole_product(adjoint(a), x, grid.turned())) / 2 if hermitian else y
    return y if right is None else local_part(y, right)


def whole_product(a: Any, x: Any, grid: Grid) -> Any:
    """A x, whole on every device; ``a`` is my block, ``x`` is whole."""
    y = dot(a, lax.dynamic_slice_in_dim(x, place(grid.column_axes) * a.shape[1], a.shape[1]))
    y = lax.psum(y, grid.column_axes) if grid.columns else y
    return lax.all_gather(y, grid.row_axes, tiled=True) if grid.rows else y


def in_panels(a: Any, grid: Grid, cut: Panels) -> Any:
    return jnp.pad(to_panels(a, grid, cut), ((0, cut.padded - cut.n), (0, 0)))


def or_nan(x: Any, info: Any) -> Any:
    nan = jnp.asarray(complex(jnp.nan, jnp.nan) if jnp.iscomplexobj(x) else jnp.nan, x.dtype)
    return jnp.where(info == 0, x, nan)


def cholesky_tangent(factor: Any, upper: bool, da: Any) -> Any:
    """dL = L phi(L^-1 dA L^-H), phi the lower triangle with half the diagonal."""
    l = adjoint(factor) if upper else factor
    invert = partial(lax.linalg.triangular_solve, l, left_side=True, lower=True)
    p = invert(adjoint(invert((da + adjoint(da)) / 2)))
    dl = dot(l, jnp.tril(p) - jnp.diag(jnp.diagonal(p)) / 2)
    return adjoint(dl) if upper else dl
