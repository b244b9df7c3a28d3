"""Ranks that raise, die, do not come or ask for something else: nobody waits for ever."""

from __future__ import annotations

import time

import pytest

from distributed import harness

START = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import lapwing as lw
from lapwing.distributed import MissingRanksError, ShardedMatrix, patience
comm = MPI.COMM_WORLD
a = ShardedMatrix.scatter(4 * np.eye(30), comm)
"""


def fail(tmp_path, code: str, ranks: int = 3, launched: bool = True, within: float = 30):
    script = tmp_path / "script.py"
    script.write_text(START + code)
    start = time.monotonic()
    done = harness.launch("-n", ranks, script) if launched else harness.ranks(ranks, script, timeout=60)
    assert time.monotonic() - start < within
    return done


def test_a_rank_that_raises(tmp_path):
    done = fail(tmp_path, "if comm.rank == 1: raise KeyError('the reason')\nlw.cholesky(a)")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1 and "KeyError: 'the reason'" in done.stderr
    assert "rank 1 of 3 failed first" in done.stderr


def test_a_rank_that_raises_under_plain_mpiexec(tmp_path):
    done = fail(tmp_path, "if comm.rank == 1: raise KeyError('the reason')\nlw.cholesky(a)", launched=False)
    assert done.returncode != 0
    assert "KeyError: 'the reason'" in done.stderr and "rank 1 ended with KeyError; stopping the other ranks" in done.stderr


def test_a_rank_that_is_killed(tmp_path):
    done = fail(tmp_path, "if comm.rank == 2: os.kill(os.getpid(), signal.SIGKILL)\nlw.eigvalsh(a)")
    assert done.returncode == 128 + 9
    assert "ended by SIGKILL" in done.stderr


def test_ranks_that_do_not_come(tmp_path):
    """They are named by all that came; one that is late learns of it too, and the next call works."""
    code = """
from lapwing.core import mpi
mpi._LONG = 0.2
with patience(0.5):
    if comm.rank == 1: time.sleep(1.5)
    try: lw.slogdet(a)
    except MissingRanksError as error: assert error.missing == (1,) and "rank 1 did not come within 0.5 s" in str(error)
    else: raise SystemExit(f"rank {comm.rank} waited")
comm.Barrier()
a.gather()
print("named")
"""
    done = fail(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("named") == 3
    assert "slogdet: rank 0 has waited 0.2 s for rank 1; it gives up after 0.5 s" in done.stderr


@pytest.mark.parametrize("code", ["sys.exit(5)", "raise SystemExit('words')"])
def test_a_rank_that_leaves(tmp_path, code):
    done = fail(tmp_path, f"if comm.rank == 0: {code}\nlw.solve(a, np.ones(30))", ranks=2)
    assert done.returncode == (5 if "5" in code else 1)
    assert "rank 0 of 2 failed first" in done.stderr and ("5" in code or "words" in done.stderr)
