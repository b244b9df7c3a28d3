"""What every framework promises of the arrays themselves: promotion of dtypes, shape errors, alignment, other libraries."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import lapwing as lw
from backends import random, spd

PAIRS = [("float32", "float64"), ("float64", "complex64"), ("complex64", "float32"), ("complex128", "float64")]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_solve_and_lstsq_promote(backend, first, second):
    """As the array API standard says, and each framework's own functions do."""
    common = np.result_type(first, second)
    a, b = spd((3, 4, 4), first), random((3, 4, 2), second)
    expected = np.linalg.solve(a.astype(common), b.astype(common))
    tolerance = 100 * np.finfo(first).eps + 100 * np.finfo(second).eps
    for x in (
        lw.solve(backend.put(a), backend.put(b)),
        lw.solve(backend.put(a), backend.put(b), assume="pos"),
        lw.solve_ex(backend.put(a), backend.put(b)).result,
        lw.lstsq(backend.put(a), backend.put(b)).x,
    ):
        x = backend.get(x)
        assert x.dtype == common
        assert np.abs(x - expected).max() <= tolerance * np.abs(expected).max()
    assert (
        backend.get(lw.eigvalsh(backend.put(a), b=backend.put(spd((3, 4, 4), second)))).dtype == np.zeros(0, common).real.dtype
    )


def test_wrong_shapes_raise_an_error_of_both_kinds(backend):
    a = backend.put(np.eye(3))
    for call in (
        lambda: lw.cholesky(backend.put(np.ones((2, 3)))),
        lambda: lw.eigh(backend.put(np.ones(3))),
        lambda: lw.solve(a, backend.put(np.ones(4))),
        lambda: lw.solve(backend.put(np.ones((2, 3, 3))), backend.put(np.ones((5, 3, 1)))),
        lambda: lw.eigh(a, b=backend.put(np.eye(4))),
        lambda: lw.svd(backend.put(np.ones(3))),
    ):
        with pytest.raises(np.linalg.LinAlgError) as caught:
            call()
        assert isinstance(caught.value, ValueError)


def test_lstsq_with_rcond_of_minus_one(backend):
    """Machine precision, as in NumPy: a singular value of 2 eps counts, which max(m, n) eps would not let."""
    eps = np.finfo("float64").eps
    a = np.diag([1.0, 3 * eps, 1.0, 1.0, 1.0])
    assert int(lw.lstsq(backend.put(a), backend.put(np.ones(5)), rcond=-1).rank) == 5
    assert int(lw.lstsq(backend.put(a), backend.put(np.ones(5))).rank) == 4
    with pytest.raises(ValueError, match="rcond=-2"):
        lw.lstsq(backend.put(a), backend.put(np.ones(5)), rcond=-2)


def unaligned(a: np.ndarray) -> np.ndarray:
    memory = np.frombuffer(bytearray(a.nbytes + 4), a.dtype, offset=4, count=a.size).reshape(a.shape)
    memory[...] = a
    assert not memory.flags.aligned
    return memory


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_unaligned_memory(library, dtype, overwrite):
    """Native code may only see aligned addresses: it crashed on these."""
    put = np.asarray if library == "numpy" else pytest.importorskip("torch").from_numpy
    for n in (4, 17, 40, 130):
        positive, b = spd((n, n), dtype), random((n, 3), dtype)
        for turn in (lambda x: x, lambda x: x.T):
            for assume in ("general", "pos", "hermitian"):
                # rows of a random matrix are swapped
                a = random((n, n), dtype) + 2 * np.eye(n) if assume == "general" else positive
                expected = np.linalg.solve(a, b)
                room = 10 * n * np.finfo(dtype).eps * np.linalg.cond(a) * np.abs(expected).max()
                f = lw.factor(turn(put(unaligned(turn(a)))), assume=assume, overwrite=overwrite)
                for x in (
                    f.solve(put(unaligned(b))),
                    lw.solve(turn(put(unaligned(turn(a)))), put(unaligned(b)), assume=assume, overwrite=overwrite),
                ):
                    assert np.abs(np.asarray(x) - expected).max() <= room
        w, _ = lw.eigh(put(unaligned(positive)), overwrite=overwrite)
        size = np.abs(positive).sum(0).max()
        assert np.abs(np.asarray(w) - np.linalg.eigvalsh(positive)).max() <= 10 * n * np.finfo(dtype).eps * size


