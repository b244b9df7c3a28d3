"""Run the analyses in order with the solver's work on its CUDA stream."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from functools import lru_cache
from typing import Any

from ...core import libraries
from ...core.memory import CUDA, CUDA_HOST, CUDA_MANAGED


class _Foreign:
    """A stream of the solver, offered through the protocol that CUDA libraries share."""

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream


@lru_cache(maxsize=64)
def _external_stream(library: str, device: int, stream: int) -> Any:
    if stream == 1:
        stream = 0  # 0 and 1 both mean the legacy default stream
    if library == "cupy":
        import cupy

        if not stream:
            return cupy.cuda.Stream.null
        if hasattr(cupy.cuda.Stream, "from_external"):
            return cupy.cuda.Stream.from_external(_Foreign(stream))
        return cupy.cuda.ExternalStream(stream, device)
    import torch

    return torch.cuda.ExternalStream(stream, device=device) if stream else torch.cuda.default_stream(device)


@contextlib.contextmanager
def stream_context(library: str, device: int, stream: int) -> Any:
    """Run a block on the solver's device and stream: its work runs after what the solver has queued so far."""
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(device), _external_stream("cupy", device, stream):
            yield
    elif library == "torch":
        import torch

        with torch.cuda.device(device), torch.cuda.stream(_external_stream("torch", device, stream)):
            yield
    elif library == "jax":
        with wide():  # JAX has streams of its own; its copies of the fields are complete already
            yield
    else:
        yield


def wide() -> Any:
    """Keep JAX's 64-bit types 64-bit inside the block, without changing the process-wide flag."""
    jax: Any = importlib.import_module("jax")
    if jax.config.jax_enable_x64:
        return contextlib.nullcontext()
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def synchronise(device_type: int, device: int, stream: int | None) -> None:
    """Wait on the host for a stream of the solver, or for all work on the device if ``stream`` is None.

    Needed for JAX, which has streams of its own, and for memory that the host reads.
    """
    if device_type not in (CUDA, CUDA_HOST, CUDA_MANAGED):
        return
    with _context(device) as driver:
        _check(driver.cuCtxSynchronize() if stream is None else driver.cuStreamSynchronize(ctypes.c_void_p(stream)))


def copy_on_device(device: int, stream: int, to: int, source: int, size: int) -> None:
    """Copy ``size`` bytes of CUDA memory after the solver's work on ``stream``, and wait for it."""
    with _context(device) as driver:
        handle = ctypes.c_void_p(stream)
        _check(driver.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), handle))
        _check(driver.cuStreamSynchronize(handle))


@contextlib.contextmanager
def _context(device: int) -> Any:
    """Make the context current that all CUDA libraries share, and return the driver."""
    driver = libraries.load("cuda", operation="insitu")
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(handle), device) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle):
        raise RuntimeError(f"insitu: CUDA device {device} cannot be opened")
    driver.cuCtxPushCurrent_v2(context)
    try:
        yield driver
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        driver.cuDevicePrimaryCtxRelease_v2(handle)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"insitu: work on the solver's CUDA stream has failed (CUDA error {status})")
