"""JAX arrays over processes that MPI started, one CPU device each: what XLA has no routine for goes to ScaLAPACK."""

from __future__ import annotations

import pytest

from distributed import harness

pytest.importorskip("jax")


def test_two_ranks():
    harness.need_scalapack()
    done = harness.ranks(2, "jax_mpi_cases.py")
    assert done.returncode == 0 and done.stdout.count("passed") == 2, done.stdout + done.stderr
