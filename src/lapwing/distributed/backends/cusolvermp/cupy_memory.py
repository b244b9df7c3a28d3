"""Other names of :mod:`.memory`."""

from .memory import DeviceMemory as CupyMemory

__all__ = ["CupyMemory"]
