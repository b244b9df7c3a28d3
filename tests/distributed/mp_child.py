"""One rank of tests/distributed/test_cusolvermp.py: the engine on stand-in libraries, ranks that talk through files."""

import ctypes
import gc
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import stand_in_cupy
from sharded_gpu_checks import DTYPES, check_library, close, poisoned, positive, raised, random

import lapwing as lw
from lapwing.core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from lapwing.core.problem import REAL
from lapwing.distributed.backends.cusolvermp import exchange as cusolvermp_exchange
from lapwing.distributed.backends.cusolvermp import factor as cusolvermp_factor
from lapwing.distributed.backends.cusolvermp import routines as mp
from lapwing.distributed.backends.cusolvermp.blocks import Operand
from lapwing.distributed.backends.cusolvermp.nccl import runtime
from lapwing.distributed.backends.cusolvermp.polar import polar
from lapwing.distributed.backends.cusolvermp.session import open_session
from lapwing.distributed.layout import Axis, Layout
from lapwing.distributed.matrix import ShardedMatrix
from lapwing.distributed.ranks.protocol import Alone, MissingRanksError, RanksDisagreeError

CUDA_ARRAY = "lapwing.distributed.backends.cusolvermp.memory.CudaArray"
FOLDER = Path(os.environ["MOCK_FOLDER"])


def cholesky(session, a, upper=False):
    return cusolvermp_factor.factor(session, a, pos=True, upper=upper, operation="cholesky").triangle(a.layout)


def solve(session, a, b, pos, upper=False):
    return cusolvermp_factor.factor(session, a, pos=pos, upper=upper, operation="solve").solve(b)


def inv(session, a, pos, upper=False):
    return cusolvermp_factor.factor(session, a, pos=pos, upper=upper, operation="inv").inv(a.layout)


def slogdet(session, a, pos, upper=False):
    return cusolvermp_factor.factor(session, a, pos=pos, upper=upper, operation="slogdet").slogdet(destroy=True)


class FileRanks(Alone):
    """A Communicator over files."""

    patience = 30.0

    def __init__(self, rank, size, name="world"):
        self.rank, self.size, self._name, self._calls = rank, size, name, 0

    def allgather(self, value, operation="allgather"):
        self._calls += 1
        stem = f"{self._name}-{self._calls}"
        part = FOLDER / f"{stem}-{self.rank}.part"
        part.write_bytes(pickle.dumps(value))
        part.rename(FOLDER / f"{stem}-{self.rank}")
        values = []
        for rank in range(self.size):
            deadline = time.monotonic() + self.patience
            while not (FOLDER / f"{stem}-{rank}").exists():
                if time.monotonic() > deadline:
                    raise MissingRanksError(operation, (rank,), self.patience)
                time.sleep(2e-4)
            values.append(pickle.loads((FOLDER / f"{stem}-{rank}").read_bytes()))
        return values

    def broadcast(self, data, root=0):
        return self.allgather(data if self.rank == root else None)[root]

    def barrier(self):
        self.allgather(None)

    def split(self, color, key=0):
        told = self.allgather((color, key, self.rank))
        chosen = [r for _, r in sorted((k, r) for c, k, r in told if c == color)]
        return None if color is None else FileRanks(chosen.index(self.rank), len(chosen), f"{self._name}-{self._calls}.{color}")


