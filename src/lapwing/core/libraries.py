"""Find and open shared libraries: CUDA's, NCCL, cuSOLVERMp, ScaLAPACK, ELPA, MPI. Nothing is linked, nothing is opened early.

:func:`find` looks in this order:

1. the folders of ``LAPWING_CUDA_PATH`` (NVIDIA's libraries only);
2. what this process has loaded already: torch and JAX bring their own CUDA libraries, and two copies of one do not mix;
3. the folders in which pip installs NVIDIA's libraries (:func:`folders`), or for other libraries the folders of this Python
   environment, ``MKLROOT`` and ``LD_LIBRARY_PATH``;
4. the system: the name alone is passed to the loader.

:func:`load` opens a library once and keeps it. When that fails, the error lists the places it searched.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from glob import glob
from pathlib import Path

from .settings import cuda_paths, rocm_folder

# File names of NVIDIA's libraries, the newest first.
_NVIDIA = {
    "cuda": ("libcuda.so.1", "libcuda.so"),
    "cudart": ("libcudart.so.13", "libcudart.so.12"),
    "cublas": ("libcublas.so.13", "libcublas.so.12"),
    "cublasLt": ("libcublasLt.so.13", "libcublasLt.so.12"),
    "cusolver": ("libcusolver.so.12", "libcusolver.so.11"),
    "cusparse": ("libcusparse.so.12",),
    "nvJitLink": ("libnvJitLink.so.13", "libnvJitLink.so.12"),
    "nvrtc": ("libnvrtc.so.13", "libnvrtc.so.12"),
    "nccl": ("libnccl.so.2",),
    "cublasmp": ("libcublasmp.so.0",),
    "cusolverMp": ("libcusolverMp.so.0",),
    "cusolverMg": ("libcusolverMg.so.12", "libcusolverMg.so.11"),
}
_SCALAPACK = ("libscalapack.so.2.2", "libscalapack.so.2", "libscalapack.so")
# Other libraries. MKL's file names end in a number that changes with its release.
_OTHERS = {
    "scalapack-mpich": ("libscalapack-mpich.so.2.2", "libscalapack-mpich.so", *_SCALAPACK),
    "scalapack-openmpi": (
        "libscalapack-openmpi.so.2.2",
        "libscalapack-openmpi.so.2.1",
        "libscalapack-openmpi.so",
        *_SCALAPACK,
    ),
    "elpa": ("libelpa.so.19", "libelpa.so.20", "libelpa.so.18", "libelpa.so", "libelpa_openmp.so"),
}
_HINTS = {
    "cuda": "install NVIDIA's driver",
    "cudart": "pip install nvidia-cuda-runtime",
    "nvrtc": "pip install nvidia-cuda-nvrtc",
    "cublasLt": "pip install nvidia-cublas",
    "nccl": "pip install nvidia-nccl-cu13",
    "cusolverMp": "pip install nvidia-cusolvermp-cu13",
    "cusolverMg": "pip install nvidia-cusolver",
    "cublasmp": "pip install nvidia-cublasmp-cu13",
    "elpa": "apt install libelpa19, or add the folder of an installed one to LD_LIBRARY_PATH",
}


def load(library: str, *, operation: str = "lapwing", shared: bool = False, path: str = "") -> ctypes.CDLL:
    """Open a library, once for each name.

    Parameters
    ----------
    library : str
        A key of the tables above, such as "nccl".
    operation : str
        Named in the error message.
    shared : bool
        Make its symbols visible to libraries that are opened later. NVIDIA's distributed libraries need that.
    path : str
        Open this file, without a search.

    Returns
    -------
    ctypes.CDLL
        The same object for the same arguments: ``argtypes`` set by one caller hold for all, so set what the C header says.

    Raises
    ------
    OSError
        It was not found, or did not open. The message says where the search looked, and what to install.
    """
    try:
        return _load(library, ctypes.RTLD_GLOBAL if shared else ctypes.RTLD_LOCAL, path)
    except OSError as error:
        hint = _HINTS.get(library, f"pip install nvidia-{library.lower()}")
        searched = "" if path else f"; searched {_searched(library)}"
        raise OSError(f"{operation}: {_names(library)[0]} cannot be loaded: {error}{searched}\nhint: {hint}") from None


@cache
def _load(library: str, mode: int, path: str) -> ctypes.CDLL:
    path = path or find(library)
    first: OSError | None = None
    for name in (path,) if path else _names(library):
        try:
            return ctypes.CDLL(name, mode=mode)
        except OSError as error:
            first = first or error
    assert first is not None
    raise first


def find(library: str) -> str:
    """The path of a library; "" when it is in none of the searched folders. The system's loader may still know it."""
    names = _names(library)
    if library not in _NVIDIA:
        return _first_in(_other_folders(), names)
    if path := _first_in(_chosen(), names):
        return path
    paths = {Path(path).name: path for path in loaded()}
    return next((paths[name] for name in names if name in paths), "") or _first_in(folders(), names)


