"""A little of the identity for matrices that only rounding keeps from being positive definite."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lapwing as lw
from backends import spd, x64


def nearly_singular(dtype, n=12):
    """A matrix of rank 1, made indefinite by as much as rounding may do."""
    x = np.linspace(1, 2, n).astype(dtype)
    return (np.outer(x, x) - 8 * n * np.finfo(dtype).eps * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("upper", [False, True])
def test_only_failed_matrices_get_it(backend, dtype, upper):
    good = spd((12, 12), dtype)
    a = np.stack([good, nearly_singular(dtype), good])
    given = backend.put(a)
    with pytest.warns(RuntimeWarning, match=r"cholesky: up to .* was added to the diagonal of 1 of 3 matrices"):
        l = backend.get(lw.cholesky(given, jitter="auto", upper=upper))
    plain = backend.get(lw.cholesky(backend.put(good[None]), upper=upper))[0]
    assert (l[0] == plain).all() and (l[2] == plain).all()
    product = l[1].conj().T @ l[1] if upper else l[1] @ l[1].conj().T
    eps = np.finfo(dtype).eps
    added = (product - a[1]).real.diagonal()
    mean = a[1].diagonal().real.mean()
    assert 0 < added.mean() <= 1.1e-3 * mean if eps > 1e-10 else 0 < added.mean() <= 1.1e-4 * mean
    assert np.ptp(added) <= 10 * 12 * eps * abs(a[1]).max() and (backend.get(given) == a).all()
    report = lw.factor(given, jitter="auto", upper=upper).report["jitter"]
    amounts = backend.get(report)
    assert amounts.shape == (3,) and amounts[0] == amounts[2] == 0
    assert abs(amounts[1] - added.mean()) <= 10 * 12 * eps * abs(a[1]).max()


def test_a_number_is_relative_to_the_mean_of_the_diagonal(backend):
    for scale in (1e-6, 1.0, 1e6):
        a = nearly_singular("float64") * scale
        amount = float(backend.get(lw.factor(backend.put(a), jitter=1e-3).report["jitter"]))
        assert abs(amount / (1e-3 * a.diagonal().mean()) - 1) < 1e-12


def test_nothing_is_said_or_changed_where_nothing_is_wrong(backend):
    a = backend.put(spd((2, 5, 5), "float64"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (backend.get(lw.cholesky(a, jitter=0.5)) == backend.get(lw.cholesky(a))).all()
    assert (backend.get(lw.factor(a, jitter="auto").report["jitter"]) == 0).all()


def test_matrices_it_cannot_help(backend):
    for bad in (-np.eye(3), np.full((3, 3), np.nan), np.zeros((3, 3))):
        a = backend.put(np.stack([np.eye(3), bad]))
        with warnings.catch_warnings(), pytest.raises(lw.NotPositiveDefiniteError) as caught:
            warnings.simplefilter("error")
            lw.cholesky(a, jitter="auto")
        assert caught.value.batch_index == (1,) and caught.value.nonfinite == bool(np.isnan(bad).any())
        assert (backend.get(lw.factor(a, jitter=0.1, on_fail="nan").report["jitter"]) == 0).all()


@pytest.mark.parametrize(
    ("jitter", "options"), [(-1.0, {}), ("yes", {}), (True, {}), (np.inf, {}), (0.1, {"assume": "general"})]
)
def test_refused(jitter, options):
    with pytest.raises(ValueError, match="jitter"):
        lw.factor(np.eye(3), jitter=jitter, **options)


def test_derivatives():
    torch = pytest.importorskip("torch")
    a = torch.tensor(nearly_singular("float64"), requires_grad=True)

    def shifted(a):
        return a + 1e-3 * a.diagonal().mean() * torch.eye(12, dtype=a.dtype)

    with pytest.warns(RuntimeWarning):
        lw.cholesky(a, jitter=1e-3).diagonal().log().sum().backward()
    b = torch.tensor(nearly_singular("float64"), requires_grad=True)
    lw.cholesky(shifted(b)).diagonal().log().sum().backward()
    assert (a.grad - b.grad).abs().max() <= 1e-8 * b.grad.abs().max()


def test_in_traced_code():
    jax = pytest.importorskip("jax")
    with x64():
        a = jax.numpy.asarray(np.stack([nearly_singular("float64"), np.eye(12)]))
        with pytest.warns(RuntimeWarning):
            eager = lw.cholesky(a, jitter="auto")
        traced = jax.jit(lambda a: lw.cholesky(a, jitter="auto"))(a)
        assert abs(eager - traced).max() <= 1e-10
        gradient = jax.grad(lambda a: jax.numpy.log(jax.numpy.diagonal(lw.cholesky(a, jitter="auto")[0])).sum())(a)
        assert np.isfinite(gradient).all()
