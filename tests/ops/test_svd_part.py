"""svd and svdvals with a subset, of matrices and operators; tol for part of a spectrum."""

from __future__ import annotations

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, random
from lapwing.core.native import native

needs_native = pytest.mark.skipif(native is None, reason="the native core was not built")


def triplet_error(a: np.ndarray, u: np.ndarray, s: np.ndarray, vh: np.ndarray) -> float:
    """Residuals, orthogonality and values against all of them, over max(m, n) eps, scaled by the norm."""
    eps = max(a.shape[-2:]) * np.finfo(a.dtype).eps
    a, u, vh = (x.astype("complex128") for x in (a, u, vh))
    adjoint = lambda x: np.conj(np.swapaxes(x, -1, -2))  # noqa: E731
    exact = np.linalg.svd(a, compute_uv=False)
    k, norm = s.shape[-1], exact.max()
    errors = (
        np.abs(a @ adjoint(vh) - u * s[..., None, :]).max() / norm,
        np.abs(adjoint(a) @ u - adjoint(vh) * s[..., None, :]).max() / norm,
        np.abs(adjoint(u) @ u - np.eye(k)).max(),
        np.abs(vh @ adjoint(vh) - np.eye(k)).max(),
        np.abs(exact[..., :k] - s).max() / norm,
    )
    return float(max(errors) / eps)


def with_values(m: int, n: int, values: np.ndarray, seed: int = 0) -> np.ndarray:
    left, right = (np.linalg.qr(random((size, len(values)), "float64", seed + size))[0] for size in (m, n))
    return (left * values) @ right.T


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(90, 60), (60, 90), (2, 70, 70), (20, 12), (3, 5), (1, 1)])
def test_largest(backend, dtype, shape):
    a = random(shape, dtype, seed=3)
    k = min(3, *shape[-2:])
    given = backend.put(a)
    u, s, vh = (backend.get(x) for x in lw.svd(given, subset=slice(k)))
    assert u.shape == (*shape[:-1], k) and s.shape == (*shape[:-2], k) and vh.shape == (*shape[:-2], k, shape[-1])
    assert triplet_error(a, u, s, vh) < 10
    assert np.allclose(backend.get(lw.svdvals(given, subset=slice(k))), s, atol=10 * max(shape) * np.finfo(dtype).eps * s.max())


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(310, 300), (300, 320)])
def test_engine_krylov(backend, dtype, shape, caplog):
    if backend.device == "cpu" and backend.name != "numpy" and (dtype != "float32" or shape[0] < shape[1]):
        pytest.skip("the same code as for NumPy")
    a = random(shape, dtype, seed=5)
    with caplog.at_level("INFO", "lapwing"):
        result = lw.svd(backend.put(a), subset=slice(6))
    assert triplet_error(a, *(backend.get(x) for x in result)) < 10
    assert "6 of 300 singular values: krylov" in caplog.text
    if backend.name not in ("jax", "tensorflow"):
        assert "6 singular values from the Gram matrix" in caplog.text


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "kind, values",
    {
        "steep": 10.0 ** -np.arange(280.0),
        "decaying": 10.0 ** -(np.arange(280) / 8),
        "one large value": np.r_[1e5, np.linspace(2, 1, 279)],
        "low rank": np.r_[3.0, 2, 1, np.zeros(277)],
        "repeated": np.r_[np.full(10, 4.0), np.ones(270)],
        "zero": np.zeros(280),
    }.items(),
)
def test_hard_values(dtype, kind, values):
    a = with_values(320, 280, values).astype(dtype)
    if kind == "zero":
        assert not lw.svdvals(a, subset=slice(8), engine="krylov").any()
        return
    assert triplet_error(a, *lw.svd(a, subset=slice(8), engine="krylov")) < 10


def test_extreme_scales(backend):
    a = random((300, 270), "float64", 7)
    for scale in (1e-200, 1e200):
        u, s, vh = (backend.get(x) for x in lw.svd(backend.put(a * scale), subset=slice(4)))
        assert triplet_error(a, u, s / scale, vh) < 10


