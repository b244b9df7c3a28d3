"""The linear algebra extension of the array API standard (2025.12) for NumPy, PyTorch, JAX, TensorFlow and CuPy arrays.

``from lapwing import linalg`` serves a program that is written for the standard's ``xp.linalg``: names, arguments and defaults
are the standard's, which differ from lapwing's own in places (``svd`` returns square U and Vh by default). Factorisations are
lapwing's. Products, norms and views are the library's own. Each function is described in the standard; lapwing's
function of the same name describes errors and derivatives.

Examples
--------
>>> import numpy as np
>>> from lapwing import linalg
>>> linalg.svd(np.ones((3, 2))).U.shape
(3, 3)
>>> float(linalg.matrix_norm(np.diag([3.0, 4.0]), ord="nuc"))
7.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps as _wraps
from operator import index as _index
from typing import Any, Literal

from numpy import asarray as _asarray
from numpy import generic as _Scalar

from . import frameworks as _frameworks
from .core.autograph import leave_alone as _leave_alone
from .core.checks import as_array as _as_array
from .core.checks import check_choice as _check_choice
from .core.checks import check_matrix as _check_matrix
from .core.checks import check_square as _check_square
from .core.errors import ShapeError as _ShapeError
from .frameworks import foreign as _foreign
from .ops import singular_values as _singular_values
from .ops.cholesky import cholesky as _cholesky
from .ops.det import det as _det
from .ops.eig import EigResult
from .ops.eig import eig as _eig
from .ops.eig import eigvals as _eigvals
from .ops.eigh import EighResult
from .ops.eigh import eigh as _eigh
from .ops.eigh import eigvalsh as _eigvalsh
from .ops.functions import power as _power
from .ops.matmul import matmul as _matmul
from .ops.qr import QRResult
from .ops.qr import qr as _qr
from .ops.solve import SlogdetResult
from .ops.solve import inv as _inv
from .ops.solve import slogdet as _slogdet
from .ops.solve import solve as _solve
from .ops.svd import SVDResult
from .ops.svd import svd as _svd
from .ops.svd import svdvals as _svdvals

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

# ---- factorisations, by lapwing


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """Lower triangular L with x = L L^H, or upper triangular U with x = U^H U."""
    return _cholesky(x, upper=upper)


def det(x: Any, /) -> Any:
    """Determinant."""
    return _det(x)


def eig(x: Any, /) -> EigResult:
    """``(eigenvalues, eigenvectors)`` of general matrices, both complex, in no particular order."""
    return _eig(x)


def eigh(x: Any, /) -> EighResult:
    """``(eigenvalues, eigenvectors)`` of Hermitian matrices, ascending; the lower triangle is read."""
    return _eigh(x)


def eigvals(x: Any, /) -> Any:
    """Eigenvalues of general matrices, complex, in no particular order."""
    return _eigvals(x)


def eigvalsh(x: Any, /) -> Any:
    """Eigenvalues of Hermitian matrices, ascending; the lower triangle is read."""
    return _eigvalsh(x)


def inv(x: Any, /) -> Any:
    """Inverse."""
    return _inv(x)


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """Number of singular values above ``rtol`` times the largest; by default max(M, N) eps."""
    return _singular_values.matrix_rank(x, rtol=rtol)


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """Pseudo-inverse; singular values up to ``rtol`` times the largest count as zero; by default max(M, N) eps."""
    return _singular_values.pinv(x, rcond=rtol)


def qr(x: Any, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """``(Q, R)``."""
    _check_choice("qr", "mode", mode, ("reduced", "complete"))
    return _qr(x, mode=mode)  # type: ignore[return-value]


def slogdet(x: Any, /) -> SlogdetResult:
    """``(sign, logabsdet)`` of the determinant."""
    return _slogdet(x)


def solve(x1: Any, x2: Any, /) -> Any:
    """The x with x1 x = x2; x2 is one vector (M,), or matrices (..., M, K)."""
    return _solve(x1, x2)


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """``(U, S, Vh)``, singular values descending; U and Vh are square by default."""
    return _svd(x, full_matrices=full_matrices)


def svdvals(x: Any, /) -> Any:
    """Singular values, descending."""
    return _svdvals(x)


# ---- products, norms and views, by the library of the array


def _light(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which also takes NumPy's scalars and arrays of libraries that only share their memory."""

    @_wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        # NumPy returns scalars instead of arrays without axes
        arguments = tuple(_asarray(x) if isinstance(x, _Scalar) else _as_array(x) for x in arguments)
        if any(_foreign.accepts(type(x)) for x in arguments):
            return _foreign.through(function)(*arguments, **options)
        return function(*arguments, **options)

    return call


