"""Batches of middle-sized systems on a GPU: engine batched against torch, and the shapes of a kernel against each other.

    python benchmarks/blocks.py [--dtypes fd] [--ops solve,pos,...] [--cells 33x20000,48x5000,...] [--seconds 55]
    python benchmarks/blocks.py --profile [--ops solve] [--cells 256x500]
    python benchmarks/blocks.py --tune [--ops solve,pos] [--cells 64x4000] [--dtypes f]

Each line has the time of queued calls and of the same call in a CUDA graph, torch's best call in the same run, its ratio to the
graph, and the worst residual of the batch in units of n eps (at most 10). --profile adds the time of each kernel in one call;
--tune compiles solve_block.cu with other numbers of threads, with panels factored ahead or not, and for several
numbers of blocks per multiprocessor, and prints the times of all of them. Exit code: 0, or 1 for a wrong answer.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import torch

from lapwing.core.native import CUDA, DTYPE_CODE, ENGINES, OPS, native

DTYPES = {"f": torch.float32, "d": torch.float64, "c": torch.complex64, "z": torch.complex128}
CELLS = (
    (33, 20000), (48, 5000), (64, 4000), (100, 2000), (128, 1000), (176, 600),
    (256, 500), (352, 200), (512, 100), (1000, 20), (1024, 20), (2048, 8),
)  # fmt: skip
POS = 16  # of Flag in native/frame.h
# operation, flags, what comes out, right-hand sides; LW_READ to LW_GIVE as native/gpu/solve.cc sets them
KINDS = {
    "solve": ("solve", 0, (0, 2, 1, 2, 1, 0)),
    "pos": ("solve", POS, (2, 1, 2, 2, 0, 0)),
    "inv": ("inverse", 0, (0, 2, 1, 2, 1, 1)),
    "invpos": ("inverse", POS, (2, 1, 2, 2, 0, 1)),
    "lu": ("lu", 0, (0, 2, 1, 2, 1, 2)),
    "slogdet": ("slogdet", 0, (0, 2, 1, 2, 1, 3)),
    "triangular": ("triangular", 0, (0, 0, 2, 0, 0, 0)),
}


class Problem:
    """The arrays of one cell."""

    def __init__(self, kind: str, dtype: torch.dtype, n: int, batch: int) -> None:
        self.kind, self.dtype, self.n, self.batch = kind, dtype, n, batch
        a = torch.randn(batch, n, n, dtype=dtype, device="cuda")
        if kind in ("pos", "invpos"):
            a = a @ a.mH / n + torch.eye(n, dtype=dtype, device="cuda")
        if kind == "triangular":
            a = torch.tril(a) / n + 2 * torch.eye(n, dtype=dtype, device="cuda")
        self.a, self.b = a, torch.randn(batch, n, 1, dtype=dtype, device="cuda")
        self.work: dict[int, torch.Tensor] = {}
        self.info = torch.full((batch,), -1, dtype=torch.int32, device="cuda")
        real = torch.zeros((), dtype=dtype).real.dtype
        self.rows = torch.empty(batch, n, dtype=torch.int32, device="cuda")
        self.logabs = torch.empty(batch, dtype=real, device="cuda")
        whole = kind in ("inv", "invpos", "lu")
        self.x = torch.empty(batch, n, n if whole else 1, dtype=dtype, device="cuda")
        if kind == "slogdet":
            self.x = torch.empty(batch, dtype=dtype, device="cuda")

    def scratch(self, size: int) -> int:
        """Device memory for a call; calls follow each other on one stream, so that it serves them all."""
        if size not in self.work:
            self.work[size] = torch.empty(size, dtype=torch.uint8, device="cuda")
        return self.work[size].data_ptr()

    def ours(self) -> None:
        op, flags, _ = KINDS[self.kind]
        sides = (self.b,) if op in ("solve", "triangular") else ()
        more = {"lu": (self.rows,), "slogdet": (self.logabs,)}.get(op, ())
        places = [t.data_ptr() for t in (self.a, *sides, self.x, *more, self.info)]
        sizes = (self.batch, self.n, 1) if sides else (self.batch, self.n)
        stream = torch.cuda.current_stream().cuda_stream
        assert native is not None
        name = str(self.dtype).removeprefix("torch.")
        native.run(OPS[op], DTYPE_CODE[name], CUDA, 0, ENGINES["batched"], 0, flags, sizes, stream, self.scratch, *places)

    def peers(self) -> list[Callable[[], object]]:
        a, b, linalg = self.a, self.b, torch.linalg
        whole = torch.eye(self.n, dtype=self.dtype, device="cuda").expand_as(a) if self.kind == "invpos" else b
        positive: list[Callable[[], object]] = [lambda: torch.cholesky_solve(whole, linalg.cholesky_ex(a)[0])]
        general = {
            "solve": [lambda: linalg.solve_ex(a, b)], "pos": [*positive, lambda: linalg.solve_ex(a, b)],
            "inv": [lambda: linalg.inv_ex(a)], "invpos": [*positive, lambda: linalg.inv_ex(a)],
            "lu": [lambda: linalg.lu_factor_ex(a)], "slogdet": [lambda: linalg.slogdet(a)],
            "triangular": [lambda: linalg.solve_triangular(a, b, upper=False)],
        }  # fmt: skip
        return general[self.kind]

    def error(self) -> float:
        """The worst scaled residual in units of n eps."""
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        a, x, eye = self.a.to(wide), self.x.to(wide), torch.eye(self.n, dtype=wide, device="cuda")
        if self.info.any():
            return float("inf")
        if self.kind == "slogdet":
            sign, logabs = torch.linalg.slogdet(a)
            wrong = (self.logabs.to(logabs.dtype) - logabs).abs() / logabs.abs().clamp(min=1) + (x - sign).abs()
            # a determinant is as well conditioned as its matrix, and some of a large batch are not
            return float(wrong.median()) / (self.n * torch.finfo(self.dtype).eps)
        if self.kind == "lu":
            product = (torch.tril(x, -1) + eye) @ torch.triu(x)
            wrong = product - torch.take_along_dim(a, self.rows.long()[:, :, None], 1)
            size = a.norm(dim=(1, 2))
        elif self.kind in ("inv", "invpos"):
            wrong, size = a @ x - eye, a.norm(dim=(1, 2)) * x.norm(dim=(1, 2))
        else:
            b = self.b.to(wide)
            wrong, size = a @ x - b, a.norm(dim=(1, 2)) * x.norm(dim=(1, 2)) + b.norm(dim=(1, 2))
        return float((wrong.norm(dim=(1, 2)) / size).max()) / (self.n * torch.finfo(self.dtype).eps)


def milliseconds(call: Callable[[], object], repeat: int) -> float:
    """The best of three runs of queued calls."""
    call()
    best = float("inf")
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeat):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / repeat)
    return best


def in_graph(call: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def profile(call: Callable[[], object]) -> None:
    """The time of each kernel in one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.device_time_total)
    for row in rows[:8]:
        print(f"    {row.device_time_total / 1000:8.4f} ms in {row.count:4d} of {row.key[:90]}")


