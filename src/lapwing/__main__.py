"""The command line, ``lapwing COMMAND`` or ``python -m lapwing COMMAND``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ._version import __version__
from .cli import bench, demo, explain, info, insitu, kernels, launch, run, tune
from .cli.usage import Parser, UsageError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done, 1: a wrong answer was found, 2: wrong usage or too little memory, 130: stopped by Ctrl-C."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(command_line)
        options.command_line = command_line
        return int(options.run(options))
    except UsageError as error:
        print(f"lapwing: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"lapwing: not enough memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nlapwing: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away; nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that is not there
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"lapwing: {error}", file=sys.stderr)
        return 1


def _parser() -> Parser:
    parser = Parser(prog="lapwing", description="Dense linear algebra at the speed of the hardware.")
    parser.add_argument("--version", action="version", version=f"lapwing {__version__}")
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="info | explain | bench | demo | insitu | kernels | launch | run | tune"
    )
    for command in (info, explain, bench, demo, insitu, kernels, launch, run, tune):
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
