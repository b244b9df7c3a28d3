"""What QR and least squares panel by panel must answer.

run(op, flags, sizes, *arrays) calls the native core, as in solve_checks.py.
"""

import numpy as np

from solve_checks import adjoint, eps, exact, norm, random

DEFAULT_RCOND = 0x7FF8 << 48  # the bits of NaN
KINDS = ("random", "deficient", "clustered", "zero columns", "wild", "tiny", "huge")


def matrices(kind, dtype, batch, m, n, seed=0):
    rng = np.random.default_rng(seed + 1000 * m + n)
    a = random(rng, dtype, batch, m, n)
    half, far = n // 2, 30 if np.finfo(dtype).bits == 32 else 200
    if kind == "deficient":
        a[..., half:] = a[..., : n - half]
    if kind == "clustered":
        a = a[..., :1] + a * np.asarray(1e-3, dtype)
    if kind == "zero columns":
        a[..., ::3] = 0
        a[0] = 0
    if kind == "wild":  # every matrix and every column has a size of its own
        a *= (10.0 ** rng.uniform(-6, 6, (batch, 1, 1))).astype(dtype) * (10.0 ** rng.uniform(-4, 4, (1, 1, n))).astype(dtype)
    if kind in ("tiny", "huge"):
        a *= np.asarray(10.0 ** (far if kind == "huge" else -far), dtype)
    return np.ascontiguousarray(a.astype(dtype))


def close(error, size, dtype):
    assert np.all(error <= 10 * size * eps(dtype)), (error.max() / (size * eps(dtype)), size)


def near_one(a):
    """Divided by a power of two, so that norms do not leave the range."""
    size = np.abs(exact(a)).max((-1, -2), keepdims=True, initial=0)
    return exact(a) / np.where(size > 0, size, 1), size


def check_qr(run, a, only_reduced=False):
    batch, m, n = a.shape
    dtype, before, longer = a.dtype, a.copy(), max(m, n)
    near, size = near_one(a)
    for c in sorted({min(m, n), min(m, n) if only_reduced else m}):
        q, r = np.full((batch, m, c), 7, dtype), np.full((batch, c, n), 7, dtype)
        run("qr", 0, (batch, m, n, c), a, q, r)
        assert np.array_equal(a, before)
        assert np.array_equal(r, np.triu(r))
        close(norm(exact(q) @ (exact(r) / np.where(size > 0, size, 1)) - near) / np.maximum(norm(near), 1), longer, dtype)
        close(norm(adjoint(exact(q)) @ exact(q) - np.eye(c)), longer, dtype)


def check_without_q(run, a):
    """R alone, and the compact form: the product of the reflections times R is A."""
    batch, m, n = a.shape
    dtype, least = a.dtype, min(m, n)
    near, size = near_one(a)
    scale = np.where(size > 0, size, 1)
    r = np.full((batch, least, n), 7, dtype)
    run("qr_r", 0, (batch, m, n), a, r)
    assert np.array_equal(r, np.triu(r))
    gram = exact(r) / scale
    close(norm(adjoint(gram) @ gram - adjoint(near) @ near) / np.maximum(norm(near), 1) ** 2, max(m, n), dtype)
    h, tau = np.full((batch, n, m), 7, dtype), np.full((batch, least), 7, dtype)
    run("qr_raw", 0, (batch, m, n), a, h, tau)
    whole = np.swapaxes(exact(h), -1, -2)
    product = np.triu(whole) / scale
    for i in reversed(range(least)):
        v = np.where(np.arange(m) > i, whole[:, :, i], np.arange(m) == i)[:, :, None]
        product -= tau[:, i, None, None] * v @ (adjoint(v) @ product)
    close(norm(product - near) / np.maximum(norm(near), 1), max(m, n), dtype)
    close(norm((np.abs(np.triu(whole)[:, :least]) - np.abs(exact(r))) / scale), max(m, n), dtype)


