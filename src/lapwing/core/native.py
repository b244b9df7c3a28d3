"""The native module, loaded once, or None where it was not built."""

from __future__ import annotations

import shutil
import warnings
from functools import cache
from importlib import import_module
from typing import Any

from .problem import DEVICES, DTYPES

native: Any | None = None
missing_reason = ""
try:
    native = import_module("lapwing._native")
except ImportError as error:
    missing_reason = f"the native core was not built ({error}); g++ builds it when lapwing is installed from source"

# Names and numbers from native/ops.def and native/frame.h; empty without the native core.
OPS: dict[str, int] = {name: code for code, name in enumerate(native.operations())} if native is not None else {}
ENGINES: dict[str, int] = {name: code for code, name in enumerate(native.engines())} if native is not None else {}
AUTO = 0
CPU, CUDA = range(len(DEVICES))
DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}


def how_to_build() -> str:
    """How to get the native core."""
    build = "in lapwing's source folder: pip install --force-reinstall --no-deps ."
    return build if shutil.which("g++") else f"install g++ (Debian/Ubuntu: apt install g++), then {build}"


@cache
def warn_of_numpy(reason: str) -> None:
    """Warn at the first call that numpy.linalg answers in place of native code; once in a process for each reason."""
    warnings.warn(
        f"lapwing uses numpy.linalg, which is slower: {reason}\nhint: {how_to_build()}",
        RuntimeWarning,
        stacklevel=4,  # the line that called the public function
    )
