"""Least squares: the x of smallest norm among those that minimise ||b - A x||."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import frexp, inf, isnan, ldexp, nan, prod
from typing import Any, NamedTuple, Never

import numpy as np

from .. import frameworks, planner
from ..core.checks import as_array, check_matrix, check_pair
from ..core.errors import ConvergenceError
from ..core.keywords import unknown_keyword
from ..core.native import ENGINES
from ..core.operation import Operation, Params, Shape
from ..core.problem import ADJOINT, UPPER, Problem, Spec
from ..core.request import RIGHT, VALUE, Request
from .failure import first_failure
from .qr import QR, native_on_gpu
from .solve import Columns
from .svd import SVD, SVDVALS, _problem_of, _solve
from .systems import TRIANGULAR


class LstsqResult(NamedTuple):
    """The results of :func:`lstsq`."""

    x: Any
    residuals: Any
    rank: Any
    singular_values: Any


class _LateLstsqResult(LstsqResult):
    """The same, with singular values that are computed when they are first read."""

    _compute: Callable[[], Any]
    _complete: LstsqResult | None

    def __new__(cls, x: Any, residuals: Any, rank: Any, compute: Callable[[], Any]) -> _LateLstsqResult:
        late: _LateLstsqResult = tuple.__new__(cls, (x, residuals, rank, None))
        late._compute, late._complete = compute, None
        return late

    def complete(self) -> LstsqResult:
        if self._complete is None:
            self._complete = LstsqResult(self.x, self.residuals, self.rank, self._compute())
        return self._complete

    @property
    def singular_values(self) -> Any:  # type: ignore[override]
        return self.complete()[3]

    def __getitem__(self, index: Any) -> Any:
        chosen = range(4)[index]
        late = chosen == 3 if isinstance(chosen, int) else 3 in chosen
        return self.complete()[index] if late else tuple.__getitem__(self, index)

    def __iter__(self) -> Iterator[Any]:
        yield from (self.x, self.residuals, self.rank)
        yield self.singular_values

    def __reduce__(self) -> Any:
        return LstsqResult, tuple(self)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Any:  # type: ignore[override]
        return LstsqResult._make(iterable)


def _of_complete(name: str) -> Any:
    return lambda self, *arguments: getattr(self.complete(), name)(*arguments)


_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
for _name in (*_COMPARISONS, "__repr__", "__contains__", "__add__", "__mul__", "__rmul__", "count", "index"):
    setattr(_LateLstsqResult, _name, _of_complete(_name))


def _take_apart(result: Any) -> tuple[Any, None]:
    return tuple(result), None


def _put_together(_: None, leaves: Any) -> LstsqResult:
    return LstsqResult(*leaves)


def lstsq(a: Any, b: Any, /, *, rcond: float | None = None, engine: str = "auto", **unknown: Never) -> LstsqResult:
    """Least-squares solution of A x = b for any shape and rank.

    Parameters
    ----------
    a : array, shape (..., m, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    b : array, shape (m,) or (..., m, k)
        The batch axes of ``a`` and ``b`` broadcast. Same library and device as ``a``; two dtypes are promoted to one that
        can hold both.
    rcond : float, optional
        Singular values up to ``rcond`` times the largest count as zero. By default max(m, n) eps; -1 is eps, as in NumPy.
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)
        Of smallest norm, where more than one is best.
    residuals : real array, shape (...) or (..., k)
        ||b - A x||^2 for each right-hand side, also where it is zero or the rank is not full.
    rank : integer array, shape (...)
    singular_values : real array, shape (..., min(m, n))
        Of ``a``, descending. Outside of traced code they are computed when they are first looked at: unpacking all four results
        looks at them, ``lstsq(a, b).x`` does not. Inside ``jax.jit`` they are removed where they are not used.

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf, or the iteration did not converge.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    solve : square matrices that are not singular.
    qr, svd

    Notes
    -----
    A matrix of full rank is solved by QR, which does not square the condition number. Whether the rank is full is decided for
    each matrix from R: where its condition is not clearly below 1 / rcond, the singular value decomposition of that matrix
    decides and gives x. On a GPU the call waits for the device, to learn which matrices those are. The rank has no derivative.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> a = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])  # a line through three points
    >>> lw.lstsq(a, np.array([1.0, 3.0, 5.0])).x
    array([2., 1.])
    """
    if unknown:
        raise unknown_keyword(lstsq, unknown)
    framework = frameworks.entry(a, "lstsq")
    if framework.sharded:
        return framework.call(lstsq, a, b, rcond=rcond, engine=engine)  # type: ignore[no-any-return]
    if framework.direct(a) and rcond is None and engine == "auto" and not planner.logging_decisions():
        results = framework.results_direct(LSTSQ, (0, DEFAULT_RCOND), a, b)
        if results is not None:
            x, residuals, rank = results
            rank = rank.astype(np.int_)[()] if isinstance(rank, np.ndarray) else rank.long()
            return _with_late_values(framework, (x, residuals, rank), framework.Namespace.kept(a))
    _check(framework.shape_of(a), framework.dtype_of(a), rcond)
    a, b = check_pair("lstsq", framework, frameworks.of, a, b)
    columns = Columns("lstsq", framework, *map(as_array, (a, b)))
    a, b = columns.a, columns.b
    traced = framework.traced(a) or framework.traced(b)
    logging = not traced and planner.logging_decisions()
    code = planner.AUTO
    if logging or engine != "auto":
        code = planner.code_for(framework, a, engine, "lstsq", lambda: [_problem(a, b, engine)])
        if logging:
            planner.log_decision(_problem(a, b, engine), engine)
    limit = float(np.finfo(framework.dtype_of(a)).eps) if rcond == -1 else nan if rcond is None else float(rcond)
    x, residuals, rank, info = framework.apply(LSTSQ, (a, b), (0, _bits(limit)), code, False)
    if not traced and framework.failed(info):
        raise first_failure(ConvergenceError, "lstsq", framework, a, info)
    if logging:
        planner.log_notes()
    # in the library's own integer type
    rank = rank.astype(np.int_) if isinstance(rank, np.ndarray) else framework.Namespace.sum(rank[..., None], -1)
    first = columns.back(x), columns.back_row(residuals), framework.Namespace.scalar(rank)
    if traced:  # an unused result is removed from the program
        return LstsqResult(*first, _singular_values(framework, a))
    framework.register(_LateLstsqResult, _take_apart, _put_together)
    return _with_late_values(framework, first, framework.Namespace.kept(a))


def _singular_values(framework: Any, a: Any) -> Any:
    return _solve(framework, "lstsq", SVDVALS, a, (0, 0), "raise", "auto")[0]


def _with_late_values(framework: Any, first: tuple[Any, Any, Any], a: Any) -> _LateLstsqResult:
    """The result with singular values of ``a`` that are computed when they are read; ``a`` must not change until then."""
    return _LateLstsqResult(*first, framework.Namespace.later(lambda: _singular_values(framework, a)))


# A double as an integer, which every framework can pass on; by plain arithmetic, as torch.compile cannot trace struct.
DEFAULT_RCOND = 0x7FF8 << 48  # the bits of NaN: max(m, n) eps


def _bits(number: float) -> int:
    if isnan(number):
        return DEFAULT_RCOND
    if number < 2.0**-1022:
        return 0
    if number == inf:
        return 0x7FF << 52
    mantissa, exponent = frexp(number)
    return ((exponent + 1022) << 52) + int((2 * mantissa - 1) * 2**52)


def _number(bits: int) -> float:
    exponent = bits >> 52
    if bits == DEFAULT_RCOND or exponent == 0x7FF:
        return nan if bits == DEFAULT_RCOND else inf
    return ldexp(1 + (bits & 2**52 - 1) / 2**52, exponent - 1023) if exponent else 0.0


def _check(shape: tuple[Any, ...], dtype: str, rcond: Any) -> None:
    check_matrix("lstsq", shape, dtype)
    known = rcond is None or (isinstance(rcond, (int, float, np.floating)) and (rcond >= 0 or rcond == -1))
    if not known or isinstance(rcond, bool):
        raise ValueError(f"lstsq: rcond={rcond!r} is not a number >= 0\nhint: -1 means eps, None max(m, n) eps")


def _request(a: Spec, *, rcond: float | None = None, engine: str = "auto") -> Request:
    _check(a.shape, a.dtype, rcond)
    return Request(lstsq, "lstsq", (RIGHT, VALUE, VALUE, VALUE), LstsqResult, rcond=rcond, engine=engine)


lstsq.request = _request  # type: ignore[attr-defined]


# ---- composed of QR, SVD and triangular solves: where derivatives are wanted, and on a GPU for tall and narrow matrices

_MARGIN = 16  # RANK_MARGIN of native/methods/lstsq.h


def _largest(xp: Any, x: Any, axis: int) -> Any:
    """The largest size of an element along an axis, which is kept."""
    size = xp.abs(x)
    return xp.largest(size) if axis == -1 else xp.swap(xp.largest(xp.swap(size)))


def _composed(xp: Any, params: Params, inputs: Any, engine: int) -> tuple[Any, ...]:
    return _least_squares(xp, params, inputs, engine, smooth=True)


def _elsewhere(xp: Any, params: Params, inputs: Any, engine: int) -> tuple[Any, ...]:
    return _least_squares(xp, params, inputs, engine, smooth=False)


def _least_squares(xp: Any, params: Params, inputs: Any, engine: int, smooth: bool) -> tuple[Any, ...]:
    """``smooth``: x has derivatives."""
    a, b = inputs
    # A and the columns of b are scaled to sizes near one, so that everything up to x stays in range
    size_a, size_b = (xp.power_of_two(x) for x in (_largest(xp, _largest(xp, a, -1), -2), _largest(xp, b, -2)))
    with xp.quiet():
        near_a, near_b = a / xp.like(size_a, a), b / xp.like(size_b, b)
    m, n = xp.shape(a)[-2:]
    known = isinstance(m, int) and isinstance(n, int)
    rcond: Any = _number(params[1])
    if isnan(rcond):
        rcond = float(np.finfo(xp.dtype_name(a)).eps) * (max(m, n) if known else xp.longer(m, n, size_a))
    if known and 0 not in (m, n):
        x, rank, info = _by_qr_or_svd(xp, near_a, near_b, rcond, engine, smooth)
    else:
        x, rank, info = _by_svd(xp, near_a, near_b, rcond, engine)
    left = near_b - xp.matmul(near_a, x)
    residuals = xp.sum(xp.real(left * xp.conj(left)), -2)
    with xp.quiet():  # the results themselves may be out of range
        x = x * xp.like(size_b / size_a, x)
        residuals = residuals * size_b[..., 0, :] * size_b[..., 0, :]
    return x, residuals, rank, info


def _by_qr_or_svd(xp: Any, a: Any, b: Any, rcond: float, engine: int, smooth: bool) -> tuple[Any, Any, Any]:
    m, n = xp.shape(a)[-2:]
    wide = m < n
    tall = xp.adjoint(a) if wide else a
    factors = xp.call(QR, (xp.constant(tall),), (0, 0), engine)
    full = _has_full_rank(xp, factors[1], rcond)
    each = full[..., None, None]
    # any matrix of full rank, for the branch that is not used: its derivatives must be finite
    simple = xp.tril(xp.triu(xp.ones_like(tall), 0), 0)

    def by_qr(matrix: Any) -> Any:
        q, r = xp.call(QR, (matrix,), (0, 0), engine) if smooth else factors
        if wide:
            return xp.matmul(q, xp.call(TRIANGULAR, (r, b), (UPPER | ADJOINT,))[0])
        return xp.call(TRIANGULAR, (r, xp.matmul(xp.adjoint(q), b)), (UPPER,))[0]

    def yes() -> Any:
        return by_qr(tall), xp.whole(full) * min(m, n), xp.whole(full) * 0

    def no() -> Any:
        x, rank, info = _by_svd(xp, xp.where(each, xp.adjoint(simple) if wide else simple, a), b, rcond, engine)
        y = by_qr(xp.where(each, tall, simple))
        return xp.where(each, y, x), xp.where(full, xp.whole(full) * min(m, n), rank), info

    return xp.if_all(full, yes, no)  # type: ignore[no-any-return]


def _has_full_rank(xp: Any, r: Any, rcond: float) -> Any:
    """Whether the smallest singular value of R is certainly above rcond times the largest."""
    # a vector without a pattern that a matrix could share
    index = xp.places(xp.whole(xp.zeros_like(xp.real(r[..., 0, :]))))
    z = (xp.like((index * (7 * index + 13)) % 61, r) - 30.3)[..., None]
    with xp.quiet():
        y = xp.call(TRIANGULAR, (r, z), (UPPER | ADJOINT,))[0]
        z = xp.call(TRIANGULAR, (r, y), (UPPER,))[0]
        norm_r, norm_y, norm_z = (xp.sqrt(xp.sum(xp.sum(xp.abs(x) ** 2, -1), -1)) for x in (r, y, z))
        return norm_r * norm_z * (_MARGIN * rcond) < norm_y  # NaN gives False


def _by_svd(xp: Any, a: Any, b: Any, rcond: Any, engine: int) -> tuple[Any, Any, Any]:
    """x <- V S^+ U^H b, the rank, and the status of the decomposition."""
    u, s, vh, info = xp.call(SVD, (a,), (0, 0), engine)
    good = s > rcond * xp.largest(s)
    kept = xp.like(xp.where(good, s, xp.ones_like(s)), a)[..., :, None]
    x = xp.matmul(xp.adjoint(vh), xp.like(good, a)[..., :, None] * xp.matmul(xp.adjoint(u), b) / kept)
    return x, xp.whole(xp.sum(xp.whole(good), -1)), info


# ---- the operation


def _results(shapes: tuple[Shape, ...], params: Params) -> Any:
    (*batch, _, n), k = shapes[0], shapes[1][-1]
    return ((*batch, n, k), None), ((*batch, k), "real"), (tuple(batch), "int32"), (tuple(batch), "int32")


def _sizes(shapes: tuple[Shape, ...], params: Params) -> Shape:
    *batch, m, n = shapes[0]
    return prod(batch), m, n, shapes[1][-1], params[1]


def _reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    a, b = arrays
    rcond = _number(params[1])
    rcond = float(np.finfo(a.dtype).eps) * max(a.shape[-2:]) if isnan(rcond) else rcond
    u, s, vh, info = SVD.reference((a,), (0, 0))
    with np.errstate(all="ignore"):
        good = s > rcond * s.max(-1, keepdims=True, initial=0)
        weights = np.where(good, 1 / np.where(good, s, 1), 0 * s)[..., None]
        x = (vh.conj().swapaxes(-1, -2) @ (weights * (u.conj().swapaxes(-1, -2) @ b))).astype(a.dtype)
        residuals = (np.abs(b - a @ x) ** 2).sum(-2)
    return x, residuals.astype(s.dtype), good.sum(-1, dtype=np.int32), info


# Least squares of many small matrices is composed of kernels for batches; for a few matrices so many calls do not pay.
_SMALL, _FEW = 32, 64
# The native operation keeps a column of R in shared memory, and asks for the memory of an SVD in advance.
_LARGEST = 4096


def _native_on_gpu(shape: Any, engine: str | int = "auto", dtype: str = "float64") -> bool:
    """Whether least squares with such matrices is one native operation on a GPU."""
    *batch, m, n = shape
    known = all(isinstance(x, int) for x in shape) and m and n
    if native_on_gpu(shape, engine, dtype):
        return bool(min(m, n) <= _LARGEST)
    return bool(known and max(m, n) <= _SMALL and prod(batch) <= _FEW and engine not in ("tall", ENGINES.get("tall")))


LSTSQ = Operation(
    "lstsq",
    square=False,
    results=_results,
    sizes=_sizes,
    reference=_reference,
    work=lambda p: (
        2 * p.long * p.short**2 - 2 / 3 * p.short**3 + 4 * p.long * p.short * p.right,
        p.long * p.short + (p.long + p.short) * p.right,
    ),
    ranks=(2, 2),
    example=(0, DEFAULT_RCOND),
    composed=_composed,
    elsewhere=_elsewhere,
    native_elsewhere=lambda shapes, engine, dtype: _native_on_gpu(shapes[0], engine, dtype),
    differentiable=2,
)


def _problem(a: Any, b: Any = None, engine: str = "auto", **_: Any) -> Problem:
    array = frameworks.describe(a, "lstsq")
    check_matrix("lstsq", array.shape, array.dtype)
    shape = (1,) if b is None else b.shape if isinstance(b, Spec) else frameworks.of(b, "lstsq").shape_of(b)
    if array.device != "cpu" and not _native_on_gpu(array.shape, engine, array.dtype):
        return _problem_of("svd", array)
    right = 1 if len(shape) == 1 else shape[-1]
    if len(array.shape) == 2:
        right *= prod(shape[:-2])  # many right-hand sides for one matrix are the columns of one
    return Problem.of("lstsq", array, columns=array.shape[-1], right=right)


lstsq.problem = _problem  # type: ignore[attr-defined]
