"""Matrices larger than memory: every operation, kind of matrix and failure, with limits that need many blocks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from math import isqrt
from pathlib import Path

import numpy as np
import pytest

import lapwing as lw
from lapwing.outofcore import cuda, plan
from lapwing.outofcore.host import HostSlot, HostSpace
from lapwing.outofcore.products import Products
from lapwing.outofcore.stores import FileStore, FunctionStore, Mirrored, Store, store_of

sys.path.insert(0, str(Path(__file__).parent))
from stand_in_cuda import StandIn

DTYPES = ("float32", "float64", "complex64", "complex128")
N = 97
OPENED: list[StandIn] = []


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch):
    """Both memories that work; the GPU is a stand-in. Blocks are small, so that panels have several."""
    monkeypatch.setattr(plan, "_BLOCK", {"cpu": 8, "cuda": 8})
    monkeypatch.setattr(cuda, "_TRIANGLE", 3)
    OPENED.clear()

    def opened(*arguments):
        OPENED.append(StandIn(*arguments))
        return OPENED[-1]

    monkeypatch.setattr(cuda, "Cuda", opened)
    monkeypatch.setattr(cuda, "missing", lambda *_: "")
    monkeypatch.setattr(cuda, "free_bytes", lambda device, operation: 1 << 20)
    return request.param


def random(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if "complex" in dtype else x).astype(dtype)


def positive(n, dtype="float64", seed=0):
    x = random((n, n), dtype, seed)
    return (x @ x.conj().T / max(n, 1) + np.eye(n)).astype(dtype)


def poisoned(a, upper=False):
    """NaN in the triangle that must not be read."""
    triangle = np.triu if upper else np.tril
    other = np.tril_indices(len(a), -1) if upper else np.triu_indices(len(a), 1)
    result = triangle(a)
    result[other] = np.nan
    return result


def small(a, device, columns=40, **more):
    """Hosted with memory for a few columns."""
    return lw.hosted(a, memory=a.dtype.itemsize * max(a.shape) * columns, device=device, **more)


def close(x, y, n, dtype):
    scale = max(float(np.abs(y).max(initial=0)), 1.0)
    return float(np.abs(np.asarray(x) - y).max(initial=0)) <= 10 * max(n, 1) * np.finfo(dtype).eps * scale


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positive_definite(device, dtype, upper):
    a = positive(N, dtype)
    stored = poisoned(a, upper)
    before = stored.copy()
    l = lw.cholesky(small(stored, device), upper=upper)
    assert close(l.conj().T @ l if upper else l @ l.conj().T, a, N, dtype)
    assert not np.any(np.tril(l, -1) if upper else np.triu(l, 1))
    b = random((N, 3), dtype, 1)
    for right in (b, b[:, 0]):
        x = lw.solve(small(stored, device), right, assume="pos", upper=upper)
        assert x.shape == right.shape and x.dtype == dtype and close(a @ x, right, N, dtype)
    inverse = lw.inv(small(stored, device), assume="pos", upper=upper)
    assert close(a @ inverse, np.eye(N), N, dtype) and np.array_equal(inverse, inverse.conj().T)
    sign, size = lw.slogdet(small(stored, device), assume="pos", upper=upper)
    assert sign == 1 and sign.dtype == dtype and abs(size - np.linalg.slogdet(a)[1]) <= 10 * N * np.finfo(dtype).eps * abs(size)
    f = lw.factor(small(stored, device), upper=upper)
    assert f.report["engine"] == f"hosted-{device}" and close(a @ f.solve(b), b, N, dtype)
    assert close(f.l, l, N, dtype) and close(f.inv(), inverse, N, dtype) and close(f.logdet(), size, N, dtype)
    assert np.array_equal(stored, before, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_general(device, dtype):
    a = random((N, N), dtype)
    before = a.copy()
    b = random((N, 5), dtype, 1)
    expected = np.linalg.solve(a.astype("complex128"), b)
    scale = np.linalg.cond(a.astype("complex128"))
    assert close(a @ lw.solve(small(a, device), b), b, scale, dtype)
    inverse = lw.inv(small(a, device))
    assert close(a @ inverse, np.eye(N), scale, dtype)
    sign, size = lw.slogdet(small(a, device))
    expected = np.linalg.slogdet(a.astype("complex128"))
    assert abs(sign - expected[0]) < 10 * scale * np.finfo(dtype).eps and close(size, expected[1], N, dtype)
    f = lw.factor(small(a, device), assume="general")
    assert f.report["kind"] == "lu" and close(a @ f.solve(b), b, scale, dtype)
    assert close(lw.det(small(a[:7, :7].copy(), device, 90)), np.linalg.det(a[:7, :7].astype("complex128")), 100, dtype)
    assert np.array_equal(a, before)


@pytest.mark.parametrize(
    ("assume", "upper"),
    [("hermitian", False), ("hermitian", True), ("symmetric", True), ("lower", False), ("upper", False)],
)
def test_other_systems(device, assume, upper):
    a = random((N, N), "complex128")
    stored = a
    if assume in ("lower", "upper"):
        a = (np.tril(a) if assume == "lower" else np.triu(a)) + 9 * np.eye(N)
        stored = poisoned(a, assume == "upper")
    else:
        a = a + (a.conj().T if assume == "hermitian" else a.T)
        stored = poisoned(a, upper)
    b = random((N, 2), "complex128", 1)
    x = lw.solve(small(stored, device), b, assume=assume, upper=upper)
    assert close(a @ x, b, np.linalg.cond(a), "float64")
    if assume not in ("lower", "upper"):
        inverse = lw.inv(small(stored, device), assume=assume, upper=upper)
        assert close(a @ inverse, np.eye(N), np.linalg.cond(a), "float64")
        assert np.array_equal(inverse, inverse.conj().T if assume == "hermitian" else inverse.T)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 31])
def test_sizes(device, n):
    a = positive(n)
    memory = max(1, n) * 8 * 90
    l = lw.cholesky(lw.hosted(a, memory=memory, device=device))
    assert l.shape == (n, n) and close(l @ l.T, a, n, "float64")
    x = lw.solve(lw.hosted(a, memory=memory, device=device), np.ones((n, 2)))
    assert x.shape == (n, 2) and close(a @ x, np.ones((n, 2)), n, "float64")
    assert lw.solve(lw.hosted(a, memory=memory, device=device), np.ones((n, 0)), assume="pos").shape == (n, 0)


def test_right_hand_side_of_another_dtype(device):
    a, b = positive(N, "float32"), random((N, 2), "complex128")
    x = lw.solve(small(a, device, 90), b, assume="pos")
    assert x.dtype == "complex128" and close(a.astype("float64") @ x, b, N, "float64")
    f = lw.factor(small(a, device))
    with pytest.raises(TypeError, match="cannot be used with a factor of float32"):
        f.solve(b)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_parts_of_a_spectrum(device, dtype):
    n = 520 if device == "cpu" else 60  # below 500 the matrix is found by its products with the identity
    a = positive(n, dtype)
    far = np.linalg.qr(random((n, 4), dtype))[0]
    a += (far * [90, 70, 50, 30]) @ far.conj().T  # an iteration needs few steps
    stored = poisoned(a, True)
    w, v = lw.eigh(small(stored, device, 300), subset=slice(-3, None), upper=True)
    assert close(a @ v, v * w, n, dtype) and close(w, np.linalg.eigvalsh(a)[-3:], n, dtype)
    assert close(lw.eigvalsh(small(stored, device, 300), subset=slice(-2, None), upper=True), w[1:], n, dtype)
    g = np.concatenate([a, random((80, n), dtype)])
    u, s, vh = lw.svd(small(g, device, 300), subset=slice(2))
    assert close(g @ vh.conj().T, u * s, n, dtype)
    assert close(lw.svdvals(small(g, device, 300), subset=slice(2)), np.linalg.svd(g, compute_uv=False)[:2], n, dtype)


@pytest.mark.parametrize("triangle", [False, True])
def test_blocks_stay_where_the_work_is_done(device, triangle):
    """Blocks that fit are read once, the others in each pass."""
    a = positive(60, "complex128")
    x = random((60, 5), "complex128", 1)
    space = HostSpace(a.dtype, 100) if device == "cpu" else cuda.CudaSpace(a.dtype, StandIn())
    for resident, most in ((0, 3), (10**6, 1)):
        read = []

        def block(rows, columns, read=read):
            read.append((rows.stop - rows.start) * (columns.stop - columns.start))
            return a[rows, columns]

        store = FunctionStore(block, a.shape, "complex128")
        products = Products(space, store, plan.Sizes(8, 8, 8, 2, 0), 3, triangle, resident)
        for _ in range(3):
            assert close(products.forward(x[:, :3]), a @ x[:, :3], 60, "float64")
        blocks = -(-60 // isqrt(8 * 60))
        first = blocks * (blocks + 1) // 2 if triangle else blocks**2
        assert sum(read) == most * sum(read[:first])
        assert close(products.forward(x), a @ x, 60, "float64")
        if not triangle:
            assert close(products.back(x), a.conj().T @ x, 60, "float64")
    space.close()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_tall(device, dtype):
    a = random((500, 9), dtype)
    a[:, 3] = a[:, 2] * (1 + 1e-4)  # a product with the inverse of R would lose the orthogonality
    before = a.copy()

    def hosted(**more):
        return lw.hosted(a, memory=a.dtype.itemsize * 9 * 9 * 25, device=device, **more)

    q, r = lw.qr(hosted())
    assert close(q @ r, a, 9, dtype) and close(q.conj().T @ q, np.eye(9), 9, dtype) and np.array_equal(r, np.triu(r))
    assert close(abs(lw.qr(hosted(), mode="r").R), abs(r), 9, dtype)
    u, s, vh = lw.svd(hosted())
    assert close(u * s @ vh, a, 9, dtype) and close(u.conj().T @ u, np.eye(9), 9, dtype)
    assert close(lw.svdvals(hosted()), s, 9, dtype)
    assert np.array_equal(a, before)


# ---- where matrices come from and results go to ----


class Chunked:
    """What a Zarr array has."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, index):
        return self.array[index].copy()

    def __setitem__(self, index, value):
        self.array[index] = value


