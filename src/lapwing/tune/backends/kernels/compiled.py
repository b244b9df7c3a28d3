"""Compile the kernels of a plan, with Triton or NVRTC. This needs no GPU; results are cached on disk."""

from __future__ import annotations

import ctypes as C
import functools
import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....core import libraries
from ....core.settings import cache_folder
from ...gemm import Gemm
from ..base import Refused
from .plan import Step

NAMES = {"f32": "fp32", "tf32": "fp32", "f16": "fp16", "bf16": "bf16", "f8e4m3": "fp8e4nv", "f8e5m2": "fp8e5", "f64": "fp64"}
SOURCE = Path(__file__).with_name("skinny.cu")
SHARED_MOST = 227 << 10  # bytes of shared memory a block may have on sm_90


@dataclass(frozen=True)
class Compiled:
    cubin: bytes
    name: str
    threads: int
    shared: int
    seconds: float


def compile_step(gemm: Gemm, step: Step, capability: int = 90) -> Compiled:
    """Compile one kernel. Refused("compile", ...) if the compiler fails or a limit of the device is exceeded."""
    start = time.perf_counter()
    try:
        compiled = cuda(step, capability) if step.kernel == "skinny" else by_triton(gemm, step, capability)
    except Refused:
        raise
    except Exception as error:  # compilers raise all kinds of errors
        raise Refused("compile", f"{type(error).__name__}: {str(error)[:300]}") from error
    if compiled[3] > SHARED_MOST:
        raise Refused("compile", f"{compiled[3]} bytes of shared memory; a block can have {SHARED_MOST}")
    return Compiled(*compiled, time.perf_counter() - start)


def signature(gemm: Gemm, step: Step) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], list[list[Any]]]]:
    """Types, constants and known divisibility of the arguments of a Triton kernel, in its own order."""
    pointers = {"WORK": "*fp32", "LOCKS": "*i32", "SA": "*fp32", "SB": "*fp32"}
    pointers |= {x.upper(): "*" + NAMES[getattr(gemm, f"{x}_type")] for x in "abcd"}
    pointers["BIAS"] = "*" + NAMES[gemm.bias or gemm.d_type]
    kinds = {"i32": "i32", "i64": "i64", "f32": "fp32"}
    types = {x.name: pointers[x.name] if x.kind == "pointer" else kinds[x.kind] for x in step.arguments}
    # only what widens a load or store: any other mark would compile another kernel for the same code
    useful = {"m", "k", "lda", "ldb", "ldc", "ldd", "step_a", "step_b", "step_c", "step_d"} | (
        {"n"} if gemm.trans_b != "N" else set()
    )
    divisible: dict[tuple[int, ...], list[list[Any]]] = {}
    for number, x in enumerate(step.arguments):
        if x.kind == "pointer" or (x.name in useful and isinstance(x.value, int) and x.value % 16 == 0):
            divisible[(number,)] = [["tt.divisibility", 16]]
    return types | {name: "constexpr" for name, _ in step.constants}, dict(step.constants), divisible


def by_triton(gemm: Gemm, step: Step, capability: int) -> tuple[bytes, str, int, int]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from . import tile

    types, constants, divisible = signature(gemm, step)
    source = ASTSource(getattr(tile, step.kernel), types, constants, divisible)
    options = {"num_warps": step.warps, "num_stages": step.stages, "enable_fp_fusion": True}
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return kernel.asm["cubin"], kernel.metadata.name, 32 * kernel.metadata.num_warps, kernel.metadata.shared


def cuda(step: Step, capability: int) -> tuple[bytes, str, int, int]:
    arch = f"sm_{capability}a" if capability == 90 else f"sm_{capability}"
    definitions = dict(step.constants)
    folder = cache_folder("tune", make=True)
    text = SOURCE.read_text()
    made_of = f"{text}{sorted(definitions.items())}{arch}{library()._name}"
    file = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.cubin" if folder else None
    if file and file.exists():
        cubin = file.read_bytes()
    else:
        cubin = compile_source(text, SOURCE.name, definitions, arch)
        if file:
            handle, name = tempfile.mkstemp(dir=file.parent)
            with os.fdopen(handle, "wb") as out:
                out.write(cubin)
            os.replace(name, file)
    return cubin, "skinny", 32 * step.warps, step.shared


@functools.cache
def library() -> Any:
    """NVRTC, which compiles CUDA C++ at run time, also without a GPU."""
    lib = libraries.load("nvrtc", operation="tune")
    lib.nvrtcGetErrorString.restype = C.c_char_p
    return lib


def compile_source(text: str, name: str, definitions: dict[str, int], arch: str) -> bytes:
    """Compile source text to a cubin; ``name`` appears in messages. RuntimeError contains the compiler's output."""
    lib, program = library(), C.c_void_p()
    flags = [f"-arch={arch}", "-std=c++17", *(f"-D{name}={value}" for name, value in definitions.items())]
    created = lib.nvrtcCreateProgram(C.byref(program), text.encode(), name.encode(), 0, None, None)
    if created:
        raise RuntimeError(f"{name}: {lib.nvrtcGetErrorString(created).decode()}")
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
