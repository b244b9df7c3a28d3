"""ELPA's eigensolvers on the blocks of ScaLAPACK: faster on many ranks, and for the low part of a spectrum.

ELPA needs both triangles of the matrix, square tiles, and a communicator with exactly the ranks of the grid.
"""

from __future__ import annotations

import ctypes as C
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ...core import libraries
from ...core.request import Request
from ..cost import Cost
from ..exchange import mirror
from ..ranks.protocol import Alone
from .protocol import Array, Backend, Part, Support, with_status
from .scalapack import spectra
from .scalapack.backend import Scalapack, call_of, supported
from .scalapack.routines import Blocks

_API = 20211125  # of the C interface: ELPA 2021.11 and later know it
_LETTER = {"float32": "f", "float64": "d", "complex64": "fc", "complex128": "dc"}
_ONE_STAGE, _TWO_STAGE = 1, 2


def missing() -> str:
    """ "" or why there is no ELPA here."""
    try:
        _library()
    except (OSError, RuntimeError) as error:
        return str(error)
    return ""


def eigh(
    a: Blocks, upper: bool, *, part: tuple[int, int] | None = None, vectors: bool = True
) -> tuple[np.ndarray, Blocks | None, int]:
    """As :func:`lapwing.distributed.backends.scalapack.routines.eigh`; a part must start at the low end. A is destroyed."""
    n = a.shape[0]
    first, count = part or (0, n)
    mirror(a.comm, a.local, a.cyclic, upper=upper)
    # the ranks of the grid alone; collective over all
    key = ("elpa", a.cyclic.grid, a.cyclic.order)
    if key not in a.comm.kept:
        a.comm.kept[key] = a.comm.split(0 if a.inside else None, a.comm.rank) or Alone()
    values, z = np.zeros(n, a.local.real.dtype), a.like(n, n)
    info = 0
    if a.inside:
        # all up to the last one that is needed; two stages pay only for a part
        info = _solve(
            a, z, values, first + count, _TWO_STAGE if 2 * (first + count) <= n else _ONE_STAGE, a.comm.kept[key].mpi, vectors
        )
    info = a.comm.status(abs(info))
    if info and a.local.real.dtype == np.float32:  # most builds leave it out, Debian's too
        raise NotImplementedError(f"elpa: this libelpa has no {a.local.dtype} (status -{info})\nhint: engine='scalapack'")
    values = a.comm.spread(values, 0, values.shape, values.dtype)[first : first + count].copy()
    return values, z.some_columns(first, count) if vectors else None, info


def _solve(a: Blocks, z: Blocks, values: np.ndarray, count: int, solver: int, comm: Any, vectors: bool) -> int:
    lib = _library()
    error = C.c_int()
    handle = lib.elpa_allocate(C.byref(error))
    place = a.cyclic.place(a.comm.rank)
    assert place is not None
    settings = {
        "na": a.shape[0],
        "nev": count,
        "local_nrows": max(a.local.shape[0], 1),
        "local_ncols": a.local.shape[1],
        "nblk": a.cyclic.rows.tile,
        "mpi_comm_parent": comm.py2f(),
        "process_row": place[0],
        "process_col": place[1],
    }
    try:
        for name, value in settings.items():
            lib.elpa_set_integer(handle, name.encode(), int(value), C.byref(error))
            if error.value:
                return error.value
        status = int(lib.elpa_setup(handle))
        if status:
            return status
        lib.elpa_set_integer(handle, b"solver", solver, C.byref(error))
        letter = _LETTER[a.local.dtype.name]
        pointers = [x.ctypes.data for x in ((a.local, values, z.local) if vectors else (a.local, values))]
        run = getattr(lib, f"elpa_{'eigenvectors' if vectors else 'eigenvalues'}_a_h_a_{letter}")
        run.argtypes = [C.c_void_p] * (len(pointers) + 1) + [C.POINTER(C.c_int)]
        run(handle, *pointers, C.byref(error))
        return error.value
    finally:
        lib.elpa_deallocate(handle, C.byref(C.c_int()))


@cache
def _library() -> Any:
    lib = libraries.load("elpa", operation="elpa", shared=True)
    lib.elpa_init.argtypes, lib.elpa_init.restype = [C.c_int], C.c_int
    lib.elpa_allocate.argtypes, lib.elpa_allocate.restype = [C.POINTER(C.c_int)], C.c_void_p
    lib.elpa_set_integer.argtypes = [C.c_void_p, C.c_char_p, C.c_int, C.POINTER(C.c_int)]
    lib.elpa_setup.argtypes, lib.elpa_setup.restype = [C.c_void_p], C.c_int
    lib.elpa_deallocate.argtypes = [C.c_void_p, C.POINTER(C.c_int)]
    if lib.elpa_init(_API) != 0:
        raise RuntimeError(f"{lib._name} does not have interface {_API}\nhint: install ELPA 2021.11 or later")
    return lib


# Its published gains are at many ranks; on 2 and 4 ranks it was level with ScaLAPACK (n = 2000 and 4000, 2026-11-15).
_RANKS = 16


class Elpa(Backend):
    name, what, takes = "elpa", "ELPA over MPI", "ShardedMatrix, DTensors, JAX arrays over processes"
    devices, operations, engines = ("cpu",), ("eigh", "eigvalsh"), ("elpa",)

    def __init__(self) -> None:
        self._tiles = Scalapack()  # it works on ScaLAPACK's blocks

    def missing(self, device: str) -> str:
        # without MPI its library is not even loaded
        return self._tiles.missing(device) or missing()

    def refuses(self, array: Array) -> str:
        return self._tiles.refuses(array)

    def support(self, request: Request, array: Array) -> Support:
        if request.operation not in self.operations:
            return Support(False, "elpa has eigh and eigvalsh only\nhint: engine='scalapack'")
        if request.engine == "auto" and not self._pays(request, array):
            return Support(
                False, "elpa is chosen only on many ranks, for eigenvectors of the smallest values in double precision"
            )
        return supported(request)

    def _pays(self, request: Request, array: Array) -> bool:
        part, n = request.part, array.shape[0]
        few = part is not None and part[0] == 0 and part[1] <= n // 4 and array.dtype in ("float64", "complex128")
        if not few or request.operation != "eigh" or array.size < _RANKS or array.kind == "jax" or missing():
            return False
        p, q = self._tiles.cost(request, array).grid
        return p * q >= _RANKS

    def cost(self, request: Request, array: Array) -> Cost:
        return replace(self._tiles.cost(request, array), engine="elpa")

    def prepare(self, request: Request, a: Part) -> Any:
        if reason := missing():
            raise RuntimeError(f"{request.name}: {reason}")
        return self._tiles.prepare(request, a)

    def run(self, request: Request, a: Part, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        if request.status:
            return with_status(lambda plain: self.run(plain, a, None, ranks), request, b)
        return spectra.eigh(call_of(request, a, ranks), None, eigh)