def test_other_parts(backend):
    a = random((2, 9, 7), "float64", 1)
    exact = np.linalg.svd(a, compute_uv=False)
    for subset in (slice(2, 5), slice(-2, None), slice(None), slice(0, 100), slice(6, 7)):
        u, s, vh = (backend.get(x) for x in lw.svd(backend.put(a), subset=subset))
        k = len(range(7)[subset])
        assert u.shape == (2, 9, k) and vh.shape == (2, k, 7) and np.allclose(s, exact[:, subset])
        assert np.allclose(a @ np.swapaxes(vh, -1, -2), u * s[:, None, :])
        assert np.allclose(backend.get(lw.svdvals(backend.put(a), subset=subset)), s)


@needs_native
def test_values_alone_need_no_vectors():
    a = random((300, 280), "float64", 9)
    operation = {
        subset: lw.explain(lw.svdvals, a, subset=slice(*subset)).problem.operation for subset in ((2, 5), (200,), (5,))
    }
    assert operation == {(2, 5): "svdvals", (200,): "svdvals", (5,): "svd_part"}


def test_failures(backend):
    a = random((2, 300, 280), "float64", 2)
    a[1, 5, 6] = np.nan
    with pytest.raises(lw.ConvergenceError) as caught:
        lw.svd(backend.put(a), subset=slice(3))
    assert caught.value.batch_index == (1,) and caught.value.nonfinite
    u, s, vh = (backend.get(x) for x in lw.svd(backend.put(a), subset=slice(3), on_fail="nan"))
    assert np.isnan(s[1]).all() and np.isnan(u[1]).all() and np.isnan(vh[1]).all()
    assert triplet_error(a[0], u[0], s[0], vh[0]) < 10


def test_wrong_arguments():
    a = np.ones((4, 3))
    with pytest.raises(ValueError, match="selects none of 3 singular values"):
        lw.svd(a, subset=slice(0, 0))
    with pytest.raises(TypeError, match=r"slice\(16\)"):
        lw.svd(a, subset=3)
    with pytest.raises(ValueError, match="full_matrices"):
        lw.svd(a, subset=slice(2), full_matrices=True)
    with pytest.raises(TypeError, match=r"subset=slice\(k\)"):
        lw.svd(a, k=2)


@needs_native
def test_engines_by_name():
    a = random((300, 280), "float64", 9)
    for engine in ("krylov", "lapack"):
        assert triplet_error(a, *lw.svd(a, subset=slice(5), engine=engine)) < 10
        assert lw.explain(lw.svd, a, subset=slice(5), engine=engine).engine == engine
    with pytest.raises(ValueError, match="half of the singular values"):
        lw.svd(a, subset=slice(200), engine="krylov")
    assert "Gram matrix" in lw.explain(lw.svd, a, subset=slice(5)).reason
    assert lw.explain(lw.svd, a, subset=slice(5, 9)).reason.endswith("the subset is cut from all singular values")
    assert lw.explain(lw.svd, a, subset=slice(200)).engine == "lapack"


def test_small_operators_in_traced_code():
    jax = pytest.importorskip("jax")
    a = random((30, 30), "float32", 4)
    a = a + a.T

    def values(x):
        symmetric = lw.operator(lambda v: x @ v, a.shape, "float32", like=x)
        general = lw.operator(lambda v: x @ v, a.shape, "float32", like=x, rmatvec=lambda v: x.T @ v)
        return lw.eigvalsh(symmetric, subset=slice(-2, None)), lw.svdvals(general, subset=slice(2))

    exact = np.linalg.eigvalsh(a)
    w, s = jax.jit(values)(a)
    allowed = {"rtol": 0, "atol": 10 * len(a) * np.finfo(a.dtype).eps * np.abs(exact).max()}
    assert np.allclose(w, exact[-2:], **allowed) and np.allclose(s, np.sort(np.abs(exact))[:-3:-1], **allowed)


def test_traced():
    """Under jit and in graphs the same operation runs."""
    a = random((280, 270), "float64", 4)
    exact = np.linalg.svd(a, compute_uv=False)[:3]
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        s = jax.jit(lambda x: lw.svd(x, subset=slice(3)).S)(jax.numpy.asarray(a))
        assert np.allclose(s, exact)
    tf = pytest.importorskip("tensorflow")
    assert np.allclose(tf.function(lambda x: lw.svd(x, subset=slice(3)).S)(tf.constant(a)), exact)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(6, 4), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((4, 6), (5, 5)))])
