"""JAX arrays over several devices as a kind of array.

Most calls stay inside XLA. Calls for which XLA has no good routine go to a library: over processes with one device each to
ScaLAPACK, or on GPUs to cuSOLVERMp; over several GPUs of one process to cuSOLVERMg. In traced code all stay inside XLA, as no
other library can be called on several devices there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ...core.problem import Spec
from ...core.request import MATRIX, RIGHT, Place, Request
from ...frameworks import jax as framework
from ...frameworks.jax import traced
from ..backends.choice import choose, explained
from ..backends.protocol import Array, Part, check_right, columns_of, promote
from ..backends.scalapack import library as scalapack_library
from ..backends.scalapack.backend import inside_xla
from ..backends.xla import sharding
from ..backends.xla.backend import Spread
from ..backends.xla.cost import BLOCKED, DENSE
from ..backends.xla.sharding import grid_of, on_one_device, put, put_back
from ..devices import DeviceMatrix
from ..layout import Axis, Layout
from ..placement import Placement
from ..ranks import launched
from ..ranks.jax import JaxRanks
from ..ranks.protocol import Alone, open_communicator
from . import devices, front


def front_of(a: Any, operation: str) -> JaxFront | None:
    """The front of a split matrix; None for an ordinary array.

    A matrix inside jit with Auto axes may be split or whole: then only calls that XLA has in blocks go to the front.
    """
    where = sharding.route(a)
    if where is None or (0 in a.shape and framework.traced(a)):
        return None
    return JaxFront(where) if where.certain or operation.removesuffix("_ex") in (*BLOCKED, *DENSE) else None


class JaxFront:
    sharded: Literal[True] = True

    def __init__(self, where: Placement) -> None:
        self._where = where

    def describe(self, a: Any, /) -> Spec:
        return replace(framework.describe(a), sharding=self._where)

    def call(self, function: Callable[..., Any], a: Any, b: Any = None, /, **options: Any) -> Any:
        if b is not None and not isinstance(b, (jax.Array, np.ndarray)):
            raise TypeError(
                f"{function.__name__}: b must be an array of JAX or NumPy, got {type(b).__name__}\nhint: jax.numpy.asarray(b)"
            )
        if b is not None:
            a, b = promote(a, b, _cast)
        if 0 in a.shape:  # an empty matrix is not split
            whole = on_one_device(a)
            sides = () if b is None else (sharding.on_the_device(b, whole),)
            return front.requested(function, self.describe(a), b, options).ordinary(whole, *sides)
        request, array, block, mpi = self._asked(function, a, b, options, launched.communicator)
        backend = choose(request, array)
        if backend.sees == "devices":
            placing = _OnDevices(a)
            return devices.run(replace(request, overwrite=False), backend, placing, placing.blocks(a), b)
        if backend.sees == "parts":
            return self._on_blocks(request, backend, a, b, block, mpi)
        spread = Spread(a, self._where)
        backend.prepare(request, spread)
        front.log_precision(request, backend)
        results = backend.run(request, spread, b, [])
        if request.operation == "factor" and request.mixed and not backend.refines:
            results[0].report.update(precision="mixed", fallback=True)
        return request.returned(results)

    def explain(self, function: Callable[..., Any], a: Any, b: Any, ordinary: Callable[..., Any], /, **options: Any) -> Any:
        if 0 in a.shape:  # as in call
            return ordinary(on_one_device(a), *(() if b is None else (b,)))
        # only the shape of b matters
        sides = b if b is None else Spec(tuple(b.shape), str(a.dtype))
        request, array, _, _ = self._asked(function, a, sides, options, mpi_seen)
        return explained(request, array)

    def _asked(self, function: Callable[..., Any], a: Any, b: Any, options: dict[str, Any], mpi_of: Any) -> Any:
        """The request, the array for the choice of a backend, this process's block, and MPI's communicator (it may be None).

        ``mpi_of(ranks, usable)`` finds the communicator, with or without asking the other processes.
        """
        name, described, where = function.__name__, self.describe(a), self._where
        request = front.requested(function, described, b, options)
        if len(described.shape) > 2:
            raise ValueError(
                f"{name}: the matrices of a batch of shape {described.shape} are split over devices"
                "\nhint: split the batch instead, or call once for each matrix"
            )
        if RIGHT in request.places:
            check_right(name, a, b)
        block = None if framework.traced(b) else blocks_of(a)
        gpu = block is not None and on_gpu(block)
        array = Array(
            "jax",
            (described.shape[0], described.shape[1]),
            described.dtype,
            "cuda" if gpu else described.device,
            where.grid.size,
            None if block is None else block.layout,
            "jax",
            mpi=False,
            blocks=block is not None,
            placement=where,
            columns=columns_of(b),
            traced=framework.traced(a) or framework.traced(b),
            one_process=not framework.traced(b) and on_gpus_of_this_process(a),
        )
        outside = request.engine != "auto" or not (request.b or inside_xla(request, array))
        mpi = None
        if block is not None and not gpu and outside and request.engine not in ("xla", "sharded"):
            mpi = mpi_of(block.ranks, launched.under_mpi() and not scalapack_library.missing())
        return request, replace(array, mpi=mpi is not None), block, mpi

    def _on_blocks(self, request: Request, backend: Any, a: Any, b: Any, block: Any, mpi: Any) -> Any:
        placing = _Placing(a, block, mpi)
        part = placing.part(block)
        # the arrays of JAX are never written to
        request = replace(request, overwrite=False)
        facts = {"shape": tuple(a.shape), "dtype": str(a.dtype), "layout": block.layout}
        facts |= {"shape of b": None if b is None else tuple(b.shape)}
        request, backend, part, from_ranks = front.agreed(part.ranks, request.name, facts, lambda: (request, backend, part))
        return front.run(request, backend, placing, part, b, from_ranks)


class _Placing:
    """Results are placed like the matrix or the right-hand side; an axis that cannot be cut evenly stays whole."""

    def __init__(self, a: Any, block: Any, mpi: Any) -> None:
        self._a, self._block, self._gpu = a, block, on_gpu(block)
        self.ranks = block.ranks if mpi is None else open_communicator(mpi)

    def part(self, block: Any) -> Part:
        cut = partial(_even, block.layout)
        if self._gpu:
            return replace(block, cut=cut)  # type: ignore[no-any-return]
        return Part(np.asarray(block.local), block.layout, self.ranks, None, cut)

    def right(self, name: str, b: Any) -> Any:
        _, b = promote(self._a, b, _cast, fixed=True)
        check_right(name, self._a, b)
        sides = self._sides(b)
        if sides is not None:
            return self.part(sides)
        whole = whole_of(b)
        if not self._gpu:
            return whole
        return self.part(own_part(whole, self._block, (b.shape[0], 1 if len(b.shape) == 1 else b.shape[1])))

    def leave(self, x: Any, place: Place, b: Any) -> Any:
        if isinstance(x, Part):
            block = Part(x.local, x.layout, self._block.ranks)
            if place is MATRIX or self._sides(b) is not None:
                return as_result(block, self._a if place is MATRIX else b)
            x = spread(block)
            x = x[:, 0] if len(b.shape) == 1 else x
        if place is RIGHT:
            return replicated_like(x, b, self._a)
        return x if x is None else sharding.put_everywhere(np.asarray(x), self._a)

    def _sides(self, b: Any) -> Any:
        """The block of b, if its blocks are on the same ranks as those of A."""
        block = blocks_of(b)
        same = block is not None and block.ranks is self._block.ranks and block.layout.grid == self._block.layout.grid
        return block if same else None


class _OnDevices:
    """One block on each of several GPUs of this process. Results are placed as :class:`_Placing` does."""

    ranks = Alone()

    def __init__(self, a: Any) -> None:
        self._like = jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
        self._devices = [shard.device for shard in _in_order(a)]
        self.where = f"{len(self._devices)} GPUs of one process"

    @staticmethod
    def blocks(a: Any) -> DeviceMatrix:
        grid = grid_of(a.sharding.spec, a.sharding.mesh)
        return DeviceMatrix([shard.data for shard in _in_order(a)], Layout.blocks(a.shape, (grid.p, grid.q)))

    def right(self, name: str, b: Any) -> DeviceMatrix:
        """A right-hand side in blocks on the GPUs of A is unchanged; any other goes to the first GPU."""
        _, b = promote(self._like, b, _cast, fixed=True)
        check_right(name, self._like, b)
        if self._divided(b):
            return self.blocks(b)
        sides = jax.device_put(b, SingleDeviceSharding(self._devices[0])).reshape(len(b), -1)
        return DeviceMatrix([sides], Layout(Axis.whole(sides.shape[0]), Axis.whole(sides.shape[1])))

    def leave(self, x: Any, place: Place, b: Any) -> Any:
        if not isinstance(x, DeviceMatrix):
            return x if x is None else sharding.put_everywhere(np.asarray(x), self._like)
        if place is MATRIX or self._divided(b):
            return self._placed(x, self._like if place is MATRIX else b)
        solution = x.blocks[0].reshape(tuple(b.shape))
        where = getattr(b, "sharding", None)
        if isinstance(where, NamedSharding):
            return jax.device_put(solution, where)
        return put(solution, self._like.sharding.mesh, PartitionSpec())

    def _divided(self, b: Any) -> bool:
        return on_gpus_of_this_process(b) and [shard.device for shard in _in_order(b)] == self._devices

    @staticmethod
    def _placed(x: DeviceMatrix, like: Any) -> Any:
        """Placed like ``like``; an axis that cannot be divided evenly stays whole."""
        if len({block.shape for block in x.blocks}) > 1 or 0 in x.shape:
            return put_back(x.gather(), like)
        where = NamedSharding(like.sharding.mesh, like.sharding.spec)
        return jax.make_array_from_single_device_arrays(x.shape, where, list(x.blocks))


def on_gpus_of_this_process(a: Any) -> bool:
    """Whether a matrix has one block on each of several GPUs of this process, and is not traced."""
    where = getattr(a, "sharding", None)
    if traced(a) or not isinstance(where, NamedSharding) or a.ndim != 2 or not where.is_fully_addressable:
        return False
    return on_gpus(where) and grid_of(where.spec, where.mesh).size == where.num_devices > 1


def on_gpus(where: Any) -> bool:
    return all(device.platform in ("gpu", "cuda") for device in where.device_set)


def _in_order(a: Any) -> list[Any]:
    """The shards, row by row of the grid of blocks."""
    return sorted(a.addressable_shards, key=lambda shard: tuple(each.start or 0 for each in shard.index))


def _cast(x: Any, dtype: str) -> Any:
    """The array in another dtype; unchanged if JAX does not have that dtype now (jax_enable_x64)."""
    return x.astype(dtype) if jax.dtypes.canonicalize_dtype(dtype) == dtype else x


def _even(like: Layout, shape: tuple[int, int]) -> Layout:
    return Layout.blocks(shape, like.grid)


def blocks_of(a: Any) -> Part | None:
    """The block of this process, if the matrix is cut into one block for each process; else None."""
    sharding = getattr(a, "sharding", None)
    if traced(a) or not isinstance(sharding, NamedSharding) or sharding.is_fully_addressable or a.ndim != 2 or 0 in a.shape:
        return None
    processes = _processes(sharding, a.shape)
    if processes is None:
        return None
    grid = grid_of(sharding.spec, sharding.mesh)
    layout = Layout.blocks(a.shape, (grid.p, grid.q))
    return Part(a.addressable_data(0), layout, _ranks(processes))


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


def mpi_seen(ranks: JaxRanks, usable: bool) -> Any:
    """A place if :func:`.launched.communicator` would most likely find a communicator, as far as this process can tell
    alone."""
    place = launched.launched_place() if usable else None
    return place if place is not None and (place.size is None or place.size >= ranks.size) else None


def on_gpu(block: Part) -> bool:
    (device,) = block.local.devices()
    return bool(device.platform in ("gpu", "cuda"))


def own_part(b: Any, a: Part, shape: tuple[int, int]) -> Part:
    """This process's part of a right-hand side that every process has: its rows of A, and some columns."""
    layout = Layout(a.layout.rows, Axis.even(shape[1], a.layout.grid[1]))
    rows, columns = layout.indices(a.ranks.rank)
    (device,) = a.local.devices()
    return Part(jax.device_put(np.ascontiguousarray(b.reshape(shape)[np.ix_(rows, columns)]), device), layout, a.ranks)


