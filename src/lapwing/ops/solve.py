"""A x = b, the inverse, and the determinant: by the kind of matrix that ``assume`` names."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal, NamedTuple, Never, TypeVar

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_choice, check_flag, check_pair, check_square
from ..core.condition import raise_subnormal
from ..core.errors import NotPositiveDefiniteError, ShapeError, SingularMatrixError
from ..core.keywords import unknown_keyword
from ..core.operation import Operation
from ..core.problem import ADJOINT, MIXED, POS, SELF_ADJOINT, SYMMETRIC, UNIT, UPPER, Problem, Spec
from ..core.request import ASSUME, MATRIX, ONE_TRIANGLE, RIGHT, VALUE, Request
from .failure import first_failure
from .systems import INVERSE, SLOGDET, SOLVE, SOLVE_MIXED, TRIANGULAR
from .triangle import HERMITIAN, finite_flags, symmetric_matrix, whole_matrix

Array = TypeVar("Array")
_logging = planner.logging_decisions  # saves a look-up in each call
Assume = Literal["general", "symmetric", "hermitian", "pos", "lower", "upper"]
# flags for engines that have LDL; the others use LU
_MIRRORED = {"symmetric": SYMMETRIC, "hermitian": SELF_ADJOINT}
# the operation and its flags, for matrices that need no preparation
_DIRECT = {"general": (SOLVE, 0), "pos": (SOLVE, POS), "lower": (TRIANGULAR, 0), "upper": (TRIANGULAR, UPPER)}


class SolveExResult(NamedTuple):
    """The results of :func:`solve_ex`."""

    result: Any
    info: Any


class InvExResult(NamedTuple):
    """The results of :func:`inv_ex`."""

    inverse: Any
    info: Any


class SlogdetResult(NamedTuple):
    """The results of :func:`slogdet`."""

    sign: Any
    logabsdet: Any


def solve(
    a: Any,
    b: Array,
    /,
    *,
    assume: Assume = "general",
    upper: bool = False,
    overwrite: bool = False,
    precision: Literal["full", "mixed"] = "full",
    unit: bool = False,
    side: Literal["left", "right"] = "left",
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> Array:
    """Solve A x = b, or x A = b.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    b : array, shape (n,) or (..., n, k)
        Any number of right-hand sides; the batch axes of ``a`` and ``b`` broadcast. Same library and device as ``a``; two
        dtypes are promoted to one that can hold both.
    assume : {"general", "symmetric", "hermitian", "pos", "lower", "upper"}
        The kind of matrix. "general": LU with partial pivoting. "symmetric", "hermitian": LDL or LU. "pos": Hermitian positive
        definite, Cholesky. "lower" and "upper": triangular.
    upper : bool
        Which triangle is read of a symmetric, Hermitian or positive definite matrix.
    overwrite : bool
        Lets the call reuse the memory of ``a`` (NumPy, PyTorch, CuPy); ``a`` is then destroyed.
    precision : {"full", "mixed"}
        "mixed" allows a factor in lower precision, refined until the answer is as good as that of the full one; where that does
        not pay, the full one is used. For float64 and complex128, "general" and "pos". The log says what happened. It may wait
        for the device.
    unit : bool
        With "lower" and "upper": the diagonal is taken as ones and not read.
    side : {"left", "right"}
        "right" solves x A = b for ``b`` of shape (n,) or (..., k, n).
    on_fail : {"raise", "nan"}
        "raise" waits for the device and raises. "nan" never waits: the solution with a matrix that failed becomes NaN, the
        others are untouched. Inside ``jax.jit``, ``torch.compile``, ``torch.func``, ``tf.function`` and graph capture, "raise"
        behaves as "nan".
    engine : str
        "auto", or the name of an engine that can do the call: ``lapwing.explain`` lists them. If derivatives are recorded, this
        engine factors the matrix, and the factor is kept for them; with ``precision="mixed"`` each derivative is a solve of its
        own.

    Returns
    -------
    array, shape (..., n), (..., n, k) or (..., k, n)
        x: same library, device and dtype.

    Raises
    ------
    SingularMatrixError
        A pivot is exactly zero, or the matrix holds NaN or Inf.
    NotPositiveDefiniteError
        With "pos".
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    factor : factor once, solve often.
    solve_ex : status instead of an error, never waits.
    lstsq : rectangular or singular matrices.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.solve(np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([4.0, 3.0]))
    array([3., 2.])
    >>> lw.solve(np.zeros((2, 2)), np.ones(2))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    SingularMatrixError: solve: the matrix is singular (pivot 1 is zero)
    """
    if unknown:
        raise unknown_keyword(solve, unknown)
    framework = frameworks.entry(a, "solve")
    if framework.sharded:
        known = {"assume": assume, "upper": upper, "overwrite": overwrite, "precision": precision, "unit": unit, "side": side}
        return framework.call(solve, a, b, on_fail=on_fail, engine=engine, **known)  # type: ignore[no-any-return]
    plain = framework.direct(a) and upper is False and overwrite is False and unit is False and precision == "full"
    if plain and side == "left" and on_fail == "raise" and engine == "auto" and not _logging():
        x = _solve_direct(framework, a, b, assume)
        if x is not None:
            return x  # type: ignore[no-any-return]
    triangle = UNIT if unit is not False and _check_unit("solve", unit, assume) else 0
    if side == "left":
        x, _ = _solve(framework, "solve", a, b, assume, upper, overwrite, precision, on_fail, engine, triangle)
        return x  # type: ignore[no-any-return]
    check_choice("solve", "side", side, ("left", "right"))
    options = (upper, overwrite, precision, on_fail, engine, triangle | ADJOINT)
    return _solve_from_the_right(framework, a, b, assume, options)  # type: ignore[no-any-return]


def _solve_direct(framework: Any, a: Any, b: Any, assume: str) -> Any:
    """The solution for plain arrays with the usual options; None if the long way must be taken, which finds out why."""
    known = _DIRECT.get(assume) if isinstance(assume, str) else None
    if known is not None:
        return framework.solve_direct(*known, a, b)
    if not isinstance(assume, str) or assume not in _MIRRORED:
        return None
    flag = _MIRRORED[assume]
    filled = framework.solve_direct(HERMITIAN, flag & SYMMETRIC, a)
    return None if filled is None else framework.solve_direct(SOLVE, flag, filled, b)


def solve_ex(a: Any, b: Any, /, *, assume: Assume = "general", upper: bool = False, **unknown: Never) -> SolveExResult:
    """Solution and a status per matrix; never waits for the device.

    Parameters
    ----------
    a, b, assume, upper
        As for :func:`solve`.

    Returns
    -------
    result : array
        NaN where it failed.
    info : int32 array, shape (...)
        0, or the first pivot that is zero or not finite, counted from 1; with "pos" the order of the first bad leading minor.

    Raises
    ------
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    solve : raises on failure.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.solve_ex(np.array([np.eye(1), np.zeros((1, 1))]), np.ones((1, 1))).info
    array([0, 1], dtype=int32)
    """
    if unknown:
        raise unknown_keyword(solve_ex, unknown)
    framework = frameworks.entry(a, "solve_ex")
    if framework.sharded:
        return framework.call(solve_ex, a, b, assume=assume, upper=upper)  # type: ignore[no-any-return]
    return SolveExResult(*_solve(framework, "solve_ex", a, b, assume, upper, False, "full", "nan", "auto"))


def inv(
    a: Array,
    /,
    *,
    assume: Assume = "general",
    upper: bool = False,
    overwrite: bool = False,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> Array:
    """Inverse of square matrices.

    Parameters
    ----------
    a, assume, upper, overwrite, on_fail, engine
        As for :func:`solve`. For "pos", "hermitian" and "symmetric" the inverse is exactly Hermitian or symmetric.

    Returns
    -------
    array, shape (..., n, n)

    Raises
    ------
    SingularMatrixError, NotPositiveDefiniteError, ValueError, TypeError
        As for :func:`solve`.

    See Also
    --------
    solve : faster and more accurate than a product with the inverse.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> np.allclose(lw.inv(np.array([[2.0, 1.0], [1.0, 1.0]]), assume="pos"), [[1, -1], [-1, 2]])
    True
    """
    if unknown:
        raise unknown_keyword(inv, unknown)
    framework = frameworks.entry(a, "inv")
    if framework.sharded:
        options = {"assume": assume, "upper": upper, "overwrite": overwrite}
        return framework.call(inv, a, on_fail=on_fail, engine=engine, **options)  # type: ignore[no-any-return]
    plain = framework.direct(a) and assume in ("general", "pos") and upper is False and overwrite is False
    if plain and on_fail == "raise" and engine == "auto" and not _logging():
        x = framework.solve_direct(INVERSE, POS if assume == "pos" else 0, a)
        if x is not None:
            return x  # type: ignore[no-any-return]
    return _inv(framework, "inv", a, assume, upper, overwrite, on_fail, engine)[0]  # type: ignore[no-any-return]


def inv_ex(a: Any, /, *, assume: Assume = "general", upper: bool = False, **unknown: Never) -> InvExResult:
    """Inverse and a status per matrix; never waits for the device.

    Parameters
    ----------
    a, assume, upper
        As for :func:`inv`.

    Returns
    -------
    inverse : array, shape (..., n, n)
        NaN where it failed.
    info : int32 array, shape (...)
        As for :func:`solve_ex`.

    Raises
    ------
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    inv : raises on failure.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.inv_ex(np.zeros((3, 3))).info
    array(1, dtype=int32)
    """
    if unknown:
        raise unknown_keyword(inv_ex, unknown)
    framework = frameworks.entry(a, "inv_ex")
    if framework.sharded:
        return framework.call(inv_ex, a, assume=assume, upper=upper)  # type: ignore[no-any-return]
    return InvExResult(*_inv(framework, "inv_ex", a, assume, upper, False, "nan", "auto"))


def slogdet(
    a: Any,
    /,
    *,
    assume: Assume = "general",
    upper: bool = False,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> SlogdetResult:
    """Sign and logarithm of the absolute value of the determinant.

    Parameters
    ----------
    a, assume, upper, on_fail, engine
        As for :func:`solve`.

    Returns
    -------
    sign : array, shape (...)
        1 or -1, for complex matrices a number on the unit circle; 0 for a singular matrix.
    logabsdet : real array, shape (...)
        -inf for a singular matrix. Both are NaN for a matrix with NaN or Inf.

    Raises
    ------
    NotPositiveDefiniteError
        With "pos".
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    factor : solve with the same matrix too.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> sign, logabsdet = lw.slogdet(np.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> float(sign), round(float(np.exp(logabsdet)), 12)
    (-1.0, 6.0)
    """
    if unknown:
        raise unknown_keyword(slogdet, unknown)
    framework = frameworks.entry(a, "slogdet")
    if framework.sharded:
        return framework.call(slogdet, a, assume=assume, upper=upper, on_fail=on_fail, engine=engine)  # type: ignore[no-any-return]
    return SlogdetResult(*determinant(framework, slogdet, SLOGDET, a, assume, upper, on_fail, engine, _of_diagonal))


def determinant(
    framework: Any,
    function: Any,
    operation: Operation,
    a: Any,
    assume: str,
    upper: bool,
    on_fail: str,
    engine: str,
    of_diagonal: Callable[[Any, Any], tuple[Any, ...]],
) -> tuple[Any, ...]:
    """The results of ``operation``, or of ``of_diagonal`` for a triangular matrix. Errors name the public ``function``."""
    if framework.direct(a) and assume == "general" and upper is False and on_fail == "raise" and engine == "auto":
        results = None if _logging() else framework.results_direct(operation, (0,), a)
        if results is not None:
            scalar = framework.Namespace.scalar
            return (scalar(results[0]),) if len(results) == 1 else (scalar(results[0]), scalar(results[1]))
    name = function.__name__
    upper, _ = check_system(name, framework.shape_of(a), framework.dtype_of(a), assume, upper, on_fail)
    xp = framework.Namespace
    if assume in ("lower", "upper") or framework.shape_of(a)[-1] == 0:
        if engine != "auto":
            planner.code_for(framework, a, engine, name, lambda: [function.problem(a, assume=assume)])
        if not framework.traced(a) and planner.logging_decisions():
            planner.log_decision(function.problem(a, assume=assume), engine)
        return of_diagonal(xp, xp.diagonal(a))
    a, flags = _as_general(framework, a, assume, upper)
    *values, info = _call(framework, name, operation, (a,), flags, engine)
    if assume == "pos" and on_fail == "raise" and not framework.traced(a) and framework.failed(info):
        raise _failure(name, framework, a, info, assume, flags)
    return tuple(map(xp.scalar, values))


def _mean(xp: Any, x: Any, y: Any) -> Any:
    with xp.quiet():  # an inverse may be out of range
        return x / 2 + y / 2


def _of_diagonal(xp: Any, pivots: Any) -> tuple[Any, Any]:
    with xp.quiet():  # a matrix that failed has NaN here, which is also its result
        pivots, size, excess = raise_subnormal(xp, pivots)
        zero = size == 0
        phase = xp.where(zero, xp.zeros_like(pivots), pivots / xp.like(xp.where(zero, xp.ones_like(size), size), pivots))
        return xp.product(phase), xp.sum(xp.log(size) - excess, -1)


def _solve(
    framework: Any,
    name: str,
    a: Any,
    b: Any,
    assume: str,
    upper: bool,
    overwrite: bool,
    precision: str,
    on_fail: str,
    engine: str,
    triangle: int = 0,
) -> tuple[Any, Any]:
    """The solution and the status. ``triangle`` are more flags for a triangular matrix: UNIT and ADJOINT."""
    upper, overwrite = check_system(name, framework.shape_of(a), framework.dtype_of(a), assume, upper, on_fail, overwrite)
    a, b = check_pair(name, framework, frameworks.of, a, b)
    mixed = (precision != "full" or engine == "mixed") and check_mixed(name, precision, assume, framework.dtype_of(a), engine)
    columns = Columns(name, framework, a, b)
    a, b = columns.a, columns.b
    waits = on_fail == "raise" and not framework.traced(a)
    finite = None
    if assume in ("lower", "upper"):
        flags = triangle | (UPPER if assume == "upper" else 0)
        x, info = _call(framework, name, TRIANGULAR, (a, b), flags, engine)
    else:
        a, flags = _as_general(framework, a, assume, upper)
        flags |= (MIXED if mixed else 0) | _MIRRORED.get(assume, 0)
        # found now, as the input may be overwritten
        finite = _finite(framework, a, flags) if overwrite and waits else None
        x, info = _call(framework, name, SOLVE_MIXED if mixed else SOLVE, (a, b), flags, engine, overwrite)
    if waits and framework.failed(info):
        raise _failure(name, framework, a, info, assume, flags, finite)
    return columns.back(x), info


def _solve_from_the_right(framework: Any, a: Any, b: Any, assume: str, options: tuple[Any, ...]) -> Any:
    """x A = b as A^H x^H = b^H, or for general and symmetric A as A^T x^T = b^T; ``options`` are those of :func:`_solve`."""
    xp = framework.Namespace
    shapes = tuple(framework.shape_of(a)), tuple(framework.shape_of(b))
    columns, n = shapes[1][-1] if shapes[1] else 0, shapes[0][-1] if shapes[0] else 0
    if columns != n and columns is not None and n is not None:
        raise ShapeError(
            f'solve: with side="right" b must have as many columns as a, got shapes {shapes[0]} and {shapes[1]}'
            "\nhint: b has shape (n,) or (..., k, n)"
        )
    if len(shapes[1]) > 1:
        b = xp.swap(b)
    adjoint = assume not in ("general", "symmetric")
    if adjoint:
        b = xp.conj(b)
    elif assume == "general":
        a = xp.swap(a)
    x, _ = _solve(framework, "solve", a, b, assume, *options)
    x = xp.conj(x) if adjoint else x
    return xp.swap(x) if len(shapes[1]) > 1 else x


def _check_unit(name: str, unit: Any, assume: Any) -> bool:
    if check_flag(name, "unit", unit) and assume not in ("lower", "upper"):
        raise ValueError(f'{name}: unit=True goes with assume="lower" or assume="upper", not {assume!r}')
    return bool(unit)


class Columns:
    """``a`` and ``b`` as matrices with the same batch; ``back`` gives the solution the shape that belongs to ``b``.

    Many right-hand sides for one matrix become the columns of one; otherwise the batches broadcast.
    """

    def __init__(self, name: str, framework: Any, a: Any, b: Any) -> None:
        self.xp = xp = framework.Namespace
        shape_a, shape_b = framework.shape_of(a), framework.shape_of(b)
        # TensorFlow may not know the number of axes before it runs: then b is taken to have columns, and the batches broadcast
        unknown = getattr(a.shape, "rank", 0) is None or getattr(b.shape, "rank", 0) is None
        rows = shape_a[-2]
        self.vector = len(shape_b) == 1
        if not shape_b:
            raise ShapeError(f"{name}: b must have shape (n,) or (..., n, k), got a single number")
        rows_b = shape_b[0] if self.vector else shape_b[-2]
        if rows_b is not None and rows is not None and rows_b != rows:
            hint = "\nhint: a batch of vectors has shape (..., n, 1): b[..., None]" if shape_b[-1] == rows else ""
            raise ShapeError(
                f"{name}: a has {rows} rows and b has {rows_b} (shapes {tuple(shape_a)} and {tuple(shape_b)}){hint}"
            )
        self.a, self.b = a, b[..., None] if self.vector else b
        batch_a, batch_b = tuple(shape_a[:-2]), tuple(shape_b[:-2])
        self.folded = not unknown and len(batch_a) == 0 and len(batch_b) > 0
        if self.folded:
            self.extents = xp.shape(self.b)
            *others, n, k = self.extents
            columns = prod((*others, k)) if all(isinstance(x, int) for x in self.extents) else -1
            self.b = xp.reshape(xp.moveaxis(self.b, -2, 0), (n, columns))
        elif unknown or batch_a != batch_b or None in batch_a:
            try:
                self.a, self.b = xp.broadcast_batch(self.a, self.b)
            except (ValueError, RuntimeError) as error:
                raise ShapeError(
                    f"{name}: the batches of shapes {tuple(shape_a)} and {tuple(shape_b)} do not broadcast"
                ) from error

    def back_row(self, x: Any) -> Any:
        """One number per right-hand side, in the shape of b."""
        if self.folded:
            *batch, _, k = self.extents
            x = self.xp.reshape(x, (*batch, k))
        return x[..., 0] if self.vector else x

    def back(self, x: Any) -> Any:
        if self.folded:
            *batch, _, k = self.extents
            x = self.xp.moveaxis(self.xp.reshape(x, (self.xp.shape(x)[0], *batch, k)), 0, -2)
        return x[..., 0] if self.vector else x


def _inv(
    framework: Any, name: str, a: Any, assume: str, upper: bool, overwrite: bool, on_fail: str, engine: str
) -> tuple[Any, Any]:
    upper, overwrite = check_system(name, framework.shape_of(a), framework.dtype_of(a), assume, upper, on_fail, overwrite)
    xp = framework.Namespace
    waits = on_fail == "raise" and not framework.traced(a)
    finite = None
    if assume in ("lower", "upper"):
        flags = UPPER if assume == "upper" else 0
        x, info = _call(framework, name, TRIANGULAR, (a, xp.zeros_like(a) + xp.eye(a)), flags, engine)
    else:
        a, flags = _as_general(framework, a, assume, upper)
        finite = _finite(framework, a, flags) if overwrite and waits else None
        x, info = _call(framework, name, INVERSE, (a,), flags, engine, overwrite)
        # the mean keeps the small residual of X, which a mirrored triangle would lose with the condition number
        if assume == "hermitian":
            x = _mean(xp, x, xp.adjoint(x))
        elif assume == "symmetric":
            x = _mean(xp, x, xp.swap(x))
    if waits and framework.failed(info):
        raise _failure(name, framework, a, info, assume, flags, finite)
    return x, info


def _as_general(framework: Any, a: Any, assume: str, upper: bool) -> tuple[Any, int]:
    """The matrix to work on, and its flags; a symmetric or Hermitian matrix gets both triangles filled."""
    if assume == "pos":
        return a, POS | (UPPER if upper else 0)
    if assume == "hermitian":
        return whole_matrix(framework, a, UPPER if upper else 0), 0
    if assume == "symmetric":
        return _symmetric(framework, a, upper), 0
    return a, 0


def _symmetric(framework: Any, a: Any, upper: bool) -> Any:
    """The matrix with A = A^T, not conjugated, of which one triangle is read."""
    if not framework.dtype_of(a).startswith("complex"):
        return whole_matrix(framework, a, UPPER if upper else 0)
    if type(a) is np.ndarray:
        return symmetric_matrix(framework, a, UPPER if upper else 0)
    xp = framework.Namespace
    # the derivative is that of f((A + A^T)/2): both triangles carry half of it
    kept, other = (xp.triu, xp.tril) if upper else (xp.tril, xp.triu)
    strict = kept(a, 1 if upper else -1)
    values = kept(a, 0) + xp.swap(strict)
    mirrored = other(a, -1 if upper else 1)
    finite = xp.where(xp.isfinite(mirrored), mirrored, xp.zeros_like(mirrored))
    total = finite + xp.swap(finite)
    half = (strict + xp.swap(strict) - total) / 2
    return values - (half - xp.constant(half))  # in this order the triangle that is not read cancels exactly


def check_system(
    name: str, shape: tuple[Any, ...], dtype: str, assume: Any, upper: Any, on_fail: Any = "raise", overwrite: Any = False
) -> tuple[bool, bool]:
    """Check the arguments; returns ``upper`` and ``overwrite`` as Python's own bool."""
    check_square(name, shape, dtype)
    if assume != "general":
        check_choice(name, "assume", assume, ASSUME)
    if upper is not False and check_flag(name, "upper", upper) and assume not in ONE_TRIANGLE:
        hint = 'assume="upper" is for a triangular matrix' if assume == "general" else "assume says it already"
        raise ValueError(f"{name}: upper=True goes with assume={', '.join(map(repr, ONE_TRIANGLE))}\nhint: {hint}")
    if on_fail not in ("raise", "nan"):
        check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    return bool(upper), overwrite is not False and check_flag(name, "overwrite", overwrite)


def check_mixed(name: str, precision: str, assume: str, dtype: str, engine: str = "auto") -> bool:
    check_choice(name, "precision", precision, ("full", "mixed"))
    if engine not in ("auto", "mixed") and engine in planner.ALL:
        raise ValueError(
            f'{name}: precision="mixed" is the work of engine "mixed", not {engine!r}\nhint: engine="auto" or engine="mixed"'
        )
    if assume not in ("general", "pos"):
        raise ValueError(f'{name}: precision="mixed" goes with assume="general" or assume="pos", not {assume!r}')
    if dtype not in ("float64", "complex128"):
        raise ValueError(f'{name}: precision="mixed" is for float64 and complex128, not {dtype}')
    return True


def _call(
    framework: Any, name: str, operation: Operation, arrays: tuple[Any, ...], flags: int, engine: str, overwrite: bool = False
) -> tuple[Any, ...]:
    """Run the operation; writes its decision and notes to the log."""
    logging = not framework.traced(arrays[0]) and planner.logging_decisions()
    if engine == "auto" and not logging:
        return framework.apply(operation, arrays, (flags,), planner.AUTO, overwrite)  # type: ignore[no-any-return]
    code = planner.code_for(framework, arrays[0], engine, name, lambda: _problems_of(framework, operation, arrays, flags))
    if logging:
        planner.log_decision(_problems_of(framework, operation, arrays, flags)[0], engine)
    outputs = framework.apply(operation, arrays, (flags,), code, overwrite)
    if logging:
        planner.log_notes()
    return outputs  # type: ignore[no-any-return]


_COMPOSED = "; derivatives are recorded, so that the factor is kept, and solves with it follow"


def _problems_of(framework: Any, operation: Operation, arrays: tuple[Any, ...], flags: int) -> list[Problem]:
    """The problems for the native core; if derivatives are recorded, a factorisation and solves with its factor."""
    array = framework.describe(arrays[0])
    columns = framework.shape_of(arrays[-1])[-1] if len(arrays) > 1 else None
    known: dict[str, Any] = {"upper": bool(flags & UPPER), "pos": bool(flags & POS), "mixed": bool(flags & MIXED)}
    known["mirrored"] = flags & (SYMMETRIC | SELF_ADJOINT)
    problem = Problem.of(operation.name.removesuffix("_mixed"), array, columns=columns, **known)
    if operation.composed is None or not any(map(framework.differentiates, arrays)):
        return [problem]
    first, then = ("cholesky", "cholesky_solve") if flags & POS else ("lu", "lu_solve")
    factor = Problem.of(first, array, upper=known["upper"], also=_COMPOSED)
    solves = Problem.of(then, array, upper=known["upper"], columns=columns)
    return [*([problem] if framework.traced(arrays[0]) else []), factor, solves]


def _finite(framework: Any, a: Any, flags: int) -> Any:
    """1 for each matrix that is finite in the part that is read."""
    if flags & POS:
        return finite_flags(framework, a, flags)
    return finite_flags(framework, a, 0) * finite_flags(framework, a, UPPER)


def _failure(name: str, framework: Any, a: Any, info: Any, assume: str, flags: int, finite: Any = None) -> Exception:
    read = (np.triu if flags & UPPER else np.tril) if assume in ("pos", "lower", "upper") else None
    kind, field = (NotPositiveDefiniteError, "minor") if assume == "pos" else (SingularMatrixError, "pivot")
    return first_failure(kind, name, framework, a, info, field, read, finite)


def problem_of(name: str, of_diagonal: bool = False) -> Any:
    def problem(
        a: Any,
        b: Any = None,
        assume: str = "general",
        upper: bool = False,
        precision: str = "full",
        unit: bool = False,
        side: str = "left",
        **_: Any,
    ) -> Problem:
        array = frameworks.describe(a, name)
        check_square(name, array.shape, array.dtype)
        check_choice(name, "assume", assume, ASSUME)
        mixed = precision != "full" and check_mixed(name, precision, assume, array.dtype)
        if unit is not False:
            _check_unit(name, unit, assume)
        triangular = assume in ("lower", "upper")
        if of_diagonal and triangular:
            return Problem.of(name, array, by_framework="the determinant of a triangle is the product of its diagonal")
        columns = array.shape[-1] if triangular else None
        if b is not None:
            shape = b.shape if isinstance(b, Spec) else frameworks.of(b, name).shape_of(b)
            columns = 1 if len(shape) == 1 else shape[-2 if side == "right" else -1]
            if len(array.shape) == 2:
                columns *= prod(shape[:-2])  # many right-hand sides for one matrix are the columns of one
            else:
                array = Spec((*np.broadcast_shapes(array.shape[:-2], shape[:-2]), *array.shape[-2:]), array.dtype, array.device)
        if triangular:
            return Problem.of("triangular", array, upper=assume == "upper", columns=columns)
        if name == "solve" and not mixed and _recorded(a, b):
            return Problem.of("cholesky" if assume == "pos" else "lu", array, upper=upper, also=_COMPOSED)
        mirrored = _MIRRORED.get(assume, 0) if name == "solve" else 0
        pos = assume == "pos"
        return Problem.of(name, array, upper=upper and pos, columns=columns, pos=pos, mixed=mixed, mirrored=mirrored)

    return problem


def _recorded(*arrays: Any) -> bool:
    """Whether derivatives with respect to one of them are recorded now."""
    present = [(frameworks.of(x, "solve"), x) for x in arrays if x is not None and not isinstance(x, Spec)]
    return any(framework.differentiates(x) and not framework.traced(x) for framework, x in present)


def system_request(function: Any, places: Any, result: Any = None, status: bool = False) -> Any:
    """A function that checks a call of ``function`` and describes it, for the functions with the option ``assume``."""
    defaults = function.__kwdefaults__

    def request(a: Spec, **options: Any) -> Request:
        options = {**defaults, **options}
        name, assume = function.__name__, options["assume"]
        options["upper"], options["overwrite"] = check_system(
            name, a.shape, a.dtype, assume, options["upper"], options.get("on_fail", "nan"), options.get("overwrite", False)
        )
        if "unit" in options and _check_unit(name, options["unit"], assume):
            raise ValueError(
                f"{name}: unit=True is not supported for sharded matrices\nhint: write ones on the diagonal of a copy"
            )
        if "side" in options:
            check_choice(name, "side", options["side"], ("left", "right"))
            if options["side"] == "right":
                raise ValueError(
                    f'{name}: side="right" is not supported for sharded matrices'
                    "\nhint: x A = b is A^T x^T = b^T: solve with the transpose of a, and transpose b and the result"
                )
        if options.get("precision", "full") != "full":
            check_mixed(name, options["precision"], assume, a.dtype, "auto")
        options.setdefault("on_fail", "nan")
        return Request(function, name.removesuffix("_ex"), places, result, status, **options)

    return request


solve.request = system_request(solve, (RIGHT,))  # type: ignore[attr-defined]
solve_ex.request = system_request(solve_ex, (RIGHT, VALUE), SolveExResult, True)  # type: ignore[attr-defined]
inv.request = system_request(inv, (MATRIX,))  # type: ignore[attr-defined]
inv_ex.request = system_request(inv_ex, (MATRIX, VALUE), InvExResult, True)  # type: ignore[attr-defined]
slogdet.request = system_request(slogdet, (VALUE, VALUE), SlogdetResult)  # type: ignore[attr-defined]
slogdet.inverse = inv  # type: ignore[attr-defined]  # which derivatives of sharded matrices need
solve.problem = solve_ex.problem = problem_of("solve")  # type: ignore[attr-defined]
inv.problem = inv_ex.problem = problem_of("inverse")  # type: ignore[attr-defined]
slogdet.problem = problem_of("slogdet", of_diagonal=True)  # type: ignore[attr-defined]
