"""JAX: jit, vmap, derivatives, sharding, donation, export."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import lapwing as lw
from backends import residual, spd, x64

jax = pytest.importorskip("jax")
jnp = jax.numpy

PLATFORMS = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLATFORMS)
def place(request):
    device = jax.devices(request.param)[0]
    with x64(), jax.default_device(device):
        yield device


def matrices(shape, dtype="float64", seed=0):
    return jnp.asarray(spd(shape, dtype, seed))


def herm(x):
    return (x + jnp.conj(jnp.swapaxes(x, -1, -2))) / 2


def scalar(f):
    return lambda x: jnp.sum(jnp.sin(f(herm(x))).real)


def close(ours, own, factor=200):
    ours, own = np.asarray(ours), np.asarray(own)
    assert np.abs(ours - own).max() <= factor * np.finfo("float64").eps * np.abs(own).max()


TRANSFORMS = {
    "jit": lambda f: jax.jit(f),
    "vmap": lambda f: jax.vmap(f),
    "nested vmap": lambda f: lambda a: jax.vmap(jax.vmap(f))(a.reshape(2, 3, *a.shape[1:])),
    "vmap over the last axis": lambda f: lambda a: jax.vmap(f, in_axes=2)(jnp.moveaxis(a, 0, 2)),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "grad": lambda f: jax.grad(scalar(f)),
    "jvp": lambda f: lambda a: jax.jvp(lambda x: f(herm(x)), (a,), (a * 0.3,))[1],
    "jacfwd": lambda f: lambda a: jax.jacfwd(lambda x: f(herm(x)))(a[0]),
    "jacrev": lambda f: lambda a: jax.jacrev(lambda x: f(herm(x)).real)(a[0]),
    "hessian": lambda f: lambda a: jax.hessian(scalar(f))(a[0]),
    "vmap of grad": lambda f: jax.vmap(jax.grad(scalar(f))),
    "jit of vmap of hessian": lambda f: jax.jit(jax.vmap(jax.hessian(scalar(f)))),
    "linearize": lambda f: lambda a: jax.linearize(lambda x: f(herm(x)), a)[1](a),
    "scan": lambda f: lambda a: jax.lax.scan(lambda c, x: (c, f(x)), 0, a)[1],
    "remat": lambda f: jax.grad(jax.checkpoint(scalar(f))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations(place, name):
    a = matrices((6, 4, 4))
    # without jit every small operation of these is compiled by itself; "grad", "jvp" and "vmap" run that way
    wrap = jax.jit if name in ("hessian", "jacfwd", "jacrev", "linearize", "remat") else lambda f: f
    close(wrap(TRANSFORMS[name](lw.cholesky))(a), jax.jit(TRANSFORMS[name](jnp.linalg.cholesky))(a))


@pytest.mark.parametrize("name", ["grad", "jvp", "vmap of grad"])
def test_complex_derivatives(place, name):
    a = matrices((3, 4, 4), "complex128")
    close(TRANSFORMS[name](lw.cholesky)(a), jax.jit(TRANSFORMS[name](jnp.linalg.cholesky))(a))


def test_upper_derivatives(place):
    a = matrices((3, 4, 4))
    ours = jax.grad(scalar(lambda x: lw.cholesky(x, upper=True)))(a)
    own = jax.grad(scalar(lambda x: jnp.swapaxes(jnp.linalg.cholesky(x), -1, -2)))(a)
    close(ours, own)


def test_gradient_is_hermitian_and_ignores_the_other_triangle(place):
    a = np.array(matrices((5, 5)))
    given = np.where(np.triu(np.ones((5, 5), bool), 1), np.nan, a)
    ours = jax.grad(lambda x: jnp.sin(lw.cholesky(x)).sum())(jnp.asarray(given))
    own = jax.grad(lambda x: jnp.sin(jnp.linalg.cholesky(herm(x))).sum())(jnp.asarray(a))
    close(ours, own)
    close(ours, np.asarray(ours).T, 1)


def test_failure_under_jit_is_nan_and_alone(place):
    a = np.array(matrices((3, 5, 5)))
    a[1] *= -1
    l = np.asarray(jax.jit(lw.cholesky)(jnp.asarray(a)))
    assert np.isnan(l[1]).all()
    assert residual(a[[0, 2]], l[[0, 2]], False) < 10
    gradient = np.asarray(jax.grad(lambda x: jnp.nansum(lw.cholesky(x)))(jnp.asarray(a)))
    assert np.isfinite(gradient[[0, 2]]).all() and np.isnan(gradient[1]).all()
    _, info = jax.jit(lw.cholesky_ex)(jnp.asarray(a))
    assert np.asarray(info).tolist() == [0, 1, 0]


def test_a_constant_inside_a_traced_function(place):
    a = matrices((3, 3))
    got = jax.jit(lambda x: x + lw.cholesky(a))(0.0)
    close(got, jnp.linalg.cholesky(a))
    jax.eval_shape(lambda x: x + lw.cholesky(a), 0.0)
    assert np.isnan(np.asarray(jax.jit(lambda x: x + lw.cholesky(-a))(0.0))).all()


def test_shape_error_under_jit(place):
    with pytest.raises(ValueError, match="square"):
        jax.jit(lw.cholesky)(jnp.ones((3, 4)))


def test_donation_needs_no_copy(place):
    donating = jax.jit(lw.cholesky, donate_argnums=0)
    a = matrices((300, 300))
    assert " copy(" not in donating.lower(a).compile().as_text()
    kept = np.array(a)
    where = a.unsafe_buffer_pointer()
    l = donating(a)
    assert l.unsafe_buffer_pointer() == where
    assert residual(kept, np.asarray(l), False) < 10
    batch = jax.jit(lambda x: lw.cholesky(x, overwrite=True), donate_argnums=0)
    assert " copy(" not in batch.lower(matrices((50, 8, 8))).compile().as_text()


def test_an_input_that_is_not_donated_stays(place):
    for shape in ((300, 300), (50, 8, 8)):
        a = matrices(shape)
        before = np.array(a)
        jax.jit(lw.cholesky)(a).block_until_ready()
        assert np.array_equal(np.asarray(a), before)
    assert " copy(" not in jax.jit(lw.cholesky).lower(matrices((50, 8, 8))).compile().as_text()


def test_export_with_symbolic_batch(place):
    export = pytest.importorskip("jax.export")
    pytest.importorskip("flatbuffers")
    (batch,) = export.symbolic_shape("batch")
    allowed = [export.DisabledSafetyCheck.custom_call(t) for t in ("lapwing", "lapwing_launch")]
    made = export.export(jax.jit(lw.cholesky), disabled_checks=allowed)(jax.ShapeDtypeStruct((batch, 5, 5), "float64"))
    again = export.deserialize(made.serialize())
    for count in (3, 8):
        a = matrices((count, 5, 5))
        assert residual(np.asarray(a), np.asarray(again.call(a)), False) < 10


def test_lowers_for_a_gpu_without_one():
    with x64():
        lowered = jax.jit(lw.cholesky).trace(matrices((3, 5, 5))).lower(lowering_platforms=("cuda",))
    assert "lapwing_launch" in lowered.as_text()


def test_x64_flag_is_untouched():
    before = jax.config.jax_enable_x64
    assert lw.cholesky(jnp.eye(3)).dtype == (jnp.float64 if before else jnp.float32)
    assert jax.config.jax_enable_x64 == before


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, lapwing as lw
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
def spd(*shape):
    x = rng.standard_normal(shape)
    return x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])
herm = lambda x: (x + jnp.swapaxes(x, -1, -2)) / 2
mesh = Mesh(np.array(jax.devices()).reshape(4), ("b",))
a = spd(8, 5, 5)
placed = jax.device_put(a, NamedSharding(mesh, P("b")))
expected = np.linalg.cholesky(a)
loss = lambda f: lambda x: jnp.sin(f(herm(x))).sum()
gradient = jax.grad(loss(jnp.linalg.cholesky))(jnp.asarray(a))

# plain jit: no gather, and the result keeps the sharding
for f in (lw.cholesky, jax.vmap(lw.cholesky)):
    compiled = jax.jit(f).lower(placed).compile()
    assert "all-gather" not in compiled.as_text()
    out = compiled(placed)
    assert out.sharding.is_equivalent_to(placed.sharding, 3)
    assert np.allclose(out, expected, rtol=0, atol=1e-13)
compiled = jax.jit(jax.grad(loss(lw.cholesky))).lower(placed).compile()
assert "all-gather" not in compiled.as_text()
assert np.allclose(compiled(placed), gradient, rtol=0, atol=1e-12)
two = jax.device_put(spd(8, 3, 5, 5), NamedSharding(mesh, P("b")))
assert "all-gather" not in jax.jit(lw.cholesky).lower(two).compile().as_text()
# one matrix cut into rows must be gathered, and is right
rows = jax.device_put(spd(8, 8), NamedSharding(mesh, P("b", None)))
assert np.allclose(jax.jit(lw.cholesky)(rows), np.linalg.cholesky(np.asarray(rows)), rtol=0, atol=1e-13)
# eager
assert np.allclose(lw.cholesky(placed), expected, rtol=0, atol=1e-13)

shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
mapped = lambda f: shard_map(f, mesh=mesh, in_specs=P("b"), out_specs=P("b"))
assert np.allclose(jax.jit(mapped(lw.cholesky))(placed), expected, rtol=0, atol=1e-13)
got = jax.jit(jax.grad(lambda x: jnp.sin(mapped(lambda z: lw.cholesky(herm(z)))(x)).sum()))(placed)
assert np.allclose(got, gradient, rtol=0, atol=1e-12)

if hasattr(jax, "set_mesh"):
    explicit = jax.make_mesh((4,), ("b",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        placed = jax.device_put(a, NamedSharding(explicit, P("b", None, None)))
        out = jax.jit(lw.cholesky)(placed)
        assert np.allclose(out, expected, rtol=0, atol=1e-13)
        got = jax.jit(jax.grad(loss(lw.cholesky)))(placed)
        assert np.allclose(got, gradient, rtol=0, atol=1e-12)
print("ok")
"""


