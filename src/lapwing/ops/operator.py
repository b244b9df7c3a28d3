"""A matrix that is known by its products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import frameworks
from ..core.errors import ConvergenceError
from ..core.native import DTYPE_CODE, ENGINES, missing_reason, native
from ..core.operation import Operation
from ..core.problem import REAL
from ..core.problem import spec as make_spec
from ..engines import planner
from .spectrum import part_of

__all__ = ["LinearOperator", "eigh_of_operator", "operator"]


@dataclass(frozen=True)
class LinearOperator:
    """A Hermitian matrix given by its product with a block of vectors."""

    matvec: Callable[[Any], Any]
    shape: tuple[int, int]
    dtype: str
    like: Any = None


def operator(matvec: Callable[[Any], Any], shape: tuple[int, int], dtype: Any, *, like: Any = None) -> LinearOperator:
    """Describe a Hermitian matrix by its product, for :func:`eigh` with a ``subset`` at one end of the spectrum.

    Parameters
    ----------
    matvec : function
        Takes an array of shape (n, k) and returns A @ x of the same shape. It may be called with any k >= 1.
    shape : (n, n)
    dtype : str or dtype
        float32, float64, complex64 or complex128.
    like : array, optional
        The library and device of the arrays that ``matvec`` is called with, and of the result; NumPy if not given.

    Returns
    -------
    LinearOperator

    Raises
    ------
    ValueError, TypeError
        Wrong shape or dtype.

    See Also
    --------
    eigh : takes it in place of a matrix.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> d = np.arange(1000.0)
    >>> a = lw.operator(lambda x: d[:, None] * x, (1000, 1000), "float64")
    >>> w, v = lw.eigh(a, subset=slice(-2, None))
    >>> np.allclose(w, [998, 999])
    True
    """
    described = make_spec(tuple(shape), dtype)
    if len(described.shape) != 2 or described.shape[0] != described.shape[1]:
        raise ValueError(f"operator: expected a shape (n, n), got {tuple(shape)}")
    if not callable(matvec):
        raise TypeError(f"operator: matvec={matvec!r} is not a function")
    n = described.shape[0]
    return LinearOperator(matvec, (n, n), described.dtype, like)


def eigh_of_operator(
    name: str, operation: Operation, a: LinearOperator, b: Any, subset: slice | None, window: Any, engine: str
) -> tuple[Any, ...]:
    """The outputs of the operation, by the Krylov iteration on the products."""
    n = a.shape[0]
    if b is not None or window is not None:
        raise ValueError(f"{name}: an operator goes with subset alone, not with b or window")
    if engine not in ("auto", "krylov"):
        raise ValueError(f"{name}: engine={engine!r} needs the matrix itself\nhint: for an operator use engine='krylov'")
    first, count = part_of(name, subset, n)
    if subset is None or count < 0 or (first != 0 and first + count != n):
        raise ValueError(f"{name}: an operator needs a subset at one end, such as slice(-16, None), got {subset}")
    like = np.empty(0) if a.like is None else a.like
    framework = frameworks.of(like, name)
    if native is None:
        raise RuntimeError(f"{name}: an operator needs the native core, and {missing_reason}")
    shapes = [shape for shape, _ in operation.results(((n, n),), (0, first, count))]
    dtypes = [{None: a.dtype, "real": REAL[a.dtype]}.get(d, d) for _, d in operation.results(((n, n),), (0, first, count))]
    sizes = (1, n, first, count)
    call = (operation.code, DTYPE_CODE[a.dtype], ENGINES["krylov"], sizes)
    outputs, converged = framework.run_operator(call, a.matvec, n, a.dtype, list(zip(shapes, dtypes, strict=True)), like)
    if planner.logging_decisions():
        planner.log_notes()
    if not converged or framework.failed(outputs[-1]):
        raise ConvergenceError(name, nonfinite=converged)
    return outputs  # type: ignore[no-any-return]
