"""A sharded matrix in a folder: one .npy file for each rank and a manifest, which comes last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .layout import Layout

__all__ = ["FORMAT", "block_name", "clear", "read_block", "tried", "write_manifest"]

FORMAT = "lapwing sharded matrix 1"


def block_name(rank: int) -> str:
    return f"block-{rank:05d}.npy"


def tried(work: Callable[[], Any]) -> Exception | None:
    try:
        work()
    except OSError as error:
        return OSError(error.errno, f"ShardedMatrix.save: {error.strerror}", error.filename)
    return None


def clear(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for old in (path / "manifest.json", *path.glob("block-*.npy")):
        old.unlink(missing_ok=True)


def write_manifest(path: Path, told: dict[str, Any]) -> None:
    (path / "manifest.json.part").write_text(json.dumps(told, indent=1))
    os.replace(path / "manifest.json.part", path / "manifest.json")


def read_block(path: Path, saved: Layout, target: Layout, rank: int, dtype: np.dtype) -> np.ndarray:
    """This rank's block of ``target`` from the files of ``saved``, through their memory maps."""
    block = np.empty(target.local_shape(rank), dtype)
    here = target.place(rank)
    for other in range(saved.size if here else 0):
        there = saved.place(other)
        assert here is not None and there is not None
        rows = target.rows.meeting(here[0], saved.rows, there[0])
        columns = target.columns.meeting(here[1], saved.columns, there[1])
        if 0 in (_count(rows[0]), _count(columns[0])):
            continue
        data = np.load(path / block_name(other), mmap_mode="r")
        if data.shape != saved.local_shape(other) or data.dtype != dtype:
            raise ValueError(f"{block_name(other)} has shape {data.shape} and dtype {data.dtype}, not those of the manifest")
        block[_both(rows[0], columns[0])] = data[_both(rows[1], columns[1])]
    return block


def _count(places: Any) -> int:
    return places.stop - places.start if isinstance(places, slice) else len(places)


def _both(rows: Any, columns: Any) -> Any:
    arrays = [np.arange(x.start, x.stop) if isinstance(x, slice) else x for x in (rows, columns)]
    return (rows, columns) if isinstance(rows, slice) and isinstance(columns, slice) else np.ix_(*arrays)
