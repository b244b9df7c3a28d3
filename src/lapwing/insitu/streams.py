"""Order on the solver's CUDA stream."""

from __future__ import annotations

import contextlib
import ctypes
from functools import lru_cache
from typing import Any

from .memory import CUDA, CUDA_MANAGED

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


def synchronise(device_type: int, device: int, stream: int) -> None:
    """Wait on the host for the solver's stream; for JAX, whose own streams we cannot order."""
    if device_type not in (CUDA, CUDA_MANAGED):
        return
    driver = _driver()
    context = ctypes.c_void_p()
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        raise RuntimeError(f"insitu: CUDA device {device} cannot be opened")
    driver.cuCtxPushCurrent_v2(context)
    try:
        status = driver.cuStreamSynchronize(ctypes.c_void_p(stream))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        driver.cuDevicePrimaryCtxRelease_v2(device)
    if status:
        raise RuntimeError(f"insitu: the solver's CUDA stream has failed (error {status})")


@lru_cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
