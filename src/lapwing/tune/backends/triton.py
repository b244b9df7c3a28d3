"""Our own kernels: Triton templates and a CUDA kernel for few columns. A configuration says everything about a kernel."""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..gemm import TYPES, Gemm
from .base import Bench, Config, Refused, Space
from .kernels.compiled import SHARED_MOST, compile_step
from .kernels.plan import POINTERS, blocks, plan

__all__ = ["TritonBackend"]

INPUTS = ("bf16", "f16", "f32", "f8e4m3", "f8e5m2")
PARAMETERS: dict[str, tuple[int | str, ...]] = {
    "template": ("tile", "stream", "skinny"),
    "bm": (16, 32, 48, 64, 128, 256),
    "bn": (8, 16, 32, 64, 128, 256),
    "bk": (32, 64, 128, 256),
    "split": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32),
    "reduce": ("none", "atomic", "two-pass", "last", "cluster"),
    "stages": (2, 3, 4, 5, 6, 8),
    "warps": (2, 4, 8, 16),
    "group": (1, 8),
    "swap": (0, 1),
    "pdl": (0, 1, 2, 4),  # 1: placed while the kernel in front still runs; more: KB a row asked for meanwhile
}
DEFAULT = {"default": "torch"}


class TritonBackend:
    name = "triton"

    def missing(self) -> str | None:
        for package in ("torch", "triton"):
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed\nhint: pip install {package}"
        import torch

        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        if torch.cuda.get_device_capability()[0] < 8:
            return "the kernels are for compute capability 8.0 and later"
        return None

    def environment(self, device: int) -> dict[str, str]:
        import triton

        from ..cuda_bench import environment

        return environment(device) | {"triton": triton.__version__}

    def devices(self) -> list[int]:
        import torch

        return list(range(torch.cuda.device_count()))

    def supports(self, gemm: Gemm) -> str | None:
        if gemm.a_type not in INPUTS or gemm.b_type != gemm.a_type:
            return f"the kernels take {', '.join(INPUTS)}, A and B alike, not {gemm.a_type} and {gemm.b_type}"
        if gemm.compute not in ("f32", "tf32") or gemm.d_type not in ("bf16", "f16", "f32") or gemm.c_type != gemm.d_type:
            return f"the kernels sum in float32 and write bf16, f16 or f32, not {gemm.compute} and {gemm.d_type}"
        if "block" in (gemm.scale_a, gemm.scale_b) or "C" in gemm.layout:
            return "the kernels have no block scales and no complex numbers"
        if min(gemm.m, gemm.n, gemm.k) < 1 or max(gemm.lda, gemm.ldb, gemm.ldc, gemm.ldd) >= 2**31:
            return "a size is zero, or too large"
        return None

    def default(self, gemm: Gemm) -> Config:
        return dict(DEFAULT)

    def space(self, gemm: Gemm, device: int) -> Space:
        multiprocessors = _multiprocessors(device)
        return Space(
            PARAMETERS,
            allowed=functools.partial(allowed, gemm),
            score=functools.partial(score, gemm, multiprocessors),
            seeds=tuple(seeds(gemm, multiprocessors)),
        )

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        if "default" not in config:
            for step in plan(gemm, config, _multiprocessors(device)):
                compile_step(gemm, step, _capability(device))

    def bind(self, gemm: Gemm, config: Config, device: int = 0) -> Any:
        from ..cuda_bench import torch_default

        return torch_default(gemm) if "default" in config else Planned(gemm, config, device)

    def open(self, gemm: Gemm, device: int, seed: int) -> Bench:
        from ..cuda_bench import CudaBench

        return CudaBench(gemm, device, seed, functools.partial(self.bind, device=device))

    def callable(self, gemm: Gemm, config: Config, device: int) -> Callable[..., Any]:
        from .kernels.call import torch_callable

        return torch_callable(self.bind(gemm, config, device), gemm, device)


def _capability(device: int) -> int:
    try:
        import torch

        major, minor = torch.cuda.get_device_capability(device)
    except (ImportError, RuntimeError, AssertionError):
        return 90  # compiling ahead, where there is no GPU
    return 10 * major + minor


@functools.cache
def _multiprocessors(device: int) -> int:
    try:
        import torch

        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    except (ImportError, RuntimeError, AssertionError):
        return 132


