"""In-situ analysis on a GPU: coupling of the CUDA solver, streaming POD over its floor, what crosses the bus.

    python benchmarks/insitu_gpu.py [--unknowns 16777216] [--snapshots 240] [--modes 20] [--output FILE]

The floor of the POD: per block of snapshots two products (the Gram matrix of what is kept and what is new, and the rotation
of it) and one copy of each snapshot, timed alone on arrays of the same shapes. Prints what it finds and writes everything to
benchmarks/results/. Exit code: 0, or 1 for a wrong answer.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lapwing
from lapwing import insitu
from lapwing.bench.environment import environment
from lapwing.insitu.solver import bridge

_RESULTS = Path(__file__).parent / "results"
_PACKAGE = Path(lapwing.__file__).resolve().parent
_BURGERS = _PACKAGE / "insitu" / "examples" / "burgers"


def main() -> int:
    options = _options()
    if options.burgers:
        return ctypes.CDLL(options.burgers[0], mode=ctypes.RTLD_GLOBAL).burgers_run(options.burgers[1].encode())
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%S"), "environment": asdict(environment())}
    report["coupling"] = _coupling()
    report["pod"] = [_pod(options, library, dtype) for dtype in ("float64", "float32") for library in ("torch", "cupy")]
    wrong = [row for row in report["pod"] if not row["good"]]
    wrong += [name for name, row in report["coupling"].items() if row.get("value") not in (None, "0.0733873")]
    path = options.output or _RESULTS / f"h200-insitu-{report['date'][:10]}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{'WRONG' if wrong else 'good'}; wrote {path}")
    return 1 if wrong else 0


# ---- the original's solver, 258 points, 2001 steps


_NOOP = """
import cupy  # in which the field is handed over: its import is not what a step costs
from lapwing import insitu
class Nothing(insitu.Analysis):
    fields = ("u",)
    def on_step(self, ctx, u): pass
def analyses(): return [Nothing()]
"""
_HISTORY = """
import cupy
from lapwing import insitu
class History(insitu.Analysis):
    \"\"\"What the original does: every snapshot into an array on the device, its SVD at the end.\"\"\"
    fields = ("u",)
    def on_step(self, ctx, u):
        if ctx.step == 0: self.all = cupy.zeros((2001, u.shape[0]))
        self.all[ctx.step] = cupy.asarray(u)
    def on_finish(self, ctx):
        print("singular values", *[f"{x:.9g}" for x in cupy.linalg.svd(self.all, full_matrices=False)[1][:4].get()], flush=True)
def analyses(): return [History()]
"""
_POD = """
from lapwing import insitu
class Say(insitu.Analysis):
    fields = ()
    def __init__(self, pod): self.pod = pod
    def on_finish(self, ctx): print("singular values", *[f"{x:.9g}" for x in self.pod.sigma[:4]], flush=True)
def analyses():
    pod = insitu.POD("u", rank=10)
    return [pod, Say(pod)]
"""


def _coupling() -> dict[str, Any]:
    """ms per step of the CUDA solver without and with analyses; Python starts the solver, as it may lack a libpython."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "run.cu")
        source.write_text(
            '#define main burgers_main\n#include "burgers.cpp"\n'
            'extern "C" int burgers_run(char* script) {\n'
            "  char* list[] = {script, script, nullptr};\n  return burgers_main(2, list);\n}\n"
        )
        library = Path(folder, "run.so")
        flags = f"-shared -Xcompiler -fPIC -std=c++17 -O3 -fmad=false -I{_BURGERS} -I{_PACKAGE}/insitu/include".split()
        link = [f"-L{_PACKAGE}", f"-Xlinker=-rpath,{_PACKAGE}", "-llapwing_insitu"]
        subprocess.run(["nvcc", *flags, str(source), "-o", str(library), *link], check=True)
        for name, text in (("off", _NOOP), ("nothing", _NOOP), ("history", _HISTORY), ("pod", _POD)):
            script = Path(folder, f"{name}.py")
            script.write_text(text)
            known = os.environ | {"PYTHONPATH": str(_PACKAGE.parent)} | ({"LAPWING_INSITU": "0"} if name == "off" else {})
            rows = []
            for _ in range(3):
                call = [sys.executable, __file__, "--burgers", str(library), str(script)]
                done = subprocess.run(call, capture_output=True, text=True, env=known, cwd=folder, timeout=120)
                rows.append(done.stdout)
                if done.returncode or "Mean" not in done.stdout:
                    print(name, done.stdout[-500:], done.stderr[-1500:], flush=True)
                    break
            means = [float(x) for text in rows for x in re.findall(r"Mean wall time: ([\d.e-]+)", text)]
            values = re.findall(r"solution array: ([\d.]+)", rows[-1])
            sigma = re.findall(r"singular values (.*)", rows[-1])
            found[name] = {"ms_per_step": min(means, default=None), "value": values[0] if values else "", "sigma": sigma[:1]}
            print(f"burgers, {name}: {found[name]}", flush=True)
    return found


