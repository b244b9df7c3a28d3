"""ScaLAPACK as a backend: which calls it takes, and what they cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ....core.request import Request
from ...cost import CPU_CLUSTER, Cost
from ..gathered import INSTALL
from ..protocol import DETERMINANTS, Array, Backend, Part, Support, on_tiles, with_status
from . import library, spectra, systems
from .moves import Call, tiles_for

OPERATIONS: dict[str, Any] = {
    "cholesky": systems.cholesky,
    "factor": systems.factor,
    "inv": systems.inv,
    "det": systems.det,
    "slogdet": systems.slogdet,
    "solve": systems.solve,
    "eigh": spectra.eigh,
    "eigvalsh": spectra.eigh,
    "lstsq": spectra.lstsq,
    "qr": spectra.qr,
    "svd": spectra.svd,
    "svdvals": spectra.svdvals,
    "polar": spectra.polar,
}
_ONE_BLOCK = (
    "takes JAX matrices that are split over processes with one device each, one block for each process, outside of traced code"
)


class Scalapack(Backend):
    name, what = "scalapack", "ScaLAPACK over MPI, one process per rank"
    takes = "ShardedMatrix, DTensors, JAX arrays over processes"
    devices, operations, engines = ("cpu",), tuple(OPERATIONS), ("scalapack",)

    def missing(self, device: str) -> str:
        return library.missing()

    def refuses(self, array: Array) -> str:
        if array.device != "cpu":
            return "takes no matrices on GPUs"
        if not array.blocks:
            return _ONE_BLOCK
        if array.mpi:
            return ""
        if array.kind == "dtensor":
            return f"needs ranks that MPI started\nhint: {INSTALL}"
        why = library.missing() or "MPI did not start the processes"
        return f"is not usable here: {why}\nhint: pip install mkl mpich mpi4py, and start with lapwing launch -n 4 script.py"

    def support(self, request: Request, array: Array) -> Support:
        if array.kind == "jax" and request.engine == "auto" and (request.b or inside_xla(request, array)):
            return Support(False, "the call stays inside XLA, which has derivatives")
        return supported(request)

    def cost(self, request: Request, array: Array) -> Cost:
        layout = array.layout
        if layout is None or array.kind == "spec":
            tile = None if layout is None else layout.rows.tile or None
            return on_tiles(request, array, array.grid or array.size, CPU_CLUSTER, tile)
        entered = request.operation in ("solve", "inv", "factor", *DETERMINANTS)
        # as the calls enter: see systems.py and spectra.py
        permute = request.operation in ("eigh", "eigvalsh") or (
            entered and request.operation != "factor" and not request.status
        )
        tiles = tiles_for(layout, SimpleNamespace(size=array.size), "factor" if entered else request.operation, permute)
        return on_tiles(request, array, tiles.grid, CPU_CLUSTER, tiles.rows.tile or None)

    def prepare(self, request: Request, a: Part) -> tuple[bool, bool]:
        # raises here if this rank finds no library, so that the others do not wait for it
        library.library(getattr(a.ranks, "MPI", None))
        flags = a.local.flags
        return flags.c_contiguous, flags.f_contiguous

    def run(self, request: Request, a: Part, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        if request.status:
            return with_status(lambda plain: self.run(plain, a, None, ranks), request, b)
        return OPERATIONS[request.operation](call_of(request, a, ranks), b)  # type: ignore[no-any-return]


def call_of(request: Request, a: Part, orders: list[tuple[bool, bool]]) -> Call:
    """``orders``: whether the block of each rank is row-major, and whether it is column-major."""
    turned = all(row for row, _ in orders) and not all(column for _, column in orders)
    return Call(request, a, a.dtype, turned)


def supported(request: Request) -> Support:
    """Whether the library has a routine for the call."""
    if request.b:
        hint = "with L = lapwing.factor(b).l, call eigh of L^-1 A L^-H (two triangular solves)"
        return Support(False, f"b= is not supported for sharded matrices\nhint: {hint}")
    if request.certify:
        return Support(False, "certify= is for iterations, and sharded matrices are solved directly")
    if request.full_matrices:
        hint = "full_matrices=False, or qr(mode='complete') of U"
        return Support(False, f"full_matrices=True is not supported for sharded matrices\nhint: {hint}")
    return Support(True)


def inside_xla(request: Request, array: Array) -> bool:
    """Whether XLA is as good for this call, and has derivatives; its LU is slower than a library's."""
    from ..xla.backend import is_tall

    systems = request.operation in ("cholesky", "inv", "factor", *DETERMINANTS) or (
        request.operation == "solve" and request.assume == "pos"
    )
    rectangular = request.operation in ("qr", "svd", "svdvals", "polar", "lstsq")
    return systems or request.status or (rectangular and is_tall(array.placement, array.shape))
