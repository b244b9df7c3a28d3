"""lapwing's solvers give what lineax's own give, with derivatives, under vmap and jit."""

from __future__ import annotations

import numpy as np
import pytest

from backends import random, spd, x64

jax = pytest.importorskip("jax")
lineax = pytest.importorskip("lineax")
jnp = jax.numpy
plugin = pytest.importorskip("lapwing.plugins.lineax")


@pytest.fixture(autouse=True)
def double():
    with x64():
        yield


DEFINITE, SYMMETRIC = lineax.positive_semidefinite_tag, lineax.symmetric_tag
CASES = {
    "cholesky": (plugin.Cholesky(), lineax.Cholesky(), (5, 5), "pos", DEFINITE),
    "negative": (plugin.Cholesky(), lineax.Cholesky(), (5, 5), "neg", lineax.negative_semidefinite_tag),
    "lu": (plugin.LU(), lineax.LU(), (5, 5), "", ()),
    "qr": (plugin.QR(), lineax.QR(), (7, 4), "", ()),
    "wide": (plugin.QR(), lineax.QR(), (4, 7), "", ()),
    "svd": (plugin.SVD(), lineax.SVD(), (6, 4), "", ()),
    "low rank": (plugin.SVD(), lineax.SVD(), (6, 4), "low", ()),
    "eigh": (plugin.Eigh(), lineax.SVD(), (5, 5), "pos", DEFINITE),
}


def matrix(shape, kind, dtype):
    if kind in ("pos", "neg"):
        return spd(shape, dtype) * (1 if kind == "pos" else -1)
    a = random(shape, dtype)
    return a @ np.diag([1.0, 2.0, 1.0, 0.0]).astype(dtype) if kind == "low" else a


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", CASES)
def test_as_lineax(name, dtype):
    ours, own, shape, kind, tags = CASES[name]
    a, b = jnp.asarray(matrix(shape, kind, dtype)), jnp.asarray(random(shape[:1], dtype, 1))

    def solution(solver, a, b):
        return lineax.linear_solve(lineax.MatrixLinearOperator(a, tags), b, solver).value

    expected = solution(own, a, b)
    assert jnp.abs(jax.jit(solution, static_argnums=0)(ours, a, b) - expected).max() <= 1e-12
    batch_a, batch_b = jnp.stack([a, 2 * a, 3 * a]), jnp.stack([b, b, 2 * b])
    mapped = jax.vmap(lambda a, b: solution(ours, a, b))(batch_a, batch_b)
    assert jnp.abs(mapped - jnp.stack([expected, expected / 2, 2 * expected / 3])).max() <= 1e-12
    operator = lineax.MatrixLinearOperator(a, tags)
    for other in (operator.T, lineax.conj(operator)):
        vector = jnp.asarray(random((other.out_size(),), dtype, 2))
        assert (
            jnp.abs(lineax.linear_solve(other, vector, ours).value - lineax.linear_solve(other, vector, own).value).max()
            <= 1e-12
        )

    def loss(solver):
        return jax.grad(lambda a, b: jnp.sum(jnp.abs(solution(solver, a, b)) ** 2), argnums=(0, 1))

    if name != "low rank":
        for x, y in zip(loss(ours)(a, b), loss(own)(a, b), strict=True):
            assert jnp.abs(x - y).max() <= 1e-10 * max(1.0, float(jnp.abs(y).max()))


def test_one_kernel_for_a_batch():
    text = str(
        jax.make_jaxpr(
            jax.vmap(lambda a, b: lineax.linear_solve(lineax.MatrixLinearOperator(a, DEFINITE), b, plugin.Cholesky()).value)
        )(jnp.zeros((9, 3, 3)), jnp.zeros((9, 3)))
    )
    assert "f64[9,3,3]" in text and "lapwing" in text


def test_failures():
    singular = lineax.MatrixLinearOperator(jnp.zeros((3, 3)), DEFINITE)
    for solver in (plugin.Cholesky(), plugin.LU()):
        result = lineax.linear_solve(singular, jnp.ones(3), solver, throw=False)
        assert result.result != lineax.RESULTS.successful
    plain = lineax.MatrixLinearOperator(jnp.eye(3))
    for solver in (plugin.Cholesky(), plugin.Eigh()):
        with pytest.raises(ValueError, match="tag"):
            lineax.linear_solve(plain, jnp.ones(3), solver)
    with pytest.raises(ValueError, match="square"):
        lineax.linear_solve(lineax.MatrixLinearOperator(jnp.ones((3, 2))), jnp.ones(3), plugin.LU())
