"""The command line, ``lapwing COMMAND`` or ``python -m lapwing COMMAND``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import takewhile

from ._version import __version__
from .cli import bench, demo, doctor, explain, info, insitu, kernels, launch, run, tune
from .cli.usage import Parser, UsageError, fitted, program

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done, 1: a wrong answer was found, 2: wrong usage or too little memory, 130: stopped by Ctrl-C."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    if not command_line:
        print(_start())
        return 0
    try:
        options = _parser().parse_args(command_line)
        options.command_line = command_line
        return int(options.run(options))
    except UsageError as error:
        _complain(str(error), _help_for(command_line))
        return 2
    except MemoryError as error:
        _complain(f"not enough memory{f': {error}' if str(error) else ''}", "use smaller sizes, or fewer at a time")
        return 2
    except KeyboardInterrupt:
        print("\nlapwing: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away; nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that is not there
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        where = f"{error.filename}: " if error.filename else ""
        _complain(
            f"{where}{error.strerror or error}", "check that the path exists, may be written, and that the disk is not full"
        )
        return 1


def _complain(text: str, hint: str) -> None:
    """Print an error. Its last line says what to do: the hint of the text itself, or this one."""
    lines = (f"lapwing: {text}" + ("" if "\nhint: " in text else f"\nhint: {hint}")).splitlines()
    print("\n".join(_fold(line) for line in lines), file=sys.stderr)


def _fold(line: str) -> str:
    """A long list of what may be used goes over several lines; commands stay in one, so that they can be copied."""
    return fitted(line, 6) if "use one of " in line else line


def _help_for(command_line: list[str]) -> str:
    """The command whose help is nearest to what was typed."""
    words = list(takewhile(lambda word: word.isalpha(), command_line[:2]))
    return f"lapwing {' '.join([*words, '--help'])}" if words else "lapwing --help"


def _start() -> str:
    """What ``lapwing`` alone prints: the first things to try, in the order of a first visit."""
    lapwing = program()
    here = "" if lapwing == "lapwing" else f" (lapwing is {lapwing} here)"
    rows = (
        ("demo", "a race against NumPy, and a picture"),
        ("doctor", "check the installation"),
        ("info", "what works here, and what is missing"),
        ("explain eigh --shape 1000x64x64", "which engine runs a call, and why"),
        ("bench eigh --sizes 4,64 --peers", "compare it with other libraries"),
        ("run --install torch script.py", "run your program with lapwing inside"),
        ("tune all LOG --workdir W", "make its matrix products faster"),
    )
    lines = "\n".join(f"  lapwing {command:<33} {text}" for command, text in rows)
    return (
        f"lapwing {__version__}: dense linear algebra for NumPy, CuPy, PyTorch, JAX and TensorFlow\n\n"
        "  import lapwing\n"
        "  x = lapwing.solve(a, b)   # arrays of any of them; also cholesky, eigh, svd\n\n"
        f"Try{here}:\n{lines}\n\n"
        "All commands: lapwing --help"
    )


def _parser() -> Parser:
    parser = Parser(prog="lapwing", description="Dense linear algebra at the speed of the hardware.")
    parser.add_argument("--version", action="version", version=f"lapwing {__version__}")
    commands = parser.add_subparsers(
        title="commands",
        metavar="info | doctor | explain | bench | demo | insitu | kernels | launch | run | tune",
    )
    parser.set_defaults(run=lambda options: print(_start()) or 0)
    for command in (info, doctor, explain, bench, demo, insitu, kernels, launch, run, tune):
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
