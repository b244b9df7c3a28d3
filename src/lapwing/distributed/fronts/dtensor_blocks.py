"""torch DTensors: which rank has which part, their blocks as arrays, and DTensors of blocks.

A matrix is sharded over one or two axes of its mesh: rows or columns or both. :func:`standard` converts any other placement to
one of these. Torch cuts n rows for P ranks into blocks of ceil(n / P), the last ones shorter or empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from ...core.memory import row_major_strides
from ..backends.protocol import Part
from ..layout import Axis, Layout
from ..ranks import launched as mpi_place
from ..ranks.protocol import open_communicator
from ..ranks.torch import TorchRanks


def cuts_matrix(a: Any) -> bool:
    """Whether one of the last two axes is really cut; if not, each rank can work on its own part."""
    last = (a.ndim - 1, a.ndim - 2)
    return any(
        p.is_partial() or (p.is_shard() and p.dim % a.ndim in last and size > 1)
        for p, size in zip(a.placements, a.device_mesh.shape, strict=True)
    )


def standard(name: str, a: Any) -> Any:
    """The DTensor with its rows, its columns or both cut, each by one axis of the mesh."""
    placements = _standard(name, a)
    return a if placements is a.placements else a.redistribute(placements=placements)


def standard_layout(name: str, a: Any) -> Layout:
    """The layout of the result of :func:`standard`; nothing moves."""
    return layout_for(_Placed(a.device_mesh, tuple(_standard(name, a))), tuple(a.shape))


@dataclass(frozen=True)
class _Placed:
    device_mesh: Any
    placements: tuple[Any, ...]


def _standard(name: str, a: Any) -> Any:
    if a.ndim != 2:
        raise ValueError(
            f"{name}: a batch of matrices of shape {tuple(a.shape)} is sharded inside its matrices ({_words(a.placements)})"
            "\nhint: shard the batch instead, Shard(0), or call for one matrix at a time"
        )
    sizes = a.device_mesh.shape
    axes = [i for i, size in enumerate(sizes) if size > 1]
    kinds = [a.placements[i].dim if type(a.placements[i]) is Shard else None for i in axes]
    if sorted(kinds, key=str) in ([], [0], [1], [0, 1]):
        return a.placements
    if len(axes) > 2:
        raise ValueError(
            f"{name}: a mesh of {len(axes)} axes with more than one rank, {tuple(sizes)}"
            "\nhint: matrices lie on one or two axes: init_device_mesh(device, (p, q))"
        )
    placements: list[Any] = [Replicate()] * len(sizes)
    for i, axis in zip((0, 1), axes, strict=False):
        placements[axis] = Shard(i)
    return placements


def block_of(name: str, a: Any, mpi: Any = None) -> Part:
    """This rank's part of a :func:`standard` DTensor; on the host a NumPy array, over MPI's communicator if there is one.

    Raises ValueError if its blocks are not those that torch would cut.
    """
    ranks = ranks_of(a.device_mesh)
    layout = layout_for(a, tuple(a.shape))
    local = a.to_local().detach().resolve_conj().resolve_neg().contiguous()
    expected = layout.local_shape(ranks.rank)
    if tuple(local.shape) != expected:
        raise ValueError(
            f"{name}: the block of rank {ranks.rank} has shape {tuple(local.shape)}, and torch would cut it to {expected}"
            "\nhint: make it with distribute_tensor, or bring it into that form with a.redistribute(...)"
        )
    cut = partial(layout_for, _Placed(a.device_mesh, tuple(a.placements)))
    if on_gpu(a):
        return Part(local, layout, ranks, None, cut)
    return Part(local.numpy(), layout, ranks if mpi is None else open_communicator(mpi), None, cut)


def layout_for(like: Any, shape: tuple[int, ...]) -> Layout:
    """The layout of a matrix of another shape with the placements and the mesh of ``like``."""
    sizes, axes = like.device_mesh.shape, [Axis.whole(n) for n in shape]
    cut = [(p.dim, size) for p, size in zip(like.placements, sizes, strict=True) if p.is_shard() and size > 1]
    for dim, size in cut:
        axes[dim] = Axis.blocks(_chunks(shape[dim], size))
    # ranks are numbered along the last axis of the mesh first: along the rows of the grid, unless that axis cuts the rows
    return Layout(axes[0], axes[1], "C" if [dim for dim, _ in cut] == [1, 0] else "R")


def wrap(local: Any, like: Any, shape: tuple[int, ...]) -> Any:
    """A DTensor of blocks, torch's or NumPy's, in the placements of ``like``."""
    local = torch.from_numpy(np.ascontiguousarray(local)) if isinstance(local, np.ndarray) else local
    return _dtensor(local, like.device_mesh, like.placements, shape)


def _dtensor(local: Any, mesh: Any, placements: Any, shape: tuple[int, ...]) -> Any:
    size, strides = torch.Size(shape), row_major_strides(tuple(shape))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=size, stride=strides)


def empty_like(a: Any) -> Any:
    """An empty DTensor with the same mesh, placements and device: results are placed like it."""
    return _dtensor(a.to_local().new_empty((0, 0)), a.device_mesh, a.placements, (0, 0))


def placed_as(x: Any, like: Any) -> Any:
    """The DTensor in the placements of ``like``, unless those are partial sums."""
    if like is None or tuple(like.placements) == tuple(x.placements) or any(p.is_partial() for p in like.placements):
        return x
    return x.redistribute(placements=like.placements)


def wrap_replicated(x: Any, like: Any) -> Any:
    """An array that every rank has, as a DTensor on the mesh of ``like``."""
    mesh = like.device_mesh
    x = torch.as_tensor(np.asarray(x), device=like.to_local().device) if not isinstance(x, torch.Tensor) else x
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def as_sharded(name: str, b: Any, like: Any) -> Any:
    """b of shape (n, k), a DTensor or a tensor that every rank has, cut over the mesh of ``like``."""
    b = b if isinstance(b, DTensor) else wrap_replicated(b, like)
    if b.device_mesh != like.device_mesh:
        raise ValueError(f"{name}: a and b are on different meshes\nhint: distribute b over a.device_mesh")
    if cuts_matrix(b) and b.ndim == 2:
        return standard(name, b)
    placements: list[Any] = [Replicate()] * b.device_mesh.ndim
    for dim, axis in enumerate([i for i, size in enumerate(b.device_mesh.shape) if size > 1]):
        placements[axis] = Shard(dim)
    return b.redistribute(placements=placements)


def whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def adjoint(a: Any) -> Any:
    """A^H: each block adjoint, rows where columns were cut."""
    turned = [Shard(1 - p.dim) if p.is_shard() else p for p in a.placements]
    return _dtensor(a.to_local().mH.resolve_conj().contiguous(), a.device_mesh, turned, (a.shape[1], a.shape[0]))


def _chunks(n: int, parts: int) -> list[int]:
    each = -(-n // parts)
    return [max(min(each, n - i * each), 0) for i in range(parts)]


def _words(placements: Any) -> str:
    return ", ".join(str(p) for p in placements)


def ranks_of(mesh: Any) -> TorchRanks:
    """The ranks of a mesh, in its order. Collective over the mesh at its first use."""
    return _ranks_of(mesh, dist.group.WORLD)


@lru_cache(maxsize=32)
def _ranks_of(mesh: Any, world: Any) -> TorchRanks:
    # another world: torch was shut down and started again, and its earlier groups are gone
    order = mesh.mesh.flatten().tolist()
    if order != sorted(order):
        raise ValueError(
            f"distributed: the ranks of the mesh are not in order: {order}\nhint: init_device_mesh puts them in order"
        )
    group = None
    if len(order) < dist.get_world_size():
        group = mesh.get_group() if mesh.ndim == 1 else dist.new_group(order, use_local_synchronization=True)
    return TorchRanks(dist, group)


@lru_cache(maxsize=32)  # asked once, as a rank that imports mpi4py later must not ask again alone
def mpi_of(ranks: TorchRanks) -> Any:
    """The mpi4py communicator of the same ranks; None if MPI did not start them. Collective at its first use."""
    return mpi_place.communicator(ranks, mpi_place.under_mpi(), dist.get_rank())


def mpi_seen() -> bool:
    """Whether MPI most likely started the ranks, as far as this one can tell alone."""
    place = mpi_place.launched_place()
    return place is not None and place.rank == dist.get_rank()


def on_gpu(local: Any) -> bool:
    return bool(local.device.type == "cuda")


# ---- blocks that are each rank's own ----


def own_part(name: str, x: Any, like: Any) -> Any:
    """The part of ``x`` that belongs to this rank's part of ``like``, whose matrices are whole; other objects unchanged."""
    if not isinstance(x, torch.Tensor) or x is like:
        return x.to_local() if x is like else x
    batched = [p.dim for p, size in zip(like.placements, like.device_mesh.shape, strict=True) if p.is_shard() and size > 1]
    aligned = x.ndim == like.ndim and all(x.shape[dim] == like.shape[dim] for dim in batched)
    if not isinstance(x, DTensor):
        # whole on every rank: a batch is cut to this rank's part
        if not (batched and aligned):
            return x
        return wrap_replicated(x, like).redistribute(placements=_of_batch(like)).to_local()
    if x.device_mesh != like.device_mesh:
        raise ValueError(f"{name}: a and b are on different meshes\nhint: distribute b over a.device_mesh")
    if tuple(x.placements) == tuple(like.placements):
        return x.to_local()
    if batched and not aligned:
        raise ValueError(
            f"{name}: a and b are placed differently ({_words(like.placements)} and {_words(x.placements)}), and their"
            f" batches differ (shapes {tuple(like.shape)} and {tuple(x.shape)})\nhint: b.redistribute(...)"
        )
    return x.redistribute(placements=_of_batch(like)).to_local()


