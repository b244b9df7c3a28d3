"""The environment variables lapwing reads. There are no others.

LAPWING_CACHE      folder for compiled kernels and own records (default: $XDG_CACHE_HOME/lapwing or ~/.cache/lapwing);
                   empty turns the cache off
LAPWING_CUDA_PATH  folders, separated by ":", searched first for every library of NVIDIA (see core/libraries.py)
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["cache_folder", "cache_path", "cuda_paths"]


def cache_folder(part: str, *, make: bool = False) -> Path | None:
    """The user's own folder for ``part``; None where there is none yet, unless ``make``, or no safe place for one."""
    folder = cache_path(part)
    if folder is None or not hasattr(os, "geteuid"):
        return None
    try:
        if make:
            for level in (*reversed(folder.parents), folder):
                if not level.exists():
                    level.mkdir(mode=0o700, exist_ok=True)
        states = [folder.lstat(), folder.parent.stat()]
    except OSError:
        return None
    # what others can write to is never read back and run
    mine = all(state.st_uid == os.geteuid() and not state.st_mode & 0o022 for state in states)
    return folder if mine and stat.S_ISDIR(states[0].st_mode) else None


def cache_path(part: str) -> Path | None:
    """Where the folder for ``part`` is or would be; None when the cache is turned off."""
    chosen = os.environ.get("LAPWING_CACHE")
    if chosen == "":
        return None
    try:
        base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lapwing"
        path = (base / part).absolute()
        str(path).encode()
    except (OSError, RuntimeError, UnicodeError):
        return None
    return path


def cuda_paths() -> str:
    return os.environ.get("LAPWING_CUDA_PATH", "")
