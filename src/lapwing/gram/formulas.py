"""Kernels as functions of squared distances, element by element, on an array namespace ``xp``.

``xp`` has exp, arctan2, clip, power and root; for derivatives its root and power have derivative 0 at 0. Length scales divide
step by step, as 1 / scale^2 would overflow long before the quotient does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any


@dataclass(frozen=True)
class Kernel:
    """A formula with its fixed options. Equal kernels have the same hash, so that JAX compiles each once.

    With ``directions`` the formula gets squared distances between the points divided by their lengths.
    """

    formula: Callable[..., Any]
    depth: int | None = None
    directions: bool = False

    def __call__(self, xp: Any, d2: Any, lengths: Any, numbers: tuple[Any, ...]) -> Any:
        options = {} if self.depth is None else {"depth": self.depth}
        return self.formula(xp, d2, lengths, *numbers, **options)


def squared(xp: Any, d2: Any, lengths: Any) -> Any:
    return d2


def distance(xp: Any, d2: Any, lengths: Any) -> Any:
    return xp.root(d2)


def gaussian(xp: Any, d2: Any, lengths: Any, scale: Any) -> Any:
    return xp.exp(d2 / scale / scale * -0.5)


def laplacian(xp: Any, d2: Any, lengths: Any, scale: Any) -> Any:
    return xp.exp(-(xp.root(d2) / scale))


def dispersal(xp: Any, d2: Any, lengths: Any, scale: Any, gamma: Any) -> Any:
    return xp.exp(-(xp.power(d2, gamma / 2) / scale))


def ntk(xp: Any, d2: Any, lengths: Any, bias: Any, *, depth: int) -> Any:
    """``d2`` is between directions of length one; ``lengths`` holds |x_i| |y_j|, or is 1.0.

    Each layer works on s = sin^2(angle / 2) = d2 / 4, since cos(angle) would lose small angles.
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