def test_sharded_batches():
    """Four pretend devices need a process of their own."""
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "ok"


def test_from_several_threads(place):
    from concurrent.futures import ThreadPoolExecutor

    f = jax.jit(lw.cholesky)
    given = [matrices((200, 12, 12), seed=s) for s in range(8)]
    expected = [np.asarray(f(a)) for a in given]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for got, want in zip(pool.map(f, given), expected, strict=True):
                assert np.array_equal(np.asarray(got), want)


@pytest.mark.gpu
def test_a_million_matrices_by_vmap():
    a = np.tile(spd((1000, 4, 4), "float32"), (1000, 1, 1))
    l = np.asarray(jax.vmap(lw.cholesky)(jax.device_put(a, jax.devices("gpu")[0])))
    assert np.array_equal(l[:1000], l[-1000:])
    assert residual(a[:1000], l[:1000], False) < 10


@pytest.mark.gpu
def test_inside_a_larger_jit_on_a_gpu():
    """Enough operations around it that XLA may capture the call into a CUDA graph."""

    @jax.jit
    def chain(a):
        for _ in range(6):
            l = lw.cholesky(a)
            a = jnp.matmul(l, jnp.swapaxes(l, -1, -2), precision="highest") * 1.5  # not in TF32
        return a

    a = spd((512, 8, 8), "float32")
    got = np.asarray(chain(jax.device_put(a, jax.devices("gpu")[0])))
    assert np.abs(got - a * 1.5**6).max() < 10 * 6 * 8 * np.finfo("float32").eps * np.abs(a).max() * 1.5**6


