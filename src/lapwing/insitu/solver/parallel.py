"""The collective operations that the analyses need, over an mpi4py communicator or for a single process."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np


class Alone:
    """A single process: every reduction returns its argument."""

    rank = 0
    size = 1
    mpi = None
    usable = True

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values

    maximum = minimum = sum

    def abort(self, code: int = 1) -> None:
        """End the process at once, after flushing the standard streams."""
        _flush()
        os._exit(code)

    def close(self) -> None:
        pass


class Ranks:
    """The ranks of an mpi4py communicator. All methods but ``abort`` are collective."""

    def __init__(self, mpi: Any, owned: bool = False) -> None:
        from mpi4py import MPI

        self._MPI = MPI
        self.mpi = mpi
        self.rank = int(mpi.Get_rank())
        self.size = int(mpi.Get_size())
        self._owned = owned

    @property
    def usable(self) -> bool:
        """False once the solver has ended MPI."""
        return not self._MPI.Is_finalized()

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over the ranks, the same bits on each: one all-reduce."""
        return self._reduce(values, self._MPI.SUM)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        return self._reduce(values, self._MPI.MAX)

    def minimum(self, values: np.ndarray) -> np.ndarray:
        return self._reduce(values, self._MPI.MIN)

    def abort(self, code: int = 1) -> None:
        _flush()
        self.mpi.Abort(code)

    def close(self) -> None:
        if self._owned and not self._MPI.Is_finalized():
            self.mpi.Free()
            self._owned = False

    def _reduce(self, values: np.ndarray, operation: Any) -> np.ndarray:
        values = np.ascontiguousarray(values)
        result = np.empty_like(values)
        self.mpi.Allreduce(values, result, op=operation)
        return result


def open_comm(comm: Any) -> Alone | Ranks:
    """Wrap None or an mpi4py communicator; `Alone` and `Ranks` are returned as they are.

    An mpi4py communicator is duplicated, so that our messages never mix with the solver's.
    """
    if comm is None:
        return Alone()
    if isinstance(comm, Alone | Ranks):
        return comm
    if not hasattr(comm, "Allreduce"):
        raise TypeError(f"Hub: comm must be an mpi4py communicator or None, got {type(comm).__name__}")
    if comm.Get_size() == 1:
        return Alone()
    duplicate = comm.Dup()
    from mpi4py import MPI

    duplicate.Set_errhandler(MPI.ERRORS_RETURN)  # MPI errors in our calls become exceptions
    return Ranks(duplicate, owned=True)


def from_fortran(handle: int) -> Alone | Ranks:
    """The communicator of a Fortran handle, as ``MPI_Comm_c2f`` returns it; a negative handle means no MPI."""
    if handle < 0:
        return Alone()
    try:
        import mpi4py
    except ImportError:
        raise RuntimeError(
            "insitu_init: the solver passed an MPI communicator, but mpi4py is not installed\nhint: pip install mpi4py"
        ) from None
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False  # the solver starts and ends MPI
        mpi4py.rc.finalize = False
        mpi4py.rc.errors = "default"  # the solver's own error handler stays in place
    from mpi4py import MPI

    if not MPI.Is_initialized():
        raise RuntimeError(
            f"insitu_init: the solver passed an MPI communicator, but MPI is not initialised in the library that mpi4py uses"
            f" ({MPI.Get_library_version().splitlines()[0].strip()})"
            "\nhint: the solver and mpi4py must use the same MPI library"
        )
    return open_comm(MPI.Comm.f2py(handle))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
