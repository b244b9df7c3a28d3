"""Processes that measure on one GPU take turns with it."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO


class Turn:
    """Held by one process at a time: a lock on a file that all of them name. It ends with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> None:
        import fcntl  # not on Windows

        self._file = self._path.open("a")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
