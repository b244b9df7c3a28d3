"""Tall and narrow matrices: QR and thin SVD in a few passes (native/methods/tall.h), through the native core."""

from __future__ import annotations

import numpy as np
import pytest

from backends import DTYPES
from lapwing.core import lapack
from lapwing.core.native import CPU, CUDA, DTYPE_CODE, ENGINES, OPS, native

pytestmark = pytest.mark.skipif(native is None or not lapack.LIBRARY, reason="needs the native core and LAPACK")

M, N = 4500, 24
REAL = {"float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64"}


class Host:
    """Arrays of the CPU."""

    sizes = ((4096, 8), (8 * 65, 65), (3001, 11), (2049, 17), (1100, 130))
    batch = (3, 2100, 16)

    @staticmethod
    def run(op, dtype, sizes, a, *shapes, threads=0):
        out = [np.full(shape, 7, kind) for shape, kind in shapes]
        native.run(OPS[op], DTYPE_CODE[dtype], CPU, -1, ENGINES["tall"], threads, 0, sizes, 0, None, a, *out)
        return out


class Device:
    """The same on a GPU, by way of torch."""

    sizes = ((131072, 8), (20011, 65), (349531, 3), (1048576, 1), (9001, 130))
    batch = (3, 70000, 16)

    @staticmethod
    def run(op, dtype, sizes, a, *shapes, threads=0):
        import torch

        held = []

        def allocate(size):
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            return held[-1].data_ptr()

        given = torch.from_numpy(a).cuda()
        out = [torch.from_numpy(np.full(shape, 7, kind)).cuda() for shape, kind in shapes]
        stream = torch.cuda.current_stream().cuda_stream
        addresses = [x.data_ptr() for x in (given, *out)]
        call = (OPS[op], DTYPE_CODE[dtype], CUDA, 0, ENGINES["tall"], threads, 0, sizes)
        native.run(*call, stream, allocate, *addresses)
        assert sum(x.numel() for x in held) <= native.scratch_bytes(*call)
        return [x.cpu().numpy() for x in out]


@pytest.fixture(params=[pytest.param(Host, id="cpu"), pytest.param(Device, id="cuda", marks=pytest.mark.gpu)])
def place(request):
    return request.param


def rows(place, m=M):
    return m if place is Host else 12 * m


def qr(place, a, **options):
    batch, m, n = (1, *a.shape)[-3:]
    lead = a.shape[:-2]
    return place.run("qr", a.dtype.name, (batch, m, n, n), a, ((*lead, m, n), a.dtype), ((*lead, n, n), a.dtype), **options)


def svd(place, a):
    batch, m, n = (1, *a.shape)[-3:]
    lead, real = a.shape[:-2], REAL[a.dtype.name]
    shapes = ((*lead, m, n), a.dtype), ((*lead, n), real), ((*lead, n, n), a.dtype), (lead or (1,), "int32")
    return place.run("svd", a.dtype.name, (batch, m, n, 0), a, *shapes)


def svdvals(place, a):
    batch, m, n = (1, *a.shape)[-3:]
    lead = a.shape[:-2]
    return place.run("svdvals", a.dtype.name, (batch, m, n), a, ((*lead, n), REAL[a.dtype.name]), (lead or (1,), "int32"))


def random(m, n, dtype, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, n))
    return (a + 1j * rng.standard_normal((m, n)) if dtype[0] == "c" else a).astype(dtype)


def conditioned(m, n, dtype, condition):
    """About: the columns of a tall random matrix are nearly orthogonal."""
    wide = "complex128" if dtype[0] == "c" else "float64"
    u, v = random(m, n, wide), np.linalg.qr(random(n, n, wide, seed=1))[0]
    return np.ascontiguousarray(((u * np.logspace(0, -np.log10(condition), n)) @ v.conj().T).astype(dtype))


