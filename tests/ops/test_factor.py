"""One Factor for every kind of array, and what strangers found in it."""

import pickle

import numpy as np
import pytest

import lapwing as lw
from lapwing.distributed import ShardedMatrix


def with_spectrum(values, seed=0, symmetric=True):
    rng = np.random.default_rng(seed)
    n = len(values)
    q, p = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    a = (q * values) @ (q.T if symmetric else p)
    return (a + a.T) / 2 if symmetric else a


@pytest.mark.parametrize("assume", ["pos", "hermitian", "symmetric"])
def test_inverse_keeps_its_residual(assume):
    n = 30
    a = with_spectrum(np.geomspace(1, 1e-10, n))
    x = lw.factor(a, assume=assume).inv()
    assert np.array_equal(x, x.T)
    residual = np.abs(a @ x - np.eye(n)).max() / (np.abs(a).max() * np.abs(x).max())
    assert residual <= 10 * n * np.finfo(float).eps


@pytest.mark.parametrize("smallest", [1e-2, 1e-6, 1e-9, 1e-12, 1e-16])
@pytest.mark.parametrize("solved", [False, True])
def test_rcond_of_a_mixed_factor(smallest, solved):
    n = 30
    a = with_spectrum(np.geomspace(1, smallest, n), symmetric=False)
    f = lw.factor(a, assume="general", precision="mixed")
    if solved:
        f.solve(np.ones(n))
    truth = 1 / np.linalg.cond(a, 1)
    # of a matrix that is singular to working precision only the size is known
    assert truth / 3 <= float(f.rcond()) <= (10 if smallest == 1e-16 else 3) * truth


def kinds():
    a = np.array([[4.0, 2.0], [2.0, 3.0]])
    yield "numpy", a
    yield "sharded", ShardedMatrix.scatter(a, None)
    yield from (("torch", "torch.tensor"), ("jax", "jax.numpy.asarray"), ("tensorflow", "tensorflow.constant"))


@pytest.mark.parametrize("kind, made", list(kinds()), ids=lambda x: x if isinstance(x, str) and "." not in x else "")
@pytest.mark.parametrize("precision", ["full", "mixed"])
def test_one_class_for_every_kind(kind, made, precision):
    if isinstance(made, str):
        module, _, make = made.rpartition(".")
        pytest.importorskip(module.partition(".")[0])
        import importlib

        if kind == "jax":
            importlib.import_module("jax").config.update("jax_enable_x64", True)
        made = getattr(importlib.import_module(module), make)([[4.0, 2.0], [2.0, 3.0]])
        if kind == "torch":
            made = made.double()
        elif kind == "tensorflow":
            made = importlib.import_module("tensorflow").cast(made, "float64")
    f = lw.factor(made, precision=precision)
    assert type(f) is lw.Factor and f.shape == (2, 2) and f.dtype == "float64" and f.report["kind"] == "cholesky"
    assert ("precision" in f.report) == (precision == "mixed")
    assert float(f.logdet()) == pytest.approx(np.log(8)) and repr(f).startswith("Factor(assume='pos', shape=(2, 2)")
    with pytest.raises(AttributeError, match=r"hint: Factor\.l"):
        f.lu  # noqa: B018
    if kind in ("numpy", "torch", "jax"):
        again = pickle.loads(pickle.dumps(f))
        assert type(again) is lw.Factor and float(again.logdet()) == float(f.logdet())


@pytest.mark.parametrize("assume", ["lower", "upper", "general", "pos"])
def test_rcond_of_a_matrix_that_failed_is_quiet(assume):
    """Warnings are errors here: Inf times zero on the way to the answer is no concern of the user's."""
    a = np.stack([np.eye(4) + 0j] * 6)
    a[2, 1, 1] = np.inf
    f = lw.factor(a, assume=assume, on_fail="nan", engine="lapack")
    assert f.rcond()[2] == 0 and np.allclose(np.delete(f.rcond(), 2), 1)