def sources(a, folder):
    """The same matrix in all kinds of places."""
    np.save(folder / "a.npy", a)
    np.save(folder / "turned.npy", np.asfortranarray(a))
    wide = np.zeros((len(a) + 3, 2 * len(a)), a.dtype)
    wide[3:, 5 : 5 + len(a)] = a
    np.save(folder / "wide.npy", wide)
    yield "array", a
    yield "by columns", np.asfortranarray(a)
    yield "strided", np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2]
    yield "memmap", np.load(folder / "a.npy", mmap_mode="r")
    yield "memmap by columns", np.load(folder / "turned.npy", mmap_mode="r")
    yield "part of a memmap", np.load(folder / "wide.npy", mmap_mode="r+")[3:, 5 : 5 + len(a)]
    yield "strided memmap", np.load(folder / "wide.npy", mmap_mode="r")[3:, 5 : 5 + len(a)][::1, ::1].T.conj().T
    private = np.load(folder / "wide.npy", mmap_mode="c")
    private[0, 0] = 1
    yield "memmap with private changes", private[3:, 5 : 5 + len(a)]
    yield "data set", Chunked(a)
    yield "function", lambda rows, columns: a[rows, columns]


def test_sources(tmp_path):
    a = positive(60)
    kinds = dict(sources(a, tmp_path))
    with contextlib.suppress(ImportError):
        import h5py

        kinds["HDF5"] = h5py.File(tmp_path / "a.h5", "w").create_dataset("a", data=a, chunks=(16, 16))
    for kind, source in kinds.items():
        more = {"shape": a.shape, "dtype": "float64"} if kind == "function" else {}
        l = lw.cholesky(lw.hosted(source, memory=8 * 60 * 40, device="cpu", **more))
        assert close(l @ l.T, a, 60, "float64"), kind
        on_disk = "array" not in kind and kind not in ("by columns", "strided")
        assert isinstance(l, np.memmap) == on_disk, kind
        assert isinstance(store_of(source, a.shape, "float64"), FileStore) == ("memmap" in kind and "private" not in kind), kind


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_pinned_arrays(device, dtype, monkeypatch):
    """Blocks go to and from the arrays directly; only what must be cleared above the diagonal is staged."""
    monkeypatch.setattr(StandIn, "is_pinned", lambda self, pointer: True)
    staged = []
    monkeypatch.setattr(cuda._Job, "write", lambda job, *rest, write=cuda._Job.write: (staged.append(job), write(job, *rest)))
    a, x, out = positive(N, dtype), random((N, N), dtype), np.full((N, N), 7, dtype)
    l = lw.cholesky(small(a, device, out=out))
    assert l is out and close(l @ l.conj().T, a, N, dtype) and np.array_equal(l, np.tril(l))
    assert staged and all(job.lower for job in staged)
    b = random((N, 3), dtype)
    assert close(x @ lw.solve(small(x, device), b), b, N, dtype)
    staged.clear()
    lw.inv(small(x, device, out=out))
    assert close(x @ out, np.eye(N, dtype=dtype), N, dtype) and not staged
    assert close(a @ lw.inv(small(a.copy(), device), assume="pos", overwrite=True), np.eye(N), N, dtype)


