"""Other names of :mod:`.cost`."""

from typing import Any

from .cost import CPU_CLUSTER, H200, MACHINES, OPERATIONS, Cost, Machine, largest_that, predict, tile_for

__all__ = ["CPU_CLUSTER", "H200", "MACHINES", "OPERATIONS", "Cost", "Machine", "cost", "largest_that", "tile_for"]


def cost(*arguments: Any, pos: bool = True, **options: Any) -> Cost:
    return predict(*arguments, assume="pos" if pos else "general", **options)
