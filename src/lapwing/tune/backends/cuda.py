"""Shared by the backends for CUDA devices: devices, benches, calls on torch tensors, and the limits of known GPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..gemm import Gemm
from .base import Bench, Config

# bytes and operations per second from the data sheets; the rate is that of dense 16-bit floats
PEAKS = {"H200": (4.8e12, 989e12), "H100": (3.35e12, 989e12), "A100": (2.0e12, 312e12), "B200": (8.0e12, 2250e12)}
# rate of other types, relative to 16-bit floats, never too low: the tensor cores of no known GPU do more
_RATES = {"f8": 2.0, "f4": 4.0, "i8": 2.0, "f32": 0.5, "f64": 0.1}
_CACHED = 0.8  # at least this part of the bytes comes from memory, although operands are rotated through the cache

# such a build calls its devices "cuda" too
FOR_ROCM = "this torch was built for AMD's GPUs\nhint: --backend hipblaslt (it writes files for AMD's tools), or --backend cpu"


def no_device(*packages: str) -> str | None:
    """Why kernels cannot run here: a package or a CUDA device is missing. None when they can."""
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            return f"{package} is not installed\nhint: pip install {package}"
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    return FOR_ROCM if torch.version.hip else None


class CudaBackend:
    """A backend must add ``bind``, which prepares one configuration of one product."""

    def devices(self) -> list[int]:
        import torch

        return list(range(torch.cuda.device_count()))

    def default(self, gemm: Gemm) -> Config:
        return {"default": "torch"}

    def floor(self, gemm: Gemm, device: int) -> float:
        """Seconds that no kernel can beat on this GPU, by bytes and operations; 0 when the GPU is not known."""
        import torch

        name = torch.cuda.get_device_properties(device).name
        bandwidth, rate = next((peaks for known, peaks in PEAKS.items() if known in name), (float("inf"), float("inf")))
        factor = next((f for start, f in _RATES.items() if gemm.a_type.startswith(start)), 1.0)
        return max(_CACHED * gemm.bytes / bandwidth, gemm.flops / (factor * rate))

    def bind(self, gemm: Gemm, config: Config, device: int = 0) -> Any:
        raise NotImplementedError

    def open(self, gemm: Gemm, device: int, seed: int) -> Bench:
        from .cuda_bench import CudaBench

        return CudaBench(gemm, device, seed, functools.partial(self.bind, device=device))

    def callable(self, gemm: Gemm, config: Config, device: int) -> Callable[..., Any]:
        from .kernels.call import on_device, torch_callable

        with on_device(device):
            bound = self.bind(gemm, config, device)
        return torch_callable(bound, gemm, device)


class Planned:
    """A configuration prepared for one product; a backend must add ``start(stream, pointers)``."""

    device: int

    def start(self, stream: int, pointers: tuple[int, ...]) -> None:
        raise NotImplementedError

    def run(self, operands: Any) -> None:
        import torch

        names = ("a", "b", "c", "d", "bias", "scale_a", "scale_b")
        tensors = [getattr(operands, name) for name in names]
        pointers = tuple(0 if t is None else t.data_ptr() for t in tensors)
        self.start(torch.cuda.current_stream(self.device).cuda_stream, pointers)