def test_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    a, b = positive(60), random((60, 2), "float64")
    stored = zarr.create_array(store=str(tmp_path / "a.zarr"), shape=a.shape, chunks=(16, 16), dtype="float64")
    out = zarr.create_array(store=str(tmp_path / "x.zarr"), shape=b.shape, chunks=(16, 2), dtype="float64")
    stored[:] = a
    options = {"memory": 8 * 60 * 40, "device": "cpu"}
    x = lw.solve(lw.hosted(stored, out=out, **options), b, assume="pos")
    assert x is out and close(a @ out[:], b, 60, "float64")
    with pytest.raises(ValueError, match="out is the matrix itself"):
        lw.cholesky(lw.hosted(stored, out=zarr.open_array(str(tmp_path / "a.zarr")), **options))
    assert np.array_equal(stored[:], a)
    lw.cholesky(lw.hosted(stored, **options), overwrite=True)
    assert close(stored[:] @ stored[:].T, a, 60, "float64")
    with pytest.raises(TypeError, match="no NumPy array"):
        np.asarray(lw.hosted(stored))


def test_as_a_numpy_array(tmp_path):
    a = positive(5)
    np.save(tmp_path / "a.npy", a)
    for source in (a, np.load(tmp_path / "a.npy", mmap_mode="r")):
        h = lw.hosted(source)
        assert np.shares_memory(np.asarray(h), source) and np.array_equal(h, a)
        assert np.asarray(h, "float32").dtype == "float32" and not np.shares_memory(np.array(h), source)
    with pytest.raises(TypeError, match="no NumPy array\nhint: "):
        np.asarray(lw.hosted(lambda rows, columns: a[rows, columns], shape=a.shape, dtype="float64"))


def test_results(device, tmp_path):
    a = positive(N)
    np.save(tmp_path / "a.npy", a)
    places = {
        "array": np.full((N, N), np.nan),
        "by columns": np.full((N, N), np.nan, order="F"),
        "memmap": np.lib.format.open_memmap(tmp_path / "out.npy", "w+", "float64", (N, N)),
        "data set": Chunked(np.full((N, N), np.nan)),
    }
    for upper in (False, True):
        for kind, out in places.items():
            l = lw.cholesky(small(a, device, out=out), upper=upper)
            assert l is out
            l = np.asarray(l[:, :])
            assert close(l.T @ l if upper else l @ l.T, a, N, "float64"), kind
            assert not np.any(np.tril(l, -1) if upper else np.triu(l, 1)), kind
            out[:, :] = np.nan
    l = lw.cholesky(small(a, device, out=tmp_path / "l.npy"))
    assert isinstance(l, np.memmap) and close(np.load(tmp_path / "l.npy") @ l.T, a, N, "float64")
    b = random((N, 7), "float64")
    for right in (lw.hosted(b), Chunked(b)):
        x = lw.solve(small(a, device, out=tmp_path / "x.npy"), right)
        assert isinstance(x, np.memmap) and close(a @ np.load(tmp_path / "x.npy"), b, N, "float64")
    x = np.full(N, np.nan)
    assert lw.solve(small(a, device, out=x), np.ones(N), assume="pos") is x
    assert close(a @ x, np.ones(N), N, "float64")
    inverse = lw.inv(small(a, device, out=str(tmp_path / "inverse.npy")), assume="pos")
    assert close(a @ inverse, np.eye(N), N, "float64")
    w, v = lw.eigh(small(a, device, out=str(tmp_path / "v.npy")), subset=slice(-2, None))
    assert close(a @ np.load(tmp_path / "v.npy"), v * w, N, "float64")


def test_overwrite(device, tmp_path):
    a = positive(N)
    for upper in (False, True):
        here = a.copy()
        l = lw.cholesky(small(here, device), upper=upper, overwrite=True)
        assert l is here and close(l.T @ l if upper else l @ l.T, a, N, "float64")
        assert not np.any(np.tril(l, -1) if upper else np.triu(l, 1))
        here = a.copy()
        x = lw.solve(small(here, device), np.ones(N), assume="pos", upper=upper, overwrite=True)
        assert close(a @ x, np.ones(N), N, "float64") and not np.array_equal(here, a)
    np.save(tmp_path / "a.npy", a)
    here = np.load(tmp_path / "a.npy", mmap_mode="r+")
    assert lw.inv(small(here, device), overwrite=True) is here
    assert close(a @ np.load(tmp_path / "a.npy"), np.eye(N), N, "float64")
    with pytest.raises(ValueError, match="cannot be written\nhint: open the file with mode='r\\+'"):
        lw.cholesky(small(np.load(tmp_path / "a.npy", mmap_mode="r"), device), overwrite=True)


