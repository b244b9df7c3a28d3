"""What a backend is: it lists the ways to do a product, builds one, and lets it be run and timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..gemm import Gemm

__all__ = ["Backend", "Bench", "Config", "Kernel", "Refused", "Space"]

# names and values of one way to do a product; it says everything, and is never an index into somebody's list
Config = Mapping[str, int | str]


@dataclass(frozen=True)
class Space:
    """The ways to do one product: either parameters with a rule, or a list."""

    parameters: Mapping[str, Sequence[int | str]]
    allowed: Callable[[Config], bool] = lambda _: True  # cheap and static: what cannot be built is not in the space
    listed: tuple[Config, ...] | None = None  # all of them, where the backend can only list (cublaslt, replay)
    score: Callable[[Config], float] | None = None  # a rough guess of the time, smaller is better: where a search starts
    seeds: tuple[Config, ...] = ()  # to be tried first


class Refused(Exception):
    """A candidate that cannot be used. ``kind`` is one of T4's words."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind  # "compile" | "runtime" | "timeout" | "correctness" | "constraints"


@dataclass(frozen=True)
class Kernel:
    """A candidate that was built. ``run(i)`` starts it on the i-th set of operands and does not wait."""

    config: Config
    run: Callable[[int], None]
    compile_seconds: float = 0.0
    resources: Mapping[str, int] = field(default_factory=dict)  # registers, spills, shared memory, workspace


class Bench(Protocol):
    """One product on one device, in the process that measures: operands, and clocks."""

    sets: int  # operand sets, so many that none is in cache when its turn comes

    def build(self, config: Config) -> Kernel:
        """Refused when it cannot be. The default is ``backend.default(gemm)`` and builds like any other."""

    def time(self, kernels: Sequence[Kernel], samples: int) -> list[list[float]]:
        """Seconds per call, ``samples`` for each kernel, in turns (A B B A), on cold operands."""

    def check(self, kernel: Kernel) -> Mapping[str, float]:
        """Validate; the probes passed with their scaled errors. Refused("correctness", ...) at the first that fails."""

    def close(self) -> None: ...


class Backend(Protocol):
    name: str

    def missing(self) -> str | None:
        """Why it cannot be used here, in words; None when it can."""

    def environment(self, device: int) -> dict[str, str]:
        """What a result depends on: device, driver, versions. A library made elsewhere is refused by comparing this."""

    def devices(self) -> list[int]: ...

    def supports(self, gemm: Gemm) -> str | None:
        """Why it cannot do this product, in words; None when it can."""

    def default(self, gemm: Gemm) -> Config:
        """What runs untuned."""

    def space(self, gemm: Gemm, device: int) -> Space: ...

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        """Optional work ahead, in another process, that makes ``build`` quick (fills a cache on disk)."""

    def open(self, gemm: Gemm, device: int, seed: int) -> Bench: ...

    def callable(self, gemm: Gemm, config: Config, device: int) -> Callable[..., Any]:
        """For use: ``f(x, w, bias=None, out=None, scale_x=None, scale_w=None)`` on row-major arrays of the framework."""
