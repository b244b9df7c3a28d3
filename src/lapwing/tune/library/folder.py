"""The folder of a library: read it, look products up, write it.

    final/manifest.json            {"schema": 1, "environment": {backend: {field: value}}, "policy": {...}}
    final/entries/<gemm.key>.json  one Entry

Nothing in it is executable, and no value is an index into a list that another version may change. A file that cannot be
trusted is ignored, as if its product had no entry.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..backends import get_own
from ..backends.base import Backend
from ..files import read_json, write_json
from ..gemm import Gemm
from .entry import SCHEMA, Entry

_log = logging.getLogger("lapwing")

Environments = dict[str, dict[str, str]]


class EnvironmentMismatch(ValueError):
    """The library was made on another machine, or with other versions.

    Attributes
    ----------
    differences : tuple of (field, here, there)
        What differs, for example ``("triton: torch", "2.13.0", "2.12.1")``. "" stands for a missing field.
    """

    def __init__(self, path: str | Path, differences: Iterable[tuple[str, str, str]], other: str | Path | None = None) -> None:
        self.path, self.other = str(path), None if other is None else str(other)
        self.differences = tuple(differences)
        here, there = ("here", "there") if other is None else (f"in {other}", f"in {path}")
        rows = "; ".join(f"{f} is {a or 'missing'} {here} and {b or 'missing'} {there}" for f, a, b in self.differences)
        if other is None:
            text = f"the library {path} was made elsewhere: {rows}\nhint: {self._hint()}"
        else:
            text = f"libraries from different environments cannot be merged: {rows}\nhint: tune one of them again"
        super().__init__(f"tune: {text}")

    def _hint(self) -> str:
        hint = "tune again on this machine with lapwing tune all"
        threads = next((there for field, _, there in self.differences if field.endswith(": blas threads") and there), "")
        if not threads:
            return hint
        setting = (
            f"OPENBLAS_NUM_THREADS={threads} (or OMP_NUM_THREADS), set before Python starts, gives the same number of threads"
        )
        return setting if len(self.differences) == 1 else f"{setting}; for the other differences {hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.differences, self.other)


class Library:
    """A folder of tuned products, which is read once.

    Parameters
    ----------
    path : path
        The folder that contains ``manifest.json``.
    device : int
        The device whose environment must be that of the library.
    check : bool
        False reads a library that was made elsewhere, to look at it, export it or merge it. Do not compute with it.
    backends : dict, optional
        Backends by name, instead of lapwing's own.

    Raises
    ------
    EnvironmentMismatch
        The library was made on another device or with other versions; the message names each field.
    """

    def __init__(
        self, path: str | Path, *, device: int = 0, check: bool = True, backends: Mapping[str, Backend] | None = None
    ) -> None:
        self.path = Path(path)
        self.backends = dict(backends or {})
        self.environment, self.policy = _read_manifest(self.path)
        if check:
            differences = self.differences(device)
            if differences:
                raise EnvironmentMismatch(self.path, differences)
        self.bad: dict[str, str] = {}  # ignored files, and why
        self.entries: dict[str, Entry] = {}
        for file in sorted((self.path / "entries").glob("*.json")):
            try:
                entry = Entry.read(file)
                if entry.backend not in self.environment:
                    raise ValueError(f"the manifest has no environment for its backend {entry.backend!r}")
            except (OSError, ValueError) as error:
                self.bad[file.name] = str(error)
            else:
                self.entries[entry.gemm.key] = entry
        if self.bad:
            name, why = next(iter(self.bad.items()))
            more = f" and {len(self.bad) - 1} more" if len(self.bad) > 1 else ""
            _log.warning("tune: %s: %s%s ignored: %s", self.path, name, more, why)
        self._ladders: dict[str, list[tuple[int, Entry]]] = {}
        for entry in self.entries.values():
            if (weight := _weight(entry.gemm)) is not None:
                self._ladders.setdefault(weight, []).append((entry.gemm.n, entry))
        for ladder in self._ladders.values():
            ladder.sort(key=lambda step: step[0])
        self.sizes = {(e.gemm.m, e.gemm.k, e.gemm.batch) for e in self.entries.values()}  # to reject most products quickly

    def differences(self, device: int = 0) -> tuple[tuple[str, str, str], ...]:
        """How this environment differs from the library's: field, value here, value there. Empty if it does not."""
        differing: list[tuple[str, str, str]] = []
        for name, there in self.environment.items():
            try:
                backend = self.backend(name)
                missing = backend.missing()
                here = backend.environment(device) if missing is None else {}
            except (ImportError, KeyError, RuntimeError, OSError) as error:
                missing, here = str(error.args[0] if error.args else error).splitlines()[0], {}
            if missing is not None:
                differing.append((name, f"not usable ({missing.splitlines()[0]})", "used"))
                continue
            differing += differences(name, here, there)
        return tuple(differing)

    def backend(self, name: str) -> Backend:
        return self.backends.get(name) or get_own(name)

    def lookup(self, gemm: Gemm) -> Entry | None:
        """The entry for this product, or None when the framework should compute it.

        All fields of the product must agree. A product that differs only in n, the number of tokens, may use the entry of the
        next larger or next smaller n, but only inside the ``buckets`` of that entry, where it was validated and timed. A
        deterministic product uses only entries that were tuned as deterministic.
        """
        entry = self._find(gemm)
        return entry if entry is not None or gemm.deterministic else self._find(replace(gemm, deterministic=True))

    def _find(self, gemm: Gemm) -> Entry | None:
        exact = self.entries.get(gemm.key)
        if exact is not None:
            return exact
        weight = _weight(gemm)
        ladder = self._ladders.get(weight) if weight is not None else None
        if ladder is None:
            return None
        above = bisect_left(ladder, gemm.n, key=lambda step: step[0])
        for at in (above, above - 1):
            if 0 <= at < len(ladder) and ladder[at][1].holds_for(gemm.n):
                return ladder[at][1]
        return None

    def ladders(self) -> tuple[tuple[Entry, ...], ...]:
        """Groups of entries that differ only in the number of tokens, the smallest first."""
        return tuple(tuple(entry for _, entry in ladder) for ladder in self._ladders.values())

    @property
    def digest(self) -> str:
        """A hash of the contents: equal libraries have the same."""
        contents = {"environment": self.environment, "entries": {k: e.to_dict() for k, e in sorted(self.entries.items())}}
        return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        by = ", ".join(sorted(self.environment))
        return f"<Library {self.path}: {len(self.entries)} product{'s' * (len(self.entries) != 1)}{by and f' by {by}'}>"


