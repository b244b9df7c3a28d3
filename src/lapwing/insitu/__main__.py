"""python -m lapwing.insitu: compiler flags and paths for a solver that uses the C interface.

--cflags     compiler flags: the folder of lapwing_insitu.h and lapwing_insitu_stub.h
--libs       linker flags, with the run-time path of the library
--cmakedir   folder for find_package(LapwingInsitu HINTS ...)
--fortran    the Fortran module's source file
--libfile    the path of the library, for LAPWING_INSITU_LIB
--examples   folder of the example solvers
--version    version of lapwing

The commands ``watch`` and ``demo`` do the same as ``lapwing insitu watch`` and ``lapwing insitu demo``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from lapwing._version import __version__

PACKAGE = Path(__file__).resolve().parents[1]
INCLUDE = PACKAGE / "insitu" / "include"
LIBRARY = PACKAGE / "liblapwing_insitu.so"
_FOLDER = shlex.quote(str(PACKAGE))
# by option: its help, and the answer
ANSWERS = {
    "cflags": ("compiler flags", f"-I{shlex.quote(str(INCLUDE))}"),
    "libs": ("linker flags with run-time path", f"-L{_FOLDER} -Wl,-rpath,{_FOLDER} -llapwing_insitu"),
    "cmakedir": ("folder for find_package", INCLUDE / "cmake"),
    "fortran": ("source of the Fortran module", INCLUDE / "lapwing_insitu.f90"),
    "libfile": ("path of the library", LIBRARY),
    "examples": ("folder of the example solvers", PACKAGE / "insitu" / "examples"),
    "version": ("version of lapwing", __version__),
}


def main(arguments: list[str] | None = None) -> int:
    """Print the answers on one line, in the order of the options."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in ("watch", "demo"):
        from lapwing.__main__ import main as lapwing

        return lapwing(["insitu", *arguments])
    parser = argparse.ArgumentParser(prog="python -m lapwing.insitu", description="Compiler flags and paths for a solver.")
    for name, (text, _) in ANSWERS.items():
        parser.add_argument(f"--{name}", action="append_const", dest="asked", const=name, help=text)
    asked: list[str] = parser.parse_args(arguments).asked or []
    if not asked:
        parser.print_help()
        return 2
    if not LIBRARY.exists() and {"libs", "libfile"} & set(asked):
        print(
            f"insitu: {LIBRARY} is missing: lapwing was installed without a C++ compiler\n"
            "hint: install g++ and reinstall lapwing, or compile with lapwing_insitu_stub.h, which needs no library",
            file=sys.stderr,
        )
        return 1
    print(*(ANSWERS[name][1] for name in asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
