"""How mesh and specs place a matrix, in JAXMg's terms; its helpers around the block-cyclic layout, and its utilities."""

from __future__ import annotations

import ctypes
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..core import libraries
from ..core.problem import DTYPES
from ..distributed import shard
from ..distributed.backends.xla import sharding
from ..distributed.backends.xla.layout import in_mesh, shard_map

_FAILED = 7  # cuSOLVER's "internal error", which JAXMg gives for a matrix that is not positive definite


class Place:
    """How mesh and specs place the matrix, checked."""

    def __init__(
        self, name: str, a: Any, tile: Any, mesh: Any, specs: Any, in_specs: Any, pad: bool, square: bool = True
    ) -> None:
        if specs is not None and in_specs is not None:
            raise ValueError(f"{name}: give matrix_specs or in_specs, not both")
        specs = in_specs if specs is None else specs
        if specs is None or mesh is None:
            own_mesh, own_spec = get_mesh_and_spec_from_array(a)
            mesh, specs = own_mesh if mesh is None else mesh, own_spec if specs is None else specs
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
        if str(a.dtype) not in DTYPES:
            raise TypeError(f"{name}: dtype {a.dtype} is not one of {', '.join(DTYPES)}")
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
        new = jnp.zeros(())  # inside of a jit this is traced too
        if any(isinstance(x, jax.core.Tracer) for x in (a, *others, new)):
            return False
        return a.is_fully_addressable and a.sharding.device_set == set(self.mesh.devices.flat)


@lru_cache(maxsize=256)
def compiled(function: Any, mesh: Any, in_specs: Any, out_specs: Any, donated: tuple[int, ...] = (), **fixed: Any) -> Any:
    """``function`` on blocks, with its keywords; one for each layout: a new function would be compiled at every call."""
    return jax.jit(shard_map(partial(function, **fixed), mesh, in_specs, out_specs), donate_argnums=donated)


def on_one_device(function: Any, a: Any, *others: Any) -> Any:
    """``function`` of whole arrays on one device of ``a``, whatever mesh is set."""
    if not isinstance(a, jax.Array):
        return function(*(jnp.asarray(x) for x in (a, *others)))
    whole = [sharding.on_the_device(x, a) for x in (a, *others)]
    with in_mesh(sharding.mesh_of(a)):
        return function(*whole)


def discard(donate: bool, *arrays: Any) -> None:
    """Delete donated arrays: their memory is free as soon as the devices have read it."""
    for x in arrays if donate else ():
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and not x.is_deleted():
            x.delete()


def asked_for(*results: tuple[Any, bool]) -> Any:
    """The results that were asked for, as a tuple; one alone as it is."""
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


class JaxMgWarning(UserWarning):
    """Kept for its name."""


def cyclic_1d_layout(A: Any, T_A: int) -> Any:
    """The array with its split axis (columns, or rows) in block-cyclic order: tile g on device g mod ndev."""
    mesh, spec = get_mesh_and_spec_from_array(A)
    return _relaid(A, T_A, mesh, spec)


def cyclic_1d(a: Any, T_A: int, mesh: Any, in_specs: Any, pad: bool = True) -> Any:
    """With the mesh and the specs as arguments."""
    spec = in_specs[0] if isinstance(in_specs, (tuple, list)) and not isinstance(in_specs, PartitionSpec) else in_specs
    if not isinstance(spec, PartitionSpec):
        raise TypeError(f"cyclic_1d: in_specs must be a PartitionSpec, got {type(spec).__name__}")
    axis, _, devices = _split("cyclic_1d", spec, mesh)
    if not pad and a.shape[axis] % (devices * T_A):
        raise ValueError(
            f"cyclic_1d: {a.shape[axis]} is not divisible by {devices} devices times T_A={T_A}\nhint: pad=True, or one of"
            f" T_A = {calculate_all_valid_T_A(a.shape[axis], devices)}"
        )
    return _relaid(a, T_A, mesh, spec)


def _relaid(a: Any, tile: int, mesh: Any, spec: Any) -> Any:
    axis, names, _ = _split("cyclic_1d", spec, mesh)
    options: dict[str, Any] = {"axis_name": names, "width": int(tile), "split": "columns" if axis else "rows"}
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
        raise ValueError(f"{name}: {spec} names the axis {unknown[0]!r}, the mesh has {tuple(mesh.shape)}")
    return split[0], tuple(names), prod(mesh.shape[each] for each in names)