def primitive_around(function):
    """A primitive of some other library that lowers our function: its module has no device assignment."""
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    primitive = Primitive("theirs")
    primitive.def_abstract_eval(lambda a: a)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    return primitive.bind


@pytest.mark.parametrize(
    "function", [lw.cholesky, jax.vmap(lw.cholesky), lambda a: lw.solve(a, a), lambda a: lw.qr(a).Q, lambda a: lw.eigh(a)[1]]
)
def test_inside_the_primitive_of_another_library(place, function):
    a = matrices((2, 4, 4))
    assert np.array_equal(np.asarray(jax.jit(primitive_around(function))(a)), np.asarray(function(a)))


def test_inside_the_solvers_of_lineax(place, monkeypatch):
    """QR, and GMRES, which uses QR, with our triangular solve in the place of JAX's; both run inside a primitive of lineax."""
    lineax = pytest.importorskip("lineax")
    calls = []

    def solve_triangular(r, b, trans, unit_diagonal):
        calls.append(trans)
        return lw.solve(r if trans == "N" else r.T, b, assume="upper" if trans == "N" else "lower")

    ours = SimpleNamespace(linalg=SimpleNamespace(solve_triangular=solve_triangular))
    monkeypatch.setattr(sys.modules["lineax._solver.qr"], "jsp", ours)
    m, b = matrices((5, 5)), jnp.arange(5.0)
    for solver in (lineax.QR(), lineax.GMRES(rtol=1e-12, atol=1e-12)):

        def solution(b, solver=solver):
            return lineax.linear_solve(lineax.MatrixLinearOperator(m), b, solver).value

        close(m @ solution(b), b, 1e6)
        close(jax.grad(lambda b: solution(b).sum())(b), np.linalg.solve(m, np.ones(5)), 1e6)
    assert calls