def test_out_that_would_change_the_matrix(tmp_path):
    a = random((N, N), "float64")
    file = tmp_path / "a.npy"
    np.save(file, a)
    matrix, again = np.load(file, mmap_mode="r"), np.load(file, mmap_mode="r+")
    part = np.memmap(tmp_path / "both", "float64", "w+", shape=(2 * N, N))
    part[:N] = a
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as storage:
        data = storage.create_dataset("a", data=a)
        for source, out in (
            (matrix, again),
            (matrix, str(file)),
            (data, storage["a"]),
            (data, tmp_path / "a.h5"),
        ):
            with pytest.raises(ValueError, match="out is the matrix itself"):
                lw.inv(lw.hosted(source, device="cpu", out=out))
        assert np.array_equal(data, a)
    assert np.array_equal(np.load(file), a)
    rest = np.memmap(tmp_path / "both", "float64", "r+", shape=(2 * N, N))[N:]
    assert np.allclose(lw.inv(lw.hosted(part[:N], device="cpu", out=rest)) @ a, np.eye(N))


def test_out_is_checked_before_the_work(tmp_path):
    a, b, steps = random((N, N), "float64"), np.ones((N, 2)), []
    folder = tmp_path / "missing"
    for call, out, error in (
        (lambda h: lw.solve(h, b), np.empty((N, 3)), ValueError),
        (lambda h: lw.solve(h, b), b[:, ::-1], ValueError),
        (lambda h: lw.solve(h, b), folder / "x.npy", FileNotFoundError),
        (lw.inv, np.empty((N, N), "float32"), ValueError),
    ):
        with pytest.raises(error, match="out"):
            call(lw.hosted(a, memory="50KB", device="cpu", out=out, progress=steps.append))
    assert not steps
    x = lw.solve(lw.hosted(a, device="cpu", out=b), b)  # b itself
    assert x is b and np.allclose(a @ x, 1)


def test_vectors_in_files(tmp_path):
    h5py = pytest.importorskip("h5py")
    a, b = random((N, N), "float64"), np.arange(N) + 1.0
    x = lw.solve(lw.hosted(a, device="cpu", out=tmp_path / "x.npy"), b)
    assert x.shape == np.load(tmp_path / "x.npy").shape == (N,) and np.allclose(a @ x, b)
    with h5py.File(tmp_path / "b.h5", "w") as storage:
        right, out = storage.create_dataset("b", data=b), storage.create_dataset("x", (N,), "float64")
        assert lw.solve(lw.hosted(a, device="cpu", out=out), right) is out
        assert np.allclose(a @ out[:], b)


def test_memory_maps_that_are_not_plain(tmp_path):
    a, b = random((N, N), "float64"), np.arange(N) + 1.0
    records = np.memmap(tmp_path / "records", [("x", "f8"), ("y", "f4")], "w+", shape=(N, N))
    records["x"] = a
    vector = np.memmap(tmp_path / "vector", "float64", "w+", shape=(N,))
    vector[:] = b
    assert np.allclose(a @ lw.solve(lw.hosted(records["x"], device="cpu"), vector[::-1]), b[::-1])
    (tmp_path / "vector").unlink()
    assert np.allclose(a @ lw.solve(lw.hosted(a, device="cpu"), vector), b)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_mirrored_blocks(upper, conjugate):
    a = random((12, 12), "complex128")
    a = a + (a.conj().T if conjugate else a.T)
    store = Mirrored(Store(poisoned(a, upper)), upper, conjugate)
    for rows in (slice(0, 12), slice(2, 5), slice(4, 9)):
        for columns in (slice(0, 12), slice(0, 3), slice(3, 7), slice(8, 12), slice(5, 6)):
            block = np.empty((rows.stop - rows.start, columns.stop - columns.start), a.dtype)
            store.read(rows, columns, block)
            assert np.array_equal(block, a[rows, columns])


# ---- limits ----


@pytest.mark.parametrize("operation", ["cholesky", "solve", "general", "inv", "eigh", "qr"])
def test_limit_of_the_host(tmp_path, operation):
    """What is allocated stays within the limit; the libraries' own buffers are not counted here."""
    n = 600
    a = positive(n) if operation != "qr" else random((20 * n, 40), "float64")
    np.save(tmp_path / "a.npy", a)
    stored = np.load(tmp_path / "a.npy", mmap_mode="r")
    del a
    memory = 600_000
    h = lw.hosted(stored, memory=memory, device="cpu")
    calls = {
        "cholesky": lambda: lw.cholesky(h),
        "solve": lambda: lw.solve(h, np.ones(n), assume="pos"),
        "general": lambda: lw.solve(h, np.ones(n)),
        "inv": lambda: lw.inv(h, assume="pos"),
        "eigh": lambda: lw.eigh(h, subset=slice(-2, None)),
        "qr": lambda: lw.qr(h),
    }
    lw.cholesky(np.eye(3))
    tracemalloc.start()
    try:
        calls[operation]()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Python's own objects, and a few vectors of the iteration
    assert most <= 1.2 * memory + 200_000 + (60 * n * 8 if operation == "eigh" else 0)


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_limit_of_the_device(device):
    a = positive(300)
    for call in (
        lambda h: lw.solve(h, np.ones(300), assume="pos"),
        lambda h: lw.solve(h, np.ones(300)),
        lambda h: lw.inv(h, assume="pos"),
        lambda h: lw.eigvalsh(h, subset=slice(-2, None)),
    ):
        OPENED.clear()
        call(lw.hosted(a, memory=400_000, device=device))
        assert OPENED and all(c.closed and not c.memory for c in OPENED)
        assert max(c.most for c in OPENED) <= 400_000 + 4 * (1 << 16) + 4096  # statuses


def test_memory_by_default(device):
    a = positive(50)
    l = lw.cholesky(lw.hosted(a, device=device))
    assert close(l @ l.T, a, 50, "float64")


