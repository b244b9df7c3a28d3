"""Derivatives of eigh and eigvalsh against finite differences, in every framework that has them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lapwing as lw
from backends import hermitian, random, spd, x64

FRAMEWORKS = ["torch", "jax", "tensorflow"]
# raised inside torch itself while it compiles
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch._prims_common.check.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*functools.lru_cache.*:UserWarning"),
]

N = 6
PARTS = {"all": None, "largest": slice(-2, None), "smallest": slice(3), "inner": slice(2, 4)}


class Tools:
    """A gradient with respect to each argument, with what a loss needs, in one framework."""

    def __init__(self, name: str):
        pytest.importorskip(name)
        self.name = name

    def gradients(self, loss, *arrays):
        """In the convention d loss = Re sum(conj(g) dA)."""
        if self.name == "torch":
            import torch

            given = [torch.from_numpy(np.array(a)).requires_grad_() for a in arrays]
            loss(torch, *given).backward()
            return [x.grad.numpy() for x in given]
        if self.name == "jax":
            import jax
            import jax.numpy as jnp

            with x64():
                made = jax.grad(lambda *x: loss(jnp, *x), argnums=tuple(range(len(arrays))))(*map(jnp.asarray, arrays))
                return [np.asarray(g).conj() for g in made]
        import tensorflow as tf

        given = [tf.constant(a) for a in arrays]
        with tf.GradientTape() as tape:
            for x in given:
                tape.watch(x)
            value = loss(tf, *given)
        return [g.numpy() for g in tape.gradient(value, given)]


@pytest.fixture(params=FRAMEWORKS)
def tools(request):
    return Tools(request.param)


def total(xp, x):
    return xp.sum(x) if hasattr(xp, "sum") else xp.reduce_sum(x)


def real(xp, x):
    return xp.real(x) if xp.__name__ != "tensorflow" else xp.math.real(x)


def adjoint(xp, x):
    if xp.__name__ == "tensorflow":
        return xp.linalg.adjoint(x)
    return xp.conj(xp.swapaxes(x, -1, -2)) if xp.__name__ != "torch" else x.mH


def constant(xp, x):
    return {"torch": lambda: xp.from_numpy(x), "tensorflow": lambda: xp.constant(x)}.get(xp.__name__, lambda: xp.asarray(x))()


def cast(xp, x, like):
    if xp.__name__ == "torch":
        return x.to(like.dtype)
    return xp.cast(x, like.dtype) if xp.__name__ == "tensorflow" else x.astype(like.dtype)


def losses(weight):
    """Functions of eigenvalues and eigenspaces that do not depend on the choice of basis or phase."""

    def values(xp, w, v):
        return total(xp, xp.sin(w))

    def spaces(xp, w, v):
        return total(xp, real(xp, constant(xp, weight) * (v @ adjoint(xp, v))))

    def both(xp, w, v):
        scaled = v * cast(xp, xp.sin(w), v)[..., None, :]
        return total(xp, real(xp, constant(xp, weight) * (scaled @ adjoint(xp, v))))

    return {"values": values, "spaces": spaces, "both": both}


def numeric(loss, part, a, h=1e-6):
    """Re sum(conj(g) dA) = d loss by central differences, for the Hermitian part of the argument."""

    def value(x):
        x = (x + x.conj().swapaxes(-1, -2)) / 2
        w, v = np.linalg.eigh(x)
        w, v = (w[..., part], v[..., part]) if part else (w, v)
        np.reduce_sum = np.sum
        return float(loss(np, w, v))

    gradient = np.zeros_like(a)
    for index in np.ndindex(a.shape):
        for unit in (1, 1j) if np.iscomplexobj(a) else (1,):
            step = np.zeros_like(a)
            step[index] = unit * h
            gradient[index] += unit * (value(a + step) - value(a - step)) / (2 * h)
    return gradient


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", ["values", "spaces", "both"])
def test_gradient(tools, part, dtype, kind):
    a = hermitian((N, N), dtype, seed=1)
    loss = losses(random((N, N), dtype, 2))[kind]
    (found,) = tools.gradients(lambda xp, x: loss(xp, *lw.eigh(x, subset=PARTS[part])), a)
    expected = numeric(loss, PARTS[part], a)
    assert np.abs(found - expected).max() < 1e-7
    assert np.array_equal(found, found.conj().T)


@pytest.mark.parametrize("part", ["all", "largest"])
def test_gradient_of_values_alone(tools, part):
    a = hermitian((2, N, N), "float64", seed=1)
    loss = losses(None)["values"]
    (found,) = tools.gradients(lambda xp, x: loss(xp, lw.eigvalsh(x, subset=PARTS[part]), None), a)
    assert np.abs(found - numeric(loss, PARTS[part], a)).max() < 1e-7


@pytest.mark.parametrize("kind", ["values", "spaces"])
@pytest.mark.parametrize("spectrum", [(1, 1, 1, 2, 3, 3), (0, 0, 0, 0, 0, 0), (1, 1, 2, 2, 3, 3)])
def test_repeated_eigenvalues(tools, kind, spectrum):
    """Finite, and right where the loss depends on eigenspaces that are not split."""
    q, _ = np.linalg.qr(random((N, N), "float64", 4))
    a = (q * np.array(spectrum, float)) @ q.T
    a = (a + a.T) / 2
    whole = losses(random((N, N), "float64", 2))[kind]
    last = spectrum.count(spectrum[-1])

    def loss(xp, w, v):
        return whole(xp, w, v[:, -last:])  # the space of the last cluster

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = tools.gradients(lambda xp, x: loss(xp, *lw.eigh(x)), a)
    assert np.isfinite(found).all()
    assert np.abs(found - numeric(loss, None, a, 1e-5)).max() < 1e-5


def test_part_that_ends_in_a_cluster_is_finite(tools):
    a = np.diag([1.0, 2, 3, 3, 3, 3])
    loss = losses(random((N, N), "float64", 2))["values"]
    (found,) = tools.gradients(lambda xp, x: loss(xp, *lw.eigh(x, subset=slice(-4, None))), a)
    assert np.isfinite(found).all()
    assert np.abs(found - numeric(loss, slice(-4, None), a)).max() < 1e-7


def test_a_loss_that_depends_on_the_basis_warns():
    torch = pytest.importorskip("torch")
    x = torch.eye(3, dtype=torch.float64).requires_grad_()
    with pytest.warns(UserWarning, match="depends on the choice of eigenvectors"):
        lw.eigh(x).eigenvectors[0, 1].backward()
    assert torch.isfinite(x.grad).all()
    x.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w, v = lw.eigh(x)
        (w.sin().sum() + (v @ v.mT).sin().sum()).backward()
    with pytest.warns(UserWarning, match="depends on the choice of eigenvectors"):
        (lw.eigh(x).eigenvalues * torch.arange(3)).sum().backward()
    with pytest.warns(UserWarning, match="depends on the choice of eigenvectors"):
        lw.eigh(x, subset=slice(2)).eigenvectors[0, 1].backward()
    tf = pytest.importorskip("tensorflow")
    y = tf.eye(3, dtype=tf.float64)
    with pytest.warns(UserWarning, match="depends on the choice of eigenvectors"), tf.GradientTape() as tape:
        tape.watch(y)
        value = lw.eigh(y).eigenvectors[0, 1]
        tape.gradient(value, y)


def test_generalised_gradient(tools):
    a, b = hermitian((N, N), "float64", seed=1), spd((N, N), "float64", seed=2)
    weight = random((N, N), "float64", 3)

    def loss(xp, x, y):
        w, v = lw.eigh(x, b=y)
        scaled = v * xp.sin(w)[..., None, :]
        return total(xp, constant(xp, weight) * (scaled @ adjoint(xp, v)))

    def value(x, y):
        x, y = (x + x.T) / 2, (y + y.T) / 2
        l = np.linalg.cholesky(y)
        w, v = np.linalg.eigh(np.linalg.solve(l, np.linalg.solve(l, x).T))
        v = np.linalg.solve(l.T, v)
        return (weight * ((v * np.sin(w)) @ v.T)).sum()

    found = tools.gradients(loss, a, b)
    h = 1e-6
    for which, gradient in enumerate(found):
        for index in np.ndindex(N, N):
            step = np.zeros((N, N))
            step[index] = h
            plus = value(*[x + step * (i == which) for i, x in enumerate((a, b))])
            minus = value(*[x - step * (i == which) for i, x in enumerate((a, b))])
            assert abs(gradient[index] - (plus - minus) / (2 * h)) < 1e-6


def test_jax_generalised_with_one_of_them_traced():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    with x64():
        a, b = jnp.asarray(hermitian((N, N), "float64", seed=1)), jnp.asarray(spd((N, N), "float64", seed=2))
        both = jax.grad(lambda a, b: lw.eigvalsh(a, b=b)[-1], argnums=(0, 1))(a, b)
        assert jnp.allclose(both[0], jax.grad(lambda a: lw.eigvalsh(a, b=b)[-1])(a))
        assert jnp.allclose(both[1], jax.grad(lambda b: lw.eigvalsh(a, b=b)[-1])(b))
        assert jax.vmap(lambda b: lw.eigvalsh(a, b=b))(jnp.stack([b, 2 * b])).shape == (2, N)


def test_a_failed_matrix_makes_only_its_own_gradient_nan(tools):
    a = hermitian((3, N, N), "float64", seed=1)
    a[1, 2, 0] = np.nan
    loss = losses(np.ones((N, N)))["both"]
    (found,) = tools.gradients(lambda xp, x: loss(xp, *lw.eigh(x, on_fail="nan")), a)
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


# --- torch ---------------------------------------------------------------------------------------------------------


def torch_loss(x, subset=None):
    w, v = lw.eigh((x + x.mH) / 2, subset=subset)
    return ((v * w.sin()[..., None, :]) @ v.mH).real.cos().sum()


@pytest.mark.parametrize("part", ["all", "largest"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_torch_checks_itself(part, dtype):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(hermitian((2, 4, 4), dtype, seed=3)).requires_grad_()
    subset = PARTS[part]
    assert torch.autograd.gradcheck(lambda x: torch_loss(x, subset), (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: torch_loss(x, subset), (x,))
    values = lambda x: lw.eigvalsh((x + x.mH) / 2, subset=subset)  # noqa: E731
    assert torch.autograd.gradcheck(values, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(values, (x,))


@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian", "vmap", "vmap of grad"])
def test_torch_func(name):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(hermitian((3, 4, 4), "float64", seed=3))

    def own(x):
        w, v = torch.linalg.eigh((x + x.mH) / 2)
        return ((v * w.sin()[..., None, :]) @ v.mH).cos().sum()

    ways = {
        "grad": (torch.func.grad, x[0]),
        "jacrev": (torch.func.jacrev, x[0]),
        "jacfwd": (torch.func.jacfwd, x[0]),
        "hessian": (torch.func.hessian, x[0]),
        "vmap": (torch.func.vmap, x),
        "vmap of grad": (lambda f: torch.func.vmap(torch.func.grad(f)), x),
    }
    transform, argument = ways[name]
    assert torch.allclose(transform(torch_loss)(argument), transform(own)(argument), atol=1e-10)


@pytest.mark.parametrize("subset", [pytest.param(None, marks=pytest.mark.slow), slice(-2, None)])
def test_torch_compile_and_export(subset):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(hermitian((3, 4, 4), "float64", seed=3))
    compiled = torch.compile(lambda x: torch_loss(x, subset), fullgraph=True, dynamic=True)
    for batch in (3, 2):
        given = x[:batch].clone().requires_grad_()
        compiled(given).backward()
        again = x[:batch].clone().requires_grad_()
        torch_loss(again, subset).backward()
        assert torch.allclose(given.grad, again.grad, atol=1e-12)

    class Model(torch.nn.Module):
        def forward(self, x):
            return *lw.eigh(x, subset=subset), lw.eigvalsh(x, subset=subset)

    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for ours, expected in zip(program.module()(x[:2]), Model()(x[:2]), strict=True):
        assert torch.allclose(ours, expected)


@pytest.mark.parametrize(
    ("name", "subset"),
    [("grad", slice(-2, None)), pytest.param("hessian", None, marks=pytest.mark.slow), ("vmap", None)],
)
def test_torch_func_compiled(name, subset):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(hermitian((3, 4, 4), "float64", seed=3))
    transform = getattr(torch.func, name)(lambda x: torch_loss(x, subset))
    argument = x if name == "vmap" else x[0]
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(transform)(argument), transform(argument), atol=1e-10)


def test_torch_opcheck():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(hermitian((3, 4, 4), "complex64", seed=3))
    lw.eigh(x)
    for op in (torch.ops.lapwing.eigh.default, torch.ops.lapwing.eigvalsh.default):
        for params in ([0, 0, -1], [1, 2, 2]):
            torch.library.opcheck(op, (x, params, 0))
    torch.library.opcheck(torch.ops.lapwing.hermitian.default, (x, [0], 0))


def test_torch_values_alone_need_no_other_vectors(monkeypatch):
    """The gradient of a loss of some eigenvalues costs products, no second decomposition."""
    torch = pytest.importorskip("torch")
    from lapwing.frameworks import torch as front

    x = torch.from_numpy(hermitian((50, 50), "float64")).requires_grad_()
    w, _ = lw.eigh(x, subset=slice(-3, None))
    monkeypatch.setattr(front, "apply", None)
    w.sum().backward()
    assert x.grad is not None


# --- JAX -----------------------------------------------------------------------------------------------------------


def jax_loss(x, subset=None):
    import jax.numpy as jnp

    w, v = lw.eigh((x + jnp.conj(jnp.swapaxes(x, -1, -2))) / 2, subset=subset)
    scaled = v * jnp.sin(w)[..., None, :]
    return jnp.cos((scaled @ jnp.conj(jnp.swapaxes(v, -1, -2))).real).sum()


@pytest.mark.parametrize("name", ["jit", "grad", "jvp", "hessian", "vmap", "vmap of grad", "nested vmap"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_jax_transformations(name, dtype):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    def own(x):
        w, v = jnp.linalg.eigh((x + jnp.conj(jnp.swapaxes(x, -1, -2))) / 2)
        scaled = v * jnp.sin(w)[..., None, :]
        return jnp.cos((scaled @ jnp.conj(jnp.swapaxes(v, -1, -2))).real).sum()

    if name == "hessian" and dtype != "float64":
        pytest.skip("of a real argument")
    with x64():
        x = jnp.asarray(hermitian((2, 3, 4, 4), dtype, seed=3))
        ways = {
            "jit": (jax.jit, x),
            "grad": (jax.grad, x[0, 0]),
            "jvp": (lambda f: lambda x: jax.jvp(f, (x,), (jnp.sin(x),))[1], x[0]),
            "hessian": (jax.hessian, x[0, 0]),
            "vmap": (jax.vmap, x),
            "vmap of grad": (lambda f: jax.vmap(jax.grad(f)), x[0]),
            "nested vmap": (lambda f: jax.vmap(jax.vmap(f)), x),
        }
        transform, argument = ways[name]
        # step by step each small operation of a second derivative would be compiled alone
        compiled = jax.jit if name in ("hessian", "vmap of grad") else lambda f: f
        ours, expected = (compiled(transform(f))(argument) for f in (jax_loss, own))
        assert jnp.allclose(ours, expected, atol=1e-9), jnp.abs(ours - expected).max()


def test_jax_gradient_of_a_part_under_jit():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    with x64():
        x = jnp.asarray(hermitian((5, 5), "float64", seed=3))
        plain = jax.grad(lambda x: jax_loss(x, slice(-2, None)))(x)
        jitted = jax.jit(jax.grad(lambda x: jax_loss(x, slice(-2, None))))(x)
        assert jnp.allclose(plain, jitted, atol=1e-12)
        # values alone: what the vectors would need is not computed
        text = jax.jit(jax.grad(lambda x: lw.eigh(x, subset=slice(-2, None))[0].sum())).lower(x).compile().as_text()
        assert text.count('custom_call_target="lapwing') == 1


def test_jax_failure_under_jit_and_window():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    a = np.stack([np.eye(3), np.full((3, 3), np.nan)]).astype("float32")
    w, v = jax.jit(lw.eigh)(jnp.asarray(a))
    assert jnp.isnan(w[1]).all() and jnp.isnan(v[1]).all() and jnp.isfinite(v[0]).all()
    with pytest.raises(ValueError, match="traced code"):
        jax.jit(lambda x: lw.eigh(x, window=(0, 1)))(jnp.eye(3))


def test_jax_export_with_symbolic_batch():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax import export

    (batch,) = export.symbolic_shape("b")
    function = jax.jit(lambda x: tuple(lw.eigh(x, subset=slice(-2, None))))
    calls = [export.DisabledSafetyCheck.custom_call(t) for t in ("lapwing", "lapwing_launch")]
    exported = export.export(function, disabled_checks=calls)(jax.ShapeDtypeStruct((batch, 4, 4), jnp.float32))
    a = jnp.asarray(hermitian((3, 4, 4), "float32"))
    w, _ = export.deserialize(exported.serialize()).call(a)
    assert jnp.allclose(w, lw.eigvalsh(a)[:, -2:], atol=1e-6)


# --- TensorFlow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subset", [None, slice(-2, None), slice(2)])
def test_tensorflow_graph_with_unknown_shape(subset):
    tf = pytest.importorskip("tensorflow")

    @tf.function(input_signature=[tf.TensorSpec([None, None, None], tf.complex64)])
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            w, v = lw.eigh(x, subset=subset)
            loss = tf.reduce_sum(tf.math.real(v @ tf.linalg.adjoint(v))[..., 0, 1]) + tf.reduce_sum(w)
        return w, v, tape.gradient(loss, x)

    a = hermitian((3, 5, 5), "complex64", seed=1)
    w, _, gradient = function(tf.constant(a))
    expected = lw.eigvalsh(a, subset=subset)
    assert np.abs(w.numpy() - expected).max() < 1e-5
    assert np.isfinite(gradient.numpy()).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match="smaller than the part"):
        tf.function(lambda x: lw.eigh(x, subset=slice(-7, None))[0], input_signature=[tf.TensorSpec([None, None])])(
            tf.zeros([3, 3])
        )


def test_tensorflow_vectorized_map_and_second_gradient():
    tf = pytest.importorskip("tensorflow")
    a = tf.constant(hermitian((4, 5, 5), "float64", seed=1))
    mapped = tf.vectorized_map(lambda x: lw.eigh(x, subset=slice(-2, None))[0], a)
    assert np.allclose(mapped, lw.eigvalsh(a.numpy())[:, -2:])

    def loss(x):
        w, v = lw.eigh((x + tf.transpose(x)) / 2)
        return tf.reduce_sum(tf.cos((v * tf.sin(w)[None, :]) @ tf.transpose(v)))

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        return tape.gradient(value, x)

    x = a[0]
    with tf.GradientTape() as tape:
        tape.watch(x)
        inner = tf.reduce_sum(gradient(x) * a[1])
    second = tape.gradient(inner, x).numpy()
    h = 1e-5
    step = (tf.reduce_sum(gradient(x + h * a[2]) * a[1]) - tf.reduce_sum(gradient(x - h * a[2]) * a[1])) / (2 * h)
    assert abs((second * a[2].numpy()).sum() - float(step)) < 1e-5


def test_tensorflow_saved_model(tmp_path):
    tf = pytest.importorskip("tensorflow")

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4, 4], tf.float32)])
        def __call__(self, x):
            return tuple(lw.eigh(x, subset=slice(-2, None)))

    a = tf.constant(hermitian((3, 4, 4), "float32"))
    tf.saved_model.save(Model(), str(tmp_path))
    w, v = tf.saved_model.load(str(tmp_path))(a)
    assert w.shape == (3, 2) and v.shape == (3, 4, 2)
    assert np.allclose(w, lw.eigvalsh(a)[:, -2:], atol=1e-6)
