"""Factor once, solve often."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Never

import numpy as np

from .. import frameworks, planner
from ..core.checks import check_choice, check_pair, check_square
from ..core.condition import one_norm
from ..core.errors import NotPositiveDefiniteError, SingularMatrixError
from ..core.keywords import unknown_keyword
from ..core.operation import Operation
from ..core.problem import ADJOINT, UPPER, Problem, Spec
from ..core.protocol import Handle
from ..core.request import ASSUME
from ..frameworks import foreign
from .cholesky import CHOLESKY
from .failure import first_failure
from .jitter import check_jitter, factor_with_jitter
from .solve import (
    Assume,
    Columns,
    SlogdetResult,
    _as_general,
    _finite,
    _mean,
    _of_diagonal,
    check_mixed,
    check_system,
    slogdet,
    system_request,
)
from .systems import CHOLESKY_SOLVE, LU, LU_SOLVE, TRIANGULAR
from .triangle import whole_matrix


class LUFactor(NamedTuple):
    """L U = A[rows]: L below the diagonal, with ones on it; U on and above it."""

    lu: Any
    rows: Any


class Factor:
    """A factored matrix, or a batch of them, made by :func:`factor`.

    On a matrix that is spread over many devices every method but ``info`` and ``report`` is collective, and results are placed
    as the matrix or the right-hand side is. In JAX it is a pytree: it may be an argument and a result of a jitted function, and
    the carry of a loop; there it keeps the matrix too. On the CPU it can be pickled.

    Attributes
    ----------
    assume : str
        The kind of matrix that was named.
    upper : bool
        Which triangle was read of a symmetric, Hermitian or positive definite matrix.
    info : int32 array
        0 for each matrix that could be factored, else the pivot or the leading minor that failed.
    report : dict
        How it was made: ``engine`` and ``kind``, "cholesky", "lu" or "triangular"; with ``jitter`` the amount that was added to
        the diagonal of each matrix; over many devices also ``grid`` and ``tile``; with precision="mixed" also ``precision`` and
        ``fallback``.
    shape, dtype
        Those of the matrix.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _register(self._handle)

    @property
    def assume(self) -> str:
        return self._handle.assume

    @property
    def upper(self) -> bool:
        return self._handle.upper

    @property
    def info(self) -> Any:
        return self._handle.info

    @property
    def report(self) -> dict[str, Any]:
        return self._handle.report

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._handle.shape

    @property
    def dtype(self) -> str:
        return self._handle.dtype

    @property
    def l(self) -> Any:  # noqa: E743
        """The Cholesky factor, lower, or upper for ``upper=True``; the triangle of a triangular matrix.

        It has derivatives, but not over many devices.
        """
        if self.assume not in ("pos", "lower", "upper"):
            raise AttributeError(f"Factor.l: assume={self.assume!r} gives an LU factorisation\nhint: Factor.lu")
        return self._handle.l

    @property
    def lu(self) -> LUFactor:
        """L and U in one matrix, and the order of the rows; not over many devices.

        They are constants: autograd and the like see no dependence on the matrix. ``solve``, ``inv`` and ``slogdet`` have
        derivatives.
        """
        if self.assume in ("pos", "lower", "upper"):
            raise AttributeError(f"Factor.lu: assume={self.assume!r} gives one triangular factor\nhint: Factor.l")
        pair = getattr(self._handle, "lu", None)
        if pair is None:
            raise AttributeError("Factor.lu: not supported for sharded and hosted matrices\nhint: solve, inv, slogdet")
        return LUFactor(*pair)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (..., n, k); NaN for a matrix that could not be factored."""
        return self._handle.solve(b)

    def inv(self) -> Any:
        """A^-1, exactly Hermitian or symmetric where A is."""
        return self._handle.inverse()

    def slogdet(self) -> SlogdetResult:
        """Sign and logarithm of the absolute value of the determinant, as :func:`slogdet` gives them."""
        return SlogdetResult(*self._handle.slogdet())

    def logdet(self) -> Any:
        """The logarithm of the determinant; NaN where a real determinant is not positive."""
        if self.assume != "pos" and self.dtype.startswith("complex"):
            raise ValueError("Factor.logdet: the determinant of a complex matrix has no real logarithm\nhint: Factor.slogdet()")
        return self._handle.logdet()

    def rcond(self) -> Any:
        """An estimate of 1 / (||A|| ||A^-1||) in the 1-norm, from a few products and solves with the factor.

        0 where the matrix could not be factored, and 1 for n = 0, as in LAPACK.
        """
        return self._handle.rcond()

    def __repr__(self) -> str:
        about = getattr(self._handle, "about", "")
        return f"Factor(assume={self.assume!r}, shape={tuple(self.shape)}, dtype={self.dtype}{about})"


class Factored:
    """The handle of matrices on one device: what was factored, its factor, and for LU the order of the rows."""

    def __init__(self, assume: str, upper: bool, report: dict[str, Any], arrays: tuple[Any, ...], finite: Any = None) -> None:
        self.assume, self.upper, self._report = assume, upper, report
        # the matrix, where derivatives may be wanted; the factor; its rows, for LU; the status
        self.a, self.factor, self.rows, self._info = arrays
        self._finite = finite  # for LU that may have failed: 1 for each matrix without NaN and Inf

    @property
    def info(self) -> Any:
        if self._info is None:  # LU by the short way: no matrix failed, and none is empty
            self._info = self.framework.Namespace.zeros_like(self.rows[..., 0])
        return self._info

    @property
    def framework(self) -> Any:
        return frameworks.of(self.factor, "factor")

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.framework.shape_of(self.factor)  # type: ignore[no-any-return]

    @property
    def dtype(self) -> str:
        return self.framework.dtype_of(self.factor)  # type: ignore[no-any-return]

    @property
    def report(self) -> dict[str, Any]:
        # only now ask the planner which engine "auto" was: that takes longer than a small factorisation
        if self._report["engine"] == "auto" and not self.framework.traced(self.factor):
            self._report["engine"] = planner.plan(_problem(self.factor, self.assume, self.upper)).engine
        return self._report

    @property
    def l(self) -> Any:  # noqa: E743
        return self.factor

    @property
    def lu(self) -> tuple[Any, Any]:
        return self.factor, self.rows

    def solve(self, b: Any, /) -> Any:
        try:
            columns = self._columns(b)
        except foreign.ForeignArray:
            return foreign.through(self.solve)(b)
        return columns.back(self._apply(columns, False))

    def inverse(self) -> Any:
        xp = self.framework.Namespace
        x = self.solve(xp.zeros_like(self.factor) + xp.eye(self.factor))
        # the mean keeps the small residual of X, which a mirrored triangle would lose with the condition number
        if self.assume in ("pos", "hermitian"):
            return _mean(xp, x, xp.adjoint(x))
        return _mean(xp, x, xp.swap(x)) if self.assume == "symmetric" else x

    def slogdet(self) -> tuple[Any, Any]:
        framework = self.framework
        xp = framework.Namespace
        if self.rows is not None and self.a is not None and framework.differentiates(self.a):
            return slogdet(self.a, on_fail="nan")  # its derivative needs the matrix
        pivots = xp.diagonal(self.factor)
        if self.assume == "pos":
            # 1; NaN if the factor is
            return xp.product(0 * pivots + 1), 2 * xp.sum(xp.log(xp.real(pivots)), -1)
        sign, logabs = _of_diagonal(xp, pivots)
        if self.rows is None:
            return sign, logabs
        sign = sign * xp.like(_parity(xp, self.rows), sign)
        finite = self._finite if self.a is None else _finite(framework, self.a, 0)
        if finite is None:
            return sign, logabs
        # a finite matrix fails where a pivot is zero
        singular = (self.info != 0) & (finite != 0)
        return xp.where(singular, xp.zeros_like(sign), sign), xp.where(singular, xp.zeros_like(logabs) - np.inf, logabs)

    def logdet(self) -> Any:
        sign, logabs = self.slogdet()
        return logabs if self.assume == "pos" else self.framework.Namespace.where(sign > 0, logabs, logabs * np.nan)

    def rcond(self) -> Any:
        xp = self.framework.Namespace
        if self.shape[-1] == 0:
            return xp.ones_like(xp.sum(xp.abs(xp.diagonal(self.factor)), -1))
        with xp.quiet():  # a matrix that failed may hold Inf and NaN
            size = one_norm(xp, self.factor[..., :1], self._product)
        good = (self.info == 0) & (size > 0) & xp.isfinite(size)
        size = xp.where(good, size, xp.ones_like(size))

        # ||A|| A^-1 is in range wherever the answer is; A^-1 may not be
        def times_inverse(x: Any, adjoint: bool) -> Any:
            return self._apply(self._columns(x * xp.like(size, x)[..., None, None]), adjoint)

        bound = xp.ratio(xp.ones_like(size), one_norm(xp, self.factor[..., :1], times_inverse))
        return xp.where(good, bound, xp.zeros_like(bound))

    def _product(self, x: Any, adjoint: bool) -> Any:
        """A x, or A^H x, from the factor. For LU the rows are not put in order, as column sums do not depend on it."""
        xp = self.framework.Namespace
        l = self.factor
        if self.rows is not None:
            low, high = xp.tril(l, -1) + xp.eye(l), xp.triu(l, 0)
            first, then = (xp.adjoint(low), xp.adjoint(high)) if adjoint else (high, low)
            return xp.matmul(then, xp.matmul(first, x))
        if self.assume == "pos":
            first, then = (l, xp.adjoint(l)) if self.upper else (xp.adjoint(l), l)
            return xp.matmul(then, xp.matmul(first, x))
        return xp.matmul(xp.adjoint(l) if adjoint else l, x)

    def _columns(self, b: Any) -> Columns:
        framework = self.framework
        _, b = check_pair("Factor.solve", framework, frameworks.of, self.factor, b, fixed=True)
        return Columns("Factor.solve", framework, self.factor, b)

    def _apply(self, columns: Columns, adjoint: bool) -> Any:
        framework = self.framework
        l, b = columns.a, columns.b
        flags = UPPER if self.upper else 0
        batch = framework.shape_of(l)[:-1]
        open_batch = None in batch[:-1]  # not known before the call runs: it may have been broadcast
        a = self.a
        if a is None or not framework.differentiates(a):
            a = l
        elif open_batch or framework.shape_of(a) != framework.shape_of(l):
            a = framework.Namespace.broadcast_batch(a, b)[0]
        # a call in each branch: tf.function cannot rewrite branches that assign a shared variable
        if self.assume in ("lower", "upper"):
            return self._run(TRIANGULAR, (l, b), flags | (ADJOINT if adjoint else 0))
        if self.assume == "pos":
            return self._run(CHOLESKY_SOLVE, (a, l, b), flags)
        rows = self.rows
        if open_batch or framework.shape_of(rows) != batch:
            rows = framework.Namespace.broadcast_batch(rows[..., None], b)[0][..., 0]
        return self._run(LU_SOLVE, (a, l, rows, b), ADJOINT if adjoint else 0)

    def _run(self, operation: Operation, arrays: tuple[Any, ...], flags: int) -> Any:
        return self.framework.apply(operation, arrays, (flags,), planner.AUTO, False)[0]

    # What JAX sees. It must not depend on how the factor was made, or a factor from traced code would be of another kind.
    def take_apart(self) -> tuple[tuple[Any, ...], Any]:
        return (self.a, self.factor, self.rows, self.info), (self.assume, self.upper)

    @staticmethod
    def put_together(about: Any, arrays: tuple[Any, ...]) -> Factored:
        assume, upper = about
        return Factored(assume, upper, _report(assume, "auto"), tuple(arrays))


def factor(
    a: Any,
    /,
    *,
    assume: Assume = "pos",
    upper: bool = False,
    overwrite: bool = False,
    precision: Literal["full", "mixed"] = "full",
    jitter: float | Literal["auto"] | None = None,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> Factor:
    """Factor square matrices once, to solve many systems with them.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    assume, upper, overwrite, on_fail, engine
        As for :func:`solve`; by default positive definite.
    precision : {"full", "mixed"}
        "mixed" factors in float32 or complex64 and keeps the matrix. Each solution is refined with the matrix until it is as
        good as one by the full factor. If refinement fails, the full factor is computed and used from then on. ``.report``
        describes the last refined solve: ``steps``, ``backward_error``, ``fallback``. For float64 and complex128, "general" and
        "pos". Traced code and recorded derivatives always use the full factor.
    jitter : None, "auto" or float
        As for :func:`cholesky`, with ``assume="pos"``. ``.report["jitter"]`` is what was added to each diagonal.

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
    if unknown:
        raise unknown_keyword(factor, unknown)
    framework = frameworks.entry(a, "factor")
    if jitter is not None:
        check_jitter("factor", jitter, framework, assume, precision)
        overwrite = False
    if framework.sharded:
        options = {"assume": assume, "upper": upper, "overwrite": overwrite, "precision": precision}
        return framework.call(factor, a, on_fail=on_fail, engine=engine, **options)  # type: ignore[no-any-return]
    plain = framework.direct(a) and assume == "general" and upper is False and overwrite is False and jitter is None
    if plain and precision == "full" and on_fail == "raise" and engine == "auto" and not planner.logging_decisions():
        results = framework.results_direct(LU, (0,), a)
        if results is not None:
            return Factor(Factored("general", False, _report("general", "auto"), (None, *results, None)))
    upper, overwrite = check_system("factor", framework.shape_of(a), framework.dtype_of(a), assume, upper, on_fail, overwrite)
    xp = framework.Namespace
    traced = framework.traced(a)
    differentiates = framework.differentiates(a)
    mixed = precision != "full" and check_mixed("factor", precision, assume, framework.dtype_of(a))
    if mixed and not traced and not differentiates:
        return as_factor(_mixed(framework, a, assume, upper, on_fail, engine))
    waits = on_fail == "raise" and not traced
    # derivatives need the matrix
    keeps = differentiates or _is_jax(framework)
    overwrite = overwrite and not keeps
    triangle = kept = rows = finite = None
    report = _report(assume, engine)
    code = planner.code_for(framework, a, engine, "factor", lambda: [_problem(a, assume, bool(upper))])
    if not traced and planner.logging_decisions():
        planner.log_decision(_problem(a, assume, upper), engine)
    if assume in ("lower", "upper"):
        upper = assume == "upper"
        l = xp.triu(a, 0) if upper else xp.tril(a, 0)
        _, info = framework.apply(TRIANGULAR, (l, l[..., :1]), (UPPER if upper else 0,), code, False)
    elif assume == "pos" and jitter is not None:
        l, info, a, amount = factor_with_jitter(framework, a, UPPER if upper else 0, code, jitter)
        report["jitter"] = xp.zeros_like(xp.real(l[..., 0, 0])) if amount is None else xp.constant(amount)
        kept, triangle = a, np.triu if upper else np.tril
    elif assume == "pos":
        l, info = framework.apply(CHOLESKY, (a,), (UPPER if upper else 0,), code, overwrite)
        kept, triangle = a, np.triu if upper else np.tril
    else:
        a, _ = _as_general(framework, a, assume, upper)
        upper = False
        # found now, as the factors of a singular matrix and of one with NaN look the same
        finite = _finite(framework, a, 0) if on_fail == "nan" and not keeps else None
        l, rows, info = framework.apply(LU, (xp.constant(a),), (0,), code, overwrite)
        kept = a
    if waits and framework.failed(info):
        error, field = (NotPositiveDefiniteError, "minor") if assume == "pos" else (SingularMatrixError, "pivot")
        tried = {} if jitter is None else {"jitter": jitter}
        raise first_failure(error, "factor", framework, None if overwrite else a, info, field, triangle, **tried)
    framework.register(Factor, _take_apart, _put_together)
    return Factor(Factored(assume, upper, report, (kept if keeps else None, l, rows, info), finite))


