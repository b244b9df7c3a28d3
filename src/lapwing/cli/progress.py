"""Progress of a run on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import sys
from typing import TextIO

_WIDTH = 24


def bar(done: int, total: int) -> str:
    """ "[######..................]" """
    filled = _WIDTH * max(0, min(done, total)) // max(total, 1)
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"


class Progress:
    """``step(text)`` shows what begins now; ``clear()`` removes the bar before something else is printed."""

    def __init__(self, total: int, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.total = max(total, 1)
        self.done = 0
        self.stream = stream or sys.stderr or io.StringIO()  # stderr may be closed
        self.terminal = self.stream.isatty()
        self.quiet = quiet

    def step(self, text: str) -> None:
        self.done += 1
        if self.terminal:
            self.stream.write(f"\r\x1b[K{bar(self.done - 1, self.total)} {self.done}/{self.total} {text}")
        elif not self.quiet:
            self.stream.write(f"{self.done}/{self.total} {text}\n")
        self.stream.flush()

    def clear(self) -> None:
        if self.terminal:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
