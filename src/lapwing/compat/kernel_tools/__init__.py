"""kernel_tools under its own names: replace ``kernel_tools`` by ``lapwing.compat.kernel_tools`` in your imports.

``linalg`` has the eigensolvers and the LU solver, whose names are here too; ``kernels`` has the kernel matrices.
"""

from . import kernels
from .linalg import (
    cusolver_batched_eigh,
    cusolver_batched_eigh_workspace_requirements,
    cusolver_eigh,
    cusolver_eigh_workspace_requirements,
    cusolver_getrf,
    cusolver_getrf_workspace_requirements,
    cusolver_getrs,
    cusolver_mg_eigh,
    cusolver_mg_eigh_workspace_requirements,
)

__all__ = [
    "cusolver_batched_eigh",
    "cusolver_batched_eigh_workspace_requirements",
    "cusolver_eigh",
    "cusolver_eigh_workspace_requirements",
    "cusolver_getrf",
    "cusolver_getrf_workspace_requirements",
    "cusolver_getrs",
    "cusolver_mg_eigh",
    "cusolver_mg_eigh_workspace_requirements",
    "kernels",
]
