"""A matrix that is known by its products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_choice
from ..core.errors import ConvergenceError, ShapeError
from ..core.native import DTYPE_CODE, ENGINES, missing_reason, native
from ..core.operation import Operation
from ..core.problem import REAL
from ..core.problem import spec as make_spec
from .spectrum import part_of


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
    if not isinstance(shape, tuple):
        raise TypeError(f"operator: shape={shape!r} is not a tuple (n, n)")
    described = make_spec(shape, dtype)
    if len(described.shape) != 2 or described.shape[0] != described.shape[1]:
        raise ValueError(f"operator: expected a shape (n, n), got {tuple(shape)}")
    if not callable(matvec):
        kind = type(matvec).__name__
        raise TypeError(f"operator: matvec must be a function, got {kind}\nhint: lambda x: a @ x")
    n = described.shape[0]
    return LinearOperator(matvec, (n, n), described.dtype, like)


# Below this order, and for larger parts of the spectrum, the matrix itself is found by multiplying with the identity.
_SMALLEST, _LARGEST_SHARE = 500, 8


def eigh_of_operator(
    name: str,
    operation: Operation,
    a: LinearOperator,
    subset: slice | None,
    engine: str,
    on_fail: str,
    refused: dict[str, Any],
    again: Callable[..., Any],
) -> tuple[Any, ...]:
    """The outputs of the operation, by the Krylov iteration on the products."""
    n = a.shape[0]
    for keyword, value in refused.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}: an operator does not go with {keyword}={value!r}\nhint: give subset alone")
    check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    if engine not in ("auto", "krylov"):
        raise ValueError(f"{name}: engine={engine!r} needs the matrix itself\nhint: for an operator use engine='krylov'")
    first, count = part_of(name, subset, n)
    count = n if count < 0 else count
    if subset is None or (first != 0 and first + count != n):
        raise ValueError(f"{name}: an operator needs a subset at one end, such as slice(-16, None), got {subset}")
    like = np.empty(0) if a.like is None else a.like
    framework = frameworks.of(like, name)

    def matvec(x: Any) -> Any:
        return _checked(a, x, a.matvec(x))

    if n <= _SMALLEST or _LARGEST_SHARE * count > n:
        whole = matvec(framework.Namespace.put(np.eye(n, dtype=a.dtype), like))
        made = again(whole, subset=subset, on_fail=on_fail)
        return tuple(made) if isinstance(made, tuple) else (made,)
    if native is None:
        raise RuntimeError(f"{name}: an operator needs the native core, and {missing_reason}")
    kinds = {None: a.dtype, "real": REAL[a.dtype]}
    results = [(shape, kinds.get(d, d)) for shape, d in operation.results(((n, n),), (0, first, count))]
    call = (operation.code, DTYPE_CODE[a.dtype], ENGINES["krylov"], (1, n, first, count))
    outputs, converged = framework.run_operator(call, matvec, n, a.dtype, results, like)
    if planner.logging_decisions():
        planner.log_notes()
    if converged and not framework.failed(outputs[-1]):
        return outputs  # type: ignore[no-any-return]
    if on_fail == "nan":
        return tuple(x * np.nan for x in outputs[:-1])
    raise ConvergenceError(name, nonfinite=converged, operator=True)


def _checked(a: LinearOperator, x: Any, y: Any) -> Any:
    """``y`` in the dtype of the operator, if it can be the product of a block ``x``."""
    shapes = tuple(x.shape), tuple(getattr(y, "shape", ()))
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"operator: matvec returned shape {shapes[1]} for a block of shape {shapes[0]}"
            "\nhint: matvec gets k vectors at a time, as the columns of an (n, k) array, and returns A times that array"
        )
    returned = frameworks.of(y, "operator")
    dtype = returned.dtype_of(y)
    if dtype == a.dtype:
        return y
    if not np.can_cast(dtype, a.dtype, "same_kind"):
        raise TypeError(
            f"operator: matvec returned {dtype} for a block of {a.dtype}\nhint: name that dtype in lapwing.operator(...)"
        )
    return returned.Namespace.cast(y, a.dtype)