def test_derivatives(dtype, shape):
    torch = pytest.importorskip("torch")
    a = torch.tensor(random(shape, dtype, 3), requires_grad=True)

    def projector(x):
        u, s, vh = lw.svd(x, subset=slice(2))
        return u @ torch.diag(s * s).to(u.dtype) @ vh, s  # does not depend on the phases

    assert torch.autograd.gradcheck(projector, (a,), check_forward_ad=True)
    assert torch.autograd.gradcheck(lambda x: lw.svdvals(x, subset=slice(2)), (a,), check_forward_ad=True)
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        x = jax.numpy.asarray(a.detach().numpy())
        mine = jax.grad(lambda x: lw.svdvals(x, subset=slice(2)).sum())(x)
        theirs = jax.grad(lambda x: jax.numpy.linalg.svd(x, full_matrices=False)[1][:2].sum())(x)
        assert np.allclose(mine, theirs)


# ---- operators


@needs_native
@pytest.mark.parametrize(
    "dtype, shape",
    [
        ("float64", (560, 510)),
        pytest.param("float32", (510, 560), marks=pytest.mark.slow),
        pytest.param("complex128", (510, 510), marks=pytest.mark.slow),
    ],
)
def test_operator(backend, dtype, shape):
    m, n = shape
    a = with_values(m, n, np.r_[np.linspace(30, 10, 12), np.linspace(5, 0, 88)]).astype(dtype)
    if backend.device == "cpu" and backend.name != "numpy" and dtype != "float64":
        pytest.skip("the same code as for NumPy")
    matrix, adjoint = backend.put(a), backend.put(np.ascontiguousarray(a.conj().T))
    given = lw.operator(lambda x: matrix @ x, shape, dtype, rmatvec=lambda y: adjoint @ y, like=matrix)
    u, s, vh = (backend.get(x) for x in lw.svd(given, subset=slice(5)))
    assert triplet_error(a, u, s, vh) < 10
    eps = np.finfo(s.dtype).eps
    assert np.abs(backend.get(lw.svdvals(given, subset=slice(5))) - s).max() <= 10 * max(shape) * eps * s[0]


def test_small_operator(backend):
    a = random((9, 6), "float64", 2)
    matrix, adjoint = backend.put(a), backend.put(np.ascontiguousarray(a.T))
    given = lw.operator(lambda x: matrix @ x, a.shape, "float64", rmatvec=lambda y: adjoint @ y, like=matrix)
    assert triplet_error(a, *(backend.get(x) for x in lw.svd(given, subset=slice(2)))) < 10


def test_operators_that_are_refused():
    a = random((9, 6), "float64", 2)
    with pytest.raises(ValueError, match="rmatvec"):
        lw.operator(lambda x: a @ x, (9, 6), "float64")
    with pytest.raises(TypeError, match="rmatvec must be a function"):
        lw.operator(lambda x: a @ x, (9, 6), "float64", rmatvec=3)
    given = lw.operator(lambda x: a @ x, (9, 6), "float64", rmatvec=lambda y: a.T @ y)
    with pytest.raises(ValueError, match="largest values"):
        lw.svd(given)
    with pytest.raises(ValueError, match="not known to be Hermitian"):
        lw.eigh(given, subset=slice(1))
    wrong = lw.operator(lambda x: x, (9, 6), "float64", rmatvec=lambda y: y)
    with pytest.raises(np.linalg.LinAlgError, match="matvec returned shape"):
        lw.svd(wrong, subset=slice(2))


# ---- tol


@needs_native
def test_tolerance(backend, caplog):
    n = 600
    x = random((n, n), "float64", 8)
    a = x @ x.T / n
    exact = np.linalg.eigvalsh(a)
    products = []
    for tol in (1e-3, None, 1e-14):
        with caplog.at_level("INFO", "lapwing"):
            w, v = (backend.get(x) for x in lw.eigh(backend.put(a), subset=slice(-4, None), engine="krylov", tol=tol))
        assert np.linalg.norm(a @ v - v * w, axis=0).max() <= max(tol or 0, n * np.finfo(float).eps) * exact[-1]
        assert np.abs(w - exact[-4:]).max() <= max(tol or 0, 10 * n * np.finfo(float).eps) * exact[-1]
        if tol is not None:
            assert f"residuals of {tol:.1e} of the norm" in caplog.text
        products += [int(text.split("took ")[1].split()[0]) for text in caplog.messages if "took" in text]
        caplog.clear()
    assert backend.name in ("jax", "tensorflow") or (len(products) == 3 and products[0] < products[1] <= products[2])
    loose = backend.get(lw.eigvalsh(backend.put(a), subset=slice(-4, None), engine="krylov", tol=1e-3))
    assert np.abs(loose - exact[-4:]).max() <= 1e-3 * exact[-1]


