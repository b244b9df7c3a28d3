"""cuSOLVERMp as a backend: blocks on GPUs, one process for each, and blocks of the host where it is asked for."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from ....core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ....core.problem import REAL
from ....core.request import MATRIX, RIGHT, Request
from ...scaling import H200, Cost
from ..protocol import Array, Backend, Part, Support, nan_of, on_tiles, with_status
from ..scalapack.backend import inside_xla
from . import routines as cusolvermp
from .handle import FactoredBlocks, on_every_rank
from .memory import HostMemory, device_for
from .moves import check_usable, entered, given_of, left, opened, right_side
from .nccl import runtime

__all__ = ["CusolverMp"]

_FAILURES = (NotPositiveDefiniteError, SingularMatrixError, ConvergenceError)
_SQUARE = ("cholesky", "solve", "inv", "slogdet", "factor", "eigh", "eigvalsh")


class CusolverMp(Backend):
    name, what = "cusolvermp", "cuSOLVERMp, one process per GPU"
    takes = "ShardedMatrix, DTensors, JAX arrays over processes"
    devices, engines = ("cuda",), ("cusolvermp",)
    operations = (*_SQUARE, "lstsq", "qr", "svd", "svdvals", "polar")

    def missing(self, device: str) -> str:
        return cusolvermp.missing().removeprefix("distributed: ")

    def refuses(self, array: Array) -> str:
        if array.kind == "jax" and not array.blocks:
            return (
                "takes JAX matrices that are split over processes with one device each, one block for each process, outside of"
                " traced code"
            )
        return "takes no matrices on CPUs" if array.kind == "spec" and array.device == "cpu" else ""

    def support(self, request: Request, array: Array) -> Support:
        if request.engine == "auto":
            if array.device == "cpu":
                return Support(False, "the blocks are on the host")
            if array.kind == "jax" and (request.b or inside_xla(request, array) or cusolvermp.missing()):
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
        if unsupported := [name for name, given in options.items() if given]:
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
        """The host of this rank: blocks of the host go to a GPU that is chosen by the order of the ranks on their node."""
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
                return all(session.told(session.together(lambda: a.memory.finite(a, triangle)), name))

            try:
                if iteration and not finite():  # which may not end with NaN
                    raise ConvergenceError(name, nonfinite=True)
                given = [session.together(lambda x=x: given_of(x)) for x in (a, b) if x is not None]  # type: ignore[misc]
                made = _ROUTINES[operation](session, request, a, b, *given)
                del given
            except _FAILURES as error:
                singular = isinstance(error, SingularMatrixError) and operation == "slogdet"
                if request.on_fail == "raise" and not singular:
                    fields = {key: value for key, value in vars(error).items() if key in ("minor", "pivot")}
                    raise type(error)(name, nonfinite=not finite(), **fields) from None
                # a singular matrix has a determinant; NaN has none, and that is no mistake of the call
                fine = finite() and not error.nonfinite
                return _failed(request, a, b, error, fine)
            return session.together(lambda: _results(request, a, made))  # type: ignore[no-any-return]


def _results(request: Request, a: Part, made: tuple[Any, ...]) -> tuple[Any, ...]:
    triangles = {"cholesky": (0, request.upper), "qr": (1, True)}
    index, upper = triangles.get(request.operation, (None, False))
    results = []
    for i, x in enumerate(made):
        if isinstance(x, cusolvermp.Given):
            blocks = a.memory.blocks(x, a.ranks)
            x = left(a.memory.keep_triangle(blocks, upper=upper) if i == index else blocks)
        elif isinstance(x, np.ndarray) and x.ndim == 0:
            x = x[()]
        results.append(x)
    return tuple(results)


def _failed(request: Request, a: Part, b: Part | None, error: Any, fine: bool) -> tuple[Any, ...]:
    """NaN in the place of each result."""
    dtype, operation, (m, n) = a.memory.dtype, request.operation, a.shape
    scalar, real = np.dtype(dtype).type, np.dtype(REAL[dtype]).type
    if operation == "factor":
        info = getattr(error, "minor", None) or getattr(error, "pivot", None) or 1
        return (FactoredBlocks(request, a, None, int(info), fine),)
    if operation == "slogdet":
        singular = fine and isinstance(error, SingularMatrixError)
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
    return left(a.memory.filled(layout, a.ranks, nan_of(a.memory.dtype)))


# ---- one function for each operation: the results as the library's blocks, or as values ----


def _factor(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    pos = request.assume == "pos"
    made = cusolvermp.factor(session, given, pos=pos, upper=request.upper, operation="factor")
    return (FactoredBlocks(request, a, made, 0, True),)


def _cholesky(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    return (cusolvermp.cholesky(session, given, upper=request.upper),)


def _solve(session: Any, request: Request, a: Part, b: Part, given: Any, right: Any) -> tuple[Any, ...]:
    return (cusolvermp.solve(session, given, right, pos=request.assume == "pos", upper=request.upper),)


def _inv(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    return (cusolvermp.inv(session, given, pos=request.assume == "pos", upper=request.upper),)


def _slogdet(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    sign, logabs = cusolvermp.slogdet(session, given, pos=request.assume == "pos", upper=request.upper)
    return np.asarray(sign), np.asarray(logabs, REAL[given.dtype])


def _eigh(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    n, part = a.shape[0], request.part
    if request.operation == "eigvalsh":
        return (cusolvermp.eigh(session, given, upper=request.upper, part=part, vectors=False)[0],)
    to = a.of_shape((n, n if part is None else part[1]))
    return cusolvermp.eigh(session, given, upper=request.upper, part=part, to=to)


def _qr(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    n = a.shape[1]
    return cusolvermp.qr(session, given, to=(a.layout, a.of_shape((n, n))))


def _polar(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    return cusolvermp.polar(session, given, left=request.side == "left", to=(a.layout, a.of_shape(a.shape)))


def _lstsq(session: Any, request: Request, a: Part, b: Part, given: Any, right: Any) -> tuple[Any, ...]:
    # the routine assumes full rank: it gives no residuals, rank or singular values
    x = cusolvermp.lstsq(session, given, right, to=b.of_shape((a.shape[1], b.shape[1])))
    return x, None, None, None


def _svd(session: Any, request: Request, a: Part, b: None, given: Any) -> tuple[Any, ...]:
    if request.operation == "svdvals":
        return (cusolvermp.svd(session, given, vectors=False)[1],)
    (m, n), k = a.shape, min(a.shape)
    return cusolvermp.svd(session, given, to=(a.of_shape((m, k)), a.of_shape((k, n))))


_ROUTINES: dict[str, Any] = {
    "cholesky": _cholesky,
    "factor": _factor,
    "solve": _solve,
    "inv": _inv,
    "slogdet": _slogdet,
    "eigh": _eigh,
    "eigvalsh": _eigh,
    "qr": _qr,
    "polar": _polar,
    "lstsq": _lstsq,
    "svd": _svd,
    "svdvals": _svd,
}
