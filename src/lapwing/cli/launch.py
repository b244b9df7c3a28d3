"""lapwing launch: start ranks with the installed MPI, give each its share of the cores, and say which rank failed first."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from ..bench.environment import cores as usable_cores
from .usage import UsageError, sentence

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Signals that end a process by surprise. SIGHUP, SIGINT, SIGQUIT and SIGTRAP are left out: 1, 2, 3 and 5 are common exit codes.
_DEADLY = {
    int(getattr(signal, f"SIG{x}")) for x in ("ILL", "ABRT", "BUS", "FPE", "KILL", "SEGV", "TERM") if hasattr(signal, f"SIG{x}")
}
_PATIENCE = 5.0  # seconds for mpiexec to end its ranks before it is killed


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "start a script on many MPI ranks"
    parser = commands.add_parser(
        "launch",
        help=text,
        description=f"{sentence(text)}: lapwing launch -n 4 script.py ARGS, -m MODULE ARGS, or -- PROGRAM ARGS.",
    )
    parser.add_argument(
        "-n", dest="ranks", type=int, help="number of MPI ranks (default: one for each core, or for each place of the hosts)"
    )
    parser.add_argument("--threads", type=int, help="threads of each rank (default: cores / ranks on a host, at least 1)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A,B:2", help="run on these hosts; B:2 has two places for ranks")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help="the same from a file in the format of your mpiexec")
    parser.add_argument("--mpiexec", help="the program that starts ranks (default: next to Python, then on PATH)")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, default=None, help="a module and its arguments")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its arguments; after -- any program")
    parser.set_defaults(run=_launch)


def _launch(options: argparse.Namespace) -> int:
    cores = usable_cores()
    hosts = _hosts(options)
    ranks = (sum(hosts.values()) or cores) if options.ranks is None else options.ranks
    if ranks < 1:
        raise UsageError(f"launch: -n {ranks} is not a positive number of ranks\nhint: -n 4")
    if options.threads is not None and options.threads < 1:
        raise UsageError(f"launch: --threads {options.threads} is not a positive number\nhint: --threads 1, or leave it out")
    with tempfile.TemporaryDirectory(prefix="lapwing-launch-") as folder:  # its own for each launch
        with _reserved_port() as held:
            command = _command(options, [folder, str(ranks), str(held.getsockname()[1])])
            mpiexec = find_mpiexec(options.mpiexec)
            on_each = -(-ranks // max(len(hosts), 1))
            environment = rank_environment(os.environ, on_each, cores, options.threads)
            placed = _placed(options, _is_hydra(mpiexec)) if hosts else []
            status = _supervise([mpiexec, "-n", str(ranks), *placed, *command], environment)
        return _verdict(status, ranks, Path(folder), mpiexec)


def _hosts(options: argparse.Namespace) -> dict[str, int]:
    """The hosts asked for, each with its places for ranks; empty: this machine.

    Host files have a host on each line, with ``:2`` for MPICH or `` slots=2`` for Open MPI.
    """
    if options.hostfile is not None:
        try:
            lines = options.hostfile.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"launch: --hostfile {options.hostfile}: {getattr(error, 'strerror', '') or error}\n"
                "hint: a text file with one host per line, for example: node1:4"
            ) from None
        entries = [words[0] for line in lines if (words := line.partition("#")[0].replace(" slots=", ":").split())]
        flag = f"--hostfile {options.hostfile}"
    elif options.hosts is not None:
        entries, flag = options.hosts.split(","), f"--hosts {options.hosts}"
    else:
        return {}
    hosts: dict[str, int] = {}
    for entry in entries:
        name, _, places = entry.strip().partition(":")
        if not name or not (places or "1").isdigit() or int(places or 1) < 1:
            raise UsageError(f"launch: {flag}: {entry!r} is not a host, nor host:places\nhint: --hosts first,second:2")
        hosts[name] = hosts.get(name, 0) + int(places or 1)
    if not hosts:
        raise UsageError(f"launch: {flag} names no host\nhint: name hosts, for example --hosts node1:4,node2:4")
    return hosts


def _placed(options: argparse.Namespace, hydra: bool) -> list[str]:
    """The hosts as this mpiexec understands them. Open MPI passes only the variables it is told to on to other hosts."""
    if options.hostfile is not None:
        hosts = ["-f" if hydra else "--hostfile", str(options.hostfile)]
    else:
        hosts = ["-hosts" if hydra else "--host", options.hosts.replace(" ", "")]
    return hosts if hydra else [*hosts, *(word for name in _THREADS for word in ("-x", name))]


def find_mpiexec(asked: str | None = None) -> str:
    """The program that starts ranks: the one asked for, that of this Python's environment, or that on PATH."""
    if asked is not None:
        path = shutil.which(asked)
        if path is None:
            raise UsageError(
                f"launch: --mpiexec {asked}: there is no such program\nhint: give its path, or leave --mpiexec out"
            )
        return path
    folders = [str(Path(sys.executable).parent), str(Path(sys.prefix, "bin"))]
    for name in ("mpiexec", "mpirun"):
        path = shutil.which(name, path=os.pathsep.join(folders)) or shutil.which(name)
        if path:
            return path
    raise UsageError("launch: no mpiexec is installed\nhint: pip install mpich mpi4py")