@needs_native
def test_tolerance_that_rounding_does_not_allow():
    a = random((400, 400), "float32", 1)
    a = a @ a.T
    w, v = lw.eigh(a, subset=slice(-3, None), engine="krylov", tol=1e-30)
    assert np.linalg.norm(a @ v - v * w) <= 400 * np.finfo("float32").eps * w[-1]


def test_tolerance_is_checked():
    a = np.eye(4)
    for tol in (0, -1, 1.5, np.nan, True, "1e-3"):
        with pytest.raises(ValueError, match="between 0 and 1"):
            lw.eigh(a, subset=slice(2), tol=tol)
    with pytest.raises(ValueError, match="needs a subset"):
        lw.eigvalsh(a, tol=1e-3)
    assert lw.eigvalsh(a, subset=slice(2), tol=1e-3).shape == (2,)
    assert "residuals" in lw.explain(lw.eigh, lw.spec((2000, 2000), "float64"), subset=slice(4), tol=1e-3).reason


@needs_native
def test_tolerance_of_an_operator():
    d = np.linspace(0, 1, 800) ** 2
    counts = []

    def product(x):
        counts[-1] += x.shape[1]
        return d[:, None] * x

    for tol in (1e-2, None):
        counts.append(0)
        w = lw.eigvalsh(lw.operator(product, (800, 800), "float64"), subset=slice(-3, None), tol=tol)
        assert np.abs(w - d[-3:]).max() <= (tol or 1e-11)
    assert counts[0] < counts[1]


def test_tensorflow_derivatives_and_vectorised_map():
    tf, torch = pytest.importorskip("tensorflow"), pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((6, 4))
    t, reference = tf.constant(x), torch.tensor(x, requires_grad=True)
    with tf.GradientTape() as tape:
        tape.watch(t)
        loss = tf.reduce_sum(lw.svd(t, subset=slice(2)).U[0] ** 2)
    (expected,) = torch.autograd.grad((lw.svd(reference, subset=slice(2)).U[0] ** 2).sum(), reference)
    assert np.allclose(tape.gradient(loss, t).numpy(), expected.numpy(), atol=1e-10)
    batch = np.random.default_rng(1).standard_normal((5, 6, 4))
    found = tf.vectorized_map(lambda a: lw.svd(a, subset=slice(2)).S, tf.constant(batch))
    assert np.allclose(found.numpy(), np.linalg.svd(batch, compute_uv=False)[:, :2])


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_large_operators_have_no_derivative_and_name_the_wrong_function():
    torch = pytest.importorskip("torch")
    a = (torch.randn(620, 600, dtype=torch.float64) * torch.linspace(2, 0.1, 600)).requires_grad_()
    plain = a.detach()

    def values(matvec, rmatvec):
        return lw.svd(lw.operator(matvec, (620, 600), "float64", rmatvec=rmatvec, like=plain), subset=slice(3))

    found = values(lambda x: a @ x, lambda y: a.T @ y)
    assert not any(x.requires_grad for x in found)
    assert torch.allclose(found.S, torch.linalg.svdvals(plain)[:3])
    with pytest.raises(ValueError, match="rmatvec returned shape"):
        values(lambda x: plain @ x, lambda y: (plain.T @ y)[:-1])
    with pytest.raises(TypeError, match="rmatvec returned ndarray"):
        values(lambda x: plain @ x, lambda y: (plain.T @ y).numpy())


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_operator_of_large_numbers():
    a = np.random.default_rng(0).standard_normal((620, 600)) * 1e170
    s = lw.svdvals(lw.operator(lambda x: a @ x, a.shape, "float64", rmatvec=lambda y: a.T @ y), subset=slice(3))
    assert np.allclose(s / 1e170, np.linalg.svd(a / 1e170, compute_uv=False)[:3])


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch.*")
def test_tolerance_in_one_graph():
    torch = pytest.importorskip("torch")
    a = torch.eye(40, dtype=torch.float64)
    found = torch.compile(lambda s: lw.eigh(s, subset=slice(-3, None), tol=1e-6)[0], fullgraph=True, backend="eager")(a)
    assert torch.allclose(found, torch.ones(3, dtype=torch.float64))
