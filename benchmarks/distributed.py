"""Sharded matrices on MPI ranks: what our layer costs over the engine itself, beside SciPy on the same cores, and its memory.

    python benchmarks/distributed.py --out benchmarks/results/distributed-cpu.json
    python benchmarks/distributed.py --only solve,scipy -n 2000

Ranks are started by ``lapwing launch``; each case is checked before it is timed, and the minimum of the repeats counts.

    solve, cholesky, inv, eigh   the engine's routines on blocks that already lie in its layout ("raw"), our call on the same
                                 blocks ("laid out", and with overwrite=True, as the raw call has it), and our call on blocks of
                                 rows ("rows", with the way there and back)
    scipy                        cho_factor and cho_solve in one process with as many threads as there are ranks, in turn with
                                 the ranks
    memory                       bytes beyond the matrix, over the bytes of its shard, at the peak of a call
    xla                          the factor of a JAX array split by columns over as many CPU devices of one process as there are
                                 ranks, in turn with jnp.linalg.cholesky on the same cores; medians, n = 4096
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

CASES = ("solve", "cholesky", "inv", "eigh", "scipy", "memory", "xla")
COLUMNS = 8


def matrix(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Positive definite with a known form: 2^-|i-j|, at least 2^-60, and a heavier diagonal.

    Smaller numbers end below the smallest normal one, which processors multiply at a fraction of their speed.
    """
    return 2.0 ** -np.minimum(np.abs(rows[:, None] - columns), 60) + (rows[:, None] == columns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=4000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES), help=f"cases by commas (default: {','.join(CASES)})")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    only = options.only.split(",")
    wrong = set(only) - set(CASES)
    if wrong:
        parser.error(f"unknown case {', '.join(sorted(wrong))}; use {', '.join(CASES)}")
    figures: dict[str, dict[str, float]] = {}
    for case in only:
        if case == "scipy":
            # in turn, so that both meet the same machine
            before, ours, after = peer(options), ranks(options, "solve"), peer(options)
            best = min(before, after)
            figures[case] = {"scipy": best, "ours": ours["rows"], "speed over scipy": best / ours["rows"]}
        elif case == "xla":
            figures[case] = devices(options)
        elif case == "memory":
            figures[case] = {
                f"{name}, {kind}": ranks(options, f"memory:{name}:{kind}")["copies"]
                for name in ("solve", "cholesky")
                for kind in ("laid out", "rows")
            }
        else:
            told = ranks(options, case)
            raw = told["raw"]
            figures[case] = told | {f"{kind} over raw": told[kind] / raw for kind in told if kind != "raw"}
        print(case, {k: round(v, 4) for k, v in figures[case].items()}, flush=True)
    if options.out:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.processor() or platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
            "n": options.n,
            "ranks": options.ranks,
            "repeat": options.repeat,
            "columns of b": COLUMNS,
        }
        options.out.write_text(json.dumps({"about": about, "seconds and ratios": figures}, indent=1) + "\n")
    return 0


def ranks(options: argparse.Namespace, case: str) -> dict[str, float]:
    here = [str(Path(__file__).resolve()), "-n", str(options.n), "--repeat", str(options.repeat), "--inside", case]
    line = [sys.executable, "-m", "lapwing", "launch", "-n", str(options.ranks), "--threads", "1", *here]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def peer(options: argparse.Namespace) -> float:
    threads = {name: str(options.ranks) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    here = [sys.executable, __file__, "-n", str(options.n), "--repeat", str(options.repeat), "--inside", "scipy"]
    done = subprocess.run(here, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | threads)
    return float(json.loads(done.stdout)["scipy"])


def devices(options: argparse.Namespace) -> dict[str, float]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={options.ranks}"
    here = [sys.executable, __file__, "--repeat", str(options.repeat), "--inside", "xla"]
    done = subprocess.run(here, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"XLA_FLAGS": flags})
    told: dict[str, float] = json.loads(done.stdout)
    return told


def inside(options: argparse.Namespace) -> int:
    if options.inside == "xla":
        print(json.dumps(with_jax(4096, options.repeat)))
        return 0
    if options.inside == "scipy":
        print(json.dumps({"scipy": with_scipy(options.n, options.repeat)}))
        return 0
    from mpi4py import MPI

    if options.inside.startswith("memory"):
        _, name, kind = options.inside.split(":")
        told = {"copies": memory(options.n, name, kind)}
    else:
        told = times(options.n, options.repeat, options.inside)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(told), flush=True)
    return 0


def with_scipy(n: int, repeat: int) -> float:
    from scipy.linalg import cho_factor, cho_solve

    a, b = matrix(np.arange(n), np.arange(n)), np.ones((n, COLUMNS))

    def work() -> np.ndarray:
        x: np.ndarray = cho_solve(cho_factor(a, lower=True, check_finite=False), b, check_finite=False)
        return x

    assert np.abs(a @ work() - b).max() < 1e-10
    best = np.inf
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def with_jax(n: int, repeat: int) -> dict[str, float]:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import lapwing as lw

    jax.config.update("jax_enable_x64", True)
    a = matrix(np.arange(n), np.arange(n))
    whole = jax.device_put(a, jax.devices()[0])
    split = jax.device_put(a, NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec(None, "x")))
    calls = {"jnp": partial(jax.jit(jax.numpy.linalg.cholesky), whole), "ours": partial(lw.cholesky, split)}
    l = np.asarray(calls["ours"]())
    assert np.abs(l @ l.T - a).max() < 10 * n * np.finfo(float).eps
    taken: dict[str, list[float]] = {kind: [] for kind in calls}
    for turn in range(2 * repeat + 1):
        for kind, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if turn:  # the first compiles
                taken[kind].append(time.perf_counter() - start)
    best = {kind: median(found) for kind, found in taken.items()}
    return best | {"speed over jnp": best["jnp"] / best["ours"]}