# ---- streaming POD of large fields


def _pod(options: argparse.Namespace, library: str, dtype: str) -> dict[str, Any]:
    kind = getattr(torch, dtype)
    n, steps, modes = options.unknowns, options.snapshots, options.modes
    solver = _Solver(n, kind)
    history = torch.empty((steps, n), dtype=kind, device="cuda")
    for step in range(steps):
        history[step] = solver.at(step)
    gram = sum(_gram64(history[:, i : i + (1 << 21)]) for i in range(0, n, 1 << 21))
    sigma = np.sqrt(np.linalg.eigvalsh(gram.cpu().numpy())[::-1].clip(0))
    del history
    alone = _time(lambda: [solver.at(step) for step in range(steps)])
    block = 2 * modes
    pods: list[Any] = []

    def analysed() -> None:
        pods[:] = [insitu.POD("u", rank=modes, block=block)]
        session = bridge.Session(insitu.Hub(pods, output=None, quiet=True, xp=library))
        stream = torch.cuda.current_stream().cuda_stream
        code, bits = "f", 32 if dtype == "float32" else 64
        for step in range(steps):
            u = solver.at(step)
            session.field("u", u.data_ptr(), (n,), None, code, bits, 2, 0, stream, False)
            if session.step(step, 0.0) != 0:
                raise RuntimeError(session.error())
        torch.cuda.synchronize()
        sessions[:] = [session]

    sessions: list[Any] = []
    both = _time(analysed, repeat=2)
    traffic = _traffic(analysed)
    sessions[0].finalize()
    error = float(np.abs(pods[0].sigma - sigma[: len(pods[0].sigma)]).max() / sigma[0])
    floor = _floor(n, kind, modes, block) * steps / block
    row = {
        "library": library,
        "dtype": dtype,
        "unknowns": n,
        "snapshots": steps,
        "modes": modes,
        "block": block,
        "solver_ms_per_step": alone / steps * 1e3,
        "analysis_ms_per_step": (both - alone) / steps * 1e3,
        "floor_ms_per_step": floor / steps * 1e3,
        "over_floor": (both - alone) / floor,
        "sigma_error": error,
        "bound": float(pods[0].bound),
        "host_traffic": traffic,
        "good": error <= (1e-8 if dtype == "float64" else 1e-5),
    }
    print(json.dumps(row), flush=True)
    return row


class _Solver:
    """A field of eight travelling patterns whose strengths change, in one array that every step overwrites."""

    def __init__(self, n: int, kind: torch.dtype) -> None:
        x = torch.linspace(0, 1, n, dtype=torch.float64, device="cuda")
        self.shapes = torch.stack([torch.sin((3 * k + 1) * np.pi * x + k) for k in range(24)]).to(kind)
        self.u = torch.empty(n, dtype=kind, device="cuda")
        k, step = np.arange(24), np.arange(1000)[:, None]
        self.strengths = torch.tensor(np.exp(-0.8 * k) * np.cos(0.05 * (k + 1) * step + k), dtype=kind, device="cuda")

    def at(self, step: int) -> torch.Tensor:
        return torch.mv(self.shapes.T, self.strengths[step], out=self.u)


def _gram64(a: torch.Tensor) -> torch.Tensor:
    a = a.double()
    return a @ a.T


def _floor(n: int, kind: torch.dtype, modes: int, block: int) -> float:
    """Seconds for one block: copies of its snapshots, the Gram matrix in fp64 where the data are, the rotation."""
    kept = 2 * modes
    rows = torch.randn((kept + block, n), dtype=kind, device="cuda")
    small = torch.randn((kept, kept + block), dtype=kind, device="cuda")
    u = torch.randn(n, dtype=kind, device="cuda")
    out = torch.empty((kept, n), dtype=kind, device="cuda")
    copies = _time(lambda: [rows[i].copy_(u) for i in range(block)])
    gram = _time(lambda: rows @ rows.T)
    turn = _time(lambda: torch.matmul(small, rows, out=out))
    return copies + gram + turn


def _time(work: Any, repeat: int = 3) -> float:
    best = float("inf")
    for _ in range(repeat):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


def _traffic(work: Any) -> dict[str, float]:
    """Copies between host and device during the run: how many, and the most bytes one took."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    copies = [e["args"].get("bytes", 0) for e in events if "HtoD" in e.get("name", "") or "DtoH" in e.get("name", "")]
    return {"copies": len(copies), "largest_bytes": max(copies, default=0), "all_bytes": sum(copies)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unknowns", type=int, default=1 << 24)
    parser.add_argument("--snapshots", type=int, default=240)
    parser.add_argument("--modes", type=int, default=20)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--burgers", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