def as_factor(handle: Handle) -> Factor:
    """The public object for the handle of a backend or of mixed precision."""
    _register(handle)
    return Factor(handle)


def _register(handle: Any) -> None:
    if hasattr(handle, "take_apart"):
        handle.framework.register(Factor, _take_apart, _put_together)


def _take_apart(f: Factor) -> tuple[tuple[Any, ...], Any]:
    arrays, about = f._handle.take_apart()  # type: ignore[attr-defined]
    return arrays, (type(f._handle), about)


def _put_together(about: Any, arrays: tuple[Any, ...]) -> Factor:
    kind, known = about
    return Factor(kind.put_together(known, arrays))


factor.request = system_request(factor, (), as_factor)  # type: ignore[attr-defined]


def _is_jax(framework: Any) -> bool:
    """Whether factors are JAX pytrees. Those from traced code keep the matrix, for derivatives, so all must: in a loop or a
    branch both kinds meet, and need the same structure."""
    return bool(framework.__name__.endswith(".jax"))


def _mixed(framework: Any, a: Any, assume: str, upper: bool, on_fail: str, engine: str) -> Handle:
    """The handle with a factor in lower precision; if that failed, the handle of the full factor, or its error."""
    from .mixed import Mixed

    xp = framework.Namespace
    options: dict[str, Any] = {"assume": assume, "upper": upper, "engine": engine}
    low_dtype = "complex64" if framework.dtype_of(a).startswith("complex") else "float32"
    low: Any = factor(xp.cast(a, low_dtype), on_fail="nan", **options)._handle
    options["on_fail"] = on_fail
    if framework.failed(low.info):
        full = factor(a, **options)._handle
        full.report.update(precision="mixed", fallback=True)
        return full
    low.a = None  # derivatives do not go through the low factor
    return Mixed(whole_matrix(framework, a, UPPER if upper else 0) if assume == "pos" else xp.constant(a), low, options)


_KIND = {"pos": "cholesky", "lower": "triangular", "upper": "triangular"}


def _report(assume: str, engine: str) -> dict[str, Any]:
    return {"kind": _KIND.get(assume, "lu"), "engine": engine}


_LOW = {"float64": "float32", "complex128": "complex64"}


def _problem(a: Any, assume: str = "pos", upper: bool = False, precision: str = "full", **_: Any) -> Problem:
    array = frameworks.describe(a, "factor")
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
    index = xp.places(rows)
    n = rows.shape[-1]
    least, ahead = index, rows
    for _ in range(32 if n is None else max(n - 1, 0).bit_length()):
        reached = xp.take(least, ahead)
        least = xp.where(reached < least, reached, least)
        ahead = xp.take(ahead, ahead)
    return 1 - 2 * (xp.sum(xp.whole(least != index), -1) % 2)
