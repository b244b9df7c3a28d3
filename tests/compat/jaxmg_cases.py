"""Run in a process that sees two devices, or one: JAXMg's own programs, and its three generations of calls."""

from __future__ import annotations

import warnings

import jax

assert not jax.config.jax_enable_x64
import lapwing.compat.jaxmg as mg  # noqa: E402

assert not jax.config.jax_enable_x64  # importing changes nothing
for said in (1, 0):  # that numbers have 32 bits, which they have not with jaxmg itself
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        mg.layout.Place("potrs", jax.numpy.eye(2), 1, jax.make_mesh((1,), ("x",)), jax.P("x", None), None, True)
    assert [each.category for each in heard] == [mg.JaxMgWarning] * said, heard
jax.config.update("jax_enable_x64", True)

from functools import partial  # noqa: E402

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from lapwing.compat.jaxmg import cyclic_1d_layout, potrs, potrs_no_shardmap, shard_map  # noqa: E402


def problem(N, dtype):
    """The mesh, matrix and right-hand side with which JAXMg's programs begin."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    A = jnp.diag(jnp.arange(N, dtype=dtype) + 1)
    b = jnp.ones((N, 1), dtype=dtype)
    A = jax.device_put(A, NamedSharding(mesh, P(None, "x")))
    b = jax.device_put(b, NamedSharding(mesh, P(None, None)))
    return mesh, A, b


def first_program():
    ndev = len(jax.devices())
    assert ndev in [1, 2], "Example only works for 1 or 2 devices"
    N = 12
    T_A = 2
    dtype = jnp.float64
    mesh, A, b = problem(N, dtype)
    out = potrs(A, b, T_A=T_A, mesh=mesh, in_specs=(P(None, "x"), P(None, None)))
    expected_out = 1.0 / (jnp.arange(N, dtype=dtype) + 1)
    assert jnp.allclose(out.flatten(), expected_out)
    A_bc = cyclic_1d_layout(A, T_A)
    tiles = [np.flatnonzero(np.asarray(shard.data).sum(1)).tolist() for shard in A_bc.addressable_shards]
    assert tiles == ([[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]] if ndev == 2 else [[*range(12)]])
    mg.verify_cyclic(A, A_bc, T_A)
    out, status = potrs(A_bc, b, T_A, mesh, (P(None, "x"), P(None, None)), return_status=True, cyclic_1d=True)
    assert jnp.allclose(out.flatten(), expected_out) and int(status) == 0


def second_program():
    N = 8
    T_A = 2
    dtype = jnp.complex64
    mesh, A, b = problem(N, dtype)
    diag_shift = 1e-1

    @partial(jax.jit, static_argnames=("_T_A",))
    def shift_and_solve(_a, _b, _ds, _T_A):
        idx = jnp.arange(_a.shape[0])
        shard_size = _a.shape[1]
        _a = _a.at[idx + shard_size * jax.lax.axis_index("x"), idx].add(_ds)
        return potrs_no_shardmap(_a, _b, _T_A)

    @partial(jax.jit, static_argnames=("_T_A",))
    def jitted_potrs(_a, _b, _ds, _T_A):
        out = jax.shard_map(
            partial(shift_and_solve, _T_A=_T_A),
            mesh=mesh,
            in_specs=(P(None, "x"), P(None, None), P()),
            out_specs=(P(None, None), P(None)),
            check_vma=False,
        )(_a, _b, _ds)
        return out

    out, status = jitted_potrs(A, b, diag_shift, T_A)
    assert f"Status: {status}" == "Status: [0]"
    expected_out = 1.0 / (jnp.arange(N, dtype=dtype) + 1 + diag_shift)
    assert jnp.allclose(out.flatten(), expected_out)


def rows_split():
    """Generation B."""
    n, mesh = 10, jax.make_mesh((jax.device_count(),), ("x",))
    a = mg.random_psd(n, "float64", 1)
    b = jnp.asarray(np.random.default_rng(0).standard_normal((n, 3)))
    spec = P("x", None)
    held = jax.device_put(a, NamedSharding(mesh, spec))
    x, status = mg.potrs(held, b, 3, mesh, (spec, P(None, None)), True)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-10, atol=1e-12)
    assert status.dtype == jnp.int32 and int(status) == 0
    x, status = mg.potrs(-held, b, 3, mesh, (spec, P(None, None)), return_status=True)
    assert int(status) == 7 and np.isnan(np.asarray(x)).all()
    inverse, status = mg.potri(held, 3, mesh, (spec,), return_status=True)
    np.testing.assert_allclose(inverse, np.linalg.inv(a), rtol=1e-10, atol=1e-12)
    assert np.array_equal(np.asarray(inverse), np.asarray(inverse).T)
    upper = shard_map(lambda a: mg.potri_shardmap_ctx(a, 3), mesh, (spec,), (spec, P(None)))
    half, status = jax.jit(upper)(held)
    assert status.shape == (1,) and np.array_equal(np.tril(half, -1), np.zeros((n, n)))
    for upper in (half, jnp.asarray(np.asarray(half))):  # the mesh has Explicit axes
        np.testing.assert_allclose(jax.device_get(mg.potri_symmetrize(upper)), inverse, rtol=1e-12)
    w, v, status = mg.syevd(held, 3, mesh, spec, return_status=True)
    np.testing.assert_allclose(np.asarray(a) @ np.asarray(v), np.asarray(v) * np.asarray(w), atol=1e-12)
    assert v.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "x")), 2) and int(status) == 0
    assert (v @ a @ v.T).shape == (n, n)  # as its own tests use V; with Explicit axes other splits are refused
    assert mg.syevd(held, 3, mesh, spec, return_eigenvectors=False).shape == (n,)
    # inside a shard_map my rows of A give my columns of V
    local = shard_map(lambda a: mg.syevd_shardmap_ctx(a, 3), mesh, (spec,), (P(None), P(None, "x"), P(None)))
    w, v, status = jax.jit(local)(held)
    np.testing.assert_allclose(np.asarray(a) @ np.asarray(v), np.asarray(v) * np.asarray(w), atol=1e-12)
    laid = mg.cyclic_1d(held, 3, mesh, spec)
    mg.verify_cyclic(held, laid, 3)


def release_one():
    """Generation C."""
    n, mesh = 10, jax.make_mesh((jax.device_count(),), ("x",))
    a = mg.random_psd(n, "float64", 1)
    held = jax.device_put(a, NamedSharding(mesh, P("x")))
    b = jnp.ones((n, 1))
    x, logdet = mg.potrs(held, b, 3, return_logdet=True)
    np.testing.assert_allclose(logdet, np.linalg.slogdet(a)[1], rtol=1e-12)
    x, status = mg.lu_solve(held, b, 3, mesh, P("x"), return_status=True)
    assert int(status) == 0
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-10)
    t = np.random.default_rng(0).standard_normal((12, 3))
    tall = jax.device_put(t, NamedSharding(mesh, P("x", None)))
    q, r = mg.qr(tall, 3)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), t, atol=1e-12)
    u, s, vh = mg.gesvd(tall, 3)
    np.testing.assert_allclose(np.asarray(u) * np.asarray(s) @ np.asarray(vh), t, atol=1e-12)
    x = mg.least_squares(tall, jnp.ones((12, 1)), 3)
    expected = np.linalg.lstsq(t, np.ones((12, 1)))[0]
    np.testing.assert_allclose(x, expected, rtol=1e-10)
    u, s, vh = mg.gesvd(tall, 3, full_matrices=True)
    np.testing.assert_allclose(np.asarray(u).T @ np.asarray(u), np.eye(12), atol=1e-12)
    np.testing.assert_allclose(np.asarray(u)[:, :3] * np.asarray(s) @ np.asarray(vh), t, atol=1e-12)
    s, vh = mg.gesvd(tall, 3, compute_u=False)
    assert s.shape == (3,) and vh.shape == (3, 3) and mg.gesvd(tall, 3, compute_u=False, compute_vh=False).shape == (3,)

    @jax.jit
    def contexts(a, b, tall):
        _, x, logdet, _ = mg.potrs_jit_ctx(a, b, 3, mesh, P("x", None), return_logdet=True)
        named = {"mesh": mesh, "matrix_specs": P("x", None)}
        return (
            x,
            logdet,
            mg.qr_shardmap_ctx(tall, 3, **named),
            mg.least_squares_shardmap_ctx(tall, jnp.ones((12, 1)), 3, **named),
        )

    x, value, (q, r, status), (work, _, solution, _) = contexts(held, b, tall)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-10)
    np.testing.assert_allclose(value, logdet, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), t, atol=1e-12)
    np.testing.assert_allclose(solution, expected, rtol=1e-10)
    assert work.shape == t.shape and int(status) == 0

    def local(a, b):  # 1.5: my rows of b
        _, x, logdet, _ = mg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)
        return x, logdet, mg.gesvd_shardmap_ctx(a[:, :3], 3)[2], mg.polar_shardmap_ctx(a[:, :3], 3)[1]

    rows = P("x", None)
    x, value, s, h = jax.jit(shard_map(local, mesh, (rows, rows), (rows, P(), P(), P())))(
        held, jax.device_put(b, NamedSharding(mesh, rows))
    )
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-10)
    np.testing.assert_allclose(s, np.linalg.svd(np.asarray(a)[:, :3])[1], rtol=1e-10)
    np.testing.assert_allclose(np.asarray(h) @ h, np.asarray(a)[:, :3].T @ np.asarray(a)[:, :3], rtol=1e-10)
    for call in (mg.qr, mg.polar, mg.gesvd):
        raises(TypeError, lambda call=call: call(tall, 3, retrun_status=True))


def raises(kind, function):
    try:
        function()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def errors_and_helpers():
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    spec = P("x", None)
    a, b = jax.device_put(jnp.eye(8), NamedSharding(mesh, spec)), jnp.ones((8, 1))
    raises(TypeError, lambda: mg.potrs(a, b, 2, mesh, ("x", None)))
    raises(ValueError, lambda: mg.potrs(a, b, 2, mesh, (spec, P(), P())))
    raises(ValueError, lambda: mg.potrs(a, b, 2, mesh, spec, in_specs=spec))
    raises(ValueError, lambda: mg.potrs(a, b, 2, mesh, P(None, "T")))
    raises(ValueError, lambda: mg.potrs(a, b, 2, mesh, P(None, None)))
    raises(ValueError, lambda: mg.potrs(a, b, 0, mesh, spec))
    raises(ValueError, lambda: mg.potrs(a, b, 3, mesh, spec, pad=False))
    raises(ValueError, lambda: mg.potrs(a, b[:5], 2, mesh, spec))
    raises(TypeError, lambda: mg.potrs(a, b.astype("float32"), 2, mesh, spec))
    raises(TypeError, lambda: mg.potrs(a.astype(int), b.astype(int), 2, mesh, spec))
    raises(TypeError, lambda: mg.potrs(a, [1.0] * 8, 2, mesh, spec))
    raises(TypeError, lambda: mg.qr([[1.0]], 2, mesh, spec))
    raises(TypeError, lambda: mg.least_squares(a, [1.0] * 8, 2, mesh, spec))
    raises(ValueError, lambda: mg.potri(a, 2, mesh, P("x", None, None)))
    raises(ValueError, lambda: mg.syevd(a, 2048, mesh, spec))
    raises(ValueError, lambda: mg.potrs(jnp.eye(8), b, 2))
    assert mg.calculate_padding(10, 4) == 2 and mg.calculate_padding(8, 4) == 0
    assert mg.unpad_rows(mg.pad_rows(b, 3), 3).shape == b.shape
    assert mg.calculate_padding(6, 4, 2) == 2
    assert mg.get_cols_cyclic(8, 4, 2, 2) == list(zip(range(8), range(8), (0, 1, 4, 5, 2, 3, 6, 7), strict=True))
    assert mg.get_cols_cyclic(4, 3, 1, 2) == [(0, 0, 0), (1, 1, 3), (2, 3, 1), (3, 4, 4)]
    assert mg.calculate_all_valid_T_A(6, 2, 7) == [1, 2, 3, 4, 5, 6] and mg.calculate_all_valid_T_A(10, 4, 6) == [1, 3]
    assert mg.calculate_valid_T_A(10, 2, 4, 10) == (1, 3)
    assert mg.maybe_real_dtype_from_complex("complex64") == jnp.float32
    assert mg.determine_distributed_setup() == (1, 2, 2, "SPMD")
    from lapwing.compat.jaxmg.utils import random_psd, symmetrize

    assert symmetrize(jnp.triu(random_psd(4, "float64", 0))).shape == (4, 4) and mg.utils.JaxMgWarning is mg.JaxMgWarning
    # too few specs, too many, a matrix that is none: JAXMg raises one or the other, by generation
    for kind in (ValueError, AssertionError):
        raises(kind, lambda: mg.potrs(a, b, 2, mesh, in_specs=(spec,)))
        raises(kind, lambda: mg.potrs(a, b, 2, mesh, in_specs=(spec, P(), P())))
        raises(kind, lambda: mg.syevd(a, 2, mesh, (spec, spec)))
        raises(kind, lambda: mg.potri(a, 2, mesh, (spec, spec)))
        raises(kind, lambda: mg.cyclic_1d(a, 2, mesh, (spec, spec)))
        raises(kind, lambda: mg.syevd(jnp.ones(4), 2, mesh, spec))
        raises(kind, lambda: mg.potrs(a, b[:5], 2, mesh, spec))
        raises(kind, lambda: mg.potrs(a, b[:, 0], 2, mesh, (spec, P(None, None))))
        raises(kind, lambda: mg.cyclic_1d(a, 3, mesh, spec, pad=False))
    layouts(mesh)
    planned(mesh)
    import matplotlib

    matplotlib.use("Agg")
    fig, axs = mg.plot_block_to_cyclic(12, 2, 2)
    assert len(axs) == 2
    fig.canvas.draw()


def planned(mesh):
    """Outside of jit the calls are lapwing's own, with what its planner chooses: potri is as quick as inv."""
    a, b = jax.device_put(mg.random_psd(8, "float64", 3), NamedSharding(mesh, P("x", None))), jnp.ones((8, 1))
    own = {name: getattr(mg, name) for name in ("eigh", "eigvalsh", "factor", "inv", "solve")}
    calls = []
    for name, function in own.items():
        setattr(mg, name, lambda *x, name=name, function=function, **y: (calls.append(name), function(*x, **y))[1])
    mg.potrs(a, b, 256), mg.potrs(a, b, 256, return_logdet=True), mg.lu_solve(a, b, 256), mg.potri(a, 256)
    mg.syevd(a, 256), mg.syevd(a, 256, return_eigenvectors=False)
    for name, function in own.items():
        setattr(mg, name, function)
    assert calls == ["solve", "factor", "solve", "inv", "eigh", "eigvalsh"], calls


