"""``kernel_tools.kernels``: kernel matrices, with the arguments in the original's order.

``lapwing.gram`` does the work, so arrays of any library are accepted, not only torch tensors. As in the original, a
``bandwidth`` that is not positive raises AssertionError.
"""

from __future__ import annotations

from typing import Any

from ... import gram

__all__ = ["dispersal", "euclidean", "gaussian", "laplacian", "ntk_relu", "ntk_relu_unit_sphere"]


def euclidean(samples: Any, centers: Any, squared: bool = True) -> Any:
    """Squared distances between samples and centers, or with ``squared=False`` the distances."""
    return gram.euclidean(samples, centers, squared=squared)


def gaussian(samples: Any, centers: Any, bandwidth: Any) -> Any:
    """exp(-d^2 / (2 bandwidth^2)) for the distance d of a sample from a center."""
    return gram.gaussian(samples, centers, _positive(bandwidth))


def laplacian(samples: Any, centers: Any, bandwidth: Any) -> Any:
    """exp(-d / bandwidth) for the distance d of a sample from a center."""
    return gram.laplacian(samples, centers, _positive(bandwidth))


def dispersal(samples: Any, centers: Any, bandwidth: Any, gamma: Any) -> Any:
    """exp(-d^gamma / bandwidth) for the distance d of a sample from a center."""
    return gram.dispersal(samples, centers, _positive(bandwidth), gamma)


def ntk_relu(X: Any, Z: Any, depth: int = 1, bias: Any = 0.0) -> Any:
    """Neural tangent kernel of a fully connected ReLU network; see :func:`lapwing.gram.ntk_relu`."""
    return gram.ntk_relu(X, Z, depth=depth, bias=bias)


def ntk_relu_unit_sphere(X: Any, Z: Any, depth: int = 1, bias: Any = 0.0) -> Any:
    """The same for points of length one; see :func:`lapwing.gram.ntk_relu_unit_sphere`."""
    return gram.ntk_relu_unit_sphere(X, Z, depth=depth, bias=bias)


def _positive(bandwidth: Any) -> Any:
    if not bandwidth > 0:
        raise AssertionError(f"kernels: bandwidth={bandwidth} is not positive")
    return bandwidth
