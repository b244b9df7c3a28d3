"""The native module, loaded once, or None where it was not built."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .problem import DEVICES, DTYPES

__all__ = ["AUTO", "CPU", "CUDA", "DTYPE_CODE", "ENGINES", "missing_reason", "native", "scratch_bytes"]

# Engine in native/frame.h; "reference" has no native code
ENGINES = {"auto": 0, "lapack": 1, "batched": 2, "tiled": 3, "cusolver": 4}
AUTO = ENGINES["auto"]
CPU, CUDA = range(len(DEVICES))
DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}

native: Any | None = None
missing_reason = ""
try:
    native = import_module("lapwing._native")
except ImportError as error:
    missing_reason = f"the native core is not there ({error}); it is built with g++ when lapwing is installed from source"

_SCRATCH: dict[tuple[Any, ...], int] = {}


def scratch_bytes(*call: Any) -> int:
    """Device workspace of a call (op, dtype, device, ordinal, engine, threads, flags, sizes), remembered."""
    bytes_needed = _SCRATCH.get(call)
    if bytes_needed is None:
        assert native is not None
        if len(_SCRATCH) > 4096:
            _SCRATCH.clear()
        bytes_needed = _SCRATCH[call] = native.scratch_bytes(*call)
    return bytes_needed
