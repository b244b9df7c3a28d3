"""Long rows on the solver's device: stored, multiplied with each other and rotated, in bounded memory.

A row is the state of the simulation at one step: all its fields, one after the other. Rows are divided into chunks, and the
storage has the shape (chunks, rows, width): each chunk is a contiguous matrix, so products need no strided access, and
temporary memory is never larger than one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..solver.arrays import aligned, as_double, double_dtype, import_library, library_of, to_host

if TYPE_CHECKING:
    from .jax_rows import JaxRows

# columns of a chunk: on a CPU a chunk of 80 rows (2.6 MB) stays in the second-level cache; on a GPU the product of one chunk
# must keep the whole GPU busy. CPU: widths from 512 to 16384 differ by less than the noise (80 x 131072, OpenBLAS, one thread)
_HOST_WIDTH = 4096
_DEVICE_WIDTH = 1 << 20


@dataclass(frozen=True)
class Layout:
    """The order of the fields in a row: each field has whole chunks of its own, the last one padded with zeros."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    width: int

    @classmethod
    def of(cls, names: Sequence[str], shapes: Sequence[tuple[int, ...]], on_host: bool) -> Layout:
        sizes = [max(prod(s), 1) for s in shapes]
        largest, smallest = max(sizes), min(sizes)
        target = _HOST_WIDTH if on_host else min(max(largest // 16, 1 << 16), _DEVICE_WIDTH)
        # as few chunks as fit the target, all equally wide, in whole cache lines
        chunks = _over(largest, min(target, max(_HOST_WIDTH, smallest)))
        width = _over(_over(largest, chunks), 8) * 8
        return cls(tuple(names), tuple(tuple(s) for s in shapes), width)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(s) for s in self.shapes)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks of each field."""
        return tuple(_over(size, self.width) for size in self.sizes)

    @property
    def chunks(self) -> int:
        return sum(self.counts)

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """For each field: its first chunk, the number of full chunks, and the number of values in the last one."""
        first = np.cumsum([0, *self.counts])
        return [(int(c), size // self.width, size % self.width) for c, size in zip(first, self.sizes, strict=False)]

    def split(self, vector: Any) -> list[Any]:
        """Divide an array (..., chunks, width) into one array (..., *shape) for each field."""
        lead = tuple(vector.shape[:-2])
        parts = (vector[..., first : first + full + bool(rest), :] for first, full, rest in self.places)
        flat = (p.reshape(*lead, p.shape[-2] * self.width) for p in parts)
        return [p[..., : prod(shape)].reshape(*lead, *shape) for p, shape in zip(flat, self.shapes, strict=True)]


def _over(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def make_rows(library: str, like: Any, layout: Layout, capacity: int, dtype: np.dtype) -> Rows | JaxRows:
    """Allocate ``capacity`` rows in ``library``, on the device of the array ``like``."""
    if library == "jax":
        from .jax_rows import JaxRows

        return JaxRows(like, layout, capacity, dtype)
    return Rows(library, like, layout, capacity, dtype)


class Rows:
    """Rows in NumPy, CuPy or torch arrays, changed in place."""

    def __init__(self, library: str, like: Any, layout: Layout, capacity: int, dtype: np.dtype) -> None:
        self.library, self.layout, self.dtype, self.capacity = library, layout, dtype, capacity
        self._xp = np if library == "numpy" else import_library(library)
        self._device = like.device if library == "torch" else None
        self.data = self._zeros((layout.chunks, capacity, layout.width), dtype)

    def grow(self, capacity: int) -> None:
        """Make room for more rows and keep the existing ones."""
        old = self.data
        self.data = self._zeros((self.layout.chunks, capacity, self.layout.width), self.dtype)
        self.data[:, : self.capacity] = old
        self.capacity = capacity

    def put(self, row: int, arrays: Sequence[Any], scale: Any = None, shift: Any = None) -> None:
        """row <- scale * (fields) - shift: the only copy of a snapshot."""
        self._fill(self.data[:, row], arrays)
        with np.errstate(all="ignore"):
            if scale is not None:
                self.data[:, row] *= scale
            if shift is not None:
                self.data[:, row] -= shift

    def zero(self, row: int) -> None:
        self.data[:, row] = 0

    def not_finite(self, row: int) -> list[str]:
        """Names of the fields with NaN or Inf in this row."""
        parts = self.layout.split(self.data[:, row])
        return [name for name, x in zip(self.layout.names, parts, strict=True) if not bool(self._xp.isfinite(x).all())]

    def gram(self, count: int, left: np.ndarray | None = None) -> np.ndarray:
        """G = X X^H for the first ``count`` rows X, or for C X with C = ``left``; summed in double precision, on the host."""
        size = count if left is None else left.shape[0]
        total = self._zeros((size, size), double_dtype(self.dtype))
        left = None if left is None else self._small(left)
        with np.errstate(all="ignore"):  # the caller checks the result for NaN and overflow
            for chunk in self.data:
                x = self._double(chunk[:count])
                if left is not None:
                    x = left @ x
                total = total + x @ (x.conj().T if self.dtype.kind == "c" else x.T)
        return to_host(total)

    def rotate(self, count: int, w: np.ndarray, extra: np.ndarray | None = None) -> Any:
        """X[:k] <- W^H X, with W of shape (``count``, k); returns e X for one more row of weights e = ``extra``."""
        k = w.shape[1]
        factor = w.conj().T if extra is None else np.vstack([w.conj().T, extra])
        factor = self._small(factor, self.dtype)
        combined = None if extra is None else self._zeros((self.layout.chunks, self.layout.width), self.dtype)
        for index, chunk in enumerate(self.data):
            product = factor @ chunk[:count]
            chunk[:k] = product[:k]
            if combined is not None:
                combined[index] = product[k]
        return combined

    def combine(self, count: int, c: np.ndarray, scale: Any = None) -> list[Any]:
        """C X as a list of arrays (rows of C, *shape), one for each field. ``scale`` multiplies every row."""
        factor = self._small(c, self.dtype)
        arrays = []
        for (first, full, rest), shape in zip(self.layout.places, self.layout.shapes, strict=True):
            flat = self._zeros((c.shape[0], prod(shape)), self.dtype)
            for index in range(full + bool(rest)):
                width = self.layout.width if index < full else rest
                start = index * self.layout.width
                product = factor @ self.data[first + index, :count, :width]
                if scale is not None:
                    product = product * scale[first + index, :width]
                flat[:, start : start + width] = product
            arrays.append(flat.reshape(c.shape[0], *shape))
        return arrays

    def pick(self, chunks: np.ndarray, columns: np.ndarray, factors: np.ndarray, scale: Any = None) -> Any:
        """Some columns of the first rows, shape (rows, columns): rows times their factors, columns divided by ``scale``."""
        c, j = self._take(chunks), self._take(columns)
        values = self.data[c, : len(factors), j] * self._small(factors, np.dtype(self.dtype.char.lower()))
        return (values if scale is None else values / scale[c, j][:, None]).T

    def fields_of(self, vector: Any) -> list[Any]:
        """One array for each field, from a vector in the layout of the rows."""
        return self.layout.split(vector)

    def vector(self, arrays: Sequence[Any] | None = None, dtype: np.dtype | None = None) -> Any:
        """A vector in the layout of the rows: the fields in ``arrays``, or zeros."""
        vector = self._zeros((self.layout.chunks, self.layout.width), dtype or self.dtype)
        if arrays is not None:
            self._fill(vector, [self._take(array) for array in arrays])
        return vector

    def take_vector(self, values: np.ndarray) -> Any:
        """Copy a vector in the layout of the rows from the host."""
        vector = self._zeros(values.shape, values.dtype)
        vector[...] = self._take(values)
        return vector

    def to_host(self, count: int) -> np.ndarray:
        return np.array(to_host(self.data[:, :count]))

    def from_host(self, rows: np.ndarray) -> None:
        self.data[:, : rows.shape[1]] = self._take(rows)

    def _fill(self, vector: Any, arrays: Sequence[Any]) -> None:
        """Copy the fields into a vector in the layout of the rows."""
        width = self.layout.width
        for (first, full, rest), array in zip(self.layout.places, arrays, strict=True):
            flat = (array.detach() if self.library == "torch" else array).reshape(-1)
            if full:
                vector[first : first + full] = flat[: full * width].reshape(full, width)
            if rest:
                vector[first + full, :rest] = flat[full * width :]

    # the few operations in which the libraries differ

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if self.library == "numpy":
            zeros = aligned(shape, dtype)
            zeros[...] = 0
            return zeros
        if self.library == "torch":
            return self._xp.zeros(shape, dtype=getattr(self._xp, dtype.name), device=self._device)
        return self._xp.zeros(shape, dtype)

    def _take(self, array: Any) -> Any:
        """Convert a host array to this library."""
        if library_of(array) == self.library:
            return array
        if self.library == "torch":
            return self._xp.from_numpy(np.array(array)).to(self._device)
        return self._xp.asarray(array)

    def _small(self, matrix: np.ndarray, dtype: np.dtype | None = None) -> Any:
        return self._take(np.ascontiguousarray(matrix if dtype is None else matrix.astype(dtype, copy=False)))

    def _double(self, x: Any) -> Any:
        """Widen one chunk, so that the stored rows can stay in single precision."""
        return x if self.dtype == double_dtype(self.dtype) else as_double(x)
