"""What the user typed wrong, said in one line and a hint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NoReturn

from ..core.problem import DEVICES, DTYPES

__all__ = ["Parser", "UsageError", "parse_dtypes", "parse_shape", "parse_sizes", "parse_words"]


class UsageError(Exception):
    """Ends the program with exit code 2; a second line of the message is the hint."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\nhint: {self.prog} --help")


def parse_shape(text: str) -> tuple[int, ...]:
    """ "1000x64x64" or "1000,64,64"."""
    try:
        shape = tuple(int(part) for part in text.lower().replace("×", "x").replace(",", "x").split("x"))
    except ValueError:
        shape = (-1,)
    if any(n < 0 for n in shape):
        raise UsageError(f"shape {text!r} is not a list of sizes\nhint: write it as 64x64, or 1000x64x64 for a batch")
    return shape


def parse_sizes(text: str, what: str = "--sizes") -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        sizes = ()
    if not sizes or any(n < 1 for n in sizes):
        raise UsageError(f"{what} {text!r} is not a list of positive numbers\nhint: for example {what} 10,100,1000")
    return sizes


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Names by commas; "double" and "single" are understood too."""
    short = {"double": "float64", "single": "float32", "float": "float32"}
    return parse_words(",".join(short.get(part.strip(), part) for part in text.split(",")), DTYPES, "dtype")


def parse_words(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    known = tuple(known)
    for word in words or ("",):
        if word not in known:
            raise UsageError(f"{what} {word!r} is not known\nhint: use one of {', '.join(known)}")
    return words


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the arrays are (default: cpu)")
