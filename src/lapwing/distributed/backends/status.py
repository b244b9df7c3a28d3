"""The status codes of NVIDIA's solvers, which cuSOLVERMp and cuSOLVERMg share."""

from __future__ import annotations

_NO_MEMORY = 2
_WORDS = {
    1: "it is not initialised",
    _NO_MEMORY: "no memory",
    3: "an invalid value",
    4: "this GPU is too old",
    6: "the device reports an error",
    7: "an internal error",
    9: "not supported",
}


def check(library: str, status: int, what: str) -> None:
    """Raise MemoryError if a device has no memory left, RuntimeError for every other status but success."""
    if status == _NO_MEMORY:
        raise MemoryError(f"distributed: {library} ({what}): out of GPU memory\nhint: use more GPUs, or free some memory")
    if status:
        raise RuntimeError(f"distributed: {library} ({what}): {_WORDS.get(status, f'status {status}')}")
