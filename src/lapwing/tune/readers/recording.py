"""Run a program and collect the matrix products that it computes, with counts, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from ..gemm import Call
from . import NOTHING, BadLine, Log, read
from .log import add_up, merge
from .profiler import from_event
from .sink import Sink

WATCH = ("auto", "torch", "logs", "all")
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True)
class Recorded:
    """A recorded program: its exit code as a shell reports it, its products, and how many of its processes had any.

    ``hint`` says why nothing was recorded; "" when something was.
    """

    code: int
    log: Log
    processes: int
    notes: tuple[str, ...] = ()
    hint: str = ""


def record(
    command: Sequence[str],
    *,
    watch: str = "auto",
    keep: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Recorded:
    """Run ``command`` with its own input, output and exit code, and collect its matrix products.

    Parameters
    ----------
    command
        The program and its arguments.
    watch
        ``"logs"``: the logs of the libraries (cuBLASLt, cuBLAS, hipBLASLt, and TunableOp's list of untuned products).
        ``"torch"``: each product that torch computes, on any device and thread; a product takes about 15 microseconds longer,
        other operators nothing. ``"all"``: both. ``"auto"``: logs on a machine with a GPU, torch elsewhere. Only the
        environment of the program is changed, never that of this process.
    keep
        A new folder for the raw logs; without it they are deleted.
    environment
        The environment of the program; ``os.environ`` by default.

    Returns
    -------
    Recorded
        Counts are summed over all processes that the program starts. Products that torch computed on a GPU count only if the
        libraries logged nothing, so that no call counts twice.
    """
    if watch not in WATCH:
        raise ValueError(f"record: watch is {watch!r}\nhint: use one of {', '.join(WATCH)}")
    if watch == "auto":
        watch = "logs" if any(map(os.path.exists, _GPUS)) else "torch"
    with _folder(keep) as folder:
        child, notes = _environment(folder, watch, dict(os.environ if environment is None else environment))
        code = _run(list(command), child)
        log, processes = collect(folder)
        hint = "" if log.calls else _why_nothing(folder, watch)
    return Recorded(code, log, processes, notes, hint)


def _why_nothing(folder: Path, watch: str) -> str:
    """Why a recording is empty, and what to do about it. It never suggests what was just done."""
    if watch == "logs":
        return "no library logged a product; --watch torch records torch's products on any device"
    if not (folder / "started.python").exists():
        other = "" if watch == "all" else "; --watch logs records cuBLAS, cuBLASLt and hipBLASLt in any program"
        return f"no Python process of the program uses PYTHONPATH (python -I and -E ignore it){other}"
    if not (folder / "started.torch").exists():
        other = "" if watch == "all" else "; --watch logs records what other frameworks run on a GPU"
        return f"the program did not import torch{other}"
    return "the program imported torch, but computed no matrix product before it ended"


def collect(folder: Path) -> tuple[Log, int]:
    """Read the raw logs of one recording: the products, and the number of processes that had any."""
    on_cpu: list[Call] = []
    on_gpu: list[Call] = []
    problems: list[BadLine] = []
    seen: set[str] = set()
    for path in sorted(folder.glob("torch-*.products")):
        sink = Sink(path.name)
        _torch_counts(path, sink)
        problems += sink.problems
        on_cpu += sink.tables.get("cpu", {}).values()
        on_gpu += sink.tables.get("gpu", {}).values()
        seen.add(path.stem.split("-")[1]) if sink.tables else None
    vendor: list[Call] = []
    for process, paths in _by_process(folder).items():
        logs = {path: read(path) for path in paths if path.stat().st_size}
        problems += [problem for log in logs.values() for problem in log.problems if problem.reason not in NOTHING]
        calls = _once(logs)
        vendor += calls
        seen.add(process) if calls else None
    listed = read(*sorted(folder.glob("untuned*.csv")))
    counted = Log(add_up((*on_cpu, *(vendor or on_gpu))))
    merged = merge(Log(listed.calls), counted) if listed.calls else counted
    recorded = tuple(Call(call.gemm, call.count, "recorded") for call in merged.calls)
    return Log(recorded, (*problems, *listed.problems)), len(seen) or int(bool(recorded))


def _by_process(folder: Path) -> dict[str, list[Path]]:
    """Logs of each process. A program that is not Python has one cuBLAS log, numbered 0, for all of its processes."""
    logs: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.log")):
        logs.setdefault(path.stem.rpartition("-")[2], []).append(path)
    if "0" in logs and len(logs) > 1:
        return {"all": [path for paths in logs.values() for path in paths]}
    return logs


def _once(logs: Mapping[Path, Log]) -> list[Call]:
    """Count each call once: cuBLAS passes its calls to cuBLASLt, and both log them. Only cuBLASLt logs the epilogue."""
    below = add_up(call for path, log in logs.items() if not path.name.startswith("cublas-") for call in log.calls)
    above = add_up(call for path, log in logs.items() if path.name.startswith("cublas-") for call in log.calls)
    known = {replace(call.gemm, alpha=1.0, beta=0.0, bias="", activation="none") for call in below}
    return [*below, *(call for call in above if call.gemm not in known)]


def _torch_counts(path: Path, sink: Sink) -> None:
    counts = path.with_suffix(".counts").read_bytes()
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines()):
        (count,) = struct.unpack_from("<q", counts, 8 * number)
        try:
            event = json.loads(line)
            gemm, remark = from_event(event["name"], event["args"])
            sink.add("cpu" if event["device"] == "cpu" else "gpu", gemm, max(count, 1), number + 1, remark)
        except (ValueError, KeyError, IndexError, TypeError) as error:  # the program was killed while it wrote the line
            sink.bad(number + 1, line, str(error))


def _environment(folder: Path, watch: str, child: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment of the program. Variables that the user has set stay as they are, and a note names them."""
    notes = []
    hook = folder / "hook"
    hook.mkdir()
    shutil.copy(Path(__file__).parent / "hook" / "sitecustomize.py", hook)
    child["PYTHONPATH"] = os.pathsep.join([str(hook), *filter(None, [child.get("PYTHONPATH")])])
    child["LAPWING_RECORD"] = str(folder)
    child["LAPWING_RECORD_TORCH"] = "1" if watch in ("torch", "all") else "0"
    if watch == "torch":
        return child, ()
    settings = {
        "cuBLASLt": {"CUBLASLT_LOG_LEVEL": "2", "CUBLASLT_LOG_FILE": f"{folder}/cublaslt-%i.log"},
        "cuBLAS": {"CUBLAS_LOGINFO_DBG": "1", "CUBLAS_LOGDEST_DBG": f"{folder}/cublas-0.log"},
        "hipBLASLt": {"HIPBLASLT_LOG_MASK": "64", "HIPBLASLT_LOG_FILE": f"{folder}/hipblaslt-%i.log"},
        "TunableOp": {
            "PYTORCH_TUNABLEOP_ENABLED": "1",
            "PYTORCH_TUNABLEOP_TUNING": "0",
            "PYTORCH_TUNABLEOP_RECORD_UNTUNED": "1",
            "PYTORCH_TUNABLEOP_UNTUNED_FILENAME": f"{folder}/untuned.csv",
            "PYTORCH_TUNABLEOP_BLAS_LOG": "1",
        },
    }
    for library, wanted in settings.items():
        present = [name for name in (*wanted, *_OVERRIDES.get(library, ())) if name in child]
        if present:
            notes.append(f"{library} is not recorded: {present[0]} is set already")
        else:
            child |= wanted
    return child, tuple(notes)


# a library ignores the settings above when one of these is set
_OVERRIDES = {"cuBLASLt": ("CUBLASLT_LOG_MASK",), "hipBLASLt": ("HIPBLASLT_LOG_LEVEL",)}


def _run(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)
    with _passing_on(process):
        while True:
            try:
                code = process.wait()
                return 128 - code if code < 0 else code
            except KeyboardInterrupt:  # the program receives it too, and decides what to do
                continue


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on to the program. Ctrl-C at a terminal reaches both by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _: FrameType | None) -> None:
        if not (number == signal.SIGINT and _at_terminal()) and process.poll() is None:
            process.send_signal(number)

    old = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            old[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _at_terminal() -> bool:
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno()) == os.getpgrp()  # type: ignore[union-attr]
    except (OSError, AttributeError, ValueError):
        return False


@contextmanager
def _folder(keep: str | os.PathLike[str] | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="lapwing-record-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    else:
        path = Path(keep).absolute()
        if path.exists() and any(path.iterdir()):
            raise ValueError(f"record: folder {path} is not empty\nhint: name a new folder")
        path.mkdir(parents=True, exist_ok=True)
        yield path
