"""The calls on a ShardedMatrix that go to cuSOLVERMp: blocks on GPUs, of any library, and NumPy's where it is asked for."""

from __future__ import annotations

import functools
import socket
import sys
from typing import Any

import numpy as np

from ...core.memory import library_of, on_device
from ...ops.eigh import EighResult
from ...ops.lstsq import LstsqResult
from ...ops.qr import QRResult
from ...ops.solve import SlogdetResult
from ...ops.svd import PolarResult, SVDResult
from ..backends.cusolvermp import routines as cusolvermp
from ..backends.cusolvermp.memory import HostMemory, PlainBlocks, PlainMemory, device_for
from ..backends.cusolvermp.nccl import runtime
from ..layout import Axis, Layout
from ..matrix import ShardedMatrix
from ..ranks.protocol import agree
from . import cuda as sharded_cuda
from . import cuda_factor as sharded_cuda_factor
from .entry import PART_OF_B

__all__ = ["GpuFactor", "astype", "call", "conj", "copy", "factor", "gather", "redistribute", "taken", "to_numpy"]

_RESULTS: dict[str, Any] = {
    "slogdet": SlogdetResult,
    "eigh": EighResult,
    "svd": SVDResult,
    "polar": PolarResult,
    "qr": QRResult,
    "lstsq": LstsqResult,
}


def taken(a: ShardedMatrix, options: dict[str, Any]) -> bool:
    """Whether a call goes to GPUs: on one rank the ordinary functions take arrays that they know."""
    if options.get("engine") == "cusolvermp":
        return True
    return a.on_gpu and (a.ranks.size > 1 or library_of(a.local) not in ("torch", "cupy"))


def call(name: str, results: str, a: ShardedMatrix, /, *args: Any, **options: Any) -> Any:
    """A public function; ``results``: "m" a matrix in the layout of ``a``, "x" as ``b`` was, "v" the same on all ranks."""
    blocks = _entered(name, a)
    b = args[0] if "x" in results else options.pop("b", None)
    if b is not None and "x" not in results:
        raise NotImplementedError(f"{name}: b= is not there for sharded matrices on GPUs")
    sides = None if b is None else _sides(name, blocks, b)
    places = [functools.partial(_place, x.layout) for x in (blocks, sides or blocks)]
    made = sharded_cuda.run(name, blocks, sides, options, *places)
    found = []
    for kind, x in zip(results, made, strict=True):
        if kind == "m":
            x = ShardedMatrix(x.local, x.layout, a.ranks)
        elif kind == "x":
            x = _as_given(blocks, x, b)
        elif isinstance(x, np.ndarray) and x.ndim == 0:
            x = x[()]
        found.append(x)
    return found[0] if len(found) == 1 else _RESULTS[name](*found)


def factor(a: ShardedMatrix, /, **options: Any) -> GpuFactor:
    return GpuFactor(sharded_cuda_factor.factor(_entered("factor", a), options))


