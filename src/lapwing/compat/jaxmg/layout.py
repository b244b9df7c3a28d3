"""How mesh and specs place a matrix, in JAXMg's terms; JAXMg's helpers for the block-cyclic layout, and its utilities."""

from __future__ import annotations

import ctypes
import hashlib
import socket
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...core import libraries
from ...core.errors import warn
from ...core.problem import DTYPES
from ...distributed import shard
from ...distributed.backends.protocol import check_columns
from ...distributed.backends.xla import factored, sharding
from ...distributed.backends.xla.calls import compiled as wholes
from ...distributed.backends.xla.calls import cut_for
from ...distributed.backends.xla.layout import in_mesh, shard_map

_FAILED = 7  # cuSOLVER's "internal error", which JAXMg gives for a matrix that is not positive definite


class JaxMgWarning(UserWarning):
    """A difference from JAXMg that a program written for it should know."""


class LayoutError(ValueError, AssertionError):
    """A wrong shape or spec; which of the two classes JAXMg raises depends on generation and function."""


class Place:
    """How mesh and specs place the matrix, after checks. ``sides``: there is a right-hand side, which may have a spec too."""

    def __init__(
        self, name: str, a: Any, tile: Any, mesh: Any, specs: Any, in_specs: Any, pad: bool, square: bool = True,
        sides: bool = False,
    ) -> None:  # fmt: skip
        if specs is not None and in_specs is not None:
            raise ValueError(f"{name}: give matrix_specs or in_specs, not both")
        if sides and in_specs is not None and _sequence(in_specs) and len(in_specs) != 2:
            raise LayoutError(
                f"{name}: expected two `in_specs`, received {len(in_specs)}\nhint: in_specs=(spec of A, spec of b)"
            )
        specs = in_specs if specs is None else specs
        check_matrix(name, "a", a)
        if specs is None or mesh is None:
            own_mesh, own_spec = get_mesh_and_spec_from_array(a)
            mesh, specs = own_mesh if mesh is None else mesh, own_spec if specs is None else specs
        pair = _sequence(specs)
        most = 2 if sides else 1
        if pair and not 1 <= len(specs) <= most:
            raise LayoutError(
                f"{name}: in_specs must be a single PartitionSpec or a {most}-element list/tuple, got {len(specs)} elements"
            )
        for spec in specs if pair else (specs,):
            if not isinstance(spec, PartitionSpec):
                raise TypeError(
                    f"{name}: in_specs must be a PartitionSpec or a {most}-element list/tuple containing one, got"
                    f" {type(spec).__name__}"
                )
        self.mesh, self.spec = mesh, specs[0] if pair else specs
        self.b_spec = specs[1] if pair and len(specs) == 2 else PartitionSpec()
        check_tile(name, tile)
        _warn_if_single(a)
        if len(self.spec) > 2:
            raise LayoutError(
                f"{name}: {self.spec} has {len(self.spec)} entries, but A has 2 axes\nhint: P('x', None) or P(None, 'x')"
            )
        entries = [entry for entry in self.spec if entry is not None]
        self.names: tuple[str, ...] = sum((entry if isinstance(entry, tuple) else (entry,) for entry in entries), ())
        if not self.names:
            raise ValueError(f"{name}: {self.spec} splits no axis of A\nhint: P('x', None) or P(None, 'x')")
        unknown = [axis for axis in self.names if axis not in mesh.shape]
        if unknown:
            raise ValueError(
                f"{name}: {self.spec} names the axis {unknown[0]!r}, but the axes of the mesh are {tuple(mesh.shape)}"
            )
        devices = prod(mesh.shape[axis] for axis in self.names)
        for i, entry in enumerate(self.spec):
            parts = prod(mesh.shape[each] for each in (entry if isinstance(entry, tuple) else (entry,)) if each is not None)
            if a.shape[i] % parts:
                raise LayoutError(f"{name}: axis {i} of A, of shape {tuple(a.shape)}, is not divisible by {parts} devices")
        # the first generation, whose columns are split, reads the triangle below the diagonal, the second the one above
        self.rows = next(iter(self.spec)) is not None
        self.upper = self.rows
        self.devices = devices
        self.padding = self._padding(name, a, int(tile), pad) if square else 0
        shard = max(1, (a.shape[0] if self.rows else a.shape[1]) // devices - self.padding)
        # a tile that is larger than a shard is the shard
        self.tile = min(int(tile), shard)

    def _padding(self, name: str, a: Any, tile: int, pad: bool) -> int:
        """How many rows of zeros the caller added on each device; they are removed."""
        rows, columns = a.shape
        if not pad and self.rows and rows > columns and (rows - columns) % self.devices == 0:
            return int((rows - columns) // self.devices)
        if rows != columns:
            raise LayoutError(f"{name}: A must be a square matrix, got shape {tuple(a.shape)}")
        shard = rows // self.devices
        if not pad and tile < shard and shard % tile:
            raise LayoutError(
                f"{name}: pad=False, but T_A={tile} does not divide the {shard} rows or columns of a device"
                f"\nhint: pad=True, or T_A from {[each for each in range(1, shard + 1) if shard % each == 0]}"
            )
        return 0

    def put(self, x: Any, spec: Any) -> Any:
        """The array, moved to where mesh and spec place it."""
        if isinstance(x, jax.core.Tracer) or not isinstance(self.mesh, Mesh):
            return sharding.resharded(x, self.mesh, spec)
        where: Any = getattr(x, "sharding", None)
        if isinstance(where, NamedSharding) and where.mesh == self.mesh:
            present, wanted = ((*each, *(None,) * x.ndim)[: x.ndim] for each in (where.spec, spec))
            if present == wanted:  # axes of one device count too: with Explicit axes they are part of the type
                return x
        return sharding.put(x, self.mesh, spec)

    def matrix(self, a: Any) -> Any:
        """The matrix, moved to where mesh and spec place it, without the rows that the caller added on each device."""
        a = self.put(a, self.spec)
        if not self.padding:
            return a
        return compiled(unpad_rows, self.mesh, (self.spec,), self.spec, padding=self.padding)(a)

    def planned(self, *arrays: Any) -> bool:
        """Whether lapwing's planner chooses the engine, as for its own functions: if nothing is traced."""
        new = jnp.zeros(())  # inside of a jit this is traced too
        return isinstance(self.mesh, Mesh) and not any(isinstance(x, jax.core.Tracer) for x in (*arrays, new))


@lru_cache(maxsize=256)
def compiled(function: Any, mesh: Any, in_specs: Any, out_specs: Any, donated: tuple[int, ...] = (), **fixed: Any) -> Any:
    """``function`` on blocks, with its keywords; cached by layout, as a new function would be compiled at every call."""
    return jax.jit(shard_map(partial(function, **fixed), mesh, in_specs, out_specs), donate_argnums=donated)


def placed(place: Place, function: Any, specs: Any, *arrays: Any) -> Any:
    """``function`` on sharded arrays, or on the one device of the mesh; its results are placed by the specs."""
    if place.mesh.size > 1:
        return function(*arrays)
    first = arrays[0]
    whole = [sharding.on_the_device(x, first) for x in arrays]
    with in_mesh(sharding.mesh_of(first)):
        results = function(*whole)
    if not isinstance(results, tuple):
        return sharding.put(results, place.mesh, specs)
    return tuple(x if x is None else sharding.put(x, place.mesh, spec) for x, spec in zip(results, specs, strict=False))


def check_rows(name: str, a: Any, b: Any) -> None:
    """Check a right-hand side; A may have rows that the caller added."""
    check_matrix(name, "a", a)
    check_matrix(name, "b", b)
    check_columns(name, a, b)
    if b.shape[0] != min(a.shape):
        raise LayoutError(f"{name}: A and b must have the same number of columns and rows, got {a.shape} and {b.shape}")


def check_matrix(name: str, argument: str, x: Any) -> None:
    if not all(hasattr(x, known) for known in ("ndim", "shape", "dtype")):
        raise TypeError(f"{name}: {argument} must be an array, got {type(x).__name__}\nhint: jax.numpy.asarray({argument})")
    if x.ndim != 2:
        raise LayoutError(f"{name}: {argument} must be a 2D array, got shape {tuple(x.shape)}")
    if str(x.dtype) not in DTYPES:
        raise TypeError(f"{name}: dtype {x.dtype} of {argument} is not one of {', '.join(DTYPES)}")


def symmetrized(a: Any) -> Any:
    """The whole Hermitian matrix from its upper triangle."""
    where = sharding.route(a)
    if where is not None and where.certain:
        return wholes(factored.mirrored, where, cut_for(a.shape[0], where.grid), True, True)(a)
    own = None if isinstance(a, jax.core.Tracer) else getattr(a, "sharding", None)
    if isinstance(own, NamedSharding) and own.num_devices == 1:  # its axes may be Explicit, and belong to the type
        return sharding.put(_symmetrized(sharding.on_one_device(a)), own.mesh, own.spec)
    return _symmetrized(a)


@jax.jit
def _symmetrized(a: Any) -> Any:
    return jnp.triu(a) + jnp.conj(jnp.triu(a, 1)).T


def discard(donate: bool, *arrays: Any) -> None:
    """Delete donated arrays; their memory is freed as soon as the devices have read it."""
    for x in arrays if donate else ():
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and not x.is_deleted():
            x.delete()


def asked_for(*results: tuple[Any, bool]) -> Any:
    """The requested results, as a tuple if there are several."""
    chosen = tuple(x for x, wanted in results if wanted)
    return chosen if len(chosen) > 1 else chosen[0]


def status(info: Any) -> Any:
    return jnp.where(info == 0, 0, _FAILED).astype(jnp.int32)


def finite_status(x: Any) -> Any:
    """The status of a call whose results are finite if it succeeded."""
    return status(~jnp.all(jnp.isfinite(x)))


def manual_axes(a: Any) -> tuple[str, ...]:
    """The axes of the shard_map around us that split the matrix whose block this is."""
    mesh = mesh_around(a)
    if mesh is None:
        raise ValueError(
            "call this function inside jax.shard_map"
            "\nhint: outside of it use potrs, potri or syevd, which take whole sharded arrays"
        )
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


def check_tile(name: str, tile: Any) -> None:
    if isinstance(tile, bool) or not isinstance(tile, (int, np.integer)) or tile < 1:
        raise ValueError(f"{name}: T_A must be positive, got {tile!r}")


def _sequence(specs: Any) -> bool:
    return isinstance(specs, (tuple, list)) and not isinstance(specs, PartitionSpec)


_warned: list[str] = []


def _warn_if_single(a: Any) -> None:
    """Warn once for float32: JAXMg switches float64 on when it is imported, and its users may expect that."""
    if _warned or jax.config.read("jax_enable_x64") or str(a.dtype) not in ("float32", "complex64"):
        return
    _warned.append(str(a.dtype))
    text = f"the arrays are {a.dtype}: importing jaxmg switches 64-bit numbers on, importing lapwing.compat.jaxmg does not"
    warn(f"{text}\nhint: jax.config.update('jax_enable_x64', True)", JaxMgWarning)


def cyclic_1d_layout(A: Any, T_A: int) -> Any:
    """The array with its split axis (columns, or rows) in block-cyclic order: tile g on device g mod ndev."""
    mesh, spec = get_mesh_and_spec_from_array(A)
    return _relaid(A, T_A, mesh, spec)


def undo_cyclic_1d_layout(a: Any, T_A: int) -> Any:
    """Undo :func:`cyclic_1d_layout`: the array in contiguous blocks. Its size is taken from the axis that is not split."""
    mesh, spec = get_mesh_and_spec_from_array(a)
    axis, names, devices = _split("undo_cyclic_1d_layout", spec, mesh)
    n = a.shape[1 - axis]
    if n // devices <= T_A:
        return a
    options: dict[str, Any] = {"axis_name": names, "width": int(T_A), "n": n, "split": "columns" if axis else "rows"}
    return compiled(shard.from_cyclic, mesh, (spec,), spec, **options)(a)


def cyclic_1d_no_shardmap(x_block: Any, T_A: int, ndev: int, axis_name: Any) -> Any:
    """In a shard_map: this device's tiles, from its columns of a matrix."""
    if x_block.shape[1] <= T_A:
        return x_block
    return shard.to_cyclic(x_block, axis_name=axis_name, width=int(T_A))


def undo_cyclic_1d_no_shardmap(x_block_bc: Any, T_A: int, ndev: int, axis_name: Any) -> Any:
    """In a shard_map: this device's columns of a square matrix, from its tiles."""
    n = x_block_bc.shape[0]
    if n // ndev <= T_A:
        return x_block_bc
    return shard.from_cyclic(x_block_bc, axis_name=axis_name, width=int(T_A), n=n)


def manual_cyclic_1d_layout(a: Any, T_A: int, ndev: int) -> Any:
    """As :func:`cyclic_1d_layout`, for the columns of an array on one device; for comparisons."""
    columns = a.shape[1]
    size = columns // ndev
    if size < ndev:
        raise ValueError(
            f"manual_cyclic_1d_layout: {ndev} devices need at least {ndev} columns each, but {columns} columns give {size}"
        )
    if size <= T_A:
        return a
    each = -(-size // T_A)
    padded = jnp.pad(jnp.asarray(a), ((0, 0), (0, each * ndev * T_A - columns)))
    return padded.reshape(-1, each, ndev, T_A).swapaxes(1, 2).reshape(a.shape[0], -1)


def cyclic_1d(a: Any, T_A: int, mesh: Any, in_specs: Any, pad: bool = True) -> Any:
    """As :func:`cyclic_1d_layout`, with the mesh and the specs as arguments."""
    if _sequence(in_specs) and len(in_specs) != 1:
        raise LayoutError(f"cyclic_1d: in_specs must be a single PartitionSpec or a 1-element list/tuple, got {len(in_specs)}")
    spec = in_specs[0] if _sequence(in_specs) else in_specs
    if not isinstance(spec, PartitionSpec):
        raise TypeError(f"cyclic_1d: in_specs must be a PartitionSpec, got {type(spec).__name__}")
    if a.ndim != 2:
        raise LayoutError(f"cyclic_1d: a must be a 2D array, got shape {tuple(a.shape)}")
    axis, _, devices = _split("cyclic_1d", spec, mesh)
    size = a.shape[axis] // devices
    if not pad and size > T_A and a.shape[axis] % (devices * T_A):
        valid = [tile for tile in range(1, size + 1) if size % tile == 0]
        raise LayoutError(
            f"cyclic_1d: {a.shape[axis]} is not divisible by {devices} devices times T_A={T_A}\nhint: pad=True, or one of"
            f" T_A = {valid}"
        )
    return _relaid(a, T_A, mesh, spec)


def _relaid(a: Any, tile: int, mesh: Any, spec: Any) -> Any:
    axis, names, devices = _split("cyclic_1d", spec, mesh)
    check_tile("cyclic_1d", tile)
    if tile >= a.shape[axis] // devices:  # each device has one tile, and it is where it belongs
        return a
    options: dict[str, Any] = {"axis_name": names, "width": int(tile), "split": "columns" if axis else "rows"}
    traced = isinstance(a, jax.core.Tracer) or not isinstance(mesh, Mesh)
    a = sharding.resharded(a, mesh, spec) if traced else sharding.put(a, mesh, spec)
    return compiled(shard.to_cyclic, mesh, (spec,), spec, **options)(a)


def _split(name: str, spec: Any, mesh: Any) -> tuple[int, tuple[str, ...], int]:
    """Which axis of a matrix is split, over which names of the mesh, and over how many devices."""
    entries = (*spec, None, None)[:2]
    split = [i for i, entry in enumerate(entries) if entry is not None]
    if len(split) != 1:
        raise ValueError(
            f"{name}: exactly one axis of the matrix must be split, got {spec}\nhint: P('x', None) or P(None, 'x')"
        )
    entry = entries[split[0]]
    names = entry if isinstance(entry, tuple) else (entry,)
    unknown = [each for each in names if each not in mesh.shape]
    if unknown:
        raise ValueError(f"{name}: {spec} names the axis {unknown[0]!r}, but the axes of the mesh are {tuple(mesh.shape)}")
    return split[0], tuple(names), prod(mesh.shape[each] for each in names)


def calculate_padding(shard_size: int, T_A: int, ndev: int = 1) -> int:
    """How many rows to add to make a shard divisible by T_A; with ``ndev`` (first generation), by T_A times ndev."""
    return (-shard_size) % (T_A * ndev)


def pad_rows(a: Any, padding: int) -> Any:
    """Add ``padding`` rows of zeros."""
    return jnp.pad(a, ((0, padding), (0, 0)))


def unpad_rows(a: Any, padding: int) -> Any:
    """Remove the last ``padding`` rows."""
    return a[: a.shape[0] - padding]


def get_cols_cyclic(N: int, N_batch: int, T_A: int, num_devices: int) -> list[tuple[int, int, int]]:
    """(column, where it is in contiguous blocks, where it is in block-cyclic order) for each column.

    Both positions count columns over all devices. Each device has room for ``N_batch`` columns; unused ones are padding.
    """
    size, filled, places = N // num_devices, [0] * num_devices, []
    for column in range(N):
        device = column // T_A % num_devices
        places.append((column, column + (N_batch - size) * (column // size), filled[device] + device * N_batch))
        filled[device] += 1
    return places


def _can_shift(shard_size: int, tile: int, ndev: int) -> bool:
    """Whether the padding of all devices but one fits into a shard, which is what the first generation needs."""
    return (ndev - 1) * calculate_padding(shard_size, tile, ndev) <= shard_size


def calculate_valid_T_A(shard_size: int, T_A: int, ndev: int, T_A_max: int) -> tuple[int, int]:
    """The nearest tiles below and above T_A (or T_A itself) that the first generation accepts; 0, or T_A_max, if there is none.

    Every tile is accepted here.
    """
    smaller = next((tile for tile in range(T_A, 0, -1) if _can_shift(shard_size, tile, ndev)), 0)
    larger = next((tile for tile in range(T_A, T_A_max) if _can_shift(shard_size, tile, ndev)), max(T_A, T_A_max))
    return smaller, larger


def calculate_all_valid_T_A(shard_size: int, ndev: int, T_A_max: int) -> list[int]:
    """The tiles below T_A_max that the first generation accepts. Every tile is accepted here."""
    return [tile for tile in range(1, T_A_max) if _can_shift(shard_size, tile, ndev)]


def verify_cyclic(A: Any, A_cyclic: Any, T_A: int) -> None:
    """Assert that the second array is the first in block-cyclic order."""
    mesh, spec = get_mesh_and_spec_from_array(A_cyclic)
    axis, _, devices = _split("verify_cyclic", spec, mesh)
    whole, laid = (np.moveaxis(np.asarray(x), axis, 0) for x in (A, A_cyclic))
    tile = min(T_A, whole.shape[0] // devices)
    each = -(-whole.shape[0] // (tile * devices))
    assert laid.shape[0] == each * tile * devices, f"{laid.shape[0]} rows or columns, not {each * tile * devices}"
    whole = np.pad(whole, ((0, laid.shape[0] - whole.shape[0]), (0, 0)))
    expected = whole.reshape(each, devices, tile, -1).swapaxes(0, 1).reshape(laid.shape)
    np.testing.assert_array_equal(laid, expected)


def get_mesh_and_spec_from_array(a: Any) -> tuple[Any, Any]:
    """The mesh and the PartitionSpec of an array with a NamedSharding."""
    # in traced code the type says it, where the axes are Explicit
    sharding = getattr(jax.typeof(a) if isinstance(a, jax.core.Tracer) and hasattr(jax, "typeof") else a, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        raise ValueError(
            f"the array has the sharding {sharding}, but a NamedSharding is needed"
            "\nhint: jax.device_put(a, NamedSharding(mesh, spec))"
        )
    return sharding.mesh, sharding.spec


def maybe_real_dtype_from_complex(dtype: Any) -> Any:
    """float32 for complex64, float64 for complex128, itself for others."""
    return jnp.zeros((), dtype).real.dtype


def random_psd(n: int, dtype: Any, seed: int) -> Any:
    """A random positive definite matrix."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, n))
    if np.issubdtype(np.dtype(dtype), np.complexfloating):
        x = x + 1j * random.standard_normal((n, n))
    return jnp.asarray(x @ x.conj().T / n + np.eye(n), dtype=dtype)


def determine_distributed_setup() -> tuple[int, int, int, str]:
    """(machines, devices on each, devices of each process, "SPMD" or "MPMD"). Processes with one host name share a machine."""
    processes, devices = jax.process_count(), jax.device_count()
    machines = 1
    if processes > 1:
        from jax.experimental.multihost_utils import process_allgather

        name = np.frombuffer(hashlib.blake2b(socket.gethostname().encode(), digest_size=8).digest(), np.uint32)
        machines = len({tuple(row) for row in np.asarray(process_allgather(name)).reshape(processes, -1).tolist()})
    if processes != machines and devices != processes:
        raise ValueError(
            f"determine_distributed_setup: {processes} processes on {machines} machines have {devices} devices"
            "\nhint: start one process for each machine, or one for each device"
        )
    return machines, devices // machines, devices // processes, "SPMD" if processes == machines else "MPMD"


def plot_block_to_cyclic(N: int, T_A: int, ndev: int, N_rows: int = 8) -> tuple[Any, Any]:
    """Draw which device owns which column, in blocks and in block-cyclic order; (figure, axes) of matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plot_block_to_cyclic needs matplotlib\nhint: pip install matplotlib") from error
    if N < 1 or ndev < 1 or T_A < 1:
        raise ValueError(f"plot_block_to_cyclic: N={N}, T_A={T_A}, ndev={ndev} must be positive")
    size = -(-N // ndev)
    moves = [(column, column // size, column // T_A % ndev) for column in range(N)]
    order = sorted(range(N), key=lambda c: (moves[c][2], c))
    fig, axs = plt.subplots(2, 1, figsize=(8, 4), layout="constrained")
    for ax, columns, title in (
        (axs[0], range(N), f"blocks of {size} columns: colour is the owner afterwards"),
        (axs[1], order, f"block-cyclic, T_A = {T_A}: in the order of memory"),
    ):
        owners = np.array([moves[c][2] for c in columns])
        ax.imshow(np.tile(owners, (N_rows, 1)), aspect="auto", cmap="tab20", vmin=0, vmax=max(ndev - 1, 1))
        edges = np.flatnonzero(np.diff([moves[c][1 if ax is axs[0] else 2] for c in columns])) + 0.5
        for x in edges:
            ax.axvline(x, color="black", linewidth=2)
        if N <= 64:
            for x, c in enumerate(columns):
                ax.text(x, (N_rows - 1) / 2, str(c), ha="center", va="center", fontsize=7)
        ax.set_title(title)
        ax.set_xticks([])
        ax.set_yticks([])
    return fig, axs


_VIRTUAL_MEMORY_MANAGEMENT = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


def device_supports_vmm(device: int = 0) -> bool:
    """Whether a GPU supports virtual memory management. RuntimeError if there is no driver or no such GPU."""
    name = "device_supports_vmm"
    try:
        driver = libraries.load("cuda", operation=name)
    except OSError as error:
        raise RuntimeError(str(error)) from None
    if code := driver.cuInit(0):
        raise RuntimeError(
            f"{name}: the NVIDIA driver does not start (CUresult {code})\nhint: check the driver with nvidia-smi"
        )
    handle, value = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuDeviceGet(ctypes.byref(handle), int(device)):
        raise RuntimeError(
            f"{name}: there is no GPU {device} (CUresult {code})\nhint: GPUs are counted from 0; nvidia-smi lists them"
        )
    if code := driver.cuDeviceGetAttribute(ctypes.byref(value), _VIRTUAL_MEMORY_MANAGEMENT, handle):
        raise RuntimeError(
            f"{name}: the driver does not know this property of a GPU (CUresult {code})\nhint: install a newer NVIDIA driver"
        )
    return value.value != 0
