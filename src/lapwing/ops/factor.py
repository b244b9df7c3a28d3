"""Factor once, solve often."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from .. import frameworks
from ..core.errors import NotPositiveDefiniteError, SingularMatrixError
from ..core.operation import ADJOINT, UPPER, Operation
from ..core.problem import Problem, Spec
from ..engines import planner
from .checks import check_choice, check_flag, check_pair, check_square
from .cholesky import CHOLESKY
from .failure import first_failure
from .solve import ASSUME, Assume, Columns, SlogdetResult, _as_general, _check, _of_diagonal, check_mixed, slogdet
from .systems import CHOLESKY_SOLVE, LU, LU_SOLVE, TRIANGULAR
from .triangle import whole_matrix

__all__ = ["Factor", "LUFactor", "factor"]


class LUFactor(NamedTuple):
    """L U = A[rows]: L below the diagonal, with ones on it; U on and above it."""

    lu: Any
    rows: Any


class Factor:
    """A factored matrix, or a batch of them, made by :func:`factor`.

    In JAX it is a pytree: it may be an argument and a result of a jitted function. On the CPU it can be pickled.

    Attributes
    ----------
    assume : str
        What the matrix was said to be.
    info : int32 array
        0 for each matrix that could be factored.
    report : dict
        How it was made: ``engine`` and ``kind``, "cholesky", "lu" or "triangular".
    """

    def __init__(self, assume: str, upper: bool, report: dict[str, Any], arrays: tuple[Any, ...]) -> None:
        self.assume, self.upper, self.report = assume, upper, report
        # what was factored, where derivatives may be wanted; the factor; its rows, for LU; the status
        self._a, self._factor, self._rows, self.info = arrays

    @property
    def _framework(self) -> Any:
        return frameworks.of(self._factor, "factor")

    @property
    def l(self) -> Any:  # noqa: E743
        """The Cholesky factor, lower, or upper for ``upper=True``; of a triangular matrix itself."""
        if self._rows is not None:
            raise AttributeError(f"Factor.l: assume={self.assume!r} gives an LU factorisation\nhint: Factor.lu")
        return self._factor

    @property
    def lu(self) -> LUFactor:
        """L and U in one matrix, and the order of the rows."""
        if self._rows is None:
            raise AttributeError(f"Factor.lu: assume={self.assume!r} gives one triangular factor\nhint: Factor.l")
        return LUFactor(self._factor, self._rows)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (..., n, k); NaN for a matrix that could not be factored."""
        columns = self._columns(b)
        return columns.back(self._apply(columns, False))

    def inv(self) -> Any:
        """A^-1, exactly Hermitian or symmetric where A is."""
        framework = self._framework
        xp = framework.Namespace
        eye = xp.zeros_like(self._factor) + xp.eye(self._factor)
        x = self.solve(eye)
        if self.assume in ("pos", "hermitian"):
            return whole_matrix(framework, x, 0)
        return (x + xp.swap(x)) / 2 if self.assume == "symmetric" else x

    def slogdet(self) -> SlogdetResult:
        """Sign and logarithm of the absolute value of the determinant."""
        xp = self._framework.Namespace
        if self._rows is not None and self._a is not None:
            return slogdet(self._a, on_fail="nan")  # its derivative needs the matrix
        if self._rows is None and self.assume == "pos":
            size = xp.real(xp.diagonal(self._factor))
            return SlogdetResult(xp.ones_like(xp.diagonal(self._factor)[..., 0]), 2 * xp.sum(xp.log(size), -1))
        sign, logabs = _of_diagonal(xp, xp.diagonal(self._factor))
        if self._rows is not None:
            sign = sign * xp.like(_parity(xp, self._rows), sign)
        return SlogdetResult(sign, logabs)

    def logdet(self) -> Any:
        """The logarithm of the determinant; NaN where a real determinant is not positive."""
        sign, logabs = self.slogdet()
        if self.assume == "pos":
            return logabs
        if self._framework.dtype_of(self._factor).startswith("complex"):
            raise ValueError("Factor.logdet: the determinant of a complex matrix has no real logarithm\nhint: Factor.slogdet()")
        xp = self._framework.Namespace
        return xp.where(sign > 0, logabs, logabs * np.nan)

    def rcond(self) -> Any:
        """An estimate of 1 / (||A|| ||A^-1||) in the 1-norm, from a few products and solves with the factor."""
        xp = self._framework.Namespace
        size = self._one_norm(self._product)
        bound = 1 / (size * self._one_norm(lambda x, adjoint: self._apply(self._columns(x), adjoint)))
        return xp.where(size > 0, bound, xp.zeros_like(bound))

    def _one_norm(self, times: Any) -> Any:
        """Hager's estimate of the 1-norm of what ``times(x, adjoint)`` multiplies by: climb from column to column."""
        xp = self._framework.Namespace
        like = self._factor[..., :1]
        x = (xp.zeros_like(like) + 1) / xp.order(self._factor[..., 0, :])
        best = None
        for _ in range(4):
            y = times(x, False)
            size = xp.abs(y)
            norm = xp.sum(size, -2)[..., 0]
            best = norm if best is None else xp.where(norm > best, norm, best)
            zero = size == 0
            sign = xp.where(zero, xp.ones_like(y), y / xp.like(xp.where(zero, xp.ones_like(size), size), y))
            x = xp.one_hot(xp.argmax(xp.abs(times(sign, True))[..., 0], -1), like)
        return best

    def _product(self, x: Any, adjoint: bool) -> Any:
        """A x, or A^H x, from the factor; of LU without the order of the rows, which no column sum depends on."""
        xp = self._framework.Namespace
        l = self._factor
        if self._rows is not None:
            low, high = xp.tril(l, -1) + xp.eye(l), xp.triu(l, 0)
            first, then = (xp.adjoint(low), xp.adjoint(high)) if adjoint else (high, low)
            return xp.matmul(then, xp.matmul(first, x))
        if self.assume == "pos":
            first, then = (l, xp.adjoint(l)) if self.upper else (xp.adjoint(l), l)
            return xp.matmul(then, xp.matmul(first, x))
        return xp.matmul(xp.adjoint(l) if adjoint else l, x)

    def _columns(self, b: Any) -> Columns:
        framework = self._framework
        check_pair("Factor.solve", framework, frameworks.of, self._factor, b)
        return Columns("Factor.solve", framework, self._factor, b)

    def _apply(self, columns: Columns, adjoint: bool) -> Any:
        framework = self._framework
        l, b = columns.a, columns.b
        flags = UPPER if self.upper else 0
        batch = framework.shape_of(l)[:-1]
        open_batch = None in batch[:-1]  # known when the call runs: it may have been broadcast
        a = self._a
        if a is None:
            a = l
        elif open_batch or framework.shape_of(a) != framework.shape_of(l):
            a = framework.Namespace.broadcast_batch(a, b)[0]
        # a call in each branch: tf.function cannot rewrite a variable with a type that they share
        if self.assume in ("lower", "upper"):
            return self._run(TRIANGULAR, (l, b), flags | (ADJOINT if adjoint else 0))
        if self.assume == "pos":
            return self._run(CHOLESKY_SOLVE, (a, l, b), flags)
        rows = self._rows
        if open_batch or framework.shape_of(rows) != batch:
            rows = framework.Namespace.broadcast_batch(rows[..., None], b)[0][..., 0]
        return self._run(LU_SOLVE, (a, l, rows, b), ADJOINT if adjoint else 0)

    def _run(self, operation: Operation, arrays: tuple[Any, ...], flags: int) -> Any:
        return self._framework.apply(operation, arrays, (flags,), planner.AUTO, False)[0]

    def __repr__(self) -> str:
        shape, dtype = self._framework.shape_of(self._factor), self._framework.dtype_of(self._factor)
        return f"Factor(assume={self.assume!r}, shape={tuple(shape)}, dtype={dtype})"


