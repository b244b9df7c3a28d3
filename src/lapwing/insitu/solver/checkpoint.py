"""Checkpoints: nested dicts of numbers, strings and arrays in one npz file for each rank. No pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import library_of, to_host

__all__ = ["CheckpointError", "load", "save"]

_FORMAT = "lapwing.insitu checkpoint"
_VERSION = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be used for this run."""


def file_name(path: str | os.PathLike[str], rank: int) -> Path:
    """``PATH.rankR.npz``."""
    base = os.fspath(path).removesuffix(".npz")
    return Path(f"{base}.rank{rank}.npz")


def save(path: str | os.PathLike[str], comm: Any, header: dict[str, Any], states: list[dict[str, Any]]) -> Path:
    """Write ``states``; the file gets its name when it is complete."""
    arrays: dict[str, np.ndarray] = {}
    about = (
        {"format": _FORMAT, "version": _VERSION} | header | {"states": [_pack(s, f"{i}", arrays) for i, s in enumerate(states)]}
    )
    target = file_name(path, comm.rank)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def load(path: str | os.PathLike[str], comm: Any, expected: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and states of this rank. All ranks fail if one does."""
    problem = ""
    found: tuple[dict[str, Any], list[dict[str, Any]]] | None = None
    try:
        found = _load(file_name(path, comm.rank), expected)
    except Exception as error:
        problem = str(error)
    step = found[0]["step"] if found else -1
    # the largest of x and -x tell whether all ranks hold the same step
    low, high, bad = comm.maximum(np.array([-step, step, bool(problem)], np.int64))
    if problem:
        raise CheckpointError(problem)
    if bad:
        raise CheckpointError(f"{path}: another rank could not read its part of the checkpoint")
    if -low != high:
        raise CheckpointError(f"{path}: the parts of the ranks are of different steps, {-low} to {high}")
    assert found
    return found


def _load(target: Path, expected: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not target.exists():
        others = sorted(target.parent.glob(f"{target.name.rsplit('.rank', 1)[0]}.rank*.npz"))
        hint = f"\nhint: it has parts of {len(others)} ranks, this run has {expected['size']}" if others else ""
        raise CheckpointError(f"there is no checkpoint {target}{hint}")
    foreign = f"{target} is not a checkpoint of lapwing.insitu"
    try:
        with open(target, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            about = json.loads(bytes(file["about"]))
            arrays = {name: file[name] for name in file.files}
    except Exception as error:
        raise CheckpointError(f"{foreign}, or it is damaged ({type(error).__name__}: {error})") from None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise CheckpointError(foreign)
    if about.get("version") != _VERSION:
        raise CheckpointError(f"{target} has version {about.get('version')} of the format; this lapwing reads {_VERSION}")
    if (about["size"], about["rank"]) != (expected["size"], expected["rank"]):
        raise CheckpointError(
            f"{target} belongs to rank {about['rank']} of {about['size']}, not rank {expected['rank']} of {expected['size']}"
        )
    there, here = ([_in_words(a) for a in x["analyses"]] for x in (about, expected))
    if there != here:
        names = ["; ".join(x) or "none" for x in (there, here)]
        raise CheckpointError(f"{target} holds the analyses {names[0]}, but this run has {names[1]}")
    return about, [_unpack(s, arrays) for s in about["states"]]


def _in_words(analysis: dict[str, Any]) -> str:
    """What must be the same for a state to fit."""
    fields = "all fields" if analysis["fields"] is None else ", ".join(analysis["fields"])
    return f"{analysis['name']} ({analysis['class']} of {fields or 'no field'}, every {analysis['every']})"


def _pack(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """``value`` as JSON, with its arrays put aside under the names it refers to."""
    if isinstance(value, dict):
        return {"dict": {str(k): _pack(v, f"{name}/{k}", arrays) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_pack(v, f"{name}/{i}", arrays) for i, v in enumerate(value)]}
    if isinstance(value, np.generic) or library_of(value) is not None:
        made = to_host(value)
        if made.dtype.hasobject:
            raise TypeError(f"insitu: the state {name} holds Python objects; give numbers, strings and arrays")
        key = f"{len(arrays)} {name}"  # the number: "a/b" may be a key, and b a key in a
        arrays[key] = made
        return {"array": key}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"insitu: the state {name} is a {type(value).__name__}; give numbers, strings, arrays, lists and dicts")


def _unpack(packed: Any, arrays: dict[str, np.ndarray]) -> Any:
    ((kind, value),) = packed.items()
    if kind == "dict":
        return {k: _unpack(v, arrays) for k, v in value.items()}
    if kind == "list":
        return [_unpack(v, arrays) for v in value]
    return arrays[value] if kind == "array" else value
