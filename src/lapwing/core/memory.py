"""Blocks on GPUs, of any library: where they lie, by the two protocols that all of them speak. No library is imported here.

What moves such blocks is above this layer, and says so with :func:`register`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["DeviceBlock", "library_of", "moves", "on_device", "register", "seen"]

_CUDA, _MANAGED = 2, 13  # DLPack's devices
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # DLPack's types that NumPy has
_MOVES: list[Callable[[], Any]] = []


@dataclass(frozen=True)
class DeviceBlock:
    """A matrix in the memory of a GPU."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    row_major: bool
    column_major: bool
    device: int | None  # None: only its pointer tells
    owner: Any  # keeps the memory


def register(make: Callable[[], Any]) -> None:
    """``make()`` gives what moves blocks on GPUs; it is called when the first one has to be moved."""
    _MOVES[:] = [make]


def moves() -> Any:
    """What moves blocks on GPUs: ``gather``, ``redistribute``, ``to_numpy``, ``copy``, ``conj``, ``astype``."""
    if not _MOVES:
        raise RuntimeError("distributed: blocks on GPUs need lapwing itself\nhint: import lapwing")
    return _MOVES[0]()


def library_of(x: Any) -> str:
    """ "numpy", "cupy", "torch", ...: the package of its type."""
    return type(x).__module__.partition(".")[0]


def on_device(x: Any) -> bool:
    """Whether an array lies on a GPU."""
    if type(x) is np.ndarray:
        return False
    if library_of(x) == "torch":  # a tensor that is differentiated has no interface, but it has a device
        return bool(getattr(x, "is_cuda", False))
    if hasattr(x, "__cuda_array_interface__"):
        return True
    device = getattr(x, "__dlpack_device__", None)
    return device is not None and device()[0] in (_CUDA, _MANAGED)


def seen(x: Any) -> DeviceBlock:
    """Where it lies. Raises TypeError for memory that cannot be told of."""
    if getattr(x, "requires_grad", False):
        raise TypeError("this tensor is part of a differentiated computation\nhint: .detach() it; DTensors have derivatives")
    if getattr(x, "is_conj", bool)() or getattr(x, "is_neg", bool)():
        raise TypeError("this tensor is conjugated or negated in name only\nhint: .resolve_conj().resolve_neg()")
    if hasattr(x, "block_until_ready"):  # JAX: what is not dispatched yet is on no stream that could be waited for
        x.block_until_ready()
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        return _by_dlpack(x)
    if interface.get("mask") is not None:
        raise TypeError("a masked array has no matrix under its mask")
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    return _block(int(interface["data"][0] or 0), shape, dtype, interface.get("strides"), _device(x), x)


def _block(pointer: int, shape: tuple[int, ...], dtype: np.dtype, strides: Any, device: int | None, owner: Any) -> DeviceBlock:
    """``strides`` in bytes; None is row-major."""
    row = column = 0 in shape
    if not row:
        steps = tuple(strides) if strides is not None else _steps(shape, dtype.itemsize)
        # the step along an axis of length 1 is not taken
        taken = [step for step, n in zip(steps, shape, strict=True) if n > 1]
        row = taken == [step for step, n in zip(_steps(shape, dtype.itemsize), shape, strict=True) if n > 1]
        column = taken == [s for s, n in zip(_steps(shape[::-1], dtype.itemsize)[::-1], shape, strict=True) if n > 1]
    return DeviceBlock(pointer, shape, dtype, row, column, device, owner)


def _steps(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    steps = [size]
    for n in shape[:0:-1]:
        steps.append(steps[-1] * n)
    return tuple(reversed(steps)) if shape else ()


def _device(x: Any) -> int | None:
    """Libraries call its number by different names."""
    device = getattr(x, "device", None)
    for name in ("index", "local_hardware_id", "id"):  # JAX's id counts the devices of all processes
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    return None


class _Tensor(ctypes.Structure):
    """DLTensor, which a DLManagedTensor begins with."""

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


def _by_dlpack(x: Any) -> DeviceBlock:
    capsule = x.__dlpack__(stream=-1)  # who uses the memory waits for the whole device first
    # a prototype of our own: the types of ctypes.pythonapi's are everybody's
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    told = _Tensor.from_address(prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor"))
    if told.code not in _KINDS or told.lanes != 1:
        raise TypeError("its elements are not numbers that NumPy has")
    dtype = np.dtype(f"{_KINDS[told.code]}{told.bits // 8}")
    shape = tuple(told.shape[: told.ndim])
    strides = tuple(step * dtype.itemsize for step in told.strides[: told.ndim]) if told.strides else None
    # the capsule was not taken: it gives the memory back when it goes
    return _block((told.data or 0) + told.byte_offset, shape, dtype, strides, told.device_id, (x, capsule))
