"""lapwing.matmul is the framework's product: shapes, vectors, broadcasting, derivatives, and what it refuses."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import lapwing as lw
from backends import random
from lapwing.core import products

SHAPES = [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (6, 4, 5)), ((0, 4), (4, 5))]
SHAPES += [((3, 0), (0, 5)), ((6, 3, 4), (4,)), ((4,), (6, 4, 5))]


def full_precision(backend):
    """JAX multiplies float32 matrices in tf32 on a GPU unless it is told not to."""
    if backend.name != "jax":
        return nullcontext()
    import jax

    return jax.default_matmul_precision("highest")


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_every_framework(backend, dtype):
    for left, right in SHAPES:
        a, b = random(left, dtype), random(right, dtype, 1)
        with full_precision(backend):
            got = lw.matmul(backend.put(a), backend.put(b))
        want = np.matmul(a, b)
        assert tuple(got.shape) == want.shape and backend.get(got).dtype == want.dtype
        assert np.abs(backend.get(got) - want).max(initial=0) <= 10 * 5 * np.finfo(dtype).eps * 10


def test_refuses_what_does_not_fit(backend):
    put = backend.put
    with pytest.raises(ValueError, match=r"matmul: the last axis of a has 4 elements, and b of shape \(3, 4\) takes 3\nhint"):
        lw.matmul(put(np.ones((3, 4))), put(np.ones((3, 4))))
    with pytest.raises(ValueError, match="scalar"):
        lw.matmul(put(np.ones((3, 4))), put(np.float64(2)))
    with pytest.raises(TypeError, match="matmul: expected an array of NumPy"):
        lw.matmul([[1.0]], put(np.ones((1, 1))))
    if backend.name != "numpy":
        with pytest.raises(TypeError, match="one framework"):
            lw.matmul(put(np.ones((2, 2))), np.ones((2, 2)))


def test_what_is_in_use_is_asked_last_in_first():
    a, b = np.ones((2, 3)), np.ones((3, 2))
    first, second = (lambda x, y: "first"), (lambda x, y: None)
    products.add(first)
    products.add(second)
    try:
        assert lw.matmul(a, b) == "first"
        products.remove(first)
        assert np.array_equal(lw.matmul(a, b), a @ b)
    finally:
        products.remove(first)
        products.remove(second)
