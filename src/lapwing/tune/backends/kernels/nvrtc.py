"""Compile CUDA C++ at run time, by ctypes, also without a GPU."""

from __future__ import annotations

import ctypes as C
import functools
import glob
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

__all__ = ["compile_source", "library"]


def shared_object(name: str) -> str:
    """Path of a library of the CUDA toolkit: from the installed nvidia-* packages, else the name of the system's library."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = [p for p in glob.glob(os.path.join(folder, "*", "lib", f"lib{name}.so.*")) if "builtins" not in p]
        if found:
            return sorted(found)[-1]
    return f"lib{name}.so"


@functools.cache
def library() -> Any:
    lib = C.CDLL(shared_object("nvrtc"))
    lib.nvrtcGetErrorString.restype = C.c_char_p
    return lib


def compile_source(
    text: str, name: str, definitions: dict[str, int], *, arch: str = "sm_90a", options: Sequence[str] = ()
) -> bytes:
    """Compile source text to a cubin; ``name`` appears in messages. RuntimeError contains the compiler's output."""
    lib, program = library(), C.c_void_p()
    flags = [f"-arch={arch}", "-std=c++17", *options, *(f"-D{name}={value}" for name, value in definitions.items())]
    made = lib.nvrtcCreateProgram(C.byref(program), text.encode(), name.encode(), 0, None, None)
    if made:
        raise RuntimeError(f"{name}: {lib.nvrtcGetErrorString(made).decode()}")
    try:
        status = lib.nvrtcCompileProgram(program, len(flags), (C.c_char_p * len(flags))(*(f.encode() for f in flags)))
        size = C.c_size_t()
        if status:
            lib.nvrtcGetProgramLogSize(program, C.byref(size))
            log = C.create_string_buffer(size.value)
            lib.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{name} does not compile: {log.value.decode(errors='replace')[:2000]}")
        lib.nvrtcGetCUBINSize(program, C.byref(size))
        cubin = C.create_string_buffer(size.value)
        lib.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        lib.nvrtcDestroyProgram(C.byref(program))
