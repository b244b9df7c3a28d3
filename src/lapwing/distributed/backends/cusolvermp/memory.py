"""The block of one rank as cuSOLVERMp sees it: a pointer on a GPU, in memory of the array library that the block belongs to.

:class:`DeviceMemory` is the same for all libraries; the few operations that differ are in an :class:`ArrayLibrary`: torch,
CuPy, JAX, NumPy (copied to the GPU and back), and any other library whose arrays describe their memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from operator import setitem
from typing import Any

import numpy as np

from ....core.memory import UNKNOWN, Memory, library_of, memory_of_array
from ...exchange import finite_triangle, keep_triangle
from ...layout import Layout
from ..protocol import Part
from .nccl import runtime

_ROWS = 1024  # rows checked together, so that masks stay small compared to the block


class CudaArray:
    """A row-major array on a GPU that every library can read: ``cupy.asarray(x)``, ``torch.as_tensor(x)``, and the like.

    Results have this type if the input belongs to a library that lapwing does not know.

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
        # the work on it is complete: there is no stream to wait for
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (pointer, False), "strides": None, "version": 3}

    def get(self) -> np.ndarray:
        """A copy on the host."""
        return _download(self)

    def __repr__(self) -> str:
        return f"CudaArray({' x '.join(map(str, self.shape))} {self.dtype} on GPU {self._device})"


@dataclass(frozen=True)
class ArrayLibrary:
    """The operations that differ between array libraries. ``like`` is an array with the device and dtype of the result."""

    allocate: Callable[[Any, int], Any]  # like, bytes: an array of bytes; MemoryError if the device is full
    typed: Callable[[Any, Any, tuple[int, int]], Any]  # that array, like, shape: a matrix in its memory
    upload: Callable[[Any, np.ndarray], Any]  # like, x: x on the device
    download: Callable[[Any], np.ndarray]
    full: Callable[[Any, tuple[int, int], Any], Any]  # like, shape, value
    contiguous: Callable[[Any], Any]  # the array, or a copy without gaps
    finite: Callable[[Any, Any], bool] | None = None  # x, a mask of elements to ignore or None; None: done on the host
    clear: Callable[[Any, Any], Any] | None = None  # x, mask: sets these elements to zero, in place
    triangle: Callable[[Any, int, bool], Any] | None = None  # x, shift of the diagonal, upper: zero outside the triangle
    write: Callable[[Any, np.ndarray], Any] = lambda x, values: x  # values into the memory of x


class DeviceMemory:
    """The memory of one block. ``allocate`` gets more from the same library; results become arrays of that library."""

    def __init__(self, local: Any) -> None:
        self.library = _library(library_of(local))
        self.local = self.library.contiguous(local)

    @cached_property
    def _memory(self) -> Memory:
        memory = memory_of_array(self.local)
        if not (memory.row_major or memory.column_major):
            raise ValueError("the block is neither row-major nor column-major\nhint: make a contiguous copy of it")
        return memory

    @property
    def pointer(self) -> int:
        return self._memory.pointer

    @cached_property
    def device(self) -> int:
        if self._memory.device[1] != UNKNOWN:
            return self._memory.device[1]
        return runtime().device_of(self.pointer) if self.pointer else runtime().device()

    @property
    def dtype(self) -> str:
        return self._memory.dtype.name

    @property
    def row_major(self) -> bool:
        return self._memory.row_major

    def without_data(self) -> DeviceMemory:
        """The same library and device, and no block."""
        return DeviceMemory(self.library.full(self.local, (0, 0), 0))

    def allocate(self, count: int) -> tuple[int, Any]:
        """Pointer, and the object that keeps the memory."""
        owner = self.library.allocate(self.local, max(count, 1))
        return memory_of_array(owner).pointer, owner

    def put(self, x: np.ndarray) -> Any:
        """An array of the host as an array of this library."""
        return self.library.upload(self.local, np.ascontiguousarray(x))

    def to_numpy(self, x: Any) -> np.ndarray:
        return self.library.download(x)

    def blocks(self, result: Any, ranks: Any) -> Part:
        """A row-major result in memory that :meth:`allocate` returned, as an array of this library."""
        shape = result.layout.local_shape(ranks.rank)
        if 0 in shape:
            return self.filled(result.layout, ranks, 0)
        return Part(self.library.typed(result.owner, self.local, shape), result.layout, ranks)

    def filled(self, layout: Layout, ranks: Any, value: Any) -> Part:
        return Part(self.library.full(self.local, layout.local_shape(ranks.rank), value), layout, ranks)

    def finite(self, block: Any, triangle: str | None) -> bool:
        """No NaN and no Inf in this block, or in its part of a triangle ("lower", "upper")."""
        rows, columns = block.layout.indices(block.ranks.rank)
        if self.library.finite is None:
            values = self.to_numpy(block.local)
            if triangle is None:
                return bool(np.isfinite(values).all())
            return finite_triangle(values, block.layout, block.ranks.rank, upper=triangle == "upper")
        for first in range(0, len(rows) if len(columns) else 0, _ROWS):
            part = slice(first, first + _ROWS)
            outside = None if triangle is None else self._outside(rows[part], columns, triangle == "upper")
            if not self.library.finite(block.local[part], outside):
                return False
        return True

    def keep_triangle(self, block: Any, *, upper: bool) -> Any:
        """Set everything outside the triangle to zero, in place if the library can."""
        rows, columns = block.layout.indices(block.ranks.rank)
        if not len(rows) or not len(columns):
            return block
        if self.library.clear is None and self.library.triangle is None:
            values = self.to_numpy(block.local)
            keep_triangle(values, block.layout, block.ranks.rank, upper=upper)
            return Part(self.library.write(block.local, values), block.layout, block.ranks)
        adjacent = rows[-1] - rows[0] == len(rows) - 1 and columns[-1] - columns[0] == len(columns) - 1
        if self.library.triangle is not None and (adjacent or self.library.clear is None):
            local = self.library.triangle(block.local, int(rows[0] - columns[0]), upper)
            return Part(local, block.layout, block.ranks)
        assert self.library.clear is not None
        for first in range(0, len(rows), _ROWS):
            part = slice(first, first + _ROWS)
            self.library.clear(block.local[part], self._outside(rows[part], columns, upper))
        return block

    def _outside(self, rows: np.ndarray, columns: np.ndarray, upper: bool) -> Any:
        """A mask: these rows and columns of the matrix are outside the triangle."""
        i, j = (self.library.upload(self.local, np.ascontiguousarray(x)) for x in (rows, columns))
        return j[None, :] < i[:, None] if upper else j[None, :] > i[:, None]


