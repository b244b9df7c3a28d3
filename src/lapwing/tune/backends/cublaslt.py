"""cuBLASLt: every algorithm that the library offers for a product, each described by all of its attributes."""

from __future__ import annotations

import ctypes as C
import threading
from collections.abc import Mapping
from typing import Any

from ..gemm import Gemm
from .base import Config, Refused, Space
from .cublaslt_api import (
    BIAS_POINTER,
    COMPUTE,
    EPILOGUES,
    FIELDS,
    SCALE_A,
    SCALE_B,
    SCALE_MODES,
    TYPES,
    WORKSPACE,
    Descriptors,
    Found,
    library,
)
from .cuda import CudaBackend, no_device
from .cuda import Planned as CudaPlanned


class CublasLtBackend(CudaBackend):
    name = "cublaslt"

    def missing(self) -> str | None:
        if reason := no_device("torch"):
            return reason
        try:
            library()
        except OSError as error:
            return str(error)
        return None

    def environment(self, device: int) -> dict[str, str]:
        from .cuda_operands import environment

        return environment(device) | {"cublaslt": str(library().version)}

    def supports(self, gemm: Gemm) -> str | None:
        for x in "abcd":
            if getattr(gemm, f"{x}_type") not in TYPES:
                return f"lapwing does not use cuBLASLt for {getattr(gemm, f'{x}_type')}"
        if gemm.compute not in COMPUTE:
            return f"cuBLASLt does not sum in {gemm.compute}"
        if ("b" if gemm.bias else "", gemm.activation) not in EPILOGUES:
            return f"cuBLASLt has no epilogue {gemm.activation}"
        if any(s != "none" and s not in SCALE_MODES for s in (gemm.scale_a, gemm.scale_b)):
            return "block scales are not supported"
        if min(gemm.m, gemm.n, gemm.k) < 1:
            return "a size is zero"
        return None

    def found(self, gemm: Gemm, device: int, **bounds: Any) -> Found:
        """List the algorithms, and count how each was found."""
        import torch

        with torch.cuda.device(device):
            return Descriptors(library(), gemm).find(**bounds)

    def space(self, gemm: Gemm, device: int) -> Space:
        configs = self.found(gemm, device).configs
        parameters = {name: sorted({c[name] for c in configs}, key=int) for name in FIELDS}
        return Space(parameters, listed=configs, seeds=configs[:8])

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        """cuBLASLt compiles nothing."""

    def bind(self, gemm: Gemm, config: Config, device: int = 0) -> Any:
        from .cuda_operands import TorchDefault

        return TorchDefault(gemm) if "default" in config else Planned(gemm, config, device)


class Planned(CudaPlanned):
    """One algorithm for one product, with its descriptors."""

    compile_seconds = 0.0

    def __init__(self, gemm: Gemm, config: Config, device: int) -> None:
        self.gemm, self.device, self.lib = gemm, device, library()
        self.problem = Descriptors(self.lib, gemm)
        self.algorithm, self.workspace = self.problem.algorithm(config)
        if self.workspace > WORKSPACE:
            raise Refused("constraints", f"it needs {self.workspace} bytes of workspace; {WORKSPACE} are allowed")
        self.resources: Mapping[str, int] = {"workspace": self.workspace}
        self._alpha, self._beta = self.problem.scalar(gemm.alpha), self.problem.scalar(gemm.beta)
        # the arguments of a call are packed once: only the values in these six cells change
        self._cells = pa, pb, pc, pd, room, stream = tuple(C.c_void_p(0) for _ in range(6))
        a, b, c, d = (C.c_void_p(x.value) for x in self.problem.layouts)
        alpha, beta, algorithm = (C.c_void_p(C.addressof(x)) for x in (self._alpha, self._beta, self.algorithm))
        fixed = (C.c_void_p(self.lib.handle.value), C.c_void_p(self.problem.operation.value), alpha)
        size = C.c_size_t(self.workspace)
        self._arguments = (*fixed, pa, a, pb, b, beta, pc, c, pd, d, algorithm, room, size, stream)
        self._call = self.lib.c.cublasLtMatmul
        self._rooms: dict[int, Any] = {}
        self._set: tuple[int, int, int] = (0, 0, 0)
        self._lock = threading.Lock()

    def start(self, stream: int, pointers: tuple[int, ...]) -> None:
        pa, pb, pc, pd, *extra = pointers
        with self._lock:
            if stream not in self._rooms:
                from .kernels.workspace import arena

                self._rooms[stream] = arena(self.device, stream, parts=-(-self.workspace // 4) + 64)
            if any(extra) and tuple(extra) != self._set:
                for number, value in zip((BIAS_POINTER, SCALE_A, SCALE_B), extra, strict=True):
                    if value:
                        self.problem.set(number, C.c_void_p(value))
                self._set = tuple(extra)  # type: ignore[assignment]
            for cell, value in zip(self._cells, (pa, pb, pc, pd, self._rooms[stream].parts.data_ptr(), stream), strict=True):
                cell.value = value
            status = self._call(*self._arguments)
        if status:
            raise Refused("runtime", f"{self.lib.c.cublasLtGetStatusString(status).decode()} ({status})")


BACKEND = CublasLtBackend()
