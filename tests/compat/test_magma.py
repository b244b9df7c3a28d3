"""The MAGMA operator's names, with its own test matrix."""

from __future__ import annotations

import numpy as np
import pytest

from backends import residual
from lapwing.compat.magma import cholesky, magma_cholesky

tf = pytest.importorskip("tensorflow")


def known(n):
    i = np.arange(n)
    a = (i[:, None] + i) / n**2
    a[i, i] = i + 1
    return a


def test_one_matrix_a_batch_and_a_list():
    a = known(10)
    assert residual(a, magma_cholesky(tf.constant(a)).numpy(), False) < 10
    batch = magma_cholesky(tf.constant([a, 2 * a])).numpy()
    assert residual(np.array([a, 2 * a]), batch, False) < 10
    assert np.array_equal(magma_cholesky([tf.constant(a), tf.constant(2 * a)]).numpy(), batch)
    assert np.array_equal(cholesky(tf.constant(a), name="l").numpy(), batch[0])
    assert not np.triu(batch[0], 1).any()
