"""JAXMg's helpers around the block-cyclic layout, its drawing and its utilities."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..distributed import shard
from ..distributed.backends.xla.layout import shard_map


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
    return _relayer(mesh, spec, names, int(tile), "columns" if axis else "rows")(a)


@lru_cache(maxsize=64)
def _relayer(mesh: Any, spec: Any, names: tuple[str, ...], tile: int, split: str) -> Any:
    # one for each layout: a new function would be compiled at every call
    return jax.jit(shard_map(lambda x: shard.to_cyclic(x, axis_name=names, width=tile, split=split), mesh, (spec,), spec))


def _split(name: str, spec: Any, mesh: Any) -> tuple[int, tuple[str, ...], int]:
    """Which axis of a matrix is split, over which names of the mesh, and over how many devices."""
    entries = (*spec, None, None)[:2]
    found = [i for i, entry in enumerate(entries) if entry is not None]
    if len(found) != 1:
        raise ValueError(
            f"{name}: exactly one axis of the matrix must be split, got {spec}\nhint: P('x', None) or P(None, 'x')"
        )
    entry = entries[found[0]]
    names = entry if isinstance(entry, tuple) else (entry,)
    unknown = [each for each in names if each not in mesh.shape]
    if unknown:
        raise ValueError(f"{name}: {spec} names the axis {unknown[0]!r}, the mesh has {tuple(mesh.shape)}")
    return found[0], tuple(names), int(np.prod([mesh.shape[each] for each in names]))


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
