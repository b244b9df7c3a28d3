"""One process, one GPU, one NCCL communicator: the state that all operations on cuSOLVERMp share."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_double, c_float, c_size_t, c_void_p
from typing import Any, TypeVar

import numpy as np

from ....core.problem import ITEMSIZE
from ...cost import tile_for
from ...layout import Layout
from ...ranks.protocol import Communicator, MissingRanksError, agree, attempt
from ...tiles import best_grid
from .blocks import Operand
from .exchange import Block, exchange
from .library import DATA, check, check_blas, library
from .nccl import NcclComm, open_nccl, runtime

Allocator = Callable[[int], tuple[int, Any]]
T = TypeVar("T")
_MAY_FAIL = ("Potrf", "Getrf", "Syevd", "Gesvd")
_UNKNOWN = -(1 << 30)  # the status of a routine that failed without saying where
_LETTER = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
_NOTHING = (0, 0, None)


class Session:
    """A device, its stream and the communicators of a group of ranks; kept between calls, see :func:`open_session`."""

    def __init__(self, comm: Communicator, device: int) -> None:
        self.comm, self.rank, self.size, self.device = comm, comm.rank, comm.size, device
        self.library, self.runtime = library(), runtime()
        self.allocate: Allocator = self.runtime.allocate
        self.stream = 0
        self._unusable = ""  # the reason
        self._handle, self.blas = c_void_p(), c_void_p()
        self._grids: dict[tuple[int, int], tuple[int, NcclComm | None, Any]] = {}
        self._buffers: list[tuple[int, int, Any]] = [_NOTHING, _NOTHING]
        self.workspace = (0, 0)  # bytes on the device and on the host in the last call
        self.world: NcclComm = open_nccl(comm, device)

        def make() -> None:
            self.stream = self.runtime.stream()
            check(self.library.mp.cusolverMpCreate(byref(self._handle), device, self.stream), "create")
            self.library.opened(self._handle.value or 0)
            check_blas(self.library.blas.cublasCreate_v2(byref(self.blas)))
            check_blas(self.library.blas.cublasSetStream_v2(self.blas, self.stream))

        try:
            agree(comm, "distributed", {}, error=attempt(make)[1])
        except MissingRanksError:
            self._abort()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free everything that the libraries hold, the last first. Collective; a second call does nothing.

        If a rank is missing nothing is freed, as the libraries would wait for it; the end of the process frees everything.
        """
        if self._unusable:
            return
        with suppress(RuntimeError), on_device(self.device):  # waiting for a device that has failed raises
            self._close()

    def _close(self) -> None:
        with suppress(RuntimeError):
            self.release()
        self._unusable = "its communicator was freed"
        for grid, comm, part in reversed(self._grids.values()):
            if grid:
                self.library.mp.cusolverMpDestroyGrid(grid)
            if comm is not None and comm is not self.world:
                comm.close()
            _close(part)
        self._grids.clear()
        if self.blas:
            self.library.blas.cublasDestroy_v2(self.blas)
        if self._handle:
            self.library.mp.cusolverMpDestroy(self._handle)
        self.blas, self._handle = c_void_p(), c_void_p()
        self.world.close()
        if self.stream:
            self.runtime.destroy_stream(self.stream)
        self.stream = 0

    def _abort(self) -> None:
        """End the messages to and from a missing rank, which would wait forever."""
        self._unusable = "a rank was missing in an earlier call"
        for _, comm, _ in self._grids.values():
            if comm is not None:
                comm.abort()
        self.world.abort()

    # ---- for the exchange ----

    def buffers(self, *counts: int) -> tuple[int, ...]:
        """Pointers of the buffers for sending and receiving. They grow, and live until the call ends."""
        for i, count in enumerate(counts):
            if count > self._buffers[i][1]:
                self.runtime.wait(self.stream)  # a message of the last exchange may still use it
                self._buffers[i] = _NOTHING
                pointer, owner = self.allocate(count)
                self._buffers[i] = (pointer, count, owner)
        return tuple(pointer for pointer, _, _ in self._buffers)

    def swap(self, sent: tuple[int, int, int], received: tuple[int, int, int]) -> None:
        self.world.swap(sent, received, self.stream)

    def turn(self, operation: str, rows: int, columns: int, source: int, lead: int, target: int, to: int, dtype: str) -> None:
        """target <- op(source), rows x columns."""
        one, zero = scalar(dtype, 1), scalar(dtype, 0)
        call = getattr(self.library.blas, f"cublas{_LETTER[dtype]}geam")
        code = {"T": 1, "C": 2}[operation]
        # the second summand has weight zero and is not read
        check_blas(call(self.blas, code, 0, rows, columns, one, source, lead, zero, target, to, target, to))

    # ---- blocks ----

    def together(self, work: Callable[[], T]) -> T:
        """Work that each rank does alone. If it fails on one rank, all raise, so that none waits in the next exchange."""
        if self._unusable:  # the same on all ranks
            raise RuntimeError(
                f"distributed: this communicator cannot be used any more: {self._unusable}\nhint: create it again"
            )
        result, error = attempt(work)
        self._agreed("distributed", error)
        return result  # type: ignore[return-value]

    def _agreed(self, operation: str, error: Exception | None, mine: Any = None) -> list[Any]:
        try:
            return agree(self.comm, operation, {}, error=error, mine=mine)
        except MissingRanksError:
            self._abort()
            raise
        except BaseException:
            # memory is freed after this, and the stream may still write to it
            with suppress(RuntimeError):
                self.runtime.wait(self.stream)
            raise

    def allgather(self, value: T, operation: str) -> list[T]:
        """The value of each rank."""
        try:
            return [value] if self.size == 1 else self.comm.allgather(value, operation)
        except MissingRanksError:
            self._abort()
            raise

    def reserve(self, count: int) -> tuple[int, Any]:
        """Memory on all ranks: its pointer, and the object that keeps it."""
        return self.together(lambda: self.allocate(count))

    def empty(self, layout: Layout, dtype: str) -> Block:
        return self.together(lambda: self._empty(layout, dtype))

    def _empty(self, layout: Layout, dtype: str) -> Block:
        rows, columns = layout.local_shape(self.rank)
        pointer, owner = self.allocate(rows * columns * ITEMSIZE[dtype])
        return Block(pointer, layout, dtype, max(rows, 1), owner)

    def bring(self, operand: Operand, layout: Layout, operation: str = "N") -> Block:
        """A copy of op(operand) in tiles."""
        source, operation = operand.block(self.rank), _compose(operation, operand.row_major)
        return exchange(self, source, layout, lambda: self._empty(layout, operand.dtype), operation)

    def give(self, block: Block, layout: Layout, operation: str = "N", offset: tuple[int, int] = (0, 0)) -> Operand:
        """op(block)[offset:] as row-major blocks of a layout."""
        turned = layout.transposed
        moved = exchange(self, block, turned, lambda: self._empty(turned, block.dtype), _compose(operation, True), offset[::-1])
        return Operand(moved.pointer, layout, block.dtype, True, moved.owner)

    def deliver(self, block: Block, layout: Layout, operation: str = "N", offset: tuple[int, int] = (0, 0)) -> Operand:
        """As :meth:`give`, for the last result of a call."""
        result = self.give(block, layout, operation, offset)
        self.done()
        return result

    def to_host(self, pointer: int, count: int, dtype: Any) -> np.ndarray:
        values = np.empty(count, dtype)
        self.runtime.copy(values.ctypes.data, pointer, values.nbytes, 2, self.stream)
        self.runtime.wait(self.stream)
        return values

    # ---- the library ----

    def tiles(self, shape: tuple[int, int], operation: str, tile: int | None = None) -> Layout:
        """The layout of a matrix in tiles, on a grid in which every row and column owns some."""
        grid = best_grid(self.size, *shape)
        tile = tile or tile_for(shape, grid, operation, "cusolvermp")
        if -(-shape[0] // tile) < grid[0] or -(-shape[1] // tile) < grid[1]:
            raise ValueError(
                f"{operation}: with tile={tile} parts of the {grid[0]} x {grid[1]} grid own nothing of {shape[0]} x {shape[1]}"
                f"\nhint: use a smaller tile, at most {max(min(shape[0] // grid[0], shape[1] // grid[1]), 1)}"
            )
        return Layout.cyclic(shape, tile, grid)

    def grid(self, layout: Layout) -> int | None:
        """The library's grid; None on a rank that is not in it. Collective at its first use."""
        if layout.grid not in self._grids:
            self._grids[layout.grid] = self._new_grid(layout)
        grid, comm, _ = self._grids[layout.grid]
        return grid if comm is not None else None

    def _new_grid(self, layout: Layout) -> tuple[int, NcclComm | None, Any]:
        part: Any = None
        box: list[NcclComm] = [self.world]
        grid = c_void_p()
        if layout.size < self.size:
            part = self.comm.split(0 if layout.place(self.rank) is not None else None, self.rank)
            box.clear()

        # ranks outside the grid wait for those inside, and raise their errors too
        def make() -> None:
            if part is not None:
                box.append(open_nccl(part, self.device))
            if box:
                p, q = layout.grid
                status = self.library.mp.cusolverMpCreateDeviceGrid(self._handle, byref(grid), box[0].handle, p, q, 1)
                check(status, f"a grid of {p} x {q}")

        try:
            self.together(make)
        except BaseException:
            if grid.value:
                self.library.mp.cusolverMpDestroyGrid(grid)
            if box and box[0] is not self.world:
                box[0].close()
            _close(part)
            raise
        return grid.value or 0, box[0] if box else None, part

    def call(self, name: str, layout: Layout, *arguments: Any, dtype: str, skip: tuple[int, ...] = ()) -> int:
        """Run a routine; returns its status, the same on all ranks. A :class:`Block` becomes pointer, row, column, descriptor.

        ``skip``: arguments that the query for the workspace does not take. The work is complete when this returns.
        """
        routine, query = self.library.routine(name)
        grid = self.grid(layout)
        flat: list[Any] = []
        descriptors: list[int] = []
        work: list[Any] = []  # on the device, on the host, the status
        sizes = c_size_t(), c_size_t()

        def prepare() -> None:
            queried: list[Any] = []
            for i, argument in enumerate(arguments if grid is not None else ()):
                if isinstance(argument, Block):
                    descriptors.append(self._descriptor(grid, argument))
                    argument = (argument.pointer, 1, 1, descriptors[-1])
                else:
                    argument = (argument,)
                flat.extend(argument)
                queried += () if i in skip else argument
            if grid is not None:
                status = query(self._handle, *queried, DATA[dtype], byref(sizes[0]), byref(sizes[1]))
                check(status, f"{name}, workspace")
                self.workspace = sizes[0].value, sizes[1].value
                # not cleared, as it may be as large as the matrix
                work.extend((self.allocate(sizes[0].value), np.empty(max(sizes[1].value, 1), np.uint8), self.allocate(4)))
                self.runtime.zero(work[2][0], 4, self.stream)

        def run() -> int:
            if grid is None:
                return 0
            (pointer, _), host, (info, _) = work
            status = routine(self._handle, *flat, DATA[dtype], pointer, sizes[0].value, host.ctypes.data, sizes[1].value, info)
            reported = int(self.to_host(info, 1, np.int32)[0])
            # a matrix that is not positive definite is an "internal error" for potrf (0.8.0 on an H200)
            if status == 7 and name in _MAY_FAIL:
                return reported if reported > 0 else _UNKNOWN
            check(status, name)
            if reported < 0:
                raise RuntimeError(f"distributed: cuSOLVERMp ({name}): it refuses argument {-reported}")
            return reported

        try:
            # one rank without memory must not leave the others waiting inside the library
            self._agreed(name.lower(), attempt(prepare)[1])
            status, error = attempt(run)
            statuses = self._agreed(name.lower(), error, status)
        finally:
            for descriptor in descriptors:
                self.library.mp.cusolverMpDestroyMatrixDesc(descriptor)
        # the ranks may report different statuses: the smallest failing pivot, else only that it failed
        return int(min((info for info in statuses if info > 0), default=min(statuses)))

    def _descriptor(self, grid: int | None, block: Block) -> int:
        descriptor, layout = c_void_p(), block.layout
        shape, tiles = layout.shape, (layout.rows.tile, layout.columns.tile)
        status = self.library.mp.cusolverMpCreateMatrixDesc(
            byref(descriptor), grid, DATA[block.dtype], *shape, *tiles, 0, 0, block.lead
        )
        check(status, "a descriptor")
        return descriptor.value or 0

    def done(self) -> None:
        """Wait for the results, and free the buffers."""
        self.runtime.wait(self.stream)
        self._buffers = [_NOTHING, _NOTHING]

    def release(self) -> None:
        """As :meth:`done`, and forget the allocator of the caller's framework, which may keep an array alive."""
        try:
            if self.stream and not self._unusable:
                self.runtime.wait(self.stream)
        finally:
            self._buffers = [_NOTHING, _NOTHING]
            self.allocate = self.runtime.allocate


def open_session(comm: Communicator, device: int, allocate: Allocator | None = None) -> Session:
    """The session of a communicator on a device, created at its first use (collective).

    It is stored in ``kept`` of the communicator, and closed with it. The session of a single process is closed when the process
    ends. Call :meth:`Session.release` after the work.
    """
    kept: dict[Any, Any] = comm.__dict__.setdefault("kept", {}) if comm.size > 1 else _ALONE
    key = ("cusolvermp", device)
    session = kept.get(key)
    if session is None:
        if not _ALONE and kept is _ALONE:
            atexit.unregister(_close_alone)
            atexit.register(_close_alone)
        session = kept[key] = Session(comm, device)
    session.runtime.set_device(device)
    session.allocate = allocate or session.runtime.allocate
    session.runtime.wait_all()  # the caller's streams may still write to the operands
    return session  # type: ignore[no-any-return]


_ALONE: dict[Any, Session] = {}


def _close_alone() -> None:
    """Runs at the end of the process, but not after an error: the device may no longer answer."""
    if getattr(sys, "last_value", None) is None:
        for session in reversed(_ALONE.values()):
            session.close()
    _ALONE.clear()


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make this the current device of the process inside the block."""
    before = runtime().device()
    runtime().set_device(device)
    try:
        yield
    finally:
        runtime().set_device(before)


def _close(part: Any) -> None:
    """Ranks of torch.distributed and jax.distributed have nothing to free."""
    if hasattr(part, "close"):
        part.close()


def _compose(operation: str, turned: bool) -> str:
    """The operation on memory that holds the transpose, if ``turned``."""
    if not turned:
        return operation
    return {"N": "T", "T": "N"}[operation]


def scalar(dtype: str, value: float) -> Any:
    kind = c_float if dtype in ("float32", "complex64") else c_double
    return (kind * 2)(value, 0.0)
