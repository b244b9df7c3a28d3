"""QR and least squares of batches on a GPU, panel by panel, against torch.

    python benchmarks/qr_blocks.py [--ops qr,r,lstsq] [--dtypes fd] [--cells 33x20000,...] [--grid] [--seconds 80]
    python benchmarks/qr_blocks.py --profile --ops qr --cells 512x640 --dtypes f
    python benchmarks/qr_blocks.py --engines [--dtypes fd]

Each line has the time on the device, torch's best call in the same run, and the worst errors of the batch in units of n eps (at
most 10): of the residual, and of the orthogonality of Q. A cell is n x batch; lstsq has 4n x n matrices. --grid takes the 12
shapes of the public grid, of several kinds of matrices, and prints the geometric means. --profile prints where the time of one
call goes. --engines compares all engines on single matrices, square and tall. Exit code: 0, or 1 for a wrong answer.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from lapwing.core.native import CUDA, DTYPE_CODE, ENGINES, OPS, native

DTYPES = {"f": torch.float32, "d": torch.float64, "c": torch.complex64, "z": torch.complex128}
CELLS = (
    (33, 20000), (48, 5000), (64, 4000), (100, 2000), (128, 1000), (176, 600), (256, 500), (512, 100), (1024, 20), (2048, 8),
)  # fmt: skip
GRID = (
    (32, 20, "random"), (176, 40, "random"), (352, 40, "random"), (512, 640, "random"), (1024, 60, "random"),
    (2048, 8, "random"), (4096, 2, "random"), (512, 640, "mixed"), (1024, 60, "mixed"), (512, 640, "deficient"),
    (512, 640, "clustered"), (1024, 60, "nearly"),
)  # fmt: skip
SAMPLE = 24  # matrices whose answers are checked
PEER_SECONDS = 1.5  # a peer that would take longer is measured on a part of the batch


def matrices(kind: str, dtype: torch.dtype, n: int, batch: int) -> torch.Tensor:
    a = torch.randn(batch, n, n, dtype=dtype, device="cuda")
    place = torch.arange(n, device="cuda") / n
    if kind == "mixed":  # columns scaled over some orders of magnitude in every other matrix
        a[::2] *= (10 ** (-6 * place)).to(a.real.dtype)
    if kind == "deficient":
        a[:, :, n // 2 :] = a[:, :, : n - n // 2] * 2
    if kind == "clustered":
        a = a[:, :, :1] + 1e-3 * a
    if kind == "nearly":
        a[:, :, -1] = a[:, :, 0] + 1e-5 * a[:, :, -1]
    return a.contiguous()


class Problem:
    """The arrays of one cell."""

    def __init__(self, op: str, dtype: torch.dtype, n: int, batch: int, kind: str = "random", m: int = 0) -> None:
        self.op, self.dtype, self.n, self.batch = op, dtype, n, batch
        self.m = m or (4 * n if op == "lstsq" else n)
        real = torch.zeros((), dtype=dtype).real.dtype

        def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="cuda")

        if op == "lstsq":
            self.inputs = [torch.randn(batch, self.m, k, dtype=dtype, device="cuda") for k in (n, 1)]
            whole = {"dtype": torch.int32}
            self.outputs = [empty(batch, n, 1), empty(batch, 1, dtype=real), empty(batch, **whole), empty(batch, **whole)]
            self.sizes: tuple[int, ...] = (batch, self.m, n, 1, 0x7FF8 << 48)
        else:
            self.inputs = [torch.randn(batch, m, n, dtype=dtype, device="cuda") if m else matrices(kind, dtype, n, batch)]
            self.outputs = [empty(batch, self.m, n)] * (op == "qr") + [empty(batch, n, n)]
            self.sizes = (batch, self.m, n, n) if op == "qr" else (batch, self.m, n)
        self.memory: list[torch.Tensor] = []

    def ours(self, engine: str = "batched") -> None:
        self.memory.clear()

        def scratch(size: int) -> int:
            self.memory.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            return self.memory[-1].data_ptr()

        assert native is not None
        name = {"r": "qr_r"}.get(self.op, self.op)
        code = DTYPE_CODE[str(self.dtype).removeprefix("torch.")]
        call = (OPS[name], code, CUDA, 0, ENGINES[engine], 0, 0, self.sizes)
        places = [x.data_ptr() for x in (*self.inputs, *self.outputs)]
        native.run(*call, torch.cuda.current_stream().cuda_stream, scratch, *places)

    def peer(self, count: int) -> object:
        a, *b = (x[:count] for x in self.inputs)
        if self.op == "lstsq":
            return torch.linalg.lstsq(a, b[0]).solution
        return torch.linalg.qr(a, mode="r" if self.op == "r" else "reduced")

    def errors(self) -> tuple[float, float]:
        """The worst residual and the worst orthogonality, in units of n eps."""
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        some = torch.linspace(0, self.batch - 1, min(SAMPLE, self.batch), device="cuda").long()
        a, *rest = (x[some].to(wide) for x in (*self.inputs, *self.outputs))
        unit = self.m * torch.finfo(self.dtype).eps
        size = a.norm(dim=(1, 2))
        if self.op == "lstsq":
            b, x = rest[0], rest[1]
            if not (self.outputs[2] == self.n).all() or self.outputs[3].any():
                return math.inf, 0
            left = b - a @ x
            wrong = (a.mH @ left).norm(dim=(1, 2)) / (size * (size * x.norm(dim=(1, 2)) + b.norm(dim=(1, 2))))
            return float(wrong.max()) / unit, 0
        if self.op == "r":
            r = rest[0]
            wrong = (a.mH @ a - r.mH @ r).norm(dim=(1, 2)) / size**2
            return float(wrong.max()) / unit + float(torch.tril(r, -1).abs().max()) / unit, 0
        q, r = rest
        eye = torch.eye(self.n, dtype=wide, device="cuda")
        wrong = (q @ r - a).norm(dim=(1, 2)) / size + torch.tril(r, -1).abs().amax((1, 2))
        return float(wrong.max()) / unit, float((q.mH @ q - eye).norm(dim=(1, 2)).max()) / unit


def elapsed(call: Callable[[], object], repeat: int) -> float:
    """Milliseconds of one of several queued calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeat):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeat


