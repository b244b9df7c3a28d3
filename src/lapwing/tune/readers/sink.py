"""Readers put products and errors into a Sink; lines and pieces of text come from files here."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..gemm import Call, Gemm
from .log import BadLine

LONGEST_LINE = 2**20  # bytes; a line about a kernel has 2 kB
_GROWTH = 100  # a packed file may unpack to this many times its size; real logs and traces grow 10 to 30 times
_ALWAYS = 2**26  # bytes that any file may unpack to
_NAMED = 1000  # bad lines of one file that are listed one by one
_SHOWN = 200  # characters of a bad line that are kept


@dataclass
class Sink:
    """The contents of one file. ``tables`` separates what several writers logged about the same calls."""

    file: str
    tables: dict[str, dict[Gemm, Call]] = field(default_factory=dict)
    problems: list[BadLine] = field(default_factory=list)
    architectures: set[str] = field(default_factory=set)  # AMD GPUs that the file names
    more: int = 0

    def add(self, table: str, gemm: Gemm, count: int, line: int, remark: str = "") -> None:
        calls = self.tables.setdefault(table, {})
        if gemm in calls:
            calls[gemm] = Call(gemm, calls[gemm].count + count, calls[gemm].source)
        else:
            calls[gemm] = Call(gemm, count, f"{self.file}:{line}" + (f" ({remark})" if remark else ""))

    def bad(self, line: int, text: str, reason: str) -> None:
        if len(self.problems) < _NAMED:
            self.problems.append(BadLine(self.file, line, text[:_SHOWN], reason))
        else:
            self.more += 1

    @property
    def above(self) -> list[Call]:
        """Calls of cuBLAS. It passes most of them to cuBLASLt, which may have logged them too, here or in another file."""
        return list(self.tables.get("cublas", {}).values())

    def close(self) -> tuple[list[Call], list[Call]]:
        """Products that were counted, and products that were only listed."""
        if self.more:
            self.problems.append(BadLine(self.file, 0, "", f"{self.more} more lines that were not understood"))
            self.more = 0
        counted: dict[Gemm, Call] = {}
        for name, table in self.tables.items():
            if name not in ("listed", "cublas"):
                for gemm, call in table.items():
                    # with masks 64 and 128 together, two tables of one file have the same calls
                    if gemm not in counted or counted[gemm].count < call.count:
                        counted[gemm] = call
        return list(counted.values()), list(self.tables.get("listed", {}).values())


class LineReader:
    """One kind of log, line by line."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def take(self, number: int, line: str) -> bool:
        """Read a line of this kind and return True; False for any other line. ValueError says why it is not a product."""
        raise NotImplementedError

    def close(self) -> None:
        """End of the file."""


class Unreadable(Exception):
    """The whole file cannot be read; the message says why."""


@contextmanager
def open_log(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file as bytes, and unpack it if it is packed."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable("is a folder; name the files in it")
        pipe = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/", "/proc/"))  # a shell's <(command)
        if not (stat.S_ISREG(mode) or pipe):
            raise Unreadable("is not a plain file")
        raw: io.BufferedReader = io.BufferedReader(io.FileIO(path), 2**16)
    except FileNotFoundError:
        raise Unreadable("the file does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: the name contains a zero byte
        raise Unreadable(getattr(error, "strerror", None) or str(error)) from error
    with raw:
        if peek(raw)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield io.BufferedReader(_Limited(unpacked, path.stat().st_size), 2**16)
        else:
            yield raw


def peek(file: io.BufferedReader) -> bytes:
    try:
        return file.peek(4096)[:4096]
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"cannot be read: {error}") from error


def lines(file: io.BufferedReader, sink: Sink) -> Iterator[tuple[int, str]]:
    """Number and text of each line. A line that is too long is reported and skipped, without being held in memory."""
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


def pieces(file: io.BufferedReader, sink: Sink) -> Iterator[str]:
    """The text of a file, piece by piece, as far as it can be read."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while piece := file.read(2**20):
            yield decoder.decode(piece)
    except (OSError, EOFError, zlib.error) as error:
        sink.bad(0, "", f"cannot be read further: {error}")
    yield decoder.decode(b"", final=True)


class _Limited(io.RawIOBase):
    """An unpacked file that ends with an error where it has grown too much."""

    def __init__(self, unpacked: gzip.GzipFile, packed: int) -> None:
        self._unpacked, self._packed = unpacked, packed
        self._left = max(_ALWAYS, _GROWTH * packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise OSError(
                f"it unpacks from {self._packed} to more than {max(_ALWAYS, _GROWTH * self._packed) >> 20} MiB, which no log "
                "does; the rest is ignored. If it is right, unpack it with gunzip first"
            )
        piece = self._unpacked.read(min(len(buffer), self._left))
        self._left -= len(piece)
        buffer[: len(piece)] = piece
        return len(piece)


def is_file(text: str) -> bool:
    try:
        return len(text) < 4096 and os.path.lexists(text)
    except ValueError:
        return False
