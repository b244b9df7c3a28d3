"""What JAXMg asks of the driver before JAX starts."""

from __future__ import annotations

import ctypes

__all__ = ["device_supports_vmm"]

_DRIVERS = ("libcuda.so.1", "libcuda.so")
_VIRTUAL_MEMORY_MANAGEMENT = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


def device_supports_vmm(device: int = 0) -> bool:
    """Whether a GPU can map memory by itself, as the driver tells it. RuntimeError where there is no driver or no such GPU."""
    name = "device_supports_vmm"
    for library in _DRIVERS:
        try:
            driver = ctypes.CDLL(library)
            break
        except OSError:
            continue
    else:
        raise RuntimeError(f"{name}: no NVIDIA driver, {_DRIVERS[0]} was not found")
    if code := driver.cuInit(0):
        raise RuntimeError(f"{name}: the NVIDIA driver does not start (CUresult {code})")
    handle, value = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuDeviceGet(ctypes.byref(handle), int(device)):
        raise RuntimeError(f"{name}: there is no GPU {device} (CUresult {code})")
    if code := driver.cuDeviceGetAttribute(ctypes.byref(value), _VIRTUAL_MEMORY_MANAGEMENT, handle):
        raise RuntimeError(f"{name}: the driver does not know of it (CUresult {code})")
    return value.value != 0
