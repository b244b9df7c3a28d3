"""Checks that run on every rank of an mpiexec; see test_mpi.py. All ranks know the whole matrices and compare their blocks."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import lapwing as lw
from lapwing.distributed import Axis, Layout, RanksDisagreeError, ShardedMatrix, best_grid, exchange
from lapwing.distributed.backends import elpa

COMM = MPI.COMM_WORLD
P, R = COMM.size, COMM.rank
# more ranks than cores wait for each other most of the time: they do less
FEW = ("rows", "uneven rows", "grid", "tiles") if P <= 4 else ("uneven rows", "tiles")
DTYPES = ("float32", "float64", "complex64", "complex128")


def random(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def positive(n, dtype, seed=0):
    x = random((n, n), dtype, seed)
    return (x @ x.conj().T / max(n, 1) + np.eye(n)).astype(dtype)


def layouts(m, n):
    """Blocks of rows and of columns, uneven ones, 2-D ones, block-cyclic ones in both orders, and one with idle ranks."""
    rows, columns = [1] * P, [0] * P
    rows[-1] = 0
    rows[0] += m - sum(rows)
    columns[P // 2] = n
    grid = best_grid(P, m + P, n + P)
    yield "rows", Layout.rows_of((m, n), P)
    yield "columns", Layout.columns_of((m, n), P)
    if m >= P:
        yield "uneven rows", Layout(Axis.blocks(rows), Axis.whole(n))
    yield "one owns all columns", Layout(Axis.whole(m), Axis.blocks(columns))
    yield "grid", Layout.blocks((m, n), grid, "C")
    yield "tiles", Layout.cyclic((m, n), 4, grid)
    yield "some ranks", Layout.blocks((m, n), best_grid(max(P - 1, 1), m + P, n + P))


def cases(m, n, dtypes=DTYPES, only=()):
    """Layouts and dtypes together: another pairing for each number of ranks."""
    for i, (place, layout) in enumerate(layouts(m, n)):
        if not only or place in only:
            yield place, layout, dtypes[(i + P) % len(dtypes)]


def sharded(a, layout, order="C"):
    return ShardedMatrix.from_local(np.array(a[np.ix_(*layout.indices(R))], order=order), COMM, layout=layout)


def close(x, expected, n, what, scale=None):
    """This rank's part of x is that of the expected matrix, to 10 n eps of its size."""
    expected = np.asarray(expected)
    if isinstance(x, ShardedMatrix):
        assert x.shape == expected.shape, (what, x.shape, expected.shape)
        assert x.dtype == expected.dtype, what
        x, mine = x.local, expected[np.ix_(*x.layout.indices(R))]
    else:
        x, mine = np.asarray(x), expected
        assert x.shape == expected.shape, (what, x.shape, expected.shape)
    eps = np.finfo(expected.dtype).eps
    size = scale if scale is not None else max(float(np.abs(expected).max(initial=0)), 1e-30)
    error = float(np.abs(x - mine).max(initial=0))
    assert error <= 10 * max(n, 1) * eps * size, f"{what}: {error:.2e} > {10 * max(n, 1) * eps * size:.2e}"


def whole(x):
    return x.gather(root=None)


