"""The names of the TensorFlow operator for MAGMA's Cholesky.

Instead of ``tf.load_op_library("./magma_cholesky.so").magma_cholesky``::

    from lapwing.compat.magma import magma_cholesky
"""

from __future__ import annotations

from typing import Any

from .. import cholesky as _cholesky

__all__ = ["cholesky", "magma_cholesky"]


def magma_cholesky(input: Any, name: str | None = None) -> Any:
    """Lower Cholesky factor of one matrix, a batch, or a list of equal matrices.

    Unlike the operator, it takes float32, complex64 and complex128 too and any batch rank, zeroes the other triangle, has
    gradients, runs on the CPU, and names the matrix that is not positive definite.

    Parameters
    ----------
    input : tensor, array, or list of them, shape (..., n, n)
    name : str, optional
        Ignored.

    Returns
    -------
    tensor or array of the same shape
    """
    if isinstance(input, (list, tuple)):
        import tensorflow as tf

        input = tf.stack(input)
    return _cholesky(input)


def cholesky(tensor: Any, *, name: str | None = None) -> Any:
    """The original's wrapper, which chose between the operator and TensorFlow by size. Here lapwing chooses the engine."""
    return magma_cholesky(tensor, name)
