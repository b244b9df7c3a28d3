"""Matrices to factor: random ones, never zeros, and one that every run shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .case import Case

__all__ = ["MATRICES", "make_matrix"]

MATRICES = ("random", "known")
_DISTINCT = 2**24  # random numbers drawn; a larger batch repeats its matrices
_LARGEST = 4096  # a larger matrix repeats a random block of this order


def make_matrix(case: Case, seed: int | None = None) -> np.ndarray:
    """A Hermitian positive definite batch of the case's shape on the host."""
    return _known(case) if case.matrix == "known" else _random(case, np.random.default_rng(seed))


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


def _known(case: Case) -> np.ndarray:
    """(i + j) / n^2 off the diagonal, 1 .. n on it."""
    index = np.arange(case.n, dtype=np.float64)
    a = (index[:, None] + index) / max(case.n, 1) ** 2
    np.fill_diagonal(a, index + 1)
    return np.array(np.broadcast_to(a, case.shape), dtype=case.dtype, order="C")