def whole_of(b: Any) -> np.ndarray:
    """A right-hand side on this host."""
    return np.asarray(b if getattr(b, "is_fully_addressable", True) else on_one_device(b))


def spread(x: Part) -> np.ndarray:
    """All blocks on every process."""
    out = np.empty(x.layout.shape, x.local.dtype)
    for rank, block in enumerate(x.ranks.allgather(np.asarray(x.local))):
        out[np.ix_(*x.layout.indices(rank))] = block
    return out


def as_result(x: Part, like: Any) -> Any:
    """An array placed like ``like``; an axis that cannot be cut evenly stays whole."""
    mesh, spec = like.sharding.mesh, like.sharding.spec
    (m, n), grid = x.layout.shape, grid_of(spec, mesh)
    even = x.layout.grid == (grid.p, grid.q) and m % grid.p == 0 and n % grid.q == 0 and m and n
    if not even:
        return put_back(spread(x), like)
    (device,) = like.addressable_data(0).devices()
    local = jax.device_put(jnp.asarray(x.local), device)
    return jax.make_array_from_single_device_arrays((m, n), NamedSharding(mesh, spec), [local])


def replicated_like(x: Any, b: Any, a: Any) -> Any:
    """A solution that every process has, placed like ``b``, or on all devices of ``a``."""
    if getattr(b, "is_fully_addressable", True) or not isinstance(getattr(b, "sharding", None), NamedSharding):
        return put(x, a.sharding.mesh, PartitionSpec())
    if x.ndim == 2:
        return put_back(x, b)
    even = x.shape[0] % grid_of(b.sharding.spec, b.sharding.mesh, 1).p == 0
    return put(x, b.sharding.mesh, b.sharding.spec if even else PartitionSpec())
