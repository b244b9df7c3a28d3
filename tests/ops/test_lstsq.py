"""Least squares by QR or SVD, matrix by matrix; singular values on demand; qr without Q and in compact form."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, random
from lapwing.ops.lstsq import LstsqResult, _bits, _number

SHAPES = ((1, 1), (5, 3), (3, 5), (16, 16), (64, 16), (8, 40), (140, 33), (33, 140), (300, 90), (2200, 20))


def eps_of(dtype):
    return float(np.finfo(dtype).eps)


def wide(x):
    return x.astype("complex128" if x.dtype.kind == "c" else "float64")


def check(a, b, found, rcond=None):
    """Each matrix against NumPy in double precision; errors scaled by the condition of what counts."""
    for i in np.ndindex(a.shape[:-2]):
        eps, longer = eps_of(a.dtype), max(a.shape[-2:])
        x, _, rank, s = np.linalg.lstsq(wide(a[i]), wide(b[i]), rcond=longer * eps if rcond is None else rcond)
        assert found[2][i] == rank
        condition = s[0] / s[rank - 1] if rank else 1
        limit = 10 * longer * eps * condition
        size = np.abs(x).max(initial=0) + np.linalg.norm(wide(b[i])) * condition / (s[0] or 1)
        assert np.abs(found[0][i] - x).max(initial=0) <= limit * size
        left = (np.abs(wide(b[i]) - wide(a[i]) @ x) ** 2).sum(0)
        assert np.abs(found[1][i] - left).max(initial=0) <= limit * np.linalg.norm(wide(b[i])) ** 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_mixed_ranks(backend, dtype):
    """A batch of well-conditioned, deficient, zero and nearly deficient matrices: each one is answered as if it were alone."""
    shapes = SHAPES if backend.name == "numpy" else SHAPES[1:3] + SHAPES[6:7]
    for m, n in shapes:
        for k in (1, 3) if backend.name != "numpy" else (1, 3, 40):
            a, b = random((4, m, n), dtype, seed=m), random((4, m, k), dtype, seed=n)
            a[1][:, -1] = 0
            a[2] = 0
            a[3][:, -1] = a[3][:, 0] * (1 + eps_of(dtype))
            found = lw.lstsq(backend.put(a), backend.put(b))
            check(a, b, [backend.get(x) for x in found[:3]])


@pytest.mark.parametrize("engine", ["batched", "lapack", "tall"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_engines_agree(dtype, engine):
    a, b = random((3, 90, 10), dtype), random((3, 90, 2), dtype, 1)
    a[1][:, 4] = a[1][:, 3]
    check(a, b, lw.lstsq(a, b, engine=engine))


def test_rcond_decides(backend):
    u, v = (np.linalg.qr(random((6, 6), "float64", seed))[0] for seed in (0, 1))
    a, b = (u * np.geomspace(1, 1e-5, 6)) @ v, random((6, 2), "float64")
    for rcond, rank in ((None, 6), (1e-6, 6), (1.5e-5, 5), (0.5e-2, 3), (0.0, 6)):
        found = lw.lstsq(backend.put(a), backend.put(b), rcond=rcond)
        assert int(found.rank) == rank
        check(a, b, [backend.get(x) for x in found[:3]], rcond=rcond)
    assert int(lw.lstsq(backend.put(a), backend.put(b), rcond=2.0).rank) == 0


@pytest.mark.parametrize("engine", ["auto", "lapack"])
def test_a_solve_whose_squares_overflow_proves_no_rank(engine):
    """The estimate of the condition ends with zeros there, and not with a number."""
    a = np.eye(30)
    a[11:, 11:] = 1e-10 * np.eye(19) + np.eye(19, k=1)
    assert int(lw.lstsq(a, np.ones(30), engine=engine).rank) == 29


def test_singular_values_wait(backend, monkeypatch):
    """They are computed at the first look, and once."""
    from lapwing.ops import lstsq as module

    calls = []
    real = module._solve
    monkeypatch.setattr(module, "_solve", lambda *arguments: calls.append(1) or real(*arguments))
    a, b = random((7, 4), "float64"), random((7,), "float64")
    found = lw.lstsq(backend.put(a), backend.put(b))
    assert isinstance(found, LstsqResult)
    assert isinstance(found, tuple)
    assert len(found) == 4
    x, residuals = found[:2]
    assert found[0] is x is found.x
    assert found[-3] is residuals
    assert not calls
    expected = np.linalg.svd(a, compute_uv=False)
    for values in (found.singular_values, found[3], found[-1], list(found)[3], found._asdict()["singular_values"]):
        assert np.abs(backend.get(values) - expected).max() < 1e-13
    assert len(calls) == 1
    _, _, rank, _ = lw.lstsq(backend.put(a), backend.put(b))
    assert int(rank) == 4
    assert len(calls) == 2
    with pytest.raises(IndexError):
        found[4]


def test_singular_values_are_those_of_the_matrix_that_was_solved():
    """Also where its owner has changed it before they are looked at."""
    torch, tf = (pytest.importorskip(name) for name in ("torch", "tensorflow"))
    a, b = random((6, 3), "float64"), random((6, 1), "float64", 1)
    expected = np.linalg.svd(a, compute_uv=False)
    changed = a.copy()
    found = [lw.lstsq(changed, b)]
    changed[...] = 0
    tensor = torch.tensor(a)
    found.append(lw.lstsq(tensor, torch.tensor(b)))
    tensor.zero_()
    variable = tf.Variable(a)
    found.append(lw.lstsq(variable, tf.constant(b)))
    variable.assign(np.zeros_like(a))
    for result in found:
        assert np.allclose(np.asarray(result.singular_values), expected, rtol=30 * eps_of("float64"))


def test_a_result_is_copied_whole():
    found = lw.lstsq(random((7, 4), "float64"), random((7,), "float64"))
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found), found._replace(rank=4)):
        assert all(np.array_equal(p, q) for p, q in zip(found, other, strict=True))
    assert "singular_values=array" in repr(found)


def test_unused_singular_values_leave_the_program():
    jax = pytest.importorskip("jax")
    a, b = random((7, 4), "float32"), random((7, 1), "float32")

    def count(function, *arrays):
        return jax.jit(function).lower(*arrays).compile().as_text().count("custom_call_target")

    assert [count(lambda *x: lw.lstsq(*x).x, a, b), count(lw.lstsq, a, b)] == [1, 2]
    assert count(jax.vmap(lambda *x: lw.lstsq(*x).x), a[None], b[None]) == 1
    leaves = jax.tree.leaves(lw.lstsq(jax.numpy.asarray(a), jax.numpy.asarray(b)))
    assert [x.shape for x in leaves] == [(4, 1), (1,), (), (4,)]


def test_rcond_as_an_integer():
    for number in (0.0, 1e-300, 2.0**-1022, 1e-15, 0.1, 1.0, 1e300, np.inf):
        assert _number(_bits(number)) == number
        assert _bits(number) == int(np.array(number).view(np.int64))
    assert np.isnan(_number(_bits(np.nan)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr_without_q(backend, dtype):
    for m, n in SHAPES[:8] if backend.name == "numpy" else SHAPES[1:3]:
        for batch in ((), (3,)):
            a = random((*batch, m, n), dtype, seed=m)
            limit = 10 * max(m, n) * eps_of(dtype) * np.linalg.norm(wide(a))
            q, r = (backend.get(x) for x in lw.qr(backend.put(a), mode="r"))
            assert q.shape == (0,)
            assert q.dtype == r.dtype == a.dtype
            assert r.shape == (*batch, min(m, n), n)
            assert np.array_equal(np.tril(r, -1), np.zeros_like(r))
            gram = wide(r).swapaxes(-1, -2).conj() @ wide(r)
            assert np.abs(gram - wide(a).swapaxes(-1, -2).conj() @ wide(a)).max() <= limit * np.linalg.norm(wide(a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr_in_compact_form(backend, dtype):
    """As numpy.linalg.qr gives it."""
    for m, n in (*SHAPES[:8], (4, 0), (0, 4)) if backend.name == "numpy" else (*SHAPES[1:3], (4, 0), (0, 4)):
        for batch in ((), (3,)):
            a = random((*batch, m, n), dtype, seed=m)
            h, tau = (backend.get(x) for x in lw.qr(backend.put(a), mode="raw"))
            expected = np.linalg.qr(a, mode="raw")
            assert [x.shape for x in (h, tau)] == [x.shape for x in expected]
            assert h.dtype == tau.dtype == a.dtype
            limit = 10 * max(m, n) * eps_of(dtype) * (1 + np.linalg.norm(wide(a)))
            assert np.abs(h - expected[0]).max(initial=0) <= limit
            assert np.abs(tau - expected[1]).max(initial=0) <= limit


def test_r_of_extreme_matrices():
    for dtype, power in (("float32", 1e-30), ("float64", 1e-290), ("float64", 1e290)):
        a = random((6, 4), dtype)
        (_, r), (h, _) = (lw.qr(a * np.array(power, dtype), mode=mode) for mode in ("r", "raw"))
        expected = np.linalg.qr(a, mode="r")
        for found in (r, h[:, :4].T):
            assert np.abs(np.triu(found) / np.array(power, dtype) - expected).max() < 100 * eps_of(dtype)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_derivative_of_r_alone(shape):
    torch = pytest.importorskip("torch")
    a = torch.from_numpy(random(shape, "float64")).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: lw.qr(x, mode="r").R, a)
    with pytest.raises(NotImplementedError, match="raw"):
        lw.qr(a, mode="raw").tau.sum().backward()


def test_not_finite():
    for mode in ("r", "raw"):
        for shape in ((5, 3), (90, 70)):
            found = lw.qr(np.full(shape, np.nan), mode=mode)[1]
            assert np.isnan(found if mode == "raw" else np.diag(found)).all()
    a = random((3, 5, 2), "float64")
    a[1, 2, 1] = np.inf
    with pytest.raises(lw.ConvergenceError, match="NaN or Inf") as caught:
        lw.lstsq(a, np.ones((3, 5, 1)))
    assert caught.value.batch_index == (1,)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("assume", ["lower", "upper"])
def test_triangles_with_a_few_right_hand_sides(dtype, assume):
    """One column, columns that fill a vector or two, and more; what is not read is NaN."""
    for n in (33, 70, 131):
        a = random((n, n), dtype, n) / n + 2 * np.eye(n, dtype=dtype)
        kept, other = (np.tril, np.triu) if assume == "lower" else (np.triu, np.tril)
        for k in (1, 2, 7, 8, 9, 16, 17, 32, 33, n):
            b = random((n, k), dtype, k)
            for unit in (False, True):
                t = kept(a, 0).astype(dtype)
                if unit:
                    np.fill_diagonal(t, 1)
                hidden = t + (0 * other(a, 1 if assume == "lower" else -1) + np.where(kept(np.ones((n, n)), 0) > 0, 0, np.nan))
                hidden = hidden.astype(dtype)
                if unit:
                    np.fill_diagonal(hidden, np.nan)
                limit = 10 * n * eps_of(dtype)
                x = lw.solve(hidden, b, assume=assume, unit=unit)
                assert np.abs(wide(t) @ wide(x) - b).max() < limit * np.abs(x).max() * 4
                x = lw.solve(hidden, b.T.copy(), assume=assume, unit=unit, side="right")
                assert np.abs(wide(x) @ wide(t) - b.T).max() < limit * np.abs(x).max() * 4
        bad = kept(a, 0).astype(dtype)
        bad[(3, 1) if assume == "lower" else (1, 3)] = np.inf
        for b in (random((n, 2), dtype), np.zeros((n, 2), dtype)):  # zeros hide it from the solution
            x, info = lw.solve_ex(bad, b, assume=assume)
            assert info == 4
            assert np.isnan(x).all()
