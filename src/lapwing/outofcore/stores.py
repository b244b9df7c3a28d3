"""Sources and targets of matrices: arrays, files, data sets and functions, read and written block by block.

A file is read with ``pread`` into buffers, never through the pages of its memory map, which would count as memory of the
process, up to the size of the file.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from contextlib import contextmanager
from math import prod
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ShapeError
from ..core.hosted import HostedMatrix
from ..core.plan import bytes_in_words

_STRIP = 1 << 24  # bytes of a buffer for blocks of a file that must be transposed


class Store:
    """A matrix that is read and written by blocks; this one is an array in memory."""

    splits = True  # whether several threads may read or write parts of a block at the same time

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, rows: slice, columns: slice, into: np.ndarray) -> None:
        into[...] = self.array[rows, columns]

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        self.array[rows, columns] = block

    def sync(self) -> None:
        """Make sure that written blocks are on the disk."""


class FileStore(Store):
    """A matrix in a file, by rows, or by columns if ``turned``. ``lead`` is the distance of two rows (columns) in elements."""

    def __init__(self, descriptor: int, offset: int, shape: tuple[int, int], dtype: Any, lead: int, turned: bool) -> None:
        self._descriptor, self._offset, self.shape, self.dtype = descriptor, offset, shape, np.dtype(dtype)
        self._lead, self._turned = lead, turned
        self._close = os.close  # os may be gone when Python ends

    def __del__(self) -> None:
        self._close(self._descriptor)

    def read(self, rows: slice, columns: slice, into: np.ndarray) -> None:
        for lines, place, part in self._strips(rows, columns, into):
            plain = part.dtype == self.dtype and part.strides[1] == part.itemsize
            buffer = part if plain else np.empty(part.shape, self.dtype)
            self._lines(os.preadv, lines, place, buffer)
            if not plain:
                part[...] = buffer

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        for lines, place, part in self._strips(rows, columns, block):
            plain = part.dtype == self.dtype and part.strides[1] == part.itemsize
            with _no_space():
                self._lines(os.pwritev, lines, place, part if plain else np.ascontiguousarray(part, self.dtype))

    def sync(self) -> None:
        with _no_space():
            getattr(os, "fdatasync", os.fsync)(self._descriptor)  # macOS has only the second

    def _strips(self, rows: slice, columns: slice, block: np.ndarray) -> Any:
        """Parts of a block with the lines of the file as rows: the first line, the offset in it, the part."""
        lines, place = (columns, rows) if self._turned else (rows, columns)
        block = block.T if self._turned else block
        step = max(1, _STRIP // max(1, block.shape[1] * self.dtype.itemsize))
        if block.dtype == self.dtype and block.strides[1] == block.itemsize:
            step = max(1, len(block))
        for first in range(0, len(block), step):
            yield lines.start + first, place.start, block[first : first + step]

    def _lines(self, move: Any, first: int, place: int, buffer: np.ndarray) -> None:
        size = self.dtype.itemsize
        start = self._offset + (first * self._lead + place) * size
        if buffer.size == 0:
            return
        if buffer.shape[1] == self._lead and buffer.flags.c_contiguous:
            self._whole(move, buffer.data.cast("B"), start)
            return
        step = self._lead * size
        for number, line in enumerate(buffer):
            view = line.data.cast("B")
            if move(self._descriptor, [view], start + number * step) != len(view):
                self._whole(move, view, start + number * step)

    def _whole(self, move: Any, view: memoryview, start: int) -> None:
        done = 0
        while done < len(view):
            count = move(self._descriptor, [view[done : done + (1 << 30)]], start + done)
            if count <= 0:
                raise OSError(errno.EIO, f"hosted: the file ends at byte {start + done}, before the end of the matrix")
            done += count


# Zarr changes a part of a chunk by reading and writing the whole chunk, so of two threads at one chunk one would lose its data
_one_at_a_time = threading.Lock()


class DatasetStore(Store):
    """A data set of HDF5 or Zarr: anything that is indexed by two slices."""

    splits = False

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.dtype = dataset, np.dtype(dataset.dtype)
        self._vector = len(dataset.shape) == 1
        self.shape = (*dataset.shape, 1) if self._vector else tuple(dataset.shape)

    def read(self, rows: slice, columns: slice, into: np.ndarray) -> None:
        with _one_at_a_time:
            into[...] = self.dataset[rows][:, None] if self._vector else self.dataset[rows, columns]

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        with _one_at_a_time, _no_space():
            if self._vector:
                self.dataset[rows] = block[:, 0]
            else:
                self.dataset[rows, columns] = block

    def sync(self) -> None:
        flush = getattr(getattr(self.dataset, "file", None), "flush", None)
        if flush is not None:
            flush()


class FunctionStore(Store):
    """A matrix that a function computes."""

    splits = False

    def __init__(self, function: Any, shape: tuple[int, int], dtype: str) -> None:
        self.function, self.shape, self.dtype = function, shape, np.dtype(dtype)

    def read(self, rows: slice, columns: slice, into: np.ndarray) -> None:
        block = np.asarray(self.function(rows, columns))
        asked = f"rows {rows.start}:{rows.stop} and columns {columns.start}:{columns.stop}"
        if block.shape != into.shape:
            raise ShapeError(
                f"hosted: the function returned shape {block.shape} for {asked}, expected {into.shape}"
                "\nhint: it gets two slices, and returns the block of these rows and columns"
            )
        if not np.can_cast(block.dtype, self.dtype, "same_kind"):
            raise TypeError(
                f"hosted: the function returned {block.dtype} for {asked}, expected {self.dtype}\nhint: name that dtype"
                " in lapwing.hosted(...)"
            )
        into[...] = block


class Adjoint(Store):
    """The adjoint of a matrix."""

    def __init__(self, store: Store) -> None:
        self.store, self.dtype, self.splits = store, store.dtype, store.splits
        self.shape = (store.shape[1], store.shape[0])

    def read(self, rows: slice, columns: slice, into: np.ndarray) -> None:
        self.store.read(columns, rows, into.T)
        if np.iscomplexobj(into):
            np.conjugate(into, out=into)

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        self.store.write(columns, rows, block.conj().T)

    def sync(self) -> None:
        self.store.sync()


class Mirrored(Store):
    """A symmetric or Hermitian matrix of which one triangle is read."""

    def __init__(self, store: Store, upper: bool, conjugate: bool) -> None:
        self.store, self.shape, self.dtype, self.splits = store, store.shape, store.dtype, store.splits
        self._upper, self._conjugate = upper, conjugate and store.dtype.kind == "c"

    def read(self, rows: slice, columns: slice, into: np.ndarray) -> None:
        # rows above, in and below the square that contains the diagonal
        first, last = max(rows.start, columns.start), min(rows.stop, columns.stop)
        if first >= last:
            below = rows.start >= columns.stop
            self._part(rows, columns, into, direct=below != self._upper)
            return
        square = slice(first, last)
        for part_rows in (slice(rows.start, first), square, slice(last, rows.stop)):
            for part_columns in (slice(columns.start, first), square, slice(last, columns.stop)):
                if part_rows.start >= part_rows.stop or part_columns.start >= part_columns.stop:
                    continue
                part = into[_from(part_rows, rows.start), _from(part_columns, columns.start)]
                if part_rows == part_columns:
                    self.store.read(square, square, part)
                    mirror(part, self._upper, self._conjugate)
                else:
                    below = part_rows.start >= part_columns.stop
                    self._part(part_rows, part_columns, part, direct=below != self._upper)

    def _part(self, rows: slice, columns: slice, into: np.ndarray, direct: bool) -> None:
        if direct:
            self.store.read(rows, columns, into)
            return
        self.store.read(columns, rows, into.T)
        if self._conjugate:
            np.conjugate(into, out=into)


def mirror(block: np.ndarray, upper: bool, conjugate: bool) -> None:
    """Copy one triangle of a square block to the other, by strips so that the copies stay small."""
    n = len(block)
    step = 256
    for first in range(0, n, step):
        last = min(first + step, n)
        corner = block[first:last, first:last]
        triangle = np.triu(corner) if upper else np.tril(corner)
        other = triangle.conj() if conjugate else triangle
        strict = np.triu(other, 1) if upper else np.tril(other, -1)
        corner[...] = triangle + strict.T
        if conjugate:
            corner[np.diag_indices(last - first)] = corner.diagonal().real
        source, target = (block[first:last, last:], block[last:, first:last])
        if not upper:
            source, target = target, source
        target[...] = source.conj().T if conjugate else source.T


def _from(part: slice, start: int) -> slice:
    return slice(part.start - start, part.stop - start)


# ---- the store for the user's matrix ----


def store_of(source: Any, shape: tuple[int, int], dtype: str) -> Store:
    """The store that reads the source of a hosted matrix, or a right-hand side."""
    if isinstance(source, HostedMatrix):
        return store_of(source.source, source.shape, source.dtype)
    if isinstance(source, np.ndarray):
        matrix = source if source.ndim == 2 else source[:, None]
        return _file_of(matrix, os.O_RDONLY) or Store(matrix)
    if callable(source):
        return FunctionStore(source, shape, dtype)
    return DatasetStore(source)


def _file_of(array: np.ndarray, mode: int) -> FileStore | None:
    """The file behind a memory map; None for other arrays, and for maps whose changes do not reach the file."""
    name = getattr(array, "filename", None)
    if getattr(array, "_mmap", None) is None or name is None or array.mode == "c" or 0 in array.shape:  # type: ignore[attr-defined]
        return None
    if not hasattr(os, "preadv"):  # Windows
        return None
    size = array.itemsize
    if any(step < 0 or step % size for step in array.strides):  # reversed, or a field of records
        return None
    rows, columns = (step // size for step in array.strides)
    turned = columns != 1 and array.shape[1] > 1
    if (rows if turned else columns) != 1 and array.shape[0 if turned else 1] > 1:
        return None
    lead = max(columns if turned else rows, 1)
    if lead < array.shape[0 if turned else 1] and array.shape[1 if turned else 0] > 1:
        return None
    if _is_another_file(array.ctypes.data, name):
        return None
    try:
        descriptor = os.open(name, mode | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # deleted or protected since; the map still has its pages
        return None
    return FileStore(descriptor, _place_in_file(array, array.ctypes.data), array.shape, array.dtype, lead, turned)


def _mapped_file(address: int) -> str | None:
    """The present name of the file that is mapped at an address; None without /proc."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                start, end = (int(x, 16) for x in line.partition(" ")[0].split("-"))
                if start <= address < end:
                    return line.rstrip("\n").split(maxsplit=5)[5]
    except (OSError, IndexError):
        pass
    return None


