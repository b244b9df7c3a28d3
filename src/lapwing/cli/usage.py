"""Shared by the commands: parsing of arguments, and errors in one line with a hint."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from ..core.problem import DEVICES, DTYPES


class UsageError(Exception):
    """Ends the program with exit code 2; a second line of the message is the hint."""


# a command line to start from, for the commands that need arguments: shown by --help, and when an argument is missing
_EXAMPLES = {
    "lapwing": "lapwing demo",
    "lapwing bench": "lapwing bench cholesky --sizes 4,16,64 --batch 1000 --peers",
    "lapwing explain": "lapwing explain eigh --shape 1000x64x64",
    "lapwing insitu watch": "lapwing insitu watch FOLDER, the output folder of the run",
    "lapwing kernels": "lapwing kernels build --arch sm_90",
    "lapwing kernels info": "lapwing kernels info FILE.pack",
    "lapwing launch": "lapwing launch -n 4 script.py",
    "lapwing run": "lapwing run --install torch,numpy script.py",
    "lapwing tune": "lapwing tune all gemms.csv --workdir W --budget 30m",
    "lapwing tune all": "lapwing tune all gemms.csv --workdir W --budget 30m",
    "lapwing tune record": "lapwing tune record -o gemms.csv -- python serve.py",
    "lapwing tune read": "lapwing tune read gemms.csv",
    "lapwing tune configure": "lapwing tune configure gemms.csv --workdir W",
    "lapwing tune run": "lapwing tune run W --budget 30m",
    "lapwing tune export": "lapwing tune export W/final --format vllm -o FOLDER",
    "lapwing tune merge": "lapwing tune merge A/final B/final -o C",
    "lapwing tune amd": "lapwing tune amd gather W",
    "lapwing tune amd merge": "lapwing tune amd merge BASE W/final OUT",
}


class Parser(argparse.ArgumentParser):
    """Raises UsageError, in words of our own, instead of printing the whole usage."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = _EXAMPLES.get(self.prog, "")
        self.epilog = self.example and f"For example: {self.example}"

    def error(self, message: str) -> NoReturn:
        help_text, command = f"{self.prog} --help", self.prog.removeprefix("lapwing ")
        if found := re.fullmatch(r"argument (.+?): invalid choice: '?(.*?)'? \(choose from (.*)\)", message, re.S):
            choices = [word.strip(" '") for word in found[3].split(",")]
            meant = _meant(found[2], choices)
            if " | " in found[1]:
                raise UsageError(f"there is no command {found[2]!r}\nhint: {meant}{help_text} lists all commands")
            raise UsageError(f"{found[1]} {found[2]!r} is not known\nhint: {meant}use one of {', '.join(choices)}")
        if found := re.fullmatch(r"argument (.+?): invalid (int|float) value: (.*)", message):
            raise UsageError(f"{found[1]} {found[3]} is not a {'whole ' * (found[2] == 'int')}number\nhint: {help_text}")
        if found := re.fullmatch(r"the following arguments are required: (.*)", message):
            missing = "a command" if " | " in found[1] else found[1].replace(", ", " and ")
            verb = "are" if ", " in found[1] else "is"
            raise UsageError(f"{command}: {missing} {verb} missing\nhint: {self.example or help_text}")
        raise UsageError(f"{message.removeprefix('argument ')}\nhint: {self.example or help_text}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The parser of a command refuses what it does not know itself, so that the hint fits the command."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            meant = _meant(unknown[0].partition("=")[0], self._option_string_actions)
            where = self.prog.removeprefix("lapwing").strip()
            raise UsageError(
                f"{where}{': ' * bool(where)}{unknown[0]!r} is not known\nhint: {meant}{self.prog} --help lists all options"
            )
        return namespace, unknown


def _meant(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, list(known), 1, cutoff=0.7)
    return f"did you mean {near[0]}? " if near else ""


def sentence(text: str) -> str:
    """With a capital first letter; str.capitalize would write "mpi" and "numpy"."""
    return text[:1].upper() + text[1:]


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
    """Names separated by commas; "double" and "single" work too."""
    short = {"double": "float64", "single": "float32", "float": "float32"}
    return parse_words(",".join(short.get(part.strip(), part) for part in text.split(",")), DTYPES, "dtype")


def parse_subset(text: str) -> slice:
    """ "-16:", ":3" or "10:20"."""
    try:
        start, stop = (int(word) if word.strip() else None for word in text.split(":"))
    except ValueError:
        raise UsageError(
            f"--subset {text!r} is not a slice\nhint: --subset -16: selects the 16 largest, :3 the 3 smallest"
        ) from None
    return slice(start, stop)


def parse_words(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    known = tuple(known)
    for word in words or ("",):
        if word not in known:
            raise UsageError(f"{what} {word!r} is not known\nhint: use one of {', '.join(known)}")
    return words


def check_positive(options: argparse.Namespace, *names: str) -> None:
    """Refuse options with numbers below one; those that were not given are None."""
    for name in names:
        if (value := getattr(options, name)) is not None and value < 1:
            raise UsageError(f"--{name} {value} is not a positive number\nhint: use 1 or more")


def check_output(flag: str, path: Path, kinds: tuple[str, ...] = ()) -> None:
    """Refuse a file that cannot be written, before any measurement starts."""
    if kinds and path.suffix.lower() not in kinds:
        raise UsageError(
            f"{flag} {path}: the name must end in one of {', '.join(kinds)}\nhint: {flag} {path.with_suffix(kinds[0]).name}"
        )
    if not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {path.parent}\nhint: mkdir -p {path.parent}, or name another file")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{flag} {path}: cannot write this file\nhint: name another file")


def fitted(text: str, indent: int = 14) -> str:
    """Lines of more than 100 columns go on below their text; words, and so paths, stay whole."""
    options: dict[str, Any] = {"subsequent_indent": " " * indent, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(line if len(line) <= 100 else textwrap.fill(line, 100, **options) for line in text.splitlines())


def program() -> str:
    """The command that starts lapwing again from this folder."""
    if shutil.which("lapwing"):
        return "lapwing"
    return _from_here(Path(sys.argv[0])) if Path(sys.argv[0]).name == "lapwing" else f"{python()} -m lapwing"


def python() -> str:
    return "python" if shutil.which("python") == sys.executable else _from_here(Path(sys.executable))


def _from_here(path: Path) -> str:
    path = Path.cwd() / path  # not resolved: in a virtual environment Python is a link
    if not path.is_relative_to(Path.cwd()):
        return str(path)
    near = path.relative_to(Path.cwd())
    return f"./{near}" if len(near.parts) == 1 else str(near)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the arrays are (default: cpu)")


def add_subset(parser: argparse.ArgumentParser) -> None:
    parser._negative_number_matcher = re.compile(r"^-\d[\d:.-]*$")  # "-16:" is a value, not an option
    parser.add_argument(
        "--subset", help="part of the spectrum as a Python slice: -16: for the 16 largest, :3 for the 3 smallest"
    )
