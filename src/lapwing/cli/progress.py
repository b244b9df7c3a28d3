"""Progress of a run on stderr: a bar, or the seconds of one long step. Only on a terminal: a pipe or a log stays quiet."""

from __future__ import annotations

import io
import logging
import shutil
import sys
import threading
from time import monotonic
from types import TracebackType
from typing import TextIO

_WIDTH = 24
MINUTE = 60.0  # between two plain lines of a run that may take an hour, where there is no terminal
_PATIENCE = 0.5  # seconds before a step counts as long


def bar(done: int, total: int) -> str:
    """ "[######..................]" """
    filled = _WIDTH * max(0, min(done, total)) // max(total, 1)
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"


class Line:
    """One line of a terminal that is written again and again; nothing elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr or io.StringIO()  # stderr may be closed
        self.terminal = self.stream.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        if self.terminal:
            if logging.lastResort:  # it prints warnings where no handler was set up
                logging.lastResort.addFilter(self._give_way)  # once: the same filter is not added again
            self._shown = True
            width = shutil.get_terminal_size().columns - 1  # a longer one would wrap, and could not be removed
            self.stream.write(f"\r\x1b[K{text[:width]}")
            self.stream.flush()

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def _give_way(self, record: logging.LogRecord) -> bool:
        """A warning is not printed behind the line."""
        self.clear()
        return True


class Progress(Line):
    """``step(text)`` shows what begins now; ``clear()`` removes the bar before something else is printed.

    ``every``: seconds between two plain lines where there is no terminal; none by default.
    """

    def __init__(self, total: int, stream: TextIO | None = None, *, every: float | None = None) -> None:
        super().__init__(stream)
        self.total = max(total, 1)
        self.done = 0
        self.every = every
        self.said = monotonic()

    def step(self, text: str) -> None:
        self.done += 1
        place = f"{self.done}/{self.total} {text}"
        self.show(f"{bar(self.done - 1, self.total)} {place}")
        if not self.terminal and self.every is not None and monotonic() - self.said >= self.every:
            self.said = monotonic()
            self.stream.write(f"{place}\n")
            self.stream.flush()


class Waiting(Line):
    """``with Waiting("drawing the pictures"):`` shows the text and the seconds that have passed, from half a second on."""

    def __init__(self, text: str, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._text = text
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        begun = monotonic()
        while not self._over.wait(_PATIENCE):
            self.show(f"{self._text} ... {monotonic() - begun:.0f} s")

    def __enter__(self) -> None:
        if self.terminal:
            self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self.terminal:
            self._thread.join()
            self.clear()
