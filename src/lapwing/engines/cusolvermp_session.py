"""One process, one GPU, one NCCL communicator: what the operations on cuSOLVERMp share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_double, c_float, c_size_t, c_void_p, create_string_buffer
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..core.communicator import Communicator, agree
from ..core.layout import Layout, best_grid
from ..core.problem import ITEMSIZE
from .cusolvermp_library import DATA, check, library
from .device_exchange import Block, exchange
from .nccl import NcclComm, open_nccl, runtime, tried
from .scaling import tile_for

__all__ = ["Allocator", "Given", "Session", "diagonal_indices", "diagonal_places", "on_device", "open_session"]

Allocator = Callable[[int], tuple[int, Any]]
T = TypeVar("T")
_MAY_FAIL = ("Potrf", "Getrf", "Syevd")
_UNKNOWN = -(1 << 30)  # it failed, and did not say where
_LETTER = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}


@dataclass(frozen=True)
class Given:
    """The block of a rank as its framework has it: memory on the device, which nobody else writes to meanwhile."""

    pointer: int
    layout: Layout
    dtype: str
    row_major: bool = True
    owner: Any = None

    def block(self, rank: int) -> Block:
        """Column-major: of the transpose, where the memory is row-major."""
        layout = self.layout.transposed if self.row_major else self.layout
        return Block(self.pointer, layout, self.dtype, max(layout.local_shape(rank)[0], 1), self.owner)


class Session:
    """A device, its stream and the communicators of a group of ranks; kept between calls. See :func:`open_session`."""

    def __init__(self, comm: Communicator, device: int) -> None:
        self.comm, self.rank, self.size, self.device = comm, comm.rank, comm.size, device
        self.library = library()
        self.runtime = runtime()
        self.world: NcclComm = open_nccl(comm, device)
        self.allocate: Allocator = self.runtime.allocate
        handle, blas = c_void_p(), c_void_p()

        def make() -> None:
            self.stream = self.runtime.stream()
            check(self.library.mp.cusolverMpCreate(byref(handle), device, self.stream), "create")
            self.library.opened(handle.value or 0)
            check(self.library.blas.cublasCreate_v2(byref(blas)), "cuBLAS")
            check(self.library.blas.cublasSetStream_v2(blas, self.stream), "cuBLAS")

        agree(comm, "distributed", {}, error=tried(make))
        self.handle, self._blas = handle.value or 0, blas
        self._grids: dict[tuple[int, int], tuple[int, NcclComm | None]] = {}
        self._buffers: list[tuple[int, int, Any]] = [(0, 0, None), (0, 0, None)]
        self.workspace = (0, 0)  # of the last call: bytes on the device and on the host

    # ---- what the exchange needs ----

    def buffers(self, *counts: int) -> tuple[int, ...]:
        """To send and to receive; they grow, and live until the call is done."""
        for i, count in enumerate(counts):
            if count > self._buffers[i][1]:
                self._buffers[i] = (0, 0, None)
                pointer, owner = self.allocate(count)
                self._buffers[i] = (pointer, count, owner)
        return tuple(pointer for pointer, _, _ in self._buffers)

    def swap(self, sent: tuple[int, int, int], received: tuple[int, int, int]) -> None:
        self.world.swap(sent, received, self.stream)

    def turn(self, operation: str, rows: int, columns: int, source: int, lead: int, target: int, to: int, dtype: str) -> None:
        """target <- op(source), rows x columns."""
        letter = _LETTER[dtype]
        one, zero = _scalar(dtype, 1), _scalar(dtype, 0)
        call = getattr(self.library.blas, f"cublas{letter}geam")
        code = {"T": 1, "C": 2}[operation]
        # the second summand has weight zero and is not read
        status = call(self._blas, code, 0, rows, columns, one, source, lead, zero, target, to, target, to)
        check(status, "transpose")

    # ---- blocks ----

    def together(self, work: Callable[[], T]) -> T:
        """What each rank does alone; where it fails on one, all raise, and none waits for it in the next exchange."""
        box: list[T] = []
        agree(self.comm, "distributed", {}, error=tried(lambda: box.append(work())))
        return box[0]

    def told(self, value: T, operation: str) -> list[T]:
        """The value of each rank."""
        return [value] if self.size == 1 else self.comm.allgather(value, operation)

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

    def identity(self, layout: Layout, dtype: str) -> Block:
        made = self.empty(layout, dtype)
        rows, columns = layout.local_shape(self.rank)
        self.runtime.zero(made.pointer, rows * columns * made.itemsize, self.stream)
        size, ones = made.itemsize, np.ones(layout.rows.tile, dtype)
        there, keep = self.allocate(ones.nbytes)
        self.runtime.copy(there, ones.ctypes.data, ones.nbytes, 1, self.stream)
        for row, column, count in diagonal_places(layout, self.rank):
            self.runtime.copy_2d(made.at(row, column), (made.lead + 1) * size, there, size, size, count, 3, self.stream)
        self.runtime.wait(self.stream)  # ``ones`` must live until it was read
        del keep
        return made

    def diagonal(self, block: Block) -> np.ndarray:
        """Of a square matrix in tiles, the part that this rank holds."""
        parts, size, start = diagonal_places(block.layout, self.rank), block.itemsize, 0
        total = sum(count for _, _, count in parts)
        packed, keep = self.allocate(total * size)
        for row, column, count in parts:
            to = packed + start * size
            self.runtime.copy_2d(to, size, block.at(row, column), (block.lead + 1) * size, size, count, 3, self.stream)
            start += count
        found = self.to_host(packed, total, block.dtype)
        del keep
        return found

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
            inside = layout.place(self.rank) is not None
            comm: NcclComm | None = self.world
            if layout.size < self.size:
                part = self.comm.split(0 if inside else None, self.rank)
                comm = None if part is None else open_nccl(part, self.device)
            made = c_void_p()

            def make() -> None:
                if comm is not None:
                    p, q = layout.grid
                    status = self.library.mp.cusolverMpCreateDeviceGrid(self.handle, byref(made), comm.handle, p, q, 1)
                    check(status, f"a grid of {p} x {q}")

            self.together(make)
            found = self._grids[layout.grid] = made.value or 0, comm
        return found[0] if found[1] is not None else None

    def call(self, name: str, layout: Layout, *arguments: Any, dtype: str, skip: tuple[int, ...] = ()) -> int:
        """Run a routine; its status, the same on all ranks. A :class:`Block` stands for pointer, row, column, descriptor.

        ``skip``: arguments that the question for the workspace does not have.
        """
        routine = self.library.routine(name)
        grid = self.grid(layout)
        held: list[Any] = []
        error: Exception | None = None
        info = 0
        if grid is not None:
            flat: list[Any] = []
            asked: list[Any] = []
            for i, argument in enumerate(arguments):
                if isinstance(argument, Block):
                    held.append(self._descriptor(grid, argument))
                    argument = (argument.pointer, 1, 1, held[-1])
                elif not isinstance(argument, tuple):
                    argument = (argument,)
                flat += argument
                asked += () if i in skip else argument
            on_device, on_host = c_size_t(), c_size_t()
            work: list[Any] = []

            def prepare() -> None:
                check(routine.ask(self.handle, *asked, DATA[dtype], byref(on_device), byref(on_host)), f"{name}, workspace")
                self.workspace = on_device.value, on_host.value
                work.append(self.allocate(on_device.value))
                work.append(create_string_buffer(max(on_host.value, 1)))
                work.append(self.allocate(4))
                self.runtime.zero(work[2][0], 4, self.stream)

            error = tried(prepare)
        # one rank without memory must not leave the others waiting inside the library
        agree(self.comm, name.lower(), {}, error=error)
        if grid is not None:

            def run() -> int:
                status = routine.run(
                    self.handle, *flat, DATA[dtype], work[0][0], on_device.value, work[1], on_host.value, work[2][0]
                )
                found = int(self.to_host(work[2][0], 1, np.int32)[0])
                # a matrix that is not positive definite is an "internal error" for potrf (0.8.0 on an H200)
                if status == 7 and name in _MAY_FAIL:
                    return found if found > 0 else _UNKNOWN
                check(status, name)
                return found

            box: list[int] = []
            error = tried(lambda: box.append(run()))
            info = box[0] if box else 0
            for descriptor in held:
                self.library.mp.cusolverMpDestroyMatrixDesc(descriptor)
        told = agree(self.comm, name.lower(), {}, error=error, mine=info)
        return int(max(told, key=abs))

    def _descriptor(self, grid: int, block: Block) -> int:
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
        self._buffers = [(0, 0, None), (0, 0, None)]


def open_session(comm: Communicator, device: int, allocate: Allocator | None = None) -> Session:
    """The session of a communicator on a device, made at its first use (collective)."""
    kept = comm.__dict__.setdefault("cusolvermp", {}) if comm.size > 1 else _ALONE
    session = kept.get(device)
    if session is None:
        session = kept[device] = Session(comm, device)
    session.runtime.set_device(device)
    session.allocate = allocate or session.runtime.allocate
    session.runtime.wait_all()  # what the caller's streams are still writing
    return session  # type: ignore[no-any-return]


_ALONE: dict[int, Session] = {}


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """The process's current device is this one inside the block, and what it was after it."""
    before = runtime().device()
    runtime().set_device(device)
    try:
        yield
    finally:
        runtime().set_device(before)


def diagonal_places(layout: Layout, rank: int) -> list[tuple[int, int, int]]:
    """Where the diagonal runs through this rank's tiles: local row, local column, how far."""
    place = layout.place(rank)
    if place is None:
        return []
    n, tile = min(layout.shape), layout.rows.tile
    found = []
    for start in range(0, n, tile):
        number = start // tile
        if (number % layout.grid[0], number % layout.grid[1]) == place:
            found.append((int(layout.rows.local(start)), int(layout.columns.local(start)), min(tile, n - start)))
    return found


def diagonal_indices(layout: Layout, rank: int) -> np.ndarray:
    rows = layout.indices(rank)[0]
    return np.concatenate([rows[i : i + count] for i, _, count in diagonal_places(layout, rank)] or [np.arange(0)])


def _compose(operation: str, turned: bool) -> str:
    """op, of memory that holds the transpose."""
    if not turned:
        return operation
    return {"N": "T", "T": "N"}[operation]


def _scalar(dtype: str, value: float) -> Any:
    kind = c_float if dtype in ("float32", "complex64") else c_double
    return (kind * 2)(value, 0.0)