def test_memory_too_small(device):
    a = positive(200)
    with pytest.raises(ValueError, match="is too small for a matrix of order 200\nhint: at least memory=") as caught:
        lw.cholesky(lw.hosted(a, memory=1000, device=device))
    least = int(str(caught.value).rpartition("=")[2])
    lw.cholesky(lw.hosted(a, memory=least, device=device))
    with pytest.raises(ValueError, match="too small for a tall matrix"):
        lw.qr(lw.hosted(random((500, 50), "float64"), memory=1000, device=device))


@pytest.mark.parametrize(
    ("memory", "count"), [("2GB", 2 * 10**9), ("512 MiB", 2**29), ("1.5kb", 1500), (12345, 12345), ("77", 77), (np.int64(8), 8)]
)
def test_words_of_memory(memory, count):
    assert lw.hosted(np.eye(2), memory=memory).memory == count


# ---- failures ----


def test_failures(device):
    a = positive(N)
    bad = a.copy()
    bad[60, 60] = -1
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.cholesky(small(bad, device))
    assert (caught.value.minor, caught.value.nonfinite) == (61, False)
    assert np.isnan(lw.cholesky(small(bad, device), on_fail="nan")).all()
    factor, info = lw.cholesky_ex(small(bad, device))
    assert info == 61 and np.isnan(factor).all()
    assert np.isnan(lw.solve(small(bad, device), np.ones(N), assume="pos", on_fail="nan")).all()
    bad = a.copy()
    bad[70, 3] = np.nan
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.solve(small(bad, device), np.ones(N), assume="pos")
    assert caught.value.nonfinite
    zero = random((N, N), "float64")
    zero[40] = 0
    with pytest.raises(lw.SingularMatrixError) as caught:
        lw.solve(small(zero, device), np.ones(N))
    assert caught.value.pivot >= 1 and not caught.value.nonfinite
    assert lw.slogdet(small(zero, device)) == (0, -np.inf)
    with pytest.raises(lw.SingularMatrixError):
        lw.solve(small(np.diag(np.arange(20.0)), device, 90), np.ones(20), assume="lower")


def test_wrong_input(device):
    a = positive(N)
    with pytest.raises(ValueError, match="square"):
        lw.cholesky(small(a[:50], device))
    with pytest.raises(ValueError, match=r"solve: b must have shape \(97,\) or \(97, k\), got \(96,\)"):
        lw.solve(small(a, device), np.ones(96))
    with pytest.raises(ValueError, match=r"solve: b must have shape"):
        lw.explain(lw.solve, small(a, device), np.ones(96))
    with pytest.raises(TypeError, match="solve: b must be a NumPy array, a data set or hosted, got list"):
        lw.solve(small(a, device), [1.0])
    with pytest.raises(TypeError, match=r"expm: .*\nhint: this call does not support hosted matrices"):
        lw.expm(small(a, device))
    with pytest.raises(TypeError, match="polar: hosted matrices are not supported\nhint: these are: cholesky"):
        lw.polar(small(a, device))
    with pytest.raises(TypeError, match="eig: hosted matrices are not supported"):
        lw.eig(small(a, device))
    with pytest.raises(ValueError, match="engine='lapack' does not take hosted matrices"):
        lw.cholesky(small(a, device), engine="lapack")
    with pytest.raises(ValueError, match="eigh: a hosted matrix needs a subset"):
        lw.eigh(small(a, device))
    with pytest.raises(ValueError, match="window is not supported for hosted matrices"):
        lw.eigh(small(a, device), window=(0, 1))
    with pytest.raises(ValueError, match="at least twice as many rows as columns"):
        lw.qr(small(a, device))
    with pytest.raises(ValueError, match="jitter"):
        lw.cholesky(small(a, device), jitter="auto")
    with pytest.raises(ValueError, match=r"out must have shape \(97, 97\) and dtype float64, got \(3, 3\) float64"):
        lw.cholesky(small(a, device, out=np.zeros((3, 3))))
    with pytest.raises(ValueError, match="out is the matrix itself"):
        lw.cholesky(small(a, device, out=a))


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (np.eye(3), {"memory": "much"}, "memory='much' is not a number of bytes\nhint: memory='2GB'"),
        (np.eye(3), {"memory": -1}, "memory=-1 is not"),
        (np.eye(3), {"memory": "1e999GB"}, "memory='1e999GB' is not"),
        (np.ma.array(np.eye(3)), {}, "masked arrays are not supported"),
        (np.eye(3), {"device": "tpu"}, "unknown device 'tpu'"),
        (np.eye(3), {"shape": (3, 3)}, "shape and dtype go with a function"),
        (np.eye(3), {"progress": 1}, "progress must be a function"),
        (np.eye(3, dtype="int32"), {}, "dtype int32 is not supported"),
        (np.zeros((2, 3, 3)), {}, "expected a matrix, got shape"),
        (np.eye(3).astype(">f8"), {}, "byte order"),
        ([[1.0]], {}, "expected a NumPy array, memmap, HDF5 or Zarr data set or a function, got list"),
        (lambda rows, columns: None, {}, "a function needs shape"),
        (lambda rows, columns: None, {"shape": (3, 3)}, "a function needs dtype"),
    ],
)
def test_wrong_marks(source, options, text):
    with pytest.raises((TypeError, ValueError), match="hosted: ") as caught:
        lw.hosted(source, **options)
    assert text in str(caught.value)


def test_objects_of_torch():
    torch = pytest.importorskip("torch")
    assert lw.hosted(np.eye(3), device=torch.device("cpu")).device == "cpu"
    with pytest.raises(TypeError, match=r"solve: arrays of torch are not supported\nhint: numpy.asarray\(b\)"):
        lw.solve(lw.hosted(np.eye(3), device="cpu"), torch.ones(3, dtype=torch.float64))


def test_functions_that_return_something_else(device):
    for returned, text in ((np.ones((2, 2)), "the function returned shape"), (None, "the function returned complex128")):

        def block(rows, columns, returned=returned):
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            return np.ones(shape, complex) if returned is None else returned

        with pytest.raises((ValueError, TypeError), match=text):
            lw.cholesky(lw.hosted(block, shape=(N, N), dtype="float64", memory=8 * N * 40, device=device))

    def failing(rows, columns):
        raise KeyError("my own error")

    with pytest.raises(KeyError, match="my own error"):
        lw.cholesky(lw.hosted(failing, shape=(N, N), dtype="float64", memory=8 * N * 40, device=device))


