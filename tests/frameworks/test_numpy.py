"""NumPy: every memory layout, and good manners of the native core (threads, fork, Ctrl-C)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, other_triangle, poison, residual, spd
from lapwing.core.native import native

needs_native = pytest.mark.skipif(native is None, reason="the native core is not built")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_layouts(dtype, upper):
    a = spd((6, 9, 9), dtype)
    expected = lw.cholesky(a, upper=upper)
    tolerance = 90 * np.finfo(dtype).eps * np.abs(expected).max()
    readonly = a.copy()
    readonly.flags.writeable = False
    layouts = {
        "Fortran order": np.asfortranarray(a),
        "transposed": np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
        "strided": np.repeat(a, 2, 0)[::2],
        "reversed": a[::-1][::-1],
        "inner stride": np.repeat(a, 2, -1)[..., ::2],
        "broadcast": np.broadcast_to(a, (2, *a.shape)),
        "read-only": readonly,
        "byte-swapped": a.astype(a.dtype.newbyteorder()),
        "offset": np.concatenate([a.ravel()[:1], a.ravel()])[1:].reshape(a.shape),
    }
    unaligned = np.empty(a.nbytes + 1, np.uint8)[1:].view(dtype).reshape(a.shape)
    unaligned[...] = a
    layouts["unaligned"] = unaligned
    for name, given in layouts.items():
        before = given.copy()
        for overwrite in (False, name in ("read-only", "broadcast")):
            l = lw.cholesky(given, upper=upper, overwrite=overwrite)
            assert np.abs(l - expected).max() <= tolerance, name
            assert l.dtype == np.dtype(dtype), name
            assert np.array_equal(given, before), name
    assert lw.cholesky(layouts["transposed"]).strides == layouts["transposed"].strides


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (3, 0), (3, 3)])
def test_results_have_native_byte_order(shape):
    a = np.ones(shape, ">f8") * np.eye(*shape[-2:])
    a = a.astype(">f8")
    results = [*lw.qr(a), *lw.qr(a, mode="complete"), *lw.svd(a, full_matrices=True), lw.svdvals(a), *lw.lstsq(a, a)]
    if shape[-2] == shape[-1]:
        results += [lw.cholesky(a), lw.inv(a), *lw.eigh(a), *lw.slogdet(a), lw.solve(a, a, assume="lower"), lw.polar(a).u]
    assert all(x.dtype.isnative for x in results)
    assert not any(np.shares_memory(x, a) for x in results)


def test_one_determinant_is_two_numbers():
    """As numpy.linalg.slogdet returns them; a batch gives arrays."""
    for a in (np.eye(3), np.zeros((2, 2)), np.eye(0), np.eye(2, dtype="complex64")):
        ours, own = lw.slogdet(a), np.linalg.slogdet(a)
        for x, y in zip(ours, own, strict=True):
            assert type(x) is type(y) and x == y
    assert all(type(x) is np.ndarray for x in lw.slogdet(np.eye(3)[None]))


def test_products_of_an_operator_are_checked():
    """For small matrices as for large ones."""
    for n in (8, 1000):
        d = np.arange(1.0, n + 1)
        w = lw.eigvalsh(lw.operator(lambda x, d=d: d[:, None] * x, (n, n), "float32"), subset=slice(-2, None))
        assert w.dtype == "float32" and np.allclose(w, d[-2:], rtol=10 * n * np.finfo("float32").eps)
        with pytest.raises(TypeError, match="matvec returned complex128 for a block of float64"):
            lw.eigh(lw.operator(lambda x: 1j * x, (n, n), "float64"), subset=slice(-2, None))
        with pytest.raises(np.linalg.LinAlgError, match="matvec returned shape"):
            lw.eigh(lw.operator(lambda x: x[1:], (n, n), "float64"), subset=slice(-2, None))


class Tagged(np.ndarray):
    """Somebody's subclass."""