class Freed:
    """Memory as a framework's allocator has it: it is somebody else's at once, nobody waits for the stream."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __del__(self):
        library().stand_in_free(ctypes.c_void_p(self.pointer))


def library():
    return runtime()._library


def allocate(count):
    limit = int(os.environ.get("MOCK_LIMIT", 1 << 30))
    if count > limit:
        raise MemoryError("no room")
    library().stand_in_allocate.restype = ctypes.c_void_p
    pointer = library().stand_in_allocate(ctypes.c_size_t(count))
    return pointer, Freed(pointer)


def open_now(*kinds):
    gc.collect()
    return [library().stand_in_open(kind.encode()) for kind in kinds]


def given(whole, layout, rank, row_major=True):
    rows, columns = layout.indices(rank)
    local = np.array(whole[np.ix_(rows, columns)], order="C" if row_major else "F")
    return Operand(local.ctypes.data, layout, local.dtype.name, row_major, local)


def whole(comm, result):
    """What all ranks hold together."""
    rows, columns = result.layout.local_shape(comm.rank)
    count = rows * columns * np.dtype(result.dtype).itemsize
    local = np.frombuffer(ctypes.string_at(result.pointer, count), result.dtype).reshape(rows, columns)
    found = np.zeros(result.layout.shape, result.dtype)
    for rank, block in enumerate(comm.allgather(local)):
        found[np.ix_(*result.layout.indices(rank))] = block
    return found


def layouts(shape, size):
    m, n = shape
    yield Layout.rows_of(shape, size)
    yield Layout.columns_of(shape, size)
    if size > 1:
        cuts = np.linspace(0, m, size + 1).astype(int) ** 2 // max(m, 1)  # uneven, and the first may be empty
        yield Layout(Axis.blocks(np.diff(cuts).tolist()), Axis.whole(n))
    if size % 2 == 0:
        yield Layout.blocks(shape, (2, size // 2))
        yield Layout.blocks(shape, (size // 2, 2), "C")


def check_positive(session, comm, dtype, n, layout, row_major):
    a, b = positive(dtype, n), random(dtype, n, 3, seed=1)
    sides = layout.of_shape((n, 3))
    for upper in (False, True):
        seen = given(poisoned(a, upper), layout, comm.rank, row_major)
        factor = whole(comm, cholesky(session, seen, upper=upper))
        lower = np.linalg.cholesky(a)
        close(np.triu(factor) if upper else np.tril(factor), lower.conj().T if upper else lower, n)
        x = whole(comm, solve(session, seen, given(b, sides, comm.rank), pos=True, upper=upper))
        close(x, np.linalg.solve(a, b), 10 * n)
        close(whole(comm, inv(session, seen, pos=True, upper=upper)), np.linalg.inv(a), 10 * n)
        made = cusolvermp_factor.factor(session, seen, pos=True, upper=upper, operation="factor")
        for _ in range(2):
            x = whole(comm, made.solve(given(b, sides, comm.rank, row_major)))
            close(x, np.linalg.solve(a, b), 10 * n)
        close(whole(comm, made.inv(layout)), np.linalg.inv(a), 10 * n)
        assert made.slogdet() == slogdet(session, seen, pos=True, upper=upper)
        sign, logdet = slogdet(session, seen, pos=True, upper=upper)
        assert sign == 1
        close(np.array(logdet, REAL[dtype]), np.linalg.slogdet(a)[1], n)
        w, v = mp.eigh(session, seen, upper=upper)
        close(w, np.linalg.eigvalsh(a), n)
        v = whole(comm, v)
        close(a @ v, v * w, 10 * n, np.abs(a).max())
        close(v.conj().T @ v, np.eye(n, dtype=dtype), 10 * n)
        k = min(n, 2)
        part, some = mp.eigh(session, seen, upper=upper, part=(n - k, k))
        close(part, w[n - k :], n)
        some = whole(comm, some)
        close(a @ some, some * part, 10 * n, np.abs(a).max())
        assert mp.eigh(session, seen, upper=upper, vectors=False)[1] is None


def check_general(session, comm, dtype, n, layout, row_major, svd):
    a, b = random(dtype, n, n) + 3 * np.eye(n, dtype=dtype), random(dtype, n, 2, seed=1)
    seen = given(a, layout, comm.rank, row_major)
    scale = 10 * n * np.linalg.cond(a)
    close(
        whole(comm, solve(session, seen, given(b, layout.of_shape((n, 2)), comm.rank), pos=False)),
        np.linalg.solve(a, b),
        scale,
    )
    close(whole(comm, inv(session, seen, pos=False)), np.linalg.inv(a), scale)
    for matrix in (a, a[::-1]):  # of either sign
        sign, logabs = slogdet(session, given(matrix, layout, comm.rank, row_major), pos=False)
        expected = np.linalg.slogdet(matrix)
        close(np.array(sign), expected[0], 10 * n)
        close(np.array(logabs, REAL[dtype]), expected[1], 10 * n)
    made = cusolvermp_factor.factor(session, seen, pos=False, operation="factor")
    found = made.slogdet()
    close(np.array(found[0]), np.linalg.slogdet(a)[0], 10 * n)
    x = made.solve(given(b, layout.of_shape((n, 2)), comm.rank))  # after the determinant, whose sign needs room of its own
    close(whole(comm, x), np.linalg.solve(a, b), scale)
    assert made.slogdet() == found
    for left in (False, True) if comm.size == 1 and n < 20 else ():
        tiny = a.dtype.type(1e-30 if left else 1)  # whose square is out of range
        u, p = (whole(comm, x) for x in polar(session, given(a * tiny, layout, comm.rank, row_major), left=left))
        close((p / tiny) @ u if left else u @ p, a, 20 * n)
        close(u.conj().T @ u, np.eye(n, dtype=dtype), 20 * n)
        assert (p == p.conj().T).all() and np.linalg.eigvalsh(p).min() > 0
    for m, k in ((n + 3, n), (n, n)):
        tall = random(dtype, m, k, seed=2)
        there = layout.of_shape((m, k))
        q, r = mp.qr(session, given(tall, there, comm.rank, row_major))
        q, r = whole(comm, q), np.triu(whole(comm, r))
        close(q @ r, tall, 10 * n)
        close(q.conj().T @ q, np.eye(k, dtype=dtype), 10 * n)
        sides = random(dtype, m, 2, seed=3)
        x = mp.lstsq(session, given(tall, there, comm.rank, row_major), given(sides, there.of_shape((m, 2)), comm.rank))
        expected = np.linalg.lstsq(tall, sides, rcond=None)[0]
        close(whole(comm, x), expected, 20 * n * np.linalg.cond(tall) ** (2 if m > k else 1))
        for matrix in (tall, tall.T) if svd else ():
            u, s, vh = mp.svd(session, given(matrix, layout.of_shape(matrix.shape), comm.rank, row_major))
            close(s, np.linalg.svd(matrix, compute_uv=False), 10 * n)
            u, vh = whole(comm, u), whole(comm, vh)
            close((u * s) @ vh, matrix, 10 * n)
            close(u.conj().T @ u, np.eye(k, dtype=dtype), 20 * n)


def check_failures(session, comm, n):
    layout = Layout.rows_of((n, n), comm.size)
    a = positive("float64", n)
    a[5, 5] = -1.0
    raised(NotPositiveDefiniteError, lambda: cholesky(session, given(a, layout, comm.rank)), minor=6, nonfinite=False)
    a[5, 5] = np.nan
    raised(NotPositiveDefiniteError, lambda: slogdet(session, given(a, layout, comm.rank), pos=True), nonfinite=True)
    raised(ConvergenceError, lambda: mp.eigh(session, given(a, layout, comm.rank)), nonfinite=True)
    b = np.ones((n, n))
    b[0, 0] = 2
    sides = given(b[:, :1].copy(), layout.of_shape((n, 1)), comm.rank)
    raised(SingularMatrixError, lambda: solve(session, given(b, layout, comm.rank), sides, pos=False), pivot=3)
    b[2, 1] = np.nan
    raised(SingularMatrixError, lambda: slogdet(session, given(b, layout, comm.rank), pos=False))


def check_jax(comm):
    """Blocks of JAX arrays, in memory of JAX's own allocator."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from lapwing.core.problem import Spec
    from lapwing.distributed.backends.cusolvermp.backend import CusolverMp
    from lapwing.distributed.backends.protocol import Part

    for dtype, layout in (
        ("float64", Layout.rows_of((13, 13), comm.size)),
        ("complex64", Layout.columns_of((9, 9), comm.size)),
    ):
        n = layout.shape[0]
        a, b = positive(dtype, n), random(dtype, n, 3, seed=1)
        sides = layout.of_shape((n, 3))

        def blocks(x, where):
            return Part(jax.numpy.asarray(x[np.ix_(*where.indices(comm.rank))]), where, comm)

        def run(function, a, b, dtype=dtype, **options):
            return CusolverMp().run(function.request(Spec(a.shape, dtype), **options), a, b, [])

        def all_of(block):
            found = np.zeros(block.layout.shape, block.local.dtype)
            for rank, part in enumerate(comm.allgather(np.asarray(block.local))):
                found[np.ix_(*block.layout.indices(rank))] = part
            return found

        shard = blocks(a, layout)
        close(all_of(run(lw.cholesky, shard, None)[0]), np.linalg.cholesky(a), n)
        close(all_of(run(lw.solve, shard, blocks(b, sides), assume="pos")[0]), np.linalg.solve(a, b), 10 * n)
        w, v = run(lw.eigh, shard, None, subset=slice(-2, None))
        v = all_of(v)
        close(a @ v, v * w, 10 * n, np.abs(a).max())
        assert np.isnan(all_of(run(lw.inv, blocks(-a, layout), None, assume="pos", on_fail="nan")[0])).all()
        assert (np.asarray(shard.local) == a[np.ix_(*layout.indices(comm.rank))]).all()


