"""The environment variables that lapwing reads, all in one list. docs/settings.md is made from it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    name: str
    part: str  # of lapwing
    default: str
    what: str


_LIBRARY, _INSITU, _TUNE, _OTHER = "The library", "In-situ analysis", "Recording of matrix products", "Set by other programs"

SETTINGS = (
    Setting(
        "LAPWING_CACHE",
        _LIBRARY,
        "$XDG_CACHE_HOME/lapwing, or ~/.cache/lapwing",
        "Folder for compiled kernels and your own records. Empty turns the cache off.",
    ),
    Setting(
        "LAPWING_CUDA_PATH",
        _LIBRARY,
        "none",
        'Folders, separated by ":", searched first for the CUDA libraries. A newer cuSOLVER that `pip install --target` put'
        " below one of them is used beside the framework's, for the routines that are faster there.",
    ),
    Setting(
        "LAPWING_ENGINE",
        _LIBRARY,
        "auto",
        'The engine of every call with engine="auto". It is ignored for calls that this engine cannot do.',
    ),
    Setting(
        "LAPWING_HIP_PATH",
        _LIBRARY,
        "none",
        'Folders, separated by ":", searched first for AMD\'s libraries (libamdhip64, libhiprtc, librocblas, librocsolver). On'
        " a machine with GPUs of both vendors it chooses AMD's.",
    ),
    Setting(
        "LAPWING_KERNELS",
        _LIBRARY,
        "the packs that are installed",
        'Kernel packs, or folders of them, separated by ":", searched before those that are installed. Empty: use no pack.',
    ),
    Setting("LAPWING_INSITU", _INSITU, "1", '"0" turns the analysis off, whatever the solver asks for.'),
    Setting("LAPWING_INSITU_SCRIPT", _INSITU, "what the solver names", "The Python file to run instead."),
    Setting(
        "LAPWING_INSITU_ON_ERROR",
        _INSITU,
        "what the solver names",
        'What follows an error in the script: "disable", "warn", "stop" or "abort".',
    ),
    Setting(
        "LAPWING_INSITU_LIVE",
        _INSITU,
        "what the script asks for",
        '"1" or "0": write status.json for `lapwing insitu watch`, or not, whatever the script asks for.',
    ),
    Setting(
        "LAPWING_INSITU_LIB",
        _INSITU,
        "found beside Python",
        "Path of liblapwing_insitu.so for solvers that load it when they run.",
    ),
    Setting("LAPWING_INSITU_PYTHON", _INSITU, "$VIRTUAL_ENV, or python3", "The Python to start inside a solver that has none."),
    Setting("LAPWING_INSITU_VERBOSE", _INSITU, "none", "If set, say on standard error why the analysis is off."),
    Setting("LAPWING_INSITU_BRIDGE", _INSITU, "lapwing's own", "The Python module behind the C interface; for tests."),
    Setting(
        "LAPWING_RECORD",
        _TUNE,
        "none",
        "Folder for the recorded calls; `lapwing tune record` sets it for the program it starts.",
    ),
    Setting("LAPWING_RECORD_TORCH", _TUNE, "none", '"1": torch\'s own record too; set by the same command.'),
    Setting(
        "OMP_NUM_THREADS", _OTHER, "all cores", "Threads of the CPU kernels, where NumPy's BLAS does not say how many it uses."
    ),
    Setting("MKL_NUM_THREADS", _OTHER, "$OMP_NUM_THREADS, or 1", "Threads of each rank's ScaLAPACK."),
    Setting("ROCM_PATH", _OTHER, "/opt/rocm", "Where ROCm is installed; its folder lib is searched last for AMD's libraries."),
    Setting("XDG_CACHE_HOME", _OTHER, "~/.cache", "See LAPWING_CACHE."),
)


def default_engine() -> str:
    return os.environ.get("LAPWING_ENGINE") or "auto"


def cache_folder(part: str, *, make: bool = False) -> Path | None:
    """The user's own folder for ``part``; None where it does not exist (``make`` creates it) or others could write to it."""
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
    is_private = all(state.st_uid == os.geteuid() and not state.st_mode & 0o022 for state in states)
    return folder if is_private and stat.S_ISDIR(states[0].st_mode) else None


def cache_path(part: str) -> Path | None:
    """The path of the folder for ``part``, whether it exists or not; None when the cache is turned off."""
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


def hip_paths() -> str:
    return os.environ.get("LAPWING_HIP_PATH", "")


def rocm_folder() -> str:
    """Where ROCm is installed, as its own tools look for it."""
    return os.environ.get("ROCM_PATH") or "/opt/rocm"