RANKS = {
    "cholesky": lw.cholesky,
    "qr": lambda a: lw.qr(a[..., :3]),
    "lstsq": lambda a: lw.lstsq(a[..., :3], a).x,
    "eigh": lambda a: lw.eigh(a, b=a),
    "factor": lambda a: lw.factor(a).solve(a),
    "factor.slogdet": lambda a: lw.factor(a, assume="general").slogdet(),
    "factor.rcond": lambda a: lw.factor(a, assume="general").rcond(),
    "inv": lambda a: lw.inv(a, assume="lower"),
    "symmetric": lambda a: lw.solve(a, a, assume="symmetric"),
    "svd": lambda a: lw.svd(a[..., :3])[1],
    "polar": lw.polar,
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_are_not_promoted(place, name):
    """JAX's own tests, and those of other libraries, run with this setting."""
    function = RANKS[name]

    def total(x):
        return sum(jnp.sum(jnp.abs(y) ** 2) for y in jax.tree.leaves(function(x)))

    a = matrices((2, 3, 4, 4))
    with jax.numpy_rank_promotion("raise"):  # JAX looks at ranks when it traces
        assert jax.eval_shape(jax.grad(total), a).shape == a.shape
        jax.eval_shape(function, a)


def test_subnormal_matrices():
    x = np.random.default_rng(0).standard_normal((4, 12))
    a = (x * 1e-41).astype("float32")
    s = np.asarray(lw.svd(jnp.asarray(a), engine="lapack").S)
    assert (s >= 0).all() and (np.diff(s) <= 0).all()
    assert np.abs(s - np.linalg.svd(a.astype("float64"), compute_uv=False)).max() <= 10 * 12 * 1.5e-45
    h = (x[:, :4] + x[:, :4].T).astype("float32") * np.float32(1e-41)
    w = np.asarray(lw.eigvalsh(jnp.asarray(h), engine="lapack"))
    assert np.abs(w - np.linalg.eigvalsh(h.astype("float64"))).max() <= 10 * 4 * 1.5e-45


def products_in(jaxpr):
    """Every product of matrices in it, also in what it calls."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from products_in(inner)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: lw.qr(a[:3])[1],
        lambda a: lw.polar(a)[0],
        lambda a: lw.lstsq(a, a)[0],
        lambda a: lw.cholesky(a + a.T),
        lambda a: lw.eigh(a + a.T)[1],
        lambda a: lw.solve(a, a),
        lambda a: lw.solve(a + a.T, a, assume="pos"),
        lambda a: lw.inv(a),
        lambda a: lw.svd(a)[0],
        lambda a: lw.qr(a[:, :3])[1],
        lambda a: lw.factor(a).solve(a),
    ],
)
def test_products_keep_the_precision_of_the_arrays(function):
    """Of float32 a GPU would keep ten bits by default; none of our products may."""
    a = 3 * jnp.eye(5, dtype="float32")
    first = jax.grad(lambda a: function(a).sum())
    found = []
    for f in (function, first, lambda a: jax.jvp(first, (a,), (a,))):
        found += [str(eqn.params["precision"]) for eqn in products_in(jax.make_jaxpr(f)(a).jaxpr)]
    assert found and all("HIGHEST" in precision for precision in found), found
