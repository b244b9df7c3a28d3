"""The live view in a terminal; where the output is no terminal, as plain lines."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
import time as clock
from typing import Any, TextIO

from . import words
from .reader import Reader, View

_COLOURS = {"running": "32", "silent": "31;1", "finished": "32;1", "stopped": "33;1", "failed": "31;1"}
_SPARKS = " ▁▂▃▄▅▆▇█"
_SPARKS_ASCII = " .:-=+*#%@"
_SIGMAS = 12
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def watch(reader: Reader, *, interval: float = 1.0, once: bool = False, stream: TextIO | None = None) -> int:
    """Show the run until it ends. Returns 1 if the run failed, or with ``once`` if there is no run to show; else 0."""
    stream = stream or sys.stdout
    screen = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if once:
        view = reader.read()
        print(render(view, stream, colour=screen), file=stream, flush=True)
        return 1 if view.state == "waiting" else 0
    return _on_screen(reader, interval, stream) if screen else _in_lines(reader, interval, stream)


def _on_screen(reader: Reader, interval: float, stream: TextIO) -> int:
    stream.write("\x1b[?25l")  # hide the cursor
    height = 0
    try:
        while True:
            view = reader.read()
            text = render(view, stream, colour=True)
            lines = text.split("\n")[: max(shutil.get_terminal_size().lines - 1, 3)]
            back = f"\x1b[{height}A\r" if height else ""
            stream.write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
            stream.flush()
            height = len(lines)
            if view.ended:
                return int(view.state == "failed")
            clock.sleep(interval)
    finally:
        stream.write("\x1b[?25h")
        stream.flush()


def _in_lines(reader: Reader, interval: float, stream: TextIO) -> int:
    """Print a line when something has changed, and the whole view at the end."""
    last = ""
    while True:
        view = reader.read()
        if view.ended:
            print(render(view, stream, colour=False), file=stream, flush=True)
            return int(view.state == "failed")
        state, message = words.headline(view)
        facts = ", ".join(f"{name} {value}" for name, value in words.facts(view) if not name.startswith(("largest", "share")))
        line = f"{state}: {message}" if view.state in ("waiting", "silent") else f"{state}: {facts}"
        # the message of a silent run contains its age, which always changes
        key = state if view.state == "silent" else line
        if key != last:
            print(_writable(line, stream), file=stream, flush=True)
            last = key
        clock.sleep(interval)


def render(view: View, stream: TextIO | None = None, *, colour: bool = False) -> str:
    """The whole view, no wider than the terminal."""
    stream = stream or sys.stdout
    width = max(min(shutil.get_terminal_size((100, 24)).columns, 120), 40)
    fancy = "utf" in (getattr(stream, "encoding", None) or "").lower()
    paint = _painter(colour and not os.environ.get("NO_COLOR"))
    state, message = words.headline(view)
    folder = words.clean(str(view.folder))[-(width - 36) :]
    lines = [f"{paint('1', 'lapwing insitu')}  {folder}  {paint(_COLOURS.get(view.state, '33'), state)}"]
    if message:
        lines += textwrap.wrap(message, width, initial_indent="  ", subsequent_indent="  ", **_WHOLE_WORDS)
    facts = words.facts(view)
    if facts:
        label = max(len(name) for name, _ in facts)
        lines += ["", *(f"  {name:<{label}}  {value}" for name, value in facts)]
    rows = words.analyses(view)
    if rows:
        name = min(max(len(r.name) for r in rows), 24)
        lines += ["", f"  {'analysis':<{max(name, 8)}}  {'per step':>9}  {'share':>6}  {'errors':>6}"]
        for r in rows:
            line = f"  {r.name[:name]:<{max(name, 8)}}  {r.ms:>9}  {100 * r.share:>4.1f} %  {r.errors:>6}  {r.note}"[:width]
            lines.append(paint("31", line) if r.errors else line)
    lines += _spectrum(view, width, fancy) + _modes(view, width, fancy)
    traceback = words.errors(view)
    if traceback:
        lines += ["", paint("31", "last error"), *(f"  {line[: width - 2]}" for line in traceback.split("\n")[-6:])]
    if view.pictures:
        lines += ["", "pictures: " + ", ".join(p.name for p in view.pictures)]
    return _writable("\n".join(lines), stream)


def _spectrum(view: View, width: int, fancy: bool) -> list[str]:
    """Draw the singular values as bars, on a logarithmic scale."""
    sigma = [s for s in words.numbers(view.status.get("sigma")) if s > 0][:_SIGMAS]
    if not sigma:
        return []
    room = width - 20
    top, low = math.log10(max(sigma)), math.log10(min(sigma))
    span = max(top - low, 1.0)
    bar = "█" if fancy else "#"
    lines = ["", "  singular values (logarithmic)"]
    for i, s in enumerate(sigma):
        filled = 1 + round((room - 1) * (math.log10(s) - top + span) / span)
        lines.append(f"  {i + 1:>2} {s:>11.5g}  {bar * filled}")
    return lines


def _modes(view: View, width: int, fancy: bool) -> list[str]:
    """Draw each line of the sketches as one row of small bars."""
    lines: list[str] = []
    sparks = _SPARKS if fancy else _SPARKS_ASCII
    drawings = view.status.get("drawings")
    for drawing in drawings if isinstance(drawings, list) else ():
        if not isinstance(drawing, dict) or drawing.get("kind") != "lines" or not isinstance(drawing.get("lines"), list):
            continue
        lines += ["", f"  {words.clean(str(drawing.get('title')))[: width - 2]}"]
        labels: Any = drawing.get("labels")
        labels = labels if isinstance(labels, list) else []
        for i, values in enumerate(drawing["lines"][:4]):
            numbers = words.numbers(values)
            if numbers:
                label = words.clean(str(labels[i]))[:10] if i < len(labels) else ""
                lines.append(f"  {label:<10} {_sparkline(numbers, width - 14, sparks)}")
    return lines


def _sparkline(values: list[float], room: int, sparks: str) -> str:
    count = min(room, len(values))
    picked = [values[i * len(values) // count] for i in range(count)]
    low, high = min(values), max(values)
    scale = (len(sparks) - 2) / (high - low) if high > low else 0.0
    return "".join(sparks[1 + round((v - low) * scale)] for v in picked)


def _painter(on: bool) -> Any:
    return (lambda code, text: f"\x1b[{code}m{text}\x1b[0m") if on else (lambda _, text: text)


def _writable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
