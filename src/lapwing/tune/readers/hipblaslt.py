"""hipBLASLt's logs: masks 64 and 128 (YAML with an entry and a count for each product) and 32 (a command for each call)."""

from __future__ import annotations

import re

from ..gemm import Gemm
from .sink import LineReader, Sink
from .values import fold, product
from .values import number as as_number

_FIELD = re.compile(r"\b([A-Za-z_]\w*)\s*:\s*([^,{}]*)")  # \b: the search starts once for each word, however long it is
_BLOCK_START = re.compile(r"\s*-\s+([A-Za-z_]\w*):(?:\s+(.*))?$")
_BLOCK_FIELD = re.compile(r"\s+([A-Za-z_]\w*):(?:\s+(.*))?$")
_LONGEST_ENTRY = 200  # lines that one entry may have
# options of hipblaslt-bench with another short form, and options without a value
_SHORT = {"i": "iters", "j": "colditers", "r": "precision", "f": "function"}
_ALONE = ("biasvector", "gradient", "usee", "groupedgemm", "scalealphavector", "amaxd")
_EXTENDED = ("kernelname", "solutionname")  # only mask 128 prints them


def yaml_fields(text: str) -> dict[str, str]:
    """Fields of ``{ key: value, ... }``. Empty ones, which some versions print (": ," and ", ,"), are dropped."""
    return {fold(name): value.strip() for name, value in _FIELD.findall(text)}


class HipblasltReader(LineReader):
    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.open: list[str] = []  # lines of an entry that has not ended yet
        self.start = 0
        self.block: dict[str, str] | None = None  # an entry with one field on each line
        self.known: dict[tuple[tuple[str, str], ...], tuple[Gemm, str]] = {}

    def take(self, number: int, line: str) -> bool:
        if self.open:
            return self._continue(number, line)
        if self.block is not None:
            if match := _BLOCK_FIELD.match(line):
                self.block[fold(match[1])] = match[2] or ""
                return True
            self._end_block()
        if "function:" in line and "{" in line:
            # the program may have printed before the entry on the same line
            return self._begin(number, line[line.index("{") :])
        if line.lstrip().startswith("- {"):
            return self._begin(number, line)
        if "hipblaslt-bench " in line:
            self._bench(number, line)
            return True
        if match := _BLOCK_START.match(line):
            self.start, self.block = number, {fold(match[1]): match[2] or ""}
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
        """Continue an entry that has several lines. If another entry begins first, this one was cut off."""
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
            if piece is first or "{" in piece:  # more than one if two processes wrote at the same time
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
