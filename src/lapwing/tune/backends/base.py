"""The contract of a backend: it lists the ways to compute a product, builds one of them, and runs and times it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..gemm import Gemm

# names and values that fully describe one way to compute a product; never an index into a list that may change
Config = Mapping[str, int | str]


@dataclass(frozen=True)
class Space:
    """All ways to compute one product: either parameters with a rule, or a list."""

    parameters: Mapping[str, Sequence[int | str]]
    allowed: Callable[[Config], bool] = lambda _: True  # cheap and static: excludes what cannot be built
    listed: tuple[Config, ...] | None = None  # the whole list, for a backend that can only list them (cublaslt, replay)
    score: Callable[[Config], float] | None = None  # a rough estimate of the time, with which a search starts
    seeds: tuple[Config, ...] = ()  # candidates to try first


class Refused(Exception):
    """A candidate cannot be used. ``kind`` says at which point it failed."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind  # "compile" | "runtime" | "timeout" | "correctness" | "constraints"


@dataclass(frozen=True)
class Kernel:
    """A built candidate. ``run(i)`` starts it on the i-th set of operands and does not wait."""

    config: Config
    run: Callable[[int], None]
    compile_seconds: float = 0.0
    resources: Mapping[str, int] = field(default_factory=dict)  # registers, spills, shared memory, workspace


class Bench(Protocol):
    """One product on one device, in the process that measures: operands and a clock."""

    sets: int  # number of operand sets: enough that none is in the cache when it is used again

    def build(self, config: Config) -> Kernel:
        """Build a candidate; raises Refused if that fails. The default, ``backend.default(gemm)``, is built like any other."""

    def time(self, kernels: Sequence[Kernel], samples: int) -> list[list[float]]:
        """Seconds per call, ``samples`` for each kernel, taken in turns (A B B A), with operands that are not in the cache."""

    def check(self, kernel: Kernel) -> Mapping[str, float]:
        """Validate, and return the scaled error of each probe. Refused("correctness", ...) at the first that fails."""

    def close(self) -> None: ...


class Backend(Protocol):
    """One library or set of kernels.

    Optional: ``precompiles`` (True if ``precompile`` does something), ``device_type`` ("cpu" or "cuda"), ``note(gemm)`` and
    ``arithmetic(gemm)`` (if a product runs in other types than its own), ``floor(gemm, device)`` (seconds that no kernel can
    beat).
    """

    name: str

    def missing(self) -> str | None:
        """Why the backend cannot be used here, in words; None when it can."""

    def environment(self, device: int) -> dict[str, str]:
        """Everything a result depends on: device, driver, versions. A library from another environment is refused."""

    def devices(self) -> list[int]: ...

    def supports(self, gemm: Gemm) -> str | None:
        """Why the backend cannot compute this product, in words; None when it can."""

    def default(self, gemm: Gemm) -> Config:
        """The configuration that runs untuned."""

    def space(self, gemm: Gemm, device: int) -> Space: ...

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        """Optional: fill a cache on disk, in another process, so that ``build`` is quick."""

    def open(self, gemm: Gemm, device: int, seed: int) -> Bench: ...

    def callable(self, gemm: Gemm, config: Config, device: int) -> Callable[..., Any]:
        """A function ``f(x, w, bias=None, out=None, scale_x=None, scale_w=None)`` on row-major arrays of the framework."""
