"""Default cuBLAS, the best cuBLASLt algorithm and our best kernel on 24 products of language models, on one GPU.

    python benchmarks/tune_gpu.py --seconds 300 --out result.json --spaces folder

Every time is of cold operands (rotated through more than three caches) in a CUDA graph of at least 20 calls, random data, in
turns with the default; a winner is validated against float64 before it counts.
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
from lapwing.tune.backends.kernels.plan import Step, plan
from lapwing.tune.backends.kernels.space import PARAMETERS, SKINNY, TILES, allowed
from lapwing.tune.backends.triton import TritonBackend
from lapwing.tune.gemm import Gemm

BANDWIDTH, RATE = 4.8e12, {2: 989e12, 1: 1979e12}  # the vendor's figures of an H200: the roofline


@dataclass(frozen=True)
class Shape:
    """y (rows, columns) = x (rows, inner) w^T, as torch writes it."""

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
    def roofline(self) -> float:
        g = self.gemm
        return max(g.bytes / BANDWIDTH, g.flops / RATE[1 if self.dtype == "fp8" else 2])


SHAPES = [
    Shape(1, "Llama-3-8B qkv decode", 1, 6144, 4096),
    Shape(2, "Llama-3-8B qkv bs16", 16, 6144, 4096),
    Shape(3, "Llama-3-8B o_proj bs32", 32, 4096, 4096),
    Shape(4, "Llama-3-8B gate_up bs64", 64, 28672, 4096),
    Shape(5, "Llama-3-8B down bs16", 16, 4096, 14336),
    Shape(6, "Llama-3-8B lm_head bs8", 8, 128256, 4096),
    Shape(7, "Llama-3-70B TP8 qkv bs32", 32, 1280, 8192),
    Shape(8, "Llama-3-70B TP8 o_proj bs32", 32, 8192, 1024),
    Shape(9, "Llama-3-70B TP8 gate_up bs128", 128, 7168, 8192),
    Shape(10, "Llama-3-70B TP8 down bs128", 128, 8192, 3584),
    Shape(11, "Llama-3.1-405B TP8 lm_head", 109, 16032, 16384),
    Shape(12, "Llama-3.1-405B TP8 qkv bs16", 16, 2304, 16384),
    Shape(13, "Llama-3.1-405B TP8 gate_up bs256", 256, 13312, 16384, "fp8"),
    Shape(14, "Mixtral-8x7B expert w13", 48, 28672, 4096),
    Shape(15, "Mixtral-8x7B expert w2", 48, 4096, 14336),
    Shape(16, "DeepSeek-V3 qkv_a bs64", 64, 2112, 7168),
    Shape(17, "DeepSeek-V3 router bs128", 128, 256, 7168),
    Shape(18, "DeepSeek-V3 o_proj bs128", 128, 7168, 16384, "fp8"),
    Shape(19, "DeepSeek-V3 shared down bs128", 128, 7168, 2048),
    Shape(20, "Llama-3-70B TP8 gate_up prefill 4k", 4096, 7168, 8192),
    Shape(21, "Llama-3-8B gate_up fwd 8k", 8192, 28672, 4096),
    Shape(22, "Llama-3-8B gate_up dgrad 8k", 8192, 4096, 28672, layout="NN"),
    Shape(23, "Llama-3-8B gate_up wgrad 8k", 28672, 4096, 8192, layout="NT"),
    Shape(24, "Odd sequence prefill", 1003, 4096, 4096),
]


def candidates(gemm: Gemm, overlap: bool = False) -> list[Config]:
    """Our configurations worth a first try, mixed, so that a search that is cut short has seen some of each."""
    found: list[Config] = []

    def add(**config: int | str) -> None:
        full = {"bk": 64, "group": 1, "swap": 0, "pdl": 0} | config
        if allowed(gemm, full):
            found.append(full)

    fitting = [b for b in (8, 16, 32, 48, 64, 128, 256) if b < 2 * gemm.n or b == 8]
    for pdl in (0, 1, 2) if overlap and gemm.n <= 128 else (0,):
        for split in (1, 2, 3, 4, 6, 8):
            for rows, warps, depth, group in SKINNY if gemm.n <= 64 else ():
                shape = {"bm": rows, "warps": warps, "stages": depth, "group": group}
                reduce = "none" if split == 1 else "cluster"
                width = min((b for b in fitting if b >= gemm.n), default=64)
                add(template="skinny", bn=width, pdl=pdl, split=split, reduce=reduce, **shape)
        for bn in [b for b in fitting if b in TILES][-1 if gemm.n <= 16 else -2 :] or [16]:
            for bm, bk, stages, warps, swap in TILES[bn]:
                group = 8 if gemm.n > 1024 else 1
                shape = {"bm": bm, "bn": bn, "bk": bk, "stages": stages, "warps": warps, "swap": swap, "group": group}
                for split in (1, 2, 3, 4, 6, 8, 12) if gemm.n <= 1024 else (1,):
                    add(template="tile", split=split, reduce="none" if split == 1 else "last", pdl=pdl, **shape)
                if gemm.n > 64 and not pdl:
                    add(template="stream", split=1, reduce="last", **shape)
    return sorted(found, key=lambda c: hashlib.sha256(repr(sorted(c.items())).encode()).digest())


def neighbours(gemm: Gemm, config: Config, names: Iterable[str] = tuple(PARAMETERS)) -> list[Config]:
    """One parameter changed: to the next value up or down, or to any where values have no order."""
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
    """Fill the disk caches from a pool of processes, each different kernel once. The kernels that can be built."""
    start = time.perf_counter()
    tasks = {kernel_key(gemm, step): (gemm, step) for gemm, config in work for step in plan(gemm, config)}
    good = set()
    running = {key: pool.submit(compile_one, task) for key, task in tasks.items()}
    for key, future in running.items():
        try:
            if future.result():
                good.add(key)
        except BrokenProcessPool:  # a compiler that crashes takes the pool along: what was done is kept
            continue
    return good, {"kernels": len(tasks), "good": len(good), "seconds": time.perf_counter() - start}


def measure(
    shape: Shape,
    ours: list[Config],
    algorithms: list[Config],
    seconds: float,
    options: argparse.Namespace,
    pool: ProcessPoolExecutor,
) -> tuple[dict, list[dict]]:
    from lapwing.tune.cuda_bench import CudaBench

    begin = time.perf_counter()
    gemm, lt, own = shape.gemm, CublasLtBackend(), TritonBackend()
    bench = CudaBench(gemm, 0, options.seed, lambda g, c: (lt if "id" in c else own).bind(g, c, 0))
    default = bench.build({"default": "torch"})
    trials, timed = [], []

    def screen(configs: list[Config], until: float) -> None:
        for config in configs:
            if time.perf_counter() - begin > until:
                break
            trial: dict[str, Any] = {
                "schema": 1,
                "backend": "cublaslt" if "id" in config else "triton",
                "device": 0,
                "gemm": gemm.key,
            }
            trial |= {
                "configuration": dict(config),
                "times": {},
                "time": None,
                "invalidity": "correct",
                "reason": "",
                "environment": "",
            }
            try:
                kernel = bench.build(config)
                runtimes = bench.time([kernel], 4)[0][1:]
                bench.forget(kernel)
                timed.append((min(runtimes), kernel))
                trial |= {
                    "time": statistics.median(runtimes),
                    "times": {"compilation_time": kernel.compile_seconds, "runtimes": runtimes},
                }
            except Refused as refused:
                trial |= {"invalidity": refused.kind, "reason": str(refused)[:120]}
            trials.append(trial)

    screen(algorithms, 0.3 * seconds)
    screen(ours, 0.6 * seconds)
    done = [trial["configuration"] for trial in trials]
    for until in (0.75, 0.85):  # around the best few, with and without overlap
        mine = sorted((x for x in timed if "template" in x[1].config), key=lambda x: x[0])
        most = 2 if options.quick else 4
        best = mine[:most] + [x for x in mine if not x[1].config["pdl"]][:most]
        names = ("split", "reduce") if options.quick else tuple(n for n in PARAMETERS if n != "pdl" or options.overlap)
        if time.perf_counter() - begin > until * seconds:
            break
        near = [n for _, k in best for n in neighbours(gemm, k.config, names)]
        near = [n for i, n in enumerate(near) if n not in near[:i] and n not in done][:64]  # some 3 s of compiling on 16 cores
        good, _ = compile_all(((gemm, c) for c in near), pool)
        near = [c for c in near if all(kernel_key(gemm, x) in good for x in plan(gemm, c))]
        screen(near, until * seconds)
        done += near
    groups = {"vendor": [x for x in timed if "id" in x[1].config], "own": [x for x in timed if "template" in x[1].config]}
    groups["own, alone"] = [x for x in groups["own"] if not x[1].config["pdl"]]
    result: dict[str, Any] = {"number": shape.number, "name": shape.name, "rows": shape.rows, "columns": shape.columns}
    result |= {"inner": shape.inner, "dtype": shape.dtype, "layout": shape.layout, "roofline_us": 1e6 * shape.roofline}
    finalists: dict[str, list[Kernel]] = {
        name: [k for _, k in sorted(found, key=lambda x: x[0])[:5]] for name, found in groups.items()
    }
    for name, kernels in finalists.items():
        if kernels:
            medians = [statistics.median(r) for r in bench.time([default, *kernels], 6)[1:]]
            finalists[name] = [kernels[i] for i in sorted(range(len(kernels)), key=medians.__getitem__)]
    chosen = {}
    for name, kernels in finalists.items():
        result[name] = {"tried": len(groups[name]), "us": None}
        for kernel in kernels:
            try:
                errors = bench.check(kernel, ("product",) if options.quick else None)
            except Refused as refused:
                result[name].setdefault("refused", []).append([dict(kernel.config), str(refused)])
                continue
            result[name] |= {"config": dict(kernel.config), "errors": errors, "resources": dict(kernel.resources)}
            chosen[name] = kernel
            break
    samples = 30
    runs = bench.time([default, *chosen.values()], samples)
    result["default_us"] = 1e6 * statistics.median(runs[0])
    result["default_spread"] = (max(runs[0]) - min(runs[0])) / statistics.median(runs[0])
    for name, seconds_each in zip(chosen, runs[1:], strict=True):
        ratios = sorted(d / t for d, t in zip(runs[0], seconds_each, strict=True))
        result[name] |= {"us": 1e6 * statistics.median(seconds_each), "ratio": statistics.median(ratios)}
        result[name] |= {"low": ratios[samples // 20], "high": ratios[-1 - samples // 20]}
    chain = bench.time([default, *chosen.values()], samples // 2, between=lambda i: negate(bench.operands[i % bench.sets].b))
    result["default_us_chained"] = 1e6 * statistics.median(chain[0])
    for name, seconds_each in zip(chosen, chain[1:], strict=True):
        result[name] |= {"us_chained": 1e6 * statistics.median(seconds_each)}
        result[name]["saved_us_chained"] = result["default_us_chained"] - result[name]["us_chained"]
    best = max((r["ratio"] for r in (result[n] for n in chosen)), default=1.0)
    chained = [result["default_us_chained"] / result[name]["us_chained"] for name in chosen]
    result |= {
        "ratio": max(best, 1.0),
        "ratio_chained": max([1.0, *chained]),
        "seconds": time.perf_counter() - begin,
        "sets": bench.sets,
    }
    bench.close()
    return result, trials


def negate(x: Any) -> None:
    """A small kernel that makes the input, as a model has one before each product."""
    import torch

    if x.element_size() == 1:
        x.view(torch.uint8).bitwise_xor_(0x80)
    else:
        x.neg_()


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
    for name in ("vendor", "own, alone", "own"):
        found = result[name]
        parts.append(f"{name} {found['us'] or 0:8.2f} ({found.get('us_chained', 0):.2f}; {found['tried']} tried)")
    parts.append(f"floor {result['roofline_us']:.2f} x{result['ratio']:.3f} {result['seconds']:.1f}s")
    refused = [reason for name in ("vendor", "own") for _, reason in result[name].get("refused", [])]
    return " ".join([*parts, str(result["own"].get("config")), *refused])


def geomean(values: Iterable[float]) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=400, help="for everything")
    parser.add_argument("--out", type=Path, default=Path("tune-gpu.json"))
    parser.add_argument("--spaces", type=Path, help="folder for the trials of each product, gzipped")
    parser.add_argument("--shapes", default="", help="numbers, separated by commas; all of them when empty")
    parser.add_argument(
        "--enumerate", type=float, default=1.5, help="seconds a product for the enumeration of cuBLASLt's algorithms"
    )
    parser.add_argument("--overlap", action="store_true", help="also kernels that overlap the next one of their kind")
    parser.add_argument("--quick", action="store_true", help="search less, and validate with one probe only")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        run(options, pool)


def run(options: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    begin = time.perf_counter()
    chosen = [s for s in SHAPES if not options.shapes or str(s.number) in options.shapes.split(",")]
    ours = {s.number: candidates(s.gemm, options.overlap) for s in chosen}
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
            share = left / (len(chosen) - i)
            result, trials = measure(shape, ours[shape.number], list(found.configs), share, options, pool)
        except Exception:  # the others are still worth having
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
        decode = [r["ratio"] for r in report["shapes"] if r["rows"] <= 64]
        report["decode"] = {"geomean": geomean(decode), "over 1.25": sum(r >= 1.25 for r in decode), "count": len(decode)}
        report["all"] = {
            "geomean": geomean(r["ratio"] for r in report["shapes"]),
            "losses": sum(r["ratio"] < 1 for r in report["shapes"]),
        }
        report["decode"]["geomean chained"] = geomean(r["ratio_chained"] for r in report["shapes"] if r["rows"] <= 64)
        report["seconds"] = time.perf_counter() - begin
        options.out.write_text(json.dumps(report, indent=1))
    print(report["decode"], report["all"], f"{report['seconds']:.0f} s")


if __name__ == "__main__":
    main()
