"""The environment variables lapwing reads. There are no others.

LAPWING_CACHE      folder for compiled kernels and own records (default: $XDG_CACHE_HOME/lapwing or ~/.cache/lapwing);
                   empty turns the cache off
LAPWING_CUDA_PATH  folders, separated by ":", searched first for libcuda, libcusolver and libnvrtc
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "cuda_paths"]


def cache_folder(part: str) -> Path | None:
    """The user's own folder for ``part``, made if need be; None where there is no safe place for one."""
    chosen = os.environ.get("LAPWING_CACHE")
    if chosen == "":
        return None
    try:
        base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lapwing"
        folder = base / part
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):
        return None
    # what others can write to is never read back and run
    return folder if state.st_uid == os.geteuid() and not state.st_mode & 0o022 else None


def cuda_paths() -> str:
    return os.environ.get("LAPWING_CUDA_PATH", "")
