"""How blocks reach cuSOLVERMp and leave it: their memory, sessions, right-hand sides; and how blocks on GPUs move."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ....core.memory import library_of
from ...layout import Layout
from ...matrix import ShardedMatrix, on_one
from ...ranks.protocol import agree, attempt
from ..protocol import Part
from .blocks import Operand
from .library import missing
from .memory import DeviceMemory, HostMemory
from .session import Session, on_device, open_session

# ---- for the calls ----


def check_usable(name: str) -> None:
    if reason := missing():
        raise RuntimeError(f"{name}: {reason.removeprefix('distributed: ')}")


def entered(x: Part, like: Any) -> Part:
    """The block with its memory: that of the front, of its library, or of the host with the GPU of ``like``."""
    if x.memory is not None:
        return x
    memory = HostMemory(x.local, like.device) if isinstance(like, HostMemory) else DeviceMemory(x.local)
    return replace(x, local=memory.local, memory=memory)


def right_side(b: np.ndarray, a: Any) -> Part:
    """This rank's rows of a right-hand side that every rank has; ``a`` has the ranks and the memory."""
    layout = Layout.rows_of((len(b), b.size // max(len(b), 1)), a.ranks.size)
    rows = layout.indices(a.ranks.rank)[0] if layout.place(a.ranks.rank) else slice(0)
    with on_device(a.memory.device):
        local = a.memory.put(np.ascontiguousarray(b.reshape(len(b), -1)[rows]))
        return entered(Part(local, layout, a.ranks), a.memory)


def operand_of(x: Part) -> Operand:
    memory = x.memory
    return Operand(memory.pointer, x.layout, memory.dtype, memory.row_major, (x.local, memory))


@contextmanager
def opened(a: Any) -> Iterator[Session]:
    """The session of these ranks, with the device of this one as the current one; ``a`` has the ranks and the memory."""
    memory = a.memory
    with on_device(memory.device):
        session = open_session(a.ranks, memory.device, memory.allocate)
        try:
            yield session
        finally:
            session.release()


# ---- for a ShardedMatrix on GPUs ----


def gather(a: ShardedMatrix, root: int | None) -> Any:
    """The whole matrix on one GPU, or with None on all GPUs, as an array of the same library. The arguments are checked."""
    whole = None
    for rank in range(a.ranks.size) if root is None else (root,):
        part = redistribute(a, on_one(a.shape, rank, a.ranks.size))
        whole = part.local if rank == a.ranks.rank else whole
    return whole


def redistribute(a: ShardedMatrix, layout: Layout) -> ShardedMatrix:
    name = "ShardedMatrix.redistribute"

    def enter() -> Part:
        check_usable(name)
        return entered(Part(a.local, a.layout, a.ranks), None)

    block, error = attempt(enter)
    agree(a.ranks, name, {"shape": a.shape, "dtype": a.dtype.name}, error=error)
    assert block is not None
    with opened(block) as session:
        operand = session.together(lambda: operand_of(block))
        moved = session.deliver(operand.block(session.rank), layout, "T" if operand.row_major else "N")
        result = block.memory.blocks(moved, a.ranks)
    return ShardedMatrix(result.local, layout, a.ranks)


def to_numpy(local: Any) -> np.ndarray:
    memory = DeviceMemory(local)
    with on_device(memory.device):
        return memory.to_numpy(memory.local)  # type: ignore[no-any-return]


def copy(local: Any) -> Any:
    return local.clone() if library_of(local) == "torch" else _method(local, "copy")()


def conj(local: Any) -> Any:
    conjugate = _method(local, "conj")()
    return conjugate.resolve_conj() if library_of(local) == "torch" else conjugate


def astype(local: Any, dtype: np.dtype) -> Any:
    if library_of(local) == "torch":
        return local.to(getattr(sys.modules["torch"], dtype.name))
    return _method(local, "astype")(dtype)


def _method(local: Any, name: str) -> Any:
    method = getattr(local, name, None)
    if method is None:
        kind = type(local)
        raise TypeError(
            f"ShardedMatrix.{name}: blocks of {kind.__module__}.{kind.__qualname__} have no such method"
            "\nhint: make the blocks with your library, and ShardedMatrix.from_local"
        )
    return method