def calculate_padding(shard_size: int, T_A: int) -> int:
    """How many rows make a shard divisible by T_A."""
    return (-shard_size) % T_A


def pad_rows(a: Any, padding: int) -> Any:
    """``padding`` rows of zeros more."""
    return jnp.pad(a, ((0, padding), (0, 0)))


def unpad_rows(a: Any, padding: int) -> Any:
    """The last ``padding`` rows less."""
    return a[: a.shape[0] - padding]


def get_cols_cyclic(N: int, N_batch: int, T_A: int, num_devices: int) -> list[tuple[int, int, int]]:
    """(column, device that has it in blocks of N_batch, device that has it in block-cyclic order) for each column."""
    return [(column, column // N_batch, column // T_A % num_devices) for column in range(N)]


def calculate_all_valid_T_A(N: int, num_devices: int, T_A_max: int | None = None) -> list[int]:
    """All tiles that deal N columns out evenly: N is divisible by T_A times the number of devices. Others are padded here."""
    largest = N // num_devices if T_A_max is None else min(T_A_max, N // num_devices)
    return [tile for tile in range(1, largest + 1) if N % (tile * num_devices) == 0]


def verify_cyclic(A: Any, A_cyclic: Any, T_A: int) -> None:
    """Assert that the second array is the first in block-cyclic order."""
    mesh, spec = get_mesh_and_spec_from_array(A_cyclic)
    axis, _, devices = _split("verify_cyclic", spec, mesh)
    whole, laid = (np.moveaxis(np.asarray(x), axis, 0) for x in (A, A_cyclic))
    each = -(-whole.shape[0] // (T_A * devices))
    assert laid.shape[0] == each * T_A * devices, f"{laid.shape[0]} rows or columns, not {each * T_A * devices}"
    whole = np.pad(whole, ((0, laid.shape[0] - whole.shape[0]), (0, 0)))
    expected = whole.reshape(each, devices, T_A, -1).swapaxes(0, 1).reshape(laid.shape)
    np.testing.assert_array_equal(laid, expected)


def get_mesh_and_spec_from_array(a: Any) -> tuple[Any, Any]:
    """The mesh and the PartitionSpec of an array with a NamedSharding."""
    sharding = getattr(a, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        raise ValueError(f"the array has no NamedSharding but {sharding}\nhint: jax.device_put(a, NamedSharding(mesh, spec))")
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
    """(machines, devices on each, devices of each process, "SPMD" or "MPMD"), as far as JAX tells; a process per machine."""
    processes, local = jax.process_count(), jax.local_device_count()
    return processes, local, local, "SPMD" if processes == 1 else "MPMD"


def plot_block_to_cyclic(N: int, T_A: int, ndev: int, N_rows: int = 8) -> tuple[Any, Any]:
    """Draw which device owns which column, in blocks and in block-cyclic order; (figure, axes) of matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plot_block_to_cyclic needs matplotlib\nhint: pip install matplotlib") from error
    if N < 1 or ndev < 1 or T_A < 1:
        raise ValueError(f"plot_block_to_cyclic: N={N}, T_A={T_A}, ndev={ndev} must be positive")
    size = -(-N // ndev)
    moves = get_cols_cyclic(N, size, T_A, ndev)
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
    """Whether a GPU can map memory by itself, as the driver tells it. RuntimeError where there is no driver or no such GPU."""
    name = "device_supports_vmm"
    try:
        driver = libraries.load("cuda", operation=name)
    except OSError as error:
        raise RuntimeError(str(error)) from None
    if code := driver.cuInit(0):
        raise RuntimeError(f"{name}: the NVIDIA driver does not start (CUresult {code})")
    handle, value = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuDeviceGet(ctypes.byref(handle), int(device)):
        raise RuntimeError(f"{name}: there is no GPU {device} (CUresult {code})")
    if code := driver.cuDeviceGetAttribute(ctypes.byref(value), _VIRTUAL_MEMORY_MANAGEMENT, handle):
        raise RuntimeError(f"{name}: the driver does not know of it (CUresult {code})")
    return value.value != 0
