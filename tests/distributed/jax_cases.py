"""Checks on sharded JAX arrays, run in a process of their own that sees 8 CPU devices: ``python jax_cases.py``.

Prints one JSON object: the name of each check, and "" or what went wrong.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from raising import raises

import lapwing as lw
from lapwing import NotPositiveDefiniteError, SingularMatrixError, frameworks
from lapwing.distributed import shard
from lapwing.distributed.backends.xla import calls as sharded_calls
from lapwing.distributed.backends.xla import cholesky as sharded_cholesky
from lapwing.distributed.backends.xla import divide
from lapwing.distributed.backends.xla import layout as sharded_layout
from lapwing.distributed.backends.xla import sharding as jax_sharding
from lapwing.distributed.placement import Grid

RANDOM = np.random.default_rng(7)
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def call(name, a, *more, **options):
    """The public call ``name`` on a sharded matrix."""
    assert frameworks.entry(a, name).sharded
    return getattr(lw, name)(a, *more, **options)


def matrix(n, dtype="float64", m=None):
    x = RANDOM.standard_normal((m or n, n))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * RANDOM.standard_normal(x.shape)
    return x.astype(dtype)


def positive(n, dtype="float64"):
    x = matrix(n, dtype).astype("complex128" if np.dtype(dtype).kind == "c" else "float64")
    return (x @ x.conj().T / n + np.eye(n)).astype(dtype)


def poisoned(a, upper):
    a = a.copy()
    a[np.tril_indices(len(a), -1) if upper else np.triu_indices(len(a), 1)] = np.nan
    return a


def mesh_of(p, q):
    return Mesh(np.array(jax.devices()[: p * q]).reshape(p, q), ("x", "y"))


def put(a, mesh, spec):
    return jax.device_put(a, NamedSharding(mesh, spec))


def close(got, expected, n, dtype="float64", factor=10):
    got, expected = np.asarray(got), np.asarray(expected)
    limit = factor * n * np.finfo(dtype).eps * max(1.0, np.abs(expected).max())
    worst = np.abs(got - expected).max()
    assert worst <= limit, f"{worst:.2e} is more than {limit:.2e}"


def explicit_mesh():
    """A 2 x 2 mesh with Explicit axes; None where JAX has none."""
    kinds = getattr(jax.sharding, "AxisType", None)
    if kinds is None:
        return None
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(kinds.Explicit,) * 2, devices=jax.devices()[:4])


def same_placement(x, a):
    assert x.sharding.is_equivalent_to(a.sharding, a.ndim), (x.sharding, a.sharding)


@check
def positive_definite_on_a_grid():
    """Blocks of 11 rows, which 2 does not divide; padding; one triangle read; two axes of three and two devices."""
    for p, q, n, dtype, upper, b_spec in (
        (4, 2, 44, "float64", False, P("x", "y")),
        (2, 3, 66, "complex128", True, P()),
    ):
        mesh, a, b = mesh_of(p, q), positive(n, dtype), matrix(8, dtype, m=n)
        x = call("solve", put(poisoned(a, upper), mesh, P("x", "y")), put(b, mesh, b_spec), assume="pos", upper=upper)
        close(x, np.linalg.solve(a, b), n, dtype)
        same_placement(x, put(b, mesh, b_spec))
        held = put(poisoned(a, upper), mesh, P("x", "y"))
        l = call("cholesky", held, upper=upper)
        close(l, np.linalg.cholesky(a).conj().T if upper else np.linalg.cholesky(a), n, dtype)
        same_placement(l, held)


@check
def rows_columns_and_vectors():
    n = 40
    for spec, dtype in ((P("x", None), "float32"), (P(None, ("x", "y")), "complex64")):
        mesh, a, b = mesh_of(2, 2), positive(n, dtype), matrix(1, dtype, m=n)[:, 0]
        held = put(a, mesh, spec)
        x = call("solve", held, jnp.asarray(b), assume="pos")
        close(x, np.linalg.solve(a, b), n, dtype)
        assert x.shape == (n,)


@check
def inverse_and_logdet():
    n, mesh = 42, mesh_of(2, 3)
    a = positive(n, "complex128")
    held = put(poisoned(a, False), mesh, P("x", "y"))
    x = call("inv", held, assume="pos")
    close(x, np.linalg.inv(a), n)
    assert np.array_equal(np.asarray(x), np.asarray(x).conj().T)
    same_placement(x, held)
    sign, value = call("slogdet", held, assume="pos")
    close(value, np.linalg.slogdet(a)[1], n)
    assert complex(sign) == 1


@check
def ill_conditioned_blocks_are_refined():
    n, mesh = 96, mesh_of(2, 1)
    t = np.linspace(0, 1, n)
    a = np.exp(-((t[:, None] - t) ** 2) / 0.1) + 1e-10 * np.eye(n)
    l = np.asarray(call("cholesky", put(a, mesh, P("x", None))))
    assert np.abs(l @ l.T - a).max() <= 10 * n * np.finfo(float).eps * np.abs(a).max()


@check
def failures():
    n, mesh = 44, mesh_of(4, 2)
    a = positive(n)
    for row, value, nonfinite in ((30, -1.0, False), (17, np.nan, True)):
        bad = a.copy()
        bad[row, row] = value
        held = put(bad, mesh, P("x", "y"))
        error = raises(NotPositiveDefiniteError, f"order {row + 1}", lambda held=held: call("cholesky", held))
        assert (error.minor, error.nonfinite) == (row + 1, nonfinite)
        assert np.isnan(np.asarray(call("cholesky", held, on_fail="nan"))).all()
    factor, info = lw.cholesky_ex(held)
    assert int(info) == 18 and np.isnan(np.asarray(factor)).all()
    bad = a.copy()
    bad[25, 3] = np.inf  # below the diagonal: the pivot of its row fails, none before
    assert raises(NotPositiveDefiniteError, "NaN or Inf", lambda: call("cholesky", put(bad, mesh, P("x", "y")))).minor == 26


@check
def bad_arguments():
    mesh = mesh_of(4, 2)
    held = put(np.zeros((8, 16)), mesh, P("x", "y"))
    raises(ValueError, "square", lambda: call("cholesky", held))
    square = put(np.eye(8), mesh, P("x", None))
    raises(TypeError, "dtype", lambda: call("solve", square, jnp.ones(8, int), assume="pos"))
    raises(ValueError, "transpose", lambda: call("solve", square, jnp.ones(8), side="right"))
    raises(ValueError, "a has 8 rows and b has 7", lambda: call("solve", square, jnp.ones(7), assume="pos"))
    raises(ValueError, "'pos'", lambda: call("solve", square, jnp.ones(8), assume="positive"))
    raises(ValueError, "upper=True", lambda: call("solve", square, jnp.ones(8), upper=True))
    raises(ValueError, "engine", lambda: call("cholesky", square, engine="lapack"))
    raises(TypeError, "int", lambda: call("cholesky", put(np.eye(8, dtype=int), mesh, P("x", None))))
    raises(ValueError, "batch", lambda: call("cholesky", put(np.zeros((3, 8, 8)), mesh, P(None, "x"))))
    assert jax_sharding.route(put(np.zeros((8, 4, 4)), mesh, P("x"))) is None
    assert jax_sharding.route(put(np.eye(8), mesh, P())) is None
    assert jax_sharding.route(jnp.eye(8)) is None


@check
def general_matrices():
    n, mesh = 44, mesh_of(2, 2)
    a, b = matrix(n, "complex128"), matrix(4, "complex128", m=n)
    a[:3, :3] = 0  # pivots are needed
    held = put(a, mesh, P("x", "y"))
    x = call("solve", held, put(b, mesh, P("y", "x")))
    assert np.abs(a @ np.asarray(x) - b).max() <= 10 * n * np.finfo(float).eps * np.abs(a).max() * np.abs(x).max()
    assert x.sharding.spec == P("y", "x")
    a[:, 7] = 0
    error = raises(SingularMatrixError, "pivot 8", lambda: call("solve", put(a, mesh, P("x", "y")), put(b, mesh, P("y", "x"))))
    assert error.pivot == 8


@check
def factored_once():
    """All assumptions, in panels that need padding; the other triangle is not read; under jit, in and out."""
    n, mesh = 44, mesh_of(2, 2)
    x, b = matrix(n, "complex128"), matrix(4, "complex128", m=n)
    matrices = {
        "pos": (positive(n, "complex128"), True),
        "general": (x, None),
        "hermitian": (x + x.conj().T, False),
        "symmetric": (x + x.T, True),
        "lower": (np.tril(x) + 9 * np.eye(n), False),
        "upper": (np.triu(x) + 9 * np.eye(n), True),
    }
    for assume, (a, upper) in matrices.items():
        held = put(a if upper is None else poisoned(a, upper), mesh, P("x", "y"))
        named = {} if assume in ("general", "lower", "upper") else {"upper": upper}
        f = call("factor", held, assume=assume, **named)
        assert int(f.info) == 0 and f.report["engine"] == "xla" and isinstance(f, lw.Factor) and f.report["grid"] == (2, 2)
        expected, scale = np.linalg.solve(a, b), np.linalg.cond(a)
        right = put(b, mesh, P("y", None))
        got = jax.jit(lambda f, b: f.solve(b))(f, right) if assume == "pos" else f.solve(right)
        close(got, expected, n, factor=scale)
        if assume in ("hermitian", "lower"):
            close(call("solve", held, right, assume=assume, **named), expected, n, factor=scale)
        if assume == "upper":  # compiling takes longest: the rest is as for "lower"
            continue
        inverse = f.inv()
        close(inverse, np.linalg.inv(a), n, factor=scale)
        same_placement(inverse, held)
        if assume in ("pos", "hermitian", "symmetric"):
            turned = np.asarray(inverse).T if assume == "symmetric" else np.asarray(inverse).conj().T
            assert np.array_equal(np.asarray(inverse), turned)
        sign, value = f.slogdet()
        close(sign * np.exp(value - np.linalg.slogdet(a)[1]), np.linalg.slogdet(a)[0], n, factor=scale)
        if assume == "pos":
            close(f.l, np.linalg.cholesky(a).conj().T, n)
            close(f.logdet(), np.linalg.slogdet(a)[1], n)
        elif assume == "lower":
            assert np.array_equal(np.asarray(f.l), a)
        else:
            raises(AttributeError, "LU", lambda f=f: f.l)
    back = jax.jit(lambda a: call("factor", a))(put(positive(jax_sharding.AUTO_FROM), mesh, P("x", "y")))
    assert isinstance(back, lw.Factor) and back.solve(jnp.ones(jax_sharding.AUTO_FROM)).shape == (jax_sharding.AUTO_FROM,)
    raises(NotPositiveDefiniteError, "order 1", lambda: call("factor", put(-positive(n), mesh, P("x", "y"))))
    zero = np.tril(x)
    zero[5, 5] = 0
    assert raises(SingularMatrixError, "6", lambda: call("factor", put(zero, mesh, P("x", "y")), assume="lower")).pivot == 6


@check
def derivatives_of_factored_matrices():
    mesh = explicit_mesh()
    if mesh is None:
        return
    n = 12
    a, b = matrix(n) + 4 * np.eye(n), matrix(2, m=n)

    def value(a, b, assume, make):
        f = make(a, assume=assume)
        return jnp.sum(jnp.sin(f.solve(b))) + f.slogdet()[1] ** 2 + jnp.sum(f.inv() ** 2)

    for assume in ("hermitian", "lower"):
        f = jax.grad(partial(value, assume=assume, make=lw.factor), (0, 1))
        got = jax.jit(f)(put(a, mesh, P("x", "y")), put(b, mesh, P()))
        for one, other in zip(got, f(jnp.asarray(a), jnp.asarray(b)), strict=True):
            close(one, other, n, factor=1000)
        assert got[0].sharding.spec == P("x", "y")


@check
def tall_matrices():
    mesh, m, n = mesh_of(4, 2), 80, 6
    a, b = matrix(n, m=m), matrix(1, m=m)[:, 0]
    held = put(a, mesh, P("x", "y"))
    q, r = map(np.asarray, call("qr", held))
    close(q @ r, a, m)
    close(q.T @ q, np.eye(n), m)
    u, s, vh = call("svd", held)
    same_placement(u, held)
    close(np.asarray(u) * np.asarray(s) @ np.asarray(vh), a, m)
    x, residuals, rank, values = call("lstsq", held, jnp.asarray(b))
    expected = np.linalg.lstsq(a, b)
    close(x, expected[0], m)
    close(residuals, expected[1][0], m, factor=100)
    close(values, expected[3], m)
    assert int(rank) == n
    wide = put(a.T.copy(), mesh, P(None, ("x", "y")))
    u, p = call("polar", wide, side="left")
    close(np.asarray(p) @ np.asarray(u), a.T, m)


@check
def eigenproblems():
    """Never gathered; merges of divide and conquer above the block too; one triangle read."""
    n, mesh = 48, mesh_of(4, 2)
    divide.BLOCK, block = 16, divide.BLOCK
    a = positive(n, "complex128")
    held = put(poisoned(a, True), mesh, P("x", "y"))
    w, v = call("eigh", held, upper=True)
    divide.BLOCK = block
    same_placement(v, held)
    w, v = np.asarray(w), np.asarray(v)
    close(a @ v, v * w, n)
    close(v.conj().T @ v, np.eye(n), n)
    some = call("eigh", held, upper=True, window=(w[0] * 0.5 + w[1] * 0.5, w[8] * 0.5 + w[9] * 0.5))
    assert some.eigenvectors.sharding.spec == P("x", "y")
    close(some.eigenvalues, w[1:9], n)
    close(a @ np.asarray(some.eigenvectors), np.asarray(some.eigenvectors) * w[1:9], n)
    assert call("eigh", held, upper=True, window=(-2, -1)).eigenvectors.shape == (n, 0)
    values, _, info = lw.eigh_ex(held, upper=True)
    close(values, w, n)
    assert int(info) == 0
    a[3, 40] = a[40, 3] = np.nan
    bad = put(a, mesh, P("x", "y"))
    assert raises(lw.ConvergenceError, "NaN or Inf", lambda: call("eigh", bad, upper=True)).nonfinite
    assert np.isnan(np.asarray(lw.eigh_ex(bad, upper=True).eigenvectors)).all()


@check
def wild_spectra():
    """Divide and conquer of tridiagonal matrices: clusters, zeros, glued matrices; merges in a block and above it."""
    n, wilkinson = 100, np.abs(np.arange(100) % 21 - 10.0)
    glue = np.where(np.arange(99) % 21 == 20, 1e-14, 1.0)
    random, ones = RANDOM.standard_normal((4, 99)), np.ones(99)
    divide.BLOCK, block = 24, divide.BLOCK
    tree = divide.tree_for(n, 1)
    divide.BLOCK = block
    assert tree.levels == 2
    solve = jax.jit(lambda d, e: divide.tridiagonal_eigh(d, e, tree, (), vectors=True, part=(0, n)))
    some = jax.jit(lambda d, e: divide.tridiagonal_eigh(d, e, tree, (), vectors=True, part=(70, 9)))
    for d, e in (
        (RANDOM.standard_normal(n), random[0]),
        (2 * np.ones(n), -ones),
        (np.ones(n), 0 * ones),
        (np.zeros(n), 0 * ones),
        (wilkinson, glue),
        (10.0 ** -np.linspace(0, 30, n), 10.0 ** -np.linspace(0, 30, 99)),
        (np.zeros(n), random[1] * np.where(np.arange(99) % 2, 1e-12, 1)),
        (np.ones(n), 1e-16 * ones),
        (np.ones(n), 1e-9 * random[2]),
    ):
        t = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
        w, rows = map(np.asarray, solve(d, e))
        v = rows.reshape(-1, n)[:n]
        close(w, np.linalg.eigvalsh(t), n)
        close(t @ v, v * w, n)
        close(v.T @ v, np.eye(n), n)
    values, rows = map(np.asarray, some(d, e))
    close(values, w[70:79], n)
    close(rows.reshape(-1, 9)[:n], v[:, 70:79], n)


@check
def decompositions_of_any_shape():
    mesh = mesh_of(4, 2)
    for m, n, dtype in ((48, 48, "complex64"), (40, 64, "float64")):
        a = matrix(n, dtype, m=m)
        held = put(a, mesh, P("x", "y"))
        q, r = call("qr", held)
        same_placement(q, held)
        same_placement(r, held)
        q, r = np.asarray(q), np.asarray(r)
        close(q @ r, a, max(m, n), dtype)
        close(q.conj().T @ q, np.eye(m), m, dtype)
        assert not np.tril(r, -1).any()
    # rank 17 of 40, and values down to 1e-9
    left, right = np.linalg.qr(matrix(40))[0], np.linalg.qr(matrix(40, m=64))[0]
    a = left[:, :17] * np.logspace(0, -9, 17) @ right[:, :17].T
    held, b = put(a, mesh, P("x", "y")), matrix(2, m=40)
    u, s, vh = map(np.asarray, call("svd", held))
    close(u * s @ vh, a, 64)
    close(u.T @ u, np.eye(40), 64)
    close(vh @ vh.T, np.eye(40), 64)
    x, residuals, rank, values = call("lstsq", held, jnp.asarray(b), rcond=1e-4)
    expected = np.linalg.lstsq(a, b, rcond=1e-4)
    assert int(rank) == expected[2]
    close(x, expected[0], 64, factor=1e5)
    close(residuals, np.sum((b - a @ expected[0]) ** 2, 0), 64, factor=1e5)
    close(values, s, 64)
    x = matrix(48)
    u, p = map(np.asarray, call("polar", put(x, mesh, P("x", "y")), side="left"))
    close(p @ u, x, 48)
    close(u.T @ u, np.eye(48), 48)
    assert np.array_equal(p, p.T) and np.linalg.eigvalsh(p).min() > 0


@check
def what_is_gathered_is_a_warning():
    n, mesh = 16, mesh_of(4, 2)
    a, b = positive(n), positive(n)
    held = put(a, mesh, P("x", "y"))
    for other in (put(b, mesh_of(2, 2), P("y", "x")), jnp.asarray(b)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            w, v = map(np.asarray, lw.eigh(held, b=other))
        close(a @ v, b @ v * w, n, factor=100)
        (text,) = (str(each.message) for each in said)
        assert "gathered to one device: b= has no distributed algorithm" in text and "\nhint: " in text, text
        assert said[0].filename == __file__
    from lapwing.distributed.backends.xla import panels as sharded

    sharded.GATHER_LIMIT, limit = 100, sharded.GATHER_LIMIT
    raises(NotImplementedError, "too large for one device", lambda: call("eigh", held, b=jnp.asarray(b)))
    sharded.GATHER_LIMIT = limit


def one_device(a, b, weights):
    a = (a + a.conj().T) / 2
    return jnp.sum(jnp.real(weights * jnp.linalg.solve(a, b))) + jnp.linalg.slogdet(a)[1] ** 2


@check
def derivatives_with_auto_axes():
    n, mesh = 14, mesh_of(2, 2)
    a, b, weights, da = (matrix(k, "complex128", m=n) for k in (n, 3, 3, n))
    a = a @ a.conj().T / n + np.eye(n)
    held, db = put(a, mesh, P("x", "y")), b[::-1].copy()

    def value(a, b):
        return jnp.sum(jnp.real(weights * call("solve", a, b, assume="pos"))) + call("slogdet", a, assume="pos")[1] ** 2

    where = jax_sharding.route(held)
    inside = {"route": jax_sharding.route}

    def known(x):  # what Auto axes do not tell inside jit; rows would do as well
        return where if x.ndim == 2 and x.shape[0] == x.shape[1] else inside["route"](x)

    jax_sharding.route = known
    try:
        got = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(held, jnp.asarray(b))
        _, tangent = jax.jit(lambda a, b, c, d: jax.jvp(value, (a, b), (c, d)))(held, b, put(da, mesh, P("x", "y")), db)
    finally:
        jax_sharding.route = inside["route"]
    expected = jax.value_and_grad(one_device, argnums=(0, 1))(a, b, weights)
    close(got[0], expected[0], n)
    close(got[1][0], expected[1][0], n, factor=100)
    close(got[1][1], expected[1][1], n, factor=100)
    _, along = jax.jvp(lambda a, b: one_device(a, b, weights), (a, b), (da, db))
    close(tangent, along, n, factor=100)


@check
def explicit_axes_keep_their_sharding_under_jit():
    mesh = explicit_mesh()
    if mesh is None:
        return
    n = 24
    a = positive(n)
    held = put(a, mesh, P("x", "y"))

    @jax.jit
    def f(a):
        return call("cholesky", a), jax.grad(lambda a: call("slogdet", a, assume="pos")[1])(a)

    l, gradient = f(held)
    close(l, np.linalg.cholesky(a), n)
    close(gradient, np.linalg.inv(a), n)
    assert l.sharding.spec == gradient.sharding.spec == P("x", "y")


def collectives(compiled):
    text = compiled.as_text()
    return {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in ("all-to-all", "all-gather")}, text


@check
def auto_axes_under_jit_gather_nothing():
    """The matrix is never whole on a device: no array of the compiled program has n x n elements, but the input's type."""
    n, mesh = jax_sharding.AUTO_FROM, mesh_of(4, 2)
    a = positive(n)
    held = put(a, mesh, P("x", "y"))
    compiled = jax.jit(lambda a: call("cholesky", a)).lower(held).compile()
    counts, text = collectives(compiled)
    assert counts["all-to-all"] >= 3
    assert f"[{n},{n}]" not in text and f"[{n * n}]" not in text
    close(compiled(held), np.linalg.cholesky(a), n)
    routes = []

    def look(a):
        routes.extend(frameworks.entry(a, name).sharded for name in ("qr", "eigh"))
        return a

    jax.eval_shape(look, held)
    jax.jit(lambda a: look(a)).lower(held)  # another function: the trace of this one is kept
    assert routes == [True] * 4


