"""Memory that the solver owns: the description that the whole library uses, see :mod:`lapwing.core.memory`."""

from __future__ import annotations

from ..core.memory import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, GPU, HOST, ROCM, ROCM_HOST, Memory

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_HOST",
    "CUDA_MANAGED",
    "GPU",
    "HOST",
    "ROCM",
    "ROCM_HOST",
    "Memory",
    "contiguous_strides",
]


def contiguous_strides(memory: Memory) -> tuple[int, ...] | None:
    """The strides if the field is row-major without gaps, else None."""
    return memory.strides if memory.row_major else None
