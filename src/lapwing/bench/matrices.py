"""The matrices of the benchmark: random ones, a known one, kernel and Wishart matrices, and ones with a chosen condition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, lgamma
from typing import Any

import numpy as np

from .. import gram
from .case import Case
from .operations import operation_of

MATRICES = ("random", "known", "kernel", "laplacian", "wishart", "wishart_shift")
_DISTINCT = 2**24  # random numbers drawn; a larger batch repeats its matrices
_LARGEST = 4096  # a larger matrix repeats a random block of this order
_DECOMPOSED = 16  # times fewer matrices are distinct if each takes a QR factorisation
_ORTHOGONAL = 2048  # up to this order a QR factorisation gives an orthogonal matrix quickly enough
_GROUP, _ROUNDS = 64, 3  # beyond it: rotations of 64 rows at a time, three times with different neighbours


def make_input(case: Case, seed: int | None = None) -> Any:
    """The matrices; for an operation with right-hand sides a pair of both."""
    a = make_matrix(case, seed)
    if not operation_of(case.operation).right_hand_sides:
        return a
    rng = np.random.default_rng(seed)
    return a, _repeat(case, lambda distinct: _numbers(case, rng, (distinct, case.height, case.k)), case.height * case.k)


def make_matrix(case: Case, seed: int | None = None) -> np.ndarray:
    """A batch of the case's shape on the host: Hermitian and positive definite if the operation or ``assume`` needs that.

    Other random matrices have normal numbers; those of "lower" also have a larger diagonal, and those of det are scaled, so
    that the determinant is in range. With a ``condition`` the singular values are chosen.

    "kernel" is the Gaussian kernel exp(-10 d^2) of random points in a cube: its eigenvalues fall quickly, down to rounding
    errors, which may be negative. "laplacian" is the kernel exp(-d / 20) of normal points in a plane. "wishart" is G G^H / n
    of a square G of normal numbers: its largest values stand close. "wishart_shift" adds one to the diagonal.
    """
    rng = np.random.default_rng(seed)
    general = not (case.operation in ("cholesky", "eigh", "eigvalsh") or case.assume == "pos")
    if case.condition is not None:
        return _conditioned(case, rng, general)
    if case.matrix == "random" and general:
        return _repeat(case, lambda distinct: _general(case, rng, (distinct, case.height, case.n)), case.height * case.n)
    if case.matrix in ("kernel", "laplacian", "wishart", "wishart_shift"):
        return _spectral(case, rng)
    if case.operation.startswith("eig") and case.matrix == "random" and case.n > _LARGEST:
        return _all_random(case, rng)  # repeated blocks would repeat eigenvalues
    return _known(case) if case.matrix == "known" else _random(case, rng)


def _random(case: Case, rng: np.random.Generator) -> np.ndarray:
    """H + c I with random |H_ij| <= 1: ||H|| is near 0.8 sqrt(n), or 1.2 sqrt(n) if complex, so c = 2 sqrt(n) + 2 is enough."""
    if case.n > _LARGEST:
        return _repeated(case, rng)
    real = np.float32 if case.dtype in ("float32", "complex64") else np.float64
    distinct = min(case.batch, max(1, _DISTINCT // case.n**2))
    shape = (distinct, case.n, case.n)
    g = rng.random(shape, dtype=real)
    g -= real(0.5)
    if case.dtype.startswith("complex"):
        g = g + 1j * (rng.random(shape, dtype=real) - real(0.5))
    # into new row-major memory: the sum of a matrix and its transpose may have either memory order
    a = np.add(g, np.conj(np.swapaxes(g, -1, -2)), out=np.empty(shape, case.dtype))
    index = np.arange(case.n)
    a[..., index, index] += a.dtype.type(2 * case.n**0.5 + 2)
    return np.resize(a, case.shape)


def _general(case: Case, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    a = _numbers(case, rng, shape)
    if case.assume == "symmetric":
        # into new row-major memory, as above
        a = np.add(a, np.swapaxes(a, -1, -2), out=np.empty_like(a))
    if case.assume == "lower":
        # random triangles are nearly singular
        a = np.tril(a) / a.dtype.type(2 * case.n**0.5) + np.eye(case.n, dtype=a.dtype)
    if case.operation == "det":
        # the mean of log |det| is about log((n - 1)!) / 2
        a *= a.dtype.type(exp(-lgamma(case.n) / (2 * case.n)))
    return a


def _repeated(case: Case, rng: np.random.Generator) -> np.ndarray:
    """One random block repeated over a grid of k x k, cut to n: its norm is k times that of the block."""
    block = _random(replace(case, n=_LARGEST, batch=1), rng)
    index, order = np.arange(_LARGEST), np.arange(case.n)
    block[index, index] -= block.dtype.type(2 * _LARGEST**0.5 + 2)
    k = -(-case.n // _LARGEST)
    a = np.tile(block, (k, k))[: case.n, : case.n]
    a = np.ascontiguousarray(a)
    a[order, order] += a.dtype.type(k * (2 * _LARGEST**0.5 + 2))
    return np.resize(a, case.shape)


def _repeat(case: Case, make: Callable[[int], np.ndarray], size: int) -> np.ndarray:
    """A batch that repeats the few matrices of ``make(count)``, which have ``size`` numbers each."""
    a = make(min(case.batch, max(1, _DISTINCT // size)))
    return np.resize(a, (*case.lead, *a.shape[1:]))


def _numbers(case: Case, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers of variance one."""
    real = np.float32 if case.dtype in ("float32", "complex64") else np.float64
    g = rng.standard_normal(shape, dtype=real)
    if case.dtype.startswith("complex"):
        g = (g + 1j * rng.standard_normal(shape, dtype=real)) / real(2**0.5)
    return g


