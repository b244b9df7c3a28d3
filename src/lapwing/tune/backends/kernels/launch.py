"""Start compiled kernels through the CUDA driver, by ctypes.

Triton's own launcher costs several microseconds per call and needs a C compiler on the user's machine. Here a kernel is a cubin
and a list of arguments that is packed once; a call only changes the pointers.
"""

from __future__ import annotations

import ctypes as C
import functools
from collections.abc import Sequence
from typing import Any

from ....core import libraries

SHARED_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
CLUSTER, DEPENDENT = 4, 6  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION
SCALARS: dict[str, Any] = {"pointer": C.c_void_p, "i32": C.c_int32, "i64": C.c_int64, "f32": C.c_float}


class _Attribute(C.Structure):
    _fields_ = (("id", C.c_int), ("pad", C.c_int), ("value", C.c_uint32 * 16))


class _LaunchConfig(C.Structure):
    _fields_ = (
        ("grid", C.c_uint * 3),
        ("block", C.c_uint * 3),
        ("shared", C.c_uint),
        ("stream", C.c_void_p),
        ("attributes", C.POINTER(_Attribute)),
        ("count", C.c_uint),
    )


@functools.cache
def driver() -> Any:
    """The library of the driver; OSError if there is none."""
    library = libraries.load("cuda", operation="tune")
    if status := library.cuInit(0):
        raise OSError(f"the CUDA driver does not start (error {status})")
    library.cuLaunchKernelEx.argtypes = (C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p)
    return library


def check(status: int, what: str) -> None:
    if status:
        text = C.c_char_p()
        driver().cuGetErrorString(status, C.byref(text))
        raise RuntimeError(f"{what}: {(text.value or b'error').decode()} ({status})")


class Function:
    """One kernel in the current context with its launch shape and packed arguments."""

    def __init__(
        self, cubin: bytes, name: str, *, threads: int, shared: int, cluster: int = 1, dependent: bool = False
    ) -> None:
        lib = driver()
        self._module, self.handle = C.c_void_p(), C.c_void_p()
        check(lib.cuModuleLoadData(C.byref(self._module), cubin), f"{name}: loading")
        check(lib.cuModuleGetFunction(C.byref(self.handle), self._module, name.encode()), f"{name}: finding")
        if shared > 48 << 10:
            check(lib.cuFuncSetAttribute(self.handle, SHARED_LIMIT, shared), f"{name}: {shared} bytes of shared memory")
            check(lib.cuFuncSetAttribute(self.handle, CARVEOUT, 100), f"{name}: shared memory")
        self.name, self.threads, self.shared, self.cluster, self.dependent = name, threads, shared, cluster, dependent

    def attribute(self, number: int) -> int:
        value = C.c_int()
        check(driver().cuFuncGetAttribute(C.byref(value), number, self.handle), self.name)
        return value.value

    @property
    def resources(self) -> dict[str, int]:
        return {"registers": self.attribute(4), "spills": self.attribute(3), "shared": self.attribute(1) + self.shared}

    def parameters(self) -> int:
        """Number of arguments of the kernel: compilers add hidden ones at the end."""
        count, offset, size = 0, C.c_size_t(), C.c_size_t()
        while driver().cuFuncGetParamInfo(self.handle, C.c_size_t(count), C.byref(offset), C.byref(size)) == 0:
            count += 1
        return count

    def bind(self, grid: Sequence[int], kinds: Sequence[str], values: Sequence[Any]) -> Launch:
        return Launch(self, grid, kinds, values)


class Launch:
    """A kernel with all its arguments: ``cells[i].value`` is the i-th, which may be changed between calls."""

    def __init__(self, function: Function, grid: Sequence[int], kinds: Sequence[str], values: Sequence[Any]) -> None:
        hidden = max(function.parameters() - len(kinds), 0)
        self.cells = [SCALARS[kind](value) for kind, value in zip(kinds, values, strict=True)]
        self.cells += [C.c_void_p(0) for _ in range(hidden)]
        self._arguments = (C.c_void_p * len(self.cells))(*(C.addressof(cell) for cell in self.cells))
        attributes = []
        if function.cluster > 1:
            attributes.append(_Attribute(CLUSTER, 0, (C.c_uint32 * 16)(function.cluster, 1, 1)))
        if function.dependent:  # the last one, so that it can be left out
            attributes.append(_Attribute(DEPENDENT, 0, (C.c_uint32 * 16)(1)))
        self._attributes = (_Attribute * max(len(attributes), 1))(*attributes)
        self.config = _LaunchConfig(
            (C.c_uint * 3)(*grid),
            (C.c_uint * 3)(function.threads, 1, 1),
            function.shared,
            None,
            self._attributes,
            len(attributes),
        )
        self._counts = len(attributes), len(attributes) - function.dependent
        self._call = driver().cuLaunchKernelEx
        self._fixed = (C.addressof(self.config), function.handle, C.addressof(self._arguments))
        self.function = function  # keeps the module loaded

    def __call__(self, stream: int, alone: bool = False) -> None:
        """``alone``: start only after all earlier kernels have ended, even if the kernel can overlap with them."""
        self.config.stream = stream
        self.config.count = self._counts[alone]
        config, handle, arguments = self._fixed
        if status := self._call(config, handle, arguments, None):
            check(status, self.function.name)