@pytest.mark.gpu
def test_unaligned_memory_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    a = spd((17, 17), "float64")
    raw = cupy.zeros(a.nbytes + 8, cupy.uint8)
    given = cupy.ndarray(a.shape, a.dtype, raw.data + 4)
    raw[4 : 4 + a.nbytes] = cupy.frombuffer(a.tobytes(), cupy.uint8)
    x = lw.factor(given, assume="general", overwrite=True).solve(cupy.ones((17, 1)))
    assert np.abs(a @ cupy.asnumpy(x) - 1).max() < 1e-12


class OnlyDlpack:
    """An array that can share its memory, and do nothing else."""

    def __init__(self, x):
        self.x = np.array(x)

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class OnMars(OnlyDlpack):
    def __dlpack_device__(self):
        return 99, 0


@pytest.mark.parametrize(("kind", "hint"), [(2, "pip install cupy-cuda13x"), (10, "install a build of CuPy for ROCm")])
def test_without_cupy(monkeypatch, kind, hint):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(OnlyDlpack, "__dlpack_device__", lambda self: (kind, 0))
    with pytest.raises(TypeError, match=f"hint: {hint}"):
        lw.cholesky(OnlyDlpack(np.eye(2)))


def test_arrays_that_speak_dlpack_alone():
    a, b = spd((4, 4), "float64"), random((4, 2), "float64")
    for got, expected in (
        (lw.cholesky(OnlyDlpack(a)), lw.cholesky(a)),
        (lw.solve(OnlyDlpack(a), OnlyDlpack(b)), lw.solve(a, b)),
        (lw.solve(OnlyDlpack(a), b), lw.solve(a, b)),
        (lw.eigvalsh(OnlyDlpack(a), b=OnlyDlpack(a)), lw.eigvalsh(a, b=a)),
        (lw.factor(OnlyDlpack(a)).solve(OnlyDlpack(b)), lw.factor(a).solve(b)),
        (lw.matmul(OnlyDlpack(a), OnlyDlpack(b)), a @ b),
    ):
        assert type(got) is np.ndarray and np.array_equal(got, expected)
    assert np.array_equal(a, OnlyDlpack(a).x)
    assert lw.explain(lw.cholesky, OnlyDlpack(a)) == lw.explain(lw.cholesky, a)
    with pytest.raises(TypeError, match="another library than the first"):
        lw.solve(a, OnlyDlpack(b))
    with pytest.raises(TypeError, match="DLPack device 99"):
        lw.cholesky(OnMars(a))
    with pytest.raises(TypeError, match="expected an array of NumPy"):
        lw.cholesky([[1.0]])
    with pytest.raises(TypeError, match="expected an array of NumPy"):
        lw.cholesky(np.ma.array(a))


def test_arrays_of_a_library_that_follows_the_standard():
    xp = pytest.importorskip("array_api_strict")
    a, b = spd((2, 4, 4), "float64"), random((2, 4, 3), "float64")
    calls = {
        "cholesky": lambda a, b: lw.cholesky(a),
        "cholesky_ex": lambda a, b: lw.cholesky_ex(a),
        "solve": lambda a, b: lw.solve(a, b),
        "inv": lambda a, b: lw.inv(a),
        "slogdet": lambda a, b: lw.slogdet(a[0, ...]),
        "eigh": lambda a, b: lw.eigh(a),
        "svd": lambda a, b: lw.svd(b),
        "qr": lambda a, b: lw.qr(b),
        "lstsq": lambda a, b: lw.lstsq(a, b),
        "polar": lambda a, b: lw.polar(a),
        "matmul": lambda a, b: lw.matmul(a, b),
        "factor": lambda a, b: lw.factor(a).solve(b),
    }
    for name, call in calls.items():
        ours, expected = call(xp.asarray(a), xp.asarray(b)), call(a, b)
        if isinstance(expected, tuple):
            assert ours._fields == expected._fields, name
        else:
            ours, expected = (ours,), (expected,)
        for x, y in zip(ours, expected, strict=True):
            assert x.__array_namespace__() is xp, name
            assert np.array_equal(np.from_dlpack(x), y) and str(np.from_dlpack(x).dtype) == str(y.dtype), name
