"""One process, one GPU, one NCCL communicator: what the operations on cuSOLVERMp share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_double, c_float, c_size_t, c_void_p
from typing import Any, TypeVar

import numpy as np

from ....core.problem import ITEMSIZE
from ...cost import tile_for
from ...layout import Layout, best_grid
from ...ranks.protocol import Communicator, MissingRanksError, agree
from .blocks import Given
from .exchange import Block, exchange
from .library import DATA, check, check_blas, library
from .nccl import NcclComm, open_nccl, runtime, tried

__all__ = ["Allocator", "Session", "on_device", "scalar"]

Allocator = Callable[[int], tuple[int, Any]]
T = TypeVar("T")
_MAY_FAIL = ("Potrf", "Getrf", "Syevd", "Gesvd")
_UNKNOWN = -(1 << 30)  # it failed, and did not say where
_LETTER = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
_NOTHING = (0, 0, None)


class Session:
    """A device, its stream and the communicators of a group of ranks; kept between calls. See :mod:`cusolvermp_open`."""

    def __init__(self, comm: Communicator, device: int) -> None:
        self.comm, self.rank, self.size, self.device = comm, comm.rank, comm.size, device
        self.library, self.runtime = library(), runtime()
        self.allocate: Allocator = self.runtime.allocate
        self.stream = 0
        self._unusable = ""  # why
        self._handle, self.blas = c_void_p(), c_void_p()
        self._grids: dict[tuple[int, int], tuple[int, NcclComm | None, Any]] = {}
        self._buffers: list[tuple[int, int, Any]] = [_NOTHING, _NOTHING]
        self.workspace = (0, 0)  # of the last call: bytes on the device and on the host
        self.world: NcclComm = open_nccl(comm, device)

        def make() -> None:
            self.stream = self.runtime.stream()
            check(self.library.mp.cusolverMpCreate(byref(self._handle), device, self.stream), "create")
            self.library.opened(self._handle.value or 0)
            check_blas(self.library.blas.cublasCreate_v2(byref(self.blas)))
            check_blas(self.library.blas.cublasSetStream_v2(self.blas, self.stream))

        try:
            agree(comm, "distributed", {}, error=tried(make))
        except MissingRanksError:
            self._abort()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back what the libraries hold, what was made last first. Collective; a second time it does nothing.

        After a rank was missing neither: the libraries would wait for it, and the end of the process takes all.
        """
        if self._unusable:
            return
        with suppress(RuntimeError), on_device(self.device):  # of a device that has failed nothing can be waited for
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
        """A rank is missing: messages to and from it would be waited for without end."""
        self._unusable = "a rank was missing in an earlier call"
        for _, comm, _ in self._grids.values():
            if comm is not None:
                comm.abort()
        self.world.abort()

    # ---- what the exchange needs ----

    def buffers(self, *counts: int) -> tuple[int, ...]:
        """To send and to receive; they grow, and live until the call is done."""
        for i, count in enumerate(counts):
            if count > self._buffers[i][1]:
                self.runtime.wait(self.stream)  # a message of the last exchange may still be on its way from there
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
        """What each rank does alone; where it fails on one, all raise, and none waits for it in the next exchange."""
        if self._unusable:  # the same on all ranks
            raise RuntimeError(f"distributed: this cannot be used any more: {self._unusable}\nhint: make it anew")
        box: list[T] = []
        self._agreed("distributed", tried(lambda: box.append(work())))
        return box[0]

    def _agreed(self, operation: str, error: Exception | None, mine: Any = None) -> list[Any]:
        try:
            return agree(self.comm, operation, {}, error=error, mine=mine)
        except MissingRanksError:
            self._abort()
            raise
        except BaseException:
            # the memory of what is given up goes now, and the stream may still write to it
            with suppress(RuntimeError):
                self.runtime.wait(self.stream)
            raise

    def told(self, value: T, operation: str) -> list[T]:
        """The value of each rank."""
        try:
            return [value] if self.size == 1 else self.comm.allgather(value, operation)
        except MissingRanksError:
            self._abort()
            raise

    def reserve(self, count: int) -> tuple[int, Any]:
        """Memory on all ranks: pointer, and what keeps it."""
        return self.together(lambda: self.allocate(count))

    def empty(self, layout: Layout, dtype: str) -> Block:
        return self.together(lambda: self._empty(layout, dtype))

    def _empty(self, layout: Layout, dtype: str) -> Block:
        rows, columns = layout.local_shape(self.rank)
        pointer, owner = self.allocate(rows * columns * ITEMSIZE[dtype])
        return Block(pointer, layout, dtype, max(rows, 1), owner)

    def bring(self, given: Given, layout: Layout, operation: str = "N") -> Block:
        """A copy of op(given) in tiles."""
        source, operation = given.block(self.rank), _compose(operation, given.row_major)
        return exchange(self, source, layout, lambda: self._empty(layout, given.dtype), operation)

    def give(self, block: Block, layout: Layout, operation: str = "N", offset: tuple[int, int] = (0, 0)) -> Given:
        """op(block)[offset:] as row-major blocks of a layout."""
        turned = layout.transposed
        made = exchange(self, block, turned, lambda: self._empty(turned, block.dtype), _compose(operation, True), offset[::-1])
        return Given(made.pointer, layout, block.dtype, True, made.owner)

    def move(self, given: Given, layout: Layout) -> Given:
        """The same matrix as row-major blocks of another layout."""
        source, turned = given.block(self.rank), layout.transposed
        made = exchange(self, source, turned, lambda: self._empty(turned, given.dtype), "N" if given.row_major else "T")
        self.done()
        return Given(made.pointer, layout, given.dtype, True, made.owner)

    def to_host(self, pointer: int, count: int, dtype: Any) -> np.ndarray:
        found = np.empty(count, dtype)
        self.runtime.copy(found.ctypes.data, pointer, found.nbytes, 2, self.stream)
        self.runtime.wait(self.stream)
        return found

    # ---- the library ----

    def tiles(self, shape: tuple[int, int], operation: str, tile: int | None = None) -> Layout:
        """The layout of a matrix in tiles, on a grid where every row and column owns some."""
        grid = best_grid(self.size, *shape)
        tile = tile or tile_for(shape, grid, operation, "cusolvermp")
        wanted = -(-shape[0] // tile) >= grid[0] and -(-shape[1] // tile) >= grid[1]
        if not wanted:
            raise ValueError(
                f"{operation}: with tile={tile} some of the {grid[0]} x {grid[1]} grid own nothing of {shape[0]} x {shape[1]}"
                f"\nhint: use a smaller tile, at most {max(min(shape[0] // grid[0], shape[1] // grid[1]), 1)}"
            )
        return Layout.cyclic(shape, tile, grid)

    def grid(self, layout: Layout) -> int | None:
        """The library's grid; None on a rank that is not in it. Collective at its first use."""
        found = self._grids.get(layout.grid)
        if found is None:
            found = self._grids[layout.grid] = self._new_grid(layout)
        return found[0] if found[1] is not None else None

    def _new_grid(self, layout: Layout) -> tuple[int, NcclComm | None, Any]:
        part: Any = None
        box: list[NcclComm] = [self.world]
        made = c_void_p()
        if layout.size < self.size:
            part = self.comm.split(0 if layout.place(self.rank) is not None else None, self.rank)
            box.clear()

        # those outside wait for those inside, and learn of their errors
        def make() -> None:
            if part is not None:
                box.append(open_nccl(part, self.device))
            if box:
                p, q = layout.grid
                status = self.library.mp.cusolverMpCreateDeviceGrid(self._handle, byref(made), box[0].handle, p, q, 1)
                check(status, f"a grid of {p} x {q}")

        try:
            self.together(make)
        except BaseException:
            if made.value:
                self.library.mp.cusolverMpDestroyGrid(made)
            if box and box[0] is not self.world:
                box[0].close()
            _close(part)
            raise
        return made.value or 0, box[0] if box else None, part

    def call(self, name: str, layout: Layout, *arguments: Any, dtype: str, skip: tuple[int, ...] = ()) -> int:
        """Run a routine; its status, the same on all ranks. A :class:`Block` stands for pointer, row, column, descriptor.

        ``skip``: arguments that the question for the workspace does not have. The work is done when this returns.
        """
        routine = self.library.routine(name)
        grid = self.grid(layout)
        flat: list[Any] = []
        held: list[int] = []
        work: list[Any] = []  # on the device, on the host, the status
        sizes = c_size_t(), c_size_t()

        def prepare() -> None:
            asked: list[Any] = []
            for i, argument in enumerate(arguments if grid is not None else ()):
                if isinstance(argument, Block):
                    held.append(self._descriptor(grid, argument))
                    argument = (argument.pointer, 1, 1, held[-1])
                else:
                    argument = (argument,)
                flat.extend(argument)
                asked += () if i in skip else argument
            if grid is not None:
                status = routine.ask(self._handle, *asked, DATA[dtype], byref(sizes[0]), byref(sizes[1]))
                check(status, f"{name}, workspace")
                self.workspace = sizes[0].value, sizes[1].value
                # not cleared: it may be as large as the matrix
                work.extend((self.allocate(sizes[0].value), np.empty(max(sizes[1].value, 1), np.uint8), self.allocate(4)))
                self.runtime.zero(work[2][0], 4, self.stream)

        def run() -> int:
            if grid is None:
                return 0
            (pointer, _), host, (info, _) = work
            status = routine.run(
                self._handle, *flat, DATA[dtype], pointer, sizes[0].value, host.ctypes.data, sizes[1].value, info
            )
            found = int(self.to_host(info, 1, np.int32)[0])
            # a matrix that is not positive definite is an "internal error" for potrf (0.8.0 on an H200)
            if status == 7 and name in _MAY_FAIL:
                return found if found > 0 else _UNKNOWN
            check(status, name)
            if found < 0:
                raise RuntimeError(f"distributed: cuSOLVERMp ({name}): argument {-found} is one it does not take")
            return found

        try:
            # one rank without memory must not leave the others waiting inside the library
            self._agreed(name.lower(), tried(prepare))
            box: list[int] = []
            error = tried(lambda: box.append(run()))
            told = self._agreed(name.lower(), error, box[0] if box else 0)
        finally:
            for descriptor in held:
                self.library.mp.cusolverMpDestroyMatrixDesc(descriptor)
        # the ranks need not know the same: the first that failed, else that it failed
        return int(min((info for info in told if info > 0), default=min(told)))

    def _descriptor(self, grid: int | None, block: Block) -> int:
        made, layout = c_void_p(), block.layout
        shape, tiles = layout.shape, (layout.rows.tile, layout.columns.tile)
        status = self.library.mp.cusolverMpCreateMatrixDesc(
            byref(made), grid, DATA[block.dtype], *shape, *tiles, 0, 0, block.lead
        )
        check(status, "a descriptor")
        return made.value or 0

    def done(self) -> None:
        """The results are there, and the buffers go."""
        self.runtime.wait(self.stream)
        self._buffers = [_NOTHING, _NOTHING]

    def release(self) -> None:
        """As :meth:`done`; and the memory is no longer that of the caller's framework, whose allocator may hold an array."""
        try:
            if self.stream and not self._unusable:
                self.runtime.wait(self.stream)
        finally:
            self._buffers = [_NOTHING, _NOTHING]
            self.allocate = self.runtime.allocate


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """The process's current device is this one inside the block, and what it was after it."""
    before = runtime().device()
    runtime().set_device(device)
    try:
        yield
    finally:
        runtime().set_device(before)


def _close(part: Any) -> None:
    """Ranks of torch.distributed and jax.distributed have nothing to give back."""
    if hasattr(part, "close"):
        part.close()


def _compose(operation: str, turned: bool) -> str:
    """op, of memory that holds the transpose."""
    if not turned:
        return operation
    return {"N": "T", "T": "N"}[operation]


def scalar(dtype: str, value: float) -> Any:
    kind = c_float if dtype in ("float32", "complex64") else c_double
    return (kind * 2)(value, 0.0)
