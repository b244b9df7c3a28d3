"""A fake backend, comparisons and libraries for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lapwing.tune import Gemm
from lapwing.tune.backends.base import Refused, Space
from lapwing.tune.library import build


class FakeBackend:
    """Computes products with the framework itself. It counts its calls, and can fail on purpose."""

    name = "fake"
    device_type = "cpu"

    def __init__(self, **fields: str) -> None:
        self.fields = {"device": "abacus", "torch": "9.9"} | fields
        self.calls: list[Gemm] = []
        self.asked: list[Gemm] = []

    def missing(self) -> str | None:
        return None

    def environment(self, device: int) -> dict[str, str]:
        return self.fields

    def devices(self) -> list[int]:
        return [0]

    def supports(self, gemm: Gemm) -> str | None:
        return None

    def default(self, gemm: Gemm) -> Any:
        return {"way": "default"}

    def space(self, gemm: Gemm, device: int) -> Space:
        return Space({"way": ["default", "tuned"]})

    def precompile(self, gemm: Gemm, config: Any, device: int) -> None: ...

    def open(self, gemm: Gemm, device: int, seed: int) -> Any:
        raise NotImplementedError

    def callable(self, gemm: Gemm, config: Any, device: int) -> Any:
        self.asked.append(gemm)
        if config.get("way") == "refused":
            raise Refused("runtime", "out of beads")

        def run(x: Any, w: Any, bias: Any = None, out: Any = None, scale_x: Any = None, scale_w: Any = None) -> Any:
            assert x.shape[-1] == (gemm.k if gemm.trans_b == "N" else gemm.n)
            self.calls.append(gemm)
            if config.get("way") == "fails":
                raise RuntimeError("a bead fell off")
            if config.get("way") == "wrong":
                return x
            left = x if gemm.trans_b == "N" else x.swapaxes(-1, -2)
            right = w if gemm.trans_a == "N" else w.swapaxes(-1, -2)
            if isinstance(x, np.ndarray):
                return np.matmul(left, right)
            import torch

            aten = torch.ops.aten
            if left.dtype.itemsize == 1:
                made = (left.float() * scale_x) @ (right.float() * scale_w)
                return made.to({"bf16": torch.bfloat16, "f32": torch.float32}[gemm.d_type])
            made = aten.mm(left, right) if left.dim() == 2 else aten.bmm(left, right)
            return made if bias is None else aten.add(made, bias)

        return run


@dataclass(frozen=True)
class FakeComparison:
    """Looks like a result of lapwing.tune.compare."""

    gemm: Gemm
    name: str = "BBS_TN_0"
    count: int = 1
    percent: float = 100.0
    default_us: float = 20.0
    vendor_us: float | None = 18.0
    tuned_us: float = 10.0
    low: float = 1.9
    high: float = 2.1
    config: dict[str, Any] = field(default_factory=lambda: {"way": "tuned"})
    backend: str = "fake"
    error: float = 0.5
    kept: bool = True
    reason: str = ""
    validated: tuple[str, ...] = ()
    buckets: tuple[tuple[int, int], ...] = ()
    arithmetic: str = ""
    compared: bool = True
    doubtful: bool = False

    @property
    def ratio(self) -> float:
        return self.default_us / self.tuned_us


def fake_library(folder: Path, *comparisons: FakeComparison, backend: FakeBackend | None = None) -> Path:
    backend = backend or FakeBackend()
    return build(folder, comparisons, folder, backends={"fake": backend})


def linear(rows: int, columns: int, inner: int, dtype: str = "f32", **other: Any) -> Gemm:
    return Gemm.row_major(rows, columns, inner, right="T", dtype=dtype, **other)
