"""kernel_tools under its own names: replace ``kernel_tools`` by ``lapwing.compat.kernel_tools`` in your imports.

``linalg`` has the eigensolvers and the LU solver, whose names are here too; ``kernels`` has the kernel matrices.
"""

from . import kernels, linalg
from .linalg import *  # noqa: F403

__all__ = ["kernels"]
__all__ += linalg.__all__
