"""Run by two processes with two CPU devices each: ``python jax_processes_cases.py rank port``. Prints "passed"."""

from __future__ import annotations

import sys

import jax

jax.config.update("jax_enable_x64", True)
RANK, PORT = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=2, process_id=RANK, initialization_timeout=60)

import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import lapwing as lw  # noqa: E402
from lapwing import NotPositiveDefiniteError, frameworks  # noqa: E402
from lapwing.compat import jaxmg  # noqa: E402


def call(name, a, *more, **options):
    assert frameworks.entry(a, name).sharded
    return getattr(lw, name)(a, *more, **options)


def put(a, mesh, spec):
    return jax.make_array_from_callback(a.shape, NamedSharding(mesh, spec), lambda index: a[index])


def compare(x, expected, n):
    limit = 10 * n * np.finfo(float).eps * max(1, np.abs(expected).max())
    for part in x.addressable_shards:
        assert np.abs(np.asarray(part.data) - expected[part.index]).max() <= limit


def main():
    assert jax.device_count() == 4 and jax.local_device_count() == 2
    n = 44
    random = np.random.default_rng(3)
    x = random.standard_normal((n, n))
    a, b = x @ x.T / n + np.eye(n), random.standard_normal((n, 2))
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    held = put(a, mesh, P("x", "y"))
    compare(call("solve", held, b, assume="pos"), np.linalg.solve(a, b), n)
    l = call("cholesky", held)
    compare(l, np.linalg.cholesky(a), n)
    assert l.sharding.is_equivalent_to(held.sharding, 2)
    w, v = call("eigh", held)
    assert v.sharding.is_equivalent_to(held.sharding, 2)
    compare(w, np.linalg.eigvalsh(a), n)
    try:  # processes of one machine are not counted as machines
        jaxmg.determine_distributed_setup()
    except ValueError as error:
        assert "2 processes on 1 machines" in str(error), error
    else:
        raise AssertionError("two processes with two devices each were accepted")
    bad = a.copy()
    bad[20, 20] = -1
    try:
        call("cholesky", put(bad, mesh, P("x", "y")))
    except NotPositiveDefiniteError as error:
        assert error.minor == 21
    else:
        raise AssertionError("no error on this process")
    print("passed", flush=True)


main()
jax.distributed.shutdown()
