"""Other names of :mod:`.memory`."""

from .memory import Blocks
from .memory import DeviceMemory as TorchMemory

__all__ = ["Blocks", "TorchMemory"]
