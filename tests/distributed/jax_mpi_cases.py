"""One process of several with one CPU device each: ``jax_mpi_cases.py`` under MPI, or ``port rank size`` for cuSOLVERMp's
stand-in libraries, for which the host's memory is a device's. Prints "passed"."""

from __future__ import annotations

import logging
import sys

import jax

jax.config.update("jax_enable_x64", True)
GPU = len(sys.argv) > 2
if GPU:
    RANK, SIZE = int(sys.argv[2]), int(sys.argv[3])
else:
    from mpi4py import MPI

    RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
if GPU:
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=SIZE, process_id=RANK, initialization_timeout=60)
else:
    jax.distributed.initialize(cluster_detection_method="mpi4py", initialization_timeout=60)

import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import lapwing as lw  # noqa: E402
from lapwing.distributed.fronts import jax as jax_front  # noqa: E402


def put(a, mesh, spec):
    return jax.make_array_from_callback(a.shape, NamedSharding(mesh, spec), lambda index: a[index])


def whole(x):
    if not x.is_fully_addressable and not x.sharding.is_fully_replicated:
        x = jax.jit(lambda x: x, out_shardings=NamedSharding(x.sharding.mesh, P()))(x)
    return np.asarray(x.addressable_data(0))


def close(x, expected, n):
    x = x if isinstance(x, np.ndarray) else whole(x)
    assert x.shape == expected.shape and x.dtype == expected.dtype
    assert np.abs(x - expected).max() <= 100 * n * np.finfo(float).eps * max(1, np.abs(expected).max())


def main():
    n, said = 12, []
    log = logging.getLogger("lapwing")
    log.setLevel(logging.INFO)
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())
    random = np.random.default_rng(3)
    x = random.standard_normal((n, n))
    a, b = x @ x.T / n + np.eye(n), random.standard_normal((n, 2))
    for order, spec in (([0, 1], P("x", None)), ([1, 0], P(None, "x"))):
        mesh = Mesh(np.array([jax.devices()[i] for i in order]), ("x",))
        held, other = put(a, mesh, spec), put(x, mesh, spec)
        if RANK == 0:  # one process alone may ask, also before they have ever talked
            outside = "cusolvermp" if GPU else "scalapack"
            assert lw.explain(lw.eigh, held).engine == lw.explain(lw.solve, other, b).engine == outside
            assert lw.explain(lw.cholesky, held).engine == lw.explain(lw.solve, held, b, assume="pos").engine == "xla"
            assert lw.explain(lw.eigh, held, engine="sharded").engine == "xla"
            assert lw.explain(lw.cholesky, held, engine=outside).engine == outside
        w, v = lw.eigh(held)
        assert v.sharding.is_equivalent_to(held.sharding, 2) and w.sharding.is_fully_replicated
        close(w, np.linalg.eigvalsh(a), n)
        close(a @ whole(v), whole(v) * whole(w), n)
        some = lw.eigh(held, subset=slice(0, 3))  # 3 columns cannot be cut in two: they are whole on each device
        close(a @ whole(some.eigenvectors), whole(some.eigenvectors) * whole(some.eigenvalues), n)
        close(lw.eigvalsh(held), whole(w), n)
        for sides in (b, b[:, 0].copy(), put(b, mesh, spec)):
            found = lw.solve(other, jax.numpy.asarray(sides) if isinstance(sides, np.ndarray) else sides)
            close(found, np.linalg.solve(x, sides if isinstance(sides, np.ndarray) else b), n * np.linalg.cond(x))
        assert found.sharding.is_equivalent_to(put(b, mesh, spec).sharding, 2)
        q, r = lw.qr(other)
        close(whole(q) @ whole(r), x, n)
        u, s, vh = lw.svd(other)
        close(whole(u) * whole(s) @ whole(vh), x, n)
        engine = "cusolvermp" if GPU else "scalapack"
        close(lw.cholesky(held, engine=engine), np.linalg.cholesky(a), n)
        try:
            lw.cholesky(put(-a, mesh, spec), engine=engine)
        except lw.NotPositiveDefiniteError as error:
            assert error.minor == 1
        else:
            raise AssertionError("no error on this process")
    assert RANK or any(engine in line for line in said), said
    assert not any("gathered" in line for line in said), said
    print("passed", flush=True)


if GPU:
    jax_front.on_gpu = lambda block: True
main()
jax.distributed.shutdown()
