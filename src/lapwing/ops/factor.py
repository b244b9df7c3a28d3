"""Factor once, solve often."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from .. import frameworks, planner
from ..core.errors import NotPositiveDefiniteError, SingularMatrixError
from ..core.operation import ADJOINT, UPPER, Operation
from ..core.problem import Problem, Spec
from ..frameworks import foreign
from .checks import check_choice, check_flag, check_pair, check_square
from .cholesky import CHOLESKY
from .condition import one_norm
from .failure import first_failure
from .sharded import shardable
from .solve import ASSUME, Assume, Columns, SlogdetResult, _as_general, _check, _finite, _of_diagonal, check_mixed, slogdet
from .systems import CHOLESKY_SOLVE, LU, LU_SOLVE, TRIANGULAR
from .triangle import whole_matrix

__all__ = ["Factor", "LUFactor", "factor"]


class LUFactor(NamedTuple):
    """L U = A[rows]: L below the diagonal, with ones on it; U on and above it."""

    lu: Any
    rows: Any


class Factor:
    """A factored matrix, or a batch of them, made by :func:`factor`.

    In JAX it is a pytree: it may be an argument and a result of a jitted function, and the carry of a loop. There it keeps the
    matrix beside its factor. On the CPU it can be pickled.

    Attributes
    ----------
    assume : str
        What the matrix was said to be.
    info : int32 array
        0 for each matrix that could be factored.
    report : dict
        How it was made: ``engine`` and ``kind``, "cholesky", "lu" or "triangular".
    """

    def __init__(self, assume: str, upper: bool, report: dict[str, Any], arrays: tuple[Any, ...], finite: Any = None) -> None:
        self.assume, self.upper, self._report = assume, upper, report
        # what was factored, where derivatives may be wanted; the factor; its rows, for LU; the status
        self._a, self._factor, self._rows, self.info = arrays
        # of LU that may have failed: 1 for each matrix without NaN and Inf
        self._finite = finite

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._framework.register(type(self), _take_apart, _put_together)

    @property
    def _framework(self) -> Any:
        return frameworks.of(self._factor, "factor")

    @property
    def report(self) -> dict[str, Any]:
        # which engine "auto" means is asked of the planner only here: that takes longer than a small factor
        if self._report["engine"] == "auto" and not self._framework.traced(self._factor):
            self._report["engine"] = planner.plan(_problem(self._factor, self.assume, self.upper)).engine
        return self._report

    @property
    def l(self) -> Any:  # noqa: E743
        """The Cholesky factor, lower, or upper for ``upper=True``; of a triangular matrix itself. It has derivatives."""
        if self._rows is not None:
            raise AttributeError(f"Factor.l: assume={self.assume!r} gives an LU factorisation\nhint: Factor.lu")
        return self._factor

    @property
    def lu(self) -> LUFactor:
        """L and U in one matrix, and the order of the rows.

        They are constants: autograd and the like see no dependence on the matrix. ``solve``, ``inv`` and ``slogdet`` have
        derivatives.
        """
        if self._rows is None:
            raise AttributeError(f"Factor.lu: assume={self.assume!r} gives one triangular factor\nhint: Factor.l")
        return LUFactor(self._factor, self._rows)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (..., n, k); NaN for a matrix that could not be factored."""
        try:
            columns = self._columns(b)
        except foreign.ForeignArray:
            return foreign.through(self.solve)(b)
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
        """Sign and logarithm of the absolute value of the determinant, as :func:`slogdet` gives them."""
        framework = self._framework
        xp = framework.Namespace
        if self._rows is not None and self._a is not None and framework.differentiates(self._a):
            return slogdet(self._a, on_fail="nan")  # its derivative needs the matrix
        pivots = xp.diagonal(self._factor)
        if self.assume == "pos":
            # 1, and NaN where the factor is
            return SlogdetResult(xp.product(0 * pivots + 1), 2 * xp.sum(xp.log(xp.real(pivots)), -1))
        sign, logabs = _of_diagonal(xp, pivots)
        if self._rows is None:
            return SlogdetResult(sign, logabs)
        sign = sign * xp.like(_parity(xp, self._rows), sign)
        finite = self._finite if self._a is None else _finite(framework, self._a, 0)
        if finite is None:
            return SlogdetResult(sign, logabs)
        # a finite matrix fails where a pivot is zero
        singular = (self.info != 0) & (finite != 0)
        return SlogdetResult(
            xp.where(singular, xp.zeros_like(sign), sign), xp.where(singular, xp.zeros_like(logabs) - np.inf, logabs)
        )

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
        """An estimate of 1 / (||A|| ||A^-1||) in the 1-norm, from a few products and solves with the factor.

        0 where the matrix could not be factored, and 1 for n = 0, as in LAPACK.
        """
        xp = self._framework.Namespace
        if self._framework.shape_of(self._factor)[-1] == 0:
            return xp.ones_like(xp.sum(xp.abs(xp.diagonal(self._factor)), -1))
        size = one_norm(xp, self._factor[..., :1], self._product)
        good = (self.info == 0) & (size > 0) & xp.isfinite(size)
        size = xp.where(good, size, xp.ones_like(size))

        # ||A|| A^-1 is in range wherever the answer is; A^-1 may not be
        def times_inverse(x: Any, adjoint: bool) -> Any:
            return self._apply(self._columns(x * xp.like(size, x)[..., None, None]), adjoint)

        bound = xp.ratio(xp.ones_like(size), one_norm(xp, self._factor[..., :1], times_inverse))
        return xp.where(good, bound, xp.zeros_like(bound))

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
        _, b = check_pair("Factor.solve", framework, frameworks.of, self._factor, b, fixed=True)
        return Columns("Factor.solve", framework, self._factor, b)

    def _apply(self, columns: Columns, adjoint: bool) -> Any:
        framework = self._framework
        l, b = columns.a, columns.b
        flags = UPPER if self.upper else 0
        batch = framework.shape_of(l)[:-1]
        open_batch = None in batch[:-1]  # known when the call runs: it may have been broadcast
        a = self._a
        if a is None or not framework.differentiates(a):
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
        return _described(self.assume, self._framework, self._factor)


