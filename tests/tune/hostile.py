"""Backends for the tests of a run, with invented times; some of their candidates are dangerous.

``LOG`` in the environment names a file that gets a line for each timing: process, device, begin and end.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lapwing.tune.backends.base import Config, Kernel, Refused, Space
from lapwing.tune.gemm import Gemm
from lapwing.tune.validate.probes import Operands, bound, exact, judge, probes

LOG = "LAPWING_TEST_LOG"


def write(text: str) -> None:
    if path := os.environ.get(LOG):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, (text + "\n").encode())
        os.close(handle)


class Hostile:
    precompiles = False

    def __init__(
        self,
        name: str,
        tricks: tuple[str, ...],
        width: int,
        pause: float = 0.0,
        compiles: bool = False,
        best: int = 5,
        check: float = 0.0,
    ) -> None:
        self.name, self.tricks, self.width, self.pause, self.best = name, tricks, width, pause, best
        self.precompiles, self.check = compiles, check

    def missing(self) -> str | None:
        return None

    def environment(self, device: int) -> dict[str, str]:
        return {"device": "made up", "environment": os.environ.get("LAPWING_TEST_ENVIRONMENT", "")}

    def devices(self) -> list[int]:
        return [0, 1, 2, 3]

    def supports(self, gemm: Gemm) -> str | None:
        return None

    def default(self, gemm: Gemm) -> Config:
        return {"trick": "none", "x": 0}

    def space(self, gemm: Gemm, device: int) -> Space:
        return Space(
            {"trick": ("none", *self.tricks), "x": tuple(range(self.width))},
            allowed=lambda c: c["trick"] == "none" or c["x"] == 0,
            seeds=tuple({"trick": trick, "x": 0} for trick in self.tricks),
        )

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        write(f"compile {os.getpid()} {device} {time.monotonic()} {time.monotonic()}")
        time.sleep(0.05)
        if config["x"] == 3:
            raise Refused("compile", "three cannot be compiled")
        if config["x"] == 4:
            os._exit(7)

    def open(self, gemm: Gemm, device: int, seed: int) -> Bench:
        return Bench(self, gemm, device, seed)

    def callable(self, gemm: Gemm, config: Config, device: int) -> Any:
        raise NotImplementedError


class Bench:
    sets = 1

    def __init__(self, backend: Hostile, gemm: Gemm, device: int, seed: int) -> None:
        self.backend, self.gemm, self.device = backend, gemm, device
        self.probe = probes(gemm)[0]
        self.operands = Operands.random(gemm, np.float32, seed)

    def build(self, config: Config) -> Kernel:
        return Kernel(config, lambda i: self._run(str(config["trick"])))

    def _run(self, trick: str) -> None:
        o = self.operands
        np.matmul(o.b, o.a.T if self.gemm.trans_a == "T" else o.a, out=o.d)
        if trick == "segfault":
            ctypes.string_at(0)
        elif trick == "exit":
            print("going down", flush=True)
            os._exit(3)
        elif trick == "hang":
            time.sleep(1000)
        elif trick == "wrong":
            o.d[-1, -1] -= o.b[-1, 0] * o.a[-1, 0]  # one of the products is left out
        elif trick == "outside":
            o.memory[0] = 0.0
        elif trick == "raise":
            raise ZeroDivisionError("somewhere in the kernel")

    def check(self, kernel: Kernel) -> Mapping[str, float]:
        time.sleep(self.backend.check)
        print("a library that prints")  # it must not mix with the answers
        self.operands.reset()
        kernel.run(0)
        answer, size = exact(self.gemm, self.operands)
        o = self.operands
        return {"product": judge(self.probe, [o.d.copy()], answer, bound(self.gemm, answer, size), untouched=o.untouched)}

    def time(self, kernels: Sequence[Kernel], samples: int) -> list[list[float]]:
        begun = time.monotonic()
        time.sleep(self.backend.pause)
        write(f"time {os.getpid()} {self.device} {begun} {time.monotonic()}")
        return [[1e-5 * (1.0 + abs(int(k.config["x"]) - self.backend.best) / 10) for _ in range(samples)] for k in kernels]

    def close(self) -> None:
        pass


TRICKS = Hostile("hostile", ("segfault", "exit", "hang", "wrong", "outside", "raise"), 8)
SLOW = Hostile("slow", (), 60, pause=0.03)
ENDLESS = Hostile("endless", (), 100_000, pause=0.02)
SLUGGISH = Hostile("sluggish", (), 1000, pause=0.05, best=0, check=0.9)  # the default is the best, and every check takes long
COMPILING = Hostile("compiling", (), 12, compiles=True)
