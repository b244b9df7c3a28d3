"""Exact Gaussian processes in gpytorch with and without lapwing: python benchmarks/gaussian_processes.py [--device cuda].

A step is gpytorch's marginal likelihood, its gradient and one step of Adam. Minimum of several runs, in turns, with the loss at
the end of each.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import gpytorch
import torch

import lapwing as lw
from lapwing.plugins import linear_operator

WAYS: dict[str, Any] = {
    "gpytorch": None,
    "torch's door": lambda: lw.install("torch"),
    "plug-in": linear_operator.install,
}


class Model(gpytorch.models.ExactGP):
    def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any, batch: torch.Size) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        rbf = gpytorch.kernels.RBFKernel(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def train(device: str, models: int, n: int, steps: int) -> float:
    """The loss after so many steps."""
    torch.manual_seed(0)
    batch = torch.Size([models] if models > 1 else [])
    x = torch.rand(*batch, n, 2, device=device)
    y = torch.sin(6 * x.sum(-1)) + 0.1 * torch.randn(*batch, n, device=device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=batch).to(device)
    model = Model(x, y, likelihood, batch).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    with gpytorch.settings.max_cholesky_size(10 * n):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = -mll(model(x), y).sum()
            loss.backward()
            optimizer.step()
    return float(loss)  # waits for the device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", type=int, help="trained side by side; 64 on a GPU, 1 on a CPU")
    parser.add_argument("--n", type=int, help="points of each model; 256 on a GPU, 2000 on a CPU")
    parser.add_argument("--steps", type=int, help="40 on a GPU, 3 on a CPU")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--host", action="store_true", help="time of the calling thread alone: Python and dispatch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    sizes = options.models or (64 if gpu else 1), options.n or (256 if gpu else 2000), options.steps or (40 if gpu else 3)
    warnings.simplefilter("ignore")
    clock = time.thread_time if options.host else time.perf_counter
    best, loss = dict.fromkeys(WAYS, float("inf")), {}
    for turn in range(options.repeat + 1):
        for name, install in WAYS.items():
            handle = install() if install else None
            start = clock()
            loss[name] = train(options.device, *sizes)
            if turn:  # the first loads code
                best[name] = min(best[name], (clock() - start) / sizes[2])
            if handle:
                handle.undo()
    print("| way | ms a step | times as fast | loss |\n|---|---|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {1000 * seconds:.2f} | {best['gpytorch'] / seconds:.2f} | {loss[name]:.6f} |")
    if options.json:
        versions = {"lapwing": lw.__version__, "torch": torch.__version__, "gpytorch": gpytorch.__version__}
        head = {
            "kind": "gaussian_processes",
            "device": options.device,
            "clock": clock.__name__,
            "versions": versions,
            "threads": torch.get_num_threads(),
        }
        body = {"models": sizes[0], "n": sizes[1], "steps": sizes[2], "unit": "s", "step": best, "loss": loss}
        options.json.write_text(json.dumps(head | body, indent=1) + "\n")


if __name__ == "__main__":
    main()
