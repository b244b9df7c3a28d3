"""ShardedMatrix on 1, 2, 4 and 6 ranks: every answer is that of one device. The checks themselves are in mpi_checks.py."""

from __future__ import annotations

import pytest

from distributed import harness


@pytest.mark.parametrize("ranks", [1, 2, 4, 6])
def test_answers_are_those_of_one_device(ranks):
    harness.need_scalapack()
    done = harness.ranks(ranks, harness.HERE / "mpi_checks.py", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 12, done.stdout


def test_matrices_move_without_scalapack():
    """Blocks, files and refusals need MPI alone; a call then names what to install."""
    code = """
import sys
import numpy as np
import lapwing as lw
from lapwing.engines import scalapack_library
scalapack_library._mkl_folders = lambda: iter(())
scalapack_library._SITE = {"mpich": (), "openmpi": ()}
import mpi_checks
mpi_checks.check_moves()
try:
    lw.cholesky(lw_matrix := mpi_checks.sharded(np.eye(40), mpi_checks.Layout.rows_of((40, 40), mpi_checks.P)))
except scalapack_library.ScalapackMissing as error:
    assert "pip install mkl mpich mpi4py" in str(error)
    print("refused")
"""
    done = harness.ranks(2, "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["refused"] * 2
