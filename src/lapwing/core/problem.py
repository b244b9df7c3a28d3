"""What a call asks for: an operation on arrays of a shape, dtype and device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

DTYPES = ("float32", "float64", "complex64", "complex128")  # in the order of Dtype in native/frame.h
DEVICES = ("cpu", "cuda")  # in the order of Device in native/frame.h
# Flag in native/frame.h: the triangle that is read, the input may be destroyed, solve with the adjoint, ones on the diagonal,
# positive definite, a factor in lower precision is allowed, A = A^T, A = A^H, routines of the caller's library may be used,
# the conjugate of the triangle is in memory
UPPER, OVERWRITE, ADJOINT, UNIT, POS, MIXED, SYMMETRIC, SELF_ADJOINT, LENT, CONJUGATE = (1 << i for i in range(10))
ITEMSIZE = dict(zip(DTYPES, (4, 8, 8, 16), strict=True))
REAL = dict(zip(DTYPES, ("float32", "float64", "float32", "float64"), strict=True))
COMPLEX = dict(zip(DTYPES, ("complex64", "complex128", "complex64", "complex128"), strict=True))


def promoted(first: str, second: str) -> str:
    """The dtype that holds both, by the rules of the array API standard, which all frameworks share for these four."""
    kind = "complex" if "complex" in first + second else "float"
    wide = "float64" in (REAL[first], REAL[second])
    return f"{kind}{64 if kind == 'float' else 128}" if wide else f"{kind}{32 if kind == 'float' else 64}"


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
    sharding : int, (p, q) or Layout, optional
        Over how many devices a matrix is spread, over which grid of them, or its layout.

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
    """One operation on a batch of matrices: n x n, for qr, svd and lstsq n x columns."""

    operation: str
    dtype: str
    batch: int
    n: int
    device: str
    upper: bool = False
    part: tuple[int, int] | None = None  # of the spectrum: the first eigenvalue, and how many
    tol: float = 0.0  # for a part of a spectrum, relative to the norm; 0: the default
    columns: int | None = None  # of the matrix if it need not be square, else of the right-hand side
    right: int = 1  # right-hand sides of least squares
    pos: bool = False
    full: bool = False  # qr: complete, svd: full matrices
    mixed: bool = False  # a factor in lower precision is allowed
    mirrored: int = 0  # for a solve: the flag SYMMETRIC or SELF_ADJOINT, if both triangles are filled
    also: str = ""  # appended to the reason: what else runs in the same call
    by_framework: str = ""  # why the framework does the work and no engine is needed

    @classmethod
    def of(cls, operation: str, array: Spec, **known: Any) -> Problem:
        return cls(operation, array.dtype, prod(array.shape[:-2]), array.shape[-2], array.device, **known)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def rectangular(self) -> bool:
        return self.operation in ("qr", "qr_r", "qr_raw", "svd", "svdvals", "svd_part", "lstsq")

    @property
    def count(self) -> int:
        """Eigenvalues or singular values asked for."""
        return self.n if self.part is None else self.part[1]

    @property
    def at_an_end(self) -> bool:
        """The part is the smallest or the largest eigenvalues."""
        return self.part is not None and self.count < self.n and (self.part[0] == 0 or sum(self.part) == self.n)

    @property
    def record(self) -> str:
        """The name of the record that holds measurements of such problems."""
        if self.at_an_end and self.operation in ("eigh", "eigvalsh"):
            return "eigh_part"
        operation = "slogdet" if self.pos and self.operation == "det" else self.operation
        return f"{operation}_pos" if self.pos else f"{operation}_symmetric" if self.mirrored else operation

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in the native frame."""
        if self.operation in ("eigh", "eigvalsh"):
            tolerance = () if not self.tol else (int(np.float32(self.tol).view(np.int32)),)
            return (self.batch, self.n, *((0, self.n) if self.part is None else self.part), *tolerance)
        if self.columns is None:
            return self.batch, self.n
        if self.operation == "qr":
            return self.batch, self.n, self.columns, self.n if self.full else min(self.n, self.columns)
        if self.operation == "lstsq":
            return self.batch, self.n, self.columns, self.right
        if self.operation == "svd_part":
            return self.batch, self.n, self.columns, self.count
        return (self.batch, self.n, self.columns, int(self.full)) if self.rectangular else (self.batch, self.n, self.columns)

    @property
    def flags(self) -> int:
        """The flags in the native frame."""
        upper, pos, mixed = (UPPER if self.upper else 0), (POS if self.pos else 0), (MIXED if self.mixed else 0)
        return upper | pos | mixed | self.mirrored

    @property
    def sides(self) -> int:
        """How many right-hand sides there are."""
        return self.columns or 1

    @property
    def long(self) -> int:
        """The longer side of a rectangular matrix."""
        return max(self.n, self.columns or 1)

    @property
    def short(self) -> int:
        return min(self.n, self.columns or 1)

    @property
    def flops(self) -> float:
        """Floating-point operations by the usual count; for eigenvalues the reduction to tridiagonal form, and the vectors."""
        return self.batch * WORK[self.operation](self)[0] * (4 if self.dtype.startswith("complex") else 1)

    @property
    def bytes_moved(self) -> int:
        """Each input read once, each output written once."""
        return self.batch * int(WORK[self.operation](self)[1]) * self.itemsize

    def __str__(self) -> str:
        columns = self.columns if self.rectangular else self.n
        name = self.operation.removesuffix("_part")
        text = f"{name} of {self.batch} x {self.n} x {columns} {self.dtype} on {self.device}"
        if self.part is None:
            return text
        values = f"{self.short} singular values" if self.rectangular else f"{self.n} eigenvalues"
        return f"{text}, {self.count} of {values}"


# for each operation: flops and elements moved for one real matrix; filled by the records of core/operation.py
WORK: dict[str, Callable[[Problem], tuple[float, float]]] = {}