def _conditioned(case: Case, rng: np.random.Generator, general: bool) -> np.ndarray:
    """U S V^H, or U S U^H, in double precision, with random orthogonal U and V."""
    assert case.condition is not None
    values = np.geomspace(1.0, 1.0 / case.condition, case.n)
    wide = replace(case, dtype="complex128" if case.dtype.startswith("complex") else "float64")
    if case.n > _ORTHOGONAL:
        return _turned(wide, rng, values, general).astype(case.dtype)

    def make(distinct: int) -> np.ndarray:
        u = np.linalg.qr(_numbers(wide, rng, (distinct, case.height, case.n)))[0]
        v = np.linalg.qr(_numbers(wide, rng, (distinct, case.n, case.n)))[0] if general else u
        a = (u * values) @ np.conj(np.swapaxes(v, -1, -2))
        return (np.stack([_hermitian(x) for x in a]) if v is u else a).astype(case.dtype)

    return _repeat(case, make, _DECOMPOSED * case.height * case.n)


def _turned(case: Case, rng: np.random.Generator, values: np.ndarray, general: bool) -> np.ndarray:
    """The same for one large matrix: the diagonal, with its rows and its columns mixed by block rotations."""
    on_gpu = _gpu_tensors(case.device)
    sides = [_rotations(case, rng)] * 2 if not general else [_rotations(case, rng), _rotations(case, rng)]
    a: Any = np.diag(values.astype(case.dtype))
    if on_gpu is not None:
        a = on_gpu.from_numpy(a).cuda()
    for rotations in sides:
        for order, blocks in rotations:
            whole = blocks.shape[0] * _GROUP
            if on_gpu is not None:
                order, blocks = on_gpu.from_numpy(order).cuda(), on_gpu.from_numpy(blocks).cuda()
            a = a[order]
            a[:whole] = (blocks @ a[:whole].reshape(-1, _GROUP, case.n)).reshape(whole, case.n)
        a = a.swapaxes(-1, -2).conj()
    a = np.ascontiguousarray(a.resolve_conj().cpu().numpy() if on_gpu is not None else a)
    return np.resize(a if general else _hermitian(a), case.shape)


def _rotations(case: Case, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    count = case.n // _GROUP
    return [(rng.permutation(case.n), np.linalg.qr(_numbers(case, rng, (count, _GROUP, _GROUP)))[0]) for _ in range(_ROUNDS)]


def _all_random(case: Case, rng: np.random.Generator) -> np.ndarray:
    a = _numbers(case, rng, (case.n, case.n))
    a += np.conj(a.T)
    return np.resize(a, case.shape)


def _spectral(case: Case, rng: np.random.Generator) -> np.ndarray:
    distinct = min(case.batch, max(1, _DISTINCT // case.n**2))
    make = _kernel if case.matrix in ("kernel", "laplacian") else _wishart
    a = np.stack([make(case, rng) for _ in range(distinct)]) if case.batch > 1 else make(case, rng)
    return np.resize(a, case.shape) if case.batch > distinct else a.reshape(case.shape)


def _kernel(case: Case, rng: np.random.Generator) -> np.ndarray:
    real = "float32" if case.dtype in ("float32", "complex64") else "float64"
    if case.matrix == "kernel":
        a = np.asarray(gram.gaussian(rng.random((case.n, 3)).astype(real), length_scale=0.05**0.5))
    else:
        a = np.asarray(gram.laplacian(rng.standard_normal((case.n, 2)).astype(real), length_scale=20.0))
    if real != case.dtype:
        # D K D^H with random phases D has the same spectrum
        phase = np.exp(2j * np.pi * rng.random(case.n)).astype(case.dtype)
        a = _hermitian(phase[:, None] * a * np.conj(phase))
    return a.astype(case.dtype, copy=False)


def _wishart(case: Case, rng: np.random.Generator) -> np.ndarray:
    """A large matrix for a GPU is computed there, since the host would take minutes."""
    torch = _gpu_tensors(case.device) if case.n >= _LARGEST else None
    shift = 1 if case.matrix == "wishart_shift" else 0
    if torch is None:
        g = _numbers(case, rng, (case.n, case.n))
        a = _hermitian(g @ np.conj(g.T))
        a /= case.n
        index = np.arange(case.n)
        a[index, index] += shift
        return a
    seed = torch.Generator("cuda").manual_seed(int(rng.integers(2**62)))
    t = torch.randn((case.n, case.n), dtype=getattr(torch, case.dtype), device="cuda", generator=seed)
    t = (t @ t.mH) / case.n
    diagonal = t.diagonal().real + shift
    t = t.tril(-1)
    t += t.mH.clone()
    t.diagonal().copy_(diagonal)
    return t.cpu().numpy()  # type: ignore[no-any-return]


def _gpu_tensors(device: str) -> Any:
    """torch, if the case is for a GPU and torch has one."""
    if device != "cuda":
        return None
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _hermitian(a: np.ndarray) -> np.ndarray:
    """An exactly Hermitian matrix, from the lower triangle."""
    lower = np.tril(a, -1)
    index = np.arange(len(a))
    diagonal = a[index, index].real.copy()
    a = lower + np.conj(lower.T)
    a[index, index] = diagonal
    return a


def _known(case: Case) -> np.ndarray:
    """(i + j) / n^2 off the diagonal, 1 .. n on it."""
    index = np.arange(case.n, dtype=np.float64)
    a = (index[:, None] + index) / max(case.n, 1) ** 2
    np.fill_diagonal(a, index + 1)
    return np.array(np.broadcast_to(a, case.shape), dtype=case.dtype, order="C")
