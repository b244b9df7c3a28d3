"""JAX arrays over processes that MPI started, one CPU device each: what XLA has no routine for goes to ScaLAPACK."""

from __future__ import annotations

import socket

import pytest

from distributed import harness

pytest.importorskip("jax")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_two_ranks():
    harness.need_scalapack()
    done = harness.ranks(2, "jax_mpi_cases.py", free_port())
    assert done.returncode == 0 and done.stdout.count("passed") == 2, done.stdout + done.stderr
