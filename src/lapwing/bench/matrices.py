"""The matrices: random ones, never zeros, one that every run shares, and those whose spectra are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import gram
from .case import Case

__all__ = ["MATRICES", "make_matrix"]

MATRICES = ("random", "known", "kernel", "laplacian", "wishart", "wishart_shift")
_DISTINCT = 2**24  # random numbers drawn; a larger batch repeats its matrices
_LARGEST = 4096  # a larger matrix repeats a random block of this order


def make_matrix(case: Case, seed: int | None = None) -> np.ndarray:
    """A Hermitian positive definite batch of the case's shape on the host.

    "kernel" is the Gaussian kernel exp(-10 d^2) of random points in a cube: its eigenvalues fall quickly, down to rounding
    errors, which may be negative. "laplacian" is the kernel exp(-d / 20) of normal points in a plane. "wishart" is G G^H / n
    of a square G of normal numbers: its largest values stand close. "wishart_shift" adds one to the diagonal.
    """
    rng = np.random.default_rng(seed)
    if case.matrix in ("kernel", "laplacian", "wishart", "wishart_shift"):
        return _spectral(case, rng)
    if case.operation != "cholesky" and case.matrix == "random" and case.n > _LARGEST:
        return _all_random(case, rng)  # repeated blocks would repeat eigenvalues
    return _known(case) if case.matrix == "known" else _random(case, rng)


def _random(case: Case, rng: np.random.Generator) -> np.ndarray:
    """H + c I with |H_ij| <= 1 random: ||H|| stays near 0.8 sqrt(n), 1.2 sqrt(n) when complex, so c = 2 sqrt(n) + 2 does."""
    if case.n > _LARGEST:
        return _repeated(case, rng)
    real = np.float32 if case.dtype in ("float32", "complex64") else np.float64
    distinct = min(case.batch, max(1, _DISTINCT // case.n**2))
    shape = (distinct, case.n, case.n)
    g = rng.random(shape, dtype=real)
    g -= real(0.5)
    if case.dtype.startswith("complex"):
        g = g + 1j * (rng.random(shape, dtype=real) - real(0.5))
    # into memory of its own: the sum of a matrix and its transpose may come in either order
    a = np.add(g, np.conj(np.swapaxes(g, -1, -2)), out=np.empty(shape, case.dtype))
    index = np.arange(case.n)
    a[..., index, index] += a.dtype.type(2 * case.n**0.5 + 2)
    return np.resize(a, case.shape)


def _repeated(case: Case, rng: np.random.Generator) -> np.ndarray:
    """One random block in every place of a grid of k x k, cut to n: its norm is k times that of the block."""
    block = _random(replace(case, n=_LARGEST, batch=1), rng)
    index, order = np.arange(_LARGEST), np.arange(case.n)
    block[index, index] -= block.dtype.type(2 * _LARGEST**0.5 + 2)
    k = -(-case.n // _LARGEST)
    a = np.tile(block, (k, k))[: case.n, : case.n]
    a = np.ascontiguousarray(a)
    a[order, order] += a.dtype.type(k * (2 * _LARGEST**0.5 + 2))
    return np.resize(a, case.shape)


def _all_random(case: Case, rng: np.random.Generator) -> np.ndarray:
    a = _normal(case, rng)
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
    a = _square(_normal(case, rng), case.device)
    a /= case.n
    if case.matrix == "wishart_shift":
        index = np.arange(case.n)
        a[index, index] += 1
    return a


def _normal(case: Case, rng: np.random.Generator) -> np.ndarray:
    real = np.float32 if case.dtype in ("float32", "complex64") else np.float64
    g = rng.standard_normal((case.n, case.n), dtype=real)
    if case.dtype.startswith("complex"):
        g = (g + 1j * rng.standard_normal((case.n, case.n), dtype=real)) / real(2**0.5)
    return g


def _square(g: np.ndarray, device: str) -> np.ndarray:
    """G G^H, exactly Hermitian. A large one is multiplied on the GPU, where the host would take minutes."""
    a: Any = None
    if device == "cuda" and len(g) >= _LARGEST:
        try:
            import torch

            t = torch.from_numpy(g).cuda()
            a = (t @ t.mH).cpu().numpy()
        except (ImportError, RuntimeError, AssertionError):  # no torch, or no GPU in it
            a = None
    return _hermitian(g @ np.conj(g.T) if a is None else a)


def _hermitian(a: np.ndarray) -> np.ndarray:
    """Exactly so, from the lower triangle."""
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
