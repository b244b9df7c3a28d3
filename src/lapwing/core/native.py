"""The native module, loaded once, or None where it was not built."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .problem import DEVICES, DTYPES, Problem

__all__ = [
    "AUTO",
    "CPU",
    "CUDA",
    "DTYPE_CODE",
    "ENGINES",
    "OPS",
    "missing_reason",
    "native",
    "workspace",
]

# Engine in native/frame.h; "reference" has no native code
ENGINES = {"auto": 0, "lapack": 1, "batched": 2, "tiled": 3, "cusolver": 4, "krylov": 5}
# Op in native/frame.h; "eigh_part" stands in rules alone, where the number of eigenvalues takes the place of the batch
OPS = {
    name: code
    for code, name in enumerate(
        ("cholesky", "finite", "eigh", "eigvalsh", "hermitian", "triangular", "solve", "inverse", "lu", "lu_solve",
         "cholesky_solve", "slogdet", "qr", "svd", "svdvals", "eigh_part")
    )
}  # fmt: skip
AUTO = ENGINES["auto"]
CPU, CUDA = range(len(DEVICES))
DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}

native: Any | None = None
missing_reason = ""
try:
    native = import_module("lapwing._native")
except ImportError as error:
    missing_reason = f"the native core is not there ({error}); it is built with g++ when lapwing is installed from source"


def workspace(problem: Problem, engine: str) -> tuple[int, int]:
    """Device and host bytes the engine takes beside input and output."""
    if native is None:
        return 0, 0
    if problem.n >= 2**28:  # more elements than 2^56, whose bytes no machine holds
        raise ValueError(f"{problem.operation}: n = {problem.n} is too large for any machine")
    device = DEVICES.index(problem.device)
    ordinal = 0 if device == CUDA else -1
    call = (
        OPS[problem.operation],
        DTYPE_CODE[problem.dtype],
        device,
        ordinal,
        ENGINES[engine],
        0,
        problem.flags,
        problem.sizes,
    )
    return native.scratch_bytes(*call), native.host_bytes(*call)
