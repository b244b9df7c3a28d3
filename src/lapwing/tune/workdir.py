"""The folder of a tuning run: its files, and the locks that keep two processes from disturbing each other."""

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
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from .backends.base import Config
from .files import from_json, parse_json, read_json, write_json
from .gemm import Gemm
from .search.space import canonical

SCHEMA = 1
INVALIDITY = ("correct", "compile", "runtime", "timeout", "correctness", "constraints")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_log = logging.getLogger("lapwing")


@dataclass(frozen=True)
class Target:
    """One product to tune, as stored in W/configs/<name>.json."""

    name: str
    gemm: Gemm
    count: int = 1
    seconds: float = 0.0  # one call of the default
    percent: float = 0.0  # share of the measured time

    @property
    def weight(self) -> float:
        """Seconds of the program that this product takes."""
        return self.count * self.seconds


@dataclass(frozen=True)
class Trial:
    """One candidate that was tried or timed again: a line of W/trials/<name>.jsonl."""

    backend: str
    device: int
    gemm: str  # key of the product
    configuration: Config
    time: float | None  # median seconds
    invalidity: str = "correct"
    reason: str = ""
    environment: str = ""
    times: Mapping[str, Any] = field(default_factory=dict)  # compilation_time, runtimes, validation
    stage: str = "screen"  # "confirm" for the best ones, which are timed again with more samples
    took: float = 0.0  # seconds that the search spent on it
    resources: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)  # by probe

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **{name: getattr(self, name) for name in self.__dataclass_fields__}})

    def __post_init__(self) -> None:
        if self.invalidity not in INVALIDITY:
            raise ValueError(f"invalidity is {self.invalidity!r}")
        if self.time is not None and not self.time > 0:
            raise ValueError(f"time is {self.time!r}")

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """Parse one line. ValueError when it is not a trial."""
        return from_json(cls, parse_json(text), SCHEMA)


class Workdir:
    """W: configs/, trials/, state/, results/, final/.

    Parameters
    ----------
    path : str or Path
        The folder is created when something is first written to it.

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
        self._warned: set[Path] = set()

    def configs(self) -> tuple[Target, ...]:
        """Read the products to tune, those that take the most time first. ValueError names a damaged file."""
        targets = []
        for path in sorted((self.path / "configs").glob("*.json")):
            try:
                targets.append(from_json(Target, read_json(path), SCHEMA))
                _checked(targets[-1].name)
            except ValueError as error:
                raise ValueError(
                    f"tune: {path} is not a configuration: {error}\nhint: write it again with lapwing tune configure"
                ) from error
        return tuple(sorted(targets, key=lambda p: (-p.weight, p.name)))

    def add_config(self, target: Target) -> Path:
        return write_json(self.path / "configs" / f"{_checked(target.name)}.json", {"schema": SCHEMA, **asdict(target)})

    def trials(self, name: str) -> Path:
        """Path of a product's trials: one per line, and lines are only ever added."""
        return self.path / "trials" / f"{_checked(name)}.jsonl"

    def read_trials(self, name: str) -> list[Trial]:
        """Read every valid trial. Lines that are not trials are skipped, with one warning per file."""
        path = self.trials(name)
        trials: list[Trial] = []
        skipped: list[str] = []
        if not path.exists():
            return []
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            try:
                trials.append(Trial.from_json(line))
            except ValueError as error:
                if line.strip():
                    skipped.append(f"line {number} ({str(error)[:80]})")
        if skipped and path not in self._warned:
            self._warned.add(path)
            more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
            _log.warning("tune: %s: skipped %s%s: not a trial", path, skipped[0], more)
        return trials

    def add_trial(self, name: str, trial: Trial) -> None:
        """Append one line in one write: after a crash only the last line can be incomplete."""
        path = self.trials(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(handle).st_size
            incomplete = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (("\n" if incomplete else "") + trial.to_json() + "\n").encode())
        except OSError as error:  # a full disk does not say which file
            error.filename = str(path)
            raise
        finally:
            os.close(handle)

    def add_environment(self, backend: str, environment: Mapping[str, str]) -> str:
        """Store an environment and return its hash, which trials carry. The text is kept to explain differences later."""
        name = environment_hash(environment)
        path = self.state / f"environment-{name}.json"
        if not path.exists():
            write_json(path, {"schema": SCHEMA, "backend": backend, "environment": dict(environment)})
        return name

    def elsewhere(self, trials: Sequence[Trial], here: Mapping[str, Mapping[str, str]]) -> str:
        """How the environment of the last of these trials differs from this one, in words; "" when it does not."""
        for trial in reversed(trials):
            now = here.get(trial.backend)
            if now is not None and environment_hash(now) == trial.environment:
                return ""
        for trial in reversed(trials):
            now = here.get(trial.backend)
            try:
                path = self.state / f"environment-{re.sub('[^0-9a-f]', '', trial.environment)}.json"
                then = dict(read_json(path)["environment"])
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
        """Yield True when no other process works on this product. Waits ``timeout`` seconds for that; None waits for ever."""
        self.state.mkdir(parents=True, exist_ok=True)
        with _locked(self.state / f"{_checked(name)}.lock", timeout) as locked:
            yield locked


@contextmanager
def lock_device(device: int | str, family: str = "gpu", timeout: float | None = None) -> Iterator[bool]:
    """Keep other processes on this machine from timing on the device. The lock ends with the process, however that ends.

    GPUs are named by their place in the machine: a GPU that CUDA_VISIBLE_DEVICES renumbers is still the same GPU.
    """
    shown = [x.strip() for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if family == "gpu" and isinstance(device, int) and device < len(shown) and shown[device]:
        device = shown[device]
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", f"{family}-{device}")
    if len(safe) > 100:  # it contains the path of a recorded space, and a file name has at most 255 bytes
        safe = f"{safe[:60]}-{hashlib.sha256(safe.encode()).hexdigest()[:16]}"
    with _locked(Path(tempfile.gettempdir()) / f"lapwing-device-{safe}.lock", timeout) as locked:
        yield locked


@contextmanager
def _locked(path: Path, timeout: float | None) -> Iterator[bool]:
    handle = _open_lock(path)
    try:
        end = None if timeout is None else monotonic() + timeout
        locked = False
        while not locked:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if end is None else fcntl.LOCK_NB))
                locked = True
            except BlockingIOError:
                if end is not None and monotonic() >= end:
                    break
                sleep(0.02)
        yield locked
    finally:
        os.close(handle)  # closing releases the lock


def _open_lock(path: Path) -> int:
    """Open a lock file. One that belongs to another user works too: locking needs only read access."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:  # another process created it first
            return os.open(path, flags)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Valid candidates, fastest first, each with its latest timing. A candidate that failed later is left out."""
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
        raise ValueError(f"tune: {name!r} is not a valid configuration name\nhint: use letters, digits, _, . and -")
    return name
