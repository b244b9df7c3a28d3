"""Blocks of second-order optimisers: python benchmarks/optimizer.py --device cuda.

Times in milliseconds: lapwing's are the minimum of three, torch's long loops run once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import lapwing as lw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--share", type=int, default=4, help="one of so many blocks: 1 is a transformer of a billion parameters"
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None

    def blocks(count: int, n: int) -> list[torch.Tensor]:
        x = torch.randn(max(count // options.share, 1), n, n, device=options.device)
        return list(x @ x.mT / n + 0.01 * torch.eye(n, device=options.device))

    def seconds(function: Callable[[], Any], repeat: int = 3) -> tuple[float, Any]:
        best, result = float("inf"), None
        for _ in range(repeat):
            wait()
            start = time.perf_counter()
            result = function()
            wait()
            best = min(best, time.perf_counter() - start)
        return best, result

    def plain_root(a: torch.Tensor) -> torch.Tensor:
        w, v = torch.linalg.eigh(a)
        return (v * w**-0.25) @ v.mT

    def report(name: str, own: float, ours: float, error: float) -> None:
        print(
            f"{name}: torch {1000 * own:.1f}, lapwing {1000 * ours:.1f}, {own / ours:.1f} times as fast, error {error:.1e}",
            flush=True,
        )

    eps = torch.finfo(torch.float32).eps
    for count, n in ((24, 256), (24, 512), (96, 1024), (48, 2048)):
        matrices = blocks(count, n)
        torch.linalg.eigh(matrices[0])  # loads its library
        own, _ = seconds(lambda: [torch.linalg.eigh(a) for a in matrices], 1)  # noqa: B023
        ours, result = seconds(lambda: lw.grouped(lw.eigh, matrices))  # noqa: B023
        w, v = result[0]
        error = (matrices[0] @ v - v * w).norm() / matrices[0].norm() / (n * eps)
        report(f"eigh of {len(matrices)} x {n}", own, ours, float(error))
    matrices = blocks(64, 1024)
    own, expected = seconds(lambda: [plain_root(a) for a in matrices], 1)
    for method in ("eigh", "products"):
        ours, result = seconds(lambda: lw.grouped(lw.inv_root, matrices, 4, method=method))  # noqa: B023
        error = (result[0] - expected[0]).norm() / expected[0].norm() / (1024 * eps)
        report(f"inverse 4th roots of {len(matrices)} x 1024 by {method}", own, ours, float(error))


if __name__ == "__main__":
    main()
