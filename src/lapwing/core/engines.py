"""The engines for matrices on one device: what each one is, which operations it has, and why it cannot run on this machine.

Which of them takes a call is decided in native/plan.cc alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Protocol

from . import lapack, packs
from .native import ENGINES as NATIVE_ENGINES
from .native import OPS, missing_reason, native
from .plan import Capability
from .problem import DEVICES, DTYPES, WORK


@dataclass(frozen=True)
class Engine:
    """``missing(device)`` is "" or why the engine cannot run there."""

    name: str
    what: str
    notes: dict[str, str]  # how it works on each device
    missing: Callable[[str], str]
    library: Callable[[], str] = lambda: ""  # the library whose routines it calls, if machines differ in that
    special: dict[str, str] = field(default_factory=dict)  # notes for single operations on a GPU
    dtypes: tuple[str, ...] = DTYPES

    def described(self) -> str:
        library = self.library()
        return f"{self.what} from {library}" if library else self.what


def is_amd() -> bool:
    """Whether the GPUs here are AMD's."""
    return native is not None and not native.missing("driver") and bool(native.amd_gpus())


def library_engine() -> str:
    """The engine that calls the GPU vendor's own solver library."""
    return "rocsolver" if is_amd() else "cusolver"


def missing_gpu() -> str:
    """Why our GPU kernels cannot run here, or ""."""
    if native is None:
        return missing_reason
    if reason := native.missing("driver"):
        return f"no usable GPU: {reason}"
    if is_amd():
        reason = native.missing("compiler")
        return f"kernels are compiled at run time: {reason}\nhint: install hipRTC, a part of ROCm" if reason else ""
    candidates = packs.in_use()
    if any(not problem for *_, problem in candidates):
        return ""
    if reason := native.missing("compiler"):
        unused = "".join(f"{path} is not used: {problem}; " for path, *_, problem in candidates)
        return f"{unused}kernels are compiled at run time: {reason}\nhint: pip install nvidia-cuda-nvrtc"
    return ""


def _missing_library(part: str, package: str) -> str:
    if reason := missing_gpu():
        return reason
    assert native is not None
    reason = native.missing(part)
    how = "install rocBLAS and rocSOLVER, parts of ROCm" if is_amd() else f"pip install {package}"
    return f"{reason}\nhint: {how}" if reason else ""


def _missing_solver(engine: str, maker: str) -> str:
    if reason := missing_gpu():
        return reason
    if library_engine() != engine:
        return f'the GPU here is not made by {maker}\nhint: engine="{library_engine()}"'
    return _missing_library("solver", "nvidia-cusolver")


def _with_blas(device: str) -> str:
    return lapack.missing() if device == "cpu" else _missing_library("blas", "nvidia-cublas")


def _with_solver(device: str) -> str:
    """The library's direct routine stands behind the engine on a GPU."""
    return _with_blas(device) or (_missing_library("solver", "nvidia-cusolver") if device == "cuda" else "")


