"""JAX arrays on several devices: which axes of the mesh split them, and how arrays get there and back.

Inside jit with Auto axes only the mesh is known: then rows are requested, for which XLA uses all-to-alls and gathers nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ....frameworks.jax import named_sharding, traced
from ...placement import Grid, Placement

# With Auto axes a matrix inside jit may also be small and whole on every device: up to this order it is left to XLA, which
# gathers it.
AUTO_FROM = 512


def route(a: Any) -> Placement | None:
    """How the last two axes of ``a`` are split; None if they are not, and it is an ordinary array."""
    sharding, known = named_sharding(a)
    if sharding is None or a.ndim < 2:
        return None
    mesh = sharding.mesh
    if known:
        grid = grid_of(sharding.spec, mesh, a.ndim)
        return None if grid.size == 1 else Placement(mesh, grid)
    if a.ndim > 2 or max(a.shape) < AUTO_FROM:
        return None
    return _by_rows(mesh, a.shape)


def grid_of(spec: Any, mesh: Any, ndim: int = 2) -> Grid:
    """The axes that split rows and columns. Axes of one device are kept, as Explicit axes are part of the type."""
    entries = (tuple(spec) + (None,) * ndim)[:ndim][-2:]
    if ndim == 1:
        entries = (*entries, None)
    rows, columns = (_axes(entry, mesh) for entry in entries)
    return Grid(rows, columns)


def _axes(entry: Any, mesh: Any) -> tuple[tuple[str, int], ...]:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    names = entry if isinstance(entry, tuple) else (entry,)
    return tuple((name, mesh.shape[name]) for name in names)


def _by_rows(mesh: Any, shape: tuple[int, ...]) -> Placement | None:
    """Rows over all axes of the mesh, or over as many axes as divide the rows."""
    axes = tuple((name, size) for name, size in mesh.shape.items() if size > 1)
    while axes and shape[0] % prod(size for _, size in axes):
        axes = axes[:-1]
    return Placement(mesh, Grid(axes, ()), certain=False) if axes else None


def placed_like(b: Any, placement: Placement) -> tuple[Any, Grid | None]:
    """The right-hand side on the devices of the matrix, and its grid there (None: whole on each of them)."""
    sharding, known = named_sharding(b)
    if sharding is not None and known:
        kept = _on(sharding.mesh, placement.mesh)
        if kept is not None:
            grid = grid_of(sharding.spec, placement.mesh, b.ndim)
            return (b if kept else jax.device_put(b, NamedSharding(placement.mesh, sharding.spec))), (
                grid if grid.rows or grid.columns else None
            )
    if not isinstance(placement.mesh, Mesh):
        return jnp.asarray(b), None
    if traced(b) and known and isinstance(sharding.mesh, Mesh):  # eager derivatives
        return jax.device_put(b, NamedSharding(placement.mesh, PartitionSpec())), None
    return (b if traced(b) else put(b, placement.mesh, PartitionSpec())), None


def placed_back(x: Any, b: Any, placement: Placement) -> Any:
    """The solution, moved back if its right-hand side was on another mesh."""
    sharding = None if traced(b) or traced(x) else getattr(b, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1 or _on(sharding.mesh, placement.mesh):
        return x
    return put(x, sharding.mesh, sharding.spec)


def _on(mesh: Any, other: Any) -> bool | None:
    """True: the same mesh. False: only the kinds of the axes differ. None: another mesh."""
    if mesh == other:
        return True
    if dict(mesh.shape) != dict(other.shape):
        return None
    if not (isinstance(mesh, Mesh) and isinstance(other, Mesh)):
        return True  # in traced code a mesh has no devices
    alike = mesh.axis_names == other.axis_names and np.array_equal(mesh.device_ids, other.device_ids)
    return False if alike else None


def placed_now(placement: Placement, x: Any) -> Placement:
    """The placement on the mesh of the array ``x``, if that is known."""
    sharding = None if traced(x) else getattr(x, "sharding", None)
    return replace(placement, mesh=sharding.mesh) if isinstance(sharding, NamedSharding) else placement


def put(x: Any, mesh: Any, spec: Any) -> Any:
    """An array of this process, the same on all processes, onto the mesh."""
    sharding = NamedSharding(mesh, spec)
    if getattr(x, "sharding", None) == sharding:
        return x
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if not getattr(x, "is_fully_addressable", True):
        return jax.jit(lambda x: x, out_shardings=sharding)(x)
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def on_one_device(a: Any) -> Any:
    """The whole matrix on one device of this process."""
    if a.is_fully_addressable:
        # a bare device would leave the mesh of Explicit axes in the type
        return jax.device_put(a, SingleDeviceSharding(a.addressable_shards[0].device))
    everywhere = NamedSharding(a.sharding.mesh, PartitionSpec())
    return jax.jit(lambda x: x, out_shardings=everywhere)(a).addressable_data(0)


def put_back(x: Any, like: Any) -> Any:
    """Place a matrix of one device as ``like``; split only by rows if its columns cannot be split that way."""
    mesh, spec = like.sharding.mesh, like.sharding.spec
    grid = grid_of(spec, mesh)
    rows, columns = (*spec, None, None)[:2]
    kept = PartitionSpec(rows if x.shape[0] % grid.p == 0 else None, columns if x.shape[1] % grid.q == 0 else None)
    return put(x, mesh, kept)


def put_everywhere(x: Any, like: Any) -> Any:
    return put(x, like.sharding.mesh, PartitionSpec())


def mesh_of(whole: Any) -> Any:
    """A mesh of the one device of this array."""
    return Mesh(np.array([whole.addressable_shards[0].device]), ("one",))


def on_the_device(x: Any, whole: Any) -> Any:
    """An array, split or not, on the device of ``whole``; anything that is neither JAX's nor NumPy's unchanged."""
    if not isinstance(x, (jax.Array, np.ndarray)):
        return x
    x = on_one_device(x) if not getattr(x, "is_fully_addressable", True) else x
    return jax.device_put(x, SingleDeviceSharding(whole.addressable_shards[0].device))


def replicated(x: Any, a: Any) -> Any:
    """An array in traced code, whole on every device of ``a``."""
    sharding, known = named_sharding(a)
    if sharding is None or not isinstance(x, jax.Array):
        return x
    where = NamedSharding(sharding.mesh, PartitionSpec(*(None,) * x.ndim))
    if isinstance(sharding.mesh, Mesh):  # eager derivatives
        return jax.device_put(x, where)
    return _reshard(x, where) if known else jax.lax.with_sharding_constraint(x, where)


def resharded(x: Any, mesh: Any, spec: Any) -> Any:
    """An array in traced code, with this spec in its type if the axes of the mesh are Explicit."""
    kinds = {str(kind).rpartition(".")[2] for kind in getattr(mesh, "axis_types", None) or ()}
    return _reshard(x, NamedSharding(mesh, spec)) if kinds == {"Explicit"} else x


def _reshard(x: Any, where: NamedSharding) -> Any:
    reshard = getattr(jax, "reshard", None) or jax.sharding.reshard
    return reshard(x, where)


def status(info: Any) -> int:
    """The number, the same on every process; waits for the devices."""
    return int(np.asarray(info.addressable_data(0) if hasattr(info, "addressable_data") else info))


def all_finite(a: Any, upper: bool | None) -> bool:
    """Whether the triangle that was read (None: the matrix) is free of NaN and Inf."""
    return bool(status(_all_finite(a, upper)))


@partial(jax.jit, static_argnums=1)
def _all_finite(x: Any, upper: bool | None) -> Any:
    return jnp.all(jnp.isfinite(x if upper is None else jnp.triu(x) if upper else jnp.tril(x)))
