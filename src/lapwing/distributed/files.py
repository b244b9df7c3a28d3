"""A sharded matrix in a folder: one .npy file for each rank, and a manifest that names them.

A save writes its blocks under new names, and then replaces the manifest in one step: whatever happens in between, the folder
holds the old matrix or the new one. After that the files of earlier saves, and of saves that were killed, are deleted; files
with other names are never touched.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.plan import bytes_in_words
from ..core.problem import DTYPES
from .layout import Layout

_MANIFEST = "manifest.json"
_FORMAT, _FIRST_FORMAT = "lapwing sharded matrix 2", "lapwing sharded matrix 1"
_OURS = re.compile(r"block-\d{5,}-[0-9a-f]{16}\.npy(\.part)?|manifest\.json\.part")
# a full disk, a quota, a limit for the size of files; NumPy's error for a block that was cut short has no number
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)


@dataclass(frozen=True)
class Saved:
    """A manifest. ``label`` is in the names of the block files; saves of the first format have none."""

    layout: Layout
    dtype: np.dtype
    label: str

    def block(self, rank: int) -> str:
        return f"block-{rank:05d}-{self.label}.npy" if self.label else f"block-{rank:05d}.npy"


def new_label() -> str:
    return secrets.token_hex(8)


# ---- writing ----


def write_block(folder: Path, saved: Saved, rank: int, local: np.ndarray) -> None:
    """Write one block; if that fails, the file is removed."""
    path = folder / saved.block(rank)
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "wb") as file:
            np.save(file, local)
            file.flush()
            os.fsync(file.fileno())  # the manifest must not reach the disk before the blocks
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def finish(folder: Path, saved: Saved) -> None:
    """Replace the manifest, and delete the files of earlier saves."""
    old = None
    with suppress(OSError, ValueError):
        old = read_manifest(folder)
    part = folder / f"{_MANIFEST}.part"
    known = {"dtype": saved.dtype.name, "shape": list(saved.layout.shape), "label": saved.label}
    part.write_text(json.dumps({"format": _FORMAT, **known, "layout": saved.layout.as_json()}, indent=1))
    part.replace(folder / _MANIFEST)
    stale = {entry.name for entry in folder.iterdir() if _OURS.fullmatch(entry.name) and saved.label not in entry.name}
    if old is not None:
        stale |= {old.block(rank) for rank in range(old.layout.size)}
    for name in stale:
        with suppress(OSError):  # the new matrix is complete even if old files stay
            (folder / name).unlink()


def discard(folder: Path, saved: Saved, rank: int) -> None:
    """Delete the block of a save that failed on another rank."""
    (folder / saved.block(rank)).unlink(missing_ok=True)


def reason(work: Callable[[], Any], folder: Path, count: int) -> Exception | None:
    """The error of ``work``, which writes ``count`` bytes; None if it succeeds."""
    try:
        work()
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        free, room = "", ""
        if error.errno in _NO_ROOM:
            room = "make room or "
            with suppress(OSError):
                free = f"; {bytes_in_words(shutil.disk_usage(folder).free)} are free there, {bytes_in_words(count)} are needed"
        failure = OSError(
            f"ShardedMatrix.save: {error.filename or folder} cannot be written: {why}{free}"
            f"\nhint: {room}choose another folder; a matrix that was saved there before is unchanged"
        )
        failure.errno = error.errno
        return failure
    return None


# ---- reading ----


def read_manifest(folder: Path) -> Saved:
    """The manifest of a folder.

    Raises
    ------
    ValueError
        It is damaged, or was not written by :meth:`ShardedMatrix.save`.
    """
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {type(error).__name__}: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") not in (_FORMAT, _FIRST_FORMAT):
        raise ValueError(f"{path} is not of the format {_FORMAT!r}")
    label = manifest.get("label", "")
    if not isinstance(label, str) or not re.fullmatch("[0-9a-f]{16}" if manifest["format"] == _FORMAT else "", label):
        raise ValueError(f"{path} has the label {label!r}")
    if manifest.get("dtype") not in DTYPES:
        raise ValueError(f"{path} has dtype {manifest.get('dtype')!r}, which is not one of {', '.join(DTYPES)}")
    try:
        layout = Layout.from_json(manifest.get("layout"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if manifest.get("shape") != list(layout.shape):
        raise ValueError(f"{path} has shape {manifest.get('shape')!r}, and its layout is one of {list(layout.shape)}")
    saved = Saved(layout, np.dtype(manifest["dtype"]), label)
    last = folder / saved.block(layout.size - 1)
    if not last.exists():
        raise FileNotFoundError(2, "a block is missing", str(last))
    return saved


def read_block(folder: Path, saved: Saved, target: Layout, rank: int) -> np.ndarray:
    """This rank's block of ``target`` from the files of a save, through their memory maps."""
    block = np.empty(target.local_shape(rank), saved.dtype)
    here = target.place(rank)
    for other in range(saved.layout.size if here else 0):
        there = saved.layout.place(other)
        assert here is not None and there is not None
        rows = target.rows.meeting(here[0], saved.layout.rows, there[0])
        columns = target.columns.meeting(here[1], saved.layout.columns, there[1])
        if 0 in (_count(rows[0]), _count(columns[0])):
            continue
        name, expected = saved.block(other), saved.layout.local_shape(other)
        data = np.load(folder / name, mmap_mode="r")
        if data.shape != expected or data.dtype != saved.dtype:
            raise ValueError(
                f"{name} has shape {data.shape} and dtype {data.dtype}, and the manifest says {expected} and {saved.dtype}"
            )
        block[_both(rows[0], columns[0])] = data[_both(rows[1], columns[1])]
    return block


def _count(places: Any) -> int:
    return places.stop - places.start if isinstance(places, slice) else len(places)


def _both(rows: Any, columns: Any) -> Any:
    if isinstance(rows, slice) and isinstance(columns, slice):
        return rows, columns
    return np.ix_(*(np.arange(x.start, x.stop) if isinstance(x, slice) else x for x in (rows, columns)))