# ---- other shapes of the kernel ---------------------------------------------------------------------------------------


class Call(ctypes.Structure):
    """As in solve.cuh."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("a", "b", "out", "logabs", "rows", "info")] + [
        ("batch", ctypes.c_int64),
        ("k", ctypes.c_int64),
    ]


def shapes(problem: Problem) -> list[tuple[int, int, int]]:
    """(threads, ahead, blocks per multiprocessor)"""
    n = problem.n
    threads = (32, 64, 128) if n <= 64 else (64, 128, 256) if n <= 128 else (128, 256, 512)
    resident = {32: (16, 20), 64: (8, 10, 12), 128: (4, 5, 6), 256: (1, 2, 3), 512: (1,)}
    return [(t, ahead, r) for t in threads for ahead in (0, 1) if t > 32 or not ahead for r in resident[t]]


def tune(problem: Problem) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    n, size = problem.n, problem.a.element_size()
    code = DTYPE_CODE[str(problem.dtype).removeprefix("torch.")]
    panel = 4 if size == 16 else 8
    rounded = -(-n // panel) * panel
    pitch = (rounded * size // 16 | 1) * 16 // size
    chunk = 128 // size if problem.kind == "inv" else 0
    shared = (n * pitch + rounded + 2 * panel + panel * panel + rounded * chunk) * size + 4 * (2 * panel + 2 + 2 * n)
    width = next(w for w in (16, 8, 4) if n * size % w == 0)
    choices = KINDS[problem.kind][2]
    names = ("READ", "FACTOR", "FORWARD", "BACKWARD", "ROWS", "GIVE")
    fixed = " ".join(f"-DLW_{name}={value}" for name, value in zip(names, choices, strict=True))
    rows = -(-n // 32)

    def build(shape: tuple[int, int, int]) -> bytes:
        threads, ahead, resident = shape
        own = f"-DLW_DTYPE={code} -DLW_V={width} -DLW_RT={rows} -DLW_FEW={int(not chunk)} -DLW_AHEAD={ahead} -DLW_K={chunk}"
        own += f" -DLW_THREADS={threads} -DLW_LANES=32 -DLW_RESIDENT={resident} {fixed}"
        try:
            return native.compile_kernel("solve_block.cu", own, "sm_90")[0]
        except RuntimeError as error:
            print(f"  {shape}: {str(error)[:200]}")
            return b""

    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(build, shapes(problem)))
    needs_b = problem.kind in ("solve", "pos", "triangular")
    call = Call(
        problem.a.data_ptr(), problem.b.data_ptr() if needs_b else None, problem.x.data_ptr(),
        problem.logabs.data_ptr(), problem.rows.data_ptr(), problem.info.data_ptr(), problem.batch, 1,
    )  # fmt: skip
    values = [call, ctypes.c_int32(n), ctypes.c_int32(pitch)]
    arguments = (ctypes.c_void_p * 3)(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
    for shape, binary in zip(shapes(problem), built, strict=True):
        if not binary:
            continue
        module, function, registers, local = (ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int())
        assert driver.cuModuleLoadData(ctypes.byref(module), binary) == 0
        assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"solve_block") == 0
        assert driver.cuFuncSetAttribute(function, 8, shared) == 0
        driver.cuFuncGetAttribute(ctypes.byref(registers), 4, function)
        driver.cuFuncGetAttribute(ctypes.byref(local), 3, function)

        def start(function: ctypes.c_void_p = function, threads: int = shape[0]) -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            status = driver.cuLaunchKernel(function, problem.batch, 1, 1, threads, 1, 1, shared, stream, arguments, None)
            assert status == 0, status

        spent = milliseconds(start, 10)
        print(
            f"  threads {shape[0]:3d} ahead {shape[1]} resident {shape[2]:2d}: {spent:.4f} ms, {registers.value} registers, "
            f"{local.value} bytes spilled, error {problem.error():.3f} n eps",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="fd")
    parser.add_argument("--ops", default=",".join(KINDS))
    parser.add_argument("--cells", default=",".join(f"{n}x{batch}" for n, batch in CELLS))
    parser.add_argument("--seconds", type=float, default=55)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    begun, wrong = perf_counter(), 0
    cells = [tuple(map(int, cell.split("x"))) for cell in options.cells.split(",")]
    for letter, kind, (n, batch) in itertools.product(options.dtypes, options.ops.split(","), cells):
        if perf_counter() - begun > options.seconds:
            print("out of time")
            break
        torch.manual_seed(n)
        problem = Problem(kind, DTYPES[letter], n, batch)
        head = f"{kind:10s} {str(problem.dtype).removeprefix('torch.'):10s} n={n:<4d} batch={batch:<6d}"
        try:
            problem.ours()
        except RuntimeError as refused:
            print(f"{head} {str(refused).splitlines()[0]}")
            continue
        error = problem.error()
        wrong += not error <= 10
        queued = milliseconds(problem.ours, 10)
        ours = milliseconds(in_graph(problem.ours), 10)
        best = float("inf")
        for peer in problem.peers():
            best = min(best, milliseconds(peer, 2))
        print(
            f"{head} {queued:.4f} ms, graph {ours:.4f} ms, torch {best:.4f} ms = {best / ours:.2f}x, error {error:.3f} n eps",
            flush=True,
        )
        if options.profile:
            profile(problem.ours)
        if options.tune:
            tune(problem)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