def lstsq(run, a, b, rcond=None):
    (batch, m, n), k, real = a.shape, b.shape[-1], np.finfo(a.dtype).dtype
    x, residuals = np.full((batch, n, k), 7, a.dtype), np.full((batch, k), 7, real)
    rank, info = np.full(batch, 9, np.int32), np.full(batch, 9, np.int32)
    bits = DEFAULT_RCOND if rcond is None else int(np.float64(rcond).view(np.int64))
    run("lstsq", 0, (batch, m, n, k, bits), a, b, x, residuals, rank, info)
    return x, residuals, rank, info


def check_lstsq(run, a, b, rcond=None):
    x, residuals, rank, info = lstsq(run, a, b, rcond)
    dtype, longer = a.dtype, max(a.shape[1:])
    assert not info.any()
    near, sizes = near_one(a)
    for i in range(len(a)):
        wide, right, answer = near[i], exact(b[i]), exact(x[i]) * np.where(sizes[i] > 0, sizes[i], 1)
        s = np.linalg.svd(wide, compute_uv=False)
        limit = (longer * eps(dtype) if rcond is None else rcond) * s[0]
        assert rank[i] == (s > limit).sum(), (i, rank[i], (s > limit).sum())
        expected = np.linalg.lstsq(wide, right, rcond=max(longer * eps(dtype), 1e-14) if rcond is None else rcond)[0]
        left = right - wide @ expected
        condition = s[0] / s[rank[i] - 1] if rank[i] else 1
        size = np.linalg.norm(expected) + np.linalg.norm(left) * condition / max(s[0], 1e-300)
        assert np.linalg.norm(answer - expected) <= 10 * longer * eps(dtype) * condition * size + 1e-300
        squares = (np.abs(left) ** 2).sum(0)
        close(np.abs(residuals[i] - squares) / (np.abs(right) ** 2).sum(0), longer * max(condition, 1) ** 0.5, dtype)


def check_columns_of_any_size(run):
    """Each right-hand side is scaled by itself."""
    rng = np.random.default_rng(5)
    a, b = random(rng, "float32", 2, 40, 12), random(rng, "float32", 2, 40, 2)
    expected = lstsq(run, a, b, None)[0]
    x = lstsq(run, a, b * np.array([1e20, 1e-30], "float32"), None)[0]
    assert np.abs(x / np.array([1e20, 1e-30], "float32") - expected).max() <= 1e-4 * np.abs(expected).max()


def check_columns_with_nan(run, dtype):
    """A right-hand side that is not finite leaves the others as they are."""
    rng = np.random.default_rng(6)
    a, b = random(rng, dtype, 2, 60, 20), random(rng, dtype, 2, 60, 2)
    expected = lstsq(run, a, b)[0]
    b[0, 7, 1] = np.nan
    x, residuals, rank, info = lstsq(run, a, b)
    assert np.array_equal(x[..., 0], expected[..., 0]) and np.array_equal(x[1], expected[1])
    assert np.isnan(x[0, :, 1]).all() and np.isnan(residuals[0, 1]) and not info.any() and (rank == 20).all()


def check_not_finite(run, dtype, m, n):
    rng = np.random.default_rng(m)
    a, b = random(rng, dtype, 3, m, n), random(rng, dtype, 3, m, 2)
    a[1, m // 2, n // 3] = np.nan
    c = min(m, n)
    q, r = np.full((3, m, c), 7, dtype), np.full((3, c, n), 7, dtype)
    run("qr", 0, (3, m, n, c), a, q, r)
    assert np.isnan(q[1]).all() and np.isnan(r[1]).all()
    close(norm(exact(q[::2]) @ exact(r[::2]) - exact(a[::2])) / norm(a[::2]), max(m, n), dtype)
    h, tau = np.full((3, n, m), 7, dtype), np.full((3, c), 7, dtype)
    run("qr_raw", 0, (3, m, n), a, h, tau)
    assert np.isnan(h[1]).all() and np.isnan(tau[1]).all() and np.isfinite(h[::2]).all()
    x, residuals, rank, info = lstsq(run, a, b)
    assert np.array_equal(info, [0, 1, 0]) and rank[1] == 0
    assert np.isnan(x[1]).all() and np.isnan(residuals[1]).all() and np.isfinite(x[::2]).all()
