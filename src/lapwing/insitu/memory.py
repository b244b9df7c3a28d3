"""Memory that the solver owns, described as DLPack does."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

__all__ = ["Memory", "contiguous_strides"]

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
_BITS = {"f": (16, 32, 64), "i": (8, 16, 32, 64), "u": (8, 16, 32, 64), "c": (64, 128), "b": (8,)}
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack's type codes


@dataclass(frozen=True)
class Memory:
    """Memory that somebody else owns: pointer, shape, strides in elements, dtype, DLPack device, and leave to write."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    device: tuple[int, int]
    writable: bool
    owner: Any = None

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
        """From what a C program says about a field; every value is checked, and ``name`` is for the messages."""
        if bits not in _BITS.get(code, ()):
            raise ValueError(f"insitu: field {name!r} has no known type: code {code!r} with {bits} bits")
        if device_type not in DEVICES:
            raise ValueError(f"insitu: field {name!r} is on a device of unknown type {device_type}")
        shape = tuple(int(n) for n in shape)
        if any(n < 0 for n in shape):
            raise ValueError(f"insitu: field {name!r} has the shape {shape}")
        if strides is None:
            strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        if len(strides) != len(shape):
            raise ValueError(f"insitu: field {name!r} has {len(shape)} dimensions but {len(strides)} strides")
        if not pointer and 0 not in shape:
            raise ValueError(f"insitu: field {name!r} has a null pointer")
        kind = np.dtype(np.bool_) if code == "b" else np.dtype(f"{code}{bits // 8}")
        return cls(pointer, shape, tuple(strides), kind, (device_type, device_id), bool(writable), owner)

    @property
    def place(self) -> str:
        """The device in words."""
        words = DEVICES[self.device[0]]
        return f"{words} {self.device[1]}" if self.device[0] in (CUDA, ROCM) else words

    @property
    def span(self) -> tuple[int, int]:
        """First byte, and number of bytes, that the elements lie in; strides may be negative."""
        item = self.dtype.itemsize
        low = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s < 0)
        high = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s > 0)
        return self.pointer + low * item, (high - low + 1) * item

    @property
    def byte_strides(self) -> tuple[int, ...]:
        return tuple(s * self.dtype.itemsize for s in self.strides)

    def interface(self, writable: bool) -> dict[str, Any]:
        """The entry of NumPy's and CUDA's array interfaces."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, not writable),
            "strides": self.byte_strides,
        }


def contiguous_strides(memory: Memory) -> tuple[int, ...] | None:
    """The strides if the field is row-major without gaps, else None."""
    plain = tuple(prod(memory.shape[i + 1 :]) for i in range(len(memory.shape)))
    same = all(n <= 1 or s == p for n, s, p in zip(memory.shape, memory.strides, plain, strict=True))
    return plain if same else None
