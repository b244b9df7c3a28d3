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
    done = fail(tmp_path, "if comm.rank == 1: raise TypeError('the reason\\nmore\\nhint: a way')\nlw.cholesky(a)")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1 and "TypeError: the reason\nmore" in done.stderr
    assert done.stderr.endswith("rank 1 of 3 failed first: TypeError: the reason\nhint: a way\n")


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
from lapwing.distributed.ranks import mpi
mpi._LONG = 0.2
with patience(0.5):
    if comm.rank == 1: time.sleep(1.5)
    try: lw.slogdet(a)
    except MissingRanksError as error: assert error.missing == (1,) and "rank 1 is missing after 0.5 s" in str(error)
    else: raise SystemExit(f"rank {comm.rank} waited")
comm.Barrier()
a.gather()
print("named")
"""
    done = fail(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("named") == 3
    assert "slogdet: rank 0 has waited 0.2 s for rank 1; it gives up after 0.5 s" in done.stderr


def test_no_call_waits_for_ever(tmp_path):
    """The first matrix on a communicator, a broadcast, a sum and an exchange of blocks, each without rank 1."""
    code = """
from lapwing.distributed import Layout
from lapwing.distributed.exchange import exchange

def missing(number, work):
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(1.2)  # longer than the others wait
    else:
        start = time.monotonic()
        try:
            with patience(0.4): work()
        except MissingRanksError as error: print(f"case {number}: {error.missing}", flush=True)
        assert time.monotonic() - start < 1.0, number
    comm.Barrier()

ranks, other = a.ranks, comm.Dup()
missing(1, lambda: ShardedMatrix.scatter(4 * np.eye(3), other))
missing(2, lambda: ranks.broadcast(b"word" if comm.rank == 1 else None, 1))
missing(3, lambda: ranks.sum(np.ones(3)))
source, target = Layout.rows_of((30, 30), 2), Layout.columns_of((30, 30), 2)
missing(4, lambda: exchange(ranks, np.ones((15, 30)), source, np.empty((30, 15)), target))
os._exit(0)  # the calls that were given up are still on their way
"""
    done = fail(tmp_path, code, ranks=2)
    assert done.stdout.splitlines() == ["case 1: ()", "case 2: ()", "case 3: ()", "case 4: (1,)"], done.stdout + done.stderr


@pytest.mark.parametrize("code", ["sys.exit(5)", "raise SystemExit('words')"])
def test_a_rank_that_leaves(tmp_path, code):
    done = fail(tmp_path, f"if comm.rank == 0: {code}\nlw.solve(a, np.ones(30))", ranks=2)
    assert done.returncode == (5 if "5" in code else 1)
    assert "rank 0 of 2 failed first" in done.stderr and ("5" in code or "words" in done.stderr)


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("os._exit(5)", 5, "rank 0 of 2 failed first: os._exit(5)"),
        ("os._exit(0)", 1, "rank 0 of 2 left with os._exit(0), and rank 1 did not reach the end of the script\nhint: "),
    ],
)
def test_a_rank_that_leaves_past_the_end(tmp_path, how, code, words):
    script = tmp_path / "script.py"
    script.write_text(
        f"import ctypes, os, time\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 0: {how}\nMPI.COMM_WORLD.Barrier()"
    )
    done = harness.launch("-n", 2, script)
    assert done.returncode == code and words in done.stderr


def test_ends_that_are_good(tmp_path):
    """Children that are forked, other programs, and all ranks at once may end with os._exit."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nchild = os.fork()\nif not child: os._exit(7)\nos.waitpid(child, 0)\n"
        "if os.environ['RANK'] == '1': os.execvp('true', ['true'])\nos._exit(0)"
    )
    done = harness.launch("-n", 3, script)
    assert done.returncode == 0 and not done.stderr, done.stderr