def check_sharded(comm):
    """The public calls on matrices whose blocks are on GPUs, of CuPy, of a library that is not known, and on the host."""
    stand_in_cupy.install()
    cusolvermp_factor._DIGIT = 4  # the numbers of 14 rows have two digits then
    n = 14
    layouts = [
        Layout.rows_of((n, n), comm.size),
        Layout.cyclic((n, n), 3, (1, comm.size)),
        Layout.columns_of((n, n), comm.size),
    ]
    kinds = [stand_in_cupy.array, stand_in_cupy.Plain, stand_in_cupy.Capsule, np.array]
    for i, kind in enumerate(kinds):
        engine = {"engine": "cusolvermp"} if kind is np.array or comm.size == 1 else {}
        results = {np.array: "numpy.ndarray", stand_in_cupy.array: "cupy.ndarray"}.get(kind, CUDA_ARRAY)
        check_library(comm, kind, DTYPES[(i + 1) % 4], layouts[i % 3], engine, stand_in_cupy.host, results, FOLDER)
    if comm.size > 1:  # a block on the host beside one on a GPU
        mixed = (np.array if comm.rank else stand_in_cupy.array)(np.ones((2, 2)))
        text = raised(RanksDisagreeError, lambda: ShardedMatrix.from_local(mixed, comm))
        assert "library: cupy on rank 0, numpy on ranks 1" in text