def _is_another_file(address: int, name: str | os.PathLike[str]) -> bool:
    """Whether the file of this name has replaced the one that is mapped at an address; False without /proc."""
    mapped = _mapped_file(address)
    if mapped is None:
        return False
    return mapped.endswith(" (deleted)") or not os.path.exists(name) or not os.path.samefile(mapped, name)


def _place_in_file(array: Any, address: int) -> int:
    """The offset in the file behind a memory map of the byte at an address."""
    start = array.offset - array.offset % ALLOCATIONGRANULARITY
    return int(start + address - np.frombuffer(array._mmap, np.uint8, 1).ctypes.data)


def _range_in_file(array: np.ndarray) -> tuple[int, int]:
    steps = [step * (size - 1) for step, size in zip(array.strides, array.shape, strict=True)]
    start = _place_in_file(array, array.ctypes.data)
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize


# ---- results ----


class Target:
    """A result: the store that is written, and the value that the user gets."""

    def __init__(self, store: Store, value: Any, fresh: bool) -> None:
        self.store, self.value = store, value
        self.fresh = fresh  # unwritten elements are zero


def target(name: str, a: HostedMatrix, shape: tuple[int, ...], dtype: str, out: Any, like: Any = None) -> Target:
    """Where a large result of a call goes: to ``out``, or to a new array of the kind of ``like``, by default the matrix."""
    if out is None:
        like = a.source if like is None else like
        matrix_shape = (shape[0], shape[1] if len(shape) == 2 else 1)
        if in_memory(like):
            array = np.zeros(matrix_shape, dtype)
            return Target(Store(array), array.reshape(shape), True)
        return temporary(matrix_shape, dtype, folder_of(like))
    check_out(name, a, shape, dtype, out)
    if isinstance(out, (str, os.PathLike)):
        return in_file(Path(out), shape, dtype)
    if isinstance(out, np.ndarray):
        matrix = out if out.ndim == 2 else out[:, None]
        return Target(_file_of(matrix, os.O_RDWR) or Store(matrix), out, False)
    return Target(DatasetStore(out), out, False)


