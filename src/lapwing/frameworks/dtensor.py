"""torch DTensors: which rank holds what, blocks of theirs as arrays, and DTensors of blocks.

A matrix is sharded over one or two axes of its mesh, rows or columns or both; :func:`standard` brings any other placement into
one of these. Torch cuts n rows for P ranks into blocks of ceil(n / P), the last ones shorter or empty.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..core.communicator import TorchRanks
from ..core.layout import Axis, Layout

__all__ = ["Blocks", "TorchMessages", "adjoint", "blocks_of", "cuts_matrix", "standard", "whole", "wrap", "wrap_replicated"]


@dataclass(frozen=True)
class Blocks:
    """A DTensor as an engine sees it."""

    local: Any  # torch.Tensor, row-major
    layout: Layout
    ranks: TorchMessages

    @property
    def memory(self) -> TorchMemory:
        return TorchMemory(self.local)


def cuts_matrix(a: Any) -> bool:
    """Whether one of the last two axes is really cut: else each rank can work on what it holds."""
    last = (a.ndim - 1, a.ndim - 2)
    return any(
        p.is_partial() or (p.is_shard() and p.dim % a.ndim in last and size > 1)
        for p, size in zip(a.placements, a.device_mesh.shape, strict=True)
    )


def standard(name: str, a: Any) -> Any:
    """The same DTensor with rows, columns or both cut, each by one axis of the mesh."""
    if a.ndim != 2:
        raise ValueError(
            f"{name}: a batch of matrices of shape {tuple(a.shape)} is sharded inside its matrices ({_words(a.placements)})"
            "\nhint: shard the batch instead, Shard(0), or call for one matrix at a time"
        )
    sizes = a.device_mesh.shape
    axes = [i for i, size in enumerate(sizes) if size > 1]
    kinds = [a.placements[i].dim if type(a.placements[i]) is Shard else None for i in axes]
    if sorted(kinds, key=str) in ([], [0], [1], [0, 1]):
        return a
    if len(axes) > 2:
        raise ValueError(
            f"{name}: a mesh of {len(axes)} axes with more than one rank, {tuple(sizes)}"
            "\nhint: matrices lie on one or two axes: init_device_mesh(device, (p, q))"
        )
    placements: list[Any] = [Replicate()] * len(sizes)
    for i, axis in zip((0, 1), axes, strict=False):
        placements[axis] = Shard(i)
    return a.redistribute(placements=placements)


def blocks_of(name: str, a: Any) -> Blocks:
    """Of a :func:`standard` DTensor. Raises ValueError where its blocks are not those that torch would cut."""
    ranks = _ranks(a.device_mesh)
    layout = layout_for(a, tuple(a.shape))
    local = a.to_local().detach().resolve_conj().resolve_neg().contiguous()
    expected = layout.local_shape(ranks.rank)
    if tuple(local.shape) != expected:
        raise ValueError(
            f"{name}: the block of rank {ranks.rank} has shape {tuple(local.shape)}, and torch would cut it to {expected}"
            "\nhint: make it with distribute_tensor, or bring it into that form with a.redistribute(...)"
        )
    return Blocks(local, layout, ranks)


def layout_for(like: Any, shape: tuple[int, ...]) -> Layout:
    """Of a matrix of another shape with the placements and the mesh of ``like``."""
    sizes, axes = like.device_mesh.shape, [Axis.whole(n) for n in shape]
    cut = [(p.dim, size) for p, size in zip(like.placements, sizes, strict=True) if p.is_shard() and size > 1]
    for dim, size in cut:
        axes[dim] = Axis.blocks(_chunks(shape[dim], size))
    # ranks go along the last axis of the mesh first: along the rows of the grid, unless it is the rows that it cuts
    return Layout(axes[0], axes[1], "C" if [dim for dim, _ in cut] == [1, 0] else "R")


def wrap(local: Any, like: Any, shape: tuple[int, ...]) -> Any:
    """A DTensor of blocks in the placements of ``like``."""
    strides = tuple(int(x) for x in np.cumprod([1, *shape[:0:-1]])[::-1])
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=torch.Size(shape), stride=strides
    )


def placed_as(x: Any, like: Any) -> Any:
    """In the placements of ``like``, unless those are of sums that are still to be made."""
    if like is None or like.placements == x.placements or any(p.is_partial() for p in like.placements):
        return x
    return x.redistribute(placements=like.placements)


def wrap_replicated(x: Any, like: Any) -> Any:
    """What every rank has, as a DTensor on the mesh of ``like``."""
    mesh = like.device_mesh
    x = torch.as_tensor(np.asarray(x), device=like.to_local().device) if not isinstance(x, torch.Tensor) else x
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def as_sharded(name: str, b: Any, like: Any) -> Any:
    """b of shape (n, k), a DTensor or a tensor that every rank has, cut over the mesh of ``like``."""
    if not isinstance(b, DTensor):
        if not isinstance(b, torch.Tensor):
            raise TypeError(f"{name}: b must be a DTensor, or a torch tensor that every rank has, got {type(b).__name__}")
        b = wrap_replicated(b, like)
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
    shape = torch.Size((a.shape[1], a.shape[0]))
    return DTensor.from_local(
        a.to_local().mH.resolve_conj().contiguous(), a.device_mesh, turned, run_check=False, shape=shape, stride=(shape[1], 1)
    )


def _chunks(n: int, parts: int) -> list[int]:
    each = -(-n // parts)
    return [max(min(each, n - i * each), 0) for i in range(parts)]


def _words(placements: Any) -> str:
    return ", ".join(str(p) for p in placements)


@cache
def _ranks(mesh: Any) -> TorchMessages:
    """The ranks of a mesh, in its order. Collective over the mesh at its first use."""
    order = mesh.mesh.flatten().tolist()
    if order != sorted(order):
        raise ValueError(
            f"distributed: the ranks of the mesh are not in order: {order}\nhint: init_device_mesh puts them in order"
        )
    group = None
    if len(order) < dist.get_world_size():
        own = mesh.ndim == 1
        group = mesh.get_group() if own else dist.new_group(order, use_local_synchronization=True)
    return TorchMessages(dist, group)


class TorchMessages(TorchRanks):
    """Also the messages that an exchange of blocks on the host needs: what mpi4py has under these names."""

    def __init__(self, dist: Any, group: Any = None) -> None:
        super().__init__(dist, group)
        self.own = self
        self.MPI = self.Request = self

    def _world(self, rank: int) -> int:
        return rank if self.group is None else int(dist.get_global_rank(self.group, rank))

    def Isend(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return dist.isend(torch.from_numpy(data), self._world(rank), self.group, tag)

    def Irecv(self, data: np.ndarray, rank: int, tag: int) -> Any:
        return dist.irecv(torch.from_numpy(data), self._world(rank), self.group, tag)

    @staticmethod
    def Testall(requests: list[Any]) -> bool:
        for request in requests:
            request.wait()
        return True

    def spread(self, values: np.ndarray | None, root: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        box = np.ascontiguousarray(values) if self.rank == root and values is not None else np.empty(shape, dtype)
        if box.size:
            dist.broadcast(torch.from_numpy(box), self._world(root), self.group)
        return box

    def mpi(self) -> Any:
        """The mpi4py communicator of the same ranks; None where MPI did not start them. Collective at its first use."""
        if not hasattr(self, "_mpi"):
            self._mpi = _matching(self)
        return self._mpi


def _matching(ranks: TorchMessages) -> Any:
    # without mpiexec, importing mpi4py would start an MPI of one rank for nothing
    started = any(
        name in os.environ for name in ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
    )
    found = None
    if started or "mpi4py.MPI" in sys.modules:
        try:
            from mpi4py import MPI

            found = (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
        except ImportError:
            pass
    told = ranks.allgather((found, dist.get_rank()))
    if any(x is None or x[0] != world for x, world in told) or len({x[1] for x, _ in told}) != 1:
        return None
    from mpi4py import MPI

    if told[0][0][1] == ranks.size:
        return MPI.COMM_WORLD
    group = MPI.COMM_WORLD.Get_group().Incl([world for _, world in told])
    return MPI.COMM_WORLD.Create_group(group)


# ---- memory on a GPU ----


def on_gpu(local: Any) -> bool:
    return bool(local.device.type == "cuda")


class TorchMemory:
    """Device memory of torch's own allocator, for an engine that knows pointers only."""

    def __init__(self, local: Any) -> None:
        self._local = local

    @property
    def pointer(self) -> int:
        return int(self._local.data_ptr())

    @property
    def device(self) -> int:
        return int(self._local.device.index or 0)

    @property
    def dtype(self) -> str:
        return str(self._local.dtype).rpartition(".")[2]

    def allocate(self, count: int) -> tuple[int, Any]:
        try:
            made = torch.empty(max(count, 1), dtype=torch.uint8, device=self._local.device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        return int(made.data_ptr()), made

    def blocks(self, given: Any, ranks: TorchMessages) -> Blocks:
        """The memory that :meth:`allocate` gave for a row-major block."""
        shape = given.layout.local_shape(ranks.rank)
        count = shape[0] * shape[1] * self._local.element_size()
        return Blocks(given.owner[:count].view(self._local.dtype).view(shape), given.layout, ranks)

    def filled(self, layout: Layout, ranks: TorchMessages, value: float) -> Blocks:
        return Blocks(self._local.new_full(layout.local_shape(ranks.rank), value), layout, ranks)

    def finite(self, block: Blocks, triangle: str | None) -> bool:
        """No NaN and no Inf in this block, or in what it has of a triangle ("lower", "upper"); some rows at a time."""
        rows, columns = block.layout.indices(block.ranks.rank)
        if not len(rows) or not len(columns):
            return True
        for first in range(0, len(rows), 1024):
            fine = block.local[first : first + 1024].isfinite()
            shift = int(rows[first] - columns[0])
            beyond = None if triangle is None else fine.logical_not().triu(shift + 1) if triangle == "lower" else None
            if triangle == "upper":
                beyond = fine.logical_not().tril(shift - 1)
            if beyond is not None:  # what is not read may be anything
                fine |= beyond
            if not bool(fine.all()):
                return False
        return True

    def keep_triangle(self, block: Blocks, *, upper: bool) -> None:
        """Of contiguous blocks: where the diagonal runs through this one."""
        rows, columns = block.layout.indices(block.ranks.rank)
        if len(rows) and len(columns):
            shift = int(rows[0] - columns[0])
            (block.local.triu_ if upper else block.local.tril_)(shift)


# ---- blocks that are each rank's own ----


def own(name: str, x: Any, like: Any) -> Any:
    """What this rank holds of a DTensor whose matrices are whole; other tensors stay."""
    if not isinstance(x, DTensor):
        return x
    if x.placements != like.placements:
        raise ValueError(
            f"{name}: a and b are placed differently ({_words(like.placements)} and {_words(x.placements)})"
            "\nhint: b.redistribute(placements=a.placements)"
        )
    return x.to_local()


def wrap_own(x: Any, like: Any) -> Any:
    """Results of a batch, or of a replicated matrix: placed as it was."""
    return DTensor.from_local(x, like.device_mesh, like.placements, run_check=False)


def as_tensor(x: np.ndarray) -> Any:
    return torch.from_numpy(x)


def as_given(x: Any, given: Any, vector: bool) -> Any:
    """A solution as its right-hand side was: placed alike, or on every rank."""
    if not isinstance(given, DTensor):
        x = x.full_tensor()
        return x[:, 0] if vector else x
    if vector:  # (n, 1) would be cut over two axes where (n,) has one
        x = x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)[:, 0]
    return x.redistribute(placements=given.placements)


