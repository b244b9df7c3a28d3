"""Checkpoints of a factorisation: the factor in a file, and how far it is.

A changed input is noticed: the blocks that the finished panels were computed from are read again and compared by their check
sums, and so is a sample of all rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .lu import Panel
from .space import spans
from .stores import Store, Target, in_file, reopened

_SAMPLED = 64  # rows


class Watched(Store):
    """A store that keeps the check sums of the blocks that were read."""

    splits = False

    def __init__(self, store: Store) -> None:
        self.store, self.shape, self.dtype = store, store.shape, store.dtype
        self.sums: list[list[int]] = []

    def read(self, rows: slice, columns: slice, into: np.ndarray) -> None:
        self.store.read(rows, columns, into)
        self.sums.append([rows.start, rows.stop, columns.start, columns.stop, _sum_of(into)])


class Checkpoint:
    """A folder with ``factor.npy`` and ``state.json``."""

    def __init__(self, name: str, folder: str, a: Store, facts: dict[str, Any], lower: bool) -> None:
        self._name, self._folder = name, Path(folder)
        self.file = self._folder / "factor.npy"
        self._watched = Watched(a)
        self._facts = facts | {"sample": _sample(a, lower)}
        self._kept: list[list[int]] = []
        self._lower = lower
        self._sums: list[list[int]] = []  # of the finished panels
        self.done = 0
        self.panels: list[Panel] = []

    @property
    def source(self) -> Store:
        return self._watched

    def open(self) -> Target:
        """The factor: the part that was written before, or a new one."""
        state = self._read()
        if state is not None and state["done"]:
            self._compare(state)
            self.done, self._kept = state["done"], state["blocks"]
            self.panels = [Panel(start, stop, np.array(pivots, int)) for start, stop, pivots in state["panels"]]
            return self._checked(reopened(self.file), state["factor"])
        if state is None and self.file.exists():
            raise ValueError(
                f"{self._name}: {self.file} exists, but does not belong to a checkpoint"
                "\nhint: name another folder for the checkpoint"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(f"{self._name}: the checkpoint folder cannot be made: {error}") from None
        self._write(0, [])  # from now on the file is ours
        return in_file(self.file, self._watched.shape, self._facts["dtype"])

    def save(self, done: int, factor: Store, panels: list[Panel]) -> None:
        """Record that the panels up to column ``done`` are written; called when no thread reads."""
        factor.sync()
        n, start = factor.shape[0], self.done
        # a finished panel does not change: columns of L from the diagonal on, or rows of the transposed LU
        rows, columns = (slice(start, n), slice(start, done)) if self._lower else (slice(start, done), slice(0, n))
        self._sums.append([rows.start, rows.stop, columns.start, columns.stop, _sum_of_part(factor, rows, columns)])
        self._write(done, panels)
        self.done = done

    def _write(self, done: int, panels: list[Panel]) -> None:
        pivots = [[panel.start, panel.stop, panel.pivots.tolist()] for panel in panels]
        state = {"facts": self._facts, "done": done, "blocks": self._kept + self._watched.sums, "panels": pivots}
        state |= {"factor": self._sums}
        new = self._folder / "state.json.new"
        with open(new, "w") as file:
            json.dump(state | {"sum": _sum_of_state(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._folder / "state.json")

    def _read(self) -> dict[str, Any] | None:
        path = self._folder / "state.json"
        try:
            state = json.loads(path.read_text())
            if not isinstance(state, dict) or state.pop("sum", None) != _sum_of_state(state):
                raise ValueError("its check sum is wrong")
            if state["done"]:
                self._check_file(state["facts"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, IsADirectoryError) as error:
            raise ValueError(
                f"{self._name}: the checkpoint {path} is damaged ({error})\nhint: delete the folder to begin again"
            ) from None
        return state

    def _checked(self, place: Target, sums: list[list[int]]) -> Target:
        for first, last, left, right, expected in sums:
            if _sum_of_part(place.store, slice(first, last), slice(left, right)) != expected:
                raise ValueError(
                    f"{self._name}: the checkpoint {self.file} is damaged (rows {first} to {last}, columns {left} to {right})"
                    "\nhint: delete the folder to begin again"
                )
        self._sums = sums
        return place

    def _check_file(self, facts: dict[str, Any]) -> None:
        if not self.file.is_file():
            raise ValueError("factor.npy is missing")
        try:
            factor = np.load(self.file, mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise ValueError(f"factor.npy is too short, or not a NumPy file: {error}") from None
        if list(factor.shape) != facts["shape"] or str(factor.dtype) != facts["dtype"]:
            raise ValueError(f"factor.npy has shape {factor.shape} and dtype {factor.dtype}")

    def _compare(self, state: dict[str, Any]) -> None:
        saved = state["facts"]
        where = f"{self._name}: the checkpoint in {self._folder}"
        hint = "\nhint: delete the folder to begin again, or name another one"
        for key, value in self._facts.items():
            if saved.get(key) == value:
                continue
            if key == "sample":
                raise ValueError(f"{where} belongs to another matrix, or the matrix has changed since{hint}")
            raise ValueError(f"{where} has {key} {saved.get(key)}, this call has {value}{hint}")
        for first, last, left, right, expected in state["blocks"]:
            block = np.empty((last - first, right - left), self._watched.dtype)
            self._watched.store.read(slice(first, last), slice(left, right), block)
            if _sum_of(block) != expected:
                place = f"rows {first} to {last}, columns {left} to {right}"
                raise ValueError(f"{where} was written before the matrix changed ({place}){hint}")


def _sum_of(block: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(block).view(np.uint8).data)


def _sum_of_part(store: Store, rows: slice, columns: slice) -> int:
    total, width = 0, columns.stop - columns.start
    for part in spans(rows.start, rows.stop, max(1, (1 << 17) // max(width, 1))):
        block = np.empty((part.stop - part.start, width), store.dtype)
        store.read(part, columns, block)
        total = zlib.crc32(block.view(np.uint8).data, total)
    return total


def _sum_of_state(state: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(state).encode())


def _sample(a: Store, lower: bool) -> str:
    """A hash of some rows, of the part that is read."""
    n = a.shape[0]
    digest = hashlib.blake2b(digest_size=16)
    for part in spans(0, n, max(1, -(-n // _SAMPLED))):
        row = part.stop - 1
        line = np.empty((1, row + 1 if lower else n), a.dtype)
        a.read(slice(row, row + 1), slice(0, line.shape[1]), line)
        digest.update(line.data)
    return digest.hexdigest()
