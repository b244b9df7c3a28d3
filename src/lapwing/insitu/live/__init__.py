"""The live view: a thread of the hub writes ``status.json``, and a terminal or a local web page shows it.

`publisher`, `drawing` and `plain` run inside the simulation; the other modules read the output folder from another process.
"""

from .publisher import STATUS_FILE, Live

__all__ = ["STATUS_FILE", "Live"]