def rank_environment(known: Mapping[str, str], ranks: int, cores: int, threads: int | None = None) -> dict[str, str]:
    """The environment of the ranks: a share of the cores for each. Where cores are scarce, waiting ranks leave them to others.

    Variables that the user has set stay. ``ranks`` are those on one host.
    """
    variables = dict(known)
    share = str(threads) if threads is not None else next((known[x] for x in _THREADS if known.get(x)), None)
    for name in _THREADS:
        if threads is not None or not known.get(name):
            variables[name] = share or str(max(cores // ranks, 1))
    extra: dict[str, str] = {}
    if ranks > cores:
        # MPICH polls this often before it yields the core to another rank; Open MPI 4 and 5 yield only when asked to
        extra |= {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
        extra |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        extra |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Open MPI would bind the ranks of two launches to the same cores
    extra |= {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
    return extra | variables


def _reserved_port() -> socket.socket:
    """A port that no other launch gets while this one runs, and on which rank 0 can still listen."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.bind(("", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: before, two launches might share one
    return held


def _command(options: argparse.Namespace, launch: list[str]) -> list[str]:
    """The command of each rank: lapwing.cli.rank runs scripts and modules and reports failures; other programs run directly."""
    runner = [sys.executable, "-m", "lapwing.cli.rank", *launch]
    if options.module is not None:
        if not options.module:
            raise UsageError("launch: -m needs the name of a module\nhint: lapwing launch -n 4 -m package.module")
        return [*runner, "-m", *options.module]
    words: Sequence[str] = options.command
    before = options.command_line[: len(options.command_line) - len(words)]
    if words[:1] == ["--"] or before[-1:] == ["--"]:
        program = list(words[1:] if words[:1] == ["--"] else words)
        if not program:
            raise UsageError("launch: no program follows --\nhint: lapwing launch -n 4 -- ./program")
        return program
    if not words:
        raise UsageError("launch: nothing to run\nhint: lapwing launch -n 4 script.py")
    if not Path(words[0]).exists():
        raise UsageError(
            f"launch: there is no file {words[0]}\nhint: check its name; put a program that is not a Python script after --"
        )
    return [*runner, *words]


def _supervise(command: list[str], environment: dict[str, str]) -> int:
    """Run mpiexec, and end the ranks when this process is told to end."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(
            f"launch: {command[0]} cannot be started: {error.strerror}\nhint: check its path and that it may be executed"
        ) from None

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # Ctrl-C in a terminal reaches mpiexec as well; other signals do not
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


def _verdict(status: int, ranks: int, folder: Path, mpiexec: str) -> int:
    """The exit code of the first rank that failed; its traceback goes to stderr."""
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
        _say(f"rank {first['rank']} of {ranks} failed first{others}: {first['what']}")
        return int(first["code"]) or 1
    started, ended, left = (
        {x.name.partition("-")[2] for x in folder.glob(f"{what}-*")} for what in ("started", "ended", "left")
    )
    unfinished = started - ended - left
    if left and (status or unfinished):
        stopped = f", and {_ranks(unfinished)} did not reach the end of the script" if unfinished else ""
        _say(f"{_ranks(left)} of {ranks} left with os._exit(0){stopped}\nhint: let the script end, or sys.exit(0)")
        return 1  # the status is only that of a rank that was stopped for it
    if status == 0:
        if unfinished:  # a library's exit(0)
            _say(f"{_ranks(unfinished)} of {ranks} did not reach the end of the script, without an error")
        return 1 if unfinished else 0
    number, sure = _signal_of(status, mpiexec, noted=bool(started))
    if number is None:
        _say(f"a rank ended with exit code {status}; the others were stopped")
        return status
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if not sure:
        _say(f"a rank ended with exit code {status} or by {name} (this mpiexec reports both alike); the others were stopped")
        return status
    _say(f"a rank was ended by {name}; the others were stopped")
    return 128 + number


def _signal_of(status: int, mpiexec: str, noted: bool) -> tuple[int | None, bool]:
    """The signal that mpiexec's exit status stands for, if any, and whether that is certain.

    MPICH reports a signal as its bare number, so that 9 may be SIGKILL or an exit code, and 137 is an exit code. Others add
    128, as shells do. ``noted``: the ranks report exits from Python themselves, so that a deadly signal's number is certain.
    """
    if status < 0:
        return -status, True
    number = status - 128 if status > 128 else status
    if number not in (set(signal.Signals) if status > 128 else _DEADLY) or (status > 128) == _is_hydra(mpiexec):
        return None, True
    return number, status > 128 or noted


def _is_hydra(mpiexec: str) -> bool:
    """Whether it is MPICH's, or Intel's, which is derived from it."""
    try:
        version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=_PATIENCE, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(word in version for word in ("HYDRA", "MPICH", "Intel(R) MPI"))


def _ranks(names: set[str]) -> str:
    ordered = sorted(names, key=lambda x: (len(x), x))
    shown = ", ".join(ordered[:8]) + (f" and {len(ordered) - 8} more" if len(ordered) > 8 else "")
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {shown}"


def _say(text: str) -> None:
    print(f"lapwing launch: {text}", file=sys.stderr)
