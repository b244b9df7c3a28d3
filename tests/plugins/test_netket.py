"""lapwing's solvers for NetKet: the interface of NetKet's own, and NetKet itself where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from backends import spd, x64  # noqa: E402
from lapwing.plugins.netket import cholesky, mixed, pinv_smooth  # noqa: E402

EPS = np.finfo("float64").eps


class Dense:
    """What NetKet's geometric tensors have."""

    def __init__(self, matrix):
        self.matrix = matrix

    def to_dense(self):
        return self.matrix


def problem(dtype="float64", n=12):
    a = spd((n, n), dtype)
    b = {"w": jnp.asarray(a[:4, :2]), "v": jnp.asarray(a[:4, 3])}
    return jnp.asarray(a), b


def flat(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


@pytest.mark.parametrize(
    "solver",
    [cholesky, cholesky(lower=True), mixed, pinv_smooth, pinv_smooth(rtol=1e-13)],
    ids=["cholesky", "cholesky_lower", "mixed", "pinv_smooth", "pinv_smooth_rtol"],
)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_solution(solver, dtype):
    with x64():
        a, b = problem(dtype)
        for matrix in (a, np.asarray(a), Dense(a)):
            x, info = solver(matrix, b, x0=b)
            assert jax.tree.structure(x) == jax.tree.structure(b)
            residual = np.asarray(a) @ flat(x) - flat(b)
            assert np.linalg.norm(residual) <= 10 * 12 * EPS * np.linalg.cond(a) * np.linalg.norm(flat(b))
        compiled, _ = jax.jit(solver)(a, b)
        assert np.allclose(flat(compiled), flat(x), rtol=1e-10)
        assert info is None or float(info["eval_max"]) == pytest.approx(float(np.linalg.eigvalsh(a)[-1]))


def test_small_eigenvalues():
    with x64():
        v = jnp.asarray(np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0])
        w = jnp.array([1e-16, 1e-15, 0.5, 1, 2, 4])
        b = jnp.ones(6)
        x, info = pinv_smooth((v * w) @ v.T, b, rtol=1e-12, return_eigvals=True)
        expected = v @ (jnp.where(w > 1e-12, 1 / w, 0) * (v.T @ b))
        assert np.allclose(x, expected, rtol=1e-10) and int(info["rank"]) == 4 and info["evals"].shape == (6,)
        assert jnp.isnan(cholesky(-jnp.eye(3), jnp.ones(3))[0]).all()


def test_options():
    assert pinv_smooth(rtol=1e-9) == pinv_smooth(rtol=1e-9) != pinv_smooth(rtol=1e-8)
    assert hash(pinv_smooth(rtol=1e-9)) == hash(pinv_smooth(rtol=1e-9))


@pytest.mark.parametrize("name", ["cholesky", "pinv_smooth"])
def test_as_netkets_own(name):
    own = pytest.importorskip("netket.optimizer.solver")
    with x64():
        a, b = problem()
        x, info = getattr(own, name)(a, b)
        y, other = {"cholesky": cholesky, "pinv_smooth": pinv_smooth}[name](a, b)
        assert np.allclose(flat(x), flat(y), rtol=1e-9)
        assert (info is None) == (other is None) and (info is None or sorted(info) == sorted(other))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_stochastic_reconfiguration():
    """A few steps of NetKet's optimiser end where they end with NetKet's own solver."""
    nk = pytest.importorskip("netket")

    def energy(solver):
        hilbert = nk.hilbert.Spin(s=1 / 2, N=6)
        hamiltonian = nk.operator.Ising(hilbert, nk.graph.Chain(6), h=1.0)
        state = nk.vqs.FullSumState(hilbert, nk.models.RBM(alpha=1), seed=1)
        rule = nk.optimizer.SR(diag_shift=0.01, solver=solver, qgt=nk.optimizer.qgt.QGTJacobianDense)
        driver = nk.driver.VMC(hamiltonian, nk.optimizer.Sgd(0.05), variational_state=state, preconditioner=rule)
        driver.run(5, show_progress=False)
        return float(state.expect(hamiltonian).mean.real)

    expected = energy(nk.optimizer.solver.cholesky)
    for solver in (cholesky, mixed, pinv_smooth(rtol=1e-12)):
        assert energy(solver) == pytest.approx(expected, rel=1e-8)