def folders() -> list[str]:
    """The folders in which pip installs NVIDIA's libraries."""
    return [p for root in sys.path if root for pattern in ("nvidia/*/lib", "nvidia/*/*/lib") for p in glob(f"{root}/{pattern}")]


def amd_folders() -> list[str]:
    """The folders in which ROCm and frameworks built for it put AMD's libraries."""
    patterns = ("_rocm_sdk*/lib", "torch/lib", "cupy/.data/lib")
    paths = [path for root in sys.path if root for pattern in patterns for path in sorted(glob(f"{root}/{pattern}"))]
    return [path for path in (*paths, f"{rocm_folder()}/lib") if glob(f"{path}/libamdhip64*") or glob(f"{path}/librocblas*")]


def chosen_wheel_folders() -> list[str]:
    """Folders below those of ``LAPWING_CUDA_PATH`` in which ``pip install --target`` puts NVIDIA's libraries.

    A copy of cuSOLVER there is used beside the one that a framework brings, for the routines that are faster in it.
    """
    patterns = ("nvidia/*/lib", "nvidia/*/*/lib")
    return [path for root in _chosen() for pattern in patterns for path in sorted(glob(f"{root}/{pattern}"))]


def loaded(pattern: str = "*") -> list[str]:
    """Paths of the shared libraries in this process whose file name matches a shell pattern. Empty where /proc is absent."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line[line.index("/") :].rstrip("\n") for line in maps if "/" in line and ".so" in line}
    except OSError:
        return []
    return sorted(path for path in paths if fnmatch(Path(path).name, pattern))


def open_lazily(path: str) -> None:
    """Open a library with its symbols visible to all others, and resolve them when they are used.

    ctypes resolves all symbols at once, which fails for MKL, as its parts need each other.
    """
    dl = ctypes.CDLL(None)
    dl.dlopen.restype, dl.dlopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    dl.dlerror.restype = ctypes.c_char_p  # looked up before dlopen: the look-up clears the message
    if not dl.dlopen(path.encode(), os.RTLD_LAZY | os.RTLD_GLOBAL):
        raise OSError((dl.dlerror() or b"").decode())


def _names(library: str) -> tuple[str, ...]:
    return _NVIDIA.get(library) or _OTHERS.get(library) or (f"lib{library}.so*",)


def _chosen() -> list[str]:
    return [folder for folder in cuda_paths().split(":") if folder]


def _other_folders() -> Iterator[str]:
    """Where pip, conda and installers put libraries with plain names, then the system's folders."""
    yield from (f"{sys.prefix}/lib", f"{sys.base_prefix}/lib")
    yield from (str(Path(entry).parent.parent) for entry in sys.path if entry.endswith("site-packages"))
    if root := os.environ.get("MKLROOT"):
        yield from (f"{root}/lib", f"{root}/lib/intel64")
    yield from (folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    yield from ("/usr/lib", "/usr/local/lib", "/lib", *glob("/usr/lib/*-linux-gnu"))


def _first_in(folders: Iterable[str], names: tuple[str, ...]) -> str:
    """The first file, by name and then by folder; "" for none."""
    folders = list(folders)
    return next((path for name in names for folder in folders for path in sorted(glob(f"{folder}/{name}"))), "")


def _searched(library: str) -> str:
    if library in _NVIDIA:
        chosen = ", ".join(_chosen()) or "which is not set"
        wheels = ", ".join(folders()) or "none installed"
        return f"LAPWING_CUDA_PATH ({chosen}), the libraries of this process, NVIDIA's wheels ({wheels}), the system"
    return f"{', '.join(dict.fromkeys(_other_folders()))}, the system"