def _functions(name: str, x1: Any, x2: Any = None) -> Any:
    """The functions of the library that the arrays belong to."""
    functions = _frameworks.of(x1, name).light
    if x2 is not None and _frameworks.of(x2, name).light is not functions:
        kinds = [f"{type(x).__module__}.{type(x).__qualname__}" for x in (x1, x2)]
        raise TypeError(f"{name}: expected arrays of one library, got {kinds[0]} and {kinds[1]}\nhint: convert one of them")
    return functions


def _shape(name: str, x: Any, least: int = 0) -> tuple[Any, ...]:
    shape: tuple[Any, ...] = _frameworks.of(x, name).shape_of(x)
    if len(shape) < least:
        raise _ShapeError(f"{name}: expected at least {least} axes, got shape {tuple(shape)}")
    return shape


def _length(name: str, x: Any, axis: int) -> Any:
    shape = _shape(name, x)
    if not -len(shape) <= axis < len(shape):
        raise _ShapeError(f"{name}: axis={axis} is out of range for shape {tuple(shape)}")
    return shape[axis]


@_light
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Cross product of vectors with three elements."""
    functions = _functions("cross", x1, x2)
    for x in (x1, x2):
        length = _length("cross", x, axis)
        if length is not None and length != 3:
            raise _ShapeError(f"cross: expected 3 elements along axis {axis}, got shape {tuple(_shape('cross', x))}")
    return functions.cross(x1, x2, axis=axis)


@_light
def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals; ``offset`` above zero is above the main diagonal."""
    _shape("diagonal", x, 2)
    return _functions("diagonal", x).diagonal(x, offset=offset)


@_light
def matmul(x1: Any, x2: Any, /) -> Any:
    """Matrix product; dtypes are promoted."""
    functions = _functions("matmul", x1, x2)
    if x1.dtype == x2.dtype or not (len(_shape("matmul", x1)) and len(_shape("matmul", x2))):
        return _matmul(x1, x2)
    return functions.matmul(x1, x2)


@_light
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Norm of matrices: "fro", "nuc", 1, -1, 2, -2, inf or -inf."""
    _shape("matrix_norm", x, 2)
    ord = "fro" if ord is None else ord
    _singular_values.check_norm("matrix_norm", "ord", ord)
    return _singular_values.matrix_norm(x, ord, keepdims)


@_light
def matrix_power(x: Any, n: int, /) -> Any:
    """x multiplied with itself n times; the inverse -n times for a negative n."""
    framework, n = _frameworks.of(x, "matrix_power"), _index(n)
    shape = _shape("matrix_power", x, 2)
    _check_square("matrix_power", shape, "float64")  # of any dtype
    if n < 0:
        _check_matrix("matrix_power", shape, framework.dtype_of(x))
        x, n = _inv(x), -n
    xp = framework.Namespace
    return _power(xp, x, n) if n else xp.zeros_like(x) + xp.eye(x)


@_light
def matrix_transpose(x: Any, /) -> Any:
    """The last two axes exchanged."""
    _shape("matrix_transpose", x, 2)
    return _functions("matrix_transpose", x).matrix_transpose(x)


@_light
def outer(x1: Any, x2: Any, /) -> Any:
    """Outer product of two vectors."""
    for x in (x1, x2):
        if len(_shape("outer", x)) != 1:
            raise _ShapeError(f"outer: expected two vectors, got shape {tuple(_shape('outer', x))}")
    return _functions("outer", x1, x2).outer(x1, x2)


@_light
def tensordot(x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
    """Sum of products over axes of both."""
    return _functions("tensordot", x1, x2).tensordot(x1, x2, axes=axes)


@_light
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Sum along the diagonals."""
    _shape("trace", x, 2)
    return _functions("trace", x).trace(x, offset=offset, dtype=dtype)


@_light
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Sum of conj(x1) x2 along an axis."""
    functions = _functions("vecdot", x1, x2)
    lengths = [_length("vecdot", x, axis) for x in (x1, x2)]
    if None not in lengths and lengths[0] != lengths[1]:
        raise _ShapeError(f"vecdot: the vectors have {lengths[0]} and {lengths[1]} elements")
    return functions.vecdot(x1, x2, axis=axis)


@_light
def vector_norm(x: Any, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: int | float = 2) -> Any:
    """(sum |x|^ord)^(1/ord) over some or all axes; the largest element for inf, the number of nonzero ones for 0."""
    axes = axis if axis is None or isinstance(axis, (tuple, list)) else (_index(axis),)
    for one in axes or ():
        _length("vector_norm", x, one)
    return _functions("vector_norm", x).vector_norm(x, axis=axes, ord=ord, keepdims=keepdims)


_leave_alone(*(globals()[_name] for _name in __all__))
