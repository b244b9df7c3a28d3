"""What the SVD of batches must answer, square, tall and wide.

run(op, flags, sizes, *arrays) calls the native core, as in solve_checks.py.
"""

import numpy as np

from qr_checks import close, matrices, near_one
from solve_checks import adjoint, exact, info_of, norm

KINDS = (
    "random",
    "deficient",
    "clustered",
    "zero columns",
    "wild",
    "tiny",
    "huge",
    "graded",
    "equal",
    "condition 1e4",
    "zero",
    "ones",
    "identity",
    "tiny ones",
    "graded ones",
    "rank two",
    "two equal columns",
    "permutation",
    "block of zeros",
    "huge column",
)


def svd_matrices(kind, dtype, batch, m, n):
    a = matrices(kind, dtype, batch, m, n)
    if "ones" in kind:
        a[...] = 1
    if kind == "tiny ones":
        a *= 1e-30 if np.finfo(dtype).bits == 32 else 1e-200
    if "graded" in kind:
        a *= (10.0 ** np.linspace(0, -30, n)).astype(dtype)
    if kind == "rank two":
        a = a[..., :2] @ a[:, :2, :]
    if kind == "two equal columns":
        a[..., n // 2] = a[..., 0]
    if kind == "permutation":
        a[...] = np.roll(np.eye(m, n), 3, 1)
    if kind == "block of zeros":
        a[:, m // 2 :, n // 2 :] = 0
    if kind == "huge column":
        a[..., n // 2] *= 1e20
    if kind == "equal":  # all singular values but two are equal
        q = np.linalg.qr(a if m >= n else adjoint(a))[0]
        q[..., :2] *= 3
        a = (q if m >= n else adjoint(q)).astype(dtype)
    if kind == "condition 1e4":  # small values, whose vectors a Gram matrix gets least right, beside ordinary ones
        u, _, vh = np.linalg.svd(a, full_matrices=False)
        a = (u * 10.0 ** np.linspace(0, -4, min(m, n))) @ vh
    if kind == "zero":
        a[...] = 0
    if kind == "identity":
        a[...] = np.eye(m, n)
    return np.ascontiguousarray(a.astype(dtype))


def check_svd(run, a):
    batch, m, n = a.shape
    dtype, before, k, longer = a.dtype, a.copy(), min(m, n), max(m, n)
    near, size = near_one(a)
    real = np.finfo(dtype).dtype
    u, vh = np.full((batch, m, k), 7, dtype), np.full((batch, k, n), 7, dtype)
    s, values, info = np.full((batch, k), 7, real), np.full((batch, k), 7, real), info_of(batch)
    run("svd", 0, (batch, m, n, 0), a, u, s, vh, info)
    assert not info.any() and np.array_equal(a, before)
    assert (s >= 0).all() and (s[:, 1:] <= s[:, :-1]).all()
    scaled = s / np.where(size > 0, size, 1)[..., 0]
    close(norm((exact(u) * scaled[:, None, :]) @ exact(vh) - near) / np.maximum(norm(near), 1), longer, dtype)
    close(norm(adjoint(exact(u)) @ exact(u) - np.eye(k)), longer, dtype)
    close(norm(exact(vh) @ adjoint(exact(vh)) - np.eye(k)), longer, dtype)
    run("svdvals", 0, (batch, m, n), a, values, info)
    assert not info.any()
    assert (values >= 0).all() and not np.signbit(values).any() and (values[:, 1:] <= values[:, :-1]).all()
    close(np.abs(values - s) / np.maximum(s[:, :1], np.finfo(real).tiny), longer, dtype)


def check_small_values(run, dtype, n):
    """Columns of very different size, the matrix of them well conditioned: every singular value is accurate."""
    rng = np.random.default_rng(n)
    q = np.linalg.qr(rng.standard_normal((1, n, n)))[0]
    sizes = 10.0 ** np.linspace(0, -10, n)
    a = (q * sizes).astype(dtype)
    u, s, vh, info = np.empty_like(a), np.empty((1, n), np.finfo(dtype).dtype), np.empty_like(a), info_of(1)
    run("svd", 0, (1, n, n, 0), a, u, s, vh, info)
    close(np.abs(s[0] / sizes - 1), n, dtype)


def check_low_rank(run, dtype, n):
    """Rounding errors of rounding errors count as zero, and so they cost no sweeps. Some of the first remain."""
    for kind in ("ones", "graded ones"):
        a = svd_matrices(kind, dtype, 1, n, n)
        u, s, vh, info = np.empty_like(a), np.empty((1, n), np.finfo(dtype).dtype), np.empty_like(a), info_of(1)
        run("svd", 0, (1, n, n, 0), a, u, s, vh, info)
        assert not info.any() and np.count_nonzero(s) < n // 2, np.count_nonzero(s)


def check_not_finite(run, dtype, m, n):
    for bad in (np.nan, np.inf):
        a, k = matrices("random", dtype, 3, m, n), min(m, n)
        a[1, m // 2, n // 3] = bad
        u, vh = np.empty((3, m, k), dtype), np.empty((3, k, n), dtype)
        s, info = np.empty((3, k), np.finfo(dtype).dtype), info_of(3)
        run("svd", 0, (3, m, n, 0), a, u, s, vh, info)
        assert list(info) == [0, 1, 0]
        for x in (u, s, vh):
            assert np.isnan(x[1]).all() and np.isfinite(x[::2]).all()
        run("svdvals", 0, (3, m, n), a, s, info)
        assert list(info) == [0, 1, 0] and np.isnan(s[1]).all() and np.isfinite(s[::2]).all()
