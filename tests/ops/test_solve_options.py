"""engine= and precision= of a solve act where derivatives are recorded, and the derivatives are those of the full solve."""

import numpy as np
import pytest

import lapwing as lw
from lapwing.core.native import ENGINES, OPS, native

pytestmark = pytest.mark.skipif(native is None, reason="the native core is not built")

RNG = np.random.default_rng(0)
N = 24  # of much smaller matrices the residual may round to more than mixed precision accepts
X = RNG.standard_normal((N, N))
A, B, C = X @ X.T + N * np.eye(N), RNG.standard_normal((N, 2)), RNG.standard_normal((N, 2))


def exact(assume):
    """The gradients of sum(C * A^-1 B)."""
    gb = np.linalg.solve(A.T, C)
    ga = -gb @ np.linalg.solve(A, B).T
    return ((ga + ga.T) / 2 if assume == "pos" else ga), gb


def torch_gradients(**options):
    torch = pytest.importorskip("torch")
    a, b = (torch.tensor(x, requires_grad=True) for x in (A, B))
    (lw.solve(a, b, **options) * torch.tensor(C)).sum().backward()
    return a.grad.numpy(), b.grad.numpy()


def jax_gradients(**options):
    jax = pytest.importorskip("jax")
    with jax.enable_x64() if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        loss = jax.jit(jax.grad(lambda a, b: (lw.solve(a, b, **options) * C).sum(), (0, 1)))
        return [np.asarray(g) for g in loss(jax.numpy.asarray(A), jax.numpy.asarray(B))]


def tensorflow_gradients(**options):
    tf = pytest.importorskip("tensorflow")
    a, b = tf.constant(A), tf.constant(B)
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        loss = tf.reduce_sum(lw.solve(a, b, **options) * C)
    return [g.numpy() for g in tape.gradient(loss, [a, b])]


@pytest.mark.parametrize("engine", ["mixed", "lapack"])
@pytest.mark.parametrize("assume", ["general", "pos"])
@pytest.mark.parametrize("gradients", [torch_gradients, jax_gradients, tensorflow_gradients])
def test_gradients(gradients, assume, engine):
    native.record_runs(True)
    try:
        found = gradients(assume=assume, engine=engine)
        first = native.take_runs()[0]
    finally:
        native.record_runs(False)
    assert first[1] == ENGINES[engine]
    assert first[0] == OPS["solve" if engine == "mixed" else "cholesky" if assume == "pos" else "lu"]
    for g, wanted in zip(found, exact(assume), strict=True):
        assert np.abs(g - wanted).max() <= 10 * N * np.finfo(float).eps


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_mixed_has_derivatives_of_every_kind():
    torch = pytest.importorskip("torch")
    a, b = (torch.tensor(x, requires_grad=True) for x in (A[:6, :6], B[:6]))
    for assume in ("general", "pos"):
        call = lambda a, b, assume=assume: lw.solve((a + a.T) / 2, b, assume=assume, engine="mixed")  # noqa: E731
        assert torch.autograd.gradcheck(call, (a, b), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, (a, b))
