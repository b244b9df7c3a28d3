"""Default cuBLAS, the best cuBLASLt algorithm and our best kernel on 24 products of language models, on one GPU.

    python benchmarks/tune_gpu.py --seconds 330 --out result.json --spaces folder

Operands are random and not in the cache (they rotate through more than three times its size). Samples are CUDA graphs of at
least 20 calls, in turns with the default. A winner must pass all probes against float64. Each product has four winners:

vendor   the best algorithm of cuBLASLt
own      our best kernel
overlap  our best kernel that may start before the previous kernel has ended; always correct
frozen   likewise, and it reads weights before that; correct for weights that do not change

"us" is the time of a call directly after one of the same kind; "us_chained" is the time of a call after a small kernel that
writes its input, as in a model, including that kernel.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import json
import math
import multiprocessing
import platform
import statistics
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapwing.tune.backends.base import Config, Kernel, Refused
from lapwing.tune.backends.cublaslt import CublasLtBackend
from lapwing.tune.backends.kernels.compiled import compile_step, signature
from lapwing.tune.backends.kernels.plan import FETCHES, Step, plan
from lapwing.tune.backends.kernels.space import AHEAD, PARAMETERS, SKINNY, TILES, allowed
from lapwing.tune.backends.triton import TritonBackend
from lapwing.tune.gemm import Gemm

BANDWIDTH, RATE = 4.8e12, {2: 989e12, 1: 1979e12}  # data sheet of an H200, for the roofline


@dataclass(frozen=True)
class Shape:
    """y (rows, columns) = x (rows, inner) w^T, as in torch."""

    number: int
    name: str
    rows: int
    columns: int
    inner: int
    dtype: str = "bf16"
    layout: str = "TN"

    @property
    def gemm(self) -> Gemm:
        other: dict[str, Any] = {}
        if self.dtype == "fp8":
            other = {"a_type": "f8e4m3", "b_type": "f8e4m3", "scale_a": "tensor", "scale_b": "tensor"}
        right, left = self.layout
        return Gemm.row_major(self.rows, self.columns, self.inner, right=right, left=left, dtype="bf16", **other)

    @property
    def decode(self) -> bool:
        return self.rows <= 64

    @property
    def weight(self) -> float:
        """Share of the search time: largest for decoding, which can gain most."""
        return 3.0 if self.decode else 1.5 if self.rows <= 256 else 0.7

    @property
    def roofline(self) -> float:
        g = self.gemm
        return max(g.bytes / BANDWIDTH, g.flops / RATE[1 if self.dtype == "fp8" else 2])


# by model: what the product is for, its rows, columns and inner size, and where they differ its type or layout
_PRODUCTS = {
    "Llama-3-8B": [
        ("qkv decode", 1, 6144, 4096), ("qkv bs16", 16, 6144, 4096), ("o_proj bs32", 32, 4096, 4096),
        ("gate_up bs64", 64, 28672, 4096), ("down bs16", 16, 4096, 14336), ("lm_head bs8", 8, 128256, 4096),
    ],
    "Llama-3-70B TP8": [
        ("qkv bs32", 32, 1280, 8192), ("o_proj bs32", 32, 8192, 1024), ("gate_up bs128", 128, 7168, 8192),
        ("down bs128", 128, 8192, 3584),
    ],
    "Llama-3.1-405B TP8": [
        ("lm_head", 109, 16032, 16384), ("qkv bs16", 16, 2304, 16384), ("gate_up bs256", 256, 13312, 16384, "fp8"),
    ],
    "Mixtral-8x7B expert": [("w13", 48, 28672, 4096), ("w2", 48, 4096, 14336)],
    "DeepSeek-V3": [
        ("qkv_a bs64", 64, 2112, 7168), ("router bs128", 128, 256, 7168), ("o_proj bs128", 128, 7168, 16384, "fp8"),
        ("shared down bs128", 128, 7168, 2048),
    ],
    "Llama-3-70B TP8 gate_up": [("prefill 4k", 4096, 7168, 8192)],
    "Llama-3-8B gate_up": [
        ("fwd 8k", 8192, 28672, 4096), ("dgrad 8k", 8192, 4096, 28672, "bf16", "NN"),
        ("wgrad 8k", 28672, 4096, 8192, "bf16", "NT"),
    ],
    "Odd sequence": [("prefill", 1003, 4096, 4096)],
}  # fmt: skip
_NAMED = [(f"{model} {name}", *rest) for model, rows in _PRODUCTS.items() for name, *rest in rows]
SHAPES = [Shape(number, *fields) for number, fields in enumerate(_NAMED, 1)]


OVERLAP, FROZEN = (1, 2, *FETCHES), AHEAD  # values of pdl
KINDS = ("vendor", "own", "overlap", "frozen")


def kind(config: Config) -> str:
    if "id" in config:
        return "vendor"
    return "frozen" if config["pdl"] in FROZEN else "overlap" if config["pdl"] else "own"


def candidates(gemm: Gemm) -> list[Config]:
    """Our most promising configurations, mixed, so that a short search tries some of each kind."""
    found: list[Config] = []

    def add(**config: int | str) -> None:
        full = {"bk": 64, "group": 1, "swap": 0, "pdl": 0} | config
        if allowed(gemm, full):
            found.append(full)

    fitting = [b for b in (8, 16, 32, 48, 64, 128, 256) if b < 2 * gemm.n or b == 8]
    for split in (1, 2, 3, 4, 6, 8):
        for rows, warps, depth, group in SKINNY if gemm.n <= 64 else ():
            shape = {"bm": rows, "warps": warps, "stages": depth, "group": group}
            width = min((b for b in fitting if b >= gemm.n), default=64)
            add(template="skinny", bn=width, split=split, reduce="none" if split == 1 else "cluster", **shape)
    for bn in [b for b in fitting if b in TILES][-1 if gemm.n <= 16 else -2 :] or [16]:
        for bm, bk, stages, warps, swap in TILES[bn]:
            group = 8 if gemm.n > 1024 else 1
            shape = {"bm": bm, "bn": bn, "bk": bk, "stages": stages, "warps": warps, "swap": swap, "group": group}
            for split in (1, 2, 3, 4, 6, 8, 12) if gemm.n <= 1024 else (1,):
                for reduce in ("none",) if split == 1 else ("last", "atomic"):
                    add(template="tile", split=split, reduce=reduce, **shape)
            if gemm.n > 64:
                add(template="stream", split=1, reduce="last", **shape)
    return sorted(found, key=lambda c: hashlib.sha256(repr(sorted(c.items())).encode()).digest())


def neighbours(gemm: Gemm, config: Config, names: Iterable[str] = tuple(PARAMETERS)) -> list[Config]:
    """Configurations with one parameter changed: to the next value, or to any value if they have no order."""
    found = []
    for name in names:
        values = PARAMETERS[name]
        at = values.index(config[name])
        other = (
            [v for v in values if v != config[name]]
            if isinstance(config[name], str) or name == "pdl"
            else values[max(at - 1, 0) : at + 2]
        )
        for value in other:
            changed = {**config, name: value}
            if name == "split" and (changed["split"] == 1) != (changed["reduce"] == "none") and changed["template"] != "stream":
                changed["reduce"] = "none" if value == 1 else "cluster" if changed["template"] == "skinny" else "last"
            if changed != config and allowed(gemm, changed):
                found.append(changed)
    return found


def compile_one(task: tuple[Gemm, Step]) -> bool:
    try:
        compile_step(*task)
    except Refused:
        return False
    return True


def kernel_key(gemm: Gemm, step: Step) -> tuple:
    if step.kernel == "skinny":
        return "skinny", step.constants
    types, constants, divisible = signature(gemm, step)
    return step.kernel, step.warps, step.stages, tuple(types.items()), tuple(constants.items()), tuple(divisible)


def compile_all(work: Iterable[tuple[Gemm, Config]], pool: ProcessPoolExecutor) -> tuple[set[tuple], dict[str, Any]]:
    """Compile each distinct kernel once, in a pool of processes that fill the cache on disk; return those that compile."""
    start = time.perf_counter()
    tasks = {kernel_key(gemm, step): (gemm, step) for gemm, config in work for step in plan(gemm, config)}
    good = set()
    running = {key: pool.submit(compile_one, task) for key, task in tasks.items()}
    for key, future in running.items():
        try:
            if future.result():
                good.add(key)
        except BrokenProcessPool:  # a compiler crash ends the pool; finished kernels are kept
            continue
    return good, {"kernels": len(tasks), "good": len(good), "seconds": time.perf_counter() - start}


def overlapping(gemm: Gemm, timed: list[tuple[float, Kernel]]) -> list[Config]:
    """The best candidates of each template, with every kind of overlap."""
    best = sorted((x for x in timed if "template" in x[1].config), key=lambda x: x[0])
    chosen = [k.config for name in ("tile", "skinny") for _, k in [x for x in best if x[1].config["template"] == name][:6]]
    found = [{**c, "pdl": pdl} for c in chosen for pdl in (*OVERLAP, *FROZEN)]
    return [c for c in found if allowed(gemm, c)]


class Search:
    """One product. ``trials`` has every candidate, ``timed`` those that ran."""

    def __init__(self, shape: Shape, options: argparse.Namespace, pool: ProcessPoolExecutor, seconds: float) -> None:
        from lapwing.tune.backends.cuda_bench import CudaBench

        self.begin, self.seconds, self.pool, self.options = time.perf_counter(), seconds, pool, options
        self.shape, self.gemm = shape, shape.gemm
        lt, own = CublasLtBackend(), TritonBackend(overlap=True, frozen=True)
        self.bench = CudaBench(self.gemm, 0, options.seed, lambda g, c: (lt if "id" in c else own).bind(g, c, 0))
        self.default = self.bench.build({"default": "torch"})
        self.trials: dict[str, dict[str, Any]] = {}
        self.timed: list[tuple[float, Kernel]] = []

    def used(self) -> float:
        return (time.perf_counter() - self.begin) / self.seconds

    def screen(self, configs: Iterable[Config], until: float) -> None:
        """Time each candidate directly after itself, until this part of the time is spent."""
        for config in configs:
            key = json.dumps(config, sort_keys=True)
            if key in self.trials:
                continue
            if self.used() > until:
                break
            name = {"vendor": "cublaslt", "frozen": "triton_frozen"}.get(kind(config), "triton")
            trial: dict[str, Any] = {"schema": 1, "backend": name, "device": 0, "gemm": self.gemm.key}
            trial |= {"configuration": dict(config), "times": {}, "time": None, "invalidity": "correct", "reason": ""}
            trial |= {"environment": "", "validated": False}
            try:
                kernel = self.bench.build(config)
                runtimes = self.bench.back_to_back([kernel], 3)[0][1:]
                self.bench.forget(kernel)
                self.timed.append((min(runtimes), kernel))
                times = {"compilation_time": kernel.compile_seconds, "runtimes": runtimes}
                trial |= {"time": statistics.median(runtimes), "times": times}
            except Refused as refused:
                trial |= {"invalidity": refused.kind, "reason": str(refused)[:120]}
            self.trials[key] = trial

    def compiled(self, configs: list[Config], most: int) -> list[Config]:
        """The first new candidates that compile; about 3 s for 64 of them on 16 cores."""
        new = [c for i, c in enumerate(configs) if c not in configs[:i] and json.dumps(c, sort_keys=True) not in self.trials]
        good, _ = compile_all(((self.gemm, c) for c in new[:most]), self.pool)
        return [c for c in new[:most] if all(kernel_key(self.gemm, x) in good for x in plan(self.gemm, c))]

    def winners(self) -> dict[str, Kernel]:
        """The fastest candidate of each kind that passes every probe."""
        chosen = {}
        for name in KINDS:
            found = sorted((x for x in self.timed if kind(x[1].config) == name), key=lambda x: x[0])[:6]
            if not found:
                continue
            again = self.bench.back_to_back([k for _, k in found], 7)
            for _, kernel in sorted(zip(map(statistics.median, again), (k for _, k in found), strict=True), key=lambda x: x[0]):
                trial = self.trials[json.dumps(kernel.config, sort_keys=True)]
                try:
                    errors = self.bench.check(kernel)
                except Refused as refused:
                    trial |= {"invalidity": refused.kind, "reason": str(refused)[:120], "time": None}
                    continue
                trial |= {"validated": True, "errors": dict(errors)}
                chosen[name] = kernel
                break
        return chosen


def measure(
    shape: Shape,
    ours: list[Config],
    algorithms: list[Config],
    seconds: float,
    options: argparse.Namespace,
    pool: ProcessPoolExecutor,
) -> tuple[dict, list[dict]]:
    search = Search(shape, options, pool, seconds)
    gemm, bench, default = shape.gemm, search.bench, search.default
    search.screen(algorithms, 0.45)
    search.screen(ours, 0.65)
    for until in (0.72, 0.8):  # variations of the best few
        best = sorted((x for x in search.timed if "template" in x[1].config), key=lambda x: x[0])[:4]
        if search.used() < until - 0.05 and shape.rows <= 256:
            names = tuple(n for n in PARAMETERS if n != "pdl")
            search.screen(search.compiled([n for _, k in best for n in neighbours(gemm, k.config, names)], 48), until)
    if shape.rows <= 128 and search.used() < 0.9:
        search.screen(search.compiled(overlapping(gemm, search.timed), 64), 0.95)
    chosen = search.winners()
    result: dict[str, Any] = {"number": shape.number, "name": shape.name, "rows": shape.rows, "columns": shape.columns}
    result |= {"inner": shape.inner, "dtype": shape.dtype, "layout": shape.layout, "roofline_us": 1e6 * shape.roofline}
    samples = 30 if shape.rows <= 1024 else 10
    runs = bench.back_to_back([default, *chosen.values()], samples)
    chain = bench.time([default, *chosen.values()], samples // 2, between=bench.small)
    result["default_us"], result["default_us_chained"] = (1e6 * statistics.median(x[0]) for x in (runs, chain))
    result["default_spread"] = (max(runs[0]) - min(runs[0])) / statistics.median(runs[0])
    for name in KINDS:
        count = sum(kind(t["configuration"]) == name for t in search.trials.values())
        result[name] = {"tried": count, "us": None, "us_chained": None, "ratio": 1.0, "ratio_chained": 1.0}
    for (name, kernel), alone, behind in zip(chosen.items(), runs[1:], chain[1:], strict=True):
        trial = search.trials[json.dumps(kernel.config, sort_keys=True)]
        result[name] |= {"config": dict(kernel.config), "errors": trial["errors"], "resources": dict(kernel.resources)}
        ratios = sorted(d / t for d, t in zip(runs[0], alone, strict=True))
        result[name] |= {"us": 1e6 * statistics.median(alone), "ratio": statistics.median(ratios)}
        result[name] |= {"low": ratios[samples // 20], "high": ratios[-1 - samples // 20]}
        result[name] |= {"us_chained": 1e6 * statistics.median(behind)}
        result[name]["ratio_chained"] = result["default_us_chained"] / result[name]["us_chained"]
    for end in ("", "_chained"):  # the default is a candidate too, and each kind may use simpler kernels
        for upto, label in enumerate(("vendor", "plain", "overlap", "frozen"), 1):
            result[f"ratio_{label}{end}"] = max(1.0, *(result[name][f"ratio{end}"] for name in KINDS[:upto]))
    result |= {"seconds": time.perf_counter() - search.begin, "sets": bench.sets}
    bench.close()
    return result, list(search.trials.values())


def ceilings() -> dict[str, float]:
    import torch

    a = torch.randn(1 << 29, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = {}
    for name, call, amount in (
        ("copy TB/s", lambda: b.copy_(a), 4e-12 * a.numel()),
        ("bf16 TFLOP/s", lambda: x @ y, 2e-12 * 8192**3),
    ):
        for _ in range(3):
            call()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            call()
        stop.record()
        torch.cuda.synchronize()
        found[name] = amount / (1e-4 * start.elapsed_time(stop))
    return found


def line(result: dict[str, Any]) -> str:
    sizes = f"{result['rows']:5d}x{result['columns']:6d}x{result['inner']:5d}"
    parts = [f"{result['number']:2d} {sizes} default {result['default_us']:8.2f} ({result['default_us_chained']:.2f})"]
    for name in KINDS:
        found = result[name]
        parts.append(f"{name} {found['us'] or 0:8.2f} ({found['us_chained'] or 0:.2f}; {found['tried']} tried)")
    parts.append(f"floor {result['roofline_us']:.2f} x{result['ratio_plain']:.3f} x{result['ratio_frozen']:.3f}")
    return " ".join([*parts, f"{result['seconds']:.1f}s", str(result["own"].get("config"))])


def geomean(values: Iterable[float]) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def summary(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of default / best by kind; "chained" is after another kernel."""
    found: dict[str, Any] = {}
    for name, some in (("decode", [r for r in shapes if r["rows"] <= 64]), ("all", shapes)):
        for label in ("vendor", "plain", "overlap", "frozen"):
            for end in ("", "_chained"):
                ratios = [r[f"ratio_{label}{end}"] for r in some]
                what = {"geomean": round(geomean(ratios), 4), "over 1.25": sum(r >= 1.25 for r in ratios), "count": len(ratios)}
                found[f"{name}, {label}{end.replace('_', ', ')}"] = what
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=400, help="for everything")
    parser.add_argument("--out", type=Path, default=Path("tune-gpu.json"))
    parser.add_argument("--spaces", type=Path, help="folder for the trials of each product, gzipped")
    parser.add_argument("--shapes", default="", help="numbers, separated by commas; all of them when empty")
    parser.add_argument(
        "--enumerate", type=float, default=1.5, help="seconds a product for the enumeration of cuBLASLt's algorithms"
    )
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        run(options, pool)


