"""Decoding with a few Llama-like layers, bf16, in a CUDA graph: torch's products against tuned ones, end to end.

    python benchmarks/tune_decode.py --batch 16 --seconds 60 --out decode.json

Each linear layer's product is searched as in tune_gpu.py, and chosen by its time behind another kernel, as it runs here. The
weights of the layers are many times the cache, so every step reads them from memory.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lapwing.tune.backends.cublaslt import CublasLtBackend
from lapwing.tune.backends.kernels.plan import plan
from lapwing.tune.backends.triton import TritonBackend
from tune_gpu import Shape, candidates, compile_all, kernel_key, measure

HIDDEN, HEADS, KV_HEADS, HEAD, FFN = 4096, 32, 8, 128, 14336
QKV = (HEADS + 2 * KV_HEADS) * HEAD


def products(batch: int) -> dict[str, Shape]:
    sizes = {"qkv": (QKV, HIDDEN), "o": (HIDDEN, HEADS * HEAD), "gate_up": (2 * FFN, HIDDEN), "down": (HIDDEN, FFN)}
    return {name: Shape(i, name, batch, columns, inner) for i, (name, (columns, inner)) in enumerate(sizes.items())}


def tune(shapes: dict[str, Shape], options: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, dict[str, Any]]:
    """For each product the backend and configuration that is quickest in a chain; torch's own when none is."""
    lt, found = CublasLtBackend(), {}
    ours = {name: candidates(s.gemm, options.overlap) for name, s in shapes.items()}
    good, _ = compile_all(((shapes[name].gemm, c) for name in shapes for c in ours[name]), pool)
    for name, shape in shapes.items():
        mine = [c for c in ours[name] if all(kernel_key(shape.gemm, x) in good for x in plan(shape.gemm, c))]
        algorithms = list(lt.found(shape.gemm, 0, seconds=options.enumerate).configs)
        result, _ = measure(shape, mine, algorithms, options.seconds / len(shapes), options, pool)
        choices = {"default": result["default_us_chained"]}
        choices |= {n: result[n]["us_chained"] for n in ("vendor", "own", "own, alone") if result[n].get("us_chained")}
        best = min(choices, key=lambda n: choices[n])
        config = result[best]["config"] if best != "default" else {"default": "torch"}
        found[name] = {"choice": best, "config": config, "chained_us": choices, "alone_us": result["default_us"]}
    return found


class Decoder:
    """``linear[name](x, w)`` is what does each product."""

    def __init__(self, layers: int, batch: int, context: int) -> None:
        import torch

        torch.manual_seed(0)
        where = {"device": "cuda", "dtype": torch.bfloat16}
        sizes = {name: (s.columns, s.inner) for name, s in products(batch).items()}
        self.layers = [{name: torch.randn(n, k, **where) * k**-0.5 for name, (n, k) in sizes.items()} for _ in range(layers)]
        self.cache = [torch.randn(2, batch, KV_HEADS, context, HEAD, **where) for _ in range(layers)]
        self.norm = torch.ones(HIDDEN, **where)
        self.position = torch.tensor([context - 1], device="cuda")

    def step(self, x: Any, linear: dict[str, Callable[..., Any]]) -> Any:
        import torch
        import torch.nn.functional as F

        batch = x.shape[0]
        for weights, cache in zip(self.layers, self.cache, strict=True):
            qkv = linear["qkv"](F.rms_norm(x, (HIDDEN,), self.norm), weights["qkv"])
            q, k, v = qkv.view(batch, 1, -1, HEAD).transpose(1, 2).split((HEADS, KV_HEADS, KV_HEADS), 1)
            cache[0].index_copy_(2, self.position, k)
            cache[1].index_copy_(2, self.position, v)
            attended = F.scaled_dot_product_attention(q, cache[0], cache[1], enable_gqa=True)
            x = x + linear["o"](attended.transpose(1, 2).reshape(batch, -1), weights["o"])
            gate, up = linear["gate_up"](F.rms_norm(x, (HIDDEN,), self.norm), weights["gate_up"]).chunk(2, -1)
            x = x + linear["down"](F.silu(gate) * up, weights["down"])
        return torch.clamp(x, -1e4, 1e4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=60, help="for the search")
    parser.add_argument("--enumerate", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("tune-decode.json"))
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        tuned = tune(products(options.batch), options, pool)
    report = compare(options, tuned)
    options.out.write_text(json.dumps(report, indent=1))
    print(json.dumps({k: v for k, v in report.items() if k != "tuned"}))
    for name, x in tuned.items():
        print(name, x["choice"], {k: round(v, 2) for k, v in x["chained_us"].items()})


def compare(options: argparse.Namespace, tuned: dict[str, dict[str, Any]]) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F

    lt, own = CublasLtBackend(), TritonBackend()
    shapes, plain = products(options.batch), dict.fromkeys(tuned, F.linear)
    switched: dict[str, Callable[..., Any]] = {}
    for name, x in tuned.items():
        backend = lt if "id" in x["config"] else own
        switched[name] = F.linear if x["choice"] == "default" else backend.callable(shapes[name].gemm, x["config"], 0)
    model = Decoder(options.layers, options.batch, options.context)
    x = torch.randn(options.batch, HIDDEN, device="cuda", dtype=torch.bfloat16)
    graphs, outputs = [], []
    for linear in (plain, switched):
        model.step(x, linear)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs.append(model.step(x, linear))
        graphs.append(graph)
    times: list[list[float]] = [[], []]
    for sample in range(60):
        for i in (0, 1) if sample % 2 == 0 else (1, 0):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(5):
                graphs[i].replay()
            stop.record()
            stop.synchronize()
            times[i].append(1e-3 * start.elapsed_time(stop) / 5)
    first, second = (o.double() for o in outputs)
    default, better = (statistics.median(t[5:]) for t in times)
    share = sum(x["chained_us"]["default"] for x in tuned.values()) * options.layers * 1e-6 / default
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": lt.environment(0) | own.environment(0),
        "batch": options.batch,
        "layers": options.layers,
        "context": options.context,
        "default_us": 1e6 * default,
        "tuned_us": 1e6 * better,
        "tokens_per_second": [options.batch / default, options.batch / better],
        "uplift": default / better,
        "share of products": share,
        "difference": float((first - second).norm() / first.norm()),
        "tuned": tuned,
    }


if __name__ == "__main__":
    main()
