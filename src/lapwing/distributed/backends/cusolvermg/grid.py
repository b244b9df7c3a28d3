"""The GPUs of one process as a row of places: streams, scratch memory, copies between them, and calls of cuSOLVERMg.

Matrices are column-major here (:class:`Blocks`). The library takes tiles of columns, which are dealt to the places in turn. A
GPU may have several places; so layouts for many GPUs can be tried on one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ....core.problem import ITEMSIZE
from ...layout import Axis, Layout
from ..cusolvermp.library import check_blas
from ..cusolvermp.nccl import runtime
from ..cusolvermp.session import scalar
from .library import DATA, check, library

LETTER = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
_OPERATION = {"N": 0, "T": 1, "C": 2}  # cublasOperation_t
_ANYWHERE = 4  # cudaMemcpyDefault: the driver finds the devices from the pointers
UNKNOWN = -(1 << 30)  # the status of a routine that failed without saying where
_MAY_FAIL = ("Potrf", "Getrf", "Syevd")


@dataclass(frozen=True, eq=False)
class Blocks:
    """Column-major blocks of a matrix, one for each place; ``owners`` keep their memory."""

    layout: Layout
    dtype: str
    pointers: tuple[int, ...]
    owners: tuple[Any, ...] = ()

    def lead(self, place: int) -> int:
        """Elements from one column to the next."""
        return max(self.layout.local_shape(place)[0], 1)


class Grid:
    """A row of places on the devices of this process. ``allocate(place, bytes)`` gives memory during a call."""

    def __init__(self, devices: tuple[int, ...]) -> None:
        self.devices, self.size = devices, len(devices)
        self.library, self.runtime = library(), runtime()
        self.allocate: Callable[[int, int], tuple[int, Any]] = self._from_runtime
        self._scratch: dict[int, tuple[int, int, Any]] = {}  # by place: pointer, bytes, owner
        self.workspace = 0  # bytes on each device in the last call
        self._lock = threading.RLock()
        self._streams, self._blas = [0] * self.size, [c_void_p() for _ in devices]
        self._grids: dict[int, tuple[c_void_p, c_void_p]] = {}  # by how many places take part
        with self._on_devices():
            self.runtime.open_peers(set(devices))
            for place in range(self.size):
                self.at(place)
                self._streams[place] = self.runtime.stream()
                check_blas(self.library.blas.cublasCreate_v2(byref(self._blas[place])))
                check_blas(self.library.blas.cublasSetStream_v2(self._blas[place], self._streams[place]))

    @contextmanager
    def _on_devices(self) -> Iterator[None]:
        before = self.runtime.device()
        try:
            yield
        finally:
            self.runtime.set_device(before)

    @contextmanager
    def opened(self, allocate: Callable[[int, int], tuple[int, Any]]) -> Iterator[Grid]:
        """Open the grid for one call, with memory from ``allocate``; waits for other streams, as they may write to operands."""
        with self._lock, self._on_devices():
            self.allocate = allocate
            try:
                self._each_device(self.runtime.wait_all)
                yield self
            finally:
                with suppress(RuntimeError):  # after an error, copies may still use memory that is freed now
                    self.wait()
                self._scratch.clear()
                self.allocate = self._from_runtime

    def at(self, place: int) -> None:
        self.runtime.set_device(self.devices[place])

    def _each_device(self, work: Callable[[], None]) -> None:
        for device in dict.fromkeys(self.devices):
            self.runtime.set_device(device)
            work()

    def wait(self) -> None:
        """Wait for all copies."""
        for place, stream in enumerate(self._streams):
            self.at(place)
            self.runtime.wait(stream)

    def _from_runtime(self, place: int, count: int) -> tuple[int, Any]:
        self.at(place)
        return self.runtime.allocate(count)

    # ---- blocks ----

    def tiles(self, shape: tuple[int, int], tile: int, places: int | None = None) -> Layout:
        """Tiles of columns, dealt to the places in turn; by default places that would get none are left out."""
        used = places or max(1, min(self.size, -(-shape[1] // tile)))
        return Layout(Axis.whole(shape[0]), Axis.cyclic(shape[1], tile, used))

    def empty(self, layout: Layout, dtype: str) -> Blocks:
        pointers, owners = [], []
        for place in range(layout.size):
            rows, columns = layout.local_shape(place)
            pointer, owner = self.allocate(place, rows * columns * ITEMSIZE[dtype])
            pointers.append(pointer)
            owners.append(owner)
        return Blocks(layout, dtype, tuple(pointers), tuple(owners))

    def copy(
        self, source: Blocks, target: Blocks, operation: str = "N", *, first: Callable[[int], int] | None = None,
        lower: bool = False, shift: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """target <- op(source), on the devices. Returns before the copies are done: see :meth:`wait`.

        ``first(j)``: the first row to copy from column j of the source. ``lower``: regions above the diagonal of the target may
        be left out. ``shift``: row i and column j of the source go to i + shift[0] and j + shift[1], or are left out if the
        target does not have them.
        """
        turned = operation != "N"
        axes = (target.layout.columns, target.layout.rows) if turned else (target.layout.rows, target.layout.columns)
        for s in range(source.layout.size):
            place = source.layout.place(s)
            assert place is not None
            rows = _shared(source.layout.rows, place[0], axes[0], shift[0])
            for j, j_part, from_j, to_j, wide in _shared(source.layout.columns, place[1], axes[1], shift[1]):
                for i, i_part, from_i, to_i, high in rows:
                    above = i >= j + wide if turned else j >= i + high
                    skip = 0 if first is None else max(0, first(j) - i)
                    if (lower and above) or skip >= high:
                        continue
                    t = target.layout.rank(j_part, i_part) if turned else target.layout.rank(i_part, j_part)
                    at = (to_j, to_i + skip) if turned else (to_i + skip, to_j)
                    self._copy_region(source, s, (from_i + skip, from_j), target, t, at, (high - skip, wide), operation)

    def _copy_region(
        self, source: Blocks, s: int, first: tuple[int, int], target: Blocks, t: int, to: tuple[int, int],
        shape: tuple[int, int], operation: str,
    ) -> None:  # fmt: skip
        """One region of block ``s`` into block ``t``; ``shape`` is that of the region in the source."""
        size, (rows, columns) = ITEMSIZE[source.dtype], shape
        if not rows or not columns:
            return
        lead, other = source.lead(s), target.lead(t)
        start = source.pointers[s] + (first[0] + first[1] * lead) * size
        end = target.pointers[t] + (to[0] + to[1] * other) * size
        self.at(s)
        if operation != "N":
            rows, columns = columns, rows  # of the result
            if self.devices[s] == self.devices[t]:
                self._transpose(s, operation, rows, columns, start, lead, end, other, source.dtype)
                return
            scratch = self._scratch_of(s, rows * columns * size)
            self._transpose(s, operation, rows, columns, start, lead, scratch, rows, source.dtype)
            start, lead = scratch, rows
        self.runtime.copy_2d(end, other * size, start, lead * size, rows * size, columns, _ANYWHERE, self._streams[s])

    def _transpose(
        self, s: int, operation: str, rows: int, columns: int, source: int, lead: int, to: int, other: int, dtype: str
    ) -> None:
        """target <- op(source), rows x columns, on one device."""
        one, zero = scalar(dtype, 1), scalar(dtype, 0)
        call = getattr(self.library.blas, f"cublas{LETTER[dtype]}geam")
        # the second summand has weight zero and is not read
        check_blas(call(self._blas[s], _OPERATION[operation], 0, rows, columns, one, source, lead, zero, to, other, to, other))

    def _scratch_of(self, place: int, count: int) -> int:
        pointer, size, _ = self._scratch.get(place, (0, 0, None))
        if size < count:
            self.runtime.wait(self._streams[place])  # a copy may still read from it
            self._scratch.pop(place, None)
            pointer, owner = self.allocate(place, count)
            self.at(place)
            self._scratch[place] = (pointer, count, owner)
        return pointer

    def complete_diagonal(self, x: Blocks, start: int = 0) -> None:
        """Both triangles of each diagonal tile of a Hermitian matrix from the lower one: tile <- tile I.

        ``start``: the number of the first column of ``x`` in the matrix.
        """
        size, real = ITEMSIZE[x.dtype], x.dtype.startswith("float")
        tile = min(x.layout.columns.tile, x.layout.shape[1])
        call = getattr(self.library.blas, f"cublas{LETTER[x.dtype]}{'symm' if real else 'hemm'}_v2")
        one, zero = scalar(x.dtype, 1), scalar(x.dtype, 0)
        identity = np.eye(tile, dtype=x.dtype)
        buffers = []  # kept until the streams are done
        for place in range(x.layout.size):
            rows = x.layout.columns.indices(place)
            if not len(rows):
                continue
            self.at(place)
            stream, lead = self._streams[place], x.lead(place)
            unit, copy = self.allocate(place, tile * tile * size), self.allocate(place, tile * tile * size)
            self.at(place)
            buffers += [unit, copy]
            self.runtime.copy(unit[0], identity.ctypes.data, identity.nbytes, 1, stream)
            for local in range(0, len(rows), tile):
                k = min(tile, len(rows) - local)
                at = x.pointers[place] + (start + int(rows[local]) + local * lead) * size
                self.runtime.copy_2d(copy[0], k * size, at, lead * size, k * size, k, _ANYWHERE, stream)
                check_blas(call(self._blas[place], 0, 0, k, k, one, copy[0], k, unit[0], tile, zero, at, lead))
        self.wait()

    def set_identity(self, x: Blocks, start: int = 0) -> None:
        """X <- columns of the identity, from number ``start`` on."""
        size = ITEMSIZE[x.dtype]
        for place in range(x.layout.size):
            rows, columns = x.layout.indices(place)
            self.at(place)
            self.runtime.zero(x.pointers[place], len(rows) * len(columns) * size, self._streams[place])
        one = np.ones(x.layout.shape[1], x.dtype)
        self._diagonal(x, one, start, upload=True)

    def diagonal(self, x: Blocks) -> np.ndarray:
        """The entries on the diagonal, on the host."""
        return self._diagonal(x, np.empty(x.layout.shape[1], x.dtype), 0, upload=False)

    def _diagonal(self, x: Blocks, values: np.ndarray, start: int, upload: bool) -> np.ndarray:
        size, tile = ITEMSIZE[x.dtype], x.layout.columns.tile
        for place in range(x.layout.size):
            rows, lead = x.layout.columns.indices(place), x.lead(place)
            self.at(place)
            for local in range(0, len(rows), tile):
                first, k = int(rows[local]), min(tile, len(rows) - local)
                device = x.pointers[place] + (start + first + local * lead) * size, (lead + 1) * size
                host = values.ctypes.data + first * size, size
                to, source = (device, host) if upload else (host, device)
                self.runtime.copy_2d(*to, *source, size, k, 1 if upload else 2, self._streams[place])
        self.wait()
        return values

    def to_host(self, place: int, pointer: int, count: int, dtype: Any) -> np.ndarray:
        values = np.empty(count, dtype)
        self.at(place)
        self.runtime.copy(values.ctypes.data, pointer, values.nbytes, 2, self._streams[place])
        self.runtime.wait(self._streams[place])
        return values

    # ---- the library ----

    def call(self, name: str, layout: Layout, *arguments: Any, dtype: str) -> int:
        """Run a routine; returns its status. :class:`Blocks` become pointers, row, column, descriptor. Complete on return."""
        routine, query = self.library.routine(name)
        handle, grid = self._opened_for(layout.size)
        flat: list[Any] = []
        kept: list[Any] = []
        try:
            for argument in arguments:
                if isinstance(argument, Blocks):
                    kept.append(self.pointers(argument.pointers))
                    flat += [kept[-1], 1, 1, self._descriptor(grid, argument, kept)]
                else:
                    flat.append(argument)
            kind, count, info = DATA[dtype], c_int64(), c_int()
            self._each_device(self.runtime.wait_all)
            check(query(handle, *flat, kind, byref(count)), f"{name}, workspace")
            self.workspace = count.value * ITEMSIZE[dtype]
            work = [self.allocate(place, self.workspace) for place in range(layout.size)]
            self._each_device(self.runtime.wait_all)
            pointers = self.pointers([pointer for pointer, _ in work])
            status = routine(handle, *flat, kind, pointers, count.value, byref(info))
            self._each_device(self.runtime.wait_all)
        finally:
            for descriptor in (x for x in kept if isinstance(x, c_void_p)):
                self.library.mg.cusolverMgDestroyMatrixDesc(descriptor)
        # a matrix that is not positive definite may be an "internal error"
        if status == 7 and name in _MAY_FAIL:
            return info.value if info.value > 0 else UNKNOWN
        check(status, name)
        if info.value < 0:
            raise RuntimeError(f"distributed: cuSOLVERMg ({name}): it refuses argument {-info.value}")
        return info.value

    @staticmethod
    def pointers(pointers: Any) -> Any:
        """A C array of pointers, one for each place."""
        return (c_void_p * len(pointers))(*pointers)

    def _opened_for(self, size: int) -> tuple[c_void_p, c_void_p]:
        """The handle and a row of the first ``size`` places."""
        if size not in self._grids:
            mg, handle, grid = self.library.mg, c_void_p(), c_void_p()
            devices = (c_int32 * size)(*self.devices[:size])
            check(mg.cusolverMgCreate(byref(handle)), "create")
            check(mg.cusolverMgDeviceSelect(handle, size, devices), f"{size} devices")
            check(mg.cusolverMgCreateDeviceGrid(byref(grid), 1, size, devices, 0), f"a grid of {size} devices")
            self._grids[size] = (handle, grid)
        return self._grids[size]

    def _descriptor(self, grid: c_void_p, x: Blocks, kept: list[Any]) -> c_void_p:
        descriptor, (rows, columns) = c_void_p(), x.layout.shape
        tile = x.layout.columns.tile
        status = self.library.mg.cusolverMgCreateMatrixDesc(byref(descriptor), rows, columns, rows, tile, DATA[x.dtype], grid)
        check(status, "a descriptor")
        kept.append(descriptor)
        return descriptor


def _shared(axis: Axis, part: int, other: Axis, shift: int = 0) -> list[tuple[int, int, int, int, int]]:
    """Runs of indices that ``part`` of one axis shares with the parts of another, whose indices are larger by ``shift``.

    Each is: index, part of the other axis, local index here, local index there, length.
    """
    indices = axis.indices(part)
    indices = indices[(indices + shift >= 0) & (indices + shift < other.n)]
    if not len(indices):
        return []
    here, there = np.asarray(axis.local(indices)), np.asarray(other.local(indices + shift))
    owners = np.broadcast_to(other.owner(indices + shift), indices.shape)
    breaks = (np.diff(indices) != 1) | (np.diff(owners) != 0) | (np.diff(there) != 1) | (np.diff(here) != 1)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    ends = np.append(starts[1:], len(indices))
    return [
        (int(indices[i]), int(owners[i]), int(here[i]), int(there[i]), int(e - i)) for i, e in zip(starts, ends, strict=True)
    ]


@cache
def grid_of(devices: tuple[int, ...]) -> Grid:
    """The grid of these devices, kept between calls, as creating a handle takes long."""
    return Grid(devices)
