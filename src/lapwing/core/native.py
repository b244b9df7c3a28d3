"""The native module, loaded once, or None where it was not built."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .problem import DEVICES, DTYPES

native: Any | None = None
missing_reason = ""
try:
    native = import_module("lapwing._native")
except ImportError as error:
    missing_reason = f"the native core was not built ({error}); g++ builds it when lapwing is installed from source"

# Names and numbers as native/ops.def and native/frame.h have them; without the native core there are none.
OPS: dict[str, int] = {name: code for code, name in enumerate(native.operations())} if native is not None else {}
ENGINES: dict[str, int] = {name: code for code, name in enumerate(native.engines())} if native is not None else {}
AUTO = 0
CPU, CUDA = range(len(DEVICES))
DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}