def check_out(name: str, a: HostedMatrix, shape: tuple[int, ...], dtype: str, out: Any) -> None:
    """Refuse an ``out`` that the result cannot be written to."""
    if same_place(out, a.source):
        raise ValueError(f"{name}: out is the matrix itself\nhint: overwrite=True lets the result replace the matrix")
    if isinstance(out, (str, os.PathLike)) and not Path(out).parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"{name}: out is in a folder that does not exist", os.fspath(out))
    if out is None or isinstance(out, (str, os.PathLike)):
        return
    if tuple(getattr(out, "shape", ())) != tuple(shape) or str(getattr(out, "dtype", "")) != dtype:
        has = f"{tuple(getattr(out, 'shape', ()))} {getattr(out, 'dtype', type(out).__name__)}"
        raise ShapeError(f"{name}: out must have shape {tuple(shape)} and dtype {dtype}, got {has}")
    if isinstance(out, np.ndarray) and _overlaps_itself(out):
        raise ValueError(f"{name}: entries of out share memory (strides {out.strides})\nhint: out=numpy.empty({tuple(shape)})")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError(f"{name}: out cannot be written\nhint: open the file with mode='r+'")
    if not hasattr(out, "__setitem__"):
        raise TypeError(f"{name}: out must be an array, a data set or a file name, got {type(out).__name__}")


def _overlaps_itself(array: np.ndarray) -> bool:
    """Whether entries may share memory, as after ``broadcast_to`` or in a sliding window."""
    reach = array.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True) if size > 1):
        if step < reach:
            return True
        reach += step * (size - 1)
    return False