# ---- derivatives ----


def wants_gradient(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


def differentiable_solve(run: Any, a: Any, b: Any, pos: bool) -> Any:
    """``run(a, b)`` with gradients: gb = A^-H g, gA = -gb x^H, for a positive matrix its Hermitian part."""
    return _Solve.apply(a, b, run, pos)


def differentiable_slogdet(run: Any, invert: Any, a: Any, pos: bool) -> Any:
    return _Slogdet.apply(a, run, invert, pos)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, run: Any, pos: bool) -> Any:
        x = run(a.detach(), b.detach())
        ctx.save_for_backward(a, x)
        ctx.run, ctx.pos, ctx.given = run, pos, b.placements if isinstance(b, DTensor) else None
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        a, x = ctx.saved_tensors
        if ctx.given is not None:
            g = g.redistribute(placements=ctx.given)
        gb = ctx.run(a.detach() if ctx.pos else adjoint(a.detach()), g.detach())
        return _outer(a, gb, x, ctx.pos) if ctx.needs_input_grad[0] else None, gb, None, None


def _outer(a: Any, gb: Any, x: Any, pos: bool) -> Any:
    """This rank's block of -gb x^H: the right-hand sides are few, so that every rank can have them all."""
    left, right = (whole(y).reshape(a.shape[0], -1) for y in (gb, x))
    layout = layout_for(a, tuple(a.shape))
    rows, columns = (torch.from_numpy(i).to(left.device) for i in layout.indices(_ranks(a.device_mesh).rank))
    block = -left[rows] @ right[columns].mH
    if pos:
        block = (block - right[rows] @ left[columns].mH) / 2
    return wrap(block, a, tuple(a.shape))


class _Slogdet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, run: Any, invert: Any, pos: bool) -> Any:
        sign, logabs = run(a.detach())
        ctx.save_for_backward(a)
        ctx.invert, ctx.pos = invert, pos
        ctx.mark_non_differentiable(sign)
        return sign, logabs

    @staticmethod
    def backward(ctx: Any, _: Any, g: Any) -> Any:  # type: ignore[override]
        (a,) = ctx.saved_tensors
        # of a Hermitian matrix the inverse is its own adjoint
        x = ctx.invert(a.detach())
        x = x if ctx.pos else adjoint(x).redistribute(placements=a.placements)
        return wrap(x.to_local() * whole(g), a, tuple(a.shape)), None, None, None