def factor(
    a: Any,
    /,
    *,
    assume: Assume = "pos",
    upper: bool = False,
    overwrite: bool = False,
    precision: Literal["full", "mixed"] = "full",
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
) -> Factor:
    """Factor square matrices, to solve with them often.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    assume, upper, overwrite, on_fail, engine
        As for :func:`solve`; by default positive definite.
    precision : {"full", "mixed"}
        "mixed" factors in float32 or complex64, and refines each solution with the matrix itself, which is kept, until it is
        as good as with the full factor; where it cannot be, the full factor is made and used from then on. ``.report`` tells
        of the last solve: ``steps``, ``backward_error``, ``fallback``. For float64 and complex128, "general" and "pos". Inside
        of traced code the full factor is made at once.

    Returns
    -------
    Factor
        ``.solve(b)``, ``.inv()``, ``.logdet()``, ``.slogdet()``, ``.rcond()``, ``.l`` or ``.lu``, ``.report``.

    Raises
    ------
    SingularMatrixError, NotPositiveDefiniteError, ValueError, TypeError
        As for :func:`solve`.

    See Also
    --------
    solve : one system.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> f = lw.factor(np.array([[4.0, 2.0], [2.0, 3.0]]))
    >>> np.allclose(f.solve(np.array([8.0, 7.0])), [1.25, 1.5])
    True
    >>> round(float(np.exp(f.logdet())), 12)
    8.0
    """
    framework = frameworks.of(a, "factor")
    upper = _check("factor", framework, a, assume, upper, on_fail)
    if overwrite is not False:
        overwrite = check_flag("factor", "overwrite", overwrite)
    xp = framework.Namespace
    traced = framework.traced(a)
    if precision != "full" and check_mixed("factor", precision, assume, framework.dtype_of(a)) and not traced:
        return _mixed(framework, a, assume, upper, on_fail, engine)
    waits = on_fail == "raise" and not traced
    triangle = kept = rows = None
    code = planner.AUTO if engine == "auto" else planner.code_of(engine, _problem(a, assume, upper))
    if assume in ("lower", "upper"):
        upper = assume == "upper"
        l = xp.triu(a, 0) if upper else xp.tril(a, 0)
        _, info = framework.apply(TRIANGULAR, (l, l[..., :1]), (UPPER if upper else 0,), code, False)
    elif assume == "pos":
        l, info = framework.apply(CHOLESKY, (a,), (UPPER if upper else 0,), code, overwrite)
        kept, triangle = a, np.triu if upper else np.tril
    else:
        a, _ = _as_general(framework, a, assume, upper)
        upper = False
        l, rows, info = framework.apply(LU, (xp.constant(a),), (0,), code, overwrite)
        kept = a
    if waits and framework.failed(info):
        error, place = (NotPositiveDefiniteError, "minor") if assume == "pos" else (SingularMatrixError, "pivot")
        raise first_failure(error, "factor", framework, None if overwrite else a, info, place, triangle)
    # the matrix itself is kept where derivatives may be asked of it, and nowhere else
    kept = kept if not overwrite and kept is not None and framework.differentiates(kept) else None
    framework.register(Factor, _take_apart, _put_together)
    report = {"kind": _KIND.get(assume, "lu"), "engine": engine}
    if engine == "auto" and not traced:
        report["engine"] = planner.plan(_problem(l, assume, upper)).engine
    return Factor(assume, upper, report, (kept, l, rows, info))


