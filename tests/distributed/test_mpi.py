"""ShardedMatrix on 1, 2, 4 and 6 ranks: every answer is that of one device. The checks themselves are in mpi_checks.py."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from distributed import harness
from lapwing.distributed import Layout
from lapwing.distributed.backends.scalapack import routines as scalapack
from lapwing.distributed.backends.scalapack.library import Library


@pytest.mark.parametrize("ranks", [1, 2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 6))])
def test_answers_are_those_of_one_device(ranks):
    harness.need_scalapack()
    done = harness.ranks(ranks, harness.HERE / "mpi_checks.py", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 19, done.stdout


def test_matrices_move_without_scalapack():
    """Blocks, files and refusals need MPI alone; a call then names what to install."""
    code = """
import numpy as np
import lapwing as lw
from lapwing.core import libraries
from lapwing.distributed.backends.scalapack import library as scalapack_library
libraries.find = lambda name: ""  # nothing is installed, and the system knows nothing either
libraries._OTHERS = {name: ("libnonesuch.so",) for name in libraries._OTHERS}
import mpi_checks
mpi_checks.check_moves()
try:
    lw.cholesky(mpi_checks.sharded(np.eye(40), mpi_checks.Layout.rows_of((40, 40), mpi_checks.P)))
except scalapack_library.ScalapackMissing as error:
    assert "pip install mkl mpich mpi4py" in str(error)
    print("refused")
"""
    done = harness.ranks(2, "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refused") == 2


def test_what_32_bits_cannot_count_is_refused(monkeypatch):
    """Such a library would wrap around and say nothing: its own answer for n = 70000 on 2 x 2 ranks is 2.6 million numbers."""
    small, large = Library("a site's", ctypes.c_int32, np.int32), Library("mkl", ctypes.c_int64, np.int64)

    class Reached(Exception):
        pass

    def stop(*_, **__):
        raise Reached

    monkeypatch.setattr(scalapack, "_syevd", stop)
    monkeypatch.setattr(scalapack, "_run", stop)
    for n, library, work, refused in (
        (70000, small, scalapack.eigh, True),
        (70000, large, scalapack.eigh, False),
        (60000, small, scalapack.eigh, False),
        (70000, small, scalapack.potrf, False),
        (100000, small, scalapack.potrf, True),
    ):
        monkeypatch.setattr(scalapack, "library", lambda _, library=library: library)
        monkeypatch.setattr(scalapack, "_matrix", lambda a: ())
        layout = Layout.cyclic((n, n), 64, (2, 2))
        blocks = scalapack.Blocks(np.empty((0, 0)), layout, layout, SimpleNamespace(MPI=None, rank=0))
        with pytest.raises(MemoryError if refused else Reached, match="counts in 32 bits" if refused else None):
            work(blocks, False)
