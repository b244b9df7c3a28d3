"""Hosted matrices as a kind of array: which algorithm a call runs, and where its results go."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

import lapwing

from ..core.errors import NotPositiveDefiniteError, ShapeError, SingularMatrixError
from ..core.hosted import HostedMatrix, Progress, unsupported_array
from ..core.problem import DTYPES, ITEMSIZE, REAL, Spec, promoted
from ..core.request import ONE_TRIANGLE, Request
from . import cuda, lu, substitution, tall
from .checkpoint import Checkpoint
from .cholesky import cholesky
from .cost import HostedCost, cost_of, speed_of
from .host import HostSpace
from .lu import Panel
from .plan import Sizes, factor_sizes, row_sizes, tall_rows
from .products import Products
from .space import Space, spans
from .stores import (
    Adjoint,
    Mirrored,
    Store,
    Target,
    check_out,
    file_name,
    folder_of,
    in_memory,
    mirror,
    overwritten,
    same_place,
    store_of,
    target,
    temporary,
)

_log = logging.getLogger("lapwing")
_FACTORED = ("cholesky", "solve", "inv", "slogdet", "det", "factor")
_SUPPORTED = (*_FACTORED, "eigh", "eigvalsh", "svd", "svdvals", "qr")
_SMALL = ("slogdet", "det", "factor", "eigvalsh", "svdvals")  # they have no result for out=
_VECTORS = 64  # of an iteration for part of a spectrum: products with more are done in several passes


class HostedFront:
    sharded: Literal[True] = True

    def describe(self, a: HostedMatrix, /) -> Spec:
        return Spec(a.shape, a.dtype, _device(a).partition(":")[0])

    def call(self, function: Callable[..., Any], a: HostedMatrix, b: Any = None, /, **options: Any) -> Any:
        subset = options.pop("subset", None) if function.__name__ in ("svd", "svdvals") else None
        request = _checked(function, a, b, options)
        call = _Call(request, a)
        call.check_device()
        if request.mixed:
            _log.info("%s: in full precision; there is no refinement for hosted matrices", request.name)
        with np.errstate(all="ignore"):  # NaN and Inf in the matrix are found in the result
            if request.operation in _FACTORED:
                return _factored(call, b)
            if request.operation in ("eigh", "eigvalsh"):
                return _part_of_eigh(call)
            return _part_of_svd(call, subset) if subset is not None else _tall(call)

    def explain(
        self, function: Callable[..., Any], a: HostedMatrix, b: Any, ordinary: Callable[..., Any], /, **options: Any
    ) -> HostedCost:
        subset = options.pop("subset", None) if function.__name__ in ("svd", "svdvals") else None
        request = _checked(function, a, b, options)
        call = _Call(request, a)
        if b is not None and not hasattr(b, "shape"):
            raise TypeError(f"{request.name}: b must be an array or a lapwing.spec, got {type(b).__name__}")
        if b is not None:
            _check_right(request.name, a, tuple(b.shape))
        columns = 1 if b is None or len(b.shape) < 2 else b.shape[1]
        return replace(cost_of(request, a, call.device, call.memory(), columns, subset is not None), missing=call.missing())


FRONT = HostedFront()


def _checked(function: Callable[..., Any], a: Any, b: Any, options: dict[str, Any]) -> Request:
    """The request of a call, or the reason why hosted matrices do not support it."""
    name = function.__name__
    if not isinstance(a, HostedMatrix):
        raise TypeError(f"{name}: b is hosted, so a must be hosted too\nhint: lapwing.hosted(a)")
    if name.removesuffix("_ex") not in _SUPPORTED or name == "eigh_ex":
        raise TypeError(f"{name}: hosted matrices are not supported\nhint: these are: {', '.join(_SUPPORTED)}")
    if options.get("engine", "auto") != "auto":
        raise ValueError(f"{name}: engine={options['engine']!r} does not take hosted matrices\nhint: engine='auto'")
    mode = options.get("mode")
    try:
        request: Request = function.request(  # type: ignore[attr-defined]
            Spec(a.shape, a.dtype), **options | ({"mode": "reduced"} if mode == "r" else {})
        )
    except ValueError as error:
        raise type(error)(str(error).replace("sharded matrices", "hosted matrices")) from None
    if a.checkpoint is not None and (request.overwrite or request.operation not in _FACTORED):
        what = "overwrite=True" if request.overwrite else request.operation
        raise ValueError(f"{name}: checkpoint cannot be combined with {what}\nhint: leave one of them out")
    if request.overwrite and a.out is not None and request.operation in ("cholesky", "inv"):
        raise ValueError(
            f"{name}: overwrite=True replaces the matrix by the result, out= writes it elsewhere\nhint: leave one out"
        )
    if a.out is not None and (request.operation in _SMALL or mode == "r"):
        what = "qr with mode='r'" if mode == "r" else request.operation
        raise ValueError(f"{name}: out cannot be combined with {what}, which has no large result\nhint: call it without out=")
    if request.operation in ("eigh", "eigvalsh"):
        refused = {"b": b is not None, "window": request.window is not None, "certify": request.certify}
        for key in (key for key, used in refused.items() if used):
            raise ValueError(f"{name}: {key} is not supported for hosted matrices\nhint: give subset alone")
        if request.subset is None:
            raise ValueError(f"{name}: a hosted matrix needs a subset at one end\nhint: subset=slice(-16, None)")
    if request.full_matrices or mode in ("complete", "raw"):
        raise ValueError(
            f"{name}: the result would have as many columns as the matrix has rows\nhint: leave out full_matrices and mode"
        )
    return replace(request, mode="r") if mode == "r" else request


def _device(a: HostedMatrix) -> str:
    if a.device is not None:
        return a.device
    return "cpu" if cuda.missing() else "cuda"


class _Call:
    """One call: its request and matrix, the memory that does the work, and the time it began."""

    def __init__(self, request: Request, a: HostedMatrix) -> None:
        self.request, self.a, self.name = request, a, request.name
        self.device = _device(a)
        self.on_gpu = self.device != "cpu"
        self._number = int(self.device.partition(":")[2] or 0)
        self._begun = time.perf_counter()

    def check_device(self) -> None:
        if why := self.missing():
            raise RuntimeError(f"{self.name}: device {self.device!r} cannot be used: {why}\nhint: device='cpu'")

    def missing(self) -> str:
        """Why the device cannot be used; "" if it can."""
        return cuda.missing(self.name, self._number) if self.on_gpu else ""

    def memory(self) -> int:
        if self.a.memory is not None:
            return self.a.memory
        if not self.on_gpu:
            return _free_host() // 2
        self.check_device()
        return int(0.8 * cuda.free_bytes(self._number, self.name))

    @contextmanager
    def space(self, dtype: str, spare: int) -> Iterator[Space]:
        """The memory that does the work, for one phase of the call."""
        if not self.on_gpu:
            host = HostSpace(dtype, spare)
            try:
                yield host
            finally:
                host.close()
            return
        opened = cuda.Cuda(self._number, self.name)
        try:
            gpu = cuda.CudaSpace(dtype, opened)
            try:
                yield gpu
            finally:
                gpu.close()
        finally:
            opened.close()

    def progress(self, done: int, total: int) -> None:
        if self.a.progress is not None:
            self.a.progress(Progress(self.name, done, total, time.perf_counter() - self._begun))

    def scratch(self, shape: tuple[int, int], dtype: str) -> Target:
        """A temporary matrix for this call: in host memory for a GPU, else in a file."""
        if self.on_gpu and in_memory(self.a.source):
            array = np.zeros(shape, dtype)
            return Target(Store(array), array, True)
        return temporary(shape, dtype, folder_of(self.a.source))


# ---- factorisations ----


class Factored:
    """The handle of a factored hosted matrix, with the algorithms that use the factor."""

    def __init__(self, call: _Call, assume: str, dtype: str, factor: Store, panels: list[Panel], info: int) -> None:
        self._call, self._factor, self._panels = call, factor, panels
        self.assume, self.upper, self.dtype, self.info = assume, call.request.upper, dtype, np.int32(info)
        self.shape = call.a.shape
        kinds = {"pos": "cholesky", "lower": "triangular", "upper": "triangular"}
        self.report: dict[str, Any] = {"kind": kinds.get(assume, "lu"), "engine": f"hosted-{call.device.partition(':')[0]}"}

    @property
    def about(self) -> str:
        return f", {self.report['engine']}"

    @property
    def l(self) -> Any:  # noqa: E743
        n = self.shape[0]
        result = target("Factor.l", self._call.a, (n, n), self.dtype, None)
        store = Adjoint(result.store) if self.upper else result.store
        for rows in spans(0, n, max(1, (1 << 22) // max(n, 1))):
            block = np.empty((rows.stop - rows.start, rows.stop), self.dtype)
            self._factor.read(rows, slice(0, rows.stop), block)
            if self.assume == "upper":
                raise AttributeError(
                    "Factor.l: with assume='upper' the matrix itself is the factor, and there is no l\nhint: use the matrix"
                )
            block[np.triu_indices(len(block), rows.start + 1, rows.stop)] = 0
            store.write(rows, slice(0, rows.stop), block)
        return result.value

    def solve(self, b: Any, /) -> Any:
        return self.solved(b, None)

    def solved(self, b: Any, out: Any, name: str = "Factor.solve") -> Any:
        """A^-1 b; written to ``out`` if it is not None."""
        right, vector, dtype = _right(name, self._call.a, b, fixed=self.dtype)
        n, k = right.shape
        shape = _shape_of_solution(right, vector, out)
        result = target(name, self._call.a, shape, dtype, out, b if isinstance(b, np.ndarray) else None)
        if self.info:
            _fill(result.store, np.nan)
        elif n and k:
            self._solve_into(right, result.store, name)
        value = result.value
        return value[:, 0] if vector and len(value.shape) == 2 else value

    def _solve_into(self, right: Store, to: Store, name: str) -> None:
        n, k = right.shape
        on_gpu = self._call.on_gpu  # on the CPU the right-hand side that is read takes memory too
        sizes, vectors = row_sizes(name, n, k, ITEMSIZE[self.dtype], self._call.memory(), on_gpu, 1 if on_gpu else 2)
        with self._call.space(self.dtype, sizes.chunk * vectors) as space:
            slots = space.slots(sizes.slots, sizes.chunk * n)
            # cuSOLVER exchanges rows of matrices that are stored by columns
            turned = on_gpu and self.report["kind"] == "lu"
            x = space.empty(min(vectors, k), n).T if turned else space.empty(n, min(vectors, k))
            for columns in spans(0, k, vectors):
                here = x[:, : columns.stop - columns.start]
                block = np.empty(here.shape, self.dtype)
                right.read(slice(0, n), columns, block)
                space.put(block, here)
                del block
                self._substitute(space, slots, here, sizes)
                space.write(here, to, 0, columns.start)
                space.flush()

    def _substitute(self, space: Space, slots: list[Any], x: Any, sizes: Sizes) -> None:
        n = self.shape[0]
        if self.assume == "pos":
            substitution.forward(space, slots, self._factor, x, sizes)
            substitution.backward_adjoint(space, slots, self._factor, x, sizes)
        elif self.assume == "lower":
            substitution.forward(space, slots, self._factor, x, sizes)
        elif self.assume == "upper":
            substitution.backward(space, slots, self._factor, x, slice(0, n), sizes.chunk, unit=False)
        else:
            lu.solve(space, slots, self._factor, x, sizes, self._panels)

    def inverse(self) -> Any:
        return self.inverted(target("Factor.inv", self._call.a, self.shape, self.dtype, None)).value

    def inverted(self, result: Target) -> Target:
        """A^-1 by columns, or by rows from LU. If A is positive definite only the lower triangle is computed."""
        n, pos, by_rows = self.shape[0], self.assume == "pos", self.report["kind"] == "lu"
        if self.info:
            _fill(result.store, np.nan)
            return result
        if n == 0:
            return result
        memory, on_gpu = self._call.memory(), self._call.on_gpu
        sizes, vectors = row_sizes(self._call.name, n, n, ITEMSIZE[self.dtype], memory, on_gpu, 1 if on_gpu else 2)
        with self._call.space(self.dtype, sizes.chunk * vectors) as space:
            slots, x = space.slots(sizes.slots, sizes.chunk * n), space.empty(*((vectors, n) if by_rows else (n, vectors)))
            for columns in spans(0, n, vectors):
                count, start = columns.stop - columns.start, columns.start if pos else 0
                here = x[:count, :].T if by_rows else x[: n - start, :count]
                space.put(_identity(n - start, columns.start - start, count, self.dtype, by_rows), here)
                if by_rows:  # rows of the inverse: columns of that of the transpose
                    lu.solve_transposed(space, slots, self._factor, here, sizes, self._panels)
                    space.write(here.T, result.store, columns.start, 0)
                elif pos:
                    substitution.forward(space, slots, self._factor, here, sizes, start)
                    substitution.backward_adjoint(space, slots, self._factor, here, sizes, start)
                    square = np.array(space.get(here[:count, :]))
                    mirror(square, upper=False, conjugate=True)
                    result.store.write(columns, columns, square)
                    space.write(here[count:, :], result.store, columns.stop, columns.start)
                    space.write(here[count:, :], Adjoint(result.store), columns.stop, columns.start)
                else:
                    self._substitute(space, slots, here, sizes)
                    space.write(here, result.store, 0, columns.start)
                space.flush()
                self._call.progress(columns.stop, n)
        if self.assume in ("symmetric", "hermitian"):
            _mirror_store(result.store, self.assume == "hermitian")
        return result

    def slogdet(self) -> tuple[Any, Any]:
        real = np.dtype(REAL[self.dtype])
        if self.info:
            singular = self.assume != "pos" and _finite(_source(self._call.request, self._call.a), False)
            values = (0, -np.inf) if singular else (np.nan, np.nan)
            return np.dtype(self.dtype).type(values[0]), real.type(values[1])
        diagonal = _diagonal(self._factor)
        with np.errstate(divide="ignore"):
            sizes = np.log(np.abs(diagonal).astype(float))
        total = real.type(2 * sizes.sum() if self.assume == "pos" else sizes.sum())
        if self.assume == "pos":
            return np.dtype(self.dtype).type(1), total
        signs = np.where(diagonal == 0, 0, diagonal / np.where(diagonal == 0, 1, np.abs(diagonal)))
        return np.dtype(self.dtype).type(lu.parity(self._panels) * np.prod(signs)), total

    def logdet(self) -> Any:
        sign, logabs = self.slogdet()
        return logabs if self.assume == "pos" or np.real(sign) > 0 else logabs * np.nan

    def rcond(self) -> Any:
        raise TypeError(
            "Factor.rcond: not supported for hosted matrices"
            "\nhint: if it is positive definite, eigvalsh(a, subset=slice(1)) shows how near to singular it is"
        )


def _identity(n: int, first: int, count: int, dtype: str, turned: bool) -> np.ndarray:
    """Columns of the identity, stored by rows, or by columns if ``turned``."""
    columns = np.zeros((count, n) if turned else (n, count), dtype)
    columns = columns.T if turned else columns
    columns[np.arange(first, first + count), np.arange(count)] = 1
    return columns


def _factored(call: _Call, b: Any) -> Any:
    request, a = call.request, call.a
    dtype = a.dtype if b is None else _right(call.name, a, b)[2]
    if request.operation == "inv":
        result = overwritten(call.name, a) if request.overwrite else None
        keeps = replace(call.request, overwrite=False)
        call.request = keeps if result is not None else request
        check_out(call.name, a, a.shape, dtype, a.out)
    elif request.operation == "solve":
        right, vector, _ = _right(call.name, a, b)
        check_out(call.name, a, _shape_of_solution(right, vector, a.out), dtype, a.out)
        if a.out is not b and same_place(a.out, getattr(b, "source", b)):
            raise ValueError(f"{call.name}: out overlaps b\nhint: out may be b itself, or another place")
    handle = _factor(call, dtype)
    if request.operation == "cholesky":
        values: tuple[Any, ...] = (handle.value,)
    elif request.operation == "factor":
        values = (handle,)
    elif request.operation == "solve":
        values = (handle.solved(b, a.out, call.name),)
    elif request.operation == "inv":
        values = (handle.inverted(result or target(call.name, a, a.shape, dtype, a.out)).value,)
    elif request.operation == "det":
        sign, size = handle.slogdet()
        values = (sign * np.exp(size),)
    else:
        values = handle.slogdet()
    return request.returned([*values, handle.info] if request.status else values)


def _shape_of_solution(right: Store, vector: bool, out: Any) -> tuple[int, ...]:
    """The solution for a vector is a vector, or a matrix with one column if ``out`` is one."""
    return right.shape[:1] if vector and len(getattr(out, "shape", (0,))) == 1 else right.shape


def _factor(call: _Call, dtype: str) -> Any:
    """Factor the matrix; a failure raises, or makes later results NaN."""
    request, a = call.request, call.a
    n, assume = a.shape[0], request.assume
    pos = assume == "pos"
    source = _source(request, a)
    if assume in ("lower", "upper"):
        zero = np.flatnonzero(_diagonal(source) == 0)
        info = int(zero[0]) + 1 if len(zero) else 0
        handle = Factored(call, assume, dtype, source, [], info)
        return _judged(call, handle, source, info)
    speed = speed_of(a, call.on_gpu)
    sizes = factor_sizes(call.name, max(n, 1), ITEMSIZE[dtype], call.memory(), call.on_gpu, pos, speed)
    _log.info(
        "%s: hosted on %s, n=%s %s, panels of %s columns, %s bytes of buffers", call.name, call.device, n, dtype, sizes.panel,
        sizes.bytes,
    )  # fmt: skip
    saved = None
    if a.checkpoint is not None:
        facts = {"operation": "cholesky" if pos else "lu", "shape": list(a.shape), "dtype": dtype, "upper": request.upper}
        saved = Checkpoint(call.name, a.checkpoint, source, facts, pos)
        for what, used in (("the matrix", a.source), ("out", a.out)):
            if (name := file_name(used)) is not None and os.path.realpath(name) == os.path.realpath(saved.file):
                raise ValueError(f"{call.name}: {what} is {saved.file}, a file of the checkpoint\nhint: name another folder")
        place = saved.open()
        source = saved.source
    elif request.overwrite and assume in ("general", "pos") and dtype == a.dtype:
        place = overwritten(call.name, a)
    elif request.operation == "cholesky":
        place = target(call.name, a, (n, n), dtype, a.out)
    else:
        place = call.scratch((n, n), dtype)
    is_result = request.operation == "cholesky" or (request.overwrite and pos)
    turned = request.upper and pos and (is_result and saved is None)
    factor = Adjoint(place.store) if turned else place.store
    panels = saved.panels if saved else []

    def finished(done: int) -> None:
        if saved is not None:
            space.flush()
            saved.save(done, place.store, panels)
        call.progress(done, n)

    clears = request.operation == "cholesky" and saved is None and not place.fresh
    with call.space(dtype, sizes.chunk * sizes.panel) as space, _cleared(factor, sizes, call.on_gpu, clears):
        if pos:
            info = cholesky(space, source, factor, sizes, saved.done if saved else 0, finished)
        else:
            info = lu.lu(space, source, factor, sizes, panels, finished)
        space.flush()
    if not info and n:
        # cuSOLVER does not report NaN
        bad = np.flatnonzero(~np.isfinite(_diagonal(factor)))
        info = int(bad[0]) + 1 if len(bad) else 0
    handle = Factored(call, assume, dtype, factor, panels, info)
    if request.operation == "cholesky":
        result = place
        if saved is not None and (info or a.out is not None or request.upper):
            result = target(call.name, a, (n, n), dtype, a.out)
            if not info:
                _copy(factor, Adjoint(result.store) if request.upper else result.store)
        elif saved is not None:
            result.value.flags.writeable = False  # the next call reads the same file
        if info:
            _fill(result.store, np.nan)
        handle.value = result.value  # type: ignore[attr-defined]
    return _judged(call, handle, source, info)


def _judged(call: _Call, handle: Factored, source: Store, info: int) -> Factored:
    if not info or call.request.on_fail == "nan":
        return handle
    pos = handle.assume == "pos"
    if call.request.operation in ("slogdet", "det") and not pos and _finite(source, False):
        return handle  # the determinant is zero
    nonfinite = not call.request.overwrite and not _finite(source, pos)
    if pos:
        raise NotPositiveDefiniteError(call.name, minor=info, nonfinite=nonfinite)
    raise SingularMatrixError(call.name, pivot=info, nonfinite=nonfinite)


def _source(request: Request, a: HostedMatrix) -> Store:
    """The store that the factorisations read: the lower triangle for positive definite matrices, else both triangles."""
    store = store_of(a.source, a.shape, a.dtype)
    if request.assume in ("symmetric", "hermitian"):
        return Mirrored(store, request.upper, request.assume == "hermitian")
    return Adjoint(store) if request.upper and request.assume in ONE_TRIANGLE else store


def _check_right(name: str, a: HostedMatrix, shape: tuple[int, ...]) -> None:
    if len(shape) not in (1, 2) or shape[0] != a.shape[0]:
        raise ShapeError(f"{name}: b must have shape ({a.shape[0]},) or ({a.shape[0]}, k), got {shape}")


def _right(name: str, a: HostedMatrix, b: Any, fixed: str = "") -> tuple[Store, bool, str]:
    """The right-hand side as a matrix, whether it is a vector, and the dtype of the solution."""
    if not isinstance(b, (np.ndarray, HostedMatrix)) and not all(hasattr(b, x) for x in ("shape", "dtype", "__getitem__")):
        raise TypeError(f"{name}: b must be a NumPy array, a data set or hosted, got {type(b).__name__}")
    if problem := unsupported_array(b):
        raise TypeError(f"{name}: {problem}".replace("(a)", "(b)").replace(" a.", " b."))
    shape, dtype = tuple(b.shape), str(b.dtype)
    if dtype not in DTYPES:
        raise TypeError(f"{name}: b has dtype {dtype}, which is not supported (use {', '.join(DTYPES)})")
    _check_right(name, a, shape)
    common = promoted(fixed or a.dtype, dtype)
    if fixed and common != fixed:
        raise TypeError(f"{name}: b has dtype {dtype}, which cannot be used with a factor of {fixed}\nhint: factor in {common}")
    return store_of(b, shape if len(shape) == 2 else (*shape, 1), dtype), len(shape) == 1, common


# ---- parts of a spectrum, and tall matrices ----


def _part_of_eigh(call: _Call) -> Any:
    request, a = call.request, call.a
    n = a.shape[0]
    store = Mirrored(store_of(a.source, a.shape, a.dtype), request.upper, conjugate=True)
    with _products(call, store, triangle=True) as products:
        described = lapwing.operator(products.forward, (n, n), a.dtype)
        options = {"subset": request.subset, "on_fail": request.on_fail, "tol": request.tol}
        results = request.function(described, **options)
    call.progress(n, n)
    if request.operation == "eigvalsh":
        return results
    return type(results)(results[0], _delivered(call, results[1]))


def _part_of_svd(call: _Call, subset: slice) -> Any:
    request, a = call.request, call.a
    with _products(call, store_of(a.source, a.shape, a.dtype), triangle=False) as products:
        described = lapwing.operator(products.forward, a.shape, a.dtype, rmatvec=products.back)
        results = request.function(described, subset=subset, on_fail=request.on_fail)
    call.progress(a.shape[1], a.shape[1])
    return results if request.operation == "svdvals" else type(results)(_delivered(call, results[0]), *results[1:])


@contextmanager
def _products(call: _Call, store: Store, triangle: bool) -> Iterator[Products]:
    (m, n), dtype, memory = store.shape, call.a.dtype, call.memory()
    if max(m, n) > 500 and call.request.part is not None and 8 * call.request.part[1] > min(m, n):
        need = 3 * m * n * ITEMSIZE[dtype]
        if need > memory and not call.on_gpu:
            raise ValueError(
                f"{call.name}: {call.request.part[1]} of {n} values are too many for the iterative method, and memory={memory}"
                " is too small for the whole matrix\nhint: ask for at most an eighth of the values, or give a larger memory="
            )
    sizes, vectors = row_sizes(call.name, max(m, n), _VECTORS, ITEMSIZE[dtype], memory, call.on_gpu)
    resident = max(0, int(0.9 * memory) - sizes.bytes) // ITEMSIZE[dtype]
    with call.space(dtype, sizes.chunk * vectors) as space:
        yield Products(space, store, sizes, vectors, triangle, resident)


def _tall(call: _Call) -> Any:
    request, a = call.request, call.a
    m, n = a.shape
    if m < 2 * n:
        raise ShapeError(
            f"{call.name}: a hosted matrix must have at least twice as many rows as columns, got shape {a.shape}"
            "\nhint: svd(a, subset=slice(k)) finds the largest singular values of any shape"
        )
    on_fail: Any = request.on_fail
    rows = tall_rows(call.name, m, n, ITEMSIZE[a.dtype], call.memory())
    source = store_of(a.source, a.shape, a.dtype)
    vectors = request.operation == "svd" or (request.operation == "qr" and request.mode != "r")
    result = target(call.name, a, (m, n), a.dtype, a.out) if vectors else None
    count = len(tall.blocks_of(m, n, rows))
    tops = call.scratch((count * n, n), a.dtype).store if vectors else None
    with call.space(a.dtype, rows * n) as space:
        store = None if result is None else result.store
        r = tall.tall_qr(space, source, store, tops, rows, lambda done: call.progress(done, m))
        if request.operation == "svdvals":
            return lapwing.svdvals(r, on_fail=on_fail)
        if request.operation == "qr":
            if result is None or store is None or tops is None:
                return request.result(np.empty((0, 0), a.dtype), r)
            tall.multiply(space, store, tops, np.eye(n, dtype=a.dtype), (m, n), rows)
            return request.result(result.value, r)
        u, s, vh = lapwing.svd(r, on_fail=on_fail)
        assert result is not None and store is not None and tops is not None
        tall.multiply(space, store, tops, u, (m, n), rows)
        return request.result(result.value, s, vh)


def _delivered(call: _Call, x: np.ndarray) -> Any:
    """A result that was computed in memory, in ``out`` if there is one."""
    if call.a.out is None:
        return x
    result = target(call.name, call.a, x.shape, call.a.dtype, call.a.out)
    result.store.write(slice(0, x.shape[0]), slice(0, x.shape[1]), x)
    return result.value


# ---- passes over a store in host memory ----


def _rows_of(store: Store, size: int = 1 << 22) -> Iterator[slice]:
    return spans(0, store.shape[0], max(1, size // max(store.shape[1], 1)))


def _finite(store: Store, lower: bool) -> bool:
    for rows in _rows_of(store):
        block = np.empty((rows.stop - rows.start, rows.stop if lower else store.shape[1]), store.dtype)
        store.read(rows, slice(0, block.shape[1]), block)
        if not np.isfinite(np.tril(block, rows.start) if lower else block).all():
            return False
    return True


def _diagonal(store: Store) -> np.ndarray:
    n = store.shape[0]
    diagonal = np.empty(n, store.dtype)
    for rows in spans(0, n, 64):
        block = np.empty((rows.stop - rows.start,) * 2, store.dtype)
        store.read(rows, rows, block)
        diagonal[rows] = block.diagonal()
    return diagonal


def _fill(store: Store, value: float) -> None:
    filler = complex(value, value) if store.dtype.kind == "c" else value
    for rows in _rows_of(store):
        store.write(rows, slice(0, store.shape[1]), np.full((rows.stop - rows.start, store.shape[1]), filler, store.dtype))


@contextmanager
def _cleared(store: Store, sizes: Sizes, on_gpu: bool, wanted: bool) -> Iterator[None]:
    """Write zeros above the diagonal blocks, by threads while the work runs; the blocks themselves are written with zeros.

    On the CPU one thread is enough.
    """
    if not wanted:
        yield
        return
    n, stopped = store.shape[0], False

    def clear(rows: slice) -> None:
        for part in spans(rows.start, rows.stop, max(1, min(64, (1 << 20) // max(n, 1)))):
            if not stopped:
                store.write(part, slice(rows.stop, n), np.zeros((part.stop - part.start, n - rows.stop), store.dtype))

    blocks = [block for panel in spans(0, n, sizes.panel) for block in spans(panel.start, panel.stop, sizes.block)]
    with ThreadPoolExecutor(8 if on_gpu and store.splits else 1) as pool:
        pending = [pool.submit(clear, rows) for rows in blocks]
        try:
            yield
        except BaseException:
            stopped = True
            raise
        for work in pending:
            work.result()


def _copy(source: Store, to: Store) -> None:
    for rows in _rows_of(source):
        block = np.empty((rows.stop - rows.start, source.shape[1]), source.dtype)
        source.read(rows, slice(0, block.shape[1]), block)
        to.write(rows, slice(0, block.shape[1]), block)


def _mirror_store(store: Store, conjugate: bool) -> None:
    """Copy the lower triangle to the upper one."""
    n = store.shape[0]
    for rows in _rows_of(store):
        block = np.empty((rows.stop - rows.start, rows.stop), store.dtype)
        store.read(rows, slice(0, rows.stop), block)
        mirror(block[:, rows.start :], upper=False, conjugate=conjugate)
        turned = block.conj().T if conjugate else block.T
        store.write(slice(0, rows.stop), rows, turned)
    assert n == store.shape[1]


def _free_host() -> int:
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 4 << 30