@check
def redistribution_is_two_all_to_alls():
    for spec, grid, expected in (
        (P("x", "y"), Grid((("x", 4),), (("y", 2),)), 2),
        (P(("x", "y"), None), Grid((("x", 4), ("y", 2)), ()), 1),
        (P(None, ("x", "y")), Grid((), (("x", 4), ("y", 2))), 2),  # six columns each, panels of four
        (P(None, ("x", "y")), Grid((), (("x", 4), ("y", 2))), 1),  # eight panels each
    ):
        mesh, n = mesh_of(4, 2), 256 if expected == 1 and not grid.rows else 48
        cut = sharded_calls.cut_for(n, grid, 4)
        held = put(matrix(n), mesh, spec)
        panels = P(None, grid.order)

        def there(a, grid=grid, cut=cut):
            return sharded_layout.to_panels(a, grid, cut)

        def back(c, grid=grid, cut=cut, n=n):
            return sharded_layout.from_panels(c, grid, cut, n)

        there = jax.jit(sharded_layout.shard_map(there, mesh, (spec,), panels))
        back = jax.jit(sharded_layout.shard_map(back, mesh, (panels,), spec))
        laid = there(held)
        for function, given in ((there, held), (back, laid)):
            counts, _ = collectives(function.lower(given).compile())
            assert counts == {"all-to-all": expected, "all-gather": 0}, counts
        assert np.array_equal(np.asarray(back(laid)), np.asarray(held))
        order = np.pad(np.asarray(held), ((0, 0), (0, cut.padded - n))).reshape(n, -1, 8, 4).swapaxes(1, 2).reshape(n, -1)
        assert np.array_equal(np.asarray(laid), order)