def test_full_disk(device, tmp_path, monkeypatch):
    a = positive(N)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"hosted: .* does not have 73.51 KiB free\nhint: put the files on another disk"):
            lw.cholesky(small(a, device, out=tmp_path / "l.npy"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        with pytest.raises(OSError, match="hosted: the disk is full"):
            lw.cholesky(small(a, device, out=tmp_path / "l.npy"))


def test_no_gpu():
    if not cuda.missing():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match=r"cholesky: device 'cuda' cannot be used: .*\nhint: device='cpu'"):
        lw.cholesky(lw.hosted(np.eye(3), device="cuda", memory="1GB"))
    with pytest.raises(RuntimeError, match="cholesky: device 'cuda' cannot be used"):
        lw.explain(lw.cholesky, lw.hosted(np.eye(3), device="cuda"))
    large = lw.hosted(lambda rows, columns: None, shape=(65536, 65536), dtype="float64", device="cuda", memory="8GB")
    cost = lw.explain(lw.cholesky, large)  # of another machine
    assert cost.panel == 10752 and 45e9 < cost.bytes_read < 55e9 and cost.device_bytes < 8e9  # by the model of a disk
    assert str(cost).endswith(f"note        not usable on this machine: {cuda.missing()}")


def test_a_gpu_of_that_number(monkeypatch):
    class Runtime:
        def cudaGetDeviceCount(self, count):
            count._obj.value = 2
            return 0

    monkeypatch.setattr(cuda.libraries, "load", lambda *_, **__: Runtime())
    assert not cuda.missing("hosted", 1)
    with pytest.raises(RuntimeError, match=r"device 'cuda:2' cannot be used: CUDA finds 2 GPUs, counted from 0"):
        lw.cholesky(lw.hosted(np.eye(3), device="cuda:2", memory="1GB"))


@pytest.mark.parametrize("how", ["saved anew", "renamed over", "renamed away", "deleted"])
def test_a_file_that_was_replaced(tmp_path, how):
    """The map still shows the file that it was made of: that one is read and written, not the new one of the same name."""
    a, name, other = positive(N), tmp_path / "a.npy", tmp_path / "other.npy"
    np.save(name, a)
    np.save(other, -a)
    held = np.load(name, mmap_mode="r+")
    if how == "renamed away":
        name.rename(tmp_path / "old.npy")
    elif how != "renamed over":
        name.unlink()
    if how == "saved anew":
        np.save(name, -a)
    elif how != "deleted":
        other.rename(name)
    l = lw.cholesky(lw.hosted(held, memory="60KB", device="cpu"))
    assert close(l @ l.T, a, N, "float64")
    lw.cholesky(lw.hosted(held, memory="60KB", device="cpu"), overwrite=True)
    assert close(held @ held.T, a, N, "float64") and (how == "deleted" or np.array_equal(np.load(name), -a))


def test_what_goes_with_what(device):
    a = positive(N)
    for call in (lw.cholesky, lw.inv):
        with pytest.raises(
            ValueError, match=r"overwrite=True replaces the matrix by the result, out= writes it elsewhere\nhint"
        ):
            call(small(a, device, out=np.empty((N, N))), overwrite=True)
    for folder in ("", 5):
        with pytest.raises(ValueError, match=r"hosted: checkpoint=.* is not the name of a folder"):
            lw.hosted(a, checkpoint=folder)
    a[60, 3] = np.inf  # no warning of NumPy, only the error
    with pytest.raises(lw.SingularMatrixError, match="holds NaN or Inf"):
        lw.solve(small(a, device), np.ones(N))


# ---- progress, checkpoints, explain ----


class Stop(Exception):
    pass


@pytest.mark.parametrize("assume", ["pos", "general"])
def test_checkpoint(device, tmp_path, assume):
    a = positive(N)
    done, read = [], []

    def killed(step):
        assert step.operation == "solve" and step.total == N and step.seconds >= 0
        done.append(step.done)
        if len(done) == 2:
            raise Stop

    def counted(rows, columns):
        read.append((rows.stop - rows.start) * (columns.stop - columns.start))
        return a[rows, columns]

    def hosted(**more):
        return lw.hosted(
            counted, shape=(N, N), dtype="float64", memory=8 * N * 40, device=device, checkpoint=tmp_path / "c", **more
        )

    with pytest.raises(Stop):
        lw.solve(hosted(progress=killed), np.ones(N), assume=assume)
    state = json.loads((tmp_path / "c" / "state.json").read_text())
    assert state["done"] == done[-1] < N
    steps = []
    x = lw.solve(hosted(progress=lambda step: steps.append(step.done)), np.ones(N), assume=assume)
    assert close(a @ x, np.ones(N), N, "float64")
    assert steps[0] > done[-1] and steps[-1] == N
    # finished: only the check of the input reads it
    steps.clear()
    assert close(a @ lw.solve(hosted(progress=steps.append), np.ones(N), assume=assume), np.ones(N), N, "float64")
    assert not steps


def test_changed_input_is_noticed(device, tmp_path):
    a = positive(N)

    def hosted(matrix, **more):
        return small(matrix, device, checkpoint=tmp_path / "c", **more)

    def killed(step):
        if step.done > 40:
            raise Stop

    with pytest.raises(Stop):
        lw.cholesky(hosted(a, progress=killed))
    for row, column in ((50, 3), (N - 1, N - 1)):
        other = a.copy()
        other[row, column] += 1e-13
        with pytest.raises(ValueError, match=r"changed.*\nhint: delete the folder to begin again"):
            lw.cholesky(hosted(other))
    other = a.copy()
    other[3, 50] = np.nan  # the triangle that is not read may change
    l = lw.cholesky(hosted(other))
    assert close(l @ l.T, a, N, "float64") and not np.triu(l, 1).any()
    with pytest.raises(ValueError, match="has operation cholesky, this call has lu"):
        lw.solve(hosted(a), np.ones(N))
    with pytest.raises(ValueError, match=r"has shape \[97, 97\], this call has \[50, 50\]"):
        lw.cholesky(small(positive(50), device, 90, checkpoint=tmp_path / "c"))
    with pytest.raises(ValueError, match="checkpoint cannot be combined with overwrite=True"):
        lw.cholesky(hosted(a), overwrite=True)
    with pytest.raises(ValueError, match="checkpoint cannot be combined with qr"):
        lw.qr(small(random((90, 5), "float64"), device, checkpoint=tmp_path / "c"))


def test_checkpoint_stays_right(tmp_path):
    """A failure, a short file and the user's own files do no harm."""
    a = positive(N)
    a[90, 90] = -1
    options = {"memory": "20KB", "device": "cpu", "checkpoint": tmp_path / "c"}
    assert np.isnan(lw.cholesky(lw.hosted(a, **options), on_fail="nan")).all()
    with pytest.raises(lw.NotPositiveDefiniteError) as error:
        lw.cholesky(lw.hosted(a, **options))
    assert error.value.minor == 91
    a[90, 90] = 10
    options["checkpoint"] = tmp_path / "d"
    l = lw.cholesky(lw.hosted(a, **options))
    assert np.allclose(l @ l.T, a) and not l.flags.writeable
    for source, out in ((l, None), (a, tmp_path / "d" / "factor.npy")):
        with pytest.raises(ValueError, match="a file of the checkpoint"):
            lw.cholesky(lw.hosted(source, **options, out=out))
    del l
    os.truncate(tmp_path / "d" / "factor.npy", 200)
    with pytest.raises(ValueError, match=r"factor.npy is too short"):
        lw.cholesky(lw.hosted(a, **options))
    (tmp_path / "e").mkdir()
    own = np.arange(4.0)
    np.save(tmp_path / "e" / "factor.npy", own)
    with pytest.raises(
        ValueError, match=r"e/factor.npy exists, but does not belong to a checkpoint\nhint: name another folder"
    ):
        lw.cholesky(lw.hosted(a, **options | {"checkpoint": tmp_path / "e"}))
    assert np.array_equal(np.load(tmp_path / "e" / "factor.npy"), own) and len(os.listdir(tmp_path / "e")) == 1


def test_out_that_cannot_hold_the_result(tmp_path):
    a = positive(N)
    for call in (lw.slogdet, lw.factor, lambda h: lw.qr(h, mode="r")):
        with pytest.raises(ValueError, match=r"out cannot be combined with .*, which has no large result"):
            call(lw.hosted(a, memory="40KB", device="cpu", out=tmp_path / "x.npy"))
    shared = np.lib.stride_tricks.as_strided(np.zeros(2 * N), (N, N), (8, 8), writeable=True)
    with pytest.raises(ValueError, match="entries of out share memory"):
        lw.cholesky(lw.hosted(a, memory="40KB", device="cpu", out=shared))
    file = tmp_path / "a.npy"
    np.save(file, a)
    mapped = np.load(file, mmap_mode="r")
    file.rename(tmp_path / "b.npy")
    with pytest.raises(ValueError, match="out"):  # the matrix itself, by its new name
        lw.cholesky(lw.hosted(mapped, memory="40KB", device="cpu", out=tmp_path / "b.npy"))
    assert np.array_equal(np.load(tmp_path / "b.npy"), a)


def test_damaged_checkpoint(tmp_path):
    a, b = positive(N), np.ones(N)
    folder = tmp_path / "c"

    def solve():
        return lw.solve(lw.hosted(a, memory="40KB", device="cpu", checkpoint=folder), b)

    solve()
    state, factor = folder / "state.json", folder / "factor.npy"
    right, whole = state.read_text(), factor.read_bytes()
    changed = json.loads(right)
    changed["panels"][0][2][0] += 1
    for text in ("", "{", "[]", "5", "null", "{}", right[:-9], json.dumps(changed), "\x00" * 40):
        state.write_text(text)
        with pytest.raises(ValueError, match=r"solve: the checkpoint .*state.json is damaged \(.*\)\nhint: delete the folder"):
            solve()
    state.write_text(right)
    for content in (b"", whole[:3], b"\x00" * len(whole), whole.replace(b"f8", b"f4", 1)):
        factor.write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged \(factor.npy .*\)"):
            solve()
    factor.write_bytes(whole[:-8] + bytes(7) + b"\x40")  # another number
    with pytest.raises(ValueError, match=r"factor.npy is damaged \(rows .*\)\nhint: delete the folder"):
        solve()
    factor.unlink()
    with pytest.raises(ValueError, match=r"is damaged \(factor.npy is missing\)"):
        solve()
    factor.write_bytes(whole)
    assert close(a @ solve(), b, N, "float64")
    # killed before the first panel was finished: nothing is lost, and the folder is still the call's own
    shutil.rmtree(folder)

    def killed(rows, columns):
        if (rows.stop, columns.start) != (rows.start + 1, 0):  # not the sample of rows
            raise Stop
        return a[rows, columns]

    with pytest.raises(Stop):
        lw.solve(lw.hosted(killed, shape=(N, N), dtype="float64", memory="40KB", device="cpu", checkpoint=folder), b)
    assert factor.exists() and close(a @ solve(), b, N, "float64")


@pytest.mark.parametrize("upper", [False, True])
def test_checkpoint_with_out(device, tmp_path, upper):
    a = positive(N)
    out = np.full((N, N), np.nan)
    l = lw.cholesky(small(a, device, checkpoint=tmp_path / "c", out=out), upper=upper)
    assert l is out and close(l.T @ l if upper else l @ l.T, a, N, "float64")


@pytest.mark.parametrize("operation", ["cholesky", "solve", "inv"])
@pytest.mark.parametrize("assume", ["pos", "general"])
def test_explain(device, operation, assume):
    """The bytes are those that the call moves."""
    if operation == "cholesky" and assume == "general":
        return
    n = 128
    a = positive(n)
    h = small(a, device, 60)
    function = getattr(lw, operation)
    arrays = (h, np.ones((n, 3))) if operation == "solve" else (h,)
    options = {"assume": assume} if operation != "cholesky" else {}
    cost = lw.explain(function, *arrays, **options)
    assert cost.engine == f"hosted-{device}" and cost.modelled and "modelled" in str(cost)
    assert (cost.device_bytes if device == "cuda" else cost.host_bytes) <= h.memory
    assert cost.scratch_bytes == (0 if operation == "cholesky" else n * n * 8)
    read = []
    kind = cuda.CudaSlot if device == "cuda" else HostSlot
    original = kind.fill

    def fill(self, piece):
        read.append(piece.shape[0] * piece.shape[1] * 8)
        original(self, piece)

    kind.fill = fill
    try:
        function(*arrays, **options)
    finally:
        kind.fill = original
    assert 0.7 * sum(read) <= cost.bytes_read <= 1.4 * sum(read)


def test_explain_of_the_other_calls(device):
    a = positive(N)
    for call in (
        lambda: lw.explain(lw.eigh, small(a, device), subset=slice(-2, None)),
        lambda: lw.explain(lw.svd, small(a, device), subset=slice(2)),
        lambda: lw.explain(lw.qr, small(random((900, 5), "float64"), device)),
        lambda: lw.explain(lw.solve, small(a, device), np.ones(N), assume="lower"),
    ):
        cost = call()
        assert cost.flops > 0 and cost.bytes_moved > 0 and cost.predicted_seconds > 0 and "modelled" in str(cost)
    with pytest.raises(TypeError, match="polar: hosted matrices are not supported"):
        lw.explain(lw.polar, small(a, device))


_KILLED = """
import os, sys, numpy as np, lapwing as lw
folder, n, memory, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])

def resident(what):
    return int(next(line for line in open("/proc/self/status") if line.startswith(what)).split()[1]) * 1024

lw.solve(np.eye(300) + 1, np.ones(300), assume="pos")
before = resident("VmRSS")

def progress(step):
    print(step.done, flush=True)
    if stop and step.done >= stop:
        os.kill(os.getpid(), 9)

a = np.load(folder + "/a.npy", mmap_mode="r")
x = lw.solve(
    lw.hosted(a, memory=memory, device="cpu", checkpoint=folder + "/c", progress=progress), np.ones(n), assume="pos"
)
np.save(folder + "/x.npy", x)
print("most", resident("VmHWM") - before)
"""


def killed_and_resumed(folder, n, memory):
    """Write a matrix, solve with it in a process that is killed half-way, and again; the residual and the most memory."""
    a = np.lib.format.open_memmap(folder / "a.npy", "w+", "float64", (n, n))
    rng = np.random.default_rng(0)
    total = np.zeros(n)
    for first in range(0, n, 500):
        block = rng.random((min(500, n - first), first + 500 if first + 500 <= n else n)) - 0.5
        rows = np.arange(len(block))
        block[rows, first + rows] = n / 8
        block = np.tril(block, first)
        a[first : first + len(block), : block.shape[1]] = block
    a.flush()
    del a
    arguments = [sys.executable, "-c", _KILLED, str(folder), str(n), memory]
    first = subprocess.run([*arguments, str(n // 2)], capture_output=True, text=True)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = subprocess.run([*arguments, "0"], capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert int(second.stdout.split()[0]) > int(first.stdout.split()[-1])
    a, x = np.load(folder / "a.npy", mmap_mode="r"), np.load(folder / "x.npy")
    for first in range(0, n, 500):
        block = np.array(a[first : first + 500])
        rows = np.arange(len(block))
        total[first : first + len(block)] += block @ x
        block[rows, first + rows] = 0
        total += block.T @ x[first : first + len(block)]
    return np.abs(total - 1).max(), int(second.stdout.split()[-1])


class SlowChunks:
    """A data set that changes a part of a chunk as Zarr does: it reads all of it, and writes all of it."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, key):
        return self.array[key].copy()

    def __setitem__(self, key, block):
        whole = self.array.copy()
        time.sleep(0.0005)
        whole[key] = block
        self.array[...] = whole


def test_threads_do_not_lose_what_others_wrote():
    n = 120
    a, out = positive(n, "float64"), SlowChunks(np.full((n, n), np.nan))
    lw.cholesky(lw.hosted(a, memory=40 * n * 8, out=out))
    assert close(out.array @ out.array.T, a, n, "float64") and not np.triu(out.array, 1).any()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("n", "memory", "limit"), [(4000, "60MB", 60e6), (30000, "2GB", 2e9)])
def test_killed_and_resumed(tmp_path, n, memory, limit):
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < 3 * 8 * n * n:
        pytest.skip("the disk is too small")
    residual, most = killed_and_resumed(tmp_path, n, memory)
    assert residual <= 10 * n * np.finfo("float64").eps
    assert most <= 1.2 * limit


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_gpu(dtype):
    n = 1500
    a, b = positive(n, dtype), random((n, 3), dtype, 1)
    stored = poisoned(a)

    def hosted(matrix):
        return lw.hosted(matrix, memory=matrix.dtype.itemsize * n * 1200, device="cuda")

    l = lw.cholesky(hosted(stored))
    assert close(l @ l.conj().T, a, n, dtype)
    assert close(a @ lw.solve(hosted(stored), b, assume="pos"), b, n, dtype)
    g = random((n, n), dtype)
    x = lw.solve(hosted(g), b)
    assert np.abs(g @ x - b).max() <= 10 * n * np.finfo(dtype).eps * np.abs(g).sum(1).max() * np.abs(x).max()
    assert close(a @ lw.inv(hosted(stored), assume="pos"), np.eye(n), n, dtype)
    q, _ = lw.qr(lw.hosted(random((9000, 60), dtype), memory=a.dtype.itemsize * 60 * 60 * 40, device="cuda"))
    assert close(q.conj().T @ q, np.eye(60), 60, dtype)
    w, v = lw.eigh(hosted(stored), subset=slice(-4, None))
    assert close(a @ v, v * w, n, dtype)
