"""Read the state of a run: its ``status.json``, whether it is still alive, and its pictures."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import time as clock
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .plain import number
from .publisher import FORMAT, STATUS_FILE

_LARGEST = 8 << 20  # bytes of status.json; usually a few thousand
_LARGEST_PICTURE = 64 << 20
_PICTURES = 24
_PICTURE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,120}\.png")
_SILENT = 5.0  # seconds without a heartbeat
_ENDED = ("finished", "stopped", "failed")


@dataclass(frozen=True)
class Picture:
    name: str
    version: int  # changes with the file


@dataclass(frozen=True)
class View:
    """The state of a folder at one time. ``state``: waiting, starting, running, silent, finished, stopped or failed."""

    folder: Path
    state: str
    message: str = ""
    age: float = 0.0  # seconds since the last sign of life
    status: dict[str, Any] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in _ENDED


class Reader:
    """Reads an output folder again and again.

    A killed run cannot report that. It is called silent when its heartbeat has not changed for some seconds. The first reading
    compares it with the clock of this machine; later readings count from the last change, because clocks may differ.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._beat: Any = None
        self._seen = 0.0  # when this heartbeat was first read, on the monotonic clock
        self._first_age = 0.0

    def read(self) -> View:
        status, why = self._load()
        if status is None:
            return View(self.folder, "waiting", why)
        state, message = str(status.get("state")), str(status.get("message") or "")
        age = self._age(status)
        limit = max(_SILENT, 4 * (number(status.get("period")) or 0.0))
        if state not in _ENDED and age > limit:
            message = f"no sign of life for {_duration(age)}: it was killed, or it hangs" + (f" ({message})" if message else "")
            state = "silent"
        elif state not in (*_ENDED, "starting"):
            state = "running"
        return View(self.folder, state, message, age, status, pictures(self.folder))

    def _load(self) -> tuple[dict[str, Any] | None, str]:
        try:
            data = _read(self.folder / STATUS_FILE, _LARGEST)
            # NaN and 1e999 are no valid JSON, and a browser would refuse what the page passes on
            status = json.loads(data, parse_constant=lambda _: None, parse_float=_finite)
        except FileNotFoundError:
            if not self.folder.is_dir():
                return None, f"there is no folder {self.folder} yet"
            return None, f"no {STATUS_FILE} in {self.folder} yet; was the run started with live=True or LAPWING_INSITU_LIVE=1?"
        except (OSError, ValueError, RecursionError) as error:
            return None, f"{self.folder / STATUS_FILE} cannot be read: {error}"
        if not isinstance(status, dict) or status.get("format") != FORMAT:
            return None, f"{self.folder / STATUS_FILE} belongs to another version of lapwing"
        return status, ""

    def _age(self, status: dict[str, Any]) -> float:
        beat, now = (status.get("heartbeat"), status.get("beat"), status.get("pid")), clock.monotonic()
        if beat != self._beat:
            first, self._beat, self._seen = self._beat is None, beat, now
            self._first_age = max(clock.time() - (number(status.get("heartbeat")) or 0.0), 0.0) if first else 0.0
        return self._first_age + now - self._seen


def pictures(folder: Path) -> tuple[Picture, ...]:
    """The PNG files of the folder, sorted by name. Links are left out: they could point anywhere."""
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _PICTURE_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    files.append(Picture(entry.name, entry.stat(follow_symlinks=False).st_mtime_ns))
    except OSError:
        return ()
    return tuple(sorted(files, key=lambda p: p.name)[:_PICTURES])


def open_picture(folder: Path, name: str) -> bytes | None:
    """The bytes of one of `pictures`, or None."""
    if not _PICTURE_NAME.fullmatch(name):
        return None
    try:
        data = _read(folder / name, _LARGEST_PICTURE)
    except (OSError, ValueError):
        return None
    return data if data.startswith(b"\x89PNG\r\n\x1a\n") else None


def _read(path: Path, largest: int) -> bytes:
    """The content of a regular file of limited size; links, pipes and devices are refused."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError("it is too long")
    return data


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} days"