class HostMemory(DeviceMemory):
    """A block of the host: the engine works on a copy on the GPU ``device``, and results come back to the host."""

    def __init__(self, local: np.ndarray, device: int) -> None:
        super().__init__(local)
        self.device = device

    @cached_property
    def _copy(self) -> CudaArray:
        return _upload(self.local if self.row_major else self.local.T, self.device)

    @property
    def pointer(self) -> int:
        return self._copy._pointer

    def without_data(self) -> HostMemory:
        return HostMemory(np.empty((0, 0), self.dtype), self.device)

    def allocate(self, count: int) -> tuple[int, Any]:
        return runtime().allocate(count)

    def blocks(self, result: Any, ranks: Any) -> Part:
        shape = result.layout.local_shape(ranks.rank)
        local = CudaArray(result.pointer, shape, result.dtype, self.device, result.owner).get()
        return Part(local, result.layout, ranks)


def device_for(hosts: list[str], rank: int) -> int:
    """The GPU of a rank whose blocks are on the host: the current one if it was chosen, else by the order on its node."""
    current, count = runtime().device(), runtime().count()
    return current if current or count == 1 else hosts[:rank].count(hosts[rank]) % count


# ---- array libraries ----


@cache
def _library(name: str) -> ArrayLibrary:
    return {"torch": _torch, "cupy": _cupy, "jax": _jax, "numpy": _numpy}.get(name, _other)()


def _torch() -> ArrayLibrary:
    torch: Any = sys.modules["torch"]

    def allocate(like: Any, count: int) -> Any:
        try:
            return torch.empty(count, dtype=torch.uint8, device=like.device)
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None

    def typed(owner: Any, like: Any, shape: tuple[int, int]) -> Any:
        return owner[: shape[0] * shape[1] * like.element_size()].view(like.dtype).view(shape)

    return ArrayLibrary(
        allocate,
        typed,
        upload=lambda like, x: torch.from_numpy(x).to(like.device),
        download=lambda x: x.cpu().numpy(),
        full=lambda like, shape, value: like.new_full(shape, value),
        contiguous=lambda x: x if x.is_contiguous() or (x.ndim == 2 and x.mT.is_contiguous()) else x.contiguous(),
        finite=lambda x, outside: bool((x.isfinite() if outside is None else x.isfinite() | outside).all()),
        clear=lambda x, outside: x.masked_fill_(outside, 0),
        triangle=lambda x, shift, upper: (x.triu_ if upper else x.tril_)(shift),
    )


