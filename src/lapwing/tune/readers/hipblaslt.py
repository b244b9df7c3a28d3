"""hipBLASLt's logs: masks 64 and 128 (YAML, an entry for each product with its count) and 32 (a command for each call)."""

from __future__ import annotations

import re

from ..gemm import Gemm
from .sink import LineReader, Sink
from .values import fold, product
from .values import number as as_number

__all__ = ["HipblasltReader", "yaml_fields"]

_FIELD = re.compile(r"\b([A-Za-z_]\w*)\s*:\s*([^,{}]*)")  # \b: one start for each word, however long
_BLOCK_START = re.compile(r"\s*-\s+([A-Za-z_]\w*):(?:\s+(.*))?$")
_BLOCK_FIELD = re.compile(r"\s+([A-Za-z_]\w*):(?:\s+(.*))?$")
_LONGEST_ENTRY = 200  # lines over which one entry may be spread
# options of hipblaslt-bench that stand alone, or whose short form differs
_SHORT = {"i": "iters", "j": "colditers", "r": "precision", "f": "function"}
_ALONE = ("biasvector", "gradient", "usee", "groupedgemm", "scalealphavector", "amaxd")
_EXTENDED = ("kernelname", "solutionname")  # only mask 128 prints them


def yaml_fields(text: str) -> dict[str, str]:
    """Fields of ``{ key: value, ... }``. What some versions print empty (": ," and ", ,") falls out by itself."""
    return {fold(name): value.strip() for name, value in _FIELD.findall(text)}


class HipblasltReader(LineReader):
    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.open: list[str] = []  # the lines of an entry that is not closed yet
        self.start = 0
        self.block: dict[str, str] | None = None  # an entry with one field a line
        self.known: dict[tuple[tuple[str, str], ...], tuple[Gemm, str]] = {}

    def take(self, number: int, line: str) -> bool:
        if self.open:
            return self._continue(number, line)
        if self.block is not None:
            if found := _BLOCK_FIELD.match(line):
                self.block[fold(found[1])] = found[2] or ""
                return True
            self._end_block()
        if "function:" in line and "{" in line:
            # programs print too: the entry may begin anywhere on the line
            return self._begin(number, line[line.index("{") :])
        if line.lstrip().startswith("- {"):
            return self._begin(number, line)
        if "hipblaslt-bench " in line:
            self._bench(number, line)
            return True
        if found := _BLOCK_START.match(line):
            self.start, self.block = number, {fold(found[1]): found[2] or ""}
            return True
        return False

    def close(self) -> None:
        if self.open:
            self._cut()
        self._end_block()

    def _begin(self, number: int, text: str) -> bool:
        if "}" in text:
            self._entry(number, text)
        else:
            self.open, self.start = [text], number
        return True

    def _continue(self, number: int, line: str) -> bool:
        """An entry over several lines, as YAML writers wrap them; a new entry shows that this one was cut off."""
        if "{" in line or len(self.open) >= _LONGEST_ENTRY:
            self._cut()
            return self.take(number, line)
        self.open.append(line)
        if "}" in line:
            text, self.open = " ".join(self.open), []
            self._entry(self.start, text)
        return True

    def _cut(self) -> None:
        first, self.open = self.open[0], []
        self.sink.bad(self.start, first, "the entry is cut off")

    def _end_block(self) -> None:
        if self.block is not None:
            fields, self.block = self.block, None
            self._product(self.start, str(fields), fields)

    def _entry(self, number: int, line: str) -> None:
        first, *more = line.split("}")
        for piece in (first, *more):
            if piece is first or "{" in piece:  # more than one: two processes wrote at once
                self._product(number, line, yaml_fields(piece))

    def _product(self, number: int, line: str, fields: dict[str, str]) -> None:
        extended = any(name in fields for name in _EXTENDED)
        count = fields.pop("callcount", "") or "1"
        for name in (*_EXTENDED, "solutionindex"):
            fields.pop(name, None)
        self._add("extended" if extended else "profile", number, line, fields, count)

    def _bench(self, number: int, line: str) -> None:
        fields: dict[str, str] = {}
        name = ""
        for word in line[line.index("hipblaslt-bench ") :].split()[1:]:
            if word.startswith("-") and not word[1:2].isdigit():
                name = word.lstrip("-")
                name = fold(_SHORT.get(name, name))
                fields[name] = "1" if name in _ALONE else ""
            elif name:
                fields[name], name = word, ""
        self._add("bench", number, line, fields, "1")

    def _add(self, table: str, number: int, line: str, fields: dict[str, str], count: str) -> None:
        try:
            if fields.get("function", "matmul").strip("\"' ") != "matmul":
                raise ValueError(f"function is {fields['function'][:40]!r}, not matmul")
            key = tuple(fields.items())
            if key not in self.known:
                gemm, _, remark = product(fields)
                self.known[key] = gemm, remark
            gemm, remark = self.known[key]
            self.sink.add(table, gemm, as_number(count, "call_count", 1), number, remark)
        except ValueError as error:
            self.sink.bad(number, line, str(error))
