"""How mesh and specs place a matrix, in JAXMg's terms; its statuses."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from .jaxmg_layout import calculate_all_valid_T_A, get_mesh_and_spec_from_array

_FAILED = 7  # cuSOLVER's "internal error", which JAXMg gives for a matrix that is not positive definite
_DTYPES = ("float32", "float64", "complex64", "complex128")


class Place:
    """How mesh and specs place the matrix, checked."""

    def __init__(
        self, name: str, a: Any, tile: Any, mesh: Any, specs: Any, in_specs: Any, pad: bool, square: bool = True
    ) -> None:
        if specs is not None and in_specs is not None:
            raise ValueError(f"{name}: give matrix_specs or in_specs, not both")
        specs = in_specs if specs is None else specs
        if specs is None or mesh is None:
            found_mesh, found = get_mesh_and_spec_from_array(a)
            mesh, specs = mesh if mesh is not None else found_mesh, specs if specs is not None else found
        pair = isinstance(specs, (tuple, list)) and not isinstance(specs, PartitionSpec)
        if pair and not 1 <= len(specs) <= 2:
            raise ValueError(f"{name}: in_specs must be one PartitionSpec or two, got {len(specs)}")
        for spec in specs if pair else (specs,):
            if not isinstance(spec, PartitionSpec):
                raise TypeError(f"{name}: in_specs must be PartitionSpecs, got {type(spec).__name__}")
        self.mesh, self.spec = mesh, specs[0] if pair else specs
        self.b_spec = specs[1] if pair and len(specs) == 2 else PartitionSpec()
        if a.ndim != 2 or (square and a.shape[0] != a.shape[1]):
            raise ValueError(f"{name}: A must be a square matrix, got shape {tuple(a.shape)}")
        if str(a.dtype) not in _DTYPES:
            raise TypeError(f"{name}: dtype {a.dtype} is not one of {', '.join(_DTYPES)}")
        if isinstance(tile, bool) or not isinstance(tile, (int, np.integer)) or tile < 1:
            raise ValueError(f"{name}: T_A must be positive, got {tile!r}")
        entries = [entry for entry in self.spec if entry is not None]
        self.names: tuple[str, ...] = sum((entry if isinstance(entry, tuple) else (entry,) for entry in entries), ())
        if not self.names:
            raise ValueError(f"{name}: {self.spec} splits no axis of A\nhint: P('x', None) or P(None, 'x')")
        unknown = [axis for axis in self.names if axis not in mesh.shape]
        if unknown:
            raise ValueError(f"{name}: {self.spec} names the axis {unknown[0]!r}, the mesh has {tuple(mesh.shape)}")
        devices = prod(mesh.shape[axis] for axis in self.names)
        for i, entry in enumerate(self.spec):
            parts = prod(mesh.shape[each] for each in (entry if isinstance(entry, tuple) else (entry,)) if each is not None)
            if a.shape[i] % parts:
                raise ValueError(f"{name}: axis {i} of A, of shape {tuple(a.shape)}, is not divisible by {parts} devices")
        if not pad and a.shape[0] % (devices * tile):
            raise ValueError(
                f"{name}: N={a.shape[0]} is not divisible by {devices} devices times T_A={tile}"
                f"\nhint: pad=True, or T_A from {calculate_all_valid_T_A(a.shape[0], devices)}"
            )

    def alone(self, a: Any, *others: Any) -> bool:
        """All of the matrix is on the one device of the mesh, and nothing is traced."""
        if not isinstance(self.mesh, Mesh) or self.mesh.size != 1 or not isinstance(a, jax.Array):
            return False
        made = jnp.zeros(())  # inside of a jit this is traced too
        if any(isinstance(x, jax.core.Tracer) for x in (a, *others, made)):
            return False
        return a.is_fully_addressable and a.sharding.device_set == set(self.mesh.devices.flat)


def alone_on(x: Any, like: Any) -> Any:
    """The whole array on one device of ``like``."""
    # a bare device would leave the mesh of Explicit axes in the type
    return jax.device_put(x, SingleDeviceSharding(like.addressable_shards[0].device))


def on_one_device(function: Any, a: Any, *others: Any) -> Any:
    """``function`` of whole arrays on one device of ``a``, whatever mesh is set."""
    if not isinstance(a, jax.Array):
        return function(*(jnp.asarray(x) for x in (a, *others)))
    given = [alone_on(x, a) for x in (a, *others)]
    # a mesh that is set would be taken for that of these arrays
    now = jax.sharding.get_abstract_mesh() if hasattr(jax, "set_mesh") else None
    if now is None or now.empty:
        return function(*given)
    with jax.set_mesh(Mesh(np.array([a.addressable_shards[0].device]), ("one",))):
        return function(*given)


def discard(donate: bool, *given: Any) -> None:
    """Delete donated arrays: their memory is free as soon as the devices have read it."""
    for x in given if donate else ():
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and not x.is_deleted():
            x.delete()


def put(mesh: Any, x: Any, spec: Any) -> Any:
    return jax.device_put(x, NamedSharding(mesh, spec))


def check_right(name: str, a: Any, b: Any, rows: int | None = None) -> None:
    if b.ndim not in (1, 2) or b.shape[0] != (rows or a.shape[0]):
        raise ValueError(f"{name}: b must have {a.shape[0]} rows, got shape {tuple(b.shape)}")
    if a.dtype != b.dtype:
        raise TypeError(f"{name}: A and b must have the same dtype, got {a.dtype} and {b.dtype}")


def status(info: Any) -> Any:
    return jnp.where(info == 0, 0, _FAILED).astype(jnp.int32)


def manual_axes(a: Any) -> tuple[str, ...]:
    """The axes of the shard_map around us that split the matrix whose block this is."""
    mesh = mesh_around(a)
    if mesh is None:
        raise ValueError("this function belongs inside jax.shard_map\nhint: potrs, potri and syevd take whole sharded arrays")
    wanted = max(a.shape) // max(1, min(a.shape))
    names: tuple[str, ...] = tuple(mesh.axis_names)
    for kept in (names, *((name,) for name in names)):
        if prod(mesh.shape[name] for name in kept) == wanted:
            return kept
    return names


def inside(a: Any) -> bool:
    return mesh_around(a) is not None


def mesh_around(a: Any) -> Any:
    # before JAX 0.6 a type does not tell
    mesh = getattr(getattr(jax.typeof(a), "sharding", None), "mesh", None) if hasattr(jax, "typeof") else None
    kinds = [str(kind) for kind in getattr(mesh, "axis_types", None) or ()]
    return mesh if any("Manual" in kind for kind in kinds) else None
