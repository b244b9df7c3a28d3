"""lapwing insitu: watch a running simulation, run the example, print compiler flags."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import insitu_demo
from .usage import UsageError

# options for builds, answered by `python -m lapwing.insitu`
_FLAGS = ("cflags", "libs", "cmakedir", "fortran", "libfile", "examples")


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "watch a simulation that is analysed while it runs, or run the example"
    parser = commands.add_parser("insitu", help=text, description=text.capitalize() + ".")
    build = parser.add_argument_group("for builds (as python -m lapwing.insitu)")
    for flag in _FLAGS:
        build.add_argument(f"--{flag}", action="append_const", dest="asked", const=f"--{flag}", help=argparse.SUPPRESS)
    build.description = " ".join(f"--{flag}" for flag in _FLAGS)
    parser.set_defaults(run=_answer, asked=None)
    inner = parser.add_subparsers(title="commands", metavar="watch | demo")
    _add_watch(inner)
    insitu_demo.add_parser(inner)


def _add_watch(commands: argparse._SubParsersAction) -> None:
    text = "show a run: step, times, energy, singular values, modes, errors"
    about = f"{text.capitalize()}. The run must write status.json (live=True)."
    parser = commands.add_parser("watch", help=text, description=about)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="output folder of the run; it need not exist yet")
    parser.add_argument("--web", action="store_true", help="show a page on 127.0.0.1 instead of using the terminal")
    parser.add_argument("--port", type=int, default=None, help="port of the page (default: a free one)")
    parser.add_argument("--once", action="store_true", help="print the state once and exit")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two updates (default: 1)")
    parser.set_defaults(run=_watch)


def _watch(options: argparse.Namespace) -> int:
    from ..insitu.live.reader import Reader
    from ..insitu.live.server import serve
    from ..insitu.live.terminal import watch

    if options.web and options.once:
        raise UsageError("--once and --web cannot be combined: --once prints to the terminal\nhint: leave one out")
    if options.port is not None and not options.web:
        raise UsageError("--port needs --web\nhint: add --web")
    if not 0 <= (options.port or 0) <= 65535:
        raise UsageError(f"--port {options.port} is not between 0 and 65535\nhint: leave it out for a free port")
    if not 0.05 <= options.interval <= 3600:
        raise UsageError(f"--interval {options.interval:g} is not between 0.05 and 3600 seconds\nhint: --interval 1")
    if options.folder.exists() and not options.folder.is_dir():
        raise UsageError(f"{options.folder} is not a folder\nhint: pass the output folder of the run")
    if options.web:
        return serve(options.folder, options.port or 0)
    try:
        return watch(Reader(options.folder), interval=options.interval, once=options.once)
    except KeyboardInterrupt:
        print()
        return 0


def _answer(options: argparse.Namespace) -> int:
    from ..insitu.__main__ import main

    if not options.asked:
        raise UsageError(
            "insitu: a command is missing\n"
            "hint: lapwing insitu demo, or lapwing insitu watch FOLDER; lapwing insitu --help lists the flags for builds"
        )
    return main(options.asked)
