"""Read and write the small files of a tuning folder: whole or not at all, and never more than a reader can hold."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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


T = TypeVar("T")


def from_json(kind: type[T], values: object, schema: int | None = None) -> T:
    """A dataclass from the values of JSON. ValueError names the field that is missing or has the wrong type.

    With a schema, fields that it does not have are ignored; without one they are refused.
    """
    if not isinstance(values, dict):
        raise ValueError(f"it is a {type(values).__name__}, not an object")
    if schema is not None and values.get("schema") != schema:
        raise ValueError(f"it has schema {values.get('schema')!r}; this version reads {schema}")
    if schema is None and (unknown := set(values) - set(_hints(kind))):  # type: ignore[arg-type]
        raise ValueError(f"unknown fields of a {kind.__name__}: {', '.join(sorted(map(str, unknown)))}")
    known = {name: _checked(name, values[name], hint) for name, hint in _hints(kind).items() if name in values}  # type: ignore[arg-type]
    try:
        return kind(**known)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error).partition("() ")[2] or str(error)) from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value as the type ``hint``, if JSON can mean that."""
    if type(value) is hint or hint is Any:
        return value
    origin, inner = _parts(hint)
    if origin in (UnionType, Union):
        if type(value) in inner or (type(value) is bool and int in inner and str in inner):  # a value of a configuration
            return value
        return _checked(name, value, next(h for h in inner if h is not NoneType))
    if origin is Literal and value in inner:
        return value
    if is_dataclass(hint):
        return from_json(hint, value)  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list):
        hints = list(inner[:1]) * len(value) if inner[1:] == (...,) else list(inner)
        if len(hints) == len(value):
            return tuple(_checked(name, v, h) for v, h in zip(value, hints, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {key: _checked(name, v, inner[1]) for key, v in value.items()}
    if hint is float and type(value) is int:
        return value
    raise ValueError(f"{name} is {value!r}")


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
        line = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        line = None
    return int(line[1], 8) if line else 0o022


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}")
