"""The array libraries that take part. Each is imported when it is first opened."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Any

import numpy as np

from .library import Call, Library, first_of, quietly, silenced, spin_cycles, then

PEERS = ("numpy", "scipy", "torch", "jax", "tensorflow", "cupy")
_REST = 0.15  # seconds until the threads of the frameworks sleep: they spin for about 100 ms
LIBRARIES = tuple(name for name in PEERS if name != "scipy")  # SciPy has no arrays of its own


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@cache
def open_library(name: str) -> Library:
    """Import the library; ImportError when it is not installed or does not load."""
    return _CLASSES[name]()


def allow_float64_in_jax() -> None:
    """Only for a process that runs nothing else, as the switch applies to the whole process."""
    if installed("jax"):
        import jax

        jax.config.update("jax_enable_x64", True)


class _Numpy(Library):
    name = "numpy"


class _Scipy(Library):
    name = "scipy"

    def __init__(self) -> None:
        import scipy.linalg  # noqa: F401


class _Torch(Library):
    name = "torch"
    devices = ("cpu", "cuda")
    rest = _REST

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.wide = lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64)

    def missing(self, device: str) -> str:
        return "" if device == "cpu" or self.torch.cuda.is_available() else "torch sees no GPU"

    def put(self, host: np.ndarray, device: str) -> Any:
        return self.torch.from_numpy(host).to(device)

    def to_host(self, x: Any) -> np.ndarray:
        return x.detach().cpu().numpy()  # type: ignore[no-any-return]

    def waited(self, call: Call, a: Any) -> Any:
        return then(call, a, self.torch.cuda.synchronize) if first_of(a).is_cuda else super().waited(call, a)

    def queued(self, call: Call, a: Any, count: int) -> float:
        cuda = self.torch.cuda
        start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        quietly(lambda: cuda._sleep(spin_cycles(count)))
        start.record()
        for _ in range(count):
            call(a)
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3 / count

    def copier(self) -> Call:
        return lambda a: a.clone()

    def tidy(self) -> None:
        if self.torch.cuda.is_available():
            self.torch.cuda.empty_cache()


class _Jax(Library):
    name = "jax"
    devices = ("cpu", "cuda")
    rest = _REST

    def __init__(self) -> None:
        # otherwise JAX takes three quarters of the GPU's memory from the others
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        self.jax = jax

    def missing(self, device: str) -> str:
        try:
            self.jax.devices(_JAX_PLATFORM[device])
        except RuntimeError:
            return "jax sees no GPU" if device == "cuda" else "jax has no CPU backend here"
        return ""

    def put(self, host: np.ndarray, device: str) -> Any:
        return self.jax.device_put(host, self.jax.devices(_JAX_PLATFORM[device])[0])

    def waited(self, call: Call, a: Any) -> Any:
        return lambda: self.jax.block_until_ready(call(a))

    def compiled(self, call: Call) -> Call:
        return self.jax.jit(lambda a: call(a))  # type: ignore[no-any-return]

    def prepare(self, call: Any, a: Any) -> None:
        call.lower(a).compile()  # JAX keeps it for the call

    def copier(self) -> Call:
        return self.jax.jit(lambda a: a + 1)  # type: ignore[no-any-return]


class _Tensorflow(Library):
    name = "tensorflow"
    devices = ("cpu", "cuda")
    rest = _REST

    def __init__(self) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with silenced():
            import tensorflow as tf

        self.tf = tf
        for gpu in tf.config.list_physical_devices("GPU"):
            quietly(lambda gpu=gpu: tf.config.experimental.set_memory_growth(gpu, True))  # type: ignore[misc]

    def missing(self, device: str) -> str:
        return "" if device == "cpu" or self.tf.config.list_physical_devices("GPU") else "tensorflow sees no GPU"

    def put(self, host: np.ndarray, device: str) -> Any:
        with self.tf.device("/GPU:0" if device == "cuda" else "/CPU:0"):
            return self.tf.identity(self.tf.constant(host))

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x.numpy())

    def waited(self, call: Call, a: Any) -> Any:
        on_gpu = "GPU" in first_of(a).device
        return then(call, a, self.tf.test.experimental.sync_devices) if on_gpu else super().waited(call, a)

    def copier(self) -> Call:
        return lambda a: a + 1


class _Cupy(Library):
    name = "cupy"
    devices = ("cuda",)

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.spin: Any = None

    def missing(self, device: str) -> str:
        if device != "cuda":
            return "cupy arrays live on a GPU"
        try:
            return "" if self.cupy.cuda.runtime.getDeviceCount() else "cupy sees no GPU"
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            return f"cupy sees no GPU ({error})"

    def put(self, host: np.ndarray, device: str) -> Any:
        return self.cupy.asarray(host)

    def to_host(self, x: Any) -> np.ndarray:
        return self.cupy.asnumpy(x)  # type: ignore[no-any-return]

    def waited(self, call: Call, a: Any) -> Any:
        return then(call, a, lambda: self.cupy.cuda.get_current_stream().synchronize())

    def queued(self, call: Call, a: Any, count: int) -> float:
        cuda = self.cupy.cuda
        stream = cuda.get_current_stream()
        start, stop = cuda.Event(), cuda.Event()
        stream.synchronize()
        quietly(lambda: self._spin(spin_cycles(count)))
        start.record(stream)
        for _ in range(count):
            call(a)
        stop.record(stream)
        stop.synchronize()
        return float(cuda.get_elapsed_time(start, stop)) * 1e-3 / count

    def _spin(self, cycles: int) -> None:
        if self.spin is None:
            self.spin = self.cupy.RawKernel(_SPIN, "spin")
        self.spin((1,), (1,), (np.int64(cycles),))

    def copier(self) -> Call:
        return lambda a: a.copy()

    def tidy(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()


_JAX_PLATFORM = {"cpu": "cpu", "cuda": "gpu"}
_SPIN = 'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n) {} }'
_CLASSES: dict[str, type[Library]] = {
    "numpy": _Numpy,
    "scipy": _Scipy,
    "torch": _Torch,
    "jax": _Jax,
    "tensorflow": _Tensorflow,
    "cupy": _Cupy,
}
