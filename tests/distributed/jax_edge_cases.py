"""More checks on sharded JAX arrays, where users go off the beaten track; run with those of jax_cases.py in one process."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax_cases import RANDOM, check, close, main, matrix, mesh_of, positive, put, same_placement
from raising import raises

import lapwing as lw
from lapwing.compat import jaxmg
from lapwing.distributed import shard
from lapwing.distributed.backends.xla import calls as sharded_calls
from lapwing.distributed.backends.xla import factored, panels
from lapwing.distributed.backends.xla import layout as sharded_layout
from lapwing.distributed.backends.xla import sharding as jax_sharding
from lapwing.distributed.placement import Grid

KINDS = getattr(jax.sharding, "AxisType", None)


def explicit(p, q):
    return Mesh(np.array(jax.devices()[: p * q]).reshape(p, q), ("x", "y"), axis_types=(KINDS.Explicit,) * 2)


@check
def right_hand_sides_on_other_meshes():
    n, mesh = 24, mesh_of(2, 2)
    a, b = positive(n), matrix(4, m=n)
    held, expected = put(a, mesh, P("x", "y")), np.linalg.solve(a, b)
    f = lw.factor(held)
    devices = np.array(jax.devices())
    places = [
        (Mesh(devices[:4].reshape(4, 1), ("x", "y")), P("x", "y")),  # the same names, other sizes
        (Mesh(devices[:4].reshape(2, 2).T, ("x", "y")), P("x", "y")),  # the same sizes, another order
        (Mesh(devices.reshape(2, 2, 2), ("x", "y", "z")), P("z", "x")),  # more devices
    ]
    if KINDS is not None:
        places.append((explicit(2, 2), P("x", "y")))
    for other, spec in places:
        right = put(b, other, spec)
        x = f.solve(right)
        close(x, expected, n)
        same_placement(x, right)
    right = put(b, *places[0])
    same_placement(lw.solve(held, right, assume="pos"), right)


@check
def any_mesh_may_be_set():
    if not hasattr(jax, "set_mesh"):
        return
    n, mesh = 12, mesh_of(2, 2)
    a = positive(n)
    held = put(a, mesh, P("x", "y"))
    with jax.set_mesh(Mesh(np.array(jax.devices()), ("z",))):
        f = lw.factor(held)
        close(f.solve(np.eye(n)), np.linalg.inv(a), n)
        raises(lw.NotPositiveDefiniteError, "order 1", lambda: lw.factor(put(-a, mesh, P("x", "y"))))
    with jax.set_mesh(mesh):
        close(lw.eigvalsh(held), np.linalg.eigvalsh(a), n)
        close(lw.qr(held).R, np.linalg.qr(a)[1], n)


@check
def eager_derivatives_of_spectra():
    n, mesh = 12, mesh_of(2, 2)
    a = positive(n)
    got = jax.grad(lambda a: jnp.sum(lw.eigvalsh(a) ** 2))(put(a, mesh, P("x", "y")))
    close(got, 2 * a, n, factor=100)


@check
def second_derivatives_and_batches_of_inverses():
    if KINDS is None or jax.__version_info__ < (0, 10):
        return
    n, mesh = 12, explicit(2, 2)
    a, da = positive(n), matrix(n)

    def twice(inverse, a, da):
        def value(a):
            return jnp.sum(inverse(a) ** 2)

        return jax.grad(lambda a: jnp.sum(jax.grad(value)(a) * da))(a)

    got = jax.jit(partial(twice, partial(lw.inv, assume="pos")))(put(a, mesh, P("x", "y")), put(da, mesh, P("x", "y")))
    close(got, jax.jit(partial(twice, lambda a: jnp.linalg.inv((a + a.T) / 2)))(a, da), n, factor=1000)
    two = np.stack([positive(n), positive(n)])
    close(jax.jit(jax.vmap(partial(lw.inv, assume="pos")))(put(two, mesh, P(None, "x", "y"))), np.linalg.inv(two), n)
    b = matrix(2, m=n)  # NumPy's, in traced code
    close(jax.jit(lambda a: lw.solve(a, b, assume="pos"))(put(two[0], mesh, P("x", "y"))), np.linalg.solve(two[0], b), n)


@check
def condition_estimates():
    n, mesh = 20, mesh_of(2, 2)
    for assume, a in (("pos", positive(n, "complex128")), ("general", matrix(n))):
        got, exact = float(lw.factor(put(a, mesh, P("x", "y")), assume=assume).rcond()), 1 / np.linalg.cond(a, 1)
        assert 0.999 * exact <= got <= 3 * exact, (assume, got, exact)
    ones = put(np.ones((n, n)), mesh, P("x", "y"))
    assert float(lw.factor(ones, assume="general", on_fail="nan").rcond()) == 0


@check
def blocks_of_rows_that_do_not_divide():
    """Nine rows each on four devices, for two columns of devices: five and four."""
    m, n, mesh = 36, 4, mesh_of(4, 2)
    a, b = matrix(n, m=m), matrix(2, m=m)
    a[:, 1] = a[:, 0]
    held = put(a, mesh, P("x", "y"))
    q, r = map(np.asarray, lw.qr(held))
    close(q @ r, a, m)
    close(q.T @ q, np.eye(n), m)
    x, _, rank, _ = lw.lstsq(held, put(b, mesh, P("x", None)))
    close(x, np.linalg.lstsq(a, b)[0], m)
    assert int(rank) == n - 1


@check
def every_call_is_compiled_once():
    built = []
    n, mesh, line = 12, mesh_of(2, 2), Mesh(np.array(jax.devices()[:4]), ("x",))
    tall, bad = put(matrix(3, m=40), line, P("x", None)), put(-positive(n), mesh, P("x", "y"))
    b, square = jnp.ones(40), put(positive(n), line, P(None, "x"))

    def calls(i):
        lw.lstsq(tall, b, rcond=1e-9 * i)
        jaxmg.qr(tall, 4)
        jaxmg.cyclic_1d_layout(square, 3)
        raises(lw.NotPositiveDefiniteError, "order 1", lambda: lw.cholesky(bad))

    calls(1)
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: built.append(event))
    calls(2)
    jax.monitoring.clear_event_listeners()
    assert not [event for event in built if "backend_compile" in event], built
    assert sharded_calls.compiled.cache_info().maxsize is not None


@check
def determinants():
    """As on one device, with derivatives; at a singular matrix they are NaN, but for triangles."""
    n, mesh = 8, mesh_of(2, 2)
    for dtype, assume in (("complex128", "general"), ("float64", "lower")):
        a = matrix(n, dtype) if assume == "general" else positive(n, dtype)
        held = put(a, mesh, P("x", "y"))
        found = lw.det(held, assume=assume)
        expected = np.linalg.det(np.tril(a) if assume == "lower" else a)
        close(found / expected, 1, 10 * n, dtype)
        assert found.dtype == a.dtype and found.sharding.is_fully_replicated
        d_sharded, d_plain = (
            jax.grad(lambda x: jnp.real((2 - 1j) * lw.det(x, assume=assume)))(x)  # noqa: B023
            for x in (held, jnp.asarray(a))
        )
        close(d_sharded / np.abs(d_plain).max(), d_plain / np.abs(d_plain).max(), 20 * n, dtype)
    singular = put(np.ones((n, n)), mesh, P("x", "y"))
    assert lw.det(singular) == 0 and np.isnan(jax.grad(lw.det)(singular)).all()
    low = np.eye(n)
    low[3, 3], low[4, 4], low[5, 5], low[6, 6], low[7, 7] = 0, 1e200, 1e200, 1e-200, 1e-200
    slope = jax.grad(lambda x: lw.det(x, assume="lower"))(put(low, mesh, P("x", "y")))
    close(np.asarray(slope)[3, 3], 1, 460)  # the logarithms are as large as that
    assert lw.det(put(np.eye(n) * 1e300, mesh, P("x", "y"))) == np.inf
    raises(lw.NotPositiveDefiniteError, "det: ", lambda: lw.det(put(-np.eye(n), mesh, P("x", "y")), assume="pos"))
    assert (lw.explain(lw.det, held).operation, lw.explain(lw.det, held).engine) == ("det", "xla")


@check
def two_dtypes_are_promoted():
    n, mesh = 8, mesh_of(2, 2)
    a = positive(n)
    wide, narrow = put(a, mesh, P("x", "y")), put(a.astype("f4"), mesh, P("x", "y"))
    for held, b, dtype in (
        (wide, jnp.ones(n, "float32"), "float64"),
        (wide, np.ones((n, 2), "float32"), "float64"),
        (narrow, put(np.ones((n, 2), "complex128"), mesh, P("x", None)), "complex128"),
    ):
        x = lw.solve(held, b, assume="pos")
        assert x.dtype == dtype and lw.explain(lw.solve, held, b, assume="pos").engine == "xla"
        close(x, np.linalg.solve(np.asarray(held).astype(dtype), np.asarray(b)), n, dtype)
    assert lw.factor(wide).solve(jnp.ones(n, "float32")).dtype == "float64"
    raises(TypeError, "cannot be used with a of", lambda: lw.factor(narrow).solve(jnp.ones(n)))
    tall = put(matrix(2, m=64), mesh, P(("x", "y"), None))
    assert lw.lstsq(tall, jnp.ones(64, "float32")).x.dtype == "float64"


@check
def tall_matrices_have_derivatives():
    gradient = jax.grad(lambda x: lw.svd(x).S.sum())
    # outside of jit JAX itself cannot differentiate an array with Explicit axes, unless their mesh is set
    for mesh, function in [(mesh_of(2, 2), gradient), *([] if KINDS is None else [(explicit(2, 2), jax.jit(gradient))])]:
        tall = put(matrix(2, m=64), mesh, P(("x", "y"), None))
        u, _, vh = np.linalg.svd(np.asarray(tall), full_matrices=False)
        close(function(tall), u @ vh, 64)


@check
def explicit_meshes_have_polar_and_derivatives():
    if KINDS is None:
        return
    mesh, a, one = explicit(4, 1), matrix(8), lambda x: lw.polar(x).u
    held = put(a, mesh, P("x", None))
    close(one(held), one(a), 8)
    close(jax.jit(one)(held), one(a), 8)
    for loss in (lambda x: lw.svdvals(x).sum(), lambda x: lw.qr(x).R.sum(), lambda x: lw.eigvalsh(x)[-1]):
        close(jax.jit(jax.grad(loss))(held), jax.grad(loss)(jnp.asarray(a)), 80)


@check
def axes_of_one_device():
    """With Explicit axes they are part of the type, though they split nothing: results keep them."""
    if KINDS is None:
        return
    n, mesh = 8, explicit(4, 1)
    a, b = positive(n), matrix(4, m=n)
    for spec in (P("x", "y"), P("y", "x")):
        held = put(a, mesh, spec)
        x = lw.solve(held, put(b, mesh, P("y", None)), assume="pos")
        close(x, np.linalg.solve(a, b), n)
        assert x.sharding.spec == P("y", None)
        difference = jax.jit(lambda a: lw.cholesky(a) - a)(held)  # JAX refuses it for other types
        close(difference, np.linalg.cholesky(a) - a, n)
        close(lw.svdvals(held), np.linalg.svd(a, compute_uv=False), n)
    # a matrix that they alone split is whole on each device
    w, v = jaxmg.syevd(put(a, mesh, P("y", None)), 4)
    close(np.asarray(v) * np.asarray(w) @ np.asarray(v).T, a, n)
    right = put(b, mesh, P())
    close(jaxmg.potrs(put(a, mesh, P("y", None)), right, 4), np.linalg.solve(a, b), n)
    # two shardings of the same devices
    close(lw.solve(put(a, mesh, P()), put(b, mesh, P(None, None)), assume="pos"), np.linalg.solve(a, b), n)
    batch = put(np.stack([a] * 4), mesh, P("x"))
    close(lw.solve(batch, put(np.stack([b] * 4), mesh, P()), assume="pos"), np.stack([np.linalg.solve(a, b)] * 4), n)
    raises(TypeError, "one device", lambda: lw.solve(jnp.asarray(a), right, assume="pos"))
    # axes of one device change nothing of what travels
    assert Grid((("y", 1),), (("x", 4),)).order == ("x",) and Grid((("y", 1),), ()).order == ("y",)
    grids, cut = (Grid((("y", 1),), (("x", 4),)), Grid((), (("x", 4),))), sharded_calls.cut_for(64, Grid((), (("x", 4),)))
    assert [sharded_layout._holds_panels(grid, cut) for grid in grids] == [True, True]


@check
def factors_have_derivatives():
    """Forward, reverse and second order, both triangles, and of a factor that is kept."""
    if KINDS is None or jax.__version_info__ < (0, 10):
        return
    n, weights = 12, RANDOM.standard_normal((12, 12))
    da = matrix(n)
    for dtype, kept, upper in (("float64", False, True), ("complex128", False, False), ("float64", True, False)):
        a = positive(n, dtype)

        def loss(a, kept=kept, upper=upper):
            l = lw.factor(a, upper=upper).l if kept else lw.cholesky(a, upper=upper)
            return jnp.sum(jnp.real(weights * l) ** 3)

        second = lambda a, da, loss=loss: jax.jvp(jax.grad(loss), (a,), (da,))  # noqa: E731
        one, two = second(jnp.asarray(a), jnp.asarray(da, a.dtype))
        held, tangent = (put(x, explicit(2, 2), P("x", "y")) for x in (a, da.astype(dtype)))
        got = jax.jit(second)(held, tangent)
        close(got[0], one, n, factor=1000)
        close(got[1], two, n, factor=10000)
        same_placement(got[0], held)


@check
def columns_need_not_divide_the_devices():
    mesh = mesh_of(4, 1)
    for m, n in ((12, 6), (8, 7)):
        a = matrix(n, m=m)
        u, p = lw.polar(put(a, mesh, P("x", None)))
        close(np.asarray(u) @ np.asarray(p), a, m)


@check
def options_that_change_nothing_are_checked_and_said():
    mesh, lines = mesh_of(2, 2), []
    held = put(positive(8), mesh, P("x", "y"))
    log = logging.getLogger("lapwing")
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: lines.append(record.getMessage())
    log.setLevel(logging.INFO)
    lw.factor(held, precision="mixed")
    log.removeHandler(handler)
    assert any("in full precision" in line for line in lines), lines
    raises(TypeError, "overwrite", lambda: lw.factor(held, overwrite="yes"))
    nothing = put(np.zeros((0, 0)), mesh, P("x", "y"))
    assert lw.cholesky(nothing).shape == (0, 0) and lw.slogdet(nothing).logabsdet == 0
    for b in (np.zeros((0, 2)), jnp.zeros((0, 2)), put(np.zeros((0, 2)), mesh, P("x", None))):
        assert lw.solve(nothing, b).shape == (0, 2)


@check
def explain_names_what_the_log_names():
    mesh, lines, n = mesh_of(4, 2), [], 32
    square, long = put(positive(n), mesh, P("x", "y")), put(matrix(3, m=64), mesh, P("x", None))
    b, plain = np.ones((n, 2)), jnp.eye(n)
    log = logging.getLogger("lapwing")
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: lines.append(record.getMessage())
    log.setLevel(logging.INFO)
    for op, args, options, engine in (
        (lw.cholesky, (square,), {}, "xla"),
        (lw.solve, (square, b), {"assume": "pos"}, "xla"),
        (lw.qr, (long,), {}, "xla"),
        (lw.qr, (square,), {}, "xla"),
        (lw.eigvalsh, (square,), {"engine": "sharded"}, "xla"),
    ):
        plan = lw.explain(op, *args, **options)
        assert not lines and plan.engine == engine, (plan, lines)
        op(*args, **options)
        assert f"{op.__name__}: {engine}" in lines[0], (op, lines)
        lines.clear()
    log.removeHandler(handler)
    made = lw.factor(square, assume="general")
    plan = lw.explain(lw.factor, square, assume="general")
    assert plan.grid == (1, 8) and plan.tile == made.report["tile"], (plan, made.report)
    assert lw.explain(lw.cholesky, plain) == lw.explain(lw.cholesky, lw.spec((n, n), plain.dtype))
    batch = put(np.broadcast_to(np.eye(3), (8, 3, 3)), mesh, P("x"))  # whole matrices
    assert lw.explain(lw.cholesky, batch) == lw.explain(lw.cholesky, lw.spec((8, 3, 3), batch.dtype))
    for engine in ("nonesuch", "batched", "scalapack"):
        told = []
        for call in (lambda: lw.eigh(square, engine=engine), lambda: lw.explain(lw.eigh, square, engine=engine)):  # noqa: B023
            try:
                call()
            except ValueError as error:
                told.append(str(error))
        assert len(told) == 2 and told[0] == told[1], told
    plan = lw.explain(lw.eigh, square, certify=True)
    assert plan.engine == "gathered" and plan.bytes_received == 7 / 8 * n * n * 8 and "to one device: certify=" in str(plan), (
        plan
    )
    # as XLA plans its memory
    wide = put(positive(512), mesh, P(("x", "y"), None))
    where = jax_sharding.route(wide)
    cut = sharded_calls.cut_for(512, where.grid)
    planned = jax.jit(sharded_calls.compiled(factored.cholesky, where, cut, False)).lower(wide).compile().memory_analysis()
    needed = planned.argument_size_in_bytes + planned.temp_size_in_bytes + planned.output_size_in_bytes
    assert 0.7 < lw.explain(lw.cholesky, wide).memory / needed < 1.4, needed


@check
def large_right_hand_sides_are_announced():
    """Those that are gathered to every device; small ones are not worth a warning."""
    mesh = mesh_of(2, 2)
    a, b = put(positive(16), mesh, P("x", None)), put(np.ones((16, 16)), mesh, P("x", None))
    lw.solve(a, b)
    before, panels.UNNOTICED = panels.UNNOTICED, 0
    try:
        for call, wanted in (
            (lambda: lw.solve(a, b), "LU and least squares need it whole"),
            (lambda: lw.factor(a, assume="general").solve(b), "LU and least squares need it whole"),
            (lambda: lw.solve(a, put(np.ones((16, 16)), mesh, P("y", None)), assume="pos"), "split over other axes"),
            (lambda: lw.solve(a, b, assume="pos"), None),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
            texts = [str(each.message) for each in caught]
            assert len(texts) == (wanted is not None) and all(wanted in x and "hint: factor" in x for x in texts), texts
            assert all(each.filename == __file__ for each in caught), [each.filename for each in caught]
    finally:
        panels.UNNOTICED = before


@check
def mistakes_inside_shard_map():
    line = Mesh(np.array(jax.devices()[:4]), ("x",))
    a, b = positive(8), matrix(2, m=8)

    def traced(function):
        return lambda: sharded_layout.shard_map(function, line, (P("x"),), P("x"))(put(a, line, P("x")))

    raises(ValueError, "2.5", traced(lambda a: shard.cholesky(a, axis_name="x", width=2.5)))
    raises(TypeError, "upper", traced(lambda a: shard.inv(a, axis_name="x", upper="no")))
    raises(ValueError, "no axis", traced(lambda a: shard.cholesky(a, axis_name="q")))
    raises(ValueError, "outside of shard_map", lambda: shard.cholesky(jnp.asarray(a), axis_name="x"))
    raises(TypeError, "list", traced(lambda a: shard.solve(a, b.tolist(), axis_name="x")))
    raises(ValueError, "b must have shape", traced(lambda a: shard.solve(a, jnp.asarray(b)[None], axis_name="x")))


@check
def donated_matrices():
    n, line = 12, Mesh(np.array(jax.devices()[:4]), ("x",))
    a, b = positive(n), matrix(2, m=n)
    held, right = put(a, line, P(None, "x")), jnp.asarray(b)
    close(jaxmg.potrs(held, right, np.int64(3)), np.linalg.solve(a, b), n)
    assert not held.is_deleted() and not right.is_deleted()
    close(jaxmg.potrs(held, right, 3, donate=True), np.linalg.solve(a, b), n)
    assert held.is_deleted() and right.is_deleted()
    held, right = put(a, line, P(None, "x")), put(b, line, P(None, None)) * 1  # its own memory, not NumPy's
    memory = [piece.data.unsafe_buffer_pointer() for piece in right.addressable_shards]
    x = jaxmg.lu_solve(held, right, 3, line, (P(None, "x"), P(None, None)), donate=True)
    assert [piece.data.unsafe_buffer_pointer() for piece in x.addressable_shards] == memory, "x is not in the memory of b"
    raises(ValueError, "not divisible", lambda: jaxmg.potrs(positive(7), b[:7], 3, line, P("x", None)))
    close(jaxmg.syevd(a, 3, line, P("x", None))[0], np.linalg.eigvalsh(a), n)


@check
def panels_of_any_grid():
    """Blocks to panels and back, with the axes of the mesh in any order; blocks of columns are whole panels."""
    mesh = mesh_of(4, 2)
    x, y = ("x", 4), ("y", 2)
    for grid in (Grid((), (y, x)), Grid((), (y, x), ("x", "y")), Grid((y,), (x,), ("x", "y")).turned()):
        n, cut = 64, sharded_calls.cut_for(64, grid, 1)
        a = RANDOM.standard_normal((16, n))
        spec, panels = sharded_calls.spec_of(grid), P(None, grid.order)
        there = sharded_layout.shard_map(partial(sharded_layout.to_panels, grid=grid, cut=cut), mesh, (spec,), panels)
        back = partial(sharded_layout.from_panels, grid=grid, cut=cut, rows=16)
        laid = jax.jit(there)(put(a, mesh, spec))
        expected = a.reshape(16, -1, 8, cut.width).swapaxes(1, 2).reshape(16, -1)
        assert np.array_equal(np.asarray(laid), expected), grid
        again = jax.jit(sharded_layout.shard_map(back, mesh, (panels,), spec))(laid)
        assert np.array_equal(np.asarray(again), a), grid


@check
def the_page_of_the_docs():
    """Its examples in turn, as a user has them with eight devices."""
    if not hasattr(jax, "shard_map"):  # before 0.6
        return
    text = (Path(__file__).parents[2] / "docs" / "distributed-jax.md").read_text()
    scope: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "distributed-jax.md", "exec"), scope)
    a, l = (np.asarray(scope[name]) for name in ("a", "whole"))
    close(l, np.linalg.cholesky(a), 64)
    close(scope["logdet"], np.linalg.slogdet(a)[1], 64)
    close(scope["x"], np.linalg.solve(a, np.ones(64)), 64)
    assert scope["same"] == 1


if __name__ == "__main__":
    main(sys.argv[1:])
