"""One rank of ``lapwing launch``: runs the script, and when it fails leaves word and takes the other ranks along."""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["main"]

_RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def main(arguments: list[str]) -> None:
    folder, *command = arguments
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
            return
        if not isinstance(code, int):
            print(code, file=sys.stderr)
        number = code if isinstance(code, int) else 1
        _fail(Path(folder), f"exit code {number}", "", number)
    except KeyboardInterrupt:
        os._exit(130)
    except BaseException as error:
        _fail(Path(folder), traceback.format_exception_only(error)[0].strip().splitlines()[0], _words(error), 1)


def _words(error: BaseException) -> str:
    """The traceback without the frames that started the script."""
    here = error.__traceback__
    while here is not None and Path(here.tb_frame.f_code.co_filename).name in ("rank.py", "<frozen runpy>", "runpy.py"):
        here = here.tb_next
    return "".join(traceback.format_exception(type(error), error, here))


def _fail(folder: Path, what: str, words: str, code: int) -> NoReturn:
    rank = next((os.environ[name] for name in _RANK if name in os.environ), "?")
    told = {"when": time.time(), "rank": rank, "what": what, "traceback": words, "code": code}
    try:
        part = folder / f"part-{os.getpid()}"
        part.write_text(json.dumps(told))
        part.rename(folder / f"failure-{os.getpid()}.json")
    except OSError:  # the folder is on another node
        sys.stderr.write(f"{words}lapwing launch: rank {rank} failed: {what}\n")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # a rank that just ended would wait for the others at the end of MPI, and they for it
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
