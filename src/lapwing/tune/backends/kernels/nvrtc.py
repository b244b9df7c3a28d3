"""Compile CUDA C++ at run time, by ctypes, also without a GPU."""

from __future__ import annotations

import ctypes as C
import functools
from collections.abc import Sequence
from typing import Any

from ....core import libraries


@functools.cache
def library() -> Any:
    lib = libraries.load("nvrtc", operation="tune")
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
