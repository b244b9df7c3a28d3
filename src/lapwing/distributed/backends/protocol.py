"""The contract of a distributed backend, and how it sees a matrix.

A backend is one class in this folder and one line in ``backends/choice.py``. It says which matrices and calls it takes and what
a call costs, and runs the call. Matrices come as :class:`Part`; backends inside a framework (``xla``) get its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ...core.problem import DTYPES, promoted
from ...core.request import Request
from ..cost import Cost, predict
from ..layout import Layout


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a matrix that one rank holds: its block, which entries the block has, and the ranks.

    ``cut(shape)`` is the layout of a result of another shape; by default it is that of the matrix, resized.
    """

    local: Any
    layout: Layout
    ranks: Any
    memory: Any = None  # set if the front knows how the block lies on a GPU
    cut: Callable[[tuple[int, int]], Layout] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.shape

    @property
    def ndim(self) -> int:
        return 2

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(str(self.local.dtype).rpartition(".")[2])

    def of_shape(self, shape: tuple[int, int]) -> Layout:
        return self.layout.of_shape(shape) if self.cut is None else self.cut(shape)


@dataclass(frozen=True)
class Array:
    """A sharded matrix as the choice of a backend sees it."""

    kind: str  # "matrix", "devices", "dtensor", "jax", or "spec": described, not allocated
    shape: tuple[int, int]
    dtype: str
    device: str  # "cpu" or "cuda"
    size: int  # how many ranks or devices
    layout: Layout | None = None
    library: str = "numpy"  # the library of the blocks
    mpi: bool = True  # MPI started the ranks
    blocks: bool = True  # each rank has one block, outside of traced code, so that any library can use them
    placement: Any = None  # how a JAX array lies on its mesh
    columns: int = 1  # right-hand sides
    grid: tuple[int, int] | None = None  # where a description says it
    traced: bool = False
    one_process: bool = False  # a JAX array with one block on each of several GPUs of this process, outside of traced code


@dataclass(frozen=True)
class Support:
    """Whether a backend takes a call; if not, ``reason`` says why."""

    yes: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.yes


DETERMINANTS = ("det", "slogdet")  # a singular matrix is no failure for them


class Backend(Protocol):
    """A library, or an algorithm of our own, for matrices over many devices."""

    name: str
    what: str  # in a few words
    takes: str  # which arrays, for the table of the docs
    devices: tuple[str, ...]
    operations: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()  # the values of ``engine=`` that ask for it
    # or "devices": a matrix is a DeviceMatrix; or "arrays": matrix and results are arrays of the framework with a placement
    sees: str = "parts"
    refines: bool = False  # precision="mixed" has an effect: the ordinary functions do the work

    def missing(self, device: str) -> str:
        """ "" or why it cannot be used on this machine."""
        return ""

    def refuses(self, array: Array) -> str:
        """ "" or why it does not take such arrays; the text follows its name in a sentence."""

    def support(self, request: Request, array: Array) -> Support:
        """Whether it takes this call on an array that it does not refuse; a reason in words if not."""
        return Support(True)

    def cost(self, request: Request, array: Array) -> Cost: ...

    def prepare(self, request: Request, a: Any) -> Any:
        """Information about this rank for the others. Raises an error of this rank, on which all ranks then agree."""
        return None

    def run(self, request: Request, a: Any, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        """The results, in the order of ``request.places``; for "factor" one handle. Collective.

        ``b`` is a Part, or a NumPy array that every rank has; a solution has the same form. ``ranks`` are the results of
        :meth:`prepare` on all ranks.
        """


def check_right(name: str, a: Any, b: Any, hint: str = "") -> None:
    """Check that b is a right-hand side for a sharded matrix; both are arrays, or described. ``hint`` is for wrong rows."""
    check_columns(name, a, b)
    if b.shape[0] != a.shape[0]:
        shapes = f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"{name}: a has {a.shape[0]} rows and b has {b.shape[0]} ({shapes}){hint}")


def check_columns(name: str, a: Any, b: Any) -> None:
    """As :func:`check_right`, but b may have any number of rows."""
    dtypes = _dtypes(a, b)
    if dtypes[0] != dtypes[1]:
        raise TypeError(
            f"{name}: b has dtype {dtypes[1]}, which cannot be used with a of {dtypes[0]}\nhint: convert b to {dtypes[0]}"
        )
    if len(b.shape) not in (1, 2):
        raise ValueError(f"{name}: b must have shape (n,) or (n, k) for a sharded matrix, got {tuple(b.shape)}")


def promote(a: Any, b: Any, cast: Callable[[Any, str], Any], *, fixed: bool = False) -> tuple[Any, Any]:
    """``a`` and ``b`` in the dtype that holds both; ``cast(x, dtype)`` converts one. ``fixed``: ``a`` keeps its dtype.

    If there is no such dtype they are unchanged, and :func:`check_right` refuses them later.
    """
    dtypes = _dtypes(a, b)
    if dtypes[0] == dtypes[1] or not set(DTYPES).issuperset(dtypes):
        return a, b
    common = promoted(*dtypes)
    if fixed and common != dtypes[0]:
        return a, b
    return tuple(x if dtype == common else cast(x, common) for x, dtype in zip((a, b), dtypes, strict=True))  # type: ignore[return-value]


def _dtypes(*arrays: Any) -> list[str]:
    return [str(getattr(x, "dtype", type(x).__name__)).rpartition(".")[2] for x in arrays]


def columns_of(b: Any) -> int:
    """The number of right-hand sides; 1 if there is no b."""
    shape: Any = getattr(b, "shape", ())
    return int(shape[1]) if len(shape) == 2 else 1


def with_status(run: Callable[[Request], tuple[Any, ...]], request: Request, b: Any) -> tuple[Any, ...]:
    """The results of a call that ends with a status, from a call without one."""
    if request.operation == "eigh":
        values, vectors = run(replace(request, status=False))
        return values, vectors, np.int32(bool((values != values).any()))
    (handle,) = run(replace(request, operation="factor", status=False))
    if request.operation == "cholesky":
        return handle.l, np.int32(handle.info)
    return handle.inverse() if b is None else handle.solve(b), np.int32(handle.info)


def on_tiles(request: Request, array: Array, grid: Any, machine: Any, tile: int | None = None) -> Cost:
    """Cost of ScaLAPACK or cuSOLVERMp, on square tiles over a grid."""
    operation, assume = scaled_operation(request)
    rows, columns = array.shape
    known: dict[str, Any] = {"machine": machine, "tile": tile, "columns": array.columns, "assume": assume, "rows": rows}
    return replace(predict(operation, columns, grid, array.dtype, **known), operation=request.name)


def scaled_operation(request: Request) -> tuple[str, str]:
    """The name of the operation in the cost model, and "pos" if a Cholesky factorisation is enough."""
    if request.operation == "factor":
        return "cholesky" if request.assume == "pos" else "lu", "pos"
    operation = "slogdet" if request.operation == "det" else request.operation
    return operation, request.assume if operation in ("solve", "inv", "slogdet") else "pos"


def determinant(sign: Any, logabs: Any, dtype: Any) -> Any:
    """The determinant from its sign and logarithm; Inf if it is too large for the dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(sign * np.exp(logabs)).astype(dtype)[()]


def nan_of(dtype: Any) -> Any:
    return complex(np.nan, np.nan) if np.dtype(dtype).kind == "c" else np.nan