def wrap_own(x: Any, like: Any, *, matrix: bool = False) -> Any:
    """Results for a batch or a replicated matrix, placed like it. ``matrix``: they are matrices, not values."""
    shape, placements = list(x.shape), _of_batch(like)
    for p in placements:
        if p.is_shard():  # ranks may hold more or fewer matrices than others
            shape[p.dim] = like.shape[p.dim]
    return _dtensor(x, like.device_mesh, like.placements if matrix else placements, tuple(shape))


def _of_batch(like: Any) -> list[Any]:
    """Only the placements of batch axes: a single rank may "cut" a matrix, and values do not have the axes of a matrix."""
    return [Replicate() if p.is_shard() and p.dim % like.ndim >= like.ndim - 2 else p for p in like.placements]


def cast(x: Any, dtype: str) -> Any:
    """A tensor in another dtype; other objects are unchanged, and refused later."""
    return x.to(getattr(torch, dtype)) if isinstance(x, torch.Tensor) else x


def dtype_of(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def as_right(x: Any, b: Any, vector: bool) -> Any:
    """A solution in the form of its right-hand side: with the same placement, or on every rank."""
    if not isinstance(b, DTensor):
        x = x.full_tensor()
        return x[:, 0] if vector else x
    if vector:  # (n, 1) would be cut over two axes where (n,) has one
        x = x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)[:, 0]
    return placed_as(x, b)


def wants_gradient(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)
