"""Where readers put what they find, and where lines come from."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..gemm import Call, Gemm
from .log import BadLine

__all__ = ["LineReader", "Sink", "Unreadable", "is_file", "lines", "open_log", "peek", "whole"]

LONGEST_LINE = 2**20  # a kernel's line has 2 kB
LARGEST_TRACE = 2**32  # unpacked
_NAMED = 1000  # bad lines of one file that are named one by one
_SHOWN = 200  # characters of a bad line that are kept


@dataclass
class Sink:
    """What one file held. ``tables`` keeps apart what several writers logged of the same calls."""

    file: str
    tables: dict[str, dict[Gemm, Call]] = field(default_factory=dict)
    problems: list[BadLine] = field(default_factory=list)
    more: int = 0

    def add(self, table: str, gemm: Gemm, count: int, line: int, remark: str = "") -> None:
        found = self.tables.setdefault(table, {})
        if gemm in found:
            found[gemm] = Call(gemm, found[gemm].count + count, found[gemm].source)
        else:
            found[gemm] = Call(gemm, count, f"{self.file}:{line}" + (f" ({remark})" if remark else ""))

    def bad(self, line: int, text: str, reason: str) -> None:
        if len(self.problems) < _NAMED:
            self.problems.append(BadLine(self.file, line, text[:_SHOWN], reason))
        else:
            self.more += 1

    @property
    def above(self) -> list[Call]:
        """What cuBLAS was asked for. It hands most of it to cuBLASLt, which may have logged it too, here or elsewhere."""
        return list(self.tables.get("cublas", {}).values())

    def close(self) -> tuple[list[Call], list[Call]]:
        """Products that were counted, and products that were only listed."""
        if self.more:
            self.problems.append(BadLine(self.file, 0, "", f"{self.more} more lines that are not understood"))
            self.more = 0
        counted: dict[Gemm, Call] = {}
        for name, table in self.tables.items():
            if name not in ("listed", "cublas"):
                for gemm, call in table.items():
                    # two tables of one file saw the same calls: masks 64 and 128
                    if gemm not in counted or counted[gemm].count < call.count:
                        counted[gemm] = call
        return list(counted.values()), list(self.tables.get("listed", {}).values())


class LineReader:
    """One kind of log, line by line."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def take(self, number: int, line: str) -> bool:
        """Whether the line is of this kind; then it has been dealt with."""
        raise NotImplementedError

    def close(self) -> None:
        """No more lines."""


class Unreadable(Exception):
    """A whole file that cannot be read, and why."""


@contextmanager
def open_log(path: Path) -> Iterator[io.BufferedReader]:
    """The file as bytes, unpacked if it is packed."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable("is a folder; name the files in it")
        pipe = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/", "/proc/"))  # a shell's <(command)
        if not (stat.S_ISREG(mode) or pipe):
            raise Unreadable("is not a plain file")
        raw: io.BufferedReader = io.BufferedReader(io.FileIO(path), 2**16)
    except FileNotFoundError:
        raise Unreadable("there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise Unreadable(getattr(error, "strerror", None) or str(error)) from error
    with raw:
        if peek(raw)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield io.BufferedReader(unpacked, 2**16)
        else:
            yield raw


def peek(file: io.BufferedReader) -> bytes:
    try:
        return file.peek(4096)[:4096]
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"cannot be read: {error}") from error


def lines(file: io.BufferedReader, sink: Sink) -> Iterator[tuple[int, str]]:
    """Numbers and lines. A line that is too long is named and passed over, without ever being held."""
    number = 0
    try:
        while piece := file.readline(LONGEST_LINE):
            number += 1
            if len(piece) == LONGEST_LINE and not piece.endswith(b"\n"):
                sink.bad(number, piece[:_SHOWN].decode("utf-8", "replace"), f"is longer than {LONGEST_LINE} bytes")
                while len(piece) == LONGEST_LINE and not piece.endswith(b"\n"):
                    piece = file.readline(LONGEST_LINE)
                continue
            yield number, piece.decode("utf-8", "replace").strip("\r\n\ufeff")
    except (OSError, EOFError, zlib.error) as error:
        sink.bad(number, "", f"cannot be read further: {error}")


def whole(file: io.BufferedReader, sink: Sink) -> str:
    """All of it, as far as it can be read."""
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := file.read(2**20):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST_TRACE:
                sink.bad(0, "", f"has more than {LARGEST_TRACE >> 30} GiB; the rest is not read")
                break
    except (OSError, EOFError, zlib.error) as error:
        sink.bad(0, "", f"cannot be read further: {error}")
    return b"".join(pieces).decode("utf-8", "replace").lstrip("\ufeff")


def is_file(text: str) -> bool:
    try:
        return len(text) < 4096 and os.path.lexists(text)
    except ValueError:
        return False
