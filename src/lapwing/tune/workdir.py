"""The folder in which a tuning run lives: what is in it, how it is written, and who may write."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from .backends.base import Config
from .gemm import Gemm
from .search.space import canonical

__all__ = [
    "Problem",
    "Trial",
    "Workdir",
    "check_writable",
    "environment_hash",
    "lock_device",
    "ranked",
    "umask",
    "write_atomic",
]

SCHEMA = 1
INVALIDITY = ("correct", "compile", "runtime", "timeout", "correctness", "constraints")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_KINDS: dict[str, Any] = dict.fromkeys(("backend", "gemm", "reason", "environment", "stage"), str)
_KINDS |= {"device": int, "took": int | float} | dict.fromkeys(("times", "resources", "errors"), dict)
_log = logging.getLogger("lapwing")


@dataclass(frozen=True)
class Problem:
    """One product to tune, as W/configs/<name>.json has it."""

    name: str
    gemm: Gemm
    count: int = 1
    seconds: float = 0.0  # of the default
    percent: float = 0.0

    @property
    def weight(self) -> float:
        """Its share of the program's time, unscaled."""
        return self.count * self.seconds


@dataclass(frozen=True)
class Trial:
    """One candidate that was tried, or timed again: a line of W/trials/<name>.jsonl (T4)."""

    backend: str
    device: int
    gemm: str  # its key
    configuration: Config
    time: float | None  # median seconds
    invalidity: str = "correct"
    reason: str = ""
    environment: str = ""
    times: Mapping[str, Any] = field(default_factory=dict)  # compilation_time, runtimes, validation
    stage: str = "screen"  # or "confirm": the best ones, side by side with more samples
    took: float = 0.0  # seconds of the search, all in all
    resources: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)  # by probe

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **{name: getattr(self, name) for name in self.__dataclass_fields__}})

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """ValueError where it is not one."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("invalidity") not in INVALIDITY:
            raise ValueError("not a trial of this schema")
        time = data.get("time")
        if time is not None and not (isinstance(time, int | float) and time > 0):
            raise ValueError(f"time is {time!r}")
        if not isinstance(data.get("configuration"), dict):
            raise ValueError("no configuration")
        for name, kind in _KINDS.items():
            if name in data and not isinstance(data[name], kind):
                raise ValueError(f"{name} is {data[name]!r}")
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


class Workdir:
    """W: configs/, trials/, state/, results/, final/.

    Parameters
    ----------
    path : str or Path
        Made when something is first written to it.

    Examples
    --------
    >>> from lapwing.tune.workdir import Workdir
    >>> Workdir("run").trials("BBS_TN_0").as_posix()
    'run/trials/BBS_TN_0.jsonl'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.state = self.path / "state"
        self.results = self.path / "results"
        self.final = self.path / "final"

    def configs(self) -> tuple[Problem, ...]:
        """The problems, those that take the most time first. ValueError names a file that is damaged."""
        found = []
        for path in sorted((self.path / "configs").glob("*.json")):
            try:
                data = json.loads(path.read_text())
                if data["schema"] != SCHEMA:
                    raise ValueError(f"schema {data['schema']} is not {SCHEMA}")
                count, seconds, percent = int(data["count"]), float(data["seconds"] or 0), float(data["percent"] or 0)
                found.append(Problem(_checked(str(data["name"])), Gemm.from_dict(data["gemm"]), count, seconds, percent))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"tune: {path} is not a configuration: {error}\nhint: make it again with configure") from error
        return tuple(sorted(found, key=lambda p: (-p.weight, p.name)))

    def add_config(self, problem: Problem) -> Path:
        path = self.path / "configs" / f"{_checked(problem.name)}.json"
        numbers = {"count": problem.count, "seconds": problem.seconds, "percent": problem.percent}
        data = {"schema": SCHEMA, "name": problem.name, "gemm": problem.gemm.to_dict(), **numbers}
        write_atomic(path, json.dumps(data, indent=1) + "\n")
        return path

    def trials(self, name: str) -> Path:
        """The file of a problem's trials, one a line, which only grows."""
        return self.path / "trials" / f"{_checked(name)}.jsonl"

    def read_trials(self, name: str) -> list[Trial]:
        """Every trial that can be read; a torn line is passed over."""
        path, found = self.trials(name), []
        if not path.exists():
            return []
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            try:
                found.append(Trial.from_json(line))
            except (ValueError, TypeError):
                if line.strip():
                    _log.info("%s line %d is torn and was passed over", path, number)
        return found

    def add_trial(self, name: str, trial: Trial) -> None:
        """Append a line in one write, so that a reader sees all of it or, after a crash, a torn end."""
        path = self.trials(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (("\n" if torn else "") + trial.to_json() + "\n").encode())
        except OSError as error:  # a full disk
            error.filename = str(path)
            raise
        finally:
            os.close(handle)

    def add_environment(self, backend: str, environment: Mapping[str, str]) -> str:
        """The short name that trials have of it. The whole of it is kept, so that another one can be told from it in words."""
        name = environment_hash(environment)
        path = self.state / f"environment-{name}.json"
        if not path.exists():
            write_atomic(
                path, json.dumps({"schema": SCHEMA, "backend": backend, "environment": dict(environment)}, indent=1) + "\n"
            )
        return name

    def elsewhere(self, trials: Sequence[Trial], here: Mapping[str, Mapping[str, str]]) -> str:
        """In words how the environment of the last of these trials is not the one here, by backend; "" where it is."""
        for trial in reversed(trials):
            now = here.get(trial.backend)
            if now is not None and environment_hash(now) == trial.environment:
                return ""
        for trial in reversed(trials):
            now = here.get(trial.backend)
            try:
                path = self.state / f"environment-{re.sub('[^0-9a-f]', '', trial.environment)}.json"
                then = dict(json.loads(path.read_text())["environment"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if now is None:
                return f"{trial.backend} cannot be used here, and was used on {then.get('device', 'another machine')}"
            fields = [f for f in sorted({*now, *then}) if now.get(f) != then.get(f)]
            rows = [f"{f} is {now.get(f, 'missing')} here and was {then.get(f, 'missing')}" for f in fields]
            return f"{trial.backend}: " + "; ".join(rows)
        return "another device, or other versions" if trials else ""

    @contextmanager
    def lock_problem(self, name: str, timeout: float | None = 0.0) -> Iterator[bool]:
        """True inside when nobody else works on this problem; waits ``timeout`` seconds for that, None without end."""
        self.state.mkdir(parents=True, exist_ok=True)
        with _locked(self.state / f"{_checked(name)}.lock", timeout) as mine:
            yield mine

    def lock_device(self, device: int | str, family: str = "gpu", timeout: float | None = None) -> Any:
        return lock_device(device, family, timeout)


@contextmanager
def lock_device(device: int | str, family: str = "gpu", timeout: float | None = None) -> Iterator[bool]:
    """While inside, no other process on this machine times on the device. It ends with the process, however that ends.

    GPUs are told apart by their place in the machine: what CUDA_VISIBLE_DEVICES renumbers is still the same GPU.
    """
    shown = [x.strip() for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if family == "gpu" and isinstance(device, int) and device < len(shown) and shown[device]:
        device = shown[device]
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", f"{family}-{device}")
    if len(safe) > 100:  # the path of a recorded space is part of it, and a file's name may have 255 bytes
        safe = f"{safe[:60]}-{hashlib.sha256(safe.encode()).hexdigest()[:16]}"
    with _locked(Path(tempfile.gettempdir()) / f"lapwing-device-{safe}.lock", timeout) as mine:
        yield mine


@contextmanager
def _locked(path: Path, timeout: float | None) -> Iterator[bool]:
    handle = _open_lock(path)
    try:
        end = None if timeout is None else monotonic() + timeout
        mine = False
        while not mine:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if end is None else fcntl.LOCK_NB))
                mine = True
            except BlockingIOError:
                if end is not None and monotonic() >= end:
                    break
                sleep(0.02)
        yield mine
    finally:
        os.close(handle)  # which also unlocks


def _open_lock(path: Path) -> int:
    """Another user's lock file is good enough: only read access is needed to lock it."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:  # somebody was quicker
            return os.open(path, flags)


def write_atomic(path: Path, text: str) -> None:
    """All of it or nothing, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk
            error.filename = str(path)
        raise


def check_writable(folder: Path, what: str) -> None:
    """ValueError where nothing can be written there: before minutes are spent on what would be lost."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"{what}: {folder} cannot be written: {why}\nhint: name another folder, or make room") from error


def umask() -> int:
    # there is no way to read it without setting it, so it is read from the kernel
    try:
        found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        found = None
    return int(found[1], 8) if found else 0o022


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The valid candidates, the fastest first, each by its latest timing. One that failed later on is out."""
    latest: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        key = (trial.backend, canonical(trial.configuration))
        if key not in latest or trial.stage == "confirm" or trial.time is None:
            latest[key] = trial
    return sorted((t for t in latest.values() if t.time is not None), key=lambda t: t.time or inf)


def environment_hash(environment: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(environment), sort_keys=True).encode()).hexdigest()[:16]


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"tune: {name!r} is not a name for a configuration")
    return name
