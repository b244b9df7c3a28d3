"""What is asked: an operation on arrays of a shape, dtype and device."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import Any

__all__ = ["DEVICES", "DTYPES", "ITEMSIZE", "REAL", "Problem", "Spec", "spec"]

DTYPES = ("float32", "float64", "complex64", "complex128")  # in the order of Dtype in native/frame.h
DEVICES = ("cpu", "cuda")  # in the order of Device in native/frame.h
ITEMSIZE = dict(zip(DTYPES, (4, 8, 8, 16), strict=True))
REAL = dict(zip(DTYPES, ("float32", "float64", "float32", "float64"), strict=True))


@dataclass(frozen=True)
class Spec:
    """An array described, not allocated."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    sharding: Any = None


def spec(shape: tuple[int, ...], dtype: Any = "float64", device: str = "cpu", sharding: Any = None) -> Spec:
    """Describe an array without allocating it, for :func:`lapwing.explain`.

    Parameters
    ----------
    shape : tuple of int
    dtype : str or dtype
        "float32", "float64", "complex64" or "complex128".
    device : str
        "cpu" or "cuda".
    sharding : object, optional
        Reserved for sharded arrays.

    Examples
    --------
    >>> import lapwing as lw
    >>> lw.spec((1000, 8, 8), "float32")
    Spec(shape=(1000, 8, 8), dtype='float32', device='cpu', sharding=None)
    """
    # "float32", torch.float32, numpy.float32 and jax.numpy.float32 alike
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise TypeError(f"spec: dtype {name} is not supported\nhint: use one of {', '.join(DTYPES)}")
    kind = str(device).partition(":")[0]
    kind = "cuda" if kind == "gpu" else kind
    if kind not in DEVICES:
        raise ValueError(f"spec: unknown device {device!r}\nhint: use one of {', '.join(DEVICES)}")
    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        sizes = (-1,)
    if min(sizes, default=0) < 0:
        raise ValueError(f"spec: shape {shape!r} is not a tuple of sizes")
    return Spec(sizes, name, kind, sharding)


@dataclass(frozen=True)
class Problem:
    """One operation on a batch of n x n matrices."""

    operation: str
    dtype: str
    batch: int
    n: int
    device: str
    upper: bool = False
    part: tuple[int, int] | None = None  # of the spectrum: the first eigenvalue, and how many

    @classmethod
    def of(cls, operation: str, array: Spec, *, upper: bool = False, part: tuple[int, int] | None = None) -> Problem:
        return cls(operation, array.dtype, prod(array.shape[:-2]), array.shape[-1], array.device, upper, part)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def count(self) -> int:
        """Eigenvalues asked for."""
        return self.n if self.part is None else self.part[1]

    @property
    def at_an_end(self) -> bool:
        """The part is the smallest or the largest eigenvalues."""
        return self.part is not None and self.count < self.n and (self.part[0] == 0 or sum(self.part) == self.n)

    @property
    def sizes(self) -> tuple[int, ...]:
        """As the native frame carries them."""
        part = (0, self.n) if self.part is None else self.part
        return (self.batch, self.n) if self.operation == "cholesky" else (self.batch, self.n, *part)

    def __str__(self) -> str:
        text = f"{self.operation} of {self.batch} x {self.n} x {self.n} {self.dtype} on {self.device}"
        return text if self.part is None else f"{text}, {self.count} of {self.n} eigenvalues"
