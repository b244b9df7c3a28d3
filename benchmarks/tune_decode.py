"""Decoding with a few Llama-like layers, bf16, KV cache, in a CUDA graph: torch's products against a tuned library, end to end.

    python benchmarks/tune_decode.py --model 70b-tp8 --batch 32 --seconds 90 --out decode.json

lapwing.tune tunes the linear layers of the model (or reads a library, with --library), and lapwing.tune.enable uses the result.
The weights of the layers are many times larger than the cache, so every step reads them from memory. The report lists the
kernels of one step by torch's profiler: what is in the graph, and where the time goes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from lapwing.tune import Gemm, Library, all_steps, enable, read


@dataclass(frozen=True)
class Sizes:
    """Sizes of one layer, on one GPU of eight that share the model."""

    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    head: int = 128

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Number of outputs and inputs."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head
        return {
            "qkv": (qkv, self.hidden),
            "o": (self.hidden, self.heads * self.head),
            "gate_up": (2 * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }

    def products(self, batch: int) -> dict[str, Gemm]:
        return {name: Gemm.row_major(batch, n, k, right="T") for name, (n, k) in self.linears.items()}


MODELS = {"8b": Sizes(4096, 32, 8, 14336), "70b-tp8": Sizes(8192, 8, 1, 3584)}


class Layer(torch.nn.Module):
    def __init__(self, sizes: Sizes, batch: int, context: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(sizes.hidden) for _ in range(2))
        self.linears = torch.nn.ModuleDict({x: torch.nn.Linear(k, n, bias=False) for x, (n, k) in sizes.linears.items()})
        for cache in ("keys", "values"):
            self.register_buffer(cache, torch.randn(batch, sizes.kv_heads, context, sizes.head))
        self.register_buffer("position", torch.tensor([context - 1]))

    def forward(self, x: Any) -> Any:
        s, batch = self.sizes, x.shape[0]
        qkv = self.linears["qkv"](self.norms[0](x)).view(batch, 1, -1, s.head).transpose(1, 2)
        q, k, v = qkv.split((s.heads, s.kv_heads, s.kv_heads), 1)
        self.keys.index_copy_(2, self.position, k)
        self.values.index_copy_(2, self.position, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values, enable_gqa=True)
        x = x + self.linears["o"](attended.transpose(1, 2).reshape(batch, -1))
        gate, up = self.linears["gate_up"](self.norms[1](x)).chunk(2, -1)
        return x + self.linears["down"](F.silu(gate) * up)


def captured(model: Any, x: Any) -> tuple[Any, Any]:
    """A graph of one step, and its output. Kernels are loaded in the first steps, which are not captured."""
    for _ in range(2):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    return graph, y


def profiled(graph: Any) -> dict[str, list[float]]:
    """Kernels of one step: name, count and microseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in seen.events():
        if event.device_type.name == "CUDA":
            count, us = found.get(event.name[:80], [0, 0.0])
            found[event.name[:80]] = [count + 1, us + event.device_time]
    return dict(sorted(found.items(), key=lambda x: -x[1][1]))


def compare(options: argparse.Namespace, batch: int, library: Library) -> dict[str, Any]:
    sizes = MODELS[options.model]
    torch.manual_seed(0)
    with torch.device("cuda"):
        layers = [Layer(sizes, batch, options.context).to(torch.bfloat16) for _ in range(options.layers)]
    model = torch.nn.Sequential(*layers).requires_grad_(False)
    x = torch.randn(batch, sizes.hidden, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        graphs = {"default": captured(model, x)}
        with enable(model, library) as handle:
            enabled = handle.layers
            graphs["tuned"] = captured(model, x)
        if options.frozen:
            with enable(model, library, frozen=True):
                graphs["frozen"] = captured(model, x)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for sample in range(60):
        for name in list(graphs) if sample % 2 == 0 else reversed(graphs):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(5):
                graphs[name][0].replay()
            stop.record()
            stop.synchronize()
            times[name].append(1e3 * start.elapsed_time(stop) / 5)
    us = {name: statistics.median(t[5:]) for name, t in times.items()}
    exact = graphs["default"][1].double()
    entries = {name: library.lookup(gemm) for name, gemm in sizes.products(batch).items()}
    saved = sum(e.default_us - e.tuned_us for e in entries.values() if e is not None)
    return {
        "batch": batch,
        "layers": options.layers,
        "context": options.context,
        "enabled": enabled,
        "us": us,
        "uplift": {name: us["default"] / t for name, t in us.items()},
        "tokens_per_second": {name: 1e6 * batch / t for name, t in us.items()},
        "predicted_us_saved": options.layers * saved,
        "difference": {name: float((y.double() - exact).norm() / exact.norm()) for name, (_, y) in graphs.items()},
        "entries": {name: None if e is None else e.to_dict() for name, e in entries.items()},
        "kernels": {name: profiled(graph) for name, (graph, _) in graphs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="70b-tp8")
    parser.add_argument("--batch", default="32", help="numbers separated by commas")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=90, help="for the search at one batch size")
    parser.add_argument("--frozen", action="store_true", help="also use kernels for weights that do not change")
    parser.add_argument("--library", type=Path, help="use this library, without a search")
    parser.add_argument("--out", type=Path, default=Path("tune-decode.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": options.model,
        "runs": [],
    }
    for batch in map(int, options.batch.split(",")):
        path = options.library
        if path is None:
            words = [f"{g.m}x{g.n}x{g.k} bf16 TN" for g in MODELS[options.model].products(batch).values()]
            backend = "auto,triton_frozen" if options.frozen else "auto"
            tuned = all_steps(read(*words), tempfile.mkdtemp(), backend=backend, budget=options.seconds, threshold=1.01)
            path = tuned.library
            for c in tuned.comparisons:
                print(f"{c.gemm} {c.default_us:.2f} -> {c.tuned_us:.2f} us by {c.backend}, {c.reason}", flush=True)
        library = Library(path)
        report["environment"] = library.environment
        found = compare(options, batch, library)
        report["runs"].append(found)
        options.out.write_text(json.dumps(report, indent=1))
        print(json.dumps({k: v for k, v in found.items() if k not in ("entries", "kernels")}), flush=True)
        for name, kernels in found["kernels"].items():
            total = [sum(x) for x in zip(*kernels.values(), strict=True)]
            print(
                f"{name}: {total[0]:.0f} kernels, {total[1]:.1f} us;",
                {k[:40]: v for k, v in list(kernels.items())[:8]},
                flush=True,
            )


if __name__ == "__main__":
    main()