def _cupy() -> ArrayLibrary:
    cupy: Any = sys.modules["cupy"]

    def allocate(like: Any, count: int) -> Any:
        with like.device:
            try:
                return cupy.empty(count, np.uint8)
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise MemoryError(str(error)) from None

    def typed(owner: Any, like: Any, shape: tuple[int, int]) -> Any:
        return owner[: shape[0] * shape[1] * like.dtype.itemsize].view(like.dtype).reshape(shape)

    def on(like: Any, make: Callable[[], Any]) -> Any:
        with like.device:
            return make()

    def finite(x: Any, outside: Any) -> bool:
        with x.device:
            return bool((cupy.isfinite(x) if outside is None else cupy.isfinite(x) | outside).all())

    return ArrayLibrary(
        allocate,
        typed,
        upload=lambda like, x: on(like, lambda: cupy.asarray(x)),
        download=lambda x: cupy.asnumpy(x),
        full=lambda like, shape, value: on(like, lambda: cupy.full(shape, value, like.dtype)),
        contiguous=lambda x: _contiguous(x, cupy),
        finite=finite,
        clear=lambda x, outside: on(x, lambda: setitem(x, outside, 0)),
    )


def _jax() -> ArrayLibrary:
    """JAX's arrays. Results are written into new ones before anybody else can read them."""
    jax: Any = sys.modules["jax"]
    jnp = jax.numpy

    def on(like: Any, make: Callable[[], Any]) -> Any:
        (device,) = like.devices()
        with jax.default_device(device):
            # committed to its device: results of uncommitted arrays go to the first device
            return jax.block_until_ready(jax.device_put(make(), device))

    return ArrayLibrary(
        allocate=lambda like, count: on(like, lambda: jnp.zeros(count, jnp.uint8)),
        typed=lambda owner, like, shape: owner.view(like.dtype).reshape(shape),
        upload=lambda like, x: on(like, lambda: jnp.asarray(x)),
        download=np.asarray,
        full=lambda like, shape, value: on(like, lambda: jnp.full(shape, value, like.dtype)),
        contiguous=jax.block_until_ready,
        finite=lambda x, outside: bool((jnp.isfinite(x) if outside is None else jnp.isfinite(x) | outside).all()),
        triangle=lambda x, shift, upper: (jnp.triu if upper else jnp.tril)(x, shift),
    )


def _numpy() -> ArrayLibrary:
    """Arrays of the host: the engine works on a copy on the GPU."""
    return ArrayLibrary(
        allocate=lambda like, count: np.empty(count, np.uint8),
        typed=lambda owner, like, shape: owner,
        upload=lambda like, x: x,
        download=lambda x: x,
        full=lambda like, shape, value: np.full(shape, value, like.dtype),
        contiguous=lambda x: _contiguous(x, np),
    )


def _contiguous(x: Any, library: Any) -> Any:
    """A NumPy or CuPy array, or a copy without gaps."""
    return x if x.flags.c_contiguous or x.flags.f_contiguous else library.ascontiguousarray(x)


def _other() -> ArrayLibrary:
    """Any other library: memory of the CUDA runtime, and masks on the host, as its functions are not known."""

    def upload(like: Any, x: np.ndarray) -> CudaArray:
        return _upload(x, getattr(like, "_device", 0))

    def write(x: Any, values: np.ndarray) -> Any:
        _copy(memory_of_array(x).pointer, np.ascontiguousarray(values).ctypes.data, values.nbytes, 1)
        return x

    def allocate(like: Any, count: int) -> CudaArray:
        pointer, owner = runtime().allocate(count)
        return CudaArray(pointer, (count,), np.uint8, getattr(like, "_device", 0), owner)

    return ArrayLibrary(
        allocate,
        typed=lambda owner, like, shape: CudaArray(owner._pointer, shape, memory_of_array(like).dtype, owner._device, owner),
        upload=upload,
        download=_download,
        full=lambda like, shape, value: upload(like, np.full(shape, value, memory_of_array(like).dtype)),
        contiguous=lambda x: x,
        write=write,
    )


def _upload(x: np.ndarray, device: int) -> CudaArray:
    x = np.ascontiguousarray(x)
    pointer, owner = runtime().allocate(x.nbytes)
    _copy(pointer, x.ctypes.data, x.nbytes, 1)
    return CudaArray(pointer, x.shape, x.dtype, device, owner)


def _download(x: Any) -> np.ndarray:
    """A row-major or column-major array of any library, on the host."""
    memory = memory_of_array(x)
    values = np.empty(memory.shape if memory.row_major else memory.shape[::-1], memory.dtype)
    _copy(values.ctypes.data, memory.pointer, values.nbytes, 2)
    return values if memory.row_major else values.T


def _copy(to: int, source: int, count: int, kind: int) -> None:
    """On the default stream, complete on return."""
    runtime().copy(to, source, count, kind, 0)
    runtime().wait(0)