def test_subclasses_are_taken_as_arrays():
    a = spd((5, 5), "float64")
    assert np.array_equal(lw.cholesky(a.view(Tagged)), lw.cholesky(a))


@needs_native
def test_overwrite_reuses_memory():
    a = spd((300, 300), "float64")
    assert np.shares_memory(lw.cholesky(a, overwrite=True), a)
    b = spd((50, 8, 8), "float32")
    assert np.shares_memory(lw.cholesky(b, overwrite=True), b)


@needs_native
def test_same_bits_for_any_number_of_threads():
    from threadpoolctl import threadpool_limits

    for shape in ((5000, 5, 5), (700, 30, 30), (40, 120, 120)):
        a = spd(shape, "float64")
        expected = lw.cholesky(a, engine="batched")
        with threadpool_limits(1):
            assert native.allowed_threads() == 1
            assert np.array_equal(lw.cholesky(a, engine="batched"), expected)


@needs_native
def test_thread_limits_are_followed():
    code = "import numpy, lapwing; from lapwing.core.native import native; print(native.allowed_threads())"
    for limit in ("1", "3"):
        env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"} | {"OMP_NUM_THREADS": limit}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
        assert int(done.stdout) <= int(limit), done.stderr


def test_from_several_threads_at_once():
    given = [spd((500, n, n), "float64", seed=n) for n in (3, 8, 17, 40)] * 2
    expected = [lw.cholesky(a) for a in given]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for got, want in zip(pool.map(lw.cholesky, given), expected, strict=True):
                assert np.array_equal(got, want)


def _child(queue, a):
    queue.put(lw.cholesky(a))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_after_fork():
    """A worker process forked after the pool has started makes a pool of its own."""
    a = spd((3000, 12, 12), "float64")
    expected = lw.cholesky(a)
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        queue = context.Queue()
        child = context.Process(target=_child, args=(queue, a))
        child.start()
        got = queue.get(timeout=60)
        child.join(60)
        assert child.exitcode == 0
        assert np.array_equal(got, expected)


@needs_native
def test_the_interpreter_runs_on_meanwhile():
    """The lock of the interpreter is released during the call."""
    a = spd((1, 40, 40), "float64").repeat(20000, 0)
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before, start = ticks[0], time.perf_counter()
        while time.perf_counter() - start < 0.3:
            lw.cholesky(a)
        assert ticks[0] - before > 10
    finally:
        stop.set()
        thread.join()


@needs_native
def test_ctrl_c_stops_a_long_batch():
    code = """
import numpy as np, lapwing as lw, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
a = np.eye(64)[None].repeat(60000, 0) * 2.0
print("ready", flush=True)
try:
    while True:
        lw.cholesky(a, overwrite=False)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "ready"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out.strip() == "stopped"
    assert child.returncode == 0


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_lapack_block_by_block(dtype, upper):
    """As very large matrices are factored, with blocks of 50."""
    try:
        native.set_lapack_block(50)
        for n in (50, 51, 100, 173):
            a = spd((2, n, n), dtype, seed=n)
            l = lw.cholesky(poison(a, upper), upper=upper, engine="lapack")
            assert residual(a, l, upper) < 10
            assert not other_triangle(l, upper).any()
        a[1, 140, 140] = -1
        factor = lw.cholesky(a, upper=upper, engine="lapack", on_fail="nan")
        assert np.isnan(factor[1]).all() and np.isfinite(factor[0]).all()
        with pytest.raises(lw.NotPositiveDefiniteError) as caught:
            lw.cholesky(a, upper=upper, engine="lapack")
        assert caught.value.minor == 141
    finally:
        native.set_lapack_block(4096)


def test_large_matrix_through_lapack():
    for dtype in ("float32", "complex128"):
        a = spd((600, 600), dtype)
        for upper in (False, True):
            assert residual(a, lw.cholesky(a, upper=upper, engine="lapack"), upper) < 10
