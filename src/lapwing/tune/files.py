"""Read and write the small files of a tuning folder: whole or not at all, and never more than a reader can hold."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_LARGEST = 1 << 20  # bytes of a JSON file; an entry has about a thousand


def write_atomic(path: Path, text: str) -> Path:
    """Write the whole file or nothing: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk does not say which file
            error.filename = str(path)
        raise
    return path


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> Path:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return write_atomic(path, out.getvalue())


def write_json(path: Path, values: dict[str, Any]) -> Path:
    return write_atomic(path, json.dumps(values, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. ValueError for anything else: too large, cut off, not an object, with NaN in it."""
    if not path.is_file():
        path.stat()  # raises the OSError that says why
        raise ValueError("it is not a plain file")  # reading a pipe could wait for ever
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} bytes")
    values = parse_json(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}, not an object")
    return values


def parse_json(text: str, **options: Any) -> Any:
    """``json.loads``, with ValueError also for text that is nested too deeply to be parsed."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_writable(folder: Path, operation: str) -> None:
    """Raise ValueError when nothing can be written there, before minutes are spent on results that would be lost."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"{operation}: {folder} cannot be written: {reason}\nhint: name another folder, or free some space"
        ) from error


def _umask() -> int:
    # Python can only read it by setting it, which other threads would see; so it is read from the kernel
    try:
        found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        found = None
    return int(found[1], 8) if found else 0o022


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}")
