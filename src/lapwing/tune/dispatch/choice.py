"""Choose the tuned kernel of a product: sizes, strides and types of its operands in, a kernel or None out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..backends import FROZEN
from ..backends.base import Refused
from ..gemm import Gemm, Trans
from ..library.folder import EnvironmentMismatch, Library
from .counts import Tally, add_libraries, tally

_log = logging.getLogger("lapwing")
_CPU = -1  # get_device() of an array that is on no GPU


@dataclass(frozen=True)
class Operand:
    """An array with two axes, or three of which the first is the batch, as its framework describes it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str


def product_of(x: Operand, y: Operand, **other: Any) -> Gemm | None:
    """The product x @ y as a library stores it; None when BLAS cannot describe these strides."""
    if len(x.shape) != len(y.shape) or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2] or 0 in (*x.shape, *y.shape):
        return None
    (rows, inner), columns = x.shape[-2:], y.shape[-1]
    left, right = _side(x), _side(y)
    if left is None or right is None:
        return None
    values: dict[str, Any] = {"a_type": y.dtype, "b_type": x.dtype, "lda": right[1], "ldb": left[1]} | other
    if len(x.shape) == 3 and x.shape[0] > 1:
        values |= {"batch": x.shape[0], "stride_a": y.strides[0], "stride_b": x.strides[0]}
        if min(y.strides[0], x.strides[0]) <= 0:  # the whole batch shares one matrix
            return None
    try:
        return Gemm.row_major(rows, columns, inner, left=left[0], right=right[0], dtype=x.dtype, **values)
    except ValueError:
        return None


def _side(x: Operand) -> tuple[Trans, int] | None:
    """ "N" for a matrix stored by rows, "T" for one stored by columns, and its leading dimension."""
    (rows, columns), (down, across) = x.shape[-2:], x.strides[-2:]
    # the order of these tests is torch's: it matters for a single row or column. The readers of logs have the same order
    if down == 1 and across >= rows:
        return "T", across if columns > 1 else rows
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", down if rows > 1 else columns
    if down == 1 and columns == 1:
        return "T", rows
    return None


class Choice(NamedTuple):
    """A kernel ``f(x, w, bias=None, out=None, scale_x=None, scale_w=None)``, and the counts of its entry."""

    kernel: Callable[..., Any]
    tally: Tally


class Chooser:
    """Looks a product up in several libraries, the last one first.

    ``frozen``: the right operand is a weight that nothing writes, so entries that need this may be used. ``numpy``: operands
    are NumPy arrays. Only these use entries of the backend "cpu", which was compared with NumPy's products, not with torch's.
    """

    def __init__(self, libraries: Sequence[Library], frozen: bool = False, numpy: bool = False) -> None:
        self.libraries, self.frozen, self.numpy = tuple(libraries), frozen, numpy
        self._fits: dict[tuple[int, int], bool] = {}
        add_libraries(self.libraries)

    def knows_sizes(self, columns: int, inner: int, batch: int) -> bool:
        """Whether any library has a product of these sizes, whatever its types and layout."""
        return any((columns, inner, batch) in library.sizes for library in self.libraries)

    def choose(self, gemm: Gemm, device: int, *, tf32: bool = False) -> Choice | None:
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
                    # for this product, not for the entry's: its n may be another one in the same bucket
                    kernel = backend.callable(product, entry.config, max(device, 0))
                    _log.info("tune: %s by %s of %s", product, entry.backend, library.path)
                    return Choice(kernel, tally(entry.gemm, library, entry.backend))
                except (Refused, ImportError, KeyError, RuntimeError, ValueError, OSError) as error:
                    _log.warning(
                        "tune: the entry for %s cannot be used, so the framework computes it: %s", product, _first_line(error)
                    )
        return None

    def _fits_here(self, at: int, device: int) -> bool:
        """Whether the library was made on a device like this one."""
        if (at, device) not in self._fits:
            library = self.libraries[at]
            differences = library.differences(device)
            self._fits[at, device] = not differences
            if differences:
                _log.warning("%s", _first_line(EnvironmentMismatch(library.path, differences)))
        return self._fits[at, device]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
