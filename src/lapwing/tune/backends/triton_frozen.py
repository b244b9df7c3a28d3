"""Our kernels for weights that do not change: they may read them before the kernel in front has ended.

A backend of its own, so that a library says which of its entries need this, and nobody gets one who did not ask for it.
"""

from __future__ import annotations

from .triton import TritonBackend

__all__ = ["BACKEND"]

BACKEND = TritonBackend(frozen=True)