def main(rank, size, *what):
    comm = FileRanks(int(rank), int(size))
    session = open_session(comm, 0, allocate)
    if "answers" in what:
        newest = session.library.version >= 900
        cusolvermp_exchange._PORTION = 200 if comm.size == 2 else 1 << 28  # several messages, or one, between two ranks
        for n in (1, 3, 13, 40) if comm.size == 1 else (13,) if comm.size == 2 else (5,):
            for i, layout in enumerate(layouts((n, n), comm.size)):
                dtypes = DTYPES if comm.size == 1 else (DTYPES[(i + comm.size) % 4],)
                for dtype in dtypes if comm.size < 4 or i in (2, comm.size // 2 + 1) else ():
                    check_positive(session, comm, dtype, n, layout, row_major=i != 2)
                    check_general(session, comm, dtype, n, layout, i != 2, newest)
        check_failures(session, comm, 12)
    if "old" in what:  # 0.8
        layout = Layout.rows_of((20, 20), comm.size)
        for place in (0, 6, 19):  # whose own number is positive: only the factorisation tells
            a = positive("float64", 20)
            a[place, place] = 1e-3 if place else -1.0
            raised(NotPositiveDefiniteError, lambda a=a: cholesky(session, given(a, layout, comm.rank)), minor=place + 1)
        check_positive(session, comm, "float64", 20, Layout.rows_of((20, 20), comm.size), True)
        text = raised(
            NotImplementedError, lambda: mp.svd(session, given(np.eye(4), Layout.rows_of((4, 4), comm.size), comm.rank))
        )
        assert "0.8.0 has no gesvd" in text and ">=0.9" in text
    if "jax" in what:
        check_jax(comm)
    if "sharded" in what:
        check_sharded(comm)
        assert open_now("memory", "desc", "svd") == [0, 0, 0]
    if "descriptor" in what:  # one rank cannot make one: all say so, and none is left
        os.environ["MOCK_DESC"] = "0" if comm.rank == 1 else "1000"
        a = given(positive("float64", 40), Layout.rows_of((40, 40), comm.size), comm.rank)
        assert "a descriptor" in raised(RuntimeError, lambda: cholesky(session, a))
        assert open_now("desc") == [0]
    if "memory" in what:  # one rank has no room: all say so, none waits
        os.environ["MOCK_LIMIT"] = "3000" if comm.rank == 1 else "1000000"
        a = given(positive("float64", 40), Layout.rows_of((40, 40), comm.size), comm.rank)
        raised(MemoryError, lambda: cholesky(session, a))
    if "missing" in what:  # one rank has left: the other says so, and waits for none of its messages
        comm.barrier()
        comm.patience = 0.3
        a = given(positive("float64", 40), Layout.rows_of((40, 40), comm.size), comm.rank)
        if comm.rank == 0:
            raised(MissingRanksError, lambda: cholesky(session, a), missing=(1,))
            assert open_now("comm") == [0]
            assert "a rank was missing" in raised(RuntimeError, lambda: cholesky(session, a))
            session.close()  # waits for nobody
        print("done", flush=True)
        return
    session.release()
    assert session.allocate == session.runtime.allocate  # a framework's would keep an array
    gc.collect()
    assert open_now("memory", "desc", "svd") == [0, 0, 0], open_now("memory", "desc", "svd")
    comm.barrier()
    session.close()
    session.close()
    assert open_now("comm", "grid", "handle", "blas", "stream") == [0] * 5
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
