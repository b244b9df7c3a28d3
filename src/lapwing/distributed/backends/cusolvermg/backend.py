"""cuSOLVERMg as a backend: blocks on the GPUs of one process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ....core.problem import ITEMSIZE, REAL
from ....core.request import MATRIX, RIGHT, Request
from ...cost import H200, Cost, largest_that
from ...devices import DeviceMatrix
from ...layout import Layout
from ..protocol import Array, Backend, Support, determinant, nan_of, on_tiles, with_status
from ..scalapack.backend import inside_xla
from .factor import LOWER, Factored, factor, tile_for
from .grid import Grid, grid_of
from .library import DATA, missing
from .operand import Operand

_SYSTEMS = ("solve", "inv", "det", "slogdet", "factor")
_SPECTRA = ("eigh", "eigvalsh")
# Workspace of syevd against a device's share of the matrix: 3.2 to 3.6 for n = 2048 and 4096 on 1, 2 and 4 places of one H200
# (float64), 6.2 for n = 8192 on one.
EIGH_WORKSPACE = 6.2
# Seconds for each column beyond the model of cuSOLVERMp: syevd took 0.28, 0.76 and 1.54 s for n = 2048, 4096 and 8192 there.
_EIGH_STEP = 1.4e-4
_FAILURES = (NotPositiveDefiniteError, SingularMatrixError, ConvergenceError)


class CusolverMg(Backend):
    name, what = "cusolvermg", "cuSOLVERMg, all GPUs of one process"
    takes = "DeviceMatrix, JAX arrays over the GPUs of one process"
    devices, engines = ("cuda",), ("cusolvermg",)
    operations = ("cholesky", *_SYSTEMS, *_SPECTRA)
    sees = "devices"

    def missing(self, device: str) -> str:
        return missing().removeprefix("distributed: ")

    def refuses(self, array: Array) -> str:
        if array.kind == "spec":
            return "takes no matrices on CPUs" if array.device == "cpu" else ""
        if array.kind == "devices" or (array.kind == "jax" and array.one_process):
            return ""
        return (
            "takes matrices on the GPUs of one process: a DeviceMatrix, or outside of traced code JAX arrays with one block"
            " on each GPU"
        )

    def support(self, request: Request, array: Array) -> Support:
        if request.engine == "auto" and array.kind == "spec":
            return Support(False, "a spec does not say that the GPUs belong to one process")
        if request.engine == "auto" and array.kind == "jax" and (request.b or inside_xla(request, array) or missing()):
            return Support(False, "the call stays inside XLA, which has derivatives")
        if request.operation not in self.operations:
            hint = "use a JAX array that is sharded over these GPUs, with engine='xla'"
            return Support(False, f"cuSOLVERMg does not have this operation\nhint: {hint}")
        options = {"b": request.b, "window": request.window is not None, "certify": request.certify}
        if unsupported := [name for name, wanted in options.items() if wanted]:
            return Support(False, f"{', '.join(unsupported)} is not supported by cuSOLVERMg")
        if request.operation in _SYSTEMS and request.assume not in ("general", "pos"):
            return Support(False, f"assume={request.assume!r} is not supported by cuSOLVERMg\nhint: 'general' or 'pos'")
        if 0 in array.shape:
            return Support(False, f"an empty matrix cannot be spread over GPUs, got shape {array.shape}")
        return Support(True)

    def cost(self, request: Request, array: Array) -> Cost:
        tile = tile_for(array.shape[1], array.size)
        estimate = on_tiles(request, array, (1, array.size), H200, tile)
        needed = partial(_memory, request.operation, places=array.size, dtype=array.dtype)
        largest = largest_that(lambda n: needed(n) <= H200.memory)
        seconds = estimate.compute_seconds
        if request.operation in _SPECTRA:
            seconds += _EIGH_STEP * array.shape[1]
        return replace(estimate, engine=self.name, memory=needed(array.shape[1]), largest=largest, compute_seconds=seconds)

    def prepare(self, request: Request, a: DeviceMatrix) -> None:
        if reason := missing():
            raise RuntimeError(f"{request.name}: {reason.removeprefix('distributed: ')}")

    def run(self, request: Request, a: DeviceMatrix, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        """``b`` is a DeviceMatrix on the first GPUs of A, and a solution is like it."""
        if request.status:
            return with_status(lambda plain: self.run(plain, a, None, ranks), request, b)
        if request.operation == "det":
            sign, logabs = self.run(replace(request, operation="slogdet"), a, None, ranks)
            return (determinant(sign, logabs, a.dtype),)
        operand, name = Operand.of(a), request.name
        right = None if b is None else Operand.of(b)
        triangle = None
        if request.operation in ("cholesky", *_SPECTRA) or request.assume == "pos":
            triangle = "upper" if request.upper else "lower"
        try:
            if request.operation in _SPECTRA and not operand.finite(triangle):  # with NaN the iteration might never end
                raise ConvergenceError(name, nonfinite=True)
            with grid_of(operand.devices).opened(operand.allocate) as grid:
                call = _eigh if request.operation in _SPECTRA else _factored
                return call(grid, request, operand, right)
        except _FAILURES as error:
            singular = isinstance(error, SingularMatrixError) and request.operation == "slogdet"
            finite = not error.nonfinite and operand.finite(triangle)
            if request.on_fail == "raise" and not singular:
                fields = {key: value for key, value in vars(error).items() if key in ("minor", "pivot")}
                raise type(error)(name, nonfinite=not finite, **fields) from None
            return _failed(request, operand, right, error, finite)


def _memory(operation: str, n: int, places: int, dtype: str) -> float:
    """Bytes on each device: the input, the tiles, the result, and the workspace."""
    share = -(-n // places) * n
    panels = 3 * tile_for(n, places) * n
    workspace = EIGH_WORKSPACE * share - share if operation in _SPECTRA else panels  # it is freed before the result is made
    return float((3 * share + workspace) * ITEMSIZE[dtype])


def _factored(grid: Grid, request: Request, a: Operand, b: Operand | None) -> tuple[Any, ...]:
    operation = request.operation
    pos = operation == "cholesky" or request.assume == "pos"
    factors = factor(grid, a, pos=pos, upper=request.upper, name=request.name)
    if operation == "cholesky":
        return (factors.triangle(grid, request.upper),)
    if operation == "solve":
        assert b is not None
        return (factors.solve(grid, b),)
    if operation == "inv":
        return (factors.inverse(grid),)
    if operation == "slogdet":
        return factors.slogdet(grid)
    return (FactoredDevices(request, a.without_data(), factors, 0, True),)


def _eigh(grid: Grid, request: Request, a: Operand, b: Operand | None) -> tuple[Any, ...]:
    """Computes the whole spectrum, as the library has no routine for a part of it."""
    n, dtype, vectors = a.shape[0], a.dtype, request.operation == "eigh"
    first, count = request.part or (0, n)
    first += n if first < 0 else 0
    layout = grid.tiles((n, n), tile_for(n, grid.size))
    tiles = a.bring(grid, layout, "N" if request.upper else "C", lower=True)
    grid.wait()
    w = np.empty(n, REAL[dtype])
    info = grid.call("Syevd", layout, int(vectors), LOWER, n, tiles, w.ctypes.data, DATA[REAL[dtype]], dtype=dtype)
    if info or not np.isfinite(w).all():
        raise ConvergenceError(request.name)
    if not vectors:
        return (w[first : first + count],)
    kept = Layout(layout.rows, replace(layout.columns, n=count, skip=first))
    # the columns are the conjugate vectors
    v = a.leave(grid, replace(tiles, layout=kept), a.layout.of_shape((n, count)), "C")
    return w[first : first + count], v


def _failed(request: Request, a: Operand, b: Operand | None, error: Any, finite: bool) -> tuple[Any, ...]:
    """NaN for each result, except that a singular matrix has a determinant."""
    dtype, operation, n = a.dtype, request.operation, a.shape[0]
    scalar, real = np.dtype(dtype).type, np.dtype(REAL[dtype]).type
    if operation == "factor":
        info = getattr(error, "minor", None) or getattr(error, "pivot", None) or 1
        return (FactoredDevices(request, a.without_data(), None, int(info), finite),)
    if operation == "slogdet":
        singular = finite and isinstance(error, SingularMatrixError)
        return (scalar(0), real(-np.inf)) if singular else (scalar(nan_of(dtype)), real(np.nan))
    k = (request.part or (0, n))[1]
    results: list[Any] = []
    for place in request.places:
        if place is MATRIX:
            results.append(a.full(a.layout.of_shape((n, k)), nan_of(dtype)))
        elif place is RIGHT and b is not None:
            results.append(b.full(b.layout, nan_of(dtype)))
        else:
            results.append(np.full(k, np.nan, real))
    return tuple(results)


class FactoredDevices:
    """L L^H or P L U in tiles on the GPUs; ``factored`` is None if the matrix could not be factored."""

    def __init__(self, request: Request, like: Operand, factored: Factored | None, info: int, finite: bool) -> None:
        self.assume, self.upper, self.info = request.assume, request.upper, info
        self._like, self._factored, self._finite = like, factored, finite
        kind = "cholesky" if self.assume == "pos" else "lu"
        self.report: dict[str, Any] = {"engine": "cusolvermg", "kind": kind, "grid": (1, len(like.devices))}
        if factored is not None:
            self.report["tile"] = factored.tile

    @property
    def l(self) -> DeviceMatrix:  # noqa: E743
        if self._factored is None:
            return self._all_nan(self._like)
        with self._factored.opened() as grid:
            return self._factored.triangle(grid, self.upper)

    def solve(self, b: DeviceMatrix, /) -> DeviceMatrix:
        """A^-1 b; NaN if there is no factor."""
        right = Operand.of(b)
        if self._factored is None:
            return self._all_nan(right)
        with self._factored.opened() as grid:
            return self._factored.solve(grid, right)

    def inverse(self) -> DeviceMatrix:
        if self._factored is None:
            return self._all_nan(self._like)
        with self._factored.opened() as grid:
            return self._factored.inverse(grid)

    def slogdet(self) -> tuple[Any, Any]:
        if self._factored is not None:
            with self._factored.opened() as grid:
                return self._factored.slogdet(grid)
        scalar, real = np.dtype(self._like.dtype).type, np.dtype(REAL[self._like.dtype]).type
        if self.assume == "pos" or not self._finite:
            return scalar(nan_of(self._like.dtype)), real(np.nan)
        return scalar(0), real(-np.inf)

    def rcond(self) -> Any:
        raise NotImplementedError("Factor.rcond: cuSOLVERMg has no estimate\nhint: lapwing.eigvalsh for Hermitian matrices")

    @staticmethod
    def _all_nan(like: Operand) -> DeviceMatrix:
        return like.full(like.layout, nan_of(like.dtype))