def layouts(mesh):
    """Tiles larger than a shard; rows that the caller padded; input that lies elsewhere; which triangle is read."""
    n, rows, columns = 8, P("x", None), P(None, "x")
    a, b = np.asarray(mg.random_psd(n, "float64", 2)), np.ones((n, 1))
    held, expected = jax.device_put(a, NamedSharding(mesh, columns)), np.linalg.solve(a, b)
    assert mg.layout.Place("potrs", held, 256, None, None, None, True).tile == 4
    assert mg.cyclic_1d_layout(held, 256) is held and mg.undo_cyclic_1d_layout(held, 4) is held
    laid = mg.cyclic_1d_layout(held, 3)
    assert np.array_equal(laid, mg.manual_cyclic_1d_layout(jnp.asarray(a), 3, 2))
    assert np.array_equal(mg.undo_cyclic_1d_layout(laid, 3), a)
    both = shard_map(lambda x: mg.cyclic_1d_no_shardmap(x, 3, 2, "x"), mesh, (columns,), columns)
    assert np.array_equal(jax.jit(both)(held), laid)
    undone = shard_map(lambda x: mg.undo_cyclic_1d_no_shardmap(x, 3, 2, "x"), mesh, (columns,), columns)
    assert np.array_equal(jax.jit(undone)(laid), a)
    for spec, read in ((rows, np.triu(a)), (columns, np.tril(a))):
        poisoned = np.where(read == 0, np.nan, a)
        np.testing.assert_allclose(mg.potri(poisoned, 256, mesh, (spec,)), np.linalg.inv(a), rtol=1e-10, atol=1e-12)
        values = mg.syevd(poisoned, 256, mesh, (spec,), return_eigenvectors=False)
        np.testing.assert_allclose(values, np.linalg.eigvalsh(a), rtol=1e-10)
        # an ordinary array, not on the mesh, whose axes are Explicit
        call = partial(mg.potrs, T_A=256, mesh=mesh, in_specs=(spec, P(None, None)))
        for function in (call, jax.jit(call)):
            np.testing.assert_allclose(function(poisoned, jnp.asarray(b)), expected, rtol=1e-10)
    values = jax.jit(lambda a: mg.syevd(a, 4, mesh, (rows,), return_eigenvectors=False))(a)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(a), rtol=1e-10)
    below = np.zeros((2, 6, n))
    below[:, :4] = a.reshape(2, 4, n)
    padded = jax.device_put(below.reshape(12, n), NamedSharding(mesh, rows))
    for tile, given in ((3, padded), (64, padded), (64, a)):  # the last: one tile on each device, nothing to pad
        np.testing.assert_allclose(mg.potrs(given, b, tile, mesh, (rows, P(None, None)), pad=False), expected, rtol=1e-10)


