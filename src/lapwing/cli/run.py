"""lapwing run: start a script with lapwing behind the functions of its libraries."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from ..bench.environment import counted
from ..doors import DOORS, install
from .usage import UsageError, parse_words, sentence


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "run a script with lapwing behind the functions of its libraries"
    parser = commands.add_parser(
        "run",
        help=text,
        description=f"{sentence(text)}: lapwing run --install torch,scipy script.py ARGS, or -m MODULE ARGS.",
    )
    parser.add_argument(
        "--install", metavar="NAMES", required=True, help=f"the libraries, separated by commas: {', '.join(DOORS)}"
    )
    parser.add_argument("--report", action="store_true", help="print to stderr at the end how many calls lapwing took")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, default=None, help="a module and its arguments")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its arguments")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    names = parse_words(options.install, DOORS, "library")
    command = options.module if options.module is not None else options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise UsageError("run: no script was named\nhint: lapwing run --install torch script.py")
    target, *arguments = command
    if options.module is None and not Path(target).exists():
        raise UsageError(f"run: there is no file {target}\nhint: lapwing run --install torch script.py, or -m module")
    try:
        handle = install(*names)
    except ImportError as error:
        raise UsageError(f"run: {error}") from error
    before, path = sys.argv, list(sys.path)
    sys.argv = [target, *arguments]
    try:
        if options.module is None:
            sys.path.insert(0, str(Path(target).resolve().parent))  # as Python does for a script
            runpy.run_path(target, run_name="__main__")
        else:
            sys.path.insert(0, "")
            runpy.run_module(target, run_name="__main__", alter_sys=True)
    except Exception:  # the script's own error: main would report some of them without a traceback
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.argv, sys.path[:] = before, path
        handle.undo()
        if options.report:
            for function, calls in handle.report().items():
                ours = counted(int(calls["lapwing"]), "call")
                text = f"lapwing: {function}: {ours} by lapwing, {calls['own']} by the library"
                text += f", about {calls['saved']:.2g} s saved (estimate)" if "saved" in calls else ""
                print(text, file=sys.stderr)
    return 0
