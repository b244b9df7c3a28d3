"""Compute the matrix from points: tile by tile in place (NumPy, CuPy, torch), or as an expression (JAX, TensorFlow,
gradients)."""

from __future__ import annotations

import importlib
from typing import Any

from .formulas import Kernel
from .points import Points


def kernel_matrix(points: Points, kernel: Kernel, *numbers: Any) -> Any:
    return _module(points).make(points.x, points.y, kernel, numbers)


def divide(points: Points, scales: Any) -> Points:
    """Each coordinate divided by its own length scale."""
    scales = _module(points).vector(scales, points.x)
    return points.mapped(lambda x: x / scales)


def _module(points: Points) -> Any:
    kind = points.framework.__name__.rpartition(".")[2]
    return importlib.import_module(f".{'numpy' if kind == 'cupy' else kind}", __package__)