class Planned:
    """A configuration built for one product: its kernels, loaded, with everything but the pointers filled in."""

    def __init__(self, gemm: Gemm, config: Config, device: int) -> None:
        from .kernels.launch import Function

        if not allowed(gemm, config):
            raise Refused("constraints", f"{dict(config)} is not for {gemm}")
        self.gemm, self.device = gemm, device
        self.steps = plan(gemm, config, _multiprocessors(device))
        made = [compile_step(gemm, step, _capability(device)) for step in self.steps]
        self.compile_seconds = sum(x.seconds for x in made)
        try:
            self.functions = [
                Function(x.cubin, x.name, threads=x.threads, shared=x.shared, cluster=s.cluster, dependent=s.dependent)
                for x, s in zip(made, self.steps, strict=True)
            ]
        except RuntimeError as error:
            raise Refused("runtime", str(error)) from error
        self.resources: Mapping[str, int] = self.functions[0].resources | {
            "workspace": 4 * max(max(s.parts, s.sums) for s in self.steps)
        }
        self._bound: dict[int, list[tuple[Any, list[tuple[Any, int]]]]] = {}  # by stream
        self._lock = threading.Lock()

    def launches(self, stream: int) -> list[tuple[Any, list[tuple[Any, int]]]]:
        """The starts, each with the cells of its pointers: (cell, index into a, b, c, d, bias, scale_a, scale_b)."""
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

    def start(self, stream: int, pointers: tuple[int, ...]) -> None:
        """``pointers``: of a, b, c, d, bias, scale_a, scale_b; 0 where there is none."""
        with self._lock:
            for launch, cells in self._bound.get(stream) or self.launches(stream):
                for cell, index in cells:
                    cell.value = pointers[index]
                launch(stream)

    def run(self, operands: Any) -> None:
        import torch

        names = ("a", "b", "c", "d", "bias", "scale_a", "scale_b")
        tensors = [getattr(operands, name) for name in names]
        pointers = tuple(0 if t is None else t.data_ptr() for t in tensors)
        self.start(torch.cuda.current_stream(self.device).cuda_stream, pointers)