def run(options: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    begin = time.perf_counter()
    chosen = [s for s in SHAPES if not options.shapes or str(s.number) in options.shapes.split(",")]
    ours = {s.number: candidates(s.gemm) for s in chosen}
    good, compiled = compile_all(((s.gemm, c) for s in chosen for c in ours[s.number]), pool)
    ours = {
        s.number: [c for c in ours[s.number] if all(kernel_key(s.gemm, x) in good for x in plan(s.gemm, c))] for s in chosen
    }
    print(f"compiled {compiled}", flush=True)
    lt, own = CublasLtBackend(), TritonBackend()
    report: dict[str, Any] = {
        "schema": 1,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "environment": lt.environment(0) | own.environment(0),
        "ceilings": ceilings(),
        "compiled": compiled,
        "shapes": [],
    }
    if options.spaces:
        options.spaces.mkdir(parents=True, exist_ok=True)
    for i, shape in enumerate(chosen):
        left = options.seconds - (time.perf_counter() - begin)
        try:
            found = lt.found(shape.gemm, 0, seconds=options.enumerate)
            share = left * shape.weight / sum(s.weight for s in chosen[i:])
            result, trials = measure(shape, ours[shape.number], list(found.configs), share, options, pool)
        except Exception:  # the other products are still useful
            report.setdefault("errors", []).append([shape.number, traceback.format_exc()])
            print(shape.number, traceback.format_exc(), flush=True)
            continue
        result["algorithms"] = {
            "kept": len(found.configs),
            "heuristic": found.heuristic,
            "tried": found.tried,
            "ids": found.ids,
        }
        report["shapes"].append(result)
        print(line(result), flush=True)
        if options.spaces:
            text = "".join(json.dumps(trial, separators=(",", ":")) + "\n" for trial in trials)
            (options.spaces / f"shape{shape.number:02d}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        report["summary"] = summary(report["shapes"])
        report["seconds"] = time.perf_counter() - begin
        options.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report.get("summary", {}), indent=1), f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