def same_place(out: Any, source: Any) -> bool:
    """Whether writing to ``out``, an array, a data set or a file name, may change ``source``."""
    if out is None or source is None:
        return False
    if isinstance(out, (str, os.PathLike)):
        file = _present_name(source)
        return file is not None and os.path.exists(out) and os.path.exists(file) and os.path.samefile(out, file)
    if not isinstance(out, np.ndarray) or not isinstance(source, np.ndarray):
        # data sets of these libraries are equal if they are the same object; others may compare their elements
        known = type(out) is type(source) and type(out).__module__.partition(".")[0] in ("h5py", "zarr")
        return out is source or (known and bool(out == source))
    if np.may_share_memory(out, source):
        return True
    if in_memory(out) or in_memory(source) or not same_place(_present_name(out), source):
        return False
    (first, last), (low, high) = _range_in_file(out), _range_in_file(source)  # two maps of one file
    return first < high and low < last


def _present_name(source: Any) -> Any:
    """The file of a matrix; for a memory map whose file was renamed, the new name."""
    mapped = _mapped_file(source.ctypes.data) if isinstance(source, np.memmap) and source.size else None
    return mapped or file_name(source)


def overwritten(name: str, a: HostedMatrix) -> Target:
    """The matrix itself as the target of the result."""
    source = a.source
    if isinstance(source, np.ndarray):
        if not source.flags.writeable:
            raise ValueError(f"{name}: overwrite=True, but the matrix cannot be written\nhint: open the file with mode='r+'")
        if _overlaps_itself(source):
            raise ValueError(f"{name}: overwrite=True, but entries of the matrix share memory\nhint: overwrite=False")
        return Target(_file_of(source, os.O_RDWR) or Store(source), source, False)
    if callable(source) or not hasattr(source, "__setitem__"):
        raise ValueError(f"{name}: overwrite=True needs an array or a data set, got a function")
    return Target(DatasetStore(source), source, False)


def temporary(shape: tuple[int, int], dtype: str, folder: str | None = None) -> Target:
    """A matrix of zeros in a file without a name, which disappears after its last use."""
    with tempfile.TemporaryFile(dir=folder) as file:
        _allocate(file.fileno(), shape, dtype, folder or tempfile.gettempdir())
        value = np.memmap(file, dtype, "r+", shape=shape) if 0 not in shape else np.zeros(shape, dtype)
        if not hasattr(os, "preadv"):
            return Target(Store(value), value, True)
        store = FileStore(os.dup(file.fileno()), 0, shape, dtype, shape[1], False)
    return Target(store, value, True)


def in_file(path: Path, shape: tuple[int, ...], dtype: str) -> Target:
    """A new .npy file of zeros."""
    np.lib.format.open_memmap(path, "w+", dtype, shape)
    with open(path, "r+b") as file:
        _allocate(file.fileno(), shape, dtype, str(path.parent))
    return reopened(path)


def reopened(path: Path) -> Target:
    """The matrix in an existing .npy file, to continue writing it."""
    value = np.lib.format.open_memmap(path, "r+")
    matrix = value if value.ndim == 2 else value[:, None]
    return Target(_file_of(matrix, os.O_RDWR) or Store(matrix), value, True)


def _allocate(descriptor: int, shape: tuple[int, ...], dtype: str, folder: str) -> None:
    need = prod(shape) * np.dtype(dtype).itemsize
    size = max(need, os.fstat(descriptor).st_size, 1)
    with _no_space(need, folder):
        if hasattr(os, "posix_fallocate"):  # takes the space now, so that a full disk is noticed before the work
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.truncate(descriptor, size)


@contextmanager
def _no_space(need: int = 0, folder: str = "") -> Any:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        what = f"{folder} does not have {bytes_in_words(need)} free" if need else "the disk is full"
        hint = "put the files on another disk with out= or checkpoint=, or set TMPDIR for temporary files"
        raise OSError(error.errno, f"hosted: {what}\nhint: {hint}") from None


def in_memory(source: Any) -> bool:
    return isinstance(source, np.ndarray) and getattr(source, "_mmap", None) is None


def folder_of(source: Any) -> str | None:
    """The folder of a matrix's file, if new files can be made there."""
    name = file_name(source)
    folder = os.path.dirname(os.path.abspath(name)) if name is not None else None
    return folder if folder and os.access(folder, os.W_OK) else None


def file_name(source: Any) -> str | os.PathLike[str] | None:
    """The name of a file, or of the file that contains a data set or a memory map."""
    if isinstance(source, (str, os.PathLike)):
        return source
    name = getattr(source, "filename", None) or getattr(getattr(source, "file", None), "filename", None)
    return name if isinstance(name, (str, os.PathLike)) else None
