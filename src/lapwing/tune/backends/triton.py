"""Our own kernels: Triton templates, and a CUDA kernel for few columns. A configuration describes a kernel completely."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Mapping
from typing import Any

from ..gemm import Gemm
from .base import Config, Refused, Space
from .cuda import CudaBackend, no_device
from .cuda import Planned as CudaPlanned
from .kernels.compiled import compile_step
from .kernels.plan import FETCHES, POINTERS, plan
from .kernels.space import AHEAD, PARAMETERS, allowed, score, seeds

INPUTS = ("bf16", "f16", "f32", "f8e4m3", "f8e5m2")


class TritonBackend(CudaBackend):
    """``overlap`` allows kernels that let the next kernel start before they end (parameter ``pdl``).

    On an H200 that gains up to a microsecond when one of our kernels follows another, but costs 0.2 to 0.4 us after any other
    kernel, as in a model. So it is off by default.

    ``frozen`` makes the backend "triton_frozen". Its kernels also start to read A, the weights, before the previous kernel has
    ended, so they are correct only if that kernel does not write the weights. It has a name of its own so that a library shows
    which entries need this, and nobody gets them without asking.
    """

    precompiles = True

    def __init__(self, overlap: bool = False, frozen: bool = False) -> None:
        self.overlap, self.frozen = overlap, frozen
        self.name = "triton_frozen" if frozen else "triton"

    def missing(self) -> str | None:
        if "tensorflow" in sys.modules and "triton" not in sys.modules:
            return (
                "TensorFlow is loaded, and its LLVM together with Triton's crashes a process"
                "\nhint: tune in a process without it"
            )
        if reason := no_device("torch", "triton"):
            return reason
        import torch

        if torch.cuda.get_device_capability()[0] < 8:
            return "the kernels need compute capability 8.0 or later"
        return None

    def environment(self, device: int) -> dict[str, str]:
        import triton

        from .cuda_operands import environment

        return environment(device) | {"triton": triton.__version__}

    def supports(self, gemm: Gemm) -> str | None:
        if gemm.a_type not in INPUTS or gemm.b_type != gemm.a_type:
            return f"the kernels take {', '.join(INPUTS)}, A and B alike, not {gemm.a_type} and {gemm.b_type}"
        if gemm.compute not in ("f32", "tf32") or gemm.d_type not in ("bf16", "f16", "f32") or gemm.c_type != gemm.d_type:
            return f"the kernels sum in float32 and write bf16, f16 or f32, not {gemm.compute} and {gemm.d_type}"
        if "block" in (gemm.scale_a, gemm.scale_b) or "C" in gemm.layout:
            return "the kernels do not support block scales or complex numbers"
        if self.frozen and (gemm.layout != "TN" or gemm.n > 128 or gemm.batch > 1):
            return "weights are read ahead only for at most 128 columns, layout TN, without a batch"
        if min(gemm.m, gemm.n, gemm.k) < 1 or max(gemm.lda, gemm.ldb, gemm.ldc, gemm.ldd) >= 2**31:
            return "a size is zero, or too large"
        return None

    def space(self, gemm: Gemm, device: int) -> Space:
        multiprocessors = _multiprocessors(device)
        return Space(
            PARAMETERS | {"pdl": AHEAD if self.frozen else (0, 1, 2, *FETCHES) if self.overlap else (0,)},
            allowed=functools.partial(allowed, gemm),
            score=functools.partial(score, gemm, multiprocessors),
            seeds=tuple(seeds(gemm, multiprocessors, AHEAD if self.frozen else (0,))),
        )

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        if "default" not in config:
            for step in plan(gemm, config, _multiprocessors(device)):
                compile_step(gemm, step, _capability(device))

    def bind(self, gemm: Gemm, config: Config, device: int = 0) -> Any:
        from .cuda_operands import TorchDefault

        if "default" in config:
            return TorchDefault(gemm)
        if config["pdl"] in AHEAD and not self.frozen:
            raise Refused("constraints", "it reads weights ahead, which only the backend triton_frozen may do")
        return Planned(gemm, config, device)


def _capability(device: int) -> int:
    try:
        import torch

        major, minor = torch.cuda.get_device_capability(device)
    except (ImportError, RuntimeError, AssertionError):
        return 90  # compiling without a GPU
    return 10 * major + minor


@functools.cache
def _multiprocessors(device: int) -> int:
    try:
        import torch

        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    except (ImportError, RuntimeError, AssertionError):
        return 132


class Planned(CudaPlanned):
    """A configuration for one product: its kernels are loaded, and all arguments except pointers are set."""

    def __init__(self, gemm: Gemm, config: Config, device: int) -> None:
        from .kernels.launch import Function

        if not allowed(gemm, config):
            raise Refused("constraints", f"{dict(config)} does not support {gemm}")
        self.gemm, self.device = gemm, device
        self.ahead = config["pdl"] in AHEAD
        self.steps = plan(gemm, config, _multiprocessors(device))
        compiled = [compile_step(gemm, step, _capability(device)) for step in self.steps]
        self.compile_seconds = sum(x.seconds for x in compiled)
        try:
            self.functions = [
                Function(x.cubin, x.name, threads=x.threads, shared=x.shared, cluster=s.cluster, dependent=s.dependent)
                for x, s in zip(compiled, self.steps, strict=True)
            ]
        except RuntimeError as error:
            raise Refused("runtime", str(error)) from error
        self.resources: Mapping[str, int] = self.functions[0].resources | {
            "workspace": 4 * max(max(s.parts, s.sums) for s in self.steps)
        }
        self._bound: dict[int, list[tuple[Any, list[tuple[Any, int]]]]] = {}  # by stream
        self._lock = threading.Lock()

    def launches(self, stream: int) -> list[tuple[Any, list[tuple[Any, int]]]]:
        """The kernel launches, each with the cells of its pointers: (cell, index into a, b, c, d, bias, scale_a, scale_b)."""
        if stream not in self._bound:
            from .kernels.workspace import arena

            room = arena(self.device, stream, sums=max(s.sums for s in self.steps), parts=max(s.parts for s in self.steps))
            self._room = room
            bound = []
            for step, function in zip(self.steps, self.functions, strict=True):
                work = (room.sums if step.sums else room.parts).data_ptr()
                memory = {"work": work, "locks": room.locks.data_ptr()}
                values = [memory.get(str(x.value), 0) if x.kind == "pointer" else x.value for x in step.arguments]
                launch = function.bind(step.grid, [x.kind for x in step.arguments], values)
                cells = [
                    (launch.cells[i], POINTERS.index(str(x.value)))
                    for i, x in enumerate(step.arguments)
                    if x.kind == "pointer" and x.value not in memory
                ]
                bound.append((launch, cells))
            self._bound[stream] = bound
        return self._bound[stream]

    def start(self, stream: int, pointers: tuple[int, ...], alone: bool = False) -> None:
        """``pointers`` of a, b, c, d, bias, scale_a, scale_b; 0 for a missing one. ``alone``: wait for all earlier kernels."""
        with self._lock:
            for launch, cells in self._bound.get(stream) or self.launches(stream):
                for cell, index in cells:
                    cell.value = pointers[index]
                launch(stream, alone)


BACKEND = TritonBackend()
FROZEN = TritonBackend(frozen=True)