@check
def inside_the_users_shard_map():
    n, mesh = 40, Mesh(np.array(jax.devices()[:4]), ("x",))
    a, b = positive(n), matrix(4, m=n)

    def local(a, b):
        x, info = shard.solve_ex(a, b, axis_name="x")
        return x, info, shard.slogdet(a, axis_name="x")[1]

    function = sharded_layout.shard_map(local, mesh, (P(None, "x"), P("x", None)), (P("x", None), P(), P()))
    x, info, value = jax.jit(function)(put(a, mesh, P(None, "x")), put(b, mesh, P("x", None)))
    spectrum = sharded_layout.shard_map(lambda a: shard.eigh(a, axis_name="x"), mesh, (P(None, "x"),), (P(), P(None, "x")))
    w, v = map(np.asarray, jax.jit(spectrum)(put(a, mesh, P(None, "x"))))
    close(a @ v, v * w, n)
    both = sharded_layout.shard_map(lambda a: shard.qr(a, axis_name="x"), mesh, (P("x", None),), (P("x", None), P("x", None)))
    q, r = map(np.asarray, jax.jit(both)(put(a, mesh, P("x", None))))
    close(q @ r, a, n)
    close(x, np.linalg.solve(a, b), n)
    close(value, np.linalg.slogdet(a)[1], n)
    assert int(info) == 0
    wrong = sharded_layout.shard_map(lambda a: shard.cholesky(a, axis_name="x"), mesh, (P("x", None),), P("x", None))
    raises(ValueError, "square matrix", lambda: wrong(put(np.zeros((8, 16)), mesh, P("x", None))))


@check
def compile_time_does_not_grow_with_panels():
    mesh, sizes = mesh_of(2, 1), []
    grid = Grid((("x", 2),), ())
    for n in (16 * 8, 16 * 32):
        cut = sharded_calls.cut_for(n, grid, 8)
        function = sharded_layout.shard_map(
            lambda c, cut=cut: sharded_cholesky.factor(c, cut, ("x",)).panels, mesh, (P(None, "x"),), P(None, "x")
        )
        sizes.append(len(jax.jit(function).lower(jax.ShapeDtypeStruct((n, n), "float64")).as_text()))
    assert sizes[1] < 1.1 * sizes[0], sizes


def main(names):
    jax.config.update("jax_enable_x64", True)
    results = {}
    for function in CHECKS:
        if names and function.__name__ not in names:
            continue
        try:
            function()
            results[function.__name__] = ""
        except Exception:
            results[function.__name__] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
