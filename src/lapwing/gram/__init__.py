"""Kernel matrices of point sets, for NumPy, PyTorch, JAX, TensorFlow and CuPy arrays.

Each function takes points as rows, ``x`` of shape (n, d) and ``y`` of shape (m, d), and returns the n x m matrix of a kernel
between them. Without ``y`` the points are compared with themselves, and the matrix is exactly symmetric. The peak of memory is
the result and a few tiles. Gradients work in each framework that has them, and are finite where points coincide.
"""

from ..core.autograph import leave_alone
from ..core.keywords import hide_unknown
from .kernels import dispersal, euclidean, gaussian, laplacian, ntk_relu, ntk_relu_unit_sphere

__all__ = ["dispersal", "euclidean", "gaussian", "laplacian", "ntk_relu", "ntk_relu_unit_sphere"]

leave_alone(*(globals()[_name] for _name in __all__))
hide_unknown(*(globals()[_name] for _name in __all__))