class GpuFactor:
    """A factored sharded matrix whose factor stays on the GPUs, made by :func:`lapwing.factor`; its methods are collective.

    The memory goes with the object.

    Attributes
    ----------
    assume : str
        What the matrix was said to be.
    info : int
        0, or the pivot or the leading minor that failed; the same on all ranks.
    report : dict
        How it was made: ``engine``, ``kind`` ("cholesky" or "lu"), ``grid`` and ``tile``.
    """

    def __init__(self, made: sharded_cuda_factor.BlocksFactor) -> None:
        self._made = made
        self.assume, self.upper, self.info, self.report = made.assume, made.upper, made.info, made.report
        self.shape, self.ranks = made.layout.shape, made.ranks
        self.slogdet, self.logdet, self.rcond = made.slogdet, made.logdet, made.rcond

    @property
    def l(self) -> ShardedMatrix:  # noqa: E743
        """The Cholesky factor, lower, or upper for ``upper=True``, in the layout of the matrix."""
        return self._wrapped(self._made.l)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (n, k), sharded or on all ranks; x is as b is. NaN if there is no factor."""
        like = PlainBlocks(None, self._made.layout, self.ranks, self._made.memory)
        sides = _sides("Factor.solve", like, b)
        return _as_given(like, self._made.solve(sides), b)

    def inv(self) -> ShardedMatrix:
        """A^-1 in the layout of the matrix."""
        return self._wrapped(self._made.inv())

    def __repr__(self) -> str:
        p, q = self.report.get("grid", (0, 0))
        return f"GpuFactor({self.report['kind']} of {self.shape[0]} x {self.shape[0]} {self._made.dtype}, {p} x {q} grid)"

    def _wrapped(self, x: Any) -> ShardedMatrix:
        return ShardedMatrix(x.local, x.layout, self.ranks)


# ---- blocks move ----


def gather(a: ShardedMatrix, root: int | None) -> Any:
    """All of it on one GPU, or with None on all of them, as an array of the same library. The arguments were looked at."""
    whole = None
    for rank in range(a.ranks.size) if root is None else (root,):
        part = redistribute(a, _on_one(a.shape, rank, a.ranks.size))
        whole = part.local if rank == a.ranks.rank else whole
    return whole


def redistribute(a: ShardedMatrix, layout: Layout) -> ShardedMatrix:
    blocks = _entered("ShardedMatrix.redistribute", a)
    with sharded_cuda.opened(blocks) as session:
        given = session.together(lambda: sharded_cuda.given_of(blocks))
        moved = session.move(given, layout)
        made = blocks.memory.blocks(moved, a.ranks)
    return ShardedMatrix(made.local, layout, a.ranks)


def to_numpy(local: Any) -> np.ndarray:
    memory = _memory(local)
    with cusolvermp.on_device(memory.device):
        return memory.to_numpy(memory.local)  # type: ignore[no-any-return]


def copy(local: Any) -> Any:
    return local.clone() if library_of(local) == "torch" else _method(local, "copy")()


def conj(local: Any) -> Any:
    made = _method(local, "conj")()
    return made.resolve_conj() if library_of(local) == "torch" else made


def astype(local: Any, dtype: np.dtype) -> Any:
    if library_of(local) == "torch":
        return local.to(getattr(sys.modules["torch"], dtype.name))
    return _method(local, "astype")(dtype)


def _method(local: Any, name: str) -> Any:
    found = getattr(local, name, None)
    if found is None:
        kind = type(local)
        raise TypeError(
            f"ShardedMatrix.{name}: blocks of {kind.__module__}.{kind.__qualname__} have no such method"
            "\nhint: make the blocks with your library, and ShardedMatrix.from_local"
        )
    return found


# ---- in and out ----


def _entered(name: str, a: ShardedMatrix) -> PlainBlocks:
    """The blocks with their memory; all ranks learn where one of them has none that can be used."""
    error: Exception | None = None
    memory = None
    told: Any = None
    host = not a.on_gpu
    try:
        if reason := cusolvermp.missing():
            raise RuntimeError(f"{name}: {reason.removeprefix('distributed: ')}")
        if host:
            runtime().count()  # a process without a GPU says so here
            told = socket.gethostname()
        else:
            memory = _memory(a.local)
    except Exception as wrong:  # of any kind: the other ranks must not wait
        words = str(wrong)
        plain = type(wrong) in (TypeError, ValueError, RuntimeError) and not words.startswith(name)
        error = type(wrong)(f"{name}: {words.removeprefix('distributed: ')}") if plain else wrong
    facts = {"shape": a.shape, "dtype": a.dtype.name, "layout": a.layout, "memory": "host" if host else library_of(a.local)}
    hosts = agree(a.ranks, name, facts, error=error, mine=told)
    if host:
        memory = HostMemory(a.local, device_for(hosts, a.ranks.rank))
    assert memory is not None
    return PlainBlocks(memory.local, a.layout, a.ranks, memory)


def _memory(local: Any) -> Any:
    """Of the library that the block is of: results are its arrays too."""
    library = library_of(local)
    if library == "torch":
        from ..backends.cusolvermp.torch_memory import TorchMemory

        return TorchMemory.of(local)
    if library == "cupy":
        from ..backends.cusolvermp.cupy_memory import CupyMemory

        return CupyMemory.of(local)
    return PlainMemory.of(local)


def _sides(name: str, blocks: Any, b: Any) -> Any:
    """Right-hand sides as blocks: those of a ShardedMatrix, or this rank's part of what all ranks have."""
    error: Exception | None = None
    made: Any = None
    facts: dict[str, Any] = {}
    try:
        facts, made = _looked_at(name, blocks, b)
    except Exception as wrong:  # no room on its GPU, too
        error = wrong
    agree(blocks.ranks, name, facts, error=error)
    return made


