"""Which tuned kernel does a product of arrays that lie so in memory: sizes, strides and types in, a function or None out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..backends import FROZEN
from ..backends.base import Refused
from ..gemm import Gemm, Trans
from ..library.folder import EnvironmentMismatch, Library

__all__ = ["Chooser", "Operand", "product_of"]

_log = logging.getLogger("lapwing")
_CPU = -1  # get_device() of an array that is on no GPU


@dataclass(frozen=True)
class Operand:
    """An array of two or three axes (the first is the batch), as its framework describes it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str


def product_of(x: Operand, y: Operand, **other: Any) -> Gemm | None:
    """The product x @ y as the library knows it; None where memory lies in a way that BLAS cannot describe."""
    if len(x.shape) != len(y.shape) or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2] or 0 in (*x.shape, *y.shape):
        return None
    (rows, inner), columns = x.shape[-2:], y.shape[-1]
    left, right = _side(x), _side(y)
    if left is None or right is None:
        return None
    given: dict[str, Any] = {"a_type": y.dtype, "b_type": x.dtype, "lda": right[1], "ldb": left[1]} | other
    if len(x.shape) == 3 and x.shape[0] > 1:
        given |= {"batch": x.shape[0], "stride_a": y.strides[0], "stride_b": x.strides[0]}
        if min(y.strides[0], x.strides[0]) <= 0:  # one matrix for all of the batch
            return None
    try:
        return Gemm.row_major(rows, columns, inner, left=left[0], right=right[0], dtype=x.dtype, **given)
    except ValueError:
        return None


def _side(x: Operand) -> tuple[Trans, int] | None:
    """ "N" and the leading dimension of rows that lie one after the other, "T" of columns that do."""
    (rows, columns), (down, across) = x.shape[-2:], x.strides[-2:]
    # in torch's order, which decides for a single row or column; readers of logs have the same
    if down == 1 and across >= rows:
        return "T", across if columns > 1 else rows
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", down if rows > 1 else columns
    if down == 1 and columns == 1:
        return "T", rows
    return None


class Chooser:
    """Looks a product up in several libraries, the last first, and keeps what it finds.

    ``frozen``: the right operand is a weight that nothing writes. Only then are entries given that need it. ``numpy``: for
    NumPy's arrays, which alone take entries of the backend "cpu": those were compared with NumPy's products, not with torch's.
    """

    def __init__(self, libraries: Sequence[Library], frozen: bool = False, numpy: bool = False) -> None:
        self.libraries, self.frozen, self.numpy = tuple(libraries), frozen, numpy
        self._fits: dict[tuple[int, int], bool] = {}

    def knows_sizes(self, columns: int, inner: int, batch: int) -> bool:
        """A quick no for products that no library has, whatever their types and layout."""
        return any((columns, inner, batch) in library.sizes for library in self.libraries)

    def choose(self, gemm: Gemm, device: int, *, tf32: bool = False) -> Callable[..., Any] | None:
        """``f(x, w, bias=None, out=None, scale_x=None, scale_w=None)`` on operands as they lie in memory, or None."""
        wanted = [replace(gemm, compute="tf32"), gemm] if tf32 and gemm.compute == "f32" else [gemm]
        for at, library in reversed(list(enumerate(self.libraries))):
            for product in wanted:
                entry = library.lookup(product)
                if entry is None or (entry.backend in FROZEN and not self.frozen) or (entry.backend == "cpu") > self.numpy:
                    continue
                try:
                    backend = library.backend(entry.backend)
                    where = getattr(backend, "device_type", "cpu" if entry.backend == "cpu" else "cuda")
                    if (where == "cpu") != (device == _CPU) or not self._fits_here(at, max(device, 0)):
                        continue
                    # for the product that is asked for: its n may be another one of the entry's bucket
                    made = backend.callable(product, entry.config, max(device, 0))
                    _log.info("tune: %s, by %s of %s", product, entry.backend, library.path)
                    return made
                except (Refused, ImportError, KeyError, RuntimeError, ValueError, OSError) as error:
                    _log.warning("tune: %s cannot be used, the framework's own product is: %s", product, _first_line(error))
        return None

    def _fits_here(self, at: int, device: int) -> bool:
        """Whether that library was made on such a device. The first was compared when it was read."""
        if (at, device) not in self._fits:
            library = self.libraries[at]
            differences = library.differences(device)
            self._fits[at, device] = not differences
            if differences:
                _log.warning("%s", _first_line(EnvironmentMismatch(library.path, differences)))
        return self._fits[at, device]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
