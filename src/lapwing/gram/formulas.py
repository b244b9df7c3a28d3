"""Kernels as functions of squared distances, element by element, on a passed-in array namespace ``xp``.

``xp`` has exp, arctan2, clip, power and root; its root and power have derivative 0 at 0 where derivatives are taken.
"""

from __future__ import annotations

from math import pi
from typing import Any

__all__ = ["dispersal", "distance", "gaussian", "laplacian", "ntk", "squared"]


def squared(xp: Any, d2: Any, lengths: Any) -> Any:
    return d2


def distance(xp: Any, d2: Any, lengths: Any) -> Any:
    return xp.root(d2)


def gaussian(xp: Any, d2: Any, lengths: Any, scale: Any) -> Any:
    return xp.exp(d2 * (-0.5 / scale**2))


def laplacian(xp: Any, d2: Any, lengths: Any, scale: Any) -> Any:
    return xp.exp(xp.root(d2) * (-1.0 / scale))


def dispersal(xp: Any, d2: Any, lengths: Any, scale: Any, gamma: Any) -> Any:
    return xp.exp(xp.power(d2, gamma / 2) * (-1.0 / scale))


def ntk(xp: Any, d2: Any, lengths: Any, bias: Any, *, depth: int) -> Any:
    """``d2`` belongs to directions of length one; ``lengths`` holds |x_i| |y_j|, or is 1.0.

    s = sin^2(angle / 2) = d2 / 4 is carried from layer to layer: cos(angle) would lose small angles.
    """
    s = xp.clip(d2 * 0.25, 0.0, 1.0)
    kernel = lengths * (1 - 2 * s) + bias**2
    for _ in range(1, depth):
        half_sine, half_cosine = xp.root(s), xp.root(1 - s)
        angle = 2 * xp.arctan2(half_sine, half_cosine)
        sine, cosine = 2 * half_sine * half_cosine, 1 - 2 * s
        kappa0 = 1 - angle / pi  # E[relu'(u) relu'(v)] for Gaussian u, v at this angle
        kappa1 = cosine * kappa0 + sine / pi  # E[relu(u) relu(v)], and the cosine of the next layer's angle
        kernel = kernel * kappa0 + lengths * kappa1 + bias**2
        s = xp.clip(s - (sine - angle * cosine) / (2 * pi), 0.0, 1.0)  # (1 - kappa1) / 2
    return kernel