def _mixed(framework: Any, a: Any, assume: str, upper: bool, on_fail: str, engine: str) -> Factor:
    """Where the matrix cannot be factored in lower precision, the full factor, or its error."""
    from .mixed import MixedFactor

    xp = framework.Namespace
    options: dict[str, Any] = {"assume": assume, "upper": upper, "engine": engine}
    low = factor(
        xp.cast(a, "complex64" if framework.dtype_of(a).startswith("complex") else "float32"), on_fail="nan", **options
    )
    options["on_fail"] = on_fail
    if framework.failed(low.info):
        made = factor(a, **options)
        made.report |= {"precision": "mixed", "fallback": True}
        return made
    return MixedFactor(whole_matrix(framework, a, UPPER if upper else 0) if assume == "pos" else a, low, options)


_KIND = {"pos": "cholesky", "lower": "triangular", "upper": "triangular"}


def _problem(a: Any, assume: str = "pos", upper: bool = False, **_: Any) -> Problem:
    array = a if isinstance(a, Spec) else frameworks.of(a, "factor").describe(a)
    check_square("factor", array.shape, array.dtype)
    check_choice("factor", "assume", assume, ASSUME)
    return Problem.of(_KIND.get(assume, "lu"), array, upper=upper, columns=1 if assume in ("lower", "upper") else None)


factor.problem = _problem  # type: ignore[attr-defined]


def _parity(xp: Any, rows: Any) -> Any:
    """1 or -1 for each permutation: (-1)^(n - cycles). A cycle is counted at its smallest element, which pointers of doubling
    length find in log n steps."""
    place = xp.places(rows)
    n = rows.shape[-1]
    least, ahead = place, rows
    for _ in range(32 if n is None else max(n - 1, 0).bit_length()):
        reached = xp.take(least, ahead)
        least = xp.where(reached < least, reached, least)
        ahead = xp.take(ahead, ahead)
    return 1 - 2 * (xp.sum(xp.whole(least != place), -1) % 2)


def _take_apart(f: Factor) -> tuple[tuple[Any, ...], Any]:
    return (f._a, f._factor, f._rows, f.info), (f.assume, f.upper, tuple(sorted(f.report.items())))


def _put_together(about: Any, arrays: tuple[Any, ...]) -> Factor:
    assume, upper, report = about
    return Factor(assume, upper, dict(report), tuple(arrays))