def allowed(gemm: Gemm, config: Config) -> bool:
    """Cheap and static: what cannot be built, or makes no sense, is not in the space."""
    template, reduce = config["template"], config["reduce"]
    bm, bn, bk, split, stages, warps = (int(config[x]) for x in ("bm", "bn", "bk", "split", "stages", "warps"))
    size = TYPES[gemm.a_type][0]
    if template == "skinny":
        return (
            gemm.layout == "TN"
            and gemm.a_type in ("bf16", "f16", "f8e4m3")
            and gemm.batch == 1
            and gemm.n <= 128
            and gemm.k * size % 128 == 0
            and gemm.lda * size % 16 == 0
            and gemm.ldb * size % 16 == 0
            and bm <= 64
            and bn <= 32
            and bn < 2 * max(gemm.n, 8)
            and (bk, config["group"], config["swap"]) == (64, 1, 0)
            and stages % 2 == 0
            and 8 * stages * (bm // 8 + bn // 8) // 2 + bm * bn // 32 <= 168  # registers of the loads under way and the sums
            and 4 * warps * bn * (bm + 4) <= SHARED_MOST
            and gemm.k * size // 128 >= split * warps
            and ((split == 1) == (reduce == "none"))
            and (split == 1 or reduce == "last" or (reduce == "cluster" and split <= 8))
        )
    # what the loads under way and the sums take of a block's shared memory and registers
    shared = stages * (bm + bn) * bk * size
    sums = bm * bn // (32 * warps)
    steps = blocks(gemm.k, bk)
    common = (
        bm in (16, 32, 64, 128, 256)
        and bn >= 16
        and (
            config["pdl"] == 0
            or (template == "tile" and reduce != "two-pass" and gemm.trans_a != "N" and gemm.lda * size % 16 == 0)
        )
        and (config["pdl"] <= 1 or gemm.n <= 256)
        and warps <= 8
        and shared <= SHARED_MOST
        and 1 <= sums <= 128
        and bk * size >= 64
        and (bn == 16 or bn < 2 * gemm.n)
        and (bm == 16 or bm < 2 * gemm.m)
        and (config["group"] == 1 or (blocks(gemm.m, bm) > 8 and gemm.n > 2 * bn))
        and not (config["swap"] and bn < 64 and bm < 64 and warps > 4)
    )
    if template == "stream":
        return (
            common
            and gemm.batch == 1
            and reduce == "last"
            and split <= 4
            and blocks(gemm.m, bm) * blocks(gemm.n, bn) <= 1 << 16
        )
    cells = blocks(gemm.m, bm) * blocks(gemm.n, bn) * gemm.batch
    return (
        common
        and split <= steps
        and ((split == 1) == (reduce == "none"))
        and reduce != "cluster"
        and not (gemm.deterministic and reduce == "atomic")
        and (split == 1 or (cells <= 1 << 16 and cells * bm * bn * split <= 16 << 20))
    )


def score(gemm: Gemm, multiprocessors: int, config: Config) -> float:
    """A rough guess of the time: waves, waste at the edges, bytes on their way, and the cost of putting a sum together."""
    bm, bn, bk, split, stages, warps = (int(config[x]) for x in ("bm", "bn", "bk", "split", "stages", "warps"))
    size = TYPES[gemm.a_type][0]
    tiles = blocks(gemm.m, bm) * blocks(gemm.n, bn) * gemm.batch
    skinny = config["template"] == "skinny"
    flying = stages * 64 * (bm + bn) * warps if skinny else (stages - 1) * bk * (bm + bn) * size
    held = 4 * warps * bn * (bm + 4) if skinny else stages * bk * (bm + bn) * size
    resident = max(1, min(int(SHARED_MOST // max(held, 1)), 64 // warps, 4))
    programs = split * multiprocessors if config["template"] == "stream" else tiles * split
    full = programs / (multiprocessors * resident)
    waves = max(1.0, -(-programs // (multiprocessors * resident)) / full) if full > 1 else max(1.0, multiprocessors / programs)
    waste = blocks(gemm.m, bm) * bm / gemm.m * (blocks(gemm.n, bn) * bn / gemm.n) ** 0.5
    busy = min(1.0, flying * min(resident, max(programs / multiprocessors, 1)) / 49152)
    memory = gemm.bytes * (1 + 0.15 * (blocks(gemm.n, bn) - 1)) / 4.3e12 / (0.2 + 0.8 * busy)
    rate = 3e14 if skinny else 6.5e14 * min(1.0, (bm / 128) ** 0.5) * min(1.0, (bn / 128) ** 0.35)
    arithmetic = gemm.flops * waste / (rate / size * 2)
    joined = (
        0.0 if split == 1 else {"cluster": 0.6e-6, "last": 1.2e-6, "atomic": 1.5e-6, "two-pass": 2.5e-6}[str(config["reduce"])]
    )
    return 2e-6 + max(memory * waves**0.5, arithmetic * waves) + joined + 4.0 * gemm.m * gemm.n * (split - 1) / 8e12


def seeds(gemm: Gemm, multiprocessors: int) -> list[Config]:
    """The best few of a coarse walk under the score, over each template."""
    found: list[Config] = []
    columns = min((8, 16, 32, 64, 128), key=lambda b: (b < gemm.n, b)) if gemm.n < 128 else 128
    for template in ("skinny", "tile", "stream"):
        walk = []
        for bm in (16, 32, 48, 64, 128):
            for bk, stages, warps in ((64, 4, 8), (64, 2, 8), (64, 4, 4), (128, 4, 4), (128, 3, 8)):
                for split in (1, 2, 3, 4, 6, 8):
                    reduce = (
                        "last"
                        if template == "stream"
                        else "none"
                        if split == 1
                        else "cluster"
                        if template == "skinny"
                        else "last"
                    )
                    config: Config = {
                        "template": template, "bm": bm, "bn": min(columns, 32) if template == "skinny" else max(columns, 16), "bk": bk,
                        "split": split, "reduce": reduce, "stages": stages, "warps": warps, "group": 1, "swap": 0, "pdl": 0,
                    }  # fmt: skip
                    if allowed(gemm, config):
                        walk.append(config)
        found += sorted(walk, key=functools.partial(score, gemm, multiprocessors))[:4]
    return found
