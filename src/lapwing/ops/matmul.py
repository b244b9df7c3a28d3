"""The matrix product, tuned where a library of tuned products is in use."""

from __future__ import annotations

from typing import Any

from .. import frameworks
from ..core import products
from ..frameworks import foreign


def matmul(a: Any, b: Any, /) -> Any:
    """Matrix product, as in the array-API standard.

    The framework computes it, with derivatives and on its own device. Inside ``lapwing.tune.use(...)`` products that were tuned
    use their tuned kernels.

    Parameters
    ----------
    a : array, shape (..., m, k) or (k,)
        NumPy, PyTorch, JAX, TensorFlow or CuPy.
    b : array, shape (..., k, n) or (k,)
        Of the same framework. Leading axes are broadcast.

    Returns
    -------
    array, shape (..., m, n)
        For vectors (n,), (m,) or a number, as in NumPy.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, a scalar, or arrays of two frameworks.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.matmul(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0]))
    array([-1., -1.])
    """
    tuned = products.product(a, b)
    return _plain(a, b) if tuned is None else tuned


def _plain(a: Any, b: Any) -> Any:
    try:
        framework = frameworks.of(a, "matmul")
    except foreign.ForeignArray:
        return foreign.through(matmul)(a, b)
    if frameworks.of(b, "matmul") is not framework:
        raise TypeError(
            f"matmul: expected two arrays of one framework, got {type(a).__module__}.{type(a).__qualname__}"
            f" and {type(b).__module__}.{type(b).__qualname__}\nhint: convert one of them first"
        )
    left, right = framework.shape_of(a), framework.shape_of(b)
    if not len(left) or not len(right):
        raise ValueError("matmul: expected vectors or matrices, got a scalar\nhint: a * b multiplies numbers")
    inner, other = left[-1], right[-2 if len(right) > 1 else -1]
    if inner is not None and other is not None and inner != other:
        raise ValueError(
            f"matmul: the last axis of a has {inner} elements, and b of shape {tuple(right)} takes {other}"
            "\nhint: b.mT or a.mT is the transpose"
        )
    if "tensorflow" in framework.__name__:
        return _tensorflow_style(framework.Namespace, a, b, len(left), len(right))
    return a @ b


def _tensorflow_style(xp: Any, a: Any, b: Any, left: int, right: int) -> Any:
    """Vectors as matrices, as TensorFlow has no product with a vector."""
    product = xp.matmul(a[None, :] if left == 1 else a, b[:, None] if right == 1 else b)
    if right == 1:
        product = product[..., 0]
    return product if left > 1 else product[..., 0] if right == 1 else product[..., 0, :]
