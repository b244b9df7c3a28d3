"""Derivatives of eig and eigvals in every framework: of functions that do not depend on the phase of an eigenvector."""

from __future__ import annotations

import numpy as np
import pytest

import lapwing as lw
from backends import random, x64

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch._prims_common.check.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*functools.lru_cache.*:UserWarning"),
]

N = 4
WEIGHTS = np.arange(float(N * N)).reshape(N, N)
JORDAN = np.array([[2.0, 1.0], [0.0, 2.0]])


def turned_jordan(n, dtype="float64"):
    """A defective matrix whose computed eigenvalues differ by rounding errors."""
    q = np.linalg.qr(np.random.default_rng(n).standard_normal((n, n)))[0]
    return (q @ (np.eye(n) + np.eye(n, k=1)) @ q.T).astype(dtype)


def torch_loss(a):
    """Of values and vectors, in any order of the eigenvalues."""
    import torch

    w, v = lw.eig(a)
    inside = (v.abs() ** 2 * w.abs()[..., None, :]).sum(-1)
    return (inside * torch.tensor(WEIGHTS[0])).sum() + (w**3).real.sum() + (w.imag**2).sum()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_torch(dtype):
    torch = pytest.importorskip("torch")
    a = torch.tensor(random((2, N, N), dtype, seed=5), requires_grad=True)
    assert torch.autograd.gradcheck(torch_loss, (a,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(torch_loss, (a[:1].detach().requires_grad_(),))
    powers = lambda a: torch.view_as_real((lw.eigvals(a) ** 2).sum(-1))  # noqa: E731
    assert torch.autograd.gradcheck(powers, (a,), check_forward_ad=True)
    torch_loss(a).backward()
    assert a.grad.dtype == a.dtype


def test_phases_are_no_result():
    """A loss of the arbitrary phases gets a warning, one of real vectors' signs does not."""
    torch = pytest.importorskip("torch")
    a = torch.tensor(random((2, N, N), "complex128", seed=5), requires_grad=True)
    with pytest.warns(UserWarning, match="phases of the eigenvectors"):
        lw.eig(a).eigenvectors.real.sum().backward()
    symmetric = torch.tensor(np.diag([1.0, 2.0, 3.0]) + 0.1, requires_grad=True)
    lw.eig(symmetric).eigenvectors.real.sum().backward()
    single = lw.eig(a).eigenvectors.to(torch.complex64)  # rounding of a loss in lower precision is no dependence
    (single.abs() ** 2 * torch.arange(N)).sum().backward()


def test_torch_func_and_compile():
    torch = pytest.importorskip("torch")
    a = torch.tensor(random((3, N, N), "float64", seed=5))
    each = torch.stack([torch.func.grad(torch_loss)(x) for x in a])
    assert torch.allclose(torch.func.vmap(torch.func.grad(torch_loss))(a), each)
    moved = torch.func.jvp(torch_loss, (a,), (torch.ones_like(a),))[1]
    assert torch.allclose(moved, each.sum())
    compiled = torch.compile(lambda x: lw.eigvals(x).abs().sum(), backend="aot_eager")
    assert torch.allclose(compiled(a), lw.eigvals(a).abs().sum())
    leaf = a.clone().requires_grad_()
    compiled(leaf).backward()
    other = a.clone().requires_grad_()
    lw.eigvals(other).abs().sum().backward()
    assert torch.allclose(leaf.grad, other.grad)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)])
def test_jax_agrees_with_torch(dtype):
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    jnp = jax.numpy
    a = random((2, N, N), dtype, seed=5)
    leaf = torch.tensor(a, requires_grad=True)
    torch_loss(leaf).backward()

    def loss(a):
        w, v = lw.eig(a)
        inside = (jnp.abs(v) ** 2 * jnp.abs(w)[..., None, :]).sum(-1)
        return (inside * WEIGHTS[0]).sum() + (w**3).real.sum() + (w.imag**2).sum()

    with x64():
        expected = leaf.grad.numpy().conj()  # JAX's gradient of a real function is the conjugate of torch's
        for grad in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.vmap(jax.grad(loss))):
            g = grad(jnp.asarray(a))
            assert g.dtype == a.dtype
            assert np.abs(g - expected).max() <= 1e-10 * np.abs(expected).max()
        _, moved = jax.jvp(loss, (jnp.asarray(a),), (jnp.ones(a.shape, dtype),))
        assert abs(moved - expected.sum().real) <= 1e-10 * np.abs(expected).sum()


