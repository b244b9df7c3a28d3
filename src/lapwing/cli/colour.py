"""Coloured text on a terminal, by rich if it is installed; plain text everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

Say = Callable[..., None]  # say(text, style="")


def printer() -> Say:
    """A function ``say(text, style="")`` that prints a line. Pipes, files and NO_COLOR get plain text."""
    if sys.stdout is None or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return _plain
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return _plain
    console = Console(highlight=False, soft_wrap=True)
    return lambda text="", style="": console.print(Text(text, style))


def _plain(text: str = "", style: str = "") -> None:
    print(text, flush=True)
