"""Blocks of arrays without an allocator of their own for cuSOLVERMp: of NumPy, and of any library that says where memory lies.

Their device memory is the CUDA runtime's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....core.memory import seen
from ...exchange import finite_triangle, keep_triangle
from ...layout import Layout
from .nccl import runtime

__all__ = ["CudaArray", "HostMemory", "PlainBlocks", "PlainMemory", "device_for"]


class CudaArray:
    """A row-major array on a GPU that every library can take: ``cupy.asarray(x)``, ``torch.as_tensor(x)``, and the like.

    It is what results are where the input is of a library that this one does not know.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: Any, device: int, owner: Any) -> None:
        self.shape, self.ndim, self.dtype = shape, len(shape), np.dtype(dtype)
        self._device, self._pointer, self._owner = device, pointer, owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        pointer = self._pointer if 0 not in self.shape else 0
        # the work on it is done: there is no stream to wait for
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (pointer, False), "strides": None, "version": 3}

    def get(self) -> np.ndarray:
        """A copy on the host."""
        return _download(self._pointer, self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"CudaArray({' x '.join(map(str, self.shape))} {self.dtype} on GPU {self._device})"


@dataclass(frozen=True)
class PlainBlocks:
    """What one rank holds of a matrix, as an engine sees it."""

    local: Any
    layout: Layout
    ranks: Any
    memory: Any


class PlainMemory:
    """Of an array that tells where its memory lies; results are :class:`CudaArray`."""

    def __init__(self, local: Any) -> None:
        self.local, self._seen = local, seen(local)
        if not (self._seen.row_major or self._seen.column_major):
            raise ValueError("the block is neither row-major nor column-major\nhint: make a contiguous copy of it")
        self.pointer, self.row_major, self.dtype = self._seen.pointer, self._seen.row_major, self._seen.dtype.name
        device = self._seen.device
        if device is None:
            device = runtime().device_of(self.pointer) if self.pointer else runtime().device()
        self.device = device

    @classmethod
    def of(cls, local: Any) -> PlainMemory:
        return cls(local)

    def without_data(self) -> PlainMemory:
        pointer, owner = self.allocate(1)
        return PlainMemory(CudaArray(pointer, (0, 0), self.dtype, self.device, owner))

    def allocate(self, count: int) -> tuple[int, Any]:
        return runtime().allocate(count)

    def put(self, x: np.ndarray) -> CudaArray:
        x = np.ascontiguousarray(x)
        pointer, owner = self.allocate(x.nbytes)
        _copy(pointer, x.ctypes.data, x.nbytes, 1)
        return CudaArray(pointer, x.shape, x.dtype, self.device, owner)

    @staticmethod
    def to_numpy(x: Any) -> np.ndarray:
        there = seen(x)
        if there.row_major:
            return _download(there.pointer, there.shape, there.dtype)
        return _download(there.pointer, there.shape[::-1], there.dtype).T

    def blocks(self, given: Any, ranks: Any) -> PlainBlocks:
        local = CudaArray(given.pointer, given.layout.local_shape(ranks.rank), given.dtype, self.device, given.owner)
        return PlainBlocks(local, given.layout, ranks, self)

    def filled(self, layout: Layout, ranks: Any, value: float) -> PlainBlocks:
        return PlainBlocks(self.put(np.full(layout.local_shape(ranks.rank), value, self.dtype)), layout, ranks, self)

    def finite(self, block: Any, triangle: str | None) -> bool:
        """On the host: a library that is not known has no kernels to call."""
        return _finite(self.to_numpy(block.local), block, triangle)

    def keep_triangle(self, block: Any, *, upper: bool) -> PlainBlocks:
        local = self.to_numpy(block.local)
        keep_triangle(local, block.layout, block.ranks.rank, upper=upper)
        _copy(seen(block.local).pointer, np.ascontiguousarray(local).ctypes.data, local.nbytes, 1)
        return PlainBlocks(block.local, block.layout, block.ranks, self)


class HostMemory:
    """Of a NumPy array: a copy on the GPU is what the engine sees, and results come back to the host."""

    def __init__(self, local: np.ndarray, device: int) -> None:
        self.device, self.dtype = device, local.dtype.name
        self.row_major = bool(local.flags.c_contiguous)
        if not self.row_major and not local.flags.f_contiguous:
            local, self.row_major = np.ascontiguousarray(local), True
        self.local = local
        self._there: tuple[int, Any] | None = None

    @property
    def pointer(self) -> int:
        if self._there is None:
            self._there = self.allocate(self.local.nbytes)
            _copy(self._there[0], self.local.ctypes.data, self.local.nbytes, 1)
        return self._there[0]

    def without_data(self) -> HostMemory:
        return HostMemory(np.empty((0, 0), self.dtype), self.device)

    def allocate(self, count: int) -> tuple[int, Any]:
        return runtime().allocate(count)

    def put(self, x: np.ndarray) -> np.ndarray:
        return x

    @staticmethod
    def to_numpy(x: np.ndarray) -> np.ndarray:
        return x

    def blocks(self, given: Any, ranks: Any) -> PlainBlocks:
        local = _download(given.pointer, given.layout.local_shape(ranks.rank), np.dtype(given.dtype))
        return PlainBlocks(local, given.layout, ranks, self)

    def filled(self, layout: Layout, ranks: Any, value: float) -> PlainBlocks:
        return PlainBlocks(np.full(layout.local_shape(ranks.rank), value, self.dtype), layout, ranks, self)

    def finite(self, block: Any, triangle: str | None) -> bool:
        return _finite(block.local, block, triangle)

    def keep_triangle(self, block: Any, *, upper: bool) -> PlainBlocks:
        keep_triangle(block.local, block.layout, block.ranks.rank, upper=upper)
        return PlainBlocks(block.local, block.layout, block.ranks, self)


def device_for(hosts: list[str], rank: int) -> int:
    """The GPU of a rank whose blocks are on the host: the current one if it was chosen, else by the order on its node."""
    current, count = runtime().device(), runtime().count()
    return current if current or count == 1 else hosts[:rank].count(hosts[rank]) % count


def _finite(local: np.ndarray, block: Any, triangle: str | None) -> bool:
    if triangle is None:
        return bool(np.isfinite(local).all())
    return finite_triangle(local, block.layout, block.ranks.rank, upper=triangle == "upper")


def _download(pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    found = np.empty(shape, dtype)
    _copy(found.ctypes.data, pointer, found.nbytes, 2)
    return found


def _copy(to: int, source: int, count: int, kind: int) -> None:
    """On the default stream; waited for."""
    runtime().copy(to, source, count, kind, 0)
    runtime().wait(0)