def test_tensorflow_agrees_with_torch():
    tf, torch = pytest.importorskip("tensorflow"), pytest.importorskip("torch")
    a = random((2, N, N), "float64", seed=5)
    leaf = torch.tensor(a, requires_grad=True)
    torch_loss(leaf).backward()

    def gradient(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            w, v = lw.eig(a)
            inside = tf.reduce_sum(tf.abs(v) ** 2 * tf.abs(w)[..., None, :], -1)
            loss = tf.reduce_sum(inside * WEIGHTS[0]) + tf.reduce_sum(tf.math.real(w**3)) + tf.reduce_sum(tf.math.imag(w) ** 2)
        return tape.gradient(loss, a)

    for function in (gradient, tf.function(gradient)):
        g = function(tf.constant(a)).numpy()
        assert g.dtype == a.dtype
        assert np.abs(g - leaf.grad.numpy()).max() <= 1e-10 * np.abs(g).max()


@pytest.mark.parametrize(
    "bad", [JORDAN, turned_jordan(2), turned_jordan(3), np.eye(3, k=1)], ids=["exact", "2", "3", "nilpotent"]
)
def test_defective_matrix_has_no_derivative(bad):
    torch, tf = pytest.importorskip("torch"), pytest.importorskip("tensorflow")
    n = len(bad)
    a = np.stack([np.diag(np.arange(1.0, n + 1)), bad, np.eye(n)])
    lw.eig(a)  # its values are there all the same
    leaf = torch.tensor(a, requires_grad=True)
    for loss in (lambda x: lw.eigvals(x).real.sum(), lambda x: lw.eig(x).eigenvectors.abs().sum()):
        with pytest.raises(lw.DefectiveMatrixError, match="matrix 1 of 3 is defective") as caught:
            loss(leaf).backward()
        assert caught.value.batch_index == (1,) and caught.value.failures == 1
    with pytest.raises(lw.DefectiveMatrixError), tf.GradientTape() as tape:
        x = tf.constant(a)
        tape.watch(x)
        value = tf.reduce_sum(tf.math.real(lw.eigvals(x)))
        tape.gradient(value, x)


@pytest.mark.parametrize("bad", [JORDAN, turned_jordan(3)], ids=["exact", "turned"])
def test_defective_matrix_is_nan_alone_under_a_trace(bad):
    jax = pytest.importorskip("jax")
    jnp, n = jax.numpy, len(bad)
    a = np.stack([np.diag(np.arange(1.0, n + 1)), bad, np.eye(n)])
    with x64():
        for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
            g = transform(lambda x: lw.eigvals(x).real.sum())(jnp.asarray(a))
            assert np.isnan(g[1]).all()
            assert np.abs(g[0] - np.eye(n)).max() < 1e-14 and np.abs(g[2] - np.eye(n)).max() < 1e-14


def test_equal_eigenvalues_are_no_obstacle():
    """The trace of A^3 is smooth where eigenvalues are equal and the matrix is not defective."""
    torch = pytest.importorskip("torch")
    q = np.linalg.qr(random((5, 5), "float64"))[0]
    s = np.eye(5) + 0.3 * random((5, 5), "float64", seed=2)
    for basis in (q, s):
        a = basis @ np.diag([1.0, 1.0, 1.0, 2.0, 2.0]) @ np.linalg.inv(basis)
        leaf = torch.tensor(a, requires_grad=True)
        (lw.eigvals(leaf) ** 3).real.sum().backward()
        assert np.abs(leaf.grad.numpy() - 3 * (a @ a).T).max() < 1e-10


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_equal_eigenvalues_of_symmetric_matrices(dtype):
    """LAPACK's general routine may return nearly parallel vectors there."""
    torch = pytest.importorskip("torch")
    n = 80
    q = np.linalg.qr(random((n, n), dtype))[0]
    values = np.repeat([1.0, 2.0, 3.0, 4.0], n // 4)
    for whole in ((q * values) @ q.conj().T, np.kron(np.eye(n // 4), random((4, 4), dtype))):
        a = (whole + whole.conj().T) / 2
        w, v = lw.eig(a)
        assert np.abs(v.conj().T @ v - np.eye(n)).max() < 10 * n * np.finfo(dtype).eps
        assert np.abs(a @ v - v * w).max() < 10 * n * np.finfo(dtype).eps * np.abs(w).max()
        leaf = torch.tensor(a, requires_grad=True)
        (lw.eigvals(leaf) ** 3).real.sum().backward()
        assert np.abs(leaf.grad.numpy() - 3 * (a @ a).conj().T).max() < 1e-10


def test_badly_scaled_is_not_defective():
    torch = pytest.importorskip("torch")
    d = np.diag([1.0, 1e7, 1e-7])
    a = d @ (np.diag([1.0, 2.0, 3.0]) + 0.1) @ np.linalg.inv(d)
    leaf = torch.tensor(a, requires_grad=True)
    lw.eigvals(leaf).real.sum().backward()
    assert np.abs(np.diag(leaf.grad.numpy()) - 1).max() < 1e-9


def test_schur_has_none():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    leaf = torch.tensor(random((3, 3), "float64"), requires_grad=True)
    with pytest.raises(NotImplementedError, match="schur: T and Z have no derivative"):
        lw.schur(leaf).T.sum().backward()
    with pytest.raises(NotImplementedError, match="schur: T and Z have no derivative"):
        jax.grad(lambda x: lw.schur(x).T.sum())(jax.numpy.ones((3, 3)))


def test_nothing_and_what_failed_are_not_defective():
    torch = pytest.importorskip("torch")
    empty = torch.zeros(2, 0, 0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(lw.eigvals(empty).real.sum(), empty)[0].shape == (2, 0, 0)
    a = torch.stack([torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.full((2, 2), torch.nan)]).requires_grad_()
    (gradient,) = torch.autograd.grad(lw.eigvals(a, on_fail="nan")[0].real.sum(), a)
    assert torch.allclose(gradient[0], torch.eye(2), atol=1e-5)
    assert gradient[1].isnan().all()
