"""Starts ranks for the tests, by pip's or the system's mpiexec."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import lapwing
from lapwing.cli.launch import find_mpiexec, rank_environment
from lapwing.cli.usage import UsageError
from lapwing.distributed.backends.scalapack import library as scalapack_library

HERE = Path(__file__).resolve().parent
SOURCE = str(Path(lapwing.__file__).resolve().parents[1])


def need_mpi() -> str:
    """The mpiexec, or the test is skipped."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    try:
        return find_mpiexec()
    except UsageError as error:
        pytest.skip(str(error))


def need_scalapack() -> None:
    need_mpi()
    reason = scalapack_library.missing()
    if reason:
        pytest.skip(reason)


@functools.cache
def sleeping_yield() -> str:
    """A library whose sched_yield sleeps for a microsecond; "" without a compiler.

    Since Linux 6.6 a rank that calls sched_yield while it waits keeps its core: with more ranks than cores each message then
    takes milliseconds, and the tests four times as long.
    """
    compiler = shutil.which("gcc") or shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        return ""
    source = """
#include <errno.h>
#include <time.h>
int sched_yield(void) {
  int kept = errno;
  struct timespec t = {0, 1000};
  nanosleep(&t, 0);
  errno = kept;
  return 0;
}
"""
    library = Path(tempfile.mkdtemp(prefix="lapwing-yield-")) / "yield.so"
    atexit.register(shutil.rmtree, library.parent, ignore_errors=True)
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", str(library), "-"]
    return str(library) if subprocess.run(command, input=source, text=True).returncode == 0 else ""


def environment(ranks: int) -> dict[str, str]:
    known = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "HYDRA"))}
    known["PYTHONPATH"] = os.pathsep.join([SOURCE, str(HERE)])
    known["LD_PRELOAD"] = " ".join(filter(None, (known.get("LD_PRELOAD"), sleeping_yield())))
    return rank_environment(known, ranks, len(os.sched_getaffinity(0)), 1)


def ranks(count: int, *command: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """mpiexec -n count python command."""
    line = [need_mpi(), "-n", str(count), sys.executable, "-W", "error", *map(str, command)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, env=environment(count), cwd=HERE)


def launch(*arguments: object, timeout: float = 60, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """python -m lapwing launch arguments."""
    need_mpi()
    line = [sys.executable, "-m", "lapwing", "launch", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, env=environment(1), cwd=cwd)
