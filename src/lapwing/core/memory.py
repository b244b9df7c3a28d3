"""Memory of any array library: where it is, its strides, dtype and device; read and exported without importing a library.

:func:`memory_of_array` reads NumPy, CuPy, torch and JAX arrays by their attributes, and all others through
``__cuda_array_interface__`` or DLPack. :func:`memory_of_capsule` reads a DLPack capsule, :func:`capsule_of_memory` makes one.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

# DLPack's device codes
CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 10, 11, 13
HOST = (CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED)
GPU = (CUDA, ROCM, CUDA_MANAGED)
DEVICES = {
    CPU: "the CPU",
    CUDA: "CUDA device",
    CUDA_HOST: "pinned CUDA host memory",
    ROCM: "ROCm device",
    ROCM_HOST: "pinned ROCm host memory",
    CUDA_MANAGED: "CUDA managed memory",
}
UNKNOWN = -1  # the number of a device that an array does not report; the driver knows it from the pointer
_BITS = {"f": (16, 32, 64), "i": (8, 16, 32, 64), "u": (8, 16, 32, 64), "c": (64, 128), "b": (8,)}
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack's type codes by NumPy's kinds


@dataclass(frozen=True)
class Memory:
    """Memory that an array or a program owns. ``strides`` are in elements, ``device`` is DLPack's type and number."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    device: tuple[int, int]
    writable: bool
    owner: Any = None  # keeps the memory alive

    @classmethod
    def describe(
        cls,
        name: str,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        code: str,
        bits: int,
        device_type: int,
        device_id: int,
        writable: bool,
        owner: Any = None,
    ) -> Memory:
        """Check a description that came through a C interface. ``name`` is the field that the errors name; "" for none."""
        what = _subject(name)
        if bits not in _BITS.get(code, ()):
            raise ValueError(f"{what} has no known type: code {code!r} with {bits} bits")
        if device_type not in DEVICES:
            raise ValueError(f"{what} is on a device of unknown type {device_type}")
        shape = tuple(int(n) for n in shape)
        if any(n < 0 for n in shape):
            raise ValueError(f"{what} has the shape {shape}")
        strides = row_major_strides(shape) if strides is None else tuple(strides)
        if len(strides) != len(shape):
            raise ValueError(f"{what} has {len(shape)} dimensions but {len(strides)} strides")
        if not pointer and 0 not in shape:
            raise ValueError(f"{what} has a null pointer")
        dtype = np.dtype(np.bool_) if code == "b" else np.dtype(f"{code}{bits // 8}")
        return cls(pointer, shape, strides, dtype, (device_type, device_id), bool(writable), owner)

    @property
    def device_in_words(self) -> str:
        kind = DEVICES[self.device[0]]
        return f"{kind} {self.device[1]}" if self.device[0] in (CUDA, ROCM) else kind

    @property
    def span(self) -> tuple[int, int]:
        """The first byte of the elements, and the number of bytes up to the last one. Strides may be negative."""
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
        return self.pointer + low * self.dtype.itemsize, (high - low + 1) * self.dtype.itemsize

    @property
    def byte_strides(self) -> tuple[int, ...]:
        return tuple(s * self.dtype.itemsize for s in self.strides)

    @property
    def row_major(self) -> bool:
        """The elements follow each other in row-major order, without gaps."""
        return self._has_strides(row_major_strides(self.shape))

    @property
    def column_major(self) -> bool:
        return self._has_strides(row_major_strides(self.shape[::-1])[::-1])

    def _has_strides(self, expected: tuple[int, ...]) -> bool:
        # the stride of an axis of length 1 is never used
        return 0 in self.shape or all(n == 1 or s == e for n, s, e in zip(self.shape, self.strides, expected, strict=True))

    def interface(self, writable: bool) -> dict[str, Any]:
        """The value of ``__array_interface__`` and ``__cuda_array_interface__``."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, not writable),
            "strides": self.byte_strides,
        }


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _subject(name: str) -> str:
    return f"insitu: field {name!r}" if name else "the array"


# ---- arrays ----


def library_of(x: Any) -> str:
    """The package of an array's type: "numpy", "cupy", "torch", "jax", ..."""
    package = type(x).__module__.partition(".")[0]
    return "jax" if package == "jaxlib" else package


def on_device(x: Any) -> bool:
    """Whether an array is on a GPU."""
    if type(x) is np.ndarray:
        return False
    if library_of(x) == "torch":  # a tensor that requires a gradient has no interface, but it has a device
        return bool(getattr(x, "is_cuda", False))
    if hasattr(x, "__cuda_array_interface__"):
        return True
    device = getattr(x, "__dlpack_device__", None)
    return device is not None and device()[0] in GPU


