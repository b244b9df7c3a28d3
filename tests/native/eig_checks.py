"""Checks of eigenvalues, eigenvectors and Schur forms of general matrices.

run(op, flags, sizes, *arrays) calls the native core, as in solve_checks.py.
"""

import numpy as np

from solve_checks import adjoint, eps, exact, norm, random


def kinds(dtype, n):
    """Named matrices of order n that are hard for QR sweeps, for balancing or for back substitution."""
    rng = np.random.default_rng(n)
    basis = np.linalg.qr(rng.standard_normal((n, n)))[0]
    angles = np.arange(1.0, n // 2 + 1)
    rotations = np.eye(n)
    rotations[np.arange(0, n - 1, 2), np.arange(0, n - 1, 2)] = np.cos(angles)
    rotations[np.arange(1, n, 2), np.arange(1, n, 2)] = np.cos(angles)
    rotations[np.arange(1, n, 2), np.arange(0, n - 1, 2)] = np.sin(angles)
    rotations[np.arange(0, n - 1, 2), np.arange(1, n, 2)] = -np.sin(angles)
    jordan = 2 * np.eye(n) + np.eye(n, k=1)
    companion = np.eye(n, k=-1)
    companion[:, -1] = -np.poly(np.linspace(-1, 1, n))[:0:-1]
    grades, far = np.logspace(0, -20, n), 1e37 if np.finfo(dtype).bits == 32 else 1e300
    dense = rng.standard_normal((n, n))
    matrices = {
        "cyclic": np.roll(np.eye(n), 1, 0),
        "rotations": rotations,
        "orthogonal": basis,
        "skew": dense - dense.T,
        "jordan": jordan,
        "rotated jordan": basis @ jordan @ basis.T,
        "nilpotent": np.eye(n, k=1),
        "lower nilpotent": np.eye(n, k=-1),
        "companion": companion,
        "grcar": np.eye(n) - np.eye(n, k=-1) + sum(np.eye(n, k=k) for k in (1, 2, 3)),
        "graded": dense * grades[:, None] * grades,
        "badly scaled": dense * np.logspace(6, -6, n)[:, None] / np.logspace(6, -6, n),
        "huge": dense * far / n,
        "tiny": dense / far,
        "zero": np.zeros((n, n)),
        "identity": np.eye(n),
        "ones": np.ones((n, n)),
        "upper": np.triu(dense),
        "lower": np.tril(dense),
        "symmetric": basis * np.arange(n) @ basis.T,
        "rank two": np.arange(n * n).reshape(n, n),
    }
    phase = np.exp(0.3j) if dtype.startswith("c") else 1
    return {name: (phase * a).astype(dtype) for name, a in matrices.items()}


def complex_of(dtype):
    return np.result_type(dtype, np.complex64)


def near_one(a):
    """Divided so that the largest entry of each matrix is 1, and by what."""
    size = np.abs(exact(a)).max((-1, -2), keepdims=True, initial=0)
    size = np.where(size > 0, size, 1)
    return exact(a) / size, size


def close(error, n, dtype):
    assert np.all(error <= 10 * n * eps(dtype)), (error / (n * eps(dtype)), n)


def check_conjugate(w):
    """The eigenvalues of a real matrix are real or come in conjugate pairs, side by side."""
    for values in w:
        pairs = values[values.imag != 0]
        assert (pairs[::2] == pairs[1::2].conj()).all() and (pairs[::2].imag > 0).all()


def check_eig(run, a):
    batch, n = a.shape[:2]
    w, v = np.full((batch, n), 7, complex_of(a.dtype)), np.full(a.shape, 7, complex_of(a.dtype))
    info = np.full(batch, 7, np.int32)
    run("eig", 0, (batch, n), a.copy(), w, v, info)
    assert not info.any()
    scaled, size = near_one(a)
    close(norm(scaled @ exact(v) - exact(v) * (exact(w)[:, None] / size)) / np.maximum(norm(scaled), 1), n, a.dtype)
    close(abs(np.linalg.norm(exact(v), axis=1) - 1).max(-1), n, a.dtype)
    if a.dtype.kind == "f":
        check_conjugate(w)
    return w


def check_schur(run, a):
    batch, n = a.shape[:2]
    t, z, info = np.full_like(a, 7), np.full_like(a, 7), np.full(batch, 7, np.int32)
    run("schur", 0, (batch, n), a.copy(), t, z, info)
    assert not info.any()
    scaled, size = near_one(a)
    wide, basis = exact(t) / size, exact(z)
    close(norm(basis @ wide @ adjoint(basis) - scaled) / np.maximum(norm(scaled), 1), n, a.dtype)
    close(norm(adjoint(basis) @ basis - np.eye(n)), n, a.dtype)
    assert (np.tril(t, -1 if a.dtype.kind == "c" else -2) == 0).all()
    for form in t if a.dtype.kind == "f" else ():
        pairs = np.flatnonzero(np.diag(form, -1))
        assert (np.diff(pairs) > 1).all()
        for k in pairs:  # as LAPACK's blocks are
            assert form[k, k] == form[k + 1, k + 1]
            assert np.sign(form[k, k + 1]) == -np.sign(form[k + 1, k])


def check_values(run, a, tolerance):
    """Against NumPy's, each paired with the nearest."""
    batch, n = a.shape[:2]
    w, info = np.full((batch, n), 7, complex_of(a.dtype)), np.full(batch, 7, np.int32)
    run("eigvals", 0, (batch, n), a.copy(), w, info)
    assert not info.any()
    for values, matrix in zip(w, exact(a), strict=True):
        left = list(np.linalg.eigvals(matrix))
        for value in values:
            nearest = int(np.argmin(np.abs(np.array(left) - value)))
            assert abs(left.pop(nearest) - value) <= tolerance * n * eps(a.dtype) * max(norm(matrix), 1e-300)
    if a.dtype.kind == "f":
        check_conjugate(w)


def check_random(run, dtype, n, batch=3):
    a = random(np.random.default_rng(n), dtype, batch, n, n)
    check_eig(run, a)
    check_schur(run, a)
    check_values(run, a, 1000)


def check_kinds(run, dtype, n):
    a = np.stack(list(kinds(dtype, n).values()))
    check_eig(run, a)
    check_schur(run, a)


def check_not_finite(run, dtype, n):
    """One bad matrix in a batch spoils its own results alone."""
    a = random(np.random.default_rng(n), dtype, 3, n, n)
    a[1, n - 1, 0] = np.nan
    a[2, 0, n - 1] = np.inf
    w, v, info = np.zeros((3, n), complex_of(dtype)), np.zeros((3, n, n), complex_of(dtype)), np.full(3, 7, np.int32)
    run("eig", 0, (3, n), a.copy(), w, v, info)
    assert info.tolist() == [0, 1, 1]
    assert np.isfinite(v[0]).all() and np.isnan(w[1:]).all() and np.isnan(v[1:]).all()
    w[:] = 0
    run("eigvals", 0, (3, n), a.copy(), w, info)
    assert info.tolist() == [0, 1, 1] and np.isfinite(w[0]).all() and np.isnan(w[1:]).all()
    t, z = np.zeros_like(a), np.zeros_like(a)
    run("schur", 0, (3, n), a.copy(), t, z, info)
    assert info.tolist() == [0, 1, 1]
    assert np.isfinite(t[0]).all() and np.isnan(t[1:]).all() and np.isnan(z[1:]).all()


def check_in_place(run, dtype, n):
    """t may be the memory of a."""
    a = random(np.random.default_rng(n), dtype, 2, n, n)
    t, z, info = a.copy(), np.zeros_like(a), np.full(2, 7, np.int32)
    run("schur", 0, (2, n), t, t, z, info)
    close(norm(exact(z) @ exact(t) @ adjoint(exact(z)) - exact(a)) / norm(exact(a)), n, dtype)
