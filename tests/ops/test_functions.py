"""expm, sqrtm, logm, inv_root, pinv, matrix_rank, cond: every library and dtype, failing inputs, derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import lapwing as lw
from backends import CPU, DTYPES, GPU, open_backend, random, spd, x64

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*:DeprecationWarning",  # torch's own, in forward mode
    "ignore:.*AutoGraph.*",
)


@pytest.fixture(params=CPU + GPU)
def backend(request):
    with open_backend(*request.param) as opened:
        yield opened


def wide(a):
    return a.astype("complex128" if np.iscomplexobj(a) else "float64")


def eps_of(a):
    return float(np.finfo(a.dtype).eps)


def right_half(shape, dtype, seed=0):
    """No eigenvalue near the negative real axis."""
    return (random(shape, dtype, seed) / (3 * np.sqrt(max(shape[-1], 1))) + np.eye(shape[-1])).astype(dtype)


def error(x, y):
    return np.abs(wide(x) - wide(y)).max(initial=0) / np.abs(wide(y)).max(initial=1e-300)


SHAPES = [(1, 1), (3, 4, 4), (2, 1, 33, 33)]
SOME = ["float32", "complex128"]  # the others differ in nothing but their size


@pytest.mark.parametrize("dtype", SOME)
def test_expm(backend, dtype):
    """exp of S D S^-1 with a known S and D: small, large and negative."""
    for shape in SHAPES:
        n = shape[-1]
        s = right_half((n, n), "complex128" if dtype.startswith("complex") else "float64", 1)
        for size in (1e-3, 1.0, 20.0):
            d = size * np.linspace(-1, 1, n) if n > 1 else np.array([-size])
            a = np.broadcast_to((s * d) @ np.linalg.inv(s), shape).astype(dtype)
            expected = np.broadcast_to((s * np.exp(d)) @ np.linalg.inv(s), shape)
            got = backend.get(lw.expm(backend.put(a)))
            assert got.dtype == dtype and got.shape == shape
            condition = np.linalg.cond(s) ** 2 * max(1.0, size)  # also of rounding a to dtype
            assert error(got, expected) <= 10 * n * eps_of(a) * condition


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("assume", ["general", "pos"])
def test_sqrtm(backend, dtype, assume):
    for shape in SHAPES:
        a = right_half(shape, dtype) if assume == "general" else spd(shape, dtype)
        read = np.where(np.tri(shape[-1], dtype=bool), a, np.nan) if assume == "pos" else a
        x = backend.get(lw.sqrtm(backend.put(read), assume=assume))
        assert x.dtype == dtype and error(x @ x, a) <= 10 * shape[-1] * eps_of(a)
        assert (np.linalg.eigvals(wide(x)).real > 0).all()
        assert assume == "general" or (x == x.swapaxes(-1, -2).conj()).all()


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("assume", ["general", "pos"])
def test_logm(backend, dtype, assume):
    for shape in SHAPES[:2]:
        a = right_half(shape, dtype) if assume == "general" else spd(shape, dtype)
        read = np.where(np.tri(shape[-1], dtype=bool), a, np.nan) if assume == "pos" else a
        x = backend.get(lw.logm(backend.put(read), assume=assume))
        assert x.dtype == dtype
        condition = np.linalg.cond(wide(a)).max() * max(1.0, np.abs(x).sum(-1).max())
        assert error(lw.expm(wide(x)), a) <= 10 * shape[-1] * eps_of(a) * condition


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("method", ["auto", "products"])
def test_inv_root(backend, dtype, method):
    for shape in SHAPES:
        for p in (1, 4, -2):
            a = spd(shape, dtype)
            x = wide(
                backend.get(lw.inv_root(backend.put(np.where(np.tri(shape[-1], dtype=bool), a, np.nan)), p, method=method))
            )
            product = np.linalg.matrix_power(x, p) @ wide(a)
            unit = np.eye(shape[-1])
            condition = np.linalg.cond(wide(a)).max()
            if p < 0:
                product = np.linalg.matrix_power(x, -p) @ np.linalg.inv(wide(a))
            assert np.abs(product - unit).max() <= 10 * shape[-1] * eps_of(a) * condition
            assert (x == x.swapaxes(-1, -2).conj()).all()
    ridge = backend.get(lw.inv_root(backend.put(np.zeros((2, 3, 3), dtype)), 2, ridge=0.25, method=method))
    assert np.abs(ridge - 2 * np.eye(3)).max() <= 30 * eps_of(ridge)


def test_products_hand_over_to_eigh_where_they_are_not_accurate():
    a = np.diag(np.geomspace(1e-14, 1, 12))
    x = lw.inv_root(a, 4, method="products")
    assert error(np.linalg.matrix_power(x, 4), np.linalg.inv(a)) <= 1e-13 * 1e2


def test_failures(backend):
    put, get = backend.put, backend.get
    indefinite = np.stack([np.eye(3), np.diag([1.0, -2.0, 3.0])])
    for call in (
        lambda x, **options: lw.sqrtm(x, assume="pos", **options),
        lambda x, **options: lw.logm(x, assume="pos", **options),
        lambda x, **options: lw.inv_root(x, 2, **options),
    ):
        with pytest.raises(lw.NotPositiveDefiniteError) as caught:
            call(put(indefinite))
        assert caught.value.batch_index == (1,) and caught.value.minor == 2
        x = get(call(put(indefinite), on_fail="nan"))
        assert np.isfinite(x[0]).all() and np.isnan(x[1]).all()
        with pytest.raises(lw.NotPositiveDefiniteError) as caught:
            call(put(np.full((2, 2), np.nan)))
        assert caught.value.nonfinite
    turn = np.stack([np.eye(2), np.diag([-1.0, 2.0])])  # a negative eigenvalue: the root is not real
    for function in (lw.sqrtm, lw.logm):
        with pytest.raises(lw.ConvergenceError, match="negative real axis") as caught:
            function(put(turn))
        assert caught.value.batch_index == (1,)
        x = get(function(put(turn), on_fail="nan"))
        assert np.isfinite(x[0]).all() and np.isnan(x[1]).all()
        assert get(function(put(np.zeros((0, 0))))).shape == (0, 0) and get(function(put(np.zeros((0, 3, 3))))).shape == (
            0,
            3,
            3,
        )
        with pytest.raises(ValueError, match="square"):
            function(put(np.ones((2, 3))))
        with pytest.raises(ValueError, match="assume"):
            function(put(np.eye(2)), assume="hermitian")
    assert np.isnan(get(lw.expm(put(np.array([[np.nan]]))))).all()
    assert (get(lw.sqrtm(put(np.ones((2, 2))), assume="pos")) > 0).all()  # semidefinite
    for wrong in ({"p": 0}, {"p": 1.5}, {"p": 2, "ridge": -1.0}, {"p": 2, "method": "newton"}):
        with pytest.raises(ValueError, match="inv_root: "):
            lw.inv_root(put(np.eye(2)), wrong.pop("p"), **wrong)


def test_complex_root_of_a_rotation():
    """A negative determinant and eigenvalues of both signs of the imaginary part."""
    a = np.array([[0.0, -4.0], [1.0, 0.0]])
    x = lw.sqrtm(a)
    assert np.abs(x @ x - a).max() <= 1e-14
    y = lw.sqrtm(np.diag([-1.0 + 0.1j, 4.0]))
    assert np.abs(y @ y - np.diag([-1.0 + 0.1j, 4.0])).max() <= 1e-14 and y[0, 0].real > 0


FUNCTIONS = {
    "expm": (lw.expm, "general"),
    "sqrtm": (lw.sqrtm, "general"),
    "logm": (lw.logm, "general"),
    "sqrtm pos": (lambda x: lw.sqrtm(x, assume="pos"), "pos"),
    "logm pos": (lambda x: lw.logm(x, assume="pos"), "pos"),
    "inv_root": (lambda x: lw.inv_root(x, 4, ridge=0.1), "pos"),
    "sqrt by inv_root": (lambda x: lw.inv_root(x, -2), "pos"),
    "pinv": (lw.pinv, "general"),
    "pinv hermitian": (lambda x: lw.pinv(x, hermitian=True), "pos"),
    "cond": (lw.cond, "general"),
    "cond in the 1-norm": (lambda x: lw.cond(x, p=1), "general"),
}


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name == "logm" else []) for name in FUNCTIONS])
def test_derivatives_in_torch(name, dtype):
    torch = pytest.importorskip("torch")
    function, kind = FUNCTIONS[name]
    equal = [] if name.startswith("cond") else [np.eye(3)]  # equal eigenvalues, and equal singular values
    for a in [right_half((3, 3), dtype) if kind == "general" else spd((3, 3), dtype), *equal]:
        x = torch.tensor(a.astype(dtype), requires_grad=True)
        f = function if kind == "general" else lambda x: function((x + x.mH) / 2)
        assert torch.autograd.gradcheck(f, x, check_forward_ad=True)
        if name != "logm" or dtype == "float64":
            assert torch.autograd.gradgradcheck(f, x)


def test_pinv_of_lower_rank():
    torch = pytest.importorskip("torch")
    b, c = torch.tensor(random((4, 2), "float64"), requires_grad=True), torch.tensor(random((2, 5), "float64", 1))
    assert torch.autograd.gradcheck(lambda b: lw.pinv(b @ c), b, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda b: lw.pinv(b @ c), b)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("logm", "cond in the 1-norm")])
def test_traced_and_gradients_agree(name):
    jax, tf, torch = (pytest.importorskip(x) for x in ("jax", "tensorflow", "torch"))
    function, kind = FUNCTIONS[name]
    a = right_half((2, 4, 4), "float64") if kind == "general" else spd((2, 4, 4), "float64")
    value = function(a)
    weights = random(np.shape(value), "float64", 3)
    x = torch.tensor(a, requires_grad=True)
    (expected,) = torch.autograd.grad((function(x) * torch.tensor(weights)).sum(), x)
    with x64():
        for f in (jax.jit(function), jax.vmap(function)):
            assert np.abs(np.asarray(f(a)) - value).max() <= 1e-12
        gradient = np.asarray(jax.jit(jax.grad(lambda x: (function(x) * weights).sum()))(a))
        assert np.abs(gradient - expected.numpy()).max() <= 1e-11
    y = tf.constant(a)
    assert np.abs(tf.function(function, autograph=False)(y).numpy() - value).max() <= 1e-12
    with tf.GradientTape() as tape:
        tape.watch(y)
        loss = tf.reduce_sum(function(y) * weights)
    assert np.abs(tape.gradient(loss, y).numpy() - expected.numpy()).max() <= 1e-11
    assert np.abs(torch.func.vmap(function)(torch.tensor(a)).numpy() - value).max() <= 1e-12


# ---- rank, condition number


@pytest.mark.parametrize("dtype", DTYPES)
def test_rank_and_condition(backend, dtype):
    put, get = backend.put, backend.get
    low = (random((3, 6, 2), dtype) @ random((3, 2, 5), dtype, 1)).astype(dtype)
    assert get(lw.matrix_rank(put(low))).tolist() == [2, 2, 2]
    assert int(get(lw.matrix_rank(put(np.diag([1.0, -3.0, 0.0]).astype(dtype)), hermitian=True))) == 2
    x = get(lw.pinv(put(low)))
    assert error(low @ x @ low, low) <= 60 * eps_of(low) * 100 and error(x @ low @ x, x) <= 60 * eps_of(low) * 100
    a = right_half((2, 6, 6), dtype)
    for p in (None, 1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"):
        got, expected = get(lw.cond(put(a), p=p)), np.linalg.cond(wide(a), p)
        assert got.shape == (2,) and got.dtype == np.abs(a).dtype
        assert (np.abs(got - expected) <= 60 * eps_of(a) * expected * np.linalg.cond(wide(a)).max()).all()
    bad = np.stack([np.zeros((2, 2)), np.full((2, 2), np.nan)]).astype(dtype)
    for p in (1, "fro", "nuc"):
        c = get(lw.cond(put(bad), p=p))
        assert np.isinf(c[0]) and np.isnan(c[1])
    with pytest.raises(ValueError, match="cond: p=3"):
        lw.cond(put(a), p=3)
    with pytest.raises(ValueError, match="square"):
        lw.cond(put(low), p=1)
    with pytest.raises(lw.ConvergenceError):
        lw.pinv(put(bad))


def test_arrays_of_another_library():
    xp = pytest.importorskip("array_api_strict")
    a = xp.asarray(spd((2, 3, 3), "float64"))
    for result in (lw.pinv(a), lw.matrix_rank(a), lw.cond(a), lw.expm(a), lw.sqrtm(a), lw.logm(a), lw.inv_root(a, 2)):
        assert type(result) is type(a)


def test_expm_of_one_bad_matrix_and_of_large_triangles():
    good = spd((4, 4), "float64")
    both = lw.expm(np.stack([good / 10, good * np.nan]))
    assert np.isnan(both[1]).all()
    assert error(both[0], lw.expm(good / 10)) <= 40 * np.finfo("float64").eps
    # scaled by the size of its powers, not by its own
    assert np.abs(np.diag(lw.expm(np.array([[0, 1e15], [0, 0.0]]))) - 1).max() <= 1e-14
    nearly = lw.expm(np.array([[1, 1e8], [0, -1.0]]))
    assert abs(nearly[0, 1] - 1e8 * np.sinh(1.0)) <= 1e-13 * 1e8


def test_inv_root_by_products_fails_as_by_eigh():
    for a in (-spd((4, 4), "float64"), np.diag([1.0, 0.0])):
        with pytest.raises(lw.NotPositiveDefiniteError):
            lw.inv_root(a, 2, method="products")


def test_roots_and_logarithms_of_any_scale():
    a = right_half((4, 4), "float64")
    for by in (1e200, 1e-200):
        x = lw.sqrtm(a * by)
        assert error(x / np.sqrt(by), lw.sqrtm(a)) <= 1e-12
        assert error(lw.logm(a * by), lw.logm(a) + np.log(by) * np.eye(4)) <= 1e-12


def test_cond_of_zero():
    assert lw.cond(np.zeros((3, 3))) == np.inf


def hard_for_newton():
    """Matrices whose root Newton's iteration does not find, or not to full accuracy; all but the first two have a logarithm."""
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    upper = np.triu(rng.standard_normal((6, 6)), 1)
    return {
        "singular": np.diag([1.0, 0.0, 4.0]),
        "of rank one": np.outer([1.0, 2.0, 3.0], np.ones(3)),
        "high condition number": q @ (np.diag([1e-8, 1, 2, 3, 4, 5.0]) + upper) @ q.T,
        "near the negative axis": np.array([[np.cos(3.1), -np.sin(3.1)], [np.sin(3.1), np.cos(3.1)]]),
    }


@pytest.mark.parametrize("name", hard_for_newton())
def test_schur_form_where_newton_fails(backend, name):
    a = hard_for_newton()[name]
    n, eps = len(a), np.finfo(float).eps
    x = backend.get(lw.sqrtm(backend.put(a)))
    assert x.dtype == a.dtype
    assert np.linalg.norm(x @ x - a) <= 10 * n * eps * np.linalg.norm(x) ** 2
    stacked = backend.get(lw.sqrtm(backend.put(np.stack([np.eye(n), a]))))
    assert np.allclose(stacked[1], x) and np.allclose(stacked[0], np.eye(n))
    if "singular" in name or "rank" in name:
        with pytest.raises(lw.ConvergenceError):
            lw.logm(backend.put(a))
        return
    log = backend.get(lw.logm(backend.put(a)))
    assert np.linalg.norm(lw.expm(log) - a) <= 10 * n * eps * np.linalg.norm(a) * max(1, np.linalg.norm(log))
    assert np.abs(np.linalg.eigvals(log).imag).max() <= np.pi