def times(n: int, repeat: int, case: str) -> dict[str, float]:
    from mpi4py import MPI

    import lapwing as lw
    from lapwing.distributed import Layout, ShardedMatrix
    from lapwing.distributed.backends.scalapack import routines as scalapack
    from lapwing.distributed.backends.scalapack.routines import Blocks
    from lapwing.distributed.ranks.protocol import open_communicator

    comm = open_communicator(MPI.COMM_WORLD)
    if case == "eigh":
        n //= 2
    laid_out = scalapack.default_layout(comm, (n, n), case)
    b = np.ones((n, COLUMNS))
    by_rows = Layout.rows_of((n, n), comm.size)
    mine = {
        kind: ShardedMatrix.from_function((n, n), float, matrix, MPI.COMM_WORLD, layout=layout)
        for kind, layout in (("laid out", laid_out), ("rows", by_rows))
    }
    fortran = np.asfortranarray(mine["laid out"].local)
    mine["laid out"] = ShardedMatrix(fortran, laid_out, MPI.COMM_WORLD)
    right = {
        "laid out": ShardedMatrix.from_function(b.shape, float, lambda i, j: np.ones((len(i), len(j))), MPI.COMM_WORLD),
        "rows": ShardedMatrix.from_function(b.shape, float, lambda i, j: np.ones((len(i), len(j))), MPI.COMM_WORLD),
    }

    def raw(local: np.ndarray) -> None:
        x = Blocks(local, laid_out, laid_out, comm)
        if case == "eigh":
            scalapack.eigh(x, False)
            return
        assert scalapack.potrf(x, False) == 0
        if case == "solve":
            columns = Blocks.empty(Layout.cyclic(b.shape, (laid_out.rows.tile, COLUMNS // laid_out.grid[1]), laid_out.grid),
                                   float, comm)  # fmt: skip
            columns.local[...] = 1
            scalapack.potrs(x, columns, False)
        elif case == "inv":
            scalapack.potri(x, False)

    def ours(a: ShardedMatrix, kind: str, overwrite: bool = False) -> object:
        if case == "solve":
            return lw.solve(a, right[kind], assume="pos", overwrite=overwrite)
        if case == "cholesky":
            return lw.cholesky(a, overwrite=overwrite)
        if case == "inv":
            return lw.inv(a, assume="pos", overwrite=overwrite)
        return lw.eigh(a, overwrite=overwrite)

    if case == "solve":
        whole = matrix(np.arange(n), np.arange(n))
        for kind in mine:
            x = ours(mine[kind], kind).gather(None)  # type: ignore[attr-defined]
            assert np.abs(whole @ x - b).max() < 1e-10
        del whole
    best: dict[str, float] = {}
    scratch = fortran.copy(order="F")
    for _ in range(repeat):
        for kind in ("raw", "overwrite", "laid out", "rows"):
            if kind in ("raw", "overwrite"):
                scratch[...] = fortran
            comm.barrier()
            start = time.perf_counter()
            if kind == "raw":
                raw(scratch)
            elif kind == "overwrite":
                ours(ShardedMatrix(scratch, laid_out, MPI.COMM_WORLD), "laid out", True)
            else:
                ours(mine[kind], kind)
            comm.barrier()
            best[kind] = min(best.get(kind, np.inf), time.perf_counter() - start)
    return best


def memory(n: int, name: str, kind: str) -> float:
    """Peak of the process during one call, beyond what it had before, in shards of the matrix; the worst rank."""
    from mpi4py import MPI

    import lapwing as lw
    from lapwing.distributed import Layout, ShardedMatrix
    from lapwing.distributed.backends.scalapack import routines as scalapack

    comm = MPI.COMM_WORLD
    ranks = ShardedMatrix.scatter(np.eye(2), comm).ranks

    def run(size: int) -> tuple[int, int]:
        layout = (
            scalapack.default_layout(ranks, (size, size), name)
            if kind == "laid out"
            else Layout.rows_of((size, size), comm.size)
        )
        a = ShardedMatrix.from_function(
            (size, size), float, lambda i, j: np.equal.outer(i, j).astype(float), comm, layout=layout
        )
        if kind == "laid out":
            a = ShardedMatrix(np.asfortranarray(a.local), layout, comm)
        before = now()
        if name == "solve":
            lw.solve(a, np.ones(size), assume="pos")
        else:
            lw.cholesky(a)
        return before, a.local.nbytes

    run(500)  # libraries, buffers of MPI
    before, shard = run(n)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return float(comm.allreduce((peak - before) / shard, op=MPI.MAX))


def now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
