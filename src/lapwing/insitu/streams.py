"""Order on the solver's CUDA stream."""

from __future__ import annotations

import contextlib
import ctypes
from functools import lru_cache
from typing import Any

from .memory import CUDA, CUDA_HOST, CUDA_MANAGED

__all__ = ["stream_context", "synchronise"]


@lru_cache(maxsize=64)
def _external_stream(library: str, device: int, stream: int) -> Any:
    if stream == 1:
        stream = 0  # the legacy default stream has two names
    if library == "cupy":
        import cupy

        return cupy.cuda.ExternalStream(stream, device)
    import torch

    return torch.cuda.ExternalStream(stream, device=device) if stream else torch.cuda.default_stream(device)


@contextlib.contextmanager
def stream_context(library: str, device: int, stream: int) -> Any:
    """Run a block on the solver's device and stream: work queued in it comes after the solver's and before its next."""
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(device), _external_stream("cupy", device, stream):
            yield
    elif library == "torch":
        import torch

        with torch.cuda.device(device), torch.cuda.stream(_external_stream("torch", device, stream)):
            yield
    else:
        yield


def synchronise(device_type: int, device: int, stream: int | None) -> None:
    """Wait on the host for a stream of the solver, or with None for all work on the device.

    Needed where streams cannot be ordered among each other: for JAX, which has its own, and for memory the host reads.
    """
    if device_type not in (CUDA, CUDA_HOST, CUDA_MANAGED):
        return
    driver = _driver()
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(handle), device) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle):
        raise RuntimeError(f"insitu: CUDA device {device} cannot be opened")
    driver.cuCtxPushCurrent_v2(context)
    try:
        status = driver.cuCtxSynchronize() if stream is None else driver.cuStreamSynchronize(ctypes.c_void_p(stream))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        driver.cuDevicePrimaryCtxRelease_v2(handle)
    if status:
        raise RuntimeError(f"insitu: the solver's CUDA stream has failed (error {status})")


@lru_cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