def squared(q):
    """Q^H Q, summed by pieces: a million rows in one sum would show its own rounding."""
    return np.sum([piece.T.conj() @ piece for piece in np.array_split(q, len(q) // 4096 + 1)], axis=0)


def error(a, left, right, *orthonormal):
    """The largest of ||A - left right|| / ||A|| and ||Q^H Q - I||, over n eps."""
    n = a.shape[-1]
    wide = "complex128" if a.dtype.kind == "c" else "float64"
    a, left, right = (x.astype(wide) for x in (a, left, right))
    size = np.abs(a).max() or 1.0
    scaled = a / size
    norm = np.sqrt(np.linalg.norm(scaled.T.conj() @ scaled, 2)) * size or 1.0
    errors = [np.linalg.norm((a - left @ right) / norm)]
    errors += [np.linalg.norm(squared(q.astype(wide)) - np.eye(n), 2) for q in orthonormal]
    return max(errors) / (n * eps_of(orthonormal[0]))


def eps_of(a):
    return np.finfo(a.dtype).eps


def check(place, a):
    q, r = qr(place, a)
    assert error(a, q, r, q) < 10
    assert (np.tril(r, -1) == 0).all()
    assert (np.diag(r).real >= 0).all()  # only this method always gives that: it was not handed over
    u, s, vh, info = svd(place, a)
    assert info.item() == 0
    assert error(a, u * s, vh, u, vh.T.conj()) < 10
    assert (np.diff(s) <= 0).all() and (s >= 0).all()
    values, info = svdvals(place, a)
    assert info.item() == 0
    assert np.abs(values - s).max() <= 10 * a.shape[1] * eps_of(a) * s[0]


@pytest.mark.parametrize("condition", [1, 1e5, 1e10, 1e15])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_condition(place, dtype, condition):
    check(place, conditioned(rows(place), N, dtype, condition))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(place, dtype):
    """Just over the limits, odd ones, more than one block of columns."""
    for m, n in place.sizes:
        check(place, conditioned(m, n, dtype, 1e3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_singular(place, dtype):
    m = rows(place)
    a = conditioned(m, N, dtype, 100)
    a[:, 3] = 0
    a[:, 7] = a[:, 6]
    a[:, 20] = a[:, 1] + a[:, 2]
    check(place, a)
    assert (qr(place, a)[1][:, 3] == 0).all()
    check(place, np.ones((m, N), dtype))  # every row the same: rounding is no help
    check(place, np.zeros((m, N), dtype))
    a = np.zeros((m, N), dtype)
    a[:N] = np.eye(N)
    check(place, a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_columns(place, dtype):
    a = conditioned(rows(place), N, dtype, 1e3)
    exponent = 150 if REAL[dtype] == "float64" else 29
    for by in (np.logspace(-exponent, exponent, N), np.logspace(exponent, -exponent, N)):
        check(place, np.ascontiguousarray(a * by.astype(REAL[dtype])))
    check(place, a * a.dtype.type(10.0**-exponent))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_small_pivot_before_large_ones(place, dtype):
    """The third column is what is left of the second, which is nearly the first: an inverse of R would lose it."""
    a = random(rows(place), N, dtype)
    a[:, 1] = a[:, 0] + a.dtype.type(3e-6) * a[:, 2]
    check(place, a)


def test_threads_and_batches_do_not_matter():
    a = np.stack([conditioned(*Host.batch[1:], "float64", c) for c in (10, 1e8, 1e14)])
    together = qr(Host, a)
    for k in range(3):
        for threads in (1, 3):
            for one, all_ in zip(qr(Host, a[k], threads=threads), together, strict=True):
                assert (one == all_[k]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(place, dtype, bad):
    """Handed to the direct routine, which says so; the neighbours are done."""
    batch, m, n = place.batch
    try:
        qr(place, random(32, 4, dtype))
    except RuntimeError:
        pytest.skip("there is no direct routine")
    a = np.stack([conditioned(m, n, dtype, 10.0 ** (k + 1)) for k in range(batch)])
    a[1, m // 2, 5] = bad
    u, s, vh, info = svd(place, a)
    assert info.tolist() == [0, 1, 0]
    assert np.isnan(u[1]).all() and np.isnan(s[1]).all() and np.isnan(vh[1]).all()
    q, r = qr(place, a)
    assert not np.isfinite(q[1]).any() or not np.isfinite(r[1]).all()
    for k in (0, 2):
        assert error(a[k], u[k] * s[k], vh[k], u[k]) < 10
        assert error(a[k], q[k], r[k], q[k]) < 10


def test_input_is_left_alone(place):
    a = conditioned(rows(place), N, "float64", 1e10)
    kept = a.copy()
    svd(place, a)
    assert (a == kept).all()
