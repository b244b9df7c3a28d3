"""cuSOLVERMp 0.8 to 0.9: loading it, and the arguments of its routines."""

from __future__ import annotations

from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache, partial
from typing import Any

from ....core.engines import is_amd
from ....core.libraries import find
from ....core.problem import DTYPES
from .. import status
from .nccl import load, nccl

# cudaDataType
DATA = dict(zip(DTYPES, (0, 1, 4, 5), strict=True))
# 0.7.2 and below: wrong answers on grids that are not square, and races
_OLDEST = 800
_NCCL_FOR_09 = 22900

# p: pointer, l: 64-bit integer, i: 32-bit; handle first. A, B and Q stand for: pointer, row, column (from 1), descriptor.
_ROUTINES = {
    "Potrf": "i l A i",
    "Potrs": "i l l A B i",
    "Getrf": "l l A p i",
    "Getrs": "i l l A p B i",
    "Geqrf": "l l A p i",
    "Orgqr": "l l l A p i",
    "Gels": "i l l l A B i",
    "Syevd": "p i l A p B i",
    "Gesvd": "p i i l l A p B B i",
}
# routines whose query for the workspace takes other arguments
_NOT_ASKED = {"Geqrf": "l l A i"}
_EXPANDED = {"A": "pllp", "B": "pllp"}
_TYPES = {"p": c_void_p, "l": c_int64, "i": c_int}


def _types(pattern: str) -> list[Any]:
    letters = "".join(_EXPANDED.get(word, word) for word in pattern.split())
    return [c_void_p, *(_TYPES[letter] for letter in letters)]


class Library:
    """cuSOLVERMp, with cuBLAS for transposes and cuBLASMp if it is installed."""

    def __init__(self) -> None:
        for name in ("nvJitLink", "cusparse", "cublasLt", "cublas", "cusolver"):
            # cuSOLVERMp finds the libraries that its wheel installs; this is for a copy without a wheel
            if find(name):
                load(name)
        self.mp = load("cusolverMp")
        self.blas = load("cublas")
        self.version = 0  # read from the first handle
        mp = self.mp
        mp.cusolverMpCreate.argtypes = [c_void_p, c_int, c_void_p]
        mp.cusolverMpGetVersion.argtypes = [c_void_p, c_void_p]
        mp.cusolverMpCreateDeviceGrid.argtypes = [c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int]
        sizes = [c_int64] * 4
        mp.cusolverMpCreateMatrixDesc.argtypes = [c_void_p, c_void_p, c_int, *sizes, c_uint32, c_uint32, c_int64]
        for name in ("Destroy", "DestroyGrid", "DestroyMatrixDesc"):
            getattr(mp, f"cusolverMp{name}").argtypes = [c_void_p]
        for letter in "SDCZ":
            call = getattr(self.blas, f"cublas{letter}geam")
            summand = [c_void_p, c_void_p, c_int]  # weight, pointer, elements from one column to the next
            call.argtypes = [c_void_p, *[c_int] * 4, *summand, *summand, c_void_p, c_int]
        for name in ("Snrm2", "Dnrm2", "Scnrm2", "Dznrm2"):
            getattr(self.blas, f"cublas{name}_v2").argtypes = [c_void_p, c_int, c_void_p, c_int, c_void_p]
        self.blas.cublasCreate_v2.argtypes = self.blas.cublasDestroy_v2.argtypes = [c_void_p]
        self.blas.cublasSetStream_v2.argtypes = [c_void_p, c_void_p]

    def routine(self, name: str) -> tuple[Any, Any]:
        """A solver, and the query for its workspace on the device and on the host.

        NotImplementedError if this version does not have it.
        """
        try:
            run, ask = getattr(self.mp, f"cusolverMp{name}"), getattr(self.mp, f"cusolverMp{name}_bufferSize")
        except AttributeError:
            raise NotImplementedError(
                f"distributed: cuSOLVERMp {self.version_in_words} has no {name.lower()}"
                "\nhint: pip install 'nvidia-cusolvermp-cu13>=0.9' (with NCCL 2.29 or newer)"
            ) from None
        common = _types(_ROUTINES[name])
        run.argtypes = [*common, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]
        ask.argtypes = [*_types(_NOT_ASKED.get(name, _ROUTINES[name])), c_void_p, c_void_p]
        return run, ask

    @property
    def version_in_words(self) -> str:
        major, minor = divmod(self.version, 1000)
        return f"{major}.{minor // 100}.{minor % 100}"

    @property
    def eigenvectors(self) -> bytes:
        """The letter that makes Syevd compute vectors."""
        return b"V" if self.version >= 900 else b"Z"

    @property
    def values_alone(self) -> bool:
        """Whether Syevd can compute eigenvalues alone."""
        return self.version >= 900

    def opened(self, handle: int) -> None:
        """Read and check the version; the library needs a handle for that."""
        number = c_int()
        check(self.mp.cusolverMpGetVersion(handle, byref(number)), "version")
        self.version = number.value
        if self.version < _OLDEST:
            raise RuntimeError(
                f"distributed: cuSOLVERMp {self.version_in_words} is too old: wrong results on grids that are not square"
                "\nhint: pip install 'nvidia-cusolvermp-cu13>=0.8,<0.10'"
            )


_BLAS_STATUS = {
    1: "it is not initialised",
    3: "no memory",
    7: "an invalid value",
    8: "this GPU is too old",
    11: "memory that is not accessible",
    13: "the device reports an error",
    14: "an internal error",
    15: "not supported",
}


check = partial(status.check, "cuSOLVERMp")


def check_blas(status: int) -> None:
    """As :func:`check`, with the status codes of cuBLAS."""
    if status:
        raise RuntimeError(f"distributed: cuBLAS: {_BLAS_STATUS.get(status, f'status {status}')}")


@cache
def library() -> Library:
    """Load it, once.

    Raises
    ------
    OSError
        It is not installed, or needs a newer NCCL. ctypes binds all symbols at once, so this is checked before loading.
    """
    if needs_newer_nccl():
        version = nccl().version
        words = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        raise OSError(
            f"distributed: cuSOLVERMp 0.9 needs NCCL 2.29 or newer, and this process has {words}"
            "\nhint: pip install 'nvidia-nccl-cu13>=2.29', or 'nvidia-cusolvermp-cu13<0.9', which works with NCCL 2.27"
        )
    return Library()


def needs_newer_nccl() -> bool:
    """Whether this is 0.9 with an older NCCL. Only 0.9 uses cuBLASMp, so its name is looked for in the file before loading."""
    path = find("cusolverMp")
    if not path or nccl().version >= _NCCL_FOR_09:
        return False
    try:
        with open(path, "rb") as file:
            tail = b""
            while piece := file.read(1 << 24):
                if b"libcublasmp.so" in tail + piece:
                    return True
                tail = piece[-16:]
    except OSError:
        pass
    return False


def missing() -> str:
    """Why the engine cannot be used here; "" if it can."""
    if is_amd():
        return "distributed: the GPU here is not made by NVIDIA"
    try:
        nccl()
        library()
    except (OSError, RuntimeError) as error:
        return str(error)
    return ""