def check_moves():
    for m, n in ((37, 23), (2, 5), (1, 1), (0, 4), (130, 129)):
        a = random((m, n), "complex64")
        places = list(layouts(m, n))
        for name, layout in places:
            x = sharded(a, layout)
            assert x.shape == (m, n) and x.dtype == a.dtype and x.comm == COMM
            assert (whole(x) == a).all()
            got = x.gather(P - 1)
            assert (got is None) == (P - 1 != R) and (got is None or (got == a).all())
            assert (whole(x.T) == a.T).all() and (whole(x.conj()) == a.conj()).all()
            for other, to in places if P <= 2 else places[::3]:
                y = sharded(a, layout, "F").redistribute(to)
                assert (y.local == a[np.ix_(*to.indices(R))]).all(), (name, other)
                assert y.layout == to
        x = ShardedMatrix.scatter(a if R == P - 1 else None, COMM, root=P - 1)
        assert (whole(x) == a).all()
        y = ShardedMatrix.from_function((m, n), "complex64", lambda i, j, a=a: a[np.ix_(i, j)], COMM)
        assert (y.local == x.local).all()
    blocks = ShardedMatrix.from_local(np.full((R, 3), float(R)), COMM)  # rank 0 has none
    assert blocks.shape == (P * (P - 1) // 2, 3) and f"rank {R} of {P}" in repr(blocks)
    assert ShardedMatrix.from_local(np.ones((2, R)), COMM, axis=1).shape == (2, P * (P - 1) // 2)
    p, q = best_grid(P, 9, 9)
    i, j = divmod(R, q)
    assert ShardedMatrix.from_local(np.ones((i + 1, 2 * j)), COMM, grid=(p, q)).shape == (p * (p + 1) // 2, q * (q - 1))


def check_systems():
    for n, only in ((67, FEW if P > 2 else ()), (1, ("rows",)), (6, ("columns", "some ranks")), (150, ("rows",))):
        for place, layout, dtype in cases(n, n, only=only):
            a = positive(n, dtype)
            g = random((n, n), dtype, 1) + 3 * np.eye(n, dtype=dtype)
            b = random((n, 3), dtype, 2)
            l = np.linalg.cholesky(a)
            condition = np.linalg.cond(g)
            order = "F" if place in ("columns", "tiles") else "C"
            upper = place in ("grid", "tiles", "uneven rows")
            poisoned = np.where(np.tri(n, dtype=bool).T if upper else np.tri(n, dtype=bool), a, np.nan).astype(dtype)
            x = sharded(poisoned, layout, order)
            what = f"{dtype} n={n} {place}"
            f = lw.cholesky(x, upper=upper)
            assert f.layout == layout
            close(f, l.conj().T if upper else l, n, f"cholesky {what}")
            mine = sharded(b, Layout.rows_of(b.shape, P))
            close(lw.solve(x, mine, assume="pos", upper=upper), np.linalg.solve(a, b), n, f"solve pos {what}")
            close(lw.solve(x, b[:, 0], assume="pos", upper=upper), np.linalg.solve(a, b[:, 0]), n, f"solve vector {what}")
            inverse = lw.inv(x, assume="pos", upper=upper)
            close(inverse, np.linalg.inv(a), n, f"inv pos {what}")
            together = whole(inverse)
            assert (together == together.conj().T).all()
            sign, logabs = lw.slogdet(x, assume="pos", upper=upper)
            assert sign == 1 and sign.dtype == a.dtype
            close(logabs, np.linalg.slogdet(a)[1], n, f"slogdet pos {what}", scale=1.0)
            assert np.array_equal(x.local, poisoned[np.ix_(*layout.indices(R))], equal_nan=True)
            y = sharded(g, layout, order)
            columns = sharded(b, Layout.columns_of(b.shape, P), "F")
            exact = np.linalg.solve(g, b)
            close(lw.solve(y, columns), exact, n, f"solve {what}", scale=condition * np.abs(exact).max())
            sign, logabs = lw.slogdet(y)
            expected = np.linalg.slogdet(g)
            close(sign, expected[0], n, f"sign {what}", scale=condition)
            close(logabs, expected[1], n, f"logabsdet {what}", scale=condition)
            if place in ("rows", "tiles") and n == 67 and (P <= 2 or place == "tiles"):
                check_other_systems(n, dtype, a, g, b, y, x, upper, layout, order, what, condition)


def check_other_systems(n, dtype, a, g, b, y, x, upper, layout, order, what, condition):
    close(lw.inv(y), np.linalg.inv(g), n, f"inv {what}", scale=condition * np.abs(np.linalg.inv(g)).max())
    for assume, m in (("lower", np.tril(g)), ("upper", np.triu(g))):
        t = m + 9 * np.eye(n, dtype=dtype)
        scale = np.linalg.cond(t)
        close(lw.solve(sharded(t + (g - m), layout, order), b, assume=assume), np.linalg.solve(t, b), n, what, scale=scale)
        close(lw.slogdet(sharded(t, layout), assume=assume)[1], np.linalg.slogdet(t)[1], n, what, scale=scale)
    triangle = np.triu if upper else np.tril
    for assume in ("symmetric", "hermitian"):
        strict = triangle(g, 1 if upper else -1)
        h = triangle(g) + (strict.T if assume == "symmetric" else strict.conj().T)
        if assume == "hermitian":
            h[np.diag_indices(n)] = h.diagonal().real
        exact, scale = np.linalg.solve(h, b), np.linalg.cond(h)
        close(lw.solve(y, b, assume=assume, upper=upper), exact, n, f"{assume} {what}", scale=scale * np.abs(exact).max())
    f = lw.factor(x, upper=upper)
    l = np.linalg.cholesky(a)
    close(f.l, l.conj().T if upper else l, n, f"factor.l {what}")
    close(f.solve(b), np.linalg.solve(a, b), n, f"factor.solve {what}")
    close(f.solve(sharded(b, Layout.rows_of(b.shape, P))), np.linalg.solve(a, b), n, f"factor.solve sharded {what}")
    close(f.inv(), np.linalg.inv(a), n, f"factor.inv {what}")
    close(f.solve(b[:, 0]), np.linalg.solve(a, b[:, 0]), n, f"factor.solve again {what}")
    close(f.logdet(), np.linalg.slogdet(a)[1], n, f"factor.logdet {what}", scale=1.0)
    near_rcond(f.rcond(), a, what)
    f = lw.factor(y, assume="general")
    near_rcond(f.rcond(), g, what)
    near_rcond(lw.factor(y, assume="lower").rcond(), np.tril(g), what)
    close(f.solve(b), np.linalg.solve(g, b), n, f"lu {what}", scale=condition * np.abs(np.linalg.solve(g, b)).max())
    close(f.inv(), np.linalg.inv(g), n, f"lu inv {what}", scale=condition * np.abs(np.linalg.inv(g)).max())
    assert f.report["kind"] == "lu" and f.info == 0


def near_rcond(found, a, what):
    """An estimate: not below the exact one, and rarely far above."""
    exact = 1 / np.linalg.cond(a, 1)
    # what rounding may add to the inverse
    slack = 10 * len(a) * np.finfo(found.dtype).eps / exact
    assert (0.999 - slack) * exact <= found <= (5 + slack) * exact, f"rcond {what}: {found} for {exact}"


def check_spectra():
    for n, only in ((53, FEW if P > 2 else ()), (1, ("rows",)), (3, ("grid",))):
        for place, layout, dtype in cases(n, n, only=only):
            x = random((n, n), dtype)
            a = (x + x.conj().T) / 2
            w = np.linalg.eigvalsh(a)
            size = max(np.abs(w).max(), 1e-30)
            order = "F" if place in ("columns", "some ranks") else "C"
            upper = place in ("grid", "tiles")
            poisoned = np.where(np.tri(n, dtype=bool).T if upper else np.tri(n, dtype=bool), a, np.nan).astype(dtype)
            s = sharded(poisoned, layout, order)
            what = f"{dtype} n={n} {place}"
            values, vectors = lw.eigh(s, upper=upper)
            close(values, w, n, f"eigenvalues {what}", scale=size)
            check_vectors(a, values, vectors, n, what)
            if place == ("grid" if P <= 4 else "uneven rows"):
                close(lw.eigvalsh(s, upper=upper), w, n, f"eigvalsh {what}", scale=size)
                for part in (slice(None, 2), slice(-3, None), slice(n // 2, n // 2 + 1)):
                    values, vectors = lw.eigh(s, upper=upper, subset=part)
                    close(values, w[part], n, f"subset {part} {what}", scale=size)
                    assert vectors.shape == (n, len(w[part]))
                    check_vectors(a, values, vectors, n, f"{part} {what}")
            if place == ("columns" if P <= 2 else "tiles"):
                values, vectors = lw.eigh(s, upper=upper, window=(0.0, 2 * float(size)))
                close(values, w[w > 0], n, f"window {what}", scale=size)
                check_vectors(a, values, vectors, n, f"window {what}")


def check_elpa():
    """Without the library: what it is given, among it a communicator of the ranks that have tiles."""
    seen = []

    def solve(a, z, values, count, solver, comm, vectors):
        full = whole(ShardedMatrix(a.local, a.layout, a.comm)) if a.cyclic.size == P else None
        seen.append((comm.Get_size(), isinstance(comm.py2f(), int), full))
        return 0

    kept, elpa._solve, missing, elpa.missing = elpa._solve, solve, elpa.missing, lambda: ""
    a = positive(100, "float64")
    half = sharded(np.where(np.tri(100, dtype=bool), a, np.nan), Layout.rows_of((100, 100), P))
    for x in (half, sharded(np.eye(2), Layout.rows_of((2, 2), P))):
        lw.eigh(x, engine="elpa")
    elpa._solve, elpa.missing = kept, missing
    assert seen[0][:2] == (P, True) and (seen[0][2] == a).all()  # it wants both triangles
    assert len(seen) == (2 if R == 0 else 1) and seen[-1][0] == (1 if R == 0 else P)


def check_vectors(a, values, vectors, n, what):
    v = whole(vectors)
    size = max(np.abs(values).max(initial=0), 1e-30)
    close(a @ v, v * values, n, f"A V = V W {what}", scale=max(size, np.abs(a).max()))
    close(v.conj().T @ v, np.eye(v.shape[1], dtype=v.dtype), n, f"V^H V {what}", scale=1.0)


def check_rectangular():
    for m, n, only in ((53, 40, FEW if P <= 2 else ("rows",)), (40, 53, ("tiles", "columns") if P <= 2 else ("tiles",)),
                       (3, 1, ("rows",)), (1, 4, ("grid",))):  # fmt: skip
        for place, layout, dtype in cases(m, n, only=only):
            a = random((m, n), dtype)
            k = min(m, n)
            s0 = np.linalg.svd(a, compute_uv=False)
            b = random((m, 2), dtype, 3)
            x0 = np.linalg.lstsq(a, b, rcond=None)[0]
            x = sharded(a, layout, "F" if place == "columns" else "C")
            what, big = f"{dtype} {m}x{n} {place}", max(m, n)
            u, s, vh = lw.svd(x)
            close(s, s0, big, f"singular values {what}", scale=s0[0])
            u, vh = whole(u), whole(vh)
            close((u * s) @ vh, a, big, f"svd {what}", scale=s0[0])
            close(u.conj().T @ u, np.eye(k, dtype=dtype), big, f"U {what}", scale=1.0)
            close(vh @ vh.conj().T, np.eye(k, dtype=dtype), big, f"V {what}", scale=1.0)
            if place in ("rows", "tiles"):
                close(lw.svdvals(x), s0, big, f"svdvals {what}", scale=s0[0])
            for mode in ("reduced", "complete"):
                q, r = (whole(y) for y in lw.qr(x, mode=mode))
                rows = m if mode == "complete" else k
                assert q.shape == (m, rows) and r.shape == (rows, n) and (np.tril(r, -1) == 0).all()
                close(q @ r, a, big, f"qr {what}", scale=s0[0])
                close(q.conj().T @ q, np.eye(rows, dtype=dtype), big, f"Q {what}", scale=1.0)
            worst = (s0[0] / s0[-1]) ** 2
            got = lw.lstsq(x, sharded(b, Layout.rows_of(b.shape, P)))
            close(got.x, x0, big, f"lstsq {what}", scale=worst * np.abs(x0).max())
            residual = (np.abs(b - a @ x0) ** 2).sum(0)
            close(got.residuals, residual, big, f"residuals {what}", scale=worst * np.abs(b).max() ** 2 * m)
            assert got.rank == k
            close(lw.lstsq(x, b[:, 0]).x, x0[:, 0], big, f"lstsq vector {what}", scale=worst * np.abs(x0).max())
            side = "left" if m < n else "right"
            u, p = (whole(y) for y in lw.polar(x, side=side))
            close(p @ u if side == "left" else u @ p, a, big, f"polar {what}", scale=s0[0])
            assert (p == p.conj().T).all()


def check_failures():
    n = 50
    a = positive(n, "float64")
    a[30, 30] = -1
    layout = Layout.rows_of((n, n), P)
    for make in (
        lw.cholesky,
        lambda x, **o: lw.solve(x, np.ones(n), assume="pos", **o),
        lambda x, **o: lw.inv(x, assume="pos", **o),
    ):
        try:
            make(sharded(a, layout))
        except lw.NotPositiveDefiniteError as error:
            assert error.minor == 31 and not error.nonfinite, error
        else:
            raise AssertionError("no error")
        out = make(sharded(a, layout), on_fail="nan")
        assert np.isnan(out.local if isinstance(out, ShardedMatrix) else out).all()
    for p in [k for k in (2,) if k * k == P]:  # a square grid, read in place: the minor is that of the matrix itself
        wide = positive(256, "float64")
        wide[200, 200] = -1
        try:
            lw.solve(sharded(wide, Layout.blocks((256, 256), (p, p))), np.ones(256), assume="pos")
        except lw.NotPositiveDefiniteError as error:
            assert error.minor == 201
        else:
            raise AssertionError("no error")
    bad = positive(n, "float64")
    bad[40, 3] = np.inf
    for kind, work in (
        (lw.NotPositiveDefiniteError, lambda x: lw.cholesky(x)),
        (lw.ConvergenceError, lambda x: lw.eigh(x)),
        (lw.ConvergenceError, lambda x: lw.svd(x)),
        (lw.SingularMatrixError, lambda x: lw.solve(x, np.ones(n))),
    ):
        try:
            work(sharded(bad, layout))
        except kind as error:
            assert error.nonfinite, error
        else:
            raise AssertionError(kind)
    singular = random((n, n), "float64")
    singular[:, 7] = 0
    try:
        lw.solve(sharded(singular, layout), np.ones(n))
    except lw.SingularMatrixError as error:
        assert error.pivot == 8
    else:
        raise AssertionError("no error")
    assert lw.slogdet(sharded(singular, layout)) == (0, -np.inf) and lw.det(sharded(singular, layout)) == 0
    # a pivot of the transpose is zero, and none of the matrix itself: its inverse is not that of the transpose
    nearly = np.array([[0.1, 0.8, -0.4], [0.6, 0.3, -0.9], [0.7, 1.1, -1.3]])
    inverse = whole(lw.inv(sharded(nearly, Layout.rows_of((3, 3), P))))
    close(inverse / inverse[0, 0], np.array([[1, 1, -1], [0.25, 0.25, -0.25], [0.75, 0.75, -0.75]]), 3, "nearly singular")
    w, v = lw.eigh(sharded(bad, layout), on_fail="nan")
    assert np.isnan(w).all() and np.isnan(v.local).all() and v.shape == (n, n)


def check_refusals():
    """Every rank raises the same words; nobody is left waiting."""
    n = 20
    a = positive(n, "float64")
    x = sharded(a, Layout.rows_of((n, n), P))
    last = P - 1
    wrong = [
        (ValueError, lambda: lw.solve(x, np.ones(n - 1))),
        (TypeError, lambda: lw.solve(x, np.ones(n, int))),
        (ValueError, lambda: lw.solve(x, np.ones(n), side="right")),
        (TypeError, lambda: lw.solve(x, "b")),
        (ValueError, lambda: lw.cholesky(x, on_fail="later")),
        (ValueError, lambda: lw.cholesky(x, engine="cusolver")),
        (ValueError, lambda: lw.eigh(x, subset=slice(5, 5))),
        (ValueError, lambda: lw.cholesky(ShardedMatrix.scatter(np.ones((3, 2)), COMM))),
        (TypeError, lambda: ShardedMatrix.from_local(np.ones((2, 2), int), COMM)),
        (TypeError, lambda: np.asarray(x)),
    ]
    huge = ShardedMatrix.from_local(np.broadcast_to(1.0, (1 << 25, 1 << 25)), COMM)  # no rank has the memory
    wrong += [(MemoryError, huge.gather)]
    if P > 1:
        wrong += [
            (MemoryError, lambda: huge.redistribute(Layout.columns_of(huge.shape, P))),
            (RanksDisagreeError, lambda: lw.eigh(x, window=[0.0, 1.0 + R])),
            (NotImplementedError, lambda: lw.eigh(x, b=x)),
            (NotImplementedError, lambda: lw.solve(x, np.ones(n), engine="elpa")),
            (NotImplementedError, lambda: lw.svd(ShardedMatrix.scatter(np.ones((3, 2)), COMM), full_matrices=True)),
            (RanksDisagreeError, lambda: lw.cholesky(x, upper=last == R)),
            (RanksDisagreeError, lambda: lw.cholesky(x) if last == R else lw.eigvalsh(x)),
            (RanksDisagreeError, lambda: ShardedMatrix.from_local(np.ones((2, 2), "f4" if last == R else "f8"), COMM)),
            (ValueError, lambda: ShardedMatrix.from_local(np.ones((2, 3 if last == R else 2)), COMM)),
            (ValueError, lambda: ShardedMatrix.from_local(np.ones(2) if last == R else np.ones((2, 2)), COMM)),
            (ZeroDivisionError, lambda: ShardedMatrix.from_function((9, 9), float, raising, COMM)),
        ]
    for kind, work in wrong:
        try:
            work()
        except kind as error:
            words = COMM.allgather(str(error))
            assert len(set(words)) == 1, words
        else:
            raise AssertionError(f"no {kind.__name__}")
    try:
        lw.solve(x, np.ones(n // 2))
    except ValueError as error:
        assert P == 1 or "\nhint: an array must be the whole b, on every rank; a rank's own rows" in str(error), error
    close(lw.solve(x, np.ones(n), assume="pos"), np.linalg.solve(a, np.ones(n)), n, "after the refusals")


def raising(rows, columns):
    if P - 1 == R:
        raise ZeroDivisionError("in the user's function")
    return np.zeros((len(rows), len(columns)))


def check_empty():
    for dtype in ("float64", "complex64"):
        x = ShardedMatrix.scatter(np.empty((0, 0), dtype), COMM)
        assert lw.cholesky(x).shape == (0, 0) and lw.slogdet(x) == (1, 0)
        assert lw.eigvalsh(x).shape == (0,) and lw.eigh(x).eigenvectors.shape == (0, 0)
        assert lw.solve(x, np.empty((0, 3), dtype)).shape == (0, 3)
        tall = ShardedMatrix.scatter(np.empty((4, 0), dtype), COMM)
        assert lw.svd(tall).U.shape == (4, 0) and lw.qr(tall).R.shape == (0, 0)
        assert (whole(lw.qr(tall, mode="complete").Q) == np.eye(4)).all()
        assert lw.lstsq(tall, np.ones(4, dtype)).x.shape == (0,)
        a = positive(9, dtype)
        assert lw.solve(ShardedMatrix.scatter(a, COMM), np.empty((9, 0), dtype)).shape == (9, 0)


def check_one_triangle():
    """The other one is not read, does not travel and is zero in the result; blocks move in many small portions here."""
    n = 150
    portion, exchange._STEP = exchange._STEP, 8000
    for place, layout, dtype in cases(n, n, only=FEW):
        a = positive(n, dtype)
        for upper, order in ((False, "C"), (True, "F"), (True, "C")):
            half = np.where(np.tri(n, dtype=bool).T if upper else np.tri(n, dtype=bool), a, np.nan).astype(dtype)
            x = sharded(half, layout, order)
            l = np.linalg.cholesky(a)
            what = f"one triangle of {place}, upper={upper}, {order}"
            close(lw.cholesky(x, upper=upper), l.conj().T if upper else l, n, what)
            close(lw.cholesky(x.copy(), upper=upper, overwrite=True), l.conj().T if upper else l, n, what)
            if place == "uneven rows":
                close(lw.eigvalsh(x, upper=upper), np.linalg.eigvalsh(a), n, what)
        close(lw.inv(x, assume="pos", upper=True), np.linalg.inv(a), n, what, np.linalg.cond(a))
        close(lw.factor(x, upper=True).l, l.conj().T, n, what)
    exchange._STEP = portion


def check_overwrite():
    n = 100
    a = positive(n, "float64")
    layout = Layout.cyclic((n, n), 8, best_grid(P, n, n))
    for order in "CF":
        x = sharded(a, layout, order)
        f = lw.cholesky(x, overwrite=True)
        close(f, np.linalg.cholesky(a), n, "overwrite")
        assert P == 1 or not f.local.size or np.shares_memory(f.local, x.local)


def check_subcommunicator():
    half = COMM.Split(R % 2, R)
    a = positive(40 + R % 2, "float64")
    x = ShardedMatrix.scatter(a if half.rank == 0 else None, half)
    b = np.arange(len(a)) + 1.0
    close(lw.solve(x, b, assume="pos"), np.linalg.solve(a, b), len(a), "two groups at a time")
    half.Free()  # and what was made for it


def check_engine_on_one_rank():
    """Asked for by name, ScaLAPACK runs on one rank too."""
    alone = MPI.COMM_SELF
    a, g = positive(50, "complex128"), random((40, 30), "float64")
    x = ShardedMatrix.scatter(a, alone)
    close(lw.cholesky(x, engine="scalapack").local, np.linalg.cholesky(a), 50, "cholesky")
    close(lw.eigh(x, engine="scalapack").eigenvalues, np.linalg.eigvalsh(a), 50, "eigh")
    s = np.linalg.svd(g, compute_uv=False)
    close(lw.svdvals(ShardedMatrix.scatter(g, alone), engine="scalapack"), s, 40, "svdvals")


def check_square_grid():
    """Blocks on a square grid are read in place, as those of a permuted matrix."""
    if P != 4:
        return
    n, layout = 256, Layout.blocks((256, 256), (2, 2))
    for dtype in ("float64", "complex64"):
        a, b = positive(n, dtype), random((n, 2), dtype)
        for order, upper in (("C", False), ("F", True)):
            x = sharded(np.triu(a) if upper else np.tril(a), layout, order)
            f = lw.factor(x, upper=upper)
            close(lw.solve(x, b, assume="pos", upper=upper), np.linalg.solve(a, b), n, "solve")
            close(f.solve(b), np.linalg.solve(a, b), n, "factor")
            close(lw.inv(x, assume="pos", upper=upper), np.linalg.inv(a), n, "inv")
            close(lw.slogdet(x, assume="pos", upper=upper)[1], np.linalg.slogdet(a)[1], n, "slogdet", scale=1.0)
        values, vectors = lw.eigh(sharded(a, layout))
        close(values, np.linalg.eigvalsh(a), n, "eigenvalues")
        check_vectors(a, values, vectors, n, "square grid")


def check_large_tiles():
    """Tiles of which there are few, or too few for the grid: sorting and turning vectors wants more memory than is told."""
    if P not in (1, 4):
        return
    p, q = best_grid(P, 100, 100)
    for n, tile in ((10, 64), (60, 36), (60, 59)):
        layout = Layout.cyclic((n, n), tile, (p, q))
        a = positive(n, "complex64" if tile == 59 else "float64")
        values, vectors = lw.eigh(sharded(a, layout))
        close(values, np.linalg.eigvalsh(a), n, f"eigenvalues, tiles of {tile}")
        check_vectors(a, values, vectors, n, f"tiles of {tile}")
        assert vectors.layout == layout
        check_vectors(a, *lw.eigh(sharded(a, layout), subset=slice(-3, None)), n, f"some, tiles of {tile}")


def check_determinants():
    """With -W error: a number that is too large is Inf without a warning."""
    n, said = 30, []
    layout = Layout.rows_of((n, n), P)
    log = logging.getLogger("lapwing")
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())
    level = log.level
    log.setLevel(logging.INFO)
    for dtype in DTYPES:
        for assume, a in (("general", random((n, n), dtype)), ("pos", positive(n, dtype))):
            found, expected = lw.det(sharded(a, layout), assume=assume), np.linalg.det(a)
            assert found.dtype == a.dtype, (found.dtype, dtype)
            close(found, expected, 20 * n, f"det {assume} {dtype}")
    assert lw.det(sharded(-1e38 * np.eye(n + 1, dtype="f4"), Layout.rows_of((n + 1, n + 1), P))) == -np.inf
    log.setLevel(level)
    log.removeHandler(handler)
    assert all(line.startswith("det") for line in said), said
    try:
        lw.det(sharded(-np.eye(n), layout), assume="pos")
    except lw.NotPositiveDefiniteError as error:
        assert str(error).startswith("det: "), error
    else:
        raise AssertionError("no error")
    plan = lw.explain(lw.det, sharded(np.eye(n), layout))
    assert P == 1 or (plan.operation, plan.engine) == ("det", "scalapack")


def check_two_dtypes():
    n = 20
    a, b = positive(n, "float64"), random((n, 3), "float32", 1)
    layout, rows = Layout.rows_of((n, n), P), Layout.rows_of(b.shape, P)
    expected = np.linalg.solve(a, b)
    for right in (b, sharded(b, rows)):
        close(lw.solve(sharded(a, layout), right), expected, n, "wide matrix")
        close(lw.factor(sharded(a, layout)).solve(right), expected, n, "wide factor")
    low, wide = sharded(a.astype("f4"), layout), b.astype("complex128")
    found = lw.lstsq(low, sharded(wide, rows)).x
    close(found, np.linalg.solve(a.astype("f4").astype(float), wide), 10 * n, "narrow matrix")
    assert low.dtype == np.float32


def check_status_calls():
    n = 9
    a, b = positive(n, "float64"), random((n, 2), "float64", 1)
    layout = Layout.rows_of((n, n), COMM.size)
    x, info = lw.solve_ex(sharded(a, layout), b, assume="pos")
    close(x, np.linalg.solve(a, b), n, "solve_ex")
    assert info == 0 and lw.inv_ex(sharded(a, layout)).info == 0 and lw.eigh_ex(sharded(a, layout)).info == 0
    bad = a.copy()
    bad[4, 4] = -1
    factor, info = lw.cholesky_ex(sharded(bad, layout))
    assert info == 5 and np.isnan(factor.local).all()
    assert lw.solve_ex(sharded(0 * a, layout), b).info == 1


def check_files():
    folder = Path(COMM.bcast(tempfile.mkdtemp() if R == 0 else None)) / "matrix"
    a = random((33, 21), "complex128")
    for _, layout in layouts(33, 21):
        sharded(a, layout).save(folder)
        back = ShardedMatrix.load(folder, COMM)
        assert (whole(back) == a).all()
        assert layout.size != P or back.layout == layout
        for size in {1, max(P // 2, 1)}:  # on fewer ranks than wrote it
            some = COMM.Split(0 if size > R else MPI.UNDEFINED, R)
            if size > R:
                assert (whole(ShardedMatrix.load(folder, some)) == a).all()
        tiles = Layout.cyclic((33, 21), 4, best_grid(P, 33, 21))
        assert (ShardedMatrix.load(folder, COMM, layout=tiles).local == a[np.ix_(*tiles.indices(R))]).all()
    try:
        ShardedMatrix.load(folder / "nowhere", COMM)
    except FileNotFoundError as error:
        assert "manifest" in str(error)
    else:
        raise AssertionError("no error")


def check_explain():
    """It names what the log of the call names, and one rank may ask alone."""
    a, said = sharded(positive(70, "float64"), Layout.rows_of((70, 70), P)), []
    cases = [(lw.cholesky, {}), (lw.eigh, {}), (lw.svdvals, {}), (lw.factor, {"assume": "general"})]
    plans = [lw.explain(op, a, **options) for op, options in cases] if R == 0 else []
    log = logging.getLogger("lapwing")
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())
    level = log.level
    log.setLevel(logging.INFO)
    for op, options in cases:
        made = op(a, **options)
    log.setLevel(level)
    log.removeHandler(handler)
    if R:
        return
    for (op, _), plan in zip(cases, plans, strict=True):
        lines = [x for x in said if x.startswith(op.__name__)]
        if P == 1:
            assert plan == lw.explain(op, a.local, **dict(cases)[op]), plan
            continue
        assert plan.engine == "scalapack" and not plan.missing, plan
        assert lines and all(f"{op.__name__}: scalapack, 70 x 70" in x for x in lines), said
    if P > 1:
        assert (plans[-1].grid, plans[-1].tile) == (made.report["grid"], made.report["tile"]), (plans[-1], made.report)
        assert lw.explain(lw.eigh, a, engine="elpa").engine == "elpa"
        assert lw.explain(lw.cholesky, a, engine="cusolvermp").engine == "cusolvermp"
        for engine, words in (("nonesuch", "is not known"), ("batched", "takes no sharded matrices")):
            try:
                lw.explain(lw.cholesky, a, engine=engine)
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError("no error")


def main():
    names = [
        name[6:] for name in globals() if name.startswith("check_") and name not in ("check_vectors", "check_other_systems")
    ]
    for name in sys.argv[1:] or names:
        start = time.perf_counter()
        globals()[f"check_{name}"]()
        COMM.Barrier()
        if R == 0:
            print(f"ok {name} on {P}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
