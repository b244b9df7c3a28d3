"""JAX arrays over processes that have one device each: the block of this process, and arrays of blocks.

Ranks are counted along the rows of the grid of blocks, whatever the order of the devices in the mesh.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..backends.cusolvermp.memory import Blocks as JaxBlocks
from ..backends.xla.sharding import grid_of, on_one_device, put, put_back, traced
from ..layout import Axis, Layout
from ..ranks import launched as mpi_place
from ..ranks.protocol import JaxRanks

__all__ = [
    "JaxBlocks",
    "as_result",
    "blocks_of",
    "mpi_of",
    "mpi_seen",
    "on_gpu",
    "own_part",
    "replicated_like",
    "spread",
    "traced",
    "whole_of",
]


def blocks_of(a: Any) -> JaxBlocks | None:
    """The block of this process, where a matrix is cut into one block for each process; else None."""
    sharding = getattr(a, "sharding", None)
    if traced(a) or not isinstance(sharding, NamedSharding) or sharding.is_fully_addressable or a.ndim != 2 or 0 in a.shape:
        return None
    processes = _processes(sharding, a.shape)
    if processes is None:
        return None
    grid = grid_of(sharding.spec, sharding.mesh)
    layout = Layout(Axis.even(a.shape[0], grid.p), Axis.even(a.shape[1], grid.q))
    return JaxBlocks(a.addressable_data(0), layout, _ranks(processes))


def _processes(sharding: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The process of each block, along the rows of the grid."""
    grid = grid_of(sharding.spec, sharding.mesh)
    owners: dict[int, int] = {}
    for device, (rows, columns) in sharding.devices_indices_map(tuple(shape)).items():
        i, j = ((s.start or 0) * parts // n for s, parts, n in ((rows, grid.p, shape[0]), (columns, grid.q, shape[1])))
        owners[i * grid.q + j] = device.process_index
    whole = len(owners) == grid.size == sharding.num_devices == len(set(owners.values()))
    return tuple(owners[i] for i in range(grid.size)) if whole else None


@cache
def _ranks(processes: tuple[int, ...]) -> JaxRanks:
    from jax._src.distributed import global_state

    name = "lapwing/blocks/" + ".".join(map(str, processes))
    return JaxRanks(global_state.client, jax.process_index(), processes, name)


@cache
def mpi_of(ranks: JaxRanks, usable: bool) -> Any:
    """The mpi4py communicator of the same ranks in the same order; None where MPI did not start them, or where one of them
    says with ``usable`` that it cannot use it. Collective at its first use."""
    own_place = None
    if usable:
        try:
            from mpi4py import MPI

            own_place = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        except ImportError:
            pass
    places = ranks.allgather(own_place, "MPI")
    if None in places or len({size for _, size in places}) != 1 or len({rank for rank, _ in places}) != ranks.size:
        return None
    from mpi4py import MPI

    if [rank for rank, _ in places] == list(range(places[0][1])):
        return MPI.COMM_WORLD
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group().Incl([rank for rank, _ in places]))


def mpi_seen(ranks: JaxRanks, usable: bool) -> Any:
    """A place where :func:`mpi_of` would most likely find a communicator, by what this process sees alone; else None."""
    place = mpi_place.own() if usable else None
    return place if place is not None and (place.size is None or place.size >= ranks.size) else None


def on_gpu(block: JaxBlocks) -> bool:
    (device,) = block.local.devices()
    return bool(device.platform in ("gpu", "cuda"))


def own_part(b: Any, a: JaxBlocks, shape: tuple[int, int]) -> JaxBlocks:
    """This process's part of a right-hand side that every process has: the rows of its block of A, and some columns."""
    layout = Layout(a.layout.rows, Axis.even(shape[1], a.layout.grid[1]))
    rows, columns = layout.indices(a.ranks.rank)
    (device,) = a.local.devices()
    return JaxBlocks(jax.device_put(np.ascontiguousarray(b.reshape(shape)[np.ix_(rows, columns)]), device), layout, a.ranks)


def whole_of(b: Any) -> np.ndarray:
    """A right-hand side on this host."""
    return np.asarray(b if getattr(b, "is_fully_addressable", True) else on_one_device(b))


def spread(x: JaxBlocks) -> np.ndarray:
    """All blocks on every process."""
    out = np.empty(x.layout.shape, x.local.dtype)
    for rank, block in enumerate(x.ranks.allgather(np.asarray(x.local))):
        out[np.ix_(*x.layout.indices(rank))] = block
    return out


def as_result(x: JaxBlocks, like: Any) -> Any:
    """An array placed as ``like`` is; where its shape cannot be cut evenly that way, whole along that axis."""
    mesh, spec = like.sharding.mesh, like.sharding.spec
    (m, n), (p, q) = x.layout.shape, _sizes(like)
    even = x.layout.grid == (p, q) and m % p == 0 and n % q == 0 and m and n
    if not even:
        return put_back(spread(x), like)
    (device,) = like.addressable_data(0).devices()
    local = jax.device_put(jnp.asarray(x.local), device)
    return jax.make_array_from_single_device_arrays((m, n), NamedSharding(mesh, spec), [local])


def replicated_like(x: Any, b: Any, a: Any) -> Any:
    """A solution that every process has, placed as ``b`` is, or on all devices of ``a``."""
    if getattr(b, "is_fully_addressable", True) or not isinstance(getattr(b, "sharding", None), NamedSharding):
        return put(x, a.sharding.mesh, PartitionSpec())
    if x.ndim == 2:
        return put_back(x, b)
    even = x.shape[0] % grid_of(b.sharding.spec, b.sharding.mesh, 1).p == 0
    return put(x, b.sharding.mesh, b.sharding.spec if even else PartitionSpec())


def _sizes(like: Any) -> tuple[int, int]:
    grid = grid_of(like.sharding.spec, like.sharding.mesh)
    return grid.p, grid.q