_SIMD = "SIMD across the batch, threads over it"
_LEAST_SQUARES = "by A^H A where the condition allows it, else by QR or the SVD"
_LARGE = "a thread, warp or block per matrix; large ones"
_SYSTEMS = ("triangular", "solve", "inverse", "lu", "lu_solve", "cholesky_solve", "slogdet", "det")

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "batched",
            "our kernels for many small matrices",
            {"cpu": _SIMD, "cuda": "a thread, warp or block per matrix"},
            lambda device: missing_gpu() if device == "cuda" else missing_reason,
            special=dict.fromkeys(("svd", "svdvals"), "a warp or part of one per matrix")
            | dict.fromkeys(("eigh", "eigvalsh"), f"{_LARGE} on several blocks, with the GPU's BLAS")
            | dict.fromkeys(_SYSTEMS, f"{_LARGE} by blocks of columns, with the GPU's BLAS")
            | {"lstsq": _LEAST_SQUARES},
        ),
        Engine(
            "lapack",
            "LAPACK",
            {
                "cpu": "one matrix after the other, with the library's threads",
                "cuda": "on the host: matrices are copied there, and results back",
            },
            lambda device: lapack.missing() or (missing_gpu() if device == "cuda" else ""),
            lapack.libraries,
        ),
        Engine(
            "tiled",
            "our kernel for a few larger matrices",
            {"cuda": "tiles of a matrix over all multiprocessors"},
            lambda device: missing_gpu(),
        ),
        Engine(
            "cusolver",
            "cuSOLVER, one large matrix after the other",
            {"cuda": "64-bit sizes; one matrix after the other"},
            lambda device: _missing_solver("cusolver", "NVIDIA"),
            special={
                "cholesky": "64-bit sizes",
                "lstsq": _LEAST_SQUARES,
                **dict.fromkeys(("eigh", "eigvalsh"), "64-bit sizes; batches together"),
            },
        ),
        Engine(
            "rocsolver",
            "AMD's rocSOLVER, one large matrix after the other",
            {"cuda": "GPUs of AMD; 32-bit sizes; one matrix after the other"},
            lambda device: _missing_solver("rocsolver", "AMD"),
            special={
                "lstsq": "GPUs of AMD; " + _LEAST_SQUARES,
                **dict.fromkeys(("cholesky", "eigh", "eigvalsh"), "GPUs of AMD; 32-bit sizes; batches together"),
            },
        ),
        Engine(
            "krylov",
            "our block Krylov iteration for the ends of a spectrum",
            dict.fromkeys(DEVICES, "part of a spectrum at either end; verified, else the direct routine"),
            _with_blas,
        ),
        Engine(
            "two_stage",
            "our two-stage eigensolver for one large real symmetric matrix",
            {"cuda": "by way of a band matrix, with cuBLAS; n up to 16384"},
            lambda device: _missing_library("blas", "nvidia-cublas"),
            dtypes=("float32", "float64"),
        ),
        Engine(
            "mixed",
            "our solver with a factor in lower precision and refinement",
            {
                "cpu": "general and positive definite; refined to full accuracy, else the direct routine",
                "cuda": "positive definite; refined to full accuracy, else the direct routine",
            },
            _with_solver,
            dtypes=("float64", "complex128"),
        ),
        Engine(
            "tall",
            "our Cholesky QR for tall and narrow matrices",
            dict.fromkeys(DEVICES, "a few passes over the rows, else the direct routine"),
            lambda device: lapack.missing() or _with_solver(device),
        ),
        Engine(
            "reference",
            "numpy.linalg, when the native core was not built",
            {"cpu": "matrix by matrix"},
            lambda device: "" if native is None else "not needed: the native core was built",
        ),
    )
}


class Backend(Protocol):
    """An entry in the list of engines, for matrices over several devices."""

    name: str
    what: str
    devices: tuple[str, ...]

    def missing(self, device: str) -> str: ...


# Modules with such engines in PUBLIC. They belong to higher layers, so they are imported only when the list is asked for.
_BACKENDS: list[str] = []


def register_backends(module: str) -> None:
    """Add a module, by its name, whose ``PUBLIC`` lists engines for matrices over several devices."""
    _BACKENDS.append(module)


def backends() -> list[Backend]:
    return [backend for module in _BACKENDS for backend in import_module(module).PUBLIC]


def capabilities() -> list[Capability]:
    """Every engine with every operation that it has, from the table in native/plan.cc."""
    rows = _native_rows() or [(operation, "cpu", "reference") for operation in WORK]
    return [
        Capability(operation, name, device, engine.dtypes, (device == "cuda" and engine.special.get(operation)) or note)
        for operation, device, name in rows
        for engine in (ENGINES[name],)
        for note in (engine.notes[device],)
    ]


@cache
def _native_rows() -> list[tuple[str, str, str]]:
    if native is None:
        return []
    operations, engines = list(OPS), list(NATIVE_ENGINES)
    rows = [(operations[op], DEVICES[device], engines[engine]) for op, device, engine in native.methods()]
    public = [row for row in rows if row[0] not in ("finite", "hermitian")]
    operations = [operation for operation in dict.fromkeys(row[0] for row in public) if operation != "schur"]  # NumPy has none
    return public + [(operation, "cpu", "reference") for operation in operations]
