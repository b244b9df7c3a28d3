"""DLPack capsules, read and written without any array library."""

from __future__ import annotations

import ctypes
from typing import Any

from .memory import CODES, Memory

__all__ = ["capsule_of_memory", "memory_of_capsule"]


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
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _python(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.pythonapi, name)
    return ctypes.PYFUNCTYPE(result, *arguments)(ctypes.cast(function, ctypes.c_void_p).value or 0)


def memory_of_capsule(name: str, capsule: Any) -> Memory:
    """Read a DLPack capsule, versioned or not. The memory keeps the capsule alive, and that frees the tensor when it goes."""
    valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
    get = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    read_only = False
    if valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(get(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ValueError(f"insitu: field {name!r} came as DLPack {versioned.major}.{versioned.minor}; 1.x is understood")
        tensor, read_only = versioned.tensor, bool(versioned.flags & 1)
    elif valid(capsule, b"dltensor"):
        tensor = _Managed.from_address(get(capsule, b"dltensor")).tensor
    else:
        raise ValueError(f"insitu: field {name!r} is not a DLPack capsule, or it was used before")
    code = {number: letter for letter, number in CODES.items()}.get(tensor.code, "?")
    if tensor.lanes != 1:
        raise ValueError(f"insitu: field {name!r} has vectors of {tensor.lanes} as elements")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Memory.describe(
        name, pointer, shape, strides, code, tensor.bits, tensor.device_type, tensor.device_id, not read_only, capsule
    )


_alive: dict[int, Any] = {}  # tensors handed out, until their consumer gives them back


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _give_back(address: int) -> None:
    _alive.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _drop_capsule(capsule: int) -> None:
    # a plain pointer: counting references to an object that is being freed would revive it
    if _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(capsule, b"dltensor"):
        _alive.pop(
            _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(capsule, b"dltensor"), None
        )


def capsule_of_memory(memory: Memory) -> Any:
    """A DLPack capsule over the memory; whoever consumes it keeps the memory's owner alive."""
    dims = len(memory.shape)
    shape = (ctypes.c_int64 * max(dims, 1))(*memory.shape)
    strides = (ctypes.c_int64 * max(dims, 1))(*memory.strides)
    code = CODES["b" if memory.dtype.kind == "b" else memory.dtype.kind]
    pointer = ctypes.POINTER(ctypes.c_int64)
    tensor = _Tensor(
        memory.pointer,
        *memory.device,
        dims,
        code,
        memory.dtype.itemsize * 8,
        1,
        ctypes.cast(shape, pointer),
        ctypes.cast(strides, pointer),
        0,
    )
    managed = _Managed(tensor, None, ctypes.cast(_give_back, ctypes.c_void_p).value)
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, strides, memory)
    new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, _NAME, ctypes.cast(_drop_capsule, ctypes.c_void_p))


_NAME = b"dltensor"  # the capsule keeps the pointer to it