def differences(name: str, here: Mapping[str, str], there: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """The fields in which two environments of a backend differ, with both values; "" for a missing one."""
    both = [(f, here.get(f, ""), there.get(f, "")) for f in sorted({*here, *there})]
    return [(f"{name}: {f}", ours, theirs) for f, ours, theirs in both if ours != theirs]


def write(folder: Path, entries: Iterable[Entry], environment: Environments, policy: Mapping[str, Any]) -> None:
    """Write the entries first and the manifest last: a folder without a manifest is not a library yet."""
    (folder / "entries").mkdir(parents=True, exist_ok=True)
    written = {write_json(folder / "entries" / f"{e.gemm.key}.json", e.to_dict()).name for e in entries}
    for old in (folder / "entries").glob("*.json"):
        if old.name not in written and re.fullmatch("[0-9a-f]{16}", old.stem):  # files with other names are not ours
            old.unlink()
    write_json(folder / "manifest.json", {"schema": SCHEMA, "environment": environment, "policy": dict(policy)})


def _read_manifest(path: Path) -> tuple[Environments, dict[str, Any]]:
    try:
        manifest = read_json(path / "manifest.json")
    except OSError as error:
        inside = path / "final"
        hint = f"did you mean {inside}?" if (inside / "manifest.json").is_file() else "lapwing tune all writes W/final"
        raise FileNotFoundError(f"tune: {path} is not a tuned library: {error}\nhint: {hint}") from None
    except ValueError as error:
        raise ValueError(
            f"tune: the manifest of {path} cannot be read: {error}"
            "\nhint: the file is damaged; write the library again with lapwing tune compare"
        ) from None
    if manifest.get("schema") != SCHEMA:
        raise ValueError(f"tune: {path} has schema {manifest.get('schema')!r}; this version reads {SCHEMA}")
    environment = manifest.get("environment")
    good = isinstance(environment, dict) and all(
        isinstance(fields, dict) and all(isinstance(v, str) for v in fields.values()) for fields in environment.values()
    )
    if not good:
        raise ValueError(f"tune: the manifest of {path} does not name the environment of each backend")
    policy = manifest.get("policy")
    return environment, policy if isinstance(policy, dict) else {}  # type: ignore[return-value]


def _weight(gemm: Gemm) -> str | None:
    """A key that is equal for products that differ only in the number of tokens; None if their layout depends on it too."""
    if gemm.batch != 1 or gemm.trans_b != "N" or gemm.n == 0:
        return None
    return replace(gemm, n=1).key
