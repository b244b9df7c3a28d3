"""Work in the memory of a GPU: cuBLAS and cuSOLVER on one stream, copies in and out on two others, pinned staging buffers.

No array library is needed: CUDA's runtime and libraries are called through ctypes. Blocks are so large that the time of a call
does not matter.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from ..core import libraries
from .space import Piece, spans
from .stores import Store

_LETTER = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
_LEFT, _RIGHT = 0, 1
_LOWER, _UPPER = 0, 1
_PLAIN, _TRANSPOSED, _ADJOINT = 0, 1, 2
_STAGE = 1 << 24  # bytes of a pinned buffer for writing: 256 MB of them took 0.14 s to allocate
_STAGES = 4
_STATUSES = 1 << 16  # factorisations between two checks of their statuses
# threads that copy between pageable and pinned memory: with 16 cores 8 of them moved 44 GB/s beside an H200, with 4 cores 12
# GB/s, whatever the number of threads; the bus moves 54
_COPIERS = 12
_TRIANGLE = 128  # of a triangular solve by cuBLAS: with 512 rows it reached 3.5 Tflop/s on an H200, a product 61


class CudaError(RuntimeError):
    """A call of CUDA failed."""


class Cuda:
    """The calls of CUDA that are needed, on one device. Pointers are numbers; sizes of copies are in bytes."""

    def __init__(self, device: int, operation: str) -> None:
        self.device = device
        self._runtime = libraries.load("cudart", operation=operation)
        for other in ("cublasLt", "nvJitLink", "cusparse"):  # cuSOLVER needs them, and does not always find them itself
            try:
                libraries.load(other, operation=operation, shared=True)
            except OSError:
                continue
        self._blas = libraries.load("cublas", operation=operation, shared=True)
        self._solver = libraries.load("cusolver", operation=operation)
        self.enter()
        self.main, self.inward, self.outward = (self._stream() for _ in range(3))
        self._handle, self._dense = c_void_p(), c_void_p()
        self._check(self._blas.cublasCreate_v2(byref(self._handle)), "cublasCreate")
        self._check(self._blas.cublasSetStream_v2(self._handle, c_void_p(self.main)), "cublasSetStream")
        self._check(self._solver.cusolverDnCreate(byref(self._dense)), "cusolverDnCreate")
        self._check(self._solver.cusolverDnSetStream(self._dense, c_void_p(self.main)), "cusolverDnSetStream")

    def enter(self) -> None:
        self._call("cudaSetDevice", self.device)

    def close(self) -> None:
        self._call("cudaDeviceSynchronize")
        self._solver.cusolverDnDestroy(self._dense)
        self._blas.cublasDestroy_v2(self._handle)
        for stream in (self.main, self.inward, self.outward):
            self._call("cudaStreamDestroy", c_void_p(stream))

    # memory

    def allocate(self, size: int) -> int:
        pointer = c_void_p()
        if self._runtime.cudaMalloc(byref(pointer), c_size_t(size)):
            self._runtime.cudaGetLastError()
            raise MemoryError(f"hosted: the GPU does not have {size} bytes free\nhint: give a smaller memory=")
        return int(pointer.value or 0)

    def release(self, pointer: int) -> None:
        self._runtime.cudaFree(c_void_p(pointer))

    def allocate_pinned(self, size: int) -> int:
        pointer = c_void_p()
        self._call("cudaHostAlloc", byref(pointer), c_size_t(size), 0)
        return int(pointer.value or 0)

    def release_pinned(self, pointer: int) -> None:
        self._runtime.cudaFreeHost(c_void_p(pointer))

    def is_pinned(self, pointer: int) -> bool:
        # cudaPointerAttributes: type, device, two pointers, since CUDA 13 eight more words; type 1 is pinned host memory
        attributes = (c_int * 128)()
        status = self._runtime.cudaPointerGetAttributes(byref(attributes), c_void_p(pointer))
        self._runtime.cudaGetLastError()
        return not status and attributes[0] == 1

    def copy(self, to: int, to_pitch: int, source: int, pitch: int, width: int, height: int, kind: int, stream: int) -> None:
        arguments = (c_void_p(to), c_size_t(to_pitch), c_void_p(source), c_size_t(pitch), c_size_t(width), c_size_t(height))
        self._call("cudaMemcpy2DAsync", *arguments, kind, c_void_p(stream))

    # order

    def _stream(self) -> int:
        stream = c_void_p()
        self._call("cudaStreamCreateWithFlags", byref(stream), 1)  # does not wait for the default stream
        return int(stream.value or 0)

    def event(self) -> int:
        event = c_void_p()
        self._call("cudaEventCreateWithFlags", byref(event), 3)  # no timing; a thread that waits sleeps
        return int(event.value or 0)

    def release_event(self, event: int) -> None:
        self._runtime.cudaEventDestroy(c_void_p(event))

    def record(self, event: int, stream: int) -> None:
        self._call("cudaEventRecord", c_void_p(event), c_void_p(stream))

    def wait(self, stream: int, event: int) -> None:
        self._call("cudaStreamWaitEvent", c_void_p(stream), c_void_p(event), 0)

    def wait_here(self, event: int) -> None:
        self._call("cudaEventSynchronize", c_void_p(event))

    def synchronize(self, stream: int) -> None:
        self._call("cudaStreamSynchronize", c_void_p(stream))

    # work: cuBLAS's and cuSOLVER's routines by their names without the letter of the dtype

    def blas(self, letter: str, routine: str, *arguments: Any) -> None:
        function = getattr(self._blas, f"cublas{letter}{routine}")
        self._check(function(self._handle, *arguments), f"cublas{letter}{routine}")

    def solver(self, letter: str, routine: str, *arguments: Any) -> None:
        function = getattr(self._solver, f"cusolverDn{letter}{routine}")
        self._check(function(self._dense, *arguments), f"cusolverDn{letter}{routine}")

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(getattr(self._runtime, name)(*arguments), name)

    def _check(self, status: int, name: str) -> None:
        if status:
            self._runtime.cudaGetErrorString.restype = ctypes.c_char_p
            text = self._runtime.cudaGetErrorString(status).decode() if name.startswith("cuda") else ""
            raise CudaError(f"hosted: {name} failed with status {status} {text}".rstrip())


def missing(operation: str = "hosted", number: int = 0) -> str:
    """Why this GPU cannot be used; "" if it can."""
    try:
        runtime = libraries.load("cudart", operation=operation)
        count = c_int()
        status = runtime.cudaGetDeviceCount(byref(count))
    except OSError as error:
        return str(error).splitlines()[0]
    if status or not count.value:
        return "CUDA finds no GPU"
    return "" if number < count.value else f"CUDA finds {count.value} GPU{'s' * (count.value > 1)}, counted from 0"


def free_bytes(device: int, operation: str) -> int:
    """The free memory of a GPU."""
    runtime = libraries.load("cudart", operation=operation)
    free, total = c_size_t(), c_size_t()
    if runtime.cudaSetDevice(device) or runtime.cudaMemGetInfo(byref(free), byref(total)):
        raise RuntimeError(f"{operation}: the free memory of device {device} cannot be read\nhint: give a limit, memory=")
    return free.value


@dataclass(frozen=True)
class Matrix:
    """A matrix on the GPU, by rows or by columns; ``lead`` is the distance between two of these, in elements."""

    pointer: int
    shape: tuple[int, int]
    lead: int
    by_columns: bool
    itemsize: int
    owner: Any = None  # keeps the memory

    @property
    def T(self) -> Matrix:
        rows, columns = self.shape
        return Matrix(self.pointer, (columns, rows), self.lead, not self.by_columns, self.itemsize, self.owner)

    def __getitem__(self, index: slice | tuple[slice, slice]) -> Matrix:
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        (r, r_stop, _), (c, c_stop, _) = rows.indices(self.shape[0]), columns.indices(self.shape[1])
        offset = (r + c * self.lead if self.by_columns else r * self.lead + c) * self.itemsize
        shape = max(r_stop - r, 0), max(c_stop - c, 0)
        return Matrix(self.pointer + offset, shape, self.lead, self.by_columns, self.itemsize, self.owner)

    @property
    def lines(self) -> tuple[int, int]:
        """The number of lines (rows or columns) in memory, and their length."""
        return self.shape[::-1] if self.by_columns else self.shape


class _Memory:
    def __init__(self, cuda: Any, size: int, pinned: bool = False) -> None:
        self._release = cuda.release_pinned if pinned else cuda.release
        self.pointer = (cuda.allocate_pinned if pinned else cuda.allocate)(max(size, 16))

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._release(self.pointer)


@dataclass(frozen=True)
class _Exchanges:
    """Exchanges of rows on the GPU, as cuSOLVER counts them: from 1."""

    memory: _Memory
    count: int


class CudaSlot:
    """A block on the GPU, and the pinned buffer through which it gets there."""

    def __init__(self, space: CudaSpace, size: int) -> None:
        self._space, self._cuda = space, space.cuda
        self._device = _Memory(space.cuda, size * space.dtype.itemsize)
        self._size = size
        self._pinned: _Memory | None = None
        self._loaded, self._used = space.cuda.event(), space.cuda.event()

    def __del__(self) -> None:
        if hasattr(self, "_used"):
            self._cuda.release_event(self._loaded)
            self._cuda.release_event(self._used)

    def fill(self, piece: Piece) -> None:
        cuda, space = self._cuda, self._space
        rows, columns = piece.shape
        source = space.pinned_address(piece.store, piece.rows.start, piece.columns.start)
        if source is None:
            if self._pinned is None:
                self._pinned = _Memory(cuda, self._size * space.dtype.itemsize, pinned=True)
            cuda.wait_here(self._loaded)  # the pinned buffer is free once its last copy has arrived
            host = _array_at(self._pinned.pointer, (rows, columns), space.dtype)
            space.in_parts(piece.store.splits, rows, lambda part: _read(piece, part, host))
            source = self._pinned.pointer, columns * space.dtype.itemsize
        width = columns * space.dtype.itemsize
        cuda.wait(cuda.inward, self._used)
        cuda.copy(self._device.pointer, width, *source, width, rows, _TO_DEVICE, cuda.inward)
        cuda.record(self._loaded, cuda.inward)

    def block(self, piece: Piece) -> Matrix:
        self._cuda.wait(self._cuda.main, self._loaded)
        rows, columns = piece.shape
        return Matrix(self._device.pointer, (rows, columns), columns, False, self._space.dtype.itemsize, self)

    def release(self) -> None:
        self._cuda.record(self._used, self._cuda.main)


class CudaSpace:
    name = "cuda"

    def __init__(self, dtype: Any, cuda: Any) -> None:
        self.dtype, self.cuda = np.dtype(dtype), cuda
        self._letter = _LETTER[self.dtype.name]
        self._copiers = ThreadPoolExecutor(min(_COPIERS, _cores()), "lapwing-copy", cuda.enter)
        self._writer = ThreadPoolExecutor(1, "lapwing-hosted", cuda.enter)
        self._pending: SimpleQueue[Future[None]] = SimpleQueue()
        self._stages: SimpleQueue[tuple[_Memory, int]] | None = None
        self._before: list[int] = []  # the columns before each block that has a status
        self._statuses = _Memory(cuda, 4 * _STATUSES)
        self._workspace: _Memory | None = None
        self._workspace_size = 0
        self._pinned: dict[int, bool] = {}
        self._uploaded: dict[int, tuple[np.ndarray, _Exchanges]] = {}  # with the array, so that no other array gets its id
        self._lock = threading.Lock()

    def enter(self) -> None:
        self.cuda.enter()

    def close(self) -> None:
        self._writer.shutdown()
        self._copiers.shutdown()
        self.cuda.synchronize(self.cuda.main)
        while self._stages is not None and not self._stages.empty():
            self.cuda.release_event(self._stages.get()[1])
        self._stages = self._workspace = None
        self._uploaded.clear()

    # memory

    def empty(self, rows: int, columns: int) -> Matrix:
        memory = _Memory(self.cuda, rows * columns * self.dtype.itemsize)
        return Matrix(memory.pointer, (rows, columns), max(columns, 1), False, self.dtype.itemsize, memory)

    def slots(self, count: int, size: int) -> list[CudaSlot]:
        return [CudaSlot(self, size) for _ in range(count)]

    def pinned_address(self, store: Store, row: int, column: int) -> tuple[int, int] | None:
        """The address of an element, and the distance of rows, if the copy engine can read and write there."""
        array = getattr(store, "array", None)
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype or type(store) is not Store:
            return None
        if array.size == 0 or array.strides[1] != array.itemsize or array.strides[0] < array.shape[1] * array.itemsize:
            return None
        if (known := self._pinned.get(id(array))) is None:
            last = array.ctypes.data + array.strides[0] * (len(array) - 1)
            known = self._pinned[id(array)] = self.cuda.is_pinned(array.ctypes.data) and self.cuda.is_pinned(last)
        place = row * array.strides[0] + column * array.itemsize
        return (array.ctypes.data + place, array.strides[0]) if known else None

    def in_parts(self, splits: bool, rows: int, work: Callable[[slice], None]) -> None:
        """Call ``work`` for parts of the rows, in several threads if the store allows it."""
        if not splits or rows < 2 * _COPIERS:
            work(slice(0, rows))
            return
        list(self._copiers.map(work, spans(0, rows, -(-rows // _COPIERS))))

    def copy(self, to: Matrix, block: Matrix) -> None:
        assert to.by_columns == block.by_columns
        lines, length = block.lines
        if lines and length:
            size = self.dtype.itemsize
            pitches = to.pointer, to.lead * size, block.pointer, block.lead * size
            self.cuda.copy(*pitches, length * size, lines, _ON_DEVICE, self.cuda.main)

    def put(self, x: np.ndarray, to: Matrix) -> None:
        x = np.ascontiguousarray(x.T if to.by_columns else x, self.dtype)
        if x.size:
            width, size = x.shape[1] * x.itemsize, self.dtype.itemsize
            self.cuda.copy(to.pointer, to.lead * size, x.ctypes.data, width, width, len(x), _TO_DEVICE, self.cuda.main)
            self.cuda.synchronize(self.cuda.main)

    def get(self, x: Matrix) -> np.ndarray:
        lines, length = x.lines
        host = np.empty((lines, length), self.dtype)
        if host.size:
            size = self.dtype.itemsize
            arguments = host.ctypes.data, length * size, x.pointer, x.lead * size, length * size, lines
            self.cuda.copy(*arguments, _TO_HOST, self.cuda.main)
            self.cuda.synchronize(self.cuda.main)
        return host.T if x.by_columns else host

    def write(self, x: Matrix, store: Store, row: int, column: int, lower: bool = False) -> None:
        lines, length = x.lines
        if not lines or not length:
            return
        cuda, size = self.cuda, self.dtype.itemsize
        self._after(cuda.outward, cuda.main)
        if not x.by_columns and (place := self.pinned_address(store, row, column)) is not None:
            first = min(lines, length) if lower else 0  # everything above the diagonal is set to zero
            if first < lines:
                to, source = place[0] + first * place[1], x.pointer + first * x.lead * size
                cuda.copy(to, place[1], source, x.lead * size, length * size, lines - first, _TO_HOST, cuda.outward)
            if first == 0:
                self._pending.put(self._writer.submit(cuda.synchronize, cuda.outward))
                return
            lines = first
        if self._stages is None:
            self._stages = SimpleQueue()
            for _ in range(_STAGES):
                self._stages.put((_Memory(cuda, _STAGE, pinned=True), cuda.event()))
        for part in spans(0, lines, max(1, _STAGE // (length * size))):
            stage, arrived = self._stages.get()
            count = part.stop - part.start
            assert length * size <= _STAGE
            source = x.pointer + part.start * x.lead * size
            cuda.copy(stage.pointer, length * size, source, x.lead * size, length * size, count, _TO_HOST, cuda.outward)
            cuda.record(arrived, cuda.outward)
            host = _array_at(stage.pointer, (count, length), self.dtype)
            job = _Job(store, row, column, part, x.by_columns, lower)
            self._pending.put(self._writer.submit(self._write, job, host, stage, arrived))

    def _write(self, job: _Job, host: np.ndarray, stage: _Memory, arrived: int) -> None:
        try:
            self.cuda.wait_here(arrived)
            if job.lower:
                for line in range(job.part.start, min(job.part.stop, host.shape[1])):
                    host[line - job.part.start, line + 1 :] = 0
            self.in_parts(job.store.splits, len(host), lambda part: job.write(part, host))
        finally:
            assert self._stages is not None
            self._stages.put((stage, arrived))

    def fence(self) -> None:
        self._after(self.cuda.main, self.cuda.outward)

    def flush(self) -> None:
        while not self._pending.empty():
            self._pending.get().result()

    def _after(self, stream: int, other: int) -> None:
        """Later work on ``stream`` waits for the work that is now on ``other``."""
        event = self.cuda.event()
        self.cuda.record(event, other)
        self.cuda.wait(stream, event)
        self.cuda.release_event(event)

    # work

    def gemm(
        self,
        c: Matrix,
        a: Matrix,
        b: Matrix,
        adjoint_a: bool = False,
        adjoint_b: bool = False,
        alpha: float = -1.0,
        beta: float = 1.0,
    ) -> None:
        inner = a.shape[0 if adjoint_a else 1]
        if 0 in c.shape or inner == 0:
            return
        # cuBLAS counts by columns: C by rows is C^T = B^T A^T
        if c.by_columns:
            m, n, first, second = *c.shape, self._operand(a, adjoint_a, False), self._operand(b, adjoint_b, False)
        else:
            n, m, first, second = *c.shape, self._operand(b, adjoint_b, True), self._operand(a, adjoint_a, True)
        numbers = first[1], second[1], m, n, inner
        left, right = (c_void_p(first[0].pointer), first[0].lead), (c_void_p(second[0].pointer), second[0].lead)
        target = self._scalar(beta), c_void_p(c.pointer), c.lead
        self.cuda.blas(self._letter, "gemm_v2", *numbers, self._scalar(alpha), *left, *right, *target)

    def _operand(self, x: Matrix, adjoint: bool, transposed: bool) -> tuple[Matrix, int]:
        """The matrix, and cuBLAS's operation that turns the columns in memory into it, or its adjoint, or their transpose."""
        transpose = adjoint ^ transposed ^ (not x.by_columns)
        conjugate = adjoint and self.dtype.kind == "c"
        assert transpose or not conjugate, "cuBLAS conjugates only what it transposes"
        return x, (_ADJOINT if conjugate else _TRANSPOSED) if transpose else _PLAIN

    def trsm(
        self, t: Matrix, x: Matrix, *, lower: bool, adjoint: bool = False, unit: bool = False, right: bool = False
    ) -> None:
        if 0 in x.shape:
            return
        order = t.shape[0]
        if order > _TRIANGLE:
            # halves: [T1 0; T3 T2], with a product for the block off the diagonal
            half = -(-order // (2 * _TRIANGLE)) * _TRIANGLE
            one, two, flags = slice(0, half), slice(half, order), {"adjoint": adjoint, "unit": unit, "right": right}
            off = t[two, one] if lower else t[one, two]
            parts = (x[:, one], x[:, two]) if right else (x[one, :], x[two, :])
            first = int((lower != adjoint) == right)  # the half that does not need the other
            self.trsm(t[two, two] if first else t[one, one], parts[first], lower=lower, **flags)
            if right:
                self.gemm(parts[1 - first], parts[first], off, adjoint_b=adjoint)
            else:
                self.gemm(parts[1 - first], off, parts[first], adjoint_a=adjoint)
            self.trsm(t[one, one] if first else t[two, two], parts[1 - first], lower=lower, **flags)
            return
        m, n = x.shape if x.by_columns else x.shape[::-1]
        side = _RIGHT if right == x.by_columns else _LEFT  # X by rows is solved for X^T, from the other side
        _, operation = self._operand(t, adjoint, not x.by_columns)
        triangle = _LOWER if lower == t.by_columns else _UPPER
        numbers = side, triangle, operation, int(unit), m, n
        arrays = self._scalar(1.0), c_void_p(t.pointer), t.lead, c_void_p(x.pointer), x.lead
        self.cuda.blas(self._letter, "trsm_v2", *numbers, *arrays)

    def potrf(self, d: Matrix, before: int) -> None:
        triangle = _LOWER if d.by_columns else _UPPER
        problem = triangle, d.shape[0], c_void_p(d.pointer), d.lead
        work, size = self._work("potrf_bufferSize", *problem)
        self.cuda.solver(self._letter, "potrf", *problem, work, size, self._status(before))

    def getrf(self, p: Matrix, before: int) -> _Exchanges:
        assert p.by_columns
        m, n = p.shape
        problem = m, n, c_void_p(p.pointer), p.lead
        work, _ = self._work("getrf_bufferSize", *problem)
        rows = _Exchanges(_Memory(self.cuda, 4 * n), n)
        self.cuda.solver(self._letter, "getrf", *problem, work, c_void_p(rows.memory.pointer), self._status(before))
        return rows

    def pivots(self, exchanges: _Exchanges) -> np.ndarray:
        host = np.empty(exchanges.count, np.int32)
        size = host.nbytes
        self.cuda.copy(host.ctypes.data, size, exchanges.memory.pointer, size, size, 1, _TO_HOST, self.cuda.main)
        self.cuda.synchronize(self.cuda.main)
        return host.astype(np.int64) - 1

    def swap(self, x: Matrix, pivots: np.ndarray | _Exchanges, back: bool = False) -> None:
        assert x.by_columns
        if x.shape[1]:
            rows = pivots if isinstance(pivots, _Exchanges) else self._exchanges(pivots)
            numbers = x.shape[1], c_void_p(x.pointer), x.lead, 1, rows.count
            self.cuda.solver(self._letter, "laswp", *numbers, c_void_p(rows.memory.pointer), -1 if back else 1)

    def _exchanges(self, pivots: np.ndarray) -> _Exchanges:
        """The exchanges on the GPU, kept as every later panel needs those of a finished one."""
        if id(pivots) not in self._uploaded:
            rows = np.ascontiguousarray(pivots + 1, np.int32)
            memory, size = _Memory(self.cuda, rows.nbytes), rows.nbytes
            self.cuda.copy(memory.pointer, size, rows.ctypes.data, size, size, 1, _TO_DEVICE, self.cuda.main)
            self.cuda.synchronize(self.cuda.main)  # before the array is freed
            self._uploaded[id(pivots)] = pivots, _Exchanges(memory, len(rows))
        return self._uploaded[id(pivots)][1]

    def qr(self, a: Matrix) -> tuple[Matrix, np.ndarray]:
        m, n = a.shape
        turned = self.empty(n, m).T
        self._transpose(a, turned)
        tau = _Memory(self.cuda, n * self.dtype.itemsize)
        problem = m, n, c_void_p(turned.pointer), turned.lead
        work, size = self._work("geqrf_bufferSize", *problem)
        scales = c_void_p(tau.pointer)
        self.cuda.solver(self._letter, "geqrf", *problem, scales, work, size, self._status(0))
        r = np.triu(self.get(turned[:n, :]))
        name = "ungqr" if self.dtype.kind == "c" else "orgqr"
        whole = m, n, n, c_void_p(turned.pointer), turned.lead
        work, size = self._work(f"{name}_bufferSize", *whole, scales)
        self.cuda.solver(self._letter, name, *whole, scales, work, size, self._status(0))
        self._transpose(turned, a)
        self.cuda.synchronize(self.cuda.main)
        return a, r

    def _transpose(self, source: Matrix, to: Matrix) -> None:
        """Copy the matrix into the other memory order."""
        rows, columns = to.shape if to.by_columns else to.shape[::-1]
        matrix = c_void_p(source.pointer), source.lead
        target = c_void_p(to.pointer), to.lead
        scalars = self._scalar(1.0), self._scalar(0.0)
        self.cuda.blas(
            self._letter, "geam", _TRANSPOSED, _PLAIN, rows, columns, scalars[0], *matrix, scalars[1], *target, *target
        )

    def failure(self) -> int:
        before, self._before = self._before, []
        if not before:
            return 0
        host = np.empty(len(before), np.int32)
        size = host.nbytes
        self.cuda.copy(host.ctypes.data, size, self._statuses.pointer, size, size, 1, _TO_HOST, self.cuda.main)
        self.cuda.synchronize(self.cuda.main)
        return next((first + int(status) for first, status in zip(before, host, strict=True) if status > 0), 0)

    def _status(self, before: int) -> c_void_p:
        assert len(self._before) < _STATUSES
        self._before.append(before)
        return c_void_p(self._statuses.pointer + 4 * (len(self._before) - 1))

    def _work(self, query: str, *problem: Any) -> tuple[c_void_p, int]:
        """The workspace for a routine of cuSOLVER; it is kept, and grows if needed."""
        size = c_int()
        self.cuda.solver(self._letter, query, *problem, byref(size))
        need = max(size.value, 1) * self.dtype.itemsize
        if need > self._workspace_size:
            self.cuda.synchronize(self.cuda.main)
            self._workspace, self._workspace_size = _Memory(self.cuda, need), need
        assert self._workspace is not None
        return c_void_p(self._workspace.pointer), size.value

    def _scalar(self, x: float) -> Any:
        return np.array([x], self.dtype).ctypes.data_as(c_void_p)


@dataclass(frozen=True)
class _Job:
    """A part of a matrix that is being written; ``part`` are its lines in memory."""

    store: Store
    row: int
    column: int
    part: slice
    by_columns: bool
    lower: bool

    def write(self, lines: slice, host: np.ndarray) -> None:
        first, count, length = self.part.start + lines.start, lines.stop - lines.start, host.shape[1]
        if self.by_columns:
            rows, columns = slice(self.row, self.row + length), slice(self.column + first, self.column + first + count)
            self.store.write(rows, columns, host[lines].T)
        else:
            rows, columns = slice(self.row + first, self.row + first + count), slice(self.column, self.column + length)
            self.store.write(rows, columns, host[lines])


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(piece: Piece, part: slice, host: np.ndarray) -> None:
    first = piece.rows.start
    piece.store.read(slice(first + part.start, first + part.stop), piece.columns, host[part])


def _array_at(pointer: int, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    size = shape[0] * shape[1] * dtype.itemsize
    memory: Any = (ctypes.c_char * size).from_address(pointer)
    array: np.ndarray = np.frombuffer(memory, dtype).reshape(shape)
    return array
