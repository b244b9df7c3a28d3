"""det: every library and dtype, singular matrices, extreme sizes, derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import lapwing as lw
from backends import CPU, DTYPES, GPU, open_backend, random, x64

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in forward mode


@pytest.fixture(params=CPU + GPU)
def backend(request):
    with open_backend(*request.param) as opened:
        yield opened


def eps_of(a):
    return float(np.finfo(a.dtype).eps)


def well_conditioned(shape, dtype, seed=0):
    """Condition number about 10, and determinants of ordinary size."""
    q = np.linalg.qr(random(shape, "complex128" if dtype.startswith("complex") else "float64", seed))[0]
    return (q * np.geomspace(0.3, 3, shape[-1])).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("assume", ["general", "pos", "hermitian", "lower", "upper"])
def test_value(backend, dtype, assume):
    for shape in ((1, 1), (5, 4, 4), (40, 9, 9), (3, 33, 33), (1, 70, 70)):
        a = well_conditioned(shape, dtype)
        if assume == "pos":
            a = (a @ a.swapaxes(-1, -2).conj()) + np.eye(shape[-1], dtype=dtype)
        elif assume == "hermitian":
            a = (a + a.swapaxes(-1, -2).conj()) / 2
        elif assume in ("lower", "upper"):
            a = np.tril(a, -1) / shape[-1] + np.eye(shape[-1], dtype=dtype) * np.dtype(dtype).type(1.1)
            a = a if assume == "lower" else a.swapaxes(-1, -2)
        expected = np.linalg.det(a.astype("complex128" if np.iscomplexobj(a) else "float64"))
        got = backend.get(lw.det(backend.put(np.ascontiguousarray(a)), assume=assume))
        assert got.shape == shape[:-2] and got.dtype == a.dtype
        condition = np.linalg.cond(a).max()
        assert (np.abs(got - expected) <= 10 * shape[-1] * eps_of(a) * condition * np.abs(expected)).all()


def test_singular_empty_and_not_finite(backend):
    a = np.array([np.zeros((3, 3)), np.ones((3, 3)), np.eye(3), np.full((3, 3), np.nan), np.diag([1.0, np.inf, 1.0])])
    got = backend.get(lw.det(backend.put(a)))
    assert got[0] == 0 and abs(got[1]) <= 1e-15 and got[2] == 1 and np.isnan(got[3:]).all()
    assert float(backend.get(lw.det(backend.put(np.zeros((0, 0)))))) == 1
    assert backend.get(lw.det(backend.put(np.zeros((0, 4, 4))))).shape == (0,)
    indefinite = backend.put(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(lw.NotPositiveDefiniteError, match="det: "):
        lw.det(indefinite, assume="pos")
    assert np.isnan(backend.get(lw.det(indefinite, assume="pos", on_fail="nan")))
    with pytest.raises(ValueError, match="det: "):
        lw.det(backend.put(np.ones((2, 3))))


@pytest.mark.parametrize("n", [2, 20, 100])
def test_no_pivot_product_leaves_the_range_on_the_way(n):
    """The pivots' product is kept as mantissa and exponent: only the determinant itself may be too large or too small."""
    for large, small in ((1e300, 1e-300), (1e-300, 1e300)):
        a = np.eye(n)
        a[: n // 2] *= large
        a[n // 2 :] *= small
        assert abs(lw.det(a) - 1) <= 10 * n * np.finfo(float).eps
        assert abs(lw.det(np.stack([a] * 40)) - 1).max() <= 10 * n * np.finfo(float).eps
    huge = np.diag(np.full(n, 2.0**1000))
    assert lw.det(huge) == np.inf and lw.det(np.diag(np.full(n, 2.0**-990))) == 0
    spread = np.diag([2.0**1000, *[2.0**-20] * 10])  # scaled by its largest element the product would be zero
    assert lw.det(spread) == 2.0**800


@pytest.mark.parametrize("assume", ["lower", "upper"])
def test_triangles_whose_partial_products_leave_the_range(backend, assume):
    a = np.diag([1e200, 1e200, 1e-200, 1e-200])
    assert abs(backend.get(lw.det(backend.put(a), assume=assume)) - 1) <= 1e-12
    a = np.diag(np.array([2.0**-100] * 3 + [2.0**100] * 3, np.float32))
    assert abs(backend.get(lw.det(backend.put(a), assume=assume)) - 1) <= 1e-4
    for diagonal, expected in (([0.0, 1e300, 1e300], 0), ([1e300, 1e300, 1.0], np.inf), ([1e-300, 1e-300, 1.0], 0)):
        assert backend.get(lw.det(backend.put(np.diag(diagonal)), assume=assume)) == expected
    assert np.isnan(backend.get(lw.det(backend.put(np.diag([1.0, np.nan])), assume=assume)))


def test_the_same_as_slogdet_says():
    a = random((50, 12, 12), "complex128")
    sign, logabs = lw.slogdet(a)
    assert np.allclose(lw.det(a), sign * np.exp(logabs), rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------- derivatives


def adjugate(a):
    """From the definition: the transposed matrix of cofactors."""
    n = len(a)
    out = np.empty_like(a)
    for i in range(n):
        for j in range(n):
            out[j, i] = (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1))
    return out


def matrices_near_singular():
    rng = np.random.default_rng(3)
    full = rng.standard_normal((4, 4))
    rank3 = full - np.outer(full @ np.array([1.0, 0, 0, 0]), [1.0, 0, 0, 0])
    rank2 = np.diag([1.0, 2.0, 0.0, 0.0])
    nearly = rank3 + 1e-13 * rng.standard_normal((4, 4))
    return np.stack([full, rank3, rank2, nearly, np.eye(4), np.zeros((4, 4))])


def gradients(a):
    """d det / dA of each matrix through each framework, and under its compiler."""
    import jax
    import tensorflow as tf
    import torch

    x = torch.tensor(a, requires_grad=True)
    yield "torch", torch.autograd.grad(lw.det(x).sum(), x)[0].numpy()
    with x64():
        yield "jax vmap", np.asarray(jax.jit(jax.vmap(jax.grad(lw.det)))(a))
        yield "jax batch", np.asarray(jax.jit(jax.grad(lambda x: lw.det(x).sum()))(a))
    y = tf.constant(a)

    def by_tape(y):
        with tf.GradientTape() as tape:
            tape.watch(y)
            value = tf.reduce_sum(lw.det(y))
        return tape.gradient(value, y)

    yield "tf.function", tf.function(by_tape)(y).numpy()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradient_at_singular_matrices(dtype):
    a = matrices_near_singular().astype(dtype)
    if dtype == "complex128":
        a = a * np.exp(0.3j)
    expected = np.stack([adjugate(x) for x in a]).swapaxes(-1, -2)
    if dtype == "float64":
        for name, got in gradients(a):
            assert np.abs(got - expected).max() <= 1e-13, name
    import torch

    x = torch.tensor(a, requires_grad=True)
    (got,) = torch.autograd.grad(lw.det(x).sum().real, x)
    assert np.abs(got.numpy() - expected.conj()).max() <= 1e-13


def test_second_derivatives_and_forward_mode():
    import jax
    import jax.numpy as jnp
    import torch

    x = torch.tensor(random((3, 4, 4), "float64"), requires_grad=True)
    assert torch.autograd.gradcheck(lw.det, x)
    direction = torch.tensor(random((3, 4, 4), "float64", 1))
    _, forward = torch.func.jvp(lw.det, (x.detach(),), (direction,))
    (gradient,) = torch.autograd.grad(lw.det(x).sum(), x)
    assert torch.allclose(forward, (gradient * direction).sum((-1, -2)))
    assert torch.autograd.gradgradcheck(lw.det, x)
    with x64():
        ours, theirs = (jax.jit(jax.hessian(det)) for det in (lw.det, jnp.linalg.det))
        for a in (np.eye(3), random((3, 3), "float64")):
            assert np.allclose(ours(a), theirs(a), atol=1e-12)
        assert not np.isfinite(ours(np.ones((3, 3)))).all(), "not finite rather than wrong"


@pytest.mark.parametrize(
    "a",
    [
        np.eye(4) * 1e-100,
        np.eye(3) * 1e110,
        np.eye(3, dtype="float32") * np.float32(1e-16),
        np.diag([1e200, 1e200, 1e-200, 1e-200, 1.0]),
    ],
)
def test_gradients_of_extreme_matrices(a):
    import torch

    x = torch.tensor(a, requires_grad=True)
    (got,) = torch.autograd.grad(lw.det(x), x)
    d = np.diag(a).astype(np.longdouble)
    expected = np.array([np.prod(np.delete(d, i)) for i in range(len(d))])
    with np.errstate(over="ignore"):
        expected = expected.astype(a.dtype)
    assert np.allclose(np.diag(got.numpy()), expected, rtol=1e3 * eps_of(a), atol=0)


def test_second_derivatives_of_the_others_in_a_batch():
    """One singular matrix makes its own second derivatives alone not finite, and a high condition number none."""
    import torch

    a = np.stack([random((3, 3), "float64"), np.ones((3, 3)), np.diag([1.0, 1.0, 1e-9])])

    def second(a):
        x = torch.tensor(a, requires_grad=True)
        (g,) = torch.autograd.grad(lw.det(x).sum(), x, create_graph=True)
        return torch.autograd.grad((g**2).sum(), x)[0].numpy()

    got = second(a)
    assert np.allclose(got[0], second(a[:1])[0]) and not np.isfinite(got[1]).all()
    assert np.allclose(got[2], np.diag([2 * (1 + 1e-18), 2 * (1 + 1e-18), 4e-9]), atol=1e-6)