def _looked_at(name: str, blocks: Any, b: Any) -> tuple[dict[str, Any], Any]:
    memory, ranks, rows = blocks.memory, blocks.ranks, blocks.layout.shape[0]
    sharded = isinstance(b, ShardedMatrix)
    host = isinstance(memory, HostMemory)
    there = on_device(b.local if sharded else b)
    if not sharded and not there and not isinstance(b, np.ndarray):
        raise TypeError(f"{name}: b must be a ShardedMatrix, or an array that every rank has, got {type(b).__name__}")
    if sharded and there == host:
        raise TypeError(f"{name}: a is on {_where(not host)} and b on {_where(there)}\nhint: bring both to one side")
    dtype = b.dtype.name if sharded or not there else _memory(b).dtype
    if dtype != memory.dtype:
        raise TypeError(f"{name}: a and b must have the same dtype, got {memory.dtype} and {dtype}\nhint: convert one of them")
    shape = tuple(b.shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"{name}: b must have shape (n,) or (n, k), got {shape}")
    if shape[0] != rows:
        hint = "" if sharded else PART_OF_B
        raise ValueError(f"{name}: a has {rows} rows and b has {shape[0]} (shapes {blocks.layout.shape} and {shape}){hint}")
    facts = {"shape of b": shape, "dtype of b": dtype, "layout of b": b.layout if sharded else "replicated"}
    if sharded:
        if b.ranks is not ranks and (b.ranks.size, b.ranks.rank) != (ranks.size, ranks.rank):
            raise ValueError(f"{name}: a and b are on different communicators")
        mine = HostMemory(b.local, memory.device) if host else _memory(b.local)
        return facts, PlainBlocks(mine.local, b.layout, ranks, mine)
    whole = to_numpy(b) if there else b
    layout = Layout.rows_of((shape[0], whole.size // shape[0]), ranks.size)
    part = whole.reshape(shape[0], -1)[layout.indices(ranks.rank)[0]] if layout.place(ranks.rank) else whole[:0]
    with cusolvermp.on_device(memory.device):
        local = memory.put(np.ascontiguousarray(part))
        mine = HostMemory(local, memory.device) if host else type(memory).of(local)
    return facts, PlainBlocks(local, layout, ranks, mine)


def _as_given(blocks: Any, x: Any, b: Any) -> Any:
    """A solution as its right-hand side was: sharded, or on every rank, in its library."""
    if isinstance(b, ShardedMatrix):
        return ShardedMatrix(x.local, x.layout, blocks.ranks)
    with cusolvermp.on_device(blocks.memory.device):
        whole = np.concatenate(blocks.ranks.allgather(np.ascontiguousarray(blocks.memory.to_numpy(x.local)), "solve"))
        whole = whole[:, 0] if b.ndim == 1 else whole
        return _memory(b).put(whole) if on_device(b) else whole


def _place(like: Layout, shape: tuple[int, ...]) -> Layout:
    return like.of_shape((shape[0], shape[1]))


def _on_one(shape: tuple[int, int], root: int, size: int) -> Layout:
    return Layout(Axis.blocks([shape[0] if rank == root else 0 for rank in range(size)]), Axis.whole(shape[1]))


def _where(device: bool) -> str:
    return "a GPU" if device else "the host"