def one_device():
    """The ordinary engines, on the mesh that was given, whatever is set or traced."""
    mesh, spec = jax.make_mesh((1,), ("x",)), P("x", None)
    a = jax.device_put(mg.random_psd(6, "float64", 1), NamedSharding(mesh, spec))
    b = jnp.ones((6, 2))
    expected = np.linalg.solve(np.asarray(a), np.asarray(b))

    def check():
        for call in (mg.potrs, mg.lu_solve):
            x, status = call(a, b, 2, mesh, spec, return_status=True)
            np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-10)
            assert int(status) == 0 and x.sharding.mesh == mesh and status.sharding.mesh == mesh
            np.testing.assert_allclose(
                np.asarray(jax.jit(lambda b, call=call: call(a, b, 2, mesh, spec))(b)), expected, rtol=1e-10
            )
        _, logdet = mg.potrs(a, b, 2, mesh, spec, return_logdet=True)
        np.testing.assert_allclose(logdet, np.linalg.slogdet(np.asarray(a))[1], rtol=1e-12)
        assert logdet.sharding.mesh == mesh and mg.potri(a, 2, mesh, spec, return_status=True)[1].sharding.mesh == mesh

    check()
    if hasattr(jax, "set_mesh"):
        with jax.set_mesh(mesh):
            check()
    local, mg._local_solve = mg._local_solve, None  # the engine inside XLA
    mg.potrs(a, b, 2, mesh, spec)
    mg._local_solve = local


ends = {1: one_device, 2: errors_and_helpers}
for function in (first_program, second_program, rows_split, release_one, ends[jax.device_count()]):
    function()
    print(function.__name__, "passed", flush=True)
