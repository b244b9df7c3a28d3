"""The live view: a thread of the hub writes ``status.json``; a terminal or a local web page shows it.

`publisher` runs inside the simulation; everything else here only reads the output folder, in another process.
"""

from .publisher import STATUS_FILE, Live

__all__ = ["STATUS_FILE", "Live"]
