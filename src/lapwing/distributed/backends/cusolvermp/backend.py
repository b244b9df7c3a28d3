"""cuSOLVERMp as a backend: blocks on GPUs, one process for each, and on request blocks of the host."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import numpy as np

from ....core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ....core.problem import REAL
from ....core.request import MATRIX, RIGHT, Request
from ...cost import H200, Cost
from ...layout import Layout
from ..protocol import Array, Backend, Part, Support, determinant, nan_of, on_tiles, with_status
from ..scalapack.backend import inside_xla
from . import routines
from .blocks import Operand
from .factor import Factored, factor
from .library import missing
from .memory import HostMemory, device_for
from .moves import check_usable, entered, opened, operand_of, right_side
from .nccl import runtime
from .polar import polar
from .session import on_device

_FAILURES = (NotPositiveDefiniteError, SingularMatrixError, ConvergenceError)
_SQUARE = ("cholesky", "solve", "inv", "det", "slogdet", "factor", "eigh", "eigvalsh")


class CusolverMp(Backend):
    name, what = "cusolvermp", "cuSOLVERMp, one process per GPU"
    takes = "ShardedMatrix, DTensors, JAX arrays over processes"
    devices, engines = ("cuda",), ("cusolvermp",)
    operations = (*_SQUARE, "lstsq", "qr", "svd", "svdvals", "polar")

    def missing(self, device: str) -> str:
        return missing().removeprefix("distributed: ")

    def refuses(self, array: Array) -> str:
        if array.kind == "jax" and not array.blocks:
            return (
                "takes JAX matrices that are split over processes with one device each, one block for each process, outside of"
                " traced code"
            )
        if array.kind == "devices":
            return "takes one block for each process, but a DeviceMatrix has several\nhint: engine='cusolvermg'"
        return "takes no matrices on CPUs" if array.kind == "spec" and array.device == "cpu" else ""

    def support(self, request: Request, array: Array) -> Support:
        if request.engine == "auto":
            if array.device == "cpu":
                return Support(False, "the blocks are on the host")
            if array.kind == "jax" and (request.b or inside_xla(request, array) or missing()):
                return Support(False, "the call stays inside XLA, which has derivatives")
        (m, n), assume = array.shape, request.assume
        if request.operation == "polar" and m != n:
            return Support(
                False,
                f"on GPUs only square matrices are supported, and this one has shape {(m, n)}"
                "\nhint: svd gives both factors: A = U S V^H = (U V^H) (V S V^H)",
            )
        options = {"b": request.b, "window": request.window is not None, "certify": request.certify}
        options |= {"full_matrices": request.full_matrices, "rcond": request.rcond is not None}
        options |= {"mode": request.mode != "reduced"}
        if unsupported := [name for name, wanted in options.items() if wanted]:
            return Support(False, f"{', '.join(unsupported)} is not supported for sharded matrices on GPUs")
        if request.operation in _SQUARE and assume not in ("general", "pos"):
            return Support(False, f"assume={assume!r} is not supported for sharded matrices on GPUs\nhint: 'general' or 'pos'")
        if 0 in array.shape:
            return Support(False, f"an empty matrix cannot be sharded over GPUs, got shape {array.shape}")
        return Support(True)

    def cost(self, request: Request, array: Array) -> Cost:
        tile = array.layout.rows.tile or None if array.kind == "spec" and array.layout is not None else None
        return on_tiles(request, array, array.grid or array.size, H200, tile)

    def prepare(self, request: Request, a: Part) -> Any:
        """The host name of this rank: the order of the ranks on a node decides which GPU takes a block of the host."""
        name = request.name
        try:
            check_usable(name)
            if type(a.local) is np.ndarray:
                runtime().count()  # a process without a GPU raises here
            else:
                entered(a, None)
        except Exception as wrong:  # any error: the other ranks must not wait
            words = str(wrong)
            plain = type(wrong) in (TypeError, ValueError, RuntimeError) and not words.startswith(name)
            raise (type(wrong)(f"{name}: {words.removeprefix('distributed: ')}") if plain else wrong) from None
        return socket.gethostname()

    def run(self, request: Request, a: Part, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        if request.status:
            return with_status(lambda plain: self.run(plain, a, None, ranks), request, b)
        if request.operation == "det":
            sign, logabs = self.run(replace(request, operation="slogdet"), a, None, ranks)
            return (determinant(sign, logabs, a.dtype),)
        host = HostMemory(a.local, device_for(ranks, a.ranks.rank)) if type(a.local) is np.ndarray else None
        a = Part(host.local, a.layout, a.ranks, host, a.cut) if host is not None else entered(a, None)
        if b is None:
            return self._run(request, a, None)
        side = entered(b, a.memory) if isinstance(b, Part) else right_side(b, a)
        x, *others = self._run(request, a, side)
        return (x if isinstance(b, Part) else on_every_rank(x, a.memory, b.ndim), *others)

    def _run(self, request: Request, a: Part, b: Part | None) -> tuple[Any, ...]:
        name, operation = request.name, request.operation
        iteration = operation in ("eigh", "eigvalsh", "svd", "svdvals", "polar")
        with opened(a) as session:

            def finite() -> bool:
                triangle = None
                if operation in ("cholesky", "eigh", "eigvalsh") or request.assume == "pos":
                    triangle = "upper" if request.upper else "lower"
                return all(session.allgather(session.together(lambda: a.memory.finite(a, triangle)), name))

            try:
                if iteration and not finite():  # with NaN the iteration might never end
                    raise ConvergenceError(name, nonfinite=True)
                operands = [session.together(lambda x=x: operand_of(x)) for x in (a, b) if x is not None]  # type: ignore[misc]
                results = _ROUTINES[operation](session, request, a, b, *operands)
                del operands
            except _FAILURES as error:
                singular = isinstance(error, SingularMatrixError) and operation == "slogdet"
                if request.on_fail == "raise" and not singular:
                    fields = {key: value for key, value in vars(error).items() if key in ("minor", "pivot")}
                    raise type(error)(name, nonfinite=not finite(), **fields) from None
                # the determinant of a singular matrix is 0; with NaN it is NaN, without an error
                return _failed(request, a, b, error, finite() and not error.nonfinite)
            return session.together(lambda: _results(request, a, results))  # type: ignore[no-any-return]


def _results(request: Request, a: Part, computed: tuple[Any, ...]) -> tuple[Any, ...]:
    triangles = {"cholesky": (0, request.upper), "qr": (1, True)}
    index, upper = triangles.get(request.operation, (None, False))
    results = []
    for i, x in enumerate(computed):
        if isinstance(x, Operand):
            blocks = a.memory.blocks(x, a.ranks)
            x = a.memory.keep_triangle(blocks, upper=upper) if i == index else blocks
        elif isinstance(x, np.ndarray) and x.ndim == 0:
            x = x[()]
        results.append(x)
    return tuple(results)


def _failed(request: Request, a: Part, b: Part | None, error: Any, finite: bool) -> tuple[Any, ...]:
    """NaN for each result, except that a singular matrix has a determinant."""
    dtype, operation, (m, n) = a.memory.dtype, request.operation, a.shape
    scalar, real = np.dtype(dtype).type, np.dtype(REAL[dtype]).type
    if operation == "factor":
        info = getattr(error, "minor", None) or getattr(error, "pivot", None) or 1
        return (FactoredBlocks(request, a, None, int(info), finite),)
    if operation == "slogdet":
        singular = finite and isinstance(error, SingularMatrixError)
        return (scalar(0), real(-np.inf)) if singular else (scalar(nan_of(dtype)), real(np.nan))
    k = (request.part or (0, n))[1] if operation in ("eigh", "eigvalsh") else min(m, n)
    shapes = {"eigh": [(n, k)], "svd": [(m, k), (k, n)]}.get(operation, [(m, n)])
    results: list[Any] = []
    for place in request.places:
        if place is MATRIX:
            results.append(_nan_blocks(a, a.of_shape(shapes.pop(0))))
        else:
            results.append(_nan_blocks(a, b.layout) if place is RIGHT and b is not None else np.full(k, np.nan, real))
    return tuple(results)


def _nan_blocks(a: Part, layout: Any) -> Part:
    return a.memory.filled(layout, a.ranks, nan_of(a.memory.dtype))  # type: ignore[no-any-return]


class FactoredBlocks:
    """L L^H or P L U in tiles on the GPUs; ``factored`` is None if the matrix could not be factored."""

    def __init__(self, request: Request, a: Part, factored: Factored | None, info: int, finite: bool) -> None:
        self.assume, self.upper, self.info = request.assume, request.upper, info
        self.layout, self.ranks, self.dtype = a.layout, a.ranks, a.memory.dtype
        self.memory = a.memory.without_data()  # so that the user's matrix is not kept alive
        self._factored, self._finite = factored, finite
        self.report: dict[str, Any] = {"engine": "cusolvermp", "kind": "cholesky" if self.assume == "pos" else "lu"}
        if factored is not None:
            self.report |= {"grid": factored.layout.grid, "tile": factored.layout.rows.tile}

    @property
    def l(self) -> Part:  # noqa: E743
        if self._factored is None:
            return self._all_nan(self.layout)
        with opened(self) as session:
            triangle = self.memory.blocks(self._factored.triangle(self.layout), self.ranks)
            return session.together(lambda: self.memory.keep_triangle(triangle, upper=self.upper))  # type: ignore[no-any-return]

    def solve(self, b: Any, /) -> Any:
        """A^-1 B; NaN if there is no factor."""
        side = entered(b, self.memory) if isinstance(b, Part) else right_side(b, self)
        if self._factored is None:
            x = self._all_nan(side.layout)
        else:
            with opened(self) as session:
                operand = session.together(lambda: operand_of(side))
                x = self.memory.blocks(self._factored.solve(operand), self.ranks)
        return x if isinstance(b, Part) else on_every_rank(x, self.memory, b.ndim)

    def inverse(self) -> Part:
        if self._factored is None:
            return self._all_nan(self.layout)
        with opened(self):
            return self.memory.blocks(self._factored.inv(self.layout), self.ranks)  # type: ignore[no-any-return]

    def slogdet(self) -> tuple[Any, Any]:
        scalar, real = np.dtype(self.dtype).type, np.dtype(REAL[self.dtype]).type
        if self._factored is None:
            if self.assume == "pos" or not self._finite:
                return scalar(nan_of(self.dtype)), real(np.nan)
            return scalar(0), real(-np.inf)
        with opened(self):
            sign, logabs = self._factored.slogdet()
        return scalar(sign), real(logabs)

    def rcond(self) -> Any:
        raise NotImplementedError("Factor.rcond: there is no estimate for a sharded matrix on GPUs\nhint: lapwing.svdvals")

    def _all_nan(self, layout: Layout) -> Part:
        with on_device(self.memory.device):
            return self.memory.filled(layout, self.ranks, nan_of(self.dtype))  # type: ignore[no-any-return]


def on_every_rank(x: Part, memory: Any, ndim: int) -> np.ndarray:
    """A solution in blocks of rows, as a NumPy array that every rank has."""
    with on_device(memory.device):
        parts = x.ranks.allgather(np.ascontiguousarray(memory.to_numpy(x.local)), "solve")
    whole = np.concatenate(parts)
    return whole[:, 0] if ndim == 1 else whole


# ---- one function for each operation: the results as the library's blocks, or as values ----


def _factored(session: Any, request: Request, a: Part, b: Part | None, operand: Any, right: Any = None) -> tuple[Any, ...]:
    operation = request.operation
    pos = operation == "cholesky" or request.assume == "pos"
    factors = factor(session, operand, pos=pos, upper=request.upper, operation=operation)
    if operation == "cholesky":
        return (factors.triangle(operand.layout),)
    if operation == "solve":
        return (factors.solve(right),)
    if operation == "inv":
        return (factors.inv(operand.layout),)
    if operation == "slogdet":
        sign, logabs = factors.slogdet(destroy=True)
        return np.asarray(sign), np.asarray(logabs, REAL[operand.dtype])
    return (FactoredBlocks(request, a, factors, 0, True),)


def _eigh(session: Any, request: Request, a: Part, b: None, operand: Any) -> tuple[Any, ...]:
    n, part = a.shape[0], request.part
    if request.operation == "eigvalsh":
        return (routines.eigh(session, operand, upper=request.upper, part=part, vectors=False)[0],)
    to = a.of_shape((n, n if part is None else part[1]))
    return routines.eigh(session, operand, upper=request.upper, part=part, to=to)


def _qr(session: Any, request: Request, a: Part, b: None, operand: Any) -> tuple[Any, ...]:
    n = a.shape[1]
    return routines.qr(session, operand, to=(a.layout, a.of_shape((n, n))))


def _polar(session: Any, request: Request, a: Part, b: None, operand: Any) -> tuple[Any, ...]:
    return polar(session, operand, left=request.side == "left", to=(a.layout, a.of_shape(a.shape)))


def _lstsq(session: Any, request: Request, a: Part, b: Part, operand: Any, right: Any) -> tuple[Any, ...]:
    # the routine assumes full rank: it gives no residuals, rank or singular values
    x = routines.lstsq(session, operand, right, to=b.of_shape((a.shape[1], b.shape[1])))
    return x, None, None, None


def _svd(session: Any, request: Request, a: Part, b: None, operand: Any) -> tuple[Any, ...]:
    if request.operation == "svdvals":
        return (routines.svd(session, operand, vectors=False)[1],)
    (m, n), k = a.shape, min(a.shape)
    return routines.svd(session, operand, to=(a.of_shape((m, k)), a.of_shape((k, n))))


_ROUTINES: dict[str, Any] = {
    **dict.fromkeys(("cholesky", "factor", "solve", "inv", "slogdet"), _factored),
    "eigh": _eigh,
    "eigvalsh": _eigh,
    "qr": _qr,
    "polar": _polar,
    "lstsq": _lstsq,
    "svd": _svd,
    "svdvals": _svd,
}
