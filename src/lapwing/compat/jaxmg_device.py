"""What JAXMg asks of the driver before JAX starts."""

from __future__ import annotations

import ctypes

from ..core import libraries

_VIRTUAL_MEMORY_MANAGEMENT = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


def device_supports_vmm(device: int = 0) -> bool:
    """Whether a GPU can map memory by itself, as the driver tells it. RuntimeError where there is no driver or no such GPU."""
    name = "device_supports_vmm"
    try:
        driver = libraries.load("cuda", operation=name)
    except OSError as error:
        raise RuntimeError(str(error)) from None
    if code := driver.cuInit(0):
        raise RuntimeError(f"{name}: the NVIDIA driver does not start (CUresult {code})")
    handle, value = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuDeviceGet(ctypes.byref(handle), int(device)):
        raise RuntimeError(f"{name}: there is no GPU {device} (CUresult {code})")
    if code := driver.cuDeviceGetAttribute(ctypes.byref(value), _VIRTUAL_MEMORY_MANAGEMENT, handle):
        raise RuntimeError(f"{name}: the driver does not know of it (CUresult {code})")
    return value.value != 0
