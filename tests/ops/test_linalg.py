"""lapwing.linalg: the standard's names, signatures, shapes, dtypes and promotion, for every library."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import lapwing as lw
from backends import CPU, DTYPES, GPU, hermitian, open_backend, random, spd
from lapwing import linalg

INF = float("inf")
# as in the text of the standard, without annotations
SIGNATURES = {
    "cholesky": "(x, /, *, upper=False)",
    "cross": "(x1, x2, /, *, axis=-1)",
    "det": "(x, /)",
    "diagonal": "(x, /, *, offset=0)",
    "eig": "(x, /)",
    "eigh": "(x, /)",
    "eigvals": "(x, /)",
    "eigvalsh": "(x, /)",
    "inv": "(x, /)",
    "matmul": "(x1, x2, /)",
    "matrix_norm": "(x, /, *, keepdims=False, ord='fro')",
    "matrix_power": "(x, n, /)",
    "matrix_rank": "(x, /, *, rtol=None)",
    "matrix_transpose": "(x, /)",
    "outer": "(x1, x2, /)",
    "pinv": "(x, /, *, rtol=None)",
    "qr": "(x, /, *, mode='reduced')",
    "slogdet": "(x, /)",
    "solve": "(x1, x2, /)",
    "svd": "(x, /, *, full_matrices=True)",
    "svdvals": "(x, /)",
    "tensordot": "(x1, x2, /, *, axes=2)",
    "trace": "(x, /, *, offset=0, dtype=None)",
    "vecdot": "(x1, x2, /, *, axis=-1)",
    "vector_norm": "(x, /, *, axis=None, keepdims=False, ord=2)",
}
SHAPES = [(0, 0), (1, 1), (4, 4), (0, 3, 3), (2, 3, 3), (2, 0, 5, 5), (2, 3, 6, 6)]
RECTANGLES = [(0, 3), (3, 0), (4, 3), (3, 4), (2, 5, 3), (0, 3, 2), (2, 2, 3, 5)]


@pytest.fixture(params=CPU + GPU)
def backend(request):
    with open_backend(*request.param) as opened:
        yield opened


def close(got, expected, size=1.0):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    wide = expected.dtype if expected.dtype.kind in "fc" else np.dtype("float64")
    eps = float(np.finfo(min(wide, got.dtype) if got.dtype.kind in "fc" else wide).eps)
    finite = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    assert np.allclose(got, expected, rtol=0, atol=100 * eps * size * max(1.0, finite), equal_nan=True)


def test_names_and_signatures():
    assert sorted(SIGNATURES) == linalg.__all__ and lw.linalg is linalg
    for name, expected in SIGNATURES.items():
        signature = inspect.signature(getattr(linalg, name))
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        assert str(inspect.Signature(plain)) == expected, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_square_matrices(backend, dtype):
    real = np.zeros((), dtype).real.dtype
    for shape in SHAPES:
        a, h, p = random(shape, dtype) + 3 * np.eye(shape[-1], dtype=dtype), hermitian(shape, dtype), spd(shape, dtype)
        put, get = backend.put, backend.get
        close(get(linalg.cholesky(put(p))), np.linalg.cholesky(p))
        close(get(linalg.cholesky(put(p), upper=True)), np.linalg.cholesky(p).swapaxes(-1, -2).conj())
        d = get(linalg.det(put(a)))
        close(d, np.linalg.det(a))
        values, vectors = linalg.eigh(put(h))
        close(get(values), np.linalg.eigvalsh(h))
        close(get(vectors) * get(values)[..., None, :], h @ get(vectors))
        w = linalg.eigvalsh(put(h))
        assert get(w).dtype == real and get(vectors).dtype == dtype and d.dtype == dtype
        close(get(linalg.inv(put(a))) @ a, np.broadcast_to(np.eye(shape[-1], dtype=dtype), shape), 10)
        result = linalg.slogdet(put(a))
        close(get(result.sign) * np.exp(get(result.logabsdet)), np.linalg.det(a))
        assert get(result.logabsdet).dtype == real and get(result.sign).dtype == dtype
        for n in (0, 1, 2, 5, -2):
            close(get(linalg.matrix_power(put(a), n)), np.linalg.matrix_power(a, n), 10)
        b = random((*shape[:-1], 2), dtype, 1)
        close(get(linalg.solve(put(a), put(b))), np.linalg.solve(a, b))
        vector = random(shape[-1:], dtype, 2)
        close(get(linalg.solve(put(a), put(vector))), np.linalg.solve(a, vector[:, None])[..., 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rectangles(backend, dtype):
    put, get = backend.put, backend.get
    real = np.zeros((), dtype).real.dtype
    for shape in RECTANGLES:
        a = random(shape, dtype)
        (*batch, m, n), k = shape, min(shape[-2:])
        for mode, columns in (("reduced", k), ("complete", m)):
            q, r = (get(x) for x in linalg.qr(put(a), mode=mode))
            assert q.shape == (*batch, m, columns) and r.shape == (*batch, columns, n) and q.dtype == r.dtype == dtype
            close(q @ r, a)
        u, s, vh = (get(x) for x in linalg.svd(put(a)))
        assert u.shape == (*batch, m, m) and s.shape == (*batch, k) and vh.shape == (*batch, n, n) and s.dtype == real
        close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a)
        assert get(linalg.svd(put(a), full_matrices=False).U).shape == (*batch, m, k)
        close(get(linalg.svdvals(put(a))), s)
        close(get(linalg.pinv(put(a))), np.linalg.pinv(a) if k else np.zeros((*batch, n, m), dtype), 10)
        rank = get(linalg.matrix_rank(put(a)))
        assert rank.dtype.kind == "i" and (rank == k).all() and rank.shape == tuple(batch)
        assert get(linalg.matrix_transpose(put(a))).shape == (*batch, n, m)
        for ord in ("fro", "nuc", 1, -1, 2, -2, INF, -INF) if k else ("fro", "nuc"):
            for keepdims in (False, True):
                norm = get(linalg.matrix_norm(put(a), ord=ord, keepdims=keepdims))
                assert norm.dtype == real
                close(norm, np.linalg.norm(a, ord, (-2, -1), keepdims) if a.size else norm * 0)


def test_rtol_of_each_matrix(backend):
    a = np.stack([np.diag([1.0, 1e-3, 1e-6])] * 2)
    rtol = backend.put(np.array([1e-2, 1e-5]))
    assert backend.get(linalg.matrix_rank(backend.put(a), rtol=rtol)).tolist() == [1, 2]
    assert backend.get(linalg.matrix_rank(backend.put(a), rtol=1e-4)).tolist() == [2, 2]
    inverse = backend.get(linalg.pinv(backend.put(a), rtol=rtol))
    assert np.allclose(np.diagonal(inverse, axis1=-2, axis2=-1), [[1, 0, 0], [1, 1e3, 0]])


@pytest.mark.parametrize("dtype", ["int32", "int64", *DTYPES])
def test_products_and_views(backend, dtype):
    put, get = backend.put, backend.get
    a, b = (10 * random((2, 4, 3), "float64", 1)).astype(dtype), (10 * random((4, 3), "float64", 2)).astype(dtype)
    for offset in (-5, -1, 0, 1, 5):
        close(get(linalg.diagonal(put(a), offset=offset)), np.diagonal(a, offset, -2, -1))
        close(get(linalg.trace(put(a), offset=offset)), np.trace(a, offset, -2, -1))
    assert get(linalg.trace(put(a))).dtype == (np.trace(b).dtype if backend.name not in ("tensorflow",) else dtype)
    close(get(linalg.cross(put(a), put(b))), np.cross(a, b))
    close(get(linalg.cross(put(a[:, :3]), put(b[None, :3]), axis=1)), np.cross(a[:, :3], b[None, :3], axis=1))
    close(get(linalg.vecdot(put(a), put(b))), (a.conj() * b).sum(-1, dtype=dtype))
    close(get(linalg.vecdot(put(a), put(b), axis=-2)), (a.conj() * b).sum(-2, dtype=dtype))
    close(get(linalg.outer(put(b[0]), put(b[:, 0]))), np.outer(b[0], b[:, 0]))
    if backend.device == "cuda" and (backend.name, dtype) in {("torch", "int32"), ("torch", "int64"), ("jax", "complex64")}:
        return  # torch has no products of integers there, and JAX multiplies in TF32
    for axes in (0, 1, 2):
        close(
            get(linalg.tensordot(put(a), put(b.T if axes < 2 else b), axes=axes)), np.tensordot(a, b.T if axes < 2 else b, axes)
        )
    close(get(linalg.tensordot(put(a), put(b), axes=((1,), (0,)))), np.tensordot(a, b, ((1,), (0,))))
    close(get(linalg.matmul(put(a), put(b.T))), a @ b.T)
    close(get(linalg.matmul(put(a), put(b[0]))), a @ b[0])
    assert get(linalg.matmul(put(a), put(b.T))).dtype == dtype and get(linalg.vecdot(put(a), put(b))).dtype == dtype
    close(get(linalg.matrix_power(put(a[:, :3]), 3)), np.linalg.matrix_power(a[:, :3], 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_vector_norms(backend, dtype):
    a = random((2, 3, 4), dtype)
    a[0, 0, 0] = 0
    for ord in (2, 1, 0, 3, 0.5, INF, -INF) if not dtype.startswith("x") else ():
        for axis in (None, 0, -1, (0, 2), (0, 1, 2), (-1, 0)):
            for keepdims in (False, True):
                axes = tuple(range(3)) if axis is None else tuple(i % 3 for i in ((axis,) if isinstance(axis, int) else axis))
                rest = tuple(i for i in range(3) if i not in axes)
                flat = np.transpose(np.abs(a), rest + axes).reshape(*[a.shape[i] for i in rest], -1)
                expected = np.linalg.norm(flat, ord, axis=-1)
                if keepdims:
                    expected = expected.reshape([1 if i in axes else n for i, n in enumerate(a.shape)])
                got = backend.get(linalg.vector_norm(backend.put(a), axis=axis, keepdims=keepdims, ord=ord))
                assert got.dtype == np.abs(a).dtype
                close(got, expected, 10)


def test_promotion(backend):
    put, get = backend.put, backend.get
    a, b, v = random((3, 3), "float32"), random((3, 3), "complex128", 1), random((3,), "float64", 2)
    for got, dtype in (
        (linalg.matmul(put(a), put(b)), "complex128"),
        (linalg.solve(put(a), put(v)), "float64"),
        (linalg.cross(put(a), put(v)), "float64"),
        (linalg.vecdot(put(a), put(v)), "float64"),
        (linalg.outer(put(a[0]), put(v)), "float64"),
        (linalg.tensordot(put(a), put(b)), "complex128"),
    ):
        assert get(got).dtype == dtype


def test_wrong_arguments(backend):
    put = backend.put
    for call in (
        lambda: linalg.cross(put(np.ones(2)), put(np.ones(2))),
        lambda: linalg.outer(put(np.ones((2, 2))), put(np.ones(2))),
        lambda: linalg.vecdot(put(np.ones(2)), put(np.ones(3))),
        lambda: linalg.matrix_norm(put(np.ones(3))),
        lambda: linalg.matrix_norm(put(np.ones((3, 3))), ord=3),
        lambda: linalg.matrix_norm(put(np.ones((2, 0, 3))), ord=-2),
        lambda: linalg.matrix_transpose(put(np.ones(3))),
        lambda: linalg.matrix_power(put(np.ones((2, 3))), 2),
        lambda: linalg.qr(put(np.ones((2, 3))), mode="raw"),
        lambda: linalg.matmul(put(np.ones(())), put(np.ones(3))),
    ):
        with pytest.raises(ValueError, match=": "):
            call()
    with pytest.raises(TypeError):
        linalg.outer(put(np.ones(2)), [1.0, 2.0])
    with pytest.raises(TypeError, match="matrix_rank: rtol must be a number or an array, got list"):
        linalg.matrix_rank(put(np.ones((2, 3, 3))), rtol=[1e-3, 1e-3])


def test_arrays_of_another_library():
    xp = pytest.importorskip("array_api_strict")
    a = xp.asarray(random((2, 3, 3), "float64"))
    for result in (linalg.svd(a).U, linalg.vecdot(a, a), linalg.pinv(a), linalg.matrix_norm(a, ord=1), linalg.trace(a)):
        assert type(result) is type(a)
    assert float(xp.max(xp.abs(linalg.matmul(a, linalg.inv(a)) - xp.eye(3)))) < 1e-12


def test_numpy_scalars_are_arrays_without_axes():
    x = np.float64(-3.0)
    assert linalg.vector_norm(x) == 3 and linalg.tensordot(x, np.ones(2), axes=0).tolist() == [-3.0, -3.0]
