"""The engines for matrices on one device: what each one is, which operations it has, and why it cannot run on this machine.

Which of them takes a call is decided in native/plan.cc alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from . import lapack
from .native import missing_reason, native
from .plan import Capability
from .problem import DTYPES

_SYSTEMS = ("triangular", "solve", "inverse", "lu", "lu_solve", "cholesky_solve", "slogdet")
_DECOMPOSITIONS = ("qr", "svd", "svdvals")
_SPECTRA = ("eigh", "eigvalsh")
_ALL = ("cholesky", *_SPECTRA, *_SYSTEMS, *_DECOMPOSITIONS)


@dataclass(frozen=True)
class Engine:
    """``missing(device)`` is "" or why the engine cannot run there."""

    name: str
    what: str
    capabilities: tuple[Capability, ...]
    missing: Callable[[str], str]
    library: Callable[[], str] = lambda: ""  # whose routines it calls, where that can differ

    def described(self) -> str:
        library = self.library()
        return f"{self.what} from {library}" if library else self.what


def missing_gpu() -> str:
    """Why our GPU kernels cannot run here, or ""."""
    if native is None:
        return missing_reason
    if reason := native.missing("driver"):
        return f"no usable GPU: {reason}"
    if reason := native.missing("compiler"):
        return f"kernels are compiled at run time: {reason}\nhint: pip install nvidia-cuda-nvrtc"
    return ""


def _missing_library(part: str, package: str) -> str:
    if reason := missing_gpu():
        return reason
    assert native is not None
    reason = native.missing(part)
    return f"{reason}\nhint: pip install {package}" if reason else ""


def _with_blas(device: str) -> str:
    return lapack.missing() if device == "cpu" else _missing_library("blas", "nvidia-cublas")


def _rows(
    engine: str, notes: dict[str, str], operations: tuple[str, ...], dtypes: tuple[str, ...] = DTYPES
) -> tuple[Capability, ...]:
    return tuple(Capability(op, engine, device, dtypes, note) for op in operations for device, note in notes.items())


_SIMD = "SIMD across the batch, threads over it"

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "batched",
            "our kernels for many small matrices",
            (
                *_rows("batched", {"cpu": _SIMD, "cuda": "a thread, warp or block per matrix"}, _ALL[:-2]),
                *_rows("batched", {"cpu": _SIMD, "cuda": "a warp or part of one per matrix"}, ("svd", "svdvals")),
            ),
            lambda device: missing_gpu() if device == "cuda" else missing_reason,
        ),
        Engine(
            "lapack",
            "LAPACK",
            _rows("lapack", {"cpu": "one matrix after the other, with the library's threads"}, _ALL),
            lambda device: lapack.missing(),
            lapack.libraries,
        ),
        Engine(
            "tiled",
            "our kernel for a few larger matrices",
            _rows("tiled", {"cuda": "tiles of a matrix over all multiprocessors"}, ("cholesky",)),
            lambda device: missing_gpu(),
        ),
        Engine(
            "cusolver",
            "cuSOLVER, one large matrix after the other",
            (
                *_rows("cusolver", {"cuda": "64-bit sizes"}, ("cholesky",)),
                *_rows("cusolver", {"cuda": "64-bit sizes; batches together"}, _SPECTRA),
                *_rows("cusolver", {"cuda": "64-bit sizes; one matrix after the other"}, (*_SYSTEMS, *_DECOMPOSITIONS)),
            ),
            lambda device: _missing_library("solver", "nvidia-cusolver"),
        ),
        Engine(
            "krylov",
            "our block Krylov iteration for the ends of a spectrum",
            _rows(
                "krylov",
                dict.fromkeys(("cpu", "cuda"), "part of a spectrum at either end; verified, else the direct routine"),
                _SPECTRA,
            ),
            _with_blas,
        ),
        Engine(
            "mixed",
            "our solver with a factor in lower precision and refinement",
            _rows(
                "mixed",
                {
                    "cpu": "general and positive definite; refined to full accuracy, else the direct routine",
                    "cuda": "positive definite; refined to full accuracy, else the direct routine",
                },
                ("solve",),
                ("float64", "complex128"),
            ),
            _with_blas,
        ),
        Engine(
            "tall",
            "our Cholesky QR for tall and narrow matrices",
            _rows(
                "tall", dict.fromkeys(("cpu", "cuda"), "a few passes over the rows, else the direct routine"), _DECOMPOSITIONS
            ),
            lambda device: lapack.missing() or _with_blas(device),
        ),
        Engine(
            "reference",
            "numpy.linalg, when the native core was not built",
            _rows("reference", {"cpu": "matrix by matrix"}, _ALL),
            lambda device: "" if native is None else "not needed: the native core was built",
        ),
    )
}


class Backend(Protocol):
    """An engine for matrices over several devices, as the list of engines shows it."""

    name: str
    what: str
    devices: tuple[str, ...]

    def missing(self, device: str) -> str: ...


# The modules whose PUBLIC are such engines. They are above this layer, and loaded when the list is asked for.
_BACKENDS: list[str] = []


def register_backends(module: str) -> None:
    """Add a module, by its name, whose ``PUBLIC`` lists engines for matrices over several devices."""
    _BACKENDS.append(module)


def backends() -> list[Backend]:
    return [backend for module in _BACKENDS for backend in import_module(module).PUBLIC]


def capabilities() -> list[Capability]:
    return [row for engine in ENGINES.values() for row in engine.capabilities]
