"""Checkpoints: nested dicts of numbers, strings and arrays, in one npz file per rank. No pickle."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .arrays import library_of, to_host

_FORMAT = "lapwing.insitu checkpoint"
_VERSION = 1
_PARTIAL = re.compile(r".+\.rank\d+\.npz\.(\d+)\.partial")  # the number is the process that writes the file
_LARGEST = 1 << 62  # steps and counts beyond this do not fit the 64-bit integers that ranks exchange


class CheckpointError(ValueError):
    """The checkpoint cannot be used for this run."""


def file_name(path: str | os.PathLike[str], rank: int) -> Path:
    """``PATH.rankR.npz``."""
    base = os.fspath(path).removesuffix(".npz")
    return Path(f"{base}.rank{rank}.npz")


def save(path: str | os.PathLike[str], comm: Any, header: dict[str, Any], states: list[dict[str, Any]]) -> Path:
    """Write ``states`` under a temporary name and rename the file when it is complete."""
    arrays: dict[str, np.ndarray] = {}
    packed = [_pack(state, f"{i}", arrays) for i, state in enumerate(states)]
    about = {"format": _FORMAT, "version": _VERSION} | header | {"states": packed}
    target = file_name(path, comm.rank)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target.parent)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            _lock(file)
            np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def remove_stale(folder: Path) -> None:
    """Remove the unfinished checkpoints in ``folder`` that a killed process of this user has left.

    A writer holds a lock on its file until it ends, so a locked file is still being written, on this machine or another.
    """
    for path in folder.glob("*.partial") if os.name == "posix" else ():
        name = _PARTIAL.fullmatch(path.name)
        if not name or _running(int(name[1])):
            continue
        with contextlib.suppress(OSError), open(path, "rb", opener=_open_no_link) as file:
            state = os.fstat(file.fileno())
            if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and _lock(file):
                path.unlink()


def _lock(file: BinaryIO) -> bool:
    """Whether no other process holds the file; assumed so if the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it belongs to another user
    return True


def load(path: str | os.PathLike[str], comm: Any, expected: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the header and the states of this rank. If one rank fails, all ranks raise CheckpointError."""
    problem = ""
    content: tuple[dict[str, Any], list[dict[str, Any]]] | None = None
    try:
        content = _load(file_name(path, comm.rank), expected)
    except Exception as error:
        problem = str(error)
    step = content[0]["step"] if content else -1
    # the maxima of x and -x show whether all ranks hold the same step
    low, high, failed = comm.maximum(np.array([-step, step, bool(problem)], np.int64))
    if problem:
        raise CheckpointError(problem)
    if failed:
        raise CheckpointError(f"restore: another rank could not read its part of the checkpoint {path}")
    if -low != high:
        raise CheckpointError(f"restore: the ranks' parts of the checkpoint {path} have different steps, {-low} to {high}")
    assert content
    return content


def _load(target: Path, expected: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not target.exists():
        others = sorted(target.parent.glob(f"{target.name.rsplit('.rank', 1)[0]}.rank*.npz"))
        hint = f"\nhint: it has the parts of {len(others)} ranks, this run has {expected['size']}" if others else ""
        raise CheckpointError(f"restore: there is no checkpoint {target}{hint}")
    foreign = f"restore: {target} is not a checkpoint of lapwing.insitu"
    try:
        with open(target, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            about = json.loads(bytes(file["about"]))
            arrays = {name: file[name] for name in file.files}
    except Exception as error:
        raise CheckpointError(f"{foreign}, or it is damaged ({type(error).__name__}: {error})") from None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise CheckpointError(foreign)
    if about.get("version") != _VERSION:
        raise CheckpointError(
            f"restore: {target} has version {about.get('version')} of the format; this lapwing reads version {_VERSION}"
        )
    problem = _header_problem(about)
    if problem:
        raise CheckpointError(f"restore: the header of {target} is damaged: {problem}")
    if (about["size"], about["rank"]) != (expected["size"], expected["rank"]):
        raise CheckpointError(
            f"restore: {target} belongs to rank {about['rank']} of {about['size']}, "
            f"not to rank {expected['rank']} of {expected['size']}"
        )
    saved, wanted = ([_in_words(a) for a in x["analyses"]] for x in (about, expected))
    if saved != wanted:
        names = ["; ".join(x) or "none" for x in (saved, wanted)]
        raise CheckpointError(f"restore: {target} holds the analyses {names[0]}, but this run has {names[1]}")
    try:
        return about, [_unpack(s, arrays) for s in about["states"]]
    except Exception as error:
        raise CheckpointError(f"restore: the states in {target} are damaged ({type(error).__name__}: {error})") from None


def _header_problem(about: dict[str, Any]) -> str:
    """What is wrong with the values of a header, or an empty string. The file may come from anywhere."""
    for name in ("step", "time", "steps", "rank", "size"):
        if not _valid(name, about.get(name)):
            return f"{name} is {_short(about.get(name))}"
    analyses, states = about.get("analyses"), about.get("states")
    if not isinstance(analyses, list) or not isinstance(states, list) or len(analyses) != len(states):
        return "it does not list one state for each analysis"
    for i, entry in enumerate(analyses):
        for name in ("name", "class", "fields", "every", "calls", "errors", "disabled"):
            value = entry.get(name) if isinstance(entry, dict) else entry
            if not _valid(name, value):
                return f"{name} of analysis {i + 1} is {_short(value)}"
    return ""


def _valid(name: str, value: Any) -> bool:
    if name in ("name", "class", "disabled"):
        return isinstance(value, str)
    if name == "fields":
        return value is None or (isinstance(value, list) and all(isinstance(x, str) for x in value))
    whole = type(value) is int and abs(value) < _LARGEST
    if name == "time":  # the solver chooses its time: NaN is unusual, not damaged
        return whole or type(value) is float
    return whole and (name == "step" or value >= 0)


def _short(value: Any) -> str:
    text = repr(value) if type(value) is not int or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _in_words(analysis: dict[str, Any]) -> str:
    """The properties that must be the same for a state to fit."""
    fields = "all fields" if analysis["fields"] is None else ", ".join(analysis["fields"])
    return f"{analysis['name']} ({analysis['class']} of {fields or 'no field'}, every {analysis['every']})"


def _pack(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Turn ``value`` into JSON; its arrays go into ``arrays``, under the names that the JSON refers to."""
    if isinstance(value, dict):
        return {"dict": {str(k): _pack(v, f"{name}/{k}", arrays) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_pack(v, f"{name}/{i}", arrays) for i, v in enumerate(value)]}
    if isinstance(value, np.generic) or library_of(value) is not None:
        array = to_host(value)
        if array.dtype.hasobject:
            raise TypeError(f"checkpoint: the state {name} holds Python objects; use numbers, strings and arrays")
        key = f"{len(arrays)} {name}"  # the number keeps a key "a/b" apart from a key b inside a
        arrays[key] = array
        return {"array": key}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"checkpoint: the state {name} is a {type(value).__name__}; use numbers, strings, arrays, lists and dicts")


def _unpack(packed: Any, arrays: dict[str, np.ndarray]) -> Any:
    ((kind, value),) = packed.items()
    if kind == "dict":
        return {k: _unpack(v, arrays) for k, v in value.items()}
    if kind == "list":
        return [_unpack(v, arrays) for v in value]
    return arrays[value] if kind == "array" else value