def memory_of_array(x: Any, *, name: str = "", writable: bool = True) -> Memory:
    """The memory of an array of any library; ``name`` is for the errors.

    Raises
    ------
    TypeError
        The array has no memory that can be described.
    """
    library = library_of(x)
    if isinstance(x, np.ndarray) and not hasattr(x, "__cuda_array_interface__"):
        pointer = x.__array_interface__["data"][0]
        return _in_bytes(name, pointer, x.shape, x.dtype, x.strides, (CPU, 0), writable and x.flags.writeable, x)
    if library == "torch":
        device = (CPU, 0) if x.device.type == "cpu" else (CUDA, x.device.index or 0)
        dtype = np.dtype(str(x.dtype).removeprefix("torch."))
        return Memory(x.data_ptr(), tuple(x.shape), tuple(x.stride()), dtype, device, writable, x)
    if library == "jax":
        x.block_until_ready()
        (owner,) = x.devices()
        device = (CPU, 0) if owner.platform == "cpu" else (CUDA, owner.local_hardware_id or 0)
        shape = tuple(x.shape)
        return Memory(x.unsafe_buffer_pointer(), shape, row_major_strides(shape), np.dtype(x.dtype), device, False, x)
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        if not hasattr(x, "__dlpack__"):
            raise TypeError(f"{_subject(name)} is a {type(x).__name__}, not an array\nhint: numpy.asarray converts it")
        return memory_of_capsule(name, x.__dlpack__(stream=-1))  # the caller waits for the whole device
    if interface.get("mask") is not None:
        raise TypeError(f"{_subject(name)} is masked\nhint: fill the masked elements first")
    pointer, read_only = interface["data"]
    dtype, device = np.dtype(interface["typestr"]), (CUDA, _device_number(x))
    writable = writable and not read_only
    return _in_bytes(name, int(pointer or 0), tuple(interface["shape"]), dtype, interface.get("strides"), device, writable, x)


def matrix_memory(x: Any) -> Memory:
    """As :func:`memory_of_array`; refuses tensors whose memory does not hold their values, or that carry a gradient."""
    if getattr(x, "requires_grad", False):
        raise TypeError("this tensor requires a gradient\nhint: use .detach(); torch DTensors have derivatives")
    if getattr(x, "is_conj", bool)() or getattr(x, "is_neg", bool)():
        raise TypeError("this tensor is a lazy conjugate or negative\nhint: use .resolve_conj().resolve_neg()")
    return memory_of_array(x)


def _in_bytes(
    name: str, pointer: int, shape: tuple[int, ...], dtype: Any, strides: Any, device: tuple[int, int], writable: bool, x: Any
) -> Memory:
    """``strides`` in bytes; None for row-major."""
    item = dtype.itemsize or 1
    if strides is not None and any(s % item for s in strides):
        raise TypeError(
            f"{_subject(name)} has strides of {tuple(strides)} bytes, which are no multiples of its element size {item}"
            "\nhint: make a copy"
        )
    steps = row_major_strides(shape) if strides is None else tuple(s // item for s in strides)
    return Memory(pointer, shape, steps, dtype, device, writable, x)


def _device_number(x: Any) -> int:
    """The number of the device, for which libraries have different names."""
    device = getattr(x, "device", None)
    for name in ("index", "local_hardware_id", "id"):  # JAX's id counts the devices of all processes
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    return UNKNOWN


# ---- DLPack capsules ----


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("managed", ctypes.c_void_p * 2),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's C interface with our own prototype: one set in ctypes.pythonapi would hold for everybody."""
    function = getattr(ctypes.pythonapi, name)
    return ctypes.PYFUNCTYPE(result, *arguments)(ctypes.cast(function, ctypes.c_void_p).value or 0)


def memory_of_capsule(name: str, capsule: Any) -> Memory:
    """Read a DLPack capsule, versioned or not. The memory keeps the capsule alive; freeing the capsule frees the tensor."""
    valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
    get = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    read_only = False
    if valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(get(capsule, b"dltensor_versioned"))
        if versioned.version[0] != 1:
            major, minor = versioned.version
            raise ValueError(f"{_subject(name)} came as DLPack {major}.{minor}; only 1.x is supported")
        tensor, read_only = versioned.tensor, bool(versioned.flags & 1)
    elif valid(capsule, b"dltensor"):
        tensor = _Managed.from_address(get(capsule, b"dltensor")).tensor
    else:
        raise ValueError(f"{_subject(name)} is not a DLPack capsule, or it was used before")
    if tensor.lanes != 1:
        raise ValueError(f"{_subject(name)} has vectors of {tensor.lanes} as elements")
    kind = {number: letter for letter, number in _CODES.items()}.get(tensor.code, "?")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    pointer = (tensor.data or 0) + tensor.byte_offset
    device = tensor.device_type, tensor.device_id
    return Memory.describe(name, pointer, shape, strides, kind, tensor.bits, *device, not read_only, capsule)


_exported: dict[int, Any] = {}  # tensors in use by their consumers
_CAPSULE = b"dltensor"  # a capsule keeps the pointer to its name


def capsule_of_memory(memory: Memory) -> Any:
    """A DLPack capsule over the memory. Its consumer keeps the memory's owner alive."""
    dims = len(memory.shape)
    shape, strides = ((ctypes.c_int64 * max(dims, 1))(*values) for values in (memory.shape, memory.strides))
    pointer = ctypes.POINTER(ctypes.c_int64)
    kind = _CODES[memory.dtype.kind], memory.dtype.itemsize * 8, 1
    tensor = _Tensor(memory.pointer, *memory.device, dims, *kind, ctypes.cast(shape, pointer), ctypes.cast(strides, pointer), 0)
    delete_tensor, delete_capsule = _deleters()
    managed = _Managed(tensor, None, ctypes.cast(delete_tensor, ctypes.c_void_p).value)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, memory)
    new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, _CAPSULE, ctypes.cast(delete_capsule, ctypes.c_void_p))


@cache
def _deleters() -> tuple[Any, Any]:
    """Two functions: a consumer calls the first when it no longer needs the tensor, Python the second for an unused capsule."""
    # a plain pointer: counting references to an object that is being freed would revive it
    valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
    get = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)

    def delete_tensor(address: int) -> None:
        _exported.pop(address, None)

    def delete_capsule(capsule: int) -> None:
        if valid(capsule, _CAPSULE):
            _exported.pop(get(capsule, _CAPSULE), None)

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(delete_tensor), ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(delete_capsule)