def ours_of(problem: Problem) -> float:
    once = elapsed(problem.ours, 1)
    repeat = max(1, min(10, int(100 / max(once, 1e-3))))
    return min(elapsed(problem.ours, repeat) for _ in range(2))


def peer_of(problem: Problem) -> float:
    few = min(4, problem.batch)
    problem.peer(few)
    each = elapsed(lambda: problem.peer(few), 1) / few
    count = max(few, min(problem.batch, int(1e3 * PEER_SECONDS / max(each, 1e-6))))
    best = elapsed(lambda: problem.peer(count), 1)
    if best < 100:
        best = min(best, elapsed(lambda: problem.peer(count), 2))
    return best * problem.batch / count


def profile(problem: Problem) -> None:
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as found:
        problem.ours()
        torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(list)
    for event in found.events() or []:
        spent[event.name].append(event.device_time)
    for name, times in sorted(spent.items(), key=lambda item: -sum(item[1]))[:14]:
        print(f"    {sum(times) / 1e3:9.3f} ms {len(times):4d} times  {name[:100]}")


ALONE = (
    (64, 64), (256, 256), (1024, 1024), (2048, 2048), (4096, 4096), (256, 64), (1024, 64), (1024, 256), (4096, 256),
    (4096, 1024), (8192, 128), (16384, 64), (65536, 16), (65536, 64), (65536, 256), (1 << 20, 16), (1 << 20, 64),
)  # fmt: skip


def compare_engines(options: Any) -> None:
    """One matrix, square and tall, by every engine and by torch, in milliseconds."""
    for letter, op, (m, n) in itertools.product(options.dtypes, ("qr", "lstsq"), ALONE):
        if op == "lstsq" and m < 4 * n:
            continue
        problem = Problem(op, DTYPES[letter], n, 1, m=m)
        line = f"{op:5s} {str(problem.dtype).removeprefix('torch.'):9s} {m:7d} x {n:<5d}"
        for engine in ("batched", "cusolver", "tall"):
            try:
                call = functools.partial(problem.ours, engine)
                call()
                spent = min(elapsed(call, 3) for _ in range(2))
                line += f" {engine} {spent:.3f}{'' if max(problem.errors()) <= 10 else ' WRONG'}"
            except (RuntimeError, ValueError):
                line += f" {engine} -"
        print(f"{line} torch {peer_of(problem):.3f}", flush=True)


def measure(problem: Problem, kind: str, options: Any) -> tuple[float, bool]:
    """(milliseconds, right)"""
    name = str(problem.dtype).removeprefix("torch.")
    head = f"{problem.op:5s} {name:10s} n={problem.n:<5d} batch={problem.batch:<6d} {kind:9s}"
    try:
        problem.ours()
    except RuntimeError as refused:
        print(f"{head} {str(refused).splitlines()[0]}", flush=True)
        return math.nan, True
    residual, orthogonality = problem.errors()
    right = residual <= 10 and orthogonality <= 10
    ours = ours_of(problem)
    line = f"{head} {ours:9.4f} ms"
    if not options.alone:
        peer = peer_of(problem)
        line += f", torch {peer:9.3f} ms = {peer / ours:7.2f}x"
    print(f"{line}, errors {residual:.3f} {orthogonality:.3f} n eps{'' if right else '  WRONG'}", flush=True)
    if options.profile:
        profile(problem)
    return ours, right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="fd")
    parser.add_argument("--ops", default="qr,r,lstsq")
    parser.add_argument("--cells", default=",".join(f"{n}x{batch}" for n, batch in CELLS))
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without torch")
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--engines", action="store_true")
    options = parser.parse_args()
    if options.engines:
        compare_engines(options)
        return 0
    begun, wrong = perf_counter(), 0
    chosen = [(*map(int, cell.split("x")), "random") for cell in options.cells.split(",")]
    cells = GRID if options.grid else chosen
    for letter, op in itertools.product(options.dtypes, options.ops.split(",")):
        times = []
        for n, batch, kind in cells:
            if perf_counter() - begun > options.seconds:
                print("out of time")
                return 1 if wrong else 0
            torch.manual_seed(n)
            spent, right = measure(Problem(op, DTYPES[letter], n, batch, kind), kind, options)
            wrong += not right
            times.append(spent)
            torch.cuda.empty_cache()
        if options.grid:
            known = [t for t in times if not math.isnan(t)]
            mean = math.exp(sum(map(math.log, known)) / max(len(known), 1))
            print(f"{op} {letter}: geometric mean {mean:.3f} ms of {len(known)} shapes", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
