"""Our own kernels for many small matrices: across SIMD lanes and threads on the CPU, across warps and blocks on a GPU."""

from __future__ import annotations

from ..core.native import missing_reason, native, workspace
from ..core.plan import Capability
from ..core.problem import DTYPES, Problem
from .engine import Engine

__all__ = ["ENGINE", "LARGEST_EIGH", "LARGEST_SOLVE", "SIDES", "SMALL", "fewest_svd", "missing_gpu"]

# one block keeps the lower triangle of its matrix in shared memory
_LARGEST_ON_GPU = 128
# Jacobi and QL on many matrices side by side: EIGH_LARGEST in native/eigh_cpu.h and eigh_cuda.h
LARGEST_EIGH = {"cpu": 192, "cuda": 512}
# takes() in native/solve_cpu.cc, solve_fits() in solve_cuda.cc
SMALL = ("triangular", "solve", "inverse", "lu", "lu_solve", "cholesky_solve", "slogdet", "qr")
LARGEST_SOLVE = {"cpu": 64, "cuda": 32}
# the longer and the shorter side of the matrices: svd_takes() in native/svd_cpu.cc, svd_fits() in svd_cuda.cc
SIDES = {"cpu": (128, 32), "cuda": (32, 32)}
_SVD = ("svd", "svdvals")
_LANES_LIMIT = 128  # as in native/cholesky_cpu.cc


def missing_gpu() -> str:
    """Why our GPU kernels cannot run here, or ""."""
    if native is None:
        return missing_reason
    if reason := native.missing("driver"):
        return f"no usable GPU: {reason}"
    if reason := native.missing("compiler"):
        return f"kernels are compiled at run time: {reason}\nhint: pip install nvidia-cuda-nvrtc"
    return ""


def _missing(device: str) -> str:
    return missing_gpu() if device == "cuda" else ("" if native is not None else missing_reason)


def _largest(problem: Problem) -> int | None:
    if problem.operation in ("eigh", "eigvalsh"):
        return LARGEST_EIGH[problem.device]
    if problem.operation in _SVD:
        return SIDES[problem.device][0]
    if problem.operation != "cholesky":
        return LARGEST_SOLVE[problem.device]
    return _LARGEST_ON_GPU if problem.device == "cuda" else None


def _refuses(problem: Problem) -> str:
    if problem.operation not in _SVD or problem.columns is None:
        return ""
    if problem.full and problem.n != problem.columns:
        return "batched has full matrices of a square matrix alone"
    most, least = SIDES[problem.device]
    if max(problem.n, problem.columns) <= most and min(problem.n, problem.columns) <= least:
        return ""
    return f"batched takes sides up to {most} and {least} on {problem.device}, not {problem.n} x {problem.columns}"


def fewest_svd(problem: Problem) -> int:
    """From so many matrices on it is faster than one after the other: svd_pays() in native/svd_cpu.cc, widest vectors."""
    k = min(problem.n, problem.columns or problem.n)
    lanes = 16 if problem.dtype in ("float32", "complex64") else 8
    return 1 if k <= 8 or problem.device == "cuda" else lanes // 4 if k <= 16 else lanes // 2


def _workspace(problem: Problem) -> tuple[int, int]:
    """On the CPU each thread keeps a copy of what it works on: 64 bytes of lanes for each element, or one matrix."""
    if native is None:
        return 0, 0
    if problem.device != "cpu":
        return workspace(problem, "batched")
    elements = problem.n * (problem.n + 1) // 2 if problem.operation == "cholesky" else problem.n * (problem.n + 3)
    if problem.operation in _SVD:
        elements = 4 * problem.n * (problem.columns or problem.n)
    parts = 2 if problem.dtype.startswith("complex") else 1
    each = 64 * parts * elements if problem.n <= _LANES_LIMIT else problem.n**2 * problem.itemsize
    return 0, each * min(native.allowed_threads(), problem.batch)


ENGINE = Engine(
    name="batched",
    what="our kernels for many small matrices",
    capabilities=(
        Capability("cholesky", "batched", "cpu", DTYPES, "SIMD across the batch, threads over it"),
        Capability("cholesky", "batched", "cuda", DTYPES, "a thread, warp or block per matrix"),
        *[Capability(op, "batched", "cpu", DTYPES, "SIMD across the batch, threads over it") for op in ("eigh", "eigvalsh")],
        *[Capability(op, "batched", "cuda", DTYPES, "a thread, warp or block per matrix") for op in ("eigh", "eigvalsh")],
        *[Capability(op, "batched", "cpu", DTYPES, "SIMD across the batch, threads over it") for op in SMALL],
        *[Capability(op, "batched", "cuda", DTYPES, "a thread, warp or block per matrix") for op in SMALL],
        *[Capability(op, "batched", "cpu", DTYPES, "SIMD across the batch, threads over it") for op in _SVD],
        *[Capability(op, "batched", "cuda", DTYPES, "a warp or part of one per matrix") for op in _SVD],
    ),
    missing=_missing,
    largest=_largest,
    workspace=_workspace,
    refuses=_refuses,
)
