"""DLPack capsules of fields, see :mod:`lapwing.core.memory`."""

from __future__ import annotations

from ..core.memory import capsule_of_memory, memory_of_capsule

__all__ = ["capsule_of_memory", "memory_of_capsule"]
