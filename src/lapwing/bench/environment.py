"""The machine of a measurement: versions, processors, threads."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .._version import __version__
from ..core.engines import is_amd
from ..core.native import native

# names of distributions, by import name
PACKAGES: dict[str, tuple[str, ...]] = {
    name: (name,) for name in ("numpy", "scipy", "torch", "jax", "tensorflow", "cupy", "matplotlib")
}
PACKAGES["tensorflow"] += ("tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")
PACKAGES["cupy"] += ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x")
PACKAGES["cupy"] += ("cupy-rocm-7-0", "cupy-rocm-5-0", "cupy-rocm-4-3", "amd-cupy")
HOW_TO_GET = {name: f"pip install {name}" for name in PACKAGES if name != "numpy"}
HOW_TO_GET |= {"tensorflow": "pip install tensorflow-cpu", "cupy": "pip install cupy-cuda13x"}


def how_to_get(name: str) -> str:
    """How to install a package on this machine."""
    if name in ("torch", "jax", "cupy") and is_amd():
        return f"install a build of {name} for ROCm"
    return HOW_TO_GET[name]


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: int  # 90 is 9.0; 0: made by AMD
    memory: int  # bytes
    architecture: str = ""  # of AMD's: "gfx90a"
    lanes: int = 32  # threads of a warp, or of a wave

    def __str__(self) -> str:
        major, minor = divmod(self.capability, 10)
        return (
            f"{self.architecture}, waves of {self.lanes} lanes" if self.architecture else f"compute capability {major}.{minor}"
        )


@dataclass(frozen=True)
class Environment:
    versions: tuple[tuple[str, str], ...]
    system: str
    cpu: str
    instructions: str
    cores: int
    threads: int
    gpus: tuple[Gpu, ...]
    driver: str

    def hardware(self, device: str) -> str:
        """The name of the hardware in records."""
        return self.gpus[0].name if device == "cuda" else f"{self.instructions}, {self.threads} threads"


def environment() -> Environment:
    """Looked up without importing any framework."""
    versions = {"lapwing": __version__, "python": platform.python_version()}
    versions |= {name: v for name in PACKAGES if (v := installed_version(name))}
    gpus = gpus_here()
    return Environment(
        versions=tuple(versions.items()),
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        instructions=native.simd() if native is not None else "no native core",
        cores=cores(),
        threads=native.allowed_threads() if native is not None else cores(),
        gpus=gpus,
        driver=driver_version() if gpus else "",
    )


def gpus_here() -> tuple[Gpu, ...]:
    if native is None:
        return ()
    rows = native.gpus()
    return tuple(Gpu(*row, *more) for row, more in zip(rows, native.amd_gpus() or ((),) * len(rows), strict=True))


def cores() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_version(package: str) -> str:
    """The version of an installed package, or ""."""
    for name in PACKAGES[package]:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def counted(count: int, one: str, many: str = "") -> str:
    """ "1 thread", "2 threads"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def driver_version() -> str:
    """The GPU driver's version, or "" if unknown."""
    if native is not None and (versions := native.amd_versions()):
        return f"HIP {versions['driver']}"
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        words = [w for w in first.split() if w[:1].isdigit() and "." in w]
        if words:
            return words[0]
    except (OSError, IndexError):
        pass
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return answer.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
