"""Checks of a ShardedMatrix on cuSOLVERMp: on stand-in libraries (mp_child.py) and on a GPU (test_cusolvermp_gpu.py)."""

import numpy as np

import lapwing as lw
from lapwing.core.errors import NotPositiveDefiniteError
from lapwing.core.problem import REAL
from lapwing.distributed.layout import Layout
from lapwing.distributed.matrix import ShardedMatrix

DTYPES = ("float32", "float64", "complex64", "complex128")


def random(dtype, *shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def positive(dtype, n):
    x = random(dtype, n, n).astype("complex128" if dtype.startswith("complex") else "float64")
    return (x @ x.conj().T / n + np.eye(n)).astype(dtype)


def close(found, expected, n, scale=1.0):
    eps = np.finfo(REAL.get(found.dtype.name, found.dtype)).eps
    error = np.abs(found - expected).max(initial=0)
    assert error <= 10 * max(n, 4) * eps * max(np.abs(expected).max(initial=0), scale), (error, n, found.dtype)


def poisoned(a, upper):
    """The triangle that is not read."""
    a = a.copy()
    a[np.tril_indices(len(a), -1) if upper else np.triu_indices(len(a), 1)] = np.nan
    return a


def check_library(comm, kind, dtype, layout, engine, host, results, folder):
    """Blocks made by ``kind(array)``; ``host(block)`` brings one back, ``results`` is the type of results."""
    n = layout.shape[0]
    a, g, b = positive(dtype, n), random(dtype, n, n, seed=4), random(dtype, n, 3, seed=1)

    def put(x, where, order="C"):
        return ShardedMatrix.from_local(kind(np.array(x[np.ix_(*where.indices(comm.rank))], order=order)), comm, layout=where)

    def all_of(x):
        assert f"{type(x.local).__module__}.{type(x.local).__qualname__}" == results
        assert x.on_gpu == (results != "numpy.ndarray")
        found = np.zeros(x.shape, x.dtype)
        for rank, part in enumerate(comm.allgather(host(x.local))):
            found[np.ix_(*x.layout.indices(rank))] = part
        return found

    pos, general, sides = put(a, layout), put(g, layout, order="F"), put(b, layout.of_shape((n, 3)))
    lower = all_of(lw.cholesky(pos, **engine))
    close(lower, np.linalg.cholesky(a), n)
    assert not np.triu(lower, 1).any()
    close(all_of(lw.solve(pos, sides, assume="pos", **engine)), np.linalg.solve(a, b), 10 * n)
    for right in (b, b[:, 0]):  # on every rank, on the host and on the device
        x = lw.solve(pos, right, assume="pos", **engine)
        assert type(x) is np.ndarray
        close(x, np.linalg.solve(a, right), 10 * n)
    if pos.on_gpu:
        x = lw.solve(pos, kind(b), assume="pos", **engine)
        assert f"{type(x).__module__}.{type(x).__qualname__}" == results
        close(host(x), np.linalg.solve(a, b), 10 * n)
    scale = 10 * n * np.linalg.cond(g)
    close(all_of(lw.inv(general, **engine)), np.linalg.inv(g), scale)
    sign, logabs = lw.slogdet(general, **engine)
    close(np.array([sign, logabs], dtype), np.array(np.linalg.slogdet(g), dtype), 10 * n)
    flat = np.ones_like(g)
    assert tuple(lw.slogdet(put(flat, layout), **engine)) == (0, -np.inf)
    large = np.finfo(dtype).max * np.eye(n, dtype=dtype)
    large[:2, :2] = large[0, 0] * np.array([[1, 1], [-1, 1]])  # not singular, but the second pivot overflows
    assert np.isnan(tuple(lw.slogdet(put(large, layout), **engine))).all()
    assert np.isnan(tuple(lw.factor(put(large, layout), assume="general", on_fail="nan", **engine).slogdet())).all()
    flat[n // 2, n - 1] = np.nan
    assert np.isnan(tuple(lw.slogdet(put(flat, layout), **engine))).all()
    w, v = lw.eigh(pos, **engine)
    assert type(w) is np.ndarray
    close(w, np.linalg.eigvalsh(a), n)
    v = all_of(v)
    close(a @ v, v * w, 10 * n, np.abs(a).max())
    q, r = (all_of(x) for x in lw.qr(general, **engine))
    close(q @ r, g, 10 * n)
    assert not np.tril(r, -1).any()
    side = "left" if dtype == "complex64" else "right"
    u, p = (all_of(x) for x in lw.polar(general, side=side, **engine))
    close(p @ u if side == "left" else u @ p, g, 20 * n)
    f = lw.factor(general, assume="general", **engine)
    assert f.report["engine"] == "cusolvermp" and f.report["kind"] == "lu" and f.info == 0
    close(all_of(f.solve(sides)), np.linalg.solve(g, b), scale)
    close(all_of(f.inv()), np.linalg.inv(g), scale)
    close(np.array(f.slogdet().sign), np.linalg.slogdet(g)[0], 10 * n)
    f = lw.factor(put(poisoned(a, True), layout), upper=True, **engine)
    close(all_of(f.l), np.linalg.cholesky(a).conj().T, n)
    close(np.array(f.logdet()), np.linalg.slogdet(a)[1], n)
    close(f.solve(b[:, 0]), np.linalg.solve(a, b[:, 0]), 10 * n)
    f = lw.factor(put(-a, layout), on_fail="nan", **engine)
    assert f.info == 1 and np.isnan(f.logdet()) and np.isnan(all_of(f.solve(sides))).all()
    error = raised(NotPositiveDefiniteError, lambda: lw.cholesky(put(-a, layout), **engine), minor=1)
    assert error.startswith("cholesky:")
    raised(NotImplementedError, lambda: lw.solve(pos, b, assume="hermitian", engine="cusolvermp"))
    raised(TypeError, lambda: lw.solve(pos, b.real.astype("float16"), engine="cusolvermp"))
    # what moves
    if kind is np.array and comm.size > 1:
        assert "needs MPI" in raised(TypeError, pos.gather)
        return
    whole_matrix = pos.gather(comm.size - 1)
    assert (whole_matrix is None) == (comm.rank != comm.size - 1)
    assert whole_matrix is None or (host(whole_matrix) == a).all()
    assert (host(pos.gather(None)) == a).all()
    there = Layout.cyclic((n, n), 2, (comm.size, 1))
    assert (all_of(general.redistribute(there)) == g).all()
    general.save(folder / f"saved {type(pos.local)}")
    assert (ShardedMatrix.load(folder / f"saved {type(pos.local)}", comm).local == host(general.local)).all()


def raised(kind, call, **fields):
    try:
        call()
    except kind as error:
        found = {name: getattr(error, name) for name in fields}
        assert found == fields, (found, fields)
        return str(error)
    raise AssertionError(f"no {kind.__name__}")
