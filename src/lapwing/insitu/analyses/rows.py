"""Long rows of numbers on the solver's device: stored, multiplied with each other, and rotated, in bounded memory.

A row is the state of the simulation at one step: all its fields, one after the other. Rows are cut into chunks, and the
storage has the shape (chunks, rows, width): the rows of one chunk lie together, so that every product works on plain
matrices, and temporary memory is that of one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..solver.arrays import aligned, import_library, library_of

if TYPE_CHECKING:
    from .jax_rows import JaxRows

__all__ = ["Layout", "Rows", "make_rows"]

# columns worked on at a time: on a CPU the chunk of 80 rows (2.6 MB) stays in the second-level cache; on a GPU the product of a
# chunk must fill the card. CPU: widths from 512 to 16384 differ by less than the noise (80 x 131072, OpenBLAS, one thread)
_HOST_WIDTH = 4096
_DEVICE_WIDTH = 1 << 20


@dataclass(frozen=True)
class Layout:
    """How the fields of a step lie in a row: each in whole chunks of its own, the last one filled up with zeros."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    width: int

    @classmethod
    def of(cls, names: Sequence[str], shapes: Sequence[tuple[int, ...]], on_host: bool) -> Layout:
        sizes = [max(prod(s), 1) for s in shapes]
        largest, smallest = max(sizes), min(sizes)
        if on_host:
            target = _HOST_WIDTH
        else:
            target = min(max(largest // 16, 1 << 16), _DEVICE_WIDTH)
        # as few chunks as fit the target, all equally wide, in whole cache lines
        chunks = _over(largest, min(target, max(_HOST_WIDTH, smallest)))
        width = _over(_over(largest, chunks), 8) * 8
        return cls(tuple(names), tuple(tuple(s) for s in shapes), width)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(s) for s in self.shapes)

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks of each field."""
        return tuple(_over(size, self.width) for size in self.sizes)

    @property
    def chunks(self) -> int:
        return sum(self.counts)

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """Of each field: its first chunk, the number of full ones, and the numbers left over for the last."""
        first = np.cumsum([0, *self.counts])
        return [(int(c), size // self.width, size % self.width) for c, size in zip(first, self.sizes, strict=False)]


def _over(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def make_rows(library: str, like: Any, layout: Layout, capacity: int, dtype: np.dtype) -> Rows | JaxRows:
    """Storage for ``capacity`` rows in ``library``, on the device of the array ``like``."""
    if library == "jax":
        from .jax_rows import JaxRows

        return JaxRows(like, layout, capacity, dtype)
    return Rows(library, like, layout, capacity, dtype)


class Rows:
    """Rows in NumPy, CuPy or torch memory; they are changed in place."""

    def __init__(self, library: str, like: Any, layout: Layout, capacity: int, dtype: np.dtype) -> None:
        self.library, self.layout, self.dtype, self.capacity = library, layout, dtype, capacity
        self._xp = np if library == "numpy" else import_library(library)
        self._device = like.device if library == "torch" else None
        self.data = self._zeros((layout.chunks, capacity, layout.width), dtype)

    def grow(self, capacity: int) -> None:
        """Room for more rows; those there stay."""
        old = self.data
        self.data = self._zeros((self.layout.chunks, capacity, self.layout.width), self.dtype)
        self.data[:, : self.capacity] = old
        self.capacity = capacity

    def put(self, row: int, arrays: Sequence[Any], scale: Any = None, shift: Any = None) -> None:
        """row <- scale * (fields) - shift: the one copy of a snapshot."""
        width = self.layout.width
        for (first, full, rest), array in zip(self.layout.places, arrays, strict=True):
            flat = self._flat(array)
            if full:
                self.data[first : first + full, row] = flat[: full * width].reshape(full, width)
            if rest:
                self.data[first + full, row, :rest] = flat[full * width :]
        with np.errstate(all="ignore"):
            if scale is not None:
                self.data[:, row] *= scale
            if shift is not None:
                self.data[:, row] -= shift

    def zero(self, row: int) -> None:
        self.data[:, row] = 0

    def not_finite(self, row: int) -> list[str]:
        """Names of the fields with NaN or Inf in this row."""
        parts = self.fields_of(self.data[:, row])
        return [name for name, x in zip(self.layout.names, parts, strict=True) if not bool(self._xp.isfinite(x).all())]

    def gram(self, count: int, left: np.ndarray | None = None) -> np.ndarray:
        """G = X X^H of the first ``count`` rows X, or of C X with C = ``left``; summed in double precision, on the host."""
        size = count if left is None else left.shape[0]
        total = self._zeros((size, size), np.dtype(np.complex128 if self.dtype.kind == "c" else np.float64))
        left = None if left is None else self._small(left)
        with np.errstate(all="ignore"):  # NaN and overflow are found by whoever reads the result
            for chunk in self.data:
                # a narrow field is widened chunk by chunk: the data stay as they are, the sum is in double precision
                x = self._double(chunk[:count])
                if left is not None:
                    x = left @ x
                total = total + x @ self._transposed(x)
        return self._host(total)

    def rotate(self, count: int, w: np.ndarray, extra: np.ndarray | None = None) -> Any:
        """X[:k] <- W^H X, with W of ``count`` x k; returns e X for one more row of weights ``extra``."""
        k = w.shape[1]
        factor = w.conj().T if extra is None else np.vstack([w.conj().T, extra])
        factor = self._small(factor, self.dtype)
        beside = None if extra is None else self._zeros((self.layout.chunks, self.layout.width), self.dtype)
        for index, chunk in enumerate(self.data):
            product = factor @ chunk[:count]
            chunk[:k] = product[:k]
            if beside is not None:
                beside[index] = product[k]
        return beside

    def combine(self, count: int, c: np.ndarray, scale: Any = None) -> list[Any]:
        """C X for each field, in its shape: a list of arrays (rows of C, *shape). ``scale`` multiplies every row."""
        factor = self._small(c, self.dtype)
        made = []
        for (first, full, rest), shape in zip(self.layout.places, self.layout.shapes, strict=True):
            flat = self._zeros((c.shape[0], prod(shape)), self.dtype)
            for index in range(full + bool(rest)):
                width = self.layout.width if index < full else rest
                start = index * self.layout.width
                product = factor @ self.data[first + index, :count, :width]
                if scale is not None:
                    product = product * scale[first + index, :width]
                flat[:, start : start + width] = product
            made.append(flat.reshape(c.shape[0], *shape))
        return made

    def pick(self, chunks: np.ndarray, columns: np.ndarray, factors: np.ndarray, scale: Any = None) -> Any:
        """A few columns of the first rows, each row times its factor, each column divided by its ``scale``: (rows, columns)."""
        c, j = self._take(chunks), self._take(columns)
        values = self.data[c, : len(factors), j] * self._small(factors, np.dtype(self.dtype.char.lower()))
        return (values if scale is None else values / scale[c, j][:, None]).T

    def fields_of(self, vector: Any) -> list[Any]:
        """A vector in the chunks' layout as one array for each field."""
        made = []
        for (first, full, rest), shape in zip(self.layout.places, self.layout.shapes, strict=True):
            size = prod(shape)
            made.append(vector[first : first + full + bool(rest)].reshape(-1)[:size].reshape(shape))
        return made

    def vector(self, arrays: Sequence[Any] | None = None, dtype: np.dtype | None = None) -> Any:
        """A vector in the chunks' layout: zeros, or the fields given."""
        made = self._zeros((self.layout.chunks, self.layout.width), dtype or self.dtype)
        width = self.layout.width
        for (first, full, rest), array in zip(self.layout.places, arrays or (), strict=False):
            flat = self._flat(self._take(array))
            if full:
                made[first : first + full] = flat[: full * width].reshape(full, width)
            if rest:
                made[first + full, :rest] = flat[full * width :]
        return made

    def take_vector(self, vector: np.ndarray) -> Any:
        """A vector in the chunks' layout from the host."""
        made = self._zeros(vector.shape, vector.dtype)
        made[...] = self._take(vector)
        return made

    def to_host(self, count: int) -> np.ndarray:
        return np.array(self._host(self.data[:, :count]))

    def from_host(self, rows: np.ndarray) -> None:
        self.data[:, : rows.shape[1]] = self._take(rows)

    # the few things in which the libraries differ

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if self.library == "numpy":
            made = aligned(shape, dtype)
            made[...] = 0
            return made
        if self.library == "torch":
            return self._xp.zeros(shape, dtype=getattr(self._xp, dtype.name), device=self._device)
        return self._xp.zeros(shape, dtype)

    def _flat(self, array: Any) -> Any:
        if self.library == "torch":
            return array.detach().reshape(-1)
        return array.reshape(-1)

    def _take(self, array: Any) -> Any:
        """A host array in this library."""
        if library_of(array) == self.library:
            return array
        if self.library == "torch":
            return self._xp.from_numpy(np.array(array)).to(self._device)
        return self._xp.asarray(array)

    def _small(self, matrix: np.ndarray, dtype: np.dtype | None = None) -> Any:
        return self._take(np.ascontiguousarray(matrix if dtype is None else matrix.astype(dtype, copy=False)))

    def _double(self, x: Any) -> Any:
        if self.dtype.itemsize == (16 if self.dtype.kind == "c" else 8):
            return x
        wider = "complex128" if self.dtype.kind == "c" else "float64"
        return x.to(getattr(self._xp, wider)) if self.library == "torch" else x.astype(wider)

    def _transposed(self, x: Any) -> Any:
        return x.T if self.dtype.kind != "c" else x.conj().T

    def _host(self, x: Any) -> np.ndarray:
        if self.library == "torch":
            return x.cpu().numpy()  # type: ignore[no-any-return]
        return x.get() if self.library == "cupy" else np.asarray(x)  # type: ignore[no-any-return]
