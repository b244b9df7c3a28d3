"""Compiles the solvers of the tests, once per session, and runs them against this checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import lapwing
from lapwing.cli.insitu_demo import shared_python

PACKAGE = Path(lapwing.__file__).resolve().parent
INCLUDE = PACKAGE / "insitu" / "include"
EXAMPLES = PACKAGE / "insitu" / "examples"
LIBRARY = PACKAGE / "liblapwing_insitu.so"
HERE = Path(__file__).resolve().parent
DRIVERS = HERE / "drivers"

CFLAGS = [f"-I{INCLUDE}"]
LIBS = [f"-L{PACKAGE}", f"-Wl,-rpath,{PACKAGE}", "-llapwing_insitu"]
# a waiting rank gives its core to the ranks that compute: there are often more ranks than cores
MPI_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}

compiled: Path | None = None  # folder of the session, shared by its workers; set in conftest.py


def need_library() -> None:
    if not LIBRARY.exists():
        pytest.skip("liblapwing_insitu.so was not built (no C++ compiler at installation)")


def compiler(name: str) -> str:
    variable = {"gfortran": "FC", "mpicxx": "MPICXX"}.get(name, "")
    path = os.environ.get(variable) or shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if not path:
        pytest.skip(f"{name} is not installed")
    return path


def build(output: Path, *arguments: object, using: str = "g++") -> Path:
    """Compile a program. The same command on the same files runs once per session: other tests and workers get a copy."""
    command = [compiler(using), *map(str, arguments)]
    assert compiled is not None
    key = hashlib.sha256("\n".join(command).replace(str(output.parent), "").encode())
    for argument in command[1:]:
        if Path(argument).is_file():
            key.update(Path(argument).read_bytes())
    program = compiled / key.hexdigest()[:16]
    with open(compiled / f"{program.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=compiled) as folder:
                made = Path(folder, output.name)
                done = subprocess.run([*command, "-o", made], capture_output=True, text=True, timeout=300, cwd=output.parent)
                assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
                made.rename(program)
    shutil.copy(program, output)
    return output


def need_embedding() -> None:
    need_library()
    if not shared_python():
        pytest.skip("this Python has no shared libpython")


def environment(**changes: str | None) -> dict[str, str]:
    """This environment without settings of lapwing.insitu, except the interpreter. None removes a variable."""
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
    """Run a program to its end; its exit status must be 0."""
    done = subprocess.run(
        [str(x) for x in command], capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment(**changes)
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
