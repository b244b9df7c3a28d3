"""Make the matrix products of a real workload faster, and prove it."""

from __future__ import annotations

from .gemm import Call, Gemm

__all__ = ["Call", "Gemm"]
