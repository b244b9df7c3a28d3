"""Derivatives of solve, inv, slogdet, factor, qr, svd, lstsq and polar: first and second order, and under transformations."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import lapwing as lw
from backends import random, spd, x64

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch._prims_common.check.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*functools.lru_cache.*:UserWarning"),
]


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


def hermitian(f):
    """On a Hermitian argument: the derivative is that of f((A + A^H) / 2)."""
    return lambda a, *others: f((a + adjoint(a)) / 2, *others)


def symmetric(f):
    return lambda a, *others: f((a + a.swapaxes(-1, -2)) / 2, *others)


def of_projections(a):
    """What of an SVD does not depend on the choice of vectors."""
    u, s, vh = lw.svd(a)
    two = u[..., :2]
    return two @ adjoint(two), s, (u * (s**2)[..., None, :]) @ vh


def of_factor(assume):
    def call(a, b):
        f = lw.factor(a, assume=assume)
        return f.solve(b), f.slogdet().logabsdet, f.inv()

    return call


# name: the function, and which of the matrices below it takes
FUNCTIONS = {
    "solve": (lambda a, b: lw.solve(a, b), "ab"),
    "solve pos": (hermitian(lambda a, b: lw.solve(a, b, assume="pos")), "pb"),
    "solve pos upper": (hermitian(lambda a, b: lw.solve(a, b, assume="pos", upper=True)), "pb"),
    "solve hermitian": (hermitian(lambda a, b: lw.solve(a, b, assume="hermitian")), "pb"),
    "solve symmetric": (symmetric(lambda a, b: lw.solve(a, b, assume="symmetric")), "ab"),
    "solve lower": (lambda a, b: lw.solve(a, b, assume="lower"), "ab"),
    "solve upper": (lambda a, b: lw.solve(a, b, assume="upper"), "ab"),
    "solve right": (lambda a, b: lw.solve(a, b.swapaxes(-1, -2), side="right"), "ab"),
    "solve right unit": (lambda a, b: lw.solve(a, b.swapaxes(-1, -2), assume="lower", unit=True, side="right"), "ab"),
    "inv": (lambda a: lw.inv(a), "a"),
    "inv pos": (hermitian(lambda a: lw.inv(a, assume="pos")), "p"),
    "slogdet": (lambda a: tuple(lw.slogdet(a)), "a"),
    "slogdet pos": (hermitian(lambda a: lw.slogdet(a, assume="pos").logabsdet), "p"),
    "factor pos": (hermitian(of_factor("pos")), "pb"),
    "factor general": (of_factor("general"), "ab"),
    "qr": (lambda a: tuple(lw.qr(a)), "t"),
    "qr wide": (lambda a: tuple(lw.qr(a)), "w"),
    "qr complete": (lambda a: tuple(lw.qr(a, mode="complete")), "a"),
    "svd": (of_projections, "t"),
    "svd wide": (of_projections, "w"),
    "svdvals": (lambda a: lw.svdvals(a), "t"),
    "polar": (lambda a: tuple(lw.polar(a)), "t"),
    "polar left": (lambda a: tuple(lw.polar(a, side="left")), "a"),
    "lstsq": (lambda a, b: tuple(lw.lstsq(a, b))[:2], "tc"),
    "lstsq wide": (lambda a, b: lw.lstsq(a, b).x, "wb"),
}


def matrices(dtype, n=3):
    eye = np.eye(n)
    return {
        "a": random((2, n, n), dtype, 1) + (3 * eye).astype(dtype),
        "p": spd((2, n, n), dtype, 2),
        "b": random((2, n, 2), dtype, 3),
        "t": random((2, n + 2, n), dtype, 4),
        "w": random((2, n, n + 2), dtype, 5),
        "c": random((2, n + 2, 2), dtype, 6),
    }


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_torch(dtype, name):
    torch = pytest.importorskip("torch")
    f, letters = FUNCTIONS[name]
    given = [torch.tensor(matrices(dtype)[letter], requires_grad=True) for letter in letters]
    assert torch.autograd.gradcheck(f, given, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, given, fast_mode=True)


@contextlib.contextmanager
def jax_x64():
    jax = pytest.importorskip("jax")
    with x64():
        yield jax


GROUPS = {
    "systems": [name for name in FUNCTIONS if name.split()[0] in ("solve", "inv", "slogdet", "factor")],
    "decompositions": [name for name in FUNCTIONS if name.split()[0] in ("qr", "svd", "svdvals", "polar", "lstsq")],
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.slow), "complex128"])
def test_jax(dtype, group):
    """Forward, reverse and forward-over-reverse against differences, in one compiled function each."""
    with jax_x64() as jax:
        import jax.numpy as jnp

        given = {letter: jnp.asarray(x) for letter, x in matrices(dtype).items()}
        rng = np.random.default_rng(0)

        def outputs(m):
            found = {}
            for name in GROUPS[group]:
                f, letters = FUNCTIONS[name]
                found[name] = f(*[m[letter] for letter in letters])
            return found

        def weighted(x):
            # a fixed random direction makes each output a number
            rng = np.random.default_rng(x.size)
            return jnp.real(jnp.sum(x * (rng.standard_normal(x.shape) + 1j * rng.standard_normal(x.shape))))

        def loss(m):
            return {name: sum(weighted(x) for x in jax.tree.leaves(made)) for name, made in outputs(m).items()}

        def moved(m, d, h):
            return jax.tree.map(lambda x, y: x + h * y, m, d)

        direction = {letter: jnp.asarray(random(x.shape, dtype, 9 + i)) for i, (letter, x) in enumerate(given.items())}
        h = 1e-6
        call = jax.jit(loss)
        numeric = jax.tree.map(
            lambda x, y: (x - y) / (2 * h), call(moved(given, direction, h)), call(moved(given, direction, -h))
        )
        _, forward = jax.jit(lambda m, d: jax.jvp(loss, (m,), (d,)))(given, direction)
        for name in GROUPS[group]:
            assert abs(forward[name] - numeric[name]) < 1e-6 * (1 + abs(numeric[name])), name

        total = lambda m: sum(loss(m).values())  # noqa: E731
        gradient = jax.jit(jax.grad(total))
        # JAX's gradient of a real function of complex numbers is the conjugate
        inner = sum(
            float(jnp.real(jnp.sum(x * y))) for x, y in zip(*map(jax.tree.leaves, (gradient(given), direction)), strict=True)
        )
        expected = float(sum(forward.values()))
        assert abs(inner - expected) < 1e-9 * (1 + abs(expected))
        _, second = jax.jit(lambda m, d: jax.jvp(jax.grad(total), (m,), (d,)))(given, direction)
        up, down = gradient(moved(given, direction, h)), gradient(moved(given, direction, -h))
        for x, y, z in zip(*map(jax.tree.leaves, (second, up, down)), strict=True):
            change = (y - z) / (2 * h)
            assert jnp.abs(x - change).max() < 1e-5 * (1 + jnp.abs(change).max())
        del rng


def test_jax_transformations():
    with jax_x64() as jax:
        import jax.numpy as jnp

        a, b = jnp.asarray(spd((4, 4), "float64")), jnp.asarray(random((5, 4), "float64"))
        expected = np.linalg.solve(a, b.T).T
        # the same matrix for every right-hand side: one factorisation, more columns
        for assume in ("general", "pos", "lower"):
            one = lambda v, assume=assume: lw.solve(a, v, assume=assume)  # noqa: E731
            reference = expected if assume != "lower" else np.linalg.solve(np.tril(a), b.T).T
            assert jnp.abs(jax.vmap(one)(b) - reference).max() < 1e-12
            text = str(jax.make_jaxpr(jax.vmap(one))(b))
            assert "f64[5,4,4]" not in text
        many = jnp.asarray(spd((5, 4, 4), "float64"))
        made = jax.jit(jax.vmap(lambda m, v: lw.solve(m, v, assume="pos")))(many, b)
        assert jnp.abs(made - np.linalg.solve(many, b[..., None])[..., 0]).max() < 1e-12
        hessian = jax.hessian(lambda v: (lw.solve(a, v) ** 2).sum())(b[0])
        inverse = np.linalg.inv(a)
        assert jnp.abs(hessian - 2 * inverse.T @ inverse).max() < 1e-10
        for f in (lambda x: lw.qr(x).R, lambda x: lw.svd(x).S, lambda x: lw.slogdet(x).logabsdet, lambda x: lw.polar(x).u):
            assert jnp.abs(jax.vmap(f)(many) - jnp.stack([f(x) for x in many])).max() < 1e-12
        # an exported function keeps its batch open
        from jax import export

        shapes = export.symbolic_args_specs((many, many), "b, n, n")
        allowed = [export.DisabledSafetyCheck.custom_call("lapwing")]
        stored = export.export(jax.jit(lambda x, y: lw.solve(x, y)), disabled_checks=allowed)(*shapes).serialize()
        assert jnp.abs(export.deserialize(stored).call(many, many) - jnp.eye(4)).max() < 1e-12


def test_a_factor_passes_through_jit():
    with jax_x64() as jax:
        import jax.numpy as jnp

        a, b = jnp.asarray(spd((3, 4, 4), "float64")), jnp.asarray(random((3, 4, 2), "float64"))
        for assume in ("pos", "general"):
            f = jax.jit(lambda x, assume=assume: lw.factor(x, assume=assume))(a)
            assert isinstance(f, lw.Factor)
            x = jax.jit(lambda f, b: f.solve(b))(f, b)
            assert jnp.abs(x - np.linalg.solve(a, b)).max() < 1e-12
            gradient = jax.grad(lambda x, assume=assume: lw.factor(x, assume=assume).solve(b).sum())(a)
            assert bool(jnp.isfinite(gradient).all())


def test_torch_transformations():
    torch = pytest.importorskip("torch")
    a, b = torch.tensor(spd((4, 4), "float64")), torch.tensor(random((5, 4), "float64"))
    expected = torch.linalg.solve(a, b.T).T
    for assume in ("general", "pos"):
        made = torch.func.vmap(lambda v, assume=assume: lw.solve(a, v, assume=assume))(b)
        assert (made - expected).abs().max() < 1e-12
    many = torch.tensor(spd((5, 4, 4), "float64"))
    made = torch.func.vmap(lambda m, v: lw.solve(m, v, assume="pos"))(many, b)
    assert (made - torch.linalg.solve(many, b)).abs().max() < 1e-12
    hessian = torch.func.hessian(lambda v: (lw.solve(a, v) ** 2).sum())(b[0])
    inverse = torch.linalg.inv(a)
    assert (hessian - 2 * inverse.T @ inverse).abs().max() < 1e-10
    jacobian = torch.func.jacrev(lambda x: lw.inv(x))(a)
    assert (jacobian - torch.func.jacrev(torch.linalg.inv)(a)).abs().max() < 1e-12
    for f in (lambda x: lw.qr(x).R, lambda x: lw.svd(x).S, lambda x: lw.slogdet(x).logabsdet):
        assert (torch.func.vmap(f)(many) - torch.stack([f(x) for x in many])).abs().max() < 1e-12


@pytest.mark.parametrize("backend_name", ["eager", "aot_eager"])
def test_torch_compile(backend_name):
    torch = pytest.importorskip("torch")
    a = torch.tensor(spd((3, 4, 4), "float64"), requires_grad=True)
    b = torch.tensor(random((3, 4, 2), "float64"))

    def loss(a, b):
        x = lw.solve(a, b, assume="pos") + lw.solve(a, b)
        return x.sum() + lw.inv(a).sum() + lw.slogdet(a).logabsdet.sum() + lw.svd(a).S.sum() + lw.qr(a).R.abs().sum()

    compiled = torch.compile(loss, backend=backend_name, fullgraph=True)
    (expected,) = torch.autograd.grad(loss(a, b), a)
    (made,) = torch.autograd.grad(compiled(a, b), a)
    assert (made - expected).abs().max() < 1e-10
    exported = torch.export.export(Solve(), (a.detach(), b)).module()
    assert (exported(a.detach(), b) - torch.linalg.solve(a.detach(), b)).abs().max() < 1e-12


def Solve():
    import torch

    class Module(torch.nn.Module):
        def forward(self, a, b):
            return lw.solve(a, b)

    return Module()


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_gradients_at_repeated_singular_values(library):
    """Of functions that do not depend on the choice of vectors: of the polar factor, the nearest orthogonal matrix."""
    q, _ = np.linalg.qr(random((4, 4), "float64"))
    direction = random((4, 4), "float64", 1)
    weights = random((4, 4), "float64", 2)
    # d of the orthogonal factor at an orthogonal matrix q is q (q^T d - d^T q) / 2
    expected = (weights * (q @ (q.T @ direction - direction.T @ q) / 2)).sum()
    if library == "torch":
        torch = pytest.importorskip("torch")
        a = torch.tensor(q, requires_grad=True)
        (gradient,) = torch.autograd.grad((torch.tensor(weights) * lw.polar(a).u).sum(), a)
        assert abs(float((gradient.numpy() * direction).sum()) - expected) < 1e-12
    else:
        with jax_x64() as jax:
            gradient = jax.grad(lambda a: (weights * lw.polar(a).u).sum())(jax.numpy.asarray(q))
            assert abs(float((np.asarray(gradient) * direction).sum()) - expected) < 1e-12


@pytest.mark.parametrize(
    "shape", [pytest.param((4, 4), marks=pytest.mark.slow), (6, 4), pytest.param((4, 6), marks=pytest.mark.slow)]
)
def test_least_squares_and_polar_at_equal_singular_values(shape):
    """Their derivatives exist there: of lstsq at least two, of the positive factor the first."""
    m, n = shape
    a = np.linalg.qr(random((max(shape), min(shape)), "float64"))[0]
    a = a if m >= n else a.T
    b, direction = random((m, 2), "float64", 1), random(shape, "float64", 2)
    with jax_x64() as jax:
        jnp = jax.numpy
        a, b, direction = map(jnp.asarray, (a, b, direction))
        weights = jnp.asarray(random((max(m, n), 2), "float64", 3))

        def solution(t):
            return jnp.sum(weights[:n] * jnp.sin(lw.lstsq(a + t * direction, b).x))

        def positive(t):
            return jnp.sum(jnp.sin(lw.polar(a + t * direction).p)[:, :2] * weights[:n])

        for f in (solution, positive):
            assert abs(jax.grad(f)(0.0) - (f(1e-6) - f(-1e-6)) / 2e-6) < 1e-7
        # compiled as one program: step by step each small operation is compiled alone, which takes five times as long
        first, second = jax.jit(jax.grad(solution)), jax.jit(jax.grad(jax.grad(solution)))
        assert abs(second(0.0) - (first(1e-5) - first(-1e-5)) / 2e-5) < 1e-6
        # of lower rank the derivative stays finite
        low = jnp.outer(a[:, 0], a[0])
        slope = jax.jit(jax.grad(lambda x: jnp.sum(lw.lstsq(x, b).x)))
        assert jnp.isfinite(slope(low)).all()
    torch = pytest.importorskip("torch")
    given = torch.tensor(np.array(a), requires_grad=True)
    lw.lstsq(given, torch.tensor(np.array(b))).x.sum().backward()
    with jax_x64():
        assert np.abs(given.grad.numpy() - slope(a)).max() < 1e-12


def test_only_the_failed_matrix_has_no_gradient():
    torch = pytest.importorskip("torch")
    a = spd((3, 4, 4), "float64")
    a[1] = 0
    given = torch.tensor(a, requires_grad=True)
    for f in (lambda x: lw.solve(x, torch.ones(4, 1, dtype=torch.float64), on_fail="nan"), lambda x: lw.inv(x, on_fail="nan")):
        (gradient,) = torch.autograd.grad(f(given).sum(), given)
        assert torch.isnan(gradient[1]).any()
        assert torch.isfinite(gradient[[0, 2]]).all()
