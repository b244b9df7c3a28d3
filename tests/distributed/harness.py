"""Starts ranks for the tests, by pip's or the system's mpiexec."""

from __future__ import annotations

import os
import subprocess
import sys
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


def environment(ranks: int) -> dict[str, str]:
    known = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "HYDRA"))}
    known["PYTHONPATH"] = os.pathsep.join([SOURCE, str(HERE)])
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