@shardable
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
        of the last solve that was refined: ``steps``, ``backward_error``, ``fallback``. For float64 and complex128, "general"
        and "pos". In traced code, and where derivatives are recorded, the full factor is made at once; a solve there makes
        it too.

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
    differentiates = framework.differentiates(a)
    mixed = precision != "full" and check_mixed("factor", precision, assume, framework.dtype_of(a))
    if mixed and not traced and not differentiates:
        return _mixed(framework, a, assume, upper, on_fail, engine)
    waits = on_fail == "raise" and not traced
    # derivatives need the matrix
    keeps = differentiates or _is_jax(framework)
    overwrite = overwrite and not keeps
    triangle = kept = rows = finite = None
    code = planner.AUTO if engine == "auto" else planner.code_of(engine, _problem(a, assume, upper))
    if not traced and planner.logging_decisions():
        planner.log_decision(_problem(a, assume, upper), engine)
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
        # once it is factored nobody can tell a singular matrix from one with NaN
        finite = _finite(framework, a, 0) if on_fail == "nan" and not keeps else None
        l, rows, info = framework.apply(LU, (xp.constant(a),), (0,), code, overwrite)
        kept = a
    if waits and framework.failed(info):
        error, place = (NotPositiveDefiniteError, "minor") if assume == "pos" else (SingularMatrixError, "pivot")
        raise first_failure(error, "factor", framework, None if overwrite else a, info, place, triangle)
    framework.register(Factor, _take_apart, _put_together)
    return Factor(assume, upper, _report(assume, engine), (kept if keeps else None, l, rows, info), finite)


def _is_jax(framework: Any) -> bool:
    """In JAX a Factor is a pytree. One made in traced code holds the matrix, for derivatives, so all do: in a loop or a branch
    both kinds meet, and must have the same structure."""
    return bool(framework.__name__.endswith(".jax"))


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
        made.report.update(precision="mixed", fallback=True)
        return made
    low._a = None  # no derivative is taken through it
    framework.register(MixedFactor, MixedFactor.take_apart, MixedFactor.put_together)
    return MixedFactor(whole_matrix(framework, a, UPPER if upper else 0) if assume == "pos" else xp.constant(a), low, options)


_KIND = {"pos": "cholesky", "lower": "triangular", "upper": "triangular"}


def _report(assume: str, engine: str) -> dict[str, Any]:
    return {"kind": _KIND.get(assume, "lu"), "engine": engine}


def _described(assume: str, framework: Any, array: Any, more: str = "") -> str:
    shape, dtype = framework.shape_of(array), framework.dtype_of(array)
    return f"Factor(assume={assume!r}, shape={tuple(shape)}, dtype={dtype}{more})"


_LOW = {"float64": "float32", "complex128": "complex64"}


def _problem(a: Any, assume: str = "pos", upper: bool = False, precision: str = "full", **_: Any) -> Problem:
    array = a if isinstance(a, Spec) else frameworks.of(a, "factor").describe(a)
    check_square("factor", array.shape, array.dtype)
    check_choice("factor", "assume", assume, ASSUME)
    also = ""
    if precision != "full" and check_mixed("factor", precision, assume, array.dtype):
        array, also = Spec(array.shape, _LOW[array.dtype], array.device), "; solutions are refined with the matrix itself"
    columns = 1 if assume in ("lower", "upper") else None
    upper = assume == "upper" if columns else upper
    return Problem.of(_KIND.get(assume, "lu"), array, upper=upper, columns=columns, also=also)


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


# What JAX sees: nothing that depends on how the factor was made, or a factor from traced code would be of another kind.
def _take_apart(f: Factor) -> tuple[tuple[Any, ...], Any]:
    return (f._a, f._factor, f._rows, f.info), (f.assume, f.upper)


def _put_together(about: Any, arrays: tuple[Any, ...]) -> Factor:
    assume, upper = about
    return Factor(assume, upper, _report(assume, "auto"), tuple(arrays))
