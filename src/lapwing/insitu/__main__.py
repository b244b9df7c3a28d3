"""python -m lapwing.insitu: what a build needs to know about the C interface.

--cflags     compiler flags: where lapwing_insitu.h and lapwing_insitu_stub.h are
--libs       linker flags, with the run-time path of the library
--cmakedir   folder for find_package(LapwingInsitu HINTS ...)
--fortran    the Fortran module's source file
--libfile    the library itself, for LAPWING_INSITU_LIB
--examples   folder of the example solvers
--version    version of lapwing

The commands ``watch`` and ``demo`` are those of ``lapwing insitu``.
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


def main(arguments: list[str] | None = None) -> int:
    """Prints the answers in the order of the questions, each kind of flags on the same line."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in ("watch", "demo"):
        from lapwing.__main__ import main as lapwing

        return lapwing(["insitu", *given])
    parser = argparse.ArgumentParser(
        prog="python -m lapwing.insitu", description="What a build needs to know about lapwing.insitu."
    )
    parser.add_argument("--cflags", action="append_const", dest="asked", const="cflags", help="compiler flags")
    parser.add_argument("--libs", action="append_const", dest="asked", const="libs", help="linker flags with run-time path")
    parser.add_argument("--cmakedir", action="append_const", dest="asked", const="cmakedir", help="folder for find_package")
    parser.add_argument("--fortran", action="append_const", dest="asked", const="fortran", help="source of the Fortran module")
    parser.add_argument("--libfile", action="append_const", dest="asked", const="libfile", help="path of the library")
    parser.add_argument(
        "--examples", action="append_const", dest="asked", const="examples", help="folder of the example solvers"
    )
    parser.add_argument("--version", action="append_const", dest="asked", const="version", help="version of lapwing")
    asked: list[str] = parser.parse_args(given).asked or []
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
    folder = shlex.quote(str(PACKAGE))
    answers = {
        "cflags": f"-I{shlex.quote(str(INCLUDE))}",
        "libs": f"-L{folder} -Wl,-rpath,{folder} -llapwing_insitu",
        "cmakedir": str(INCLUDE / "cmake"),
        "fortran": str(INCLUDE / "lapwing_insitu.f90"),
        "libfile": str(LIBRARY),
        "examples": str(PACKAGE / "insitu" / "examples"),
        "version": __version__,
    }
    print(" ".join(answers[name] for name in asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
