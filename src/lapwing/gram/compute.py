"""From points to the matrix: in place tile by tile (NumPy, CuPy, torch), or as an expression (JAX, TensorFlow, gradients)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .points import Points

__all__ = ["kernel_matrix"]


def kernel_matrix(
    points: Points, formula: Callable[..., Any], *numbers: Any, depth: int | None = None, directions: bool = False
) -> Any:
    """``formula`` of the squared distances between the points, or with ``directions`` between the points over their lengths."""
    kind = points.framework.__name__.rpartition(".")[2]
    options = {} if depth is None else {"depth": depth}
    make: Callable[..., Any]
    if kind == "torch":
        from .torch import make
    elif kind == "jax":
        from .jax import make
    elif kind == "tensorflow":
        from .tensorflow import make
    else:
        from .numpy import make
    return make(points.x, points.y, formula, numbers, options, directions)
