"""One rank of ``lapwing launch``: runs the script; when it fails, reports why and ends the other ranks.

It reports by files in the launch's folder: ``started-R`` and ``ended-R``, ``left-R`` for os._exit(0), ``failure-R.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

from ..distributed.ranks.launched import RANKS

_RANK = (*RANKS, "SLURM_PROCID")
_ON_NODE = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_OF_NODE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  # how many ranks it has
_exit = os._exit


def main(arguments: list[str]) -> None:
    place, ranks, port, *command = arguments
    folder = Path(place)
    name_rank(os.environ, int(ranks), port)
    _note(folder, "started")
    _watch_exits(folder)
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            sys.path[0] = str(Path(command[0]).resolve().parent)
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as error:
        code = error.code
        if code in (None, 0):
            _note(folder, "ended")
            return
        # words are for the launcher to print: what a rank writes as it ends may be lost with it
        number, words = (code, "") if isinstance(code, int) else (1, f"{code}\n")
        _fail(folder, f"exit code {number}", words, number)
    except KeyboardInterrupt:
        _exit(130)
    except BaseException as error:
        first, *more = traceback.format_exception_only(error)[0].strip().splitlines()
        _fail(folder, "\n".join([first, *(line for line in more if line.startswith("hint:"))]), _words(error), 1)
    _note(folder, "ended")


def name_rank(known: MutableMapping[str, str], ranks: int, port: str) -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for torch.distributed. What the user has set stays.

    The address is set only where all ranks are on this node: otherwise the node of rank 0 and its free ports are unknown here.
    """
    rank, on_node, of_node = (next((known[x] for x in names if known.get(x)), None) for names in (_RANK, _ON_NODE, _OF_NODE))
    if rank is None:
        return
    if not any(known.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):  # one alone might contradict the user's
        known["RANK"], known["WORLD_SIZE"] = rank, str(ranks)
        if on_node is not None:
            known["LOCAL_RANK"] = on_node
    if of_node == str(ranks) and not any(known.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")):
        known["MASTER_ADDR"], known["MASTER_PORT"] = "127.0.0.1", port


def _watch_exits(folder: Path) -> None:
    """Report os._exit and exec, since mpiexec may not: MPICH's counts os._exit(0) as a success."""
    own_process = os.getpid()

    def left(status: int) -> NoReturn:
        if os.getpid() == own_process:  # forked children end this way too
            if status:
                _report(folder, f"os._exit({status})", "", status)
            else:
                _note(folder, "left")
        _exit(status)

    def noting(execute: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*arguments: Any) -> Any:
            if os.getpid() == own_process:  # another program continues here, and reports nothing
                _note(folder, "ended")
            return execute(*arguments)

        return replaced

    os._exit = left
    os.execv, os.execve = noting(os.execv), noting(os.execve)  # type: ignore[assignment]


def _note(folder: Path, what: str) -> None:
    with contextlib.suppress(OSError):  # the folder is on another node
        (folder / f"{what}-{_who()}").touch()


def _who() -> str:
    return next((os.environ[name] for name in _RANK if name in os.environ), f"?{os.getpid()}")


def _words(error: BaseException) -> str:
    """The traceback without the frames that started the script."""
    here = error.__traceback__
    while here is not None and Path(here.tb_frame.f_code.co_filename).name in ("rank.py", "<frozen runpy>", "runpy.py"):
        here = here.tb_next
    return "".join(traceback.format_exception(type(error), error, here))


def _fail(folder: Path, what: str, words: str, code: int) -> NoReturn:
    _report(folder, what, words, code)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # a rank that simply ended would wait in MPI's finalisation for the others, and they for it
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)
    _exit(code)


def _report(folder: Path, what: str, words: str, code: int) -> None:
    rank = _who()
    failure = {"when": time.time(), "rank": rank, "what": what, "traceback": words, "code": code}
    try:
        part = folder / f"part-{os.getpid()}"
        part.write_text(json.dumps(failure))
        part.rename(folder / f"failure-{rank}.json")
    except OSError:  # the folder is on another node
        sys.stderr.write(f"{words}lapwing launch: rank {rank} failed: {what}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
