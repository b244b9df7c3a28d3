"""Triangles given as transposed views are solved where they lie: without a copy, and the other triangle is not read."""

import numpy as np
import pytest

import lapwing as lw
from lapwing.core.native import native

pytestmark = pytest.mark.skipif(native is None, reason="the native core is not built")

DTYPES = ["float32", "float64", "complex64", "complex128"]
ORDERS = [1, 2, 7, 16, 17, 31, 33, 64, 100, 129, 257, 513, 600, 700]


def system(n, dtype, upper, columns, unit=False, batch=()):
    """A well-conditioned triangle, NaN beside it, and a right-hand side."""
    rng = np.random.default_rng(n)

    def numbers(*shape):
        return (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype[0] == "c" else 0)).astype(dtype)

    full = numbers(*batch, n, n) / n + 2 * np.eye(n, dtype=dtype)
    inside = np.tri(n, k=-1 if unit else 0, dtype=bool)
    inside = inside.T if upper else inside
    exact = np.where(inside, full, np.eye(n, dtype=dtype) if unit else 0).astype(dtype)
    return np.where(inside, full, np.nan).astype(dtype), exact, numbers(*batch, n, columns)


def check(x, exact, b):
    n = exact.shape[-1]
    wide = np.result_type(exact.dtype, np.float64)
    error = np.abs(exact.astype(wide) @ np.asarray(x) - b).max()
    scale = np.abs(exact).sum(-1).max() * np.abs(np.asarray(x)).max()
    assert error <= 4 * n * np.finfo(exact.dtype).eps * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_numpy_views(dtype, upper):
    for n in ORDERS:
        for columns in (1, 2, 3, 4, 7, 20):
            for unit in (False, True):
                a, exact, b = system(n, dtype, upper, columns, unit)
                view = np.asfortranarray(a)
                check(lw.solve(view, b, assume="upper" if upper else "lower", unit=unit), exact, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_torch_views(dtype, upper):
    torch = pytest.importorskip("torch")
    for n in ORDERS:
        for batch in ((), (3,)):
            a, exact, b = system(n, dtype, upper, 2, batch=batch)
            memory = torch.from_numpy(np.ascontiguousarray(a.swapaxes(-1, -2)))
            plain = torch.from_numpy(a)
            for view in (memory.mT, memory.conj_physical().mH, plain.conj_physical().conj()):
                check(lw.solve(view, torch.from_numpy(b), assume="upper" if upper else "lower"), exact, b)


@pytest.mark.parametrize("kind", ["adjoint", "transpose", "numpy"])
def test_nothing_is_copied(monkeypatch, kind):
    """The memory of the transpose reaches the native core, with the other triangle named."""
    torch = pytest.importorskip("torch")
    a, exact, b = system(40, "complex128", False, 1)
    turned = np.ascontiguousarray(a.T)
    memory = torch.from_numpy(turned.conj() if kind == "adjoint" else turned)
    view = {"adjoint": memory.mH, "transpose": memory.mT, "numpy": turned.T}[kind]
    seen = []

    class Watched:
        def __getattr__(self, name):
            return getattr(native, name)

        def run(self, *arguments):
            first = arguments[-4]
            seen.append(first.ctypes.data if kind == "numpy" else first)
            return native.run(*arguments)

        def direct(self, *arguments):
            return False

    monkeypatch.setattr(f"lapwing.frameworks.{'numpy' if kind == 'numpy' else 'torch'}.native", Watched())
    check(lw.solve(view, b if kind == "numpy" else torch.from_numpy(b), assume="lower"), exact, b)
    assert seen == [turned.ctypes.data if kind == "numpy" else memory.data_ptr()]


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_the_bits_do_not_depend_on_the_threads(upper, layout, dtype):
    torch = pytest.importorskip("torch")
    a, _, b = system(1100, dtype, upper, 3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            view = torch.from_numpy(a) if layout == "C" else torch.from_numpy(np.ascontiguousarray(a.T)).mT
            results.append(lw.solve(view, torch.from_numpy(b), assume="upper" if upper else "lower"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_of_a_batch_of_views_fails(dtype):
    """Only the matrix with a zero pivot is NaN, also where the conjugate is solved."""
    a, exact, b = system(20, dtype, False, 2, batch=(3,))
    a[1, 7, 7] = 0
    x = lw.solve(np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2), b, assume="lower", on_fail="nan")
    assert np.isnan(x[1]).all()
    for m in (0, 2):
        check(x[m], exact[m], b[m])


@pytest.mark.parametrize("n", [5, 40, 600])
def test_a_zero_pivot_is_named(n):
    a, _, b = system(n, "float64", True, 1)
    a[n // 2, n // 2] = 0
    for view in (a, np.asfortranarray(a)):
        with pytest.raises(lw.SingularMatrixError, match=f"pivot {n // 2 + 1} "):
            lw.solve(view, b, assume="upper")


def test_derivatives_of_a_view():
    torch = pytest.importorskip("torch")
    a, _, b = system(12, "float64", False, 2)
    memory = torch.from_numpy(np.nan_to_num(a)).requires_grad_()
    right = torch.from_numpy(b).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, r: lw.solve(m.mT, r, assume="upper"), (memory, right))
