"""Find and open a ScaLAPACK: Intel's from pip (64-bit integers), Debian's, or a site's own (32-bit integers).

The libraries are opened when the first sharded matrix needs them. They must match the MPI library that mpi4py has loaded. A
library in LD_PRELOAD, such as SLATE's ``libslate_scalapack_api.so``, comes first.
"""

from __future__ import annotations

import ctypes as C
import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ....core import libraries

_HINT = "pip install mkl mpich mpi4py, or apt install libscalapack-openmpi2.2 with an mpi4py built for Open MPI"
_MKL = "mkl_scalapack_ilp64"


class ScalapackMissing(RuntimeError):
    """No ScaLAPACK could be loaded; the message lists the attempts."""


@dataclass(frozen=True, eq=False)
class Library:
    """An open ScaLAPACK."""

    name: str
    integer: Any  # the ctypes type of a Fortran INTEGER
    dtype: Any  # the same for arrays
    world_only: bool = False  # it works on MPI_COMM_WORLD only
    _symbols: Any = field(default_factory=lambda: C.CDLL(None), repr=False)

    @property
    def largest(self) -> int:
        """The largest integer of its interface."""
        return int(np.iinfo(self.dtype).max)

    def symbol(self, name: str) -> Any:
        """A routine, from LD_PRELOAD first: all libraries share their symbols."""
        try:
            return getattr(self._symbols, name)
        except AttributeError:
            raise ScalapackMissing(f"scalapack: {self.name} has no {name.rstrip('_')}\nhint: {_HINT}") from None

    def call(self, name: str, *arguments: Any) -> None:
        """A Fortran call with int, bytes, array or ctypes arguments: all by reference, the lengths of strings at the end."""
        references: list[Any] = []
        strings = 0
        for value in arguments:
            if isinstance(value, np.ndarray):
                references.append(value.ctypes.data_as(C.c_void_p))
            elif isinstance(value, bytes):
                references.append(C.create_string_buffer(value))
                strings += 1
            elif isinstance(value, int):
                references.append(C.byref(self.integer(value)))
            else:
                references.append(C.byref(value))
        self.symbol(name)(*references, *[C.c_size_t(1)] * strings)


class Grid:
    """A BLACS grid of p x q ranks of a communicator. Creating it is collective."""

    def __init__(self, lib: Library, comm: Any, p: int, q: int, order: str) -> None:
        self._lib, self.p, self.q, self.order = lib, p, q, order
        integer = lib.integer
        context = integer(self._system(lib, comm))
        if lib.world_only:
            ranks = np.arange(p * q).reshape((p, q) if order == "R" else (q, p))
            places = np.asfortranarray(ranks if order == "R" else ranks.T).astype(lib.dtype)
            lib.symbol("Cblacs_gridmap")(
                C.byref(context), places.ctypes.data_as(C.c_void_p), integer(p), integer(p), integer(q)
            )
        else:
            lib.symbol("Cblacs_gridinit")(C.byref(context), C.c_char_p(order.encode()), integer(p), integer(q))
        self.context = int(context.value) if comm.rank < p * q else -1

    def close(self) -> None:
        if self.context >= 0:
            self._lib.symbol("Cblacs_gridexit")(self._lib.integer(self.context))

    def _system(self, lib: Library, comm: Any) -> int:
        MPI = comm.MPI
        if lib.world_only:
            same = MPI.Comm.Compare(comm.mpi, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT)
            if not same:
                raise ScalapackMissing(
                    f"scalapack: {lib.name} works on MPI_COMM_WORLD only, not on another communicator"
                    "\nhint: install mpich with pip in place of Open MPI: then any communicator works"
                )
            value = lib.integer()
            lib.symbol("Cblacs_get")(lib.integer(0), lib.integer(0), C.byref(value))
            return int(value.value)
        make = lib.symbol("Csys2blacs_handle")
        make.argtypes = [C.c_void_p if MPI._sizeof(MPI.Comm) == 8 else C.c_int]
        make.restype = lib.integer
        return int(make(MPI._handleof(comm.duplicate)))


def grid_of(comm: Any, p: int, q: int, order: str = "R") -> Grid:
    """The grid, created once for each communicator. The first call is collective."""
    key = ("blacs", p, q, order)
    if key not in comm.kept:
        comm.kept[key] = Grid(library(comm.MPI), comm, p, q, order)
    return comm.kept[key]  # type: ignore[no-any-return]


_OPEN: Library | None = None


def library(MPI: Any) -> Library:
    """The ScaLAPACK that matches the MPI library of mpi4py (``MPI`` is its module); opened once."""
    global _OPEN
    if MPI is None:
        raise ScalapackMissing(f"scalapack: the ranks must come from an mpi4py communicator\nhint: {_HINT}")
    if _OPEN is None:
        _OPEN = _open(MPI)
    return _OPEN


def missing() -> str:
    """ "" or why no ScaLAPACK can be used here."""
    if find_spec("mpi4py") is None:
        return f"mpi4py is not installed\nhint: {_HINT}"
    if _OPEN is not None or any(map(libraries.find, (_MKL, "scalapack-mpich", "scalapack-openmpi"))):
        return ""
    return f"no ScaLAPACK library was found\nhint: {_HINT}"


def _open(MPI: Any) -> Library:
    vendor = MPI.get_vendor()[0]
    family = "openmpi" if vendor == "Open MPI" else "mpich"  # MPICH, Intel MPI, MVAPICH and Cray share an interface
    # mpi4py hides the symbols of its MPI library, and ScaLAPACK must use the same library
    for path in (*libraries.loaded("libmpi.so*"), *libraries.loaded("libmpich*")):
        libraries.open_lazily(path)
    problems = []
    if libraries.find(_MKL):
        try:
            return _open_mkl(family)
        except OSError as error:
            problems.append(f"MKL: {error}")
    try:
        opened = libraries.load(f"scalapack-{family}", operation="scalapack", shared=True)
    except OSError as error:
        problems.append(str(error).partition("\n")[0])
        listed = "".join(f"\n  {line}" for line in problems)
        raise ScalapackMissing(f"scalapack: no library works with {vendor}:{listed}\nhint: {_HINT}") from None
    return Library(f"{Path(opened._name).name} with {vendor}", C.c_int32, np.int32)


def _open_mkl(family: str) -> Library:
    """Intel's, with 64-bit integers, which no size overflows. With Open MPI its BLACS takes no communicator (seen with 5.0)."""
    threads = os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "1"
    layer = ("mkl_sequential",) if threads == "1" else ("iomp5", "mkl_intel_thread")
    blacs = "mkl_blacs_openmpi_ilp64" if family == "openmpi" else "mkl_blacs_intelmpi_ilp64"
    folder = Path(libraries.find(_MKL)).parent  # all parts from one release
    for name in ("mkl_core", *layer, "mkl_intel_ilp64", blacs, _MKL):
        paths = sorted(folder.glob(f"lib{name}.so*"))
        if not paths:
            raise OSError(f"{folder} has no lib{name}")
        libraries.open_lazily(str(paths[0]))
    return Library(f"mkl (ILP64) with {family}", C.c_int64, np.int64, world_only=family == "openmpi")
