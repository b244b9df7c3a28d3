"""Other names of :mod:`.memory`."""

from .memory import Blocks as JaxBlocks

__all__ = ["JaxBlocks"]
