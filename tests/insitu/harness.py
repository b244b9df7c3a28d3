"""Compiles the example solvers of the tests and runs them against this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import lapwing

PACKAGE = Path(lapwing.__file__).resolve().parent
INCLUDE = PACKAGE / "insitu" / "include"
EXAMPLES = PACKAGE / "insitu" / "examples"
LIBRARY = PACKAGE / "liblapwing_insitu.so"
HERE = Path(__file__).resolve().parent
DRIVERS = HERE / "drivers"

CFLAGS = [f"-I{INCLUDE}"]
LIBS = [f"-L{PACKAGE}", f"-Wl,-rpath,{PACKAGE}", "-llapwing_insitu"]


def need_library() -> None:
    if not LIBRARY.exists():
        pytest.skip("liblapwing_insitu.so was not built (no C++ compiler at installation)")


def compiler(name: str) -> str:
    variable = {"gfortran": "FC", "mpicxx": "MPICXX"}.get(name, "")
    found = os.environ.get(variable) or shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


def build(output: Path, *arguments: object, using: str = "g++") -> Path:
    command = [compiler(using), *map(str, arguments), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=output.parent)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return output


def shared_python() -> Path | None:
    """The libpython of this interpreter, if there is one to load into a solver."""
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}.so"
    folders = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"), f"{sys.base_prefix}/lib"]
    found = (Path(folder, name + end) for folder in folders if folder for end in (".1.0", ""))
    return next((path for path in found if path.is_file()), None)


def need_embedding() -> None:
    need_library()
    if not shared_python():
        pytest.skip("this Python has no shared libpython")


def environment(**changes: str | None) -> dict[str, str]:
    """Nothing of lapwing.insitu set but the interpreter; None takes a variable away."""
    known = {
        k: v for k, v in os.environ.items() if not k.startswith("LAPWING_INSITU") and k not in ("VIRTUAL_ENV", "PYTHONHOME")
    }
    known["LAPWING_INSITU_PYTHON"] = sys.executable
    known["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), str(HERE)])
    for name, value in changes.items():
        known.pop(name, None)
        if value is not None:
            known[name] = value
    return known


def run(
    *command: object, timeout: float = 120, cwd: Path | None = None, **changes: str | None
) -> subprocess.CompletedProcess[str]:
    """The finished process; its exit status must be 0."""
    done = subprocess.run(
        [str(x) for x in command], capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment(**changes)
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
