"""lapwing launch: start ranks with whatever MPI is there, give each its share of the cores, and say who failed first."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from .usage import UsageError

__all__ = ["add_parser", "find_mpiexec", "rank_environment"]

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PATIENCE = 5.0  # seconds for mpiexec to end its ranks before it is killed


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "start a script on many MPI ranks"
    parser = commands.add_parser(
        "launch",
        help=text,
        description=f"{text.capitalize()}: lapwing launch -n 4 script.py ARGS, -m MODULE ARGS, or -- PROGRAM ARGS.",
    )
    parser.add_argument("-n", dest="ranks", type=int, default=None, help="number of ranks (default: one for each core)")
    parser.add_argument("--threads", type=int, default=None, help="of each rank (default: cores / ranks, at least 1)")
    parser.add_argument("--mpiexec", default=None, help="the program that starts ranks (default: beside Python, then on PATH)")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, default=None, help="a module and its arguments")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its arguments; after -- any program")
    parser.set_defaults(run=_launch)


def _launch(options: argparse.Namespace) -> int:
    cores = _cores()
    ranks = cores if options.ranks is None else options.ranks
    if ranks < 1:
        raise UsageError(f"launch: -n {ranks} is not a positive number of ranks")
    if options.threads is not None and options.threads < 1:
        raise UsageError(f"launch: --threads {options.threads} is not a positive number")
    with tempfile.TemporaryDirectory(prefix="lapwing-launch-") as folder:  # its own for each launch
        command = _command(options, folder)
        mpiexec = find_mpiexec(options.mpiexec)
        environment = rank_environment(os.environ, ranks, cores, options.threads)
        status = _supervise([mpiexec, "-n", str(ranks), *command], environment)
        return _verdict(status, ranks, Path(folder), told=command[0] == sys.executable)


def find_mpiexec(given: str | None = None) -> str:
    """The program that starts ranks: as given, of this Python's environment, or on PATH."""
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise UsageError(f"launch: --mpiexec {given}: there is no such program")
        return found
    folders = [str(Path(sys.executable).parent), str(Path(sys.prefix, "bin"))]
    for name in ("mpiexec", "mpirun"):
        found = shutil.which(name, path=os.pathsep.join(folders)) or shutil.which(name)
        if found:
            return found
    raise UsageError("launch: there is no mpiexec\nhint: pip install mpich mpi4py")


def rank_environment(known: Mapping[str, str], ranks: int, cores: int, threads: int | None = None) -> dict[str, str]:
    """The environment of the ranks: a share of the cores each, and waiting that leaves the core to others where it must.

    What the user has set stays.
    """
    made = dict(known)
    share = str(threads) if threads is not None else next((known[x] for x in _THREADS if known.get(x)), None)
    for name in _THREADS:
        if threads is not None or not known.get(name):
            made[name] = share or str(max(cores // ranks, 1))
    extra: dict[str, str] = {}
    if ranks > cores:
        # MPICH looks this often before it leaves the core to another rank; Open MPI, 4 and 5, wants to be asked
        extra |= {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
        extra |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        extra |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Open MPI would bind the ranks of two launches to the same cores
    extra |= {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
    return extra | made


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _command(options: argparse.Namespace, folder: str) -> list[str]:
    """What each rank runs: scripts and modules by lapwing.cli.rank, which tells of failures; other programs as they are."""
    runner = [sys.executable, "-m", "lapwing.cli.rank", folder]
    if options.module is not None:
        if not options.module:
            raise UsageError("launch: -m wants a module\nhint: lapwing launch -n 4 -m package.module")
        return [*runner, "-m", *options.module]
    given: Sequence[str] = options.command
    before = options.command_line[: len(options.command_line) - len(given)]
    if given[:1] == ["--"] or before[-1:] == ["--"]:
        program = list(given[1:] if given[:1] == ["--"] else given)
        if not program:
            raise UsageError("launch: there is no program after --")
        return program
    if not given:
        raise UsageError("launch: say what to run\nhint: lapwing launch -n 4 script.py")
    if not Path(given[0]).exists():
        raise UsageError(f"launch: there is no {given[0]}\nhint: a program that is no Python script goes after --")
    return [*runner, *given]


def _supervise(command: list[str], environment: dict[str, str]) -> int:
    """Run mpiexec; what ends this process ends the ranks."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(f"launch: {command[0]} cannot be started: {error.strerror}") from None

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # a Ctrl-C of the terminal has reached mpiexec too; other ways have not
        _end(process)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen) -> None:
    for send in (lambda: process.send_signal(signal.SIGINT), process.terminate, process.kill):
        if process.poll() is None:
            send()
        try:
            process.wait(_PATIENCE)
            return
        except subprocess.TimeoutExpired:
            continue


def _verdict(status: int, ranks: int, folder: Path, told: bool) -> int:
    """The exit code, that of the first rank that failed; its traceback goes to the standard error.

    ``told``: ranks leave word when they fail, so that without one a small status is a signal (as MPICH's mpiexec tells it).
    """
    failures = []
    for path in folder.glob("failure-*.json"):
        try:
            failures.append(json.loads(path.read_text()))
        except (OSError, ValueError):  # that rank was stopped while it wrote
            continue
    if failures:
        first = min(failures, key=lambda x: x["when"])
        sys.stderr.write(first["traceback"])
        others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        print(f"lapwing launch: rank {first['rank']} of {ranks} failed first{others}: {first['what']}", file=sys.stderr)
        return int(first["code"]) or 1
    if status < 0 or status > 128 or (told and status in set(signal.Signals)):
        number = -status if status < 0 else status % 128
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        print(f"lapwing launch: a rank was ended by {name}; the others were stopped", file=sys.stderr)
        return 128 + number
    if status:
        print(f"lapwing launch: a rank ended with exit code {status}; the others were stopped", file=sys.stderr)
    return status
