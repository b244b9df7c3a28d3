"""Plain torch and NumPy programs, before and after lapwing.install: python benchmarks/install.py [--device cuda]."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lapwing as lw
from lapwing.doors.cells import AHEAD, Cell


def torch_cases(device: str) -> dict[str, tuple[Callable[[], Any], Callable[[Any], torch.Tensor]]]:
    """Each a plain program, and the invariant part of its result."""
    torch.manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    def qr(a: torch.Tensor) -> Any:
        return lambda: torch.linalg.qr(a), lambda x: (x[0] @ x[1] - a).norm() / a.norm()

    def loop(a: torch.Tensor) -> Any:
        return lambda: [torch.linalg.qr(a) for _ in range(100)][-1], lambda x: (x[0] @ x[1] - a).norm() / a.norm()

    def solve(a: torch.Tensor, b: torch.Tensor) -> Any:
        return lambda: torch.linalg.solve(a, b), lambda x: (a @ x - b).norm() / b.norm() / 1000

    def svd(a: torch.Tensor) -> Any:
        return (
            lambda: torch.linalg.svd(a, full_matrices=False),
            lambda x: ((x[0] * x[1][..., None, :]) @ x[2] - a).norm() / a.norm(),
        )

    def eig(a: torch.Tensor) -> Any:
        def residual(x: Any) -> torch.Tensor:
            return (a.to(x[1].dtype) @ x[1] - x[1] * x[0][..., None, :]).norm() / a.norm()

        return lambda: torch.linalg.eig(a), residual

    def eigvals(a: torch.Tensor) -> Any:
        trace = a.diagonal(dim1=-2, dim2=-1).sum(-1)
        return lambda: torch.linalg.eigvals(a), lambda x: (x.sum(-1) - trace).norm() / a.norm()

    def eigh(a: torch.Tensor) -> Any:
        a = a + a.mT
        return lambda: torch.linalg.eigh(a), lambda x: (a @ x[1] - x[1] * x[0][..., None, :]).norm() / a.norm()

    def cholesky(a: torch.Tensor) -> Any:
        a = a @ a.mT + a.shape[-1] * torch.eye(a.shape[-1], device=device)
        return lambda: torch.linalg.cholesky(a), lambda x: (x @ x.mT - a).norm() / a.norm()

    cases = {
        "qr of (8192, 4, 4)": qr(random(8192, 4, 4)),
        "qr of (8192, 16, 16)": qr(random(8192, 16, 16)),
        "qr of (64, 256, 32), 100 times": loop(random(64, 256, 32)),
        "svd of (8716, 3, 2)": svd(random(8716, 3, 2)),
        "eig of (512, 3, 3)": eig(random(512, 3, 3)),
        "eigvals of (512, 3, 3)": eigvals(random(512, 3, 3)),
        "eigh of (10000, 3, 3)": eigh(random(10000, 3, 3)),
        "eigh of (1000, 16, 16)": eigh(random(1000, 16, 16)),
        "cholesky of (10000, 16, 16)": cholesky(random(10000, 16, 16)),
    }
    if device == "cuda":
        cases["qr of (640, 512, 512)"] = qr(random(640, 512, 512))
    orders = (31, 32, 33, 34, 35, 36, 64) if device == "cuda" else (16, 32)
    many = 10000 if device == "cuda" else 1000
    return cases | {f"solve of ({many}, {n}, {n})": solve(random(many, n, n), random(many, n, 1)) for n in orders}


def numpy_cases() -> dict[str, tuple[Callable[[], Any], Callable[[Any], float]]]:
    rng = np.random.default_rng(0)
    small, three = rng.standard_normal((1000, 16, 16)), rng.standard_normal((10000, 3, 3))
    symmetric = three + three.swapaxes(-1, -2)
    return {
        "numpy eigh of (10000, 3, 3)": (
            lambda: np.linalg.eigh(symmetric),
            lambda x: float(np.abs(symmetric @ x[1] - x[1] * x[0][..., None, :]).max()),
        ),
        "numpy solve of (1000, 16, 16)": (
            lambda: np.linalg.solve(small, small),
            lambda x: float(np.abs(small @ x - small).max()) / 1000,
        ),
        "numpy svd of (10000, 3, 3)": (
            lambda: np.linalg.svd(three),
            lambda x: float(np.abs((x[0] * x[1][..., None, :]) @ x[2] - three).max()),
        ),
        "numpy inv of (10000, 3, 3)": (
            lambda: np.linalg.inv(three),
            lambda x: float(np.abs(three @ x - np.eye(3)).max()) / 1000,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--everywhere", action="store_true", help="lapwing computes every batch, also where no row says that lapwing is ahead"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case")
    parser.add_argument("--json", type=Path, help="write the ratios to this file")
    options = parser.parse_args()
    ratios = {}
    warnings.simplefilter("ignore")
    if options.everywhere:
        for operation, device in list(AHEAD):
            AHEAD[operation, device] = (Cell(4096, 1, 1.0),)
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    if options.device == "cpu":
        torch.set_num_threads(1)
    cases: dict[str, Any] = torch_cases(options.device) | (numpy_cases() if options.device == "cpu" else {})
    print("| program | own, ms | lapwing, ms | times as fast | by lapwing |\n|---|---|---|---|---|")
    for name, (program, error) in cases.items():
        own = ours = float("inf")
        end = time.perf_counter() + options.seconds
        while own == float("inf") or time.perf_counter() < end:
            own = min(own, seconds(program, wait))
            with lw.install("torch", "numpy") as handle:
                result = program()
                assert float(error(result)) < 1e-3, (name, float(error(result)))
                ours = min(ours, seconds(program, wait))
            accepted = sum(calls["lapwing"] for calls in handle.report().values()) > 0
        by_lapwing = "yes" if accepted else "no"
        print(f"| {name} | {1000 * own:.3g} | {1000 * ours:.3g} | {own / ours:.1f} | {by_lapwing} |", flush=True)
        ratios[name] = {"times_as_fast": round(own / ours, 2), "accepted": accepted}
    if options.json:
        versions = {"lapwing": lw.__version__, "torch": torch.__version__, "numpy": np.__version__}
        options.json.write_text(
            json.dumps({"kind": "install", "device": options.device, "versions": versions, "ratios": ratios}, indent=1) + "\n"
        )


def seconds(program: Callable[[], Any], wait: Callable[[], Any]) -> float:
    wait()
    start = time.perf_counter()
    program()
    wait()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
