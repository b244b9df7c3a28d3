"""Operands of a product on a CUDA device, the result of torch, and the reference in float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..gemm import TYPES, Gemm
from ..validate.probes import exact

GUARD = 4096  # elements before and after D that must not be written


def wait(device: int) -> None:
    """Wait until the device is idle. A negative device is the CPU, on which probes are tested without a GPU."""
    import torch

    if device >= 0:
        torch.cuda.synchronize(device)


def torch_dtype(name: str) -> Any:
    import torch

    names = {"f64": "float64", "f32": "float32", "tf32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8"}
    names |= {"i32": "int32", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
    return getattr(torch, names[name])


@dataclass(frozen=True)
class Operands:
    """One set of operands. Matrices are views (columns, rows) of column-major memory, so they are row-major for torch."""

    a: Any
    b: Any
    c: Any
    d: Any
    bias: Any = None
    scale_a: Any = None
    scale_b: Any = None
    guarded: Any = None  # the memory around D

    @classmethod
    def random(cls, gemm: Gemm, device: int, seed: int, *, scales: tuple[float, float] = (0.5, 2.0)) -> Operands:
        """Normal random numbers; NaN in pads and D. No zeros: they run faster, and hide missing results."""
        import torch

        place = f"cuda:{device}" if device >= 0 else "cpu"
        g = torch.Generator(device=place).manual_seed(seed)
        where: dict[str, Any] = {"device": place}

        def matrix(x: str, guard: int) -> tuple[Any, Any]:
            rows, columns = gemm.stored(x)
            ld, stride = getattr(gemm, f"ld{x}"), getattr(gemm, f"stride_{x}") or getattr(gemm, f"ld{x}") * columns
            kind = torch_dtype(getattr(gemm, f"{x}_type"))
            memory = torch.empty(2 * guard + max(stride * (gemm.batch - 1) + ld * columns, 1), dtype=kind, **where)
            memory.view(torch.uint8).fill_(0xFF)  # NaN in every floating type
            view = memory.as_strided((gemm.batch, columns, rows), (stride, ld, 1), guard)
            if x != "d":
                spread = 1.0 / math.sqrt(math.sqrt(max(gemm.k, 1))) if x != "c" and kind.itemsize > 1 else 1.0
                for i in range(gemm.batch):  # one matrix at a time, to need less memory
                    if (
                        gemm.batch == 1
                        and stride == ld * columns
                        and ld == rows
                        and kind.itemsize >= 2
                        and kind.is_floating_point
                    ):
                        memory[guard : guard + stride].normal_(0, spread, generator=g)
                    else:
                        view[i].copy_(torch.randn((columns, rows), generator=g, **where) * spread)
            return (view if gemm.batch > 1 else view[0]), memory

        operands = {x: matrix(x, 0)[0] for x in "ab"}
        d, guarded = matrix("d", GUARD)
        c = matrix("c", 0)[0] if gemm.beta else d
        bias = torch.randn(gemm.m, generator=g, **where).to(torch_dtype(gemm.bias)) if gemm.bias else None
        vectors = []
        for kind, size in ((gemm.scale_a, gemm.m), (gemm.scale_b, gemm.n)):
            low, high = scales
            count = {"none": 0, "tensor": 1, "row": size}.get(kind, 0)
            vectors.append(torch.rand(count, generator=g, **where) * (high - low) + low if count else None)
        return cls(operands["a"], operands["b"], c, d, bias, vectors[0], vectors[1], guarded)


@dataclass
class TorchDefault:
    """The untuned product of torch: mm, addmm, baddbmm or _scaled_mm, followed by the activation."""

    gemm: Gemm
    compile_seconds: float = 0.0
    resources: Mapping[str, int] = field(default_factory=dict)

    def run(self, operands: Operands) -> None:
        import torch

        before = torch.get_float32_matmul_precision()
        if self.gemm.a_type == "f32":
            torch.set_float32_matmul_precision("high" if self.gemm.compute == "tf32" else "highest")
        try:
            self._run(operands)
        finally:
            if self.gemm.a_type == "f32":
                torch.set_float32_matmul_precision(before)

    def _run(self, operands: Operands) -> None:
        import torch

        g, d = self.gemm, operands.d
        left = operands.b if g.trans_b == "N" else operands.b.mT
        right = operands.a.mT if g.trans_a == "T" else operands.a
        if TYPES[g.a_type][0] == 1:
            one: Any = torch.ones((), device=d.device) if "none" in (g.scale_a, g.scale_b) else None
            sx, sw = (one if s is None else s for s in (operands.scale_b, operands.scale_a))
            sx = sx.view(-1, 1) if g.scale_b == "row" else sx.view(())
            sw = sw.view(1, -1) if g.scale_a == "row" else sw.view(())
            torch._scaled_mm(left, right, sx, sw, bias=operands.bias, out_dtype=d.dtype, use_fast_accum=g.fast_accum, out=d)
        elif g.beta:
            call = torch.baddbmm if g.batch > 1 else torch.addmm
            call(operands.c, left, right, beta=g.beta, alpha=g.alpha, out=d)
        elif operands.bias is not None and g.batch == 1:
            torch.addmm(operands.bias, left, right, alpha=g.alpha, out=d)
        else:
            (torch.bmm if g.batch > 1 else torch.mm)(left, right, out=d)
            if g.alpha != 1.0:
                d.mul_(g.alpha)
            if operands.bias is not None:
                d.add_(operands.bias)
        if g.beta and operands.bias is not None:
            d.add_(operands.bias)
        if g.activation == "relu":
            torch.relu_(d)
        elif g.activation == "gelu":
            d.copy_(torch.nn.functional.gelu(d, approximate="tanh"))
        elif g.activation == "swish":
            torch.nn.functional.silu(d, inplace=True)


def reference(gemm: Gemm, operands: Operands) -> tuple[Any, Any]:
    """The product in float64, and the same with absolute values, which scales the allowed error. Shaped like D."""
    import torch

    return exact(gemm, operands, torch.Tensor.double, torch)


def environment(device: int) -> dict[str, str]:
    """Everything that results on this device depend on, as far as torch knows."""
    import torch

    from ...bench.environment import driver_version
    from .kernels.launch import driver

    properties = torch.cuda.get_device_properties(device)
    version = ctypes.c_int()
    driver().cuDriverGetVersion(ctypes.byref(version))
    return {
        "device": properties.name,
        "multiprocessors": str(properties.multi_processor_count),
        "capability": f"{properties.major}.{properties.minor}",
        "driver": driver_version() or str(version.value),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
    }
