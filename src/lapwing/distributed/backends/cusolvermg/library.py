"""cuSOLVERMg: loading it, and the arguments of its routines."""

from __future__ import annotations

from ctypes import byref, c_int, c_int64, c_void_p
from functools import cache, partial
from typing import Any

from ....core.engines import is_amd
from ....core.libraries import find
from .. import status
from ..cusolvermp.library import DATA as DATA  # cudaDataType
from ..cusolvermp.nccl import load

# p: pointer, i: 32-bit integer; handle first. A and B stand for: pointers, row, column (from 1), descriptor.
_ROUTINES = {
    "Potrf": "i i A i",
    "Potrs": "i i i A B i",
    "Getrf": "i i A p i",
    "Getrs": "i i i A p B i",
    "Syevd": "i i i A p i i",
}
_EXPANDED = {"A": "piip", "B": "piip"}
_TYPES = {"p": c_void_p, "i": c_int}


class Library:
    """cuSOLVERMg, and cuBLAS for transposes."""

    def __init__(self) -> None:
        for name in ("nvJitLink", "cusparse", "cublasLt", "cublas"):
            # cuSOLVERMg finds libraries in its own folder by itself; this is for libraries in other folders
            if find(name):
                load(name)
        self.mg = load("cusolverMg")
        self.blas = load("cublas")
        mg = self.mg
        mg.cusolverMgCreate.argtypes = mg.cusolverMgDestroy.argtypes = [c_void_p]
        mg.cusolverMgDeviceSelect.argtypes = [c_void_p, c_int, c_void_p]
        mg.cusolverMgCreateDeviceGrid.argtypes = [c_void_p, c_int, c_int, c_void_p, c_int]
        mg.cusolverMgCreateMatrixDesc.argtypes = [c_void_p, *[c_int64] * 4, c_int, c_void_p]
        mg.cusolverMgDestroyGrid.argtypes = mg.cusolverMgDestroyMatrixDesc.argtypes = [c_void_p]
        for name, pattern in _ROUTINES.items():
            types = [c_void_p, *(_TYPES[t] for t in "".join(_EXPANDED.get(word, word) for word in pattern.split()))]
            getattr(mg, f"cusolverMg{name}").argtypes = [*types, c_void_p, c_int64, c_void_p]
            getattr(mg, f"cusolverMg{name}_bufferSize").argtypes = [*types, c_void_p]
        for letter in "SDCZ":
            summand = [c_void_p, c_void_p, c_int]  # weight, pointer, elements from one column to the next
            getattr(self.blas, f"cublas{letter}geam").argtypes = [
                c_void_p, *[c_int] * 4, *summand, *summand, c_void_p, c_int,
            ]  # fmt: skip
        for name in ("Ssymm", "Dsymm", "Chemm", "Zhemm"):
            getattr(self.blas, f"cublas{name}_v2").argtypes = [
                c_void_p, *[c_int] * 4, *[c_void_p, c_void_p, c_int, c_void_p, c_int] , c_void_p, c_void_p, c_int,
            ]  # fmt: skip
        self.blas.cublasCreate_v2.argtypes = self.blas.cublasDestroy_v2.argtypes = [c_void_p]
        self.blas.cublasSetStream_v2.argtypes = [c_void_p, c_void_p]

    def routine(self, name: str) -> tuple[Any, Any]:
        """A solver, and the query for its workspace: a number of elements on each device."""
        return getattr(self.mg, f"cusolverMg{name}"), getattr(self.mg, f"cusolverMg{name}_bufferSize")


check = partial(status.check, "cuSOLVERMg")


@cache
def library() -> Library:
    """Load it, once. Raises OSError if it is not installed."""
    return Library()


@cache
def missing() -> str:
    """Why the engine cannot be used here; "" if it can."""
    if is_amd():
        return "distributed: the GPU here is not made by NVIDIA"
    try:
        handle = c_void_p()
        check(library().mg.cusolverMgCreate(byref(handle)), "create")
        library().mg.cusolverMgDestroy(handle)
    except AttributeError as error:
        return f"distributed: this version of cuSOLVERMg or cuBLAS is not supported: {error}"
    except (OSError, RuntimeError, MemoryError) as error:
        return str(error)
    return ""
