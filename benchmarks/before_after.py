"""Two checkouts of lapwing on one machine in one run: how the times of everyday calls changed between them.

    python benchmarks/before_after.py BEFORE AFTER [--cells eig,lstsq:33] [--turns 7] [--seconds 50] [--output FILE]
    python benchmarks/before_after.py BEFORE AFTER --kernels [--arch 90]

BEFORE and AFTER are checkouts whose native core is built. Each has a process of its own, which calls its lapwing on torch
tensors, and the two take turns at every cell. Each answer is checked once: its residual may be 10 n eps at most. The table has
the ratios of the least times, the worst first, and says for each cell which sources give other machine code in the two
checkouts: where the code is the same, a ratio other than 1 is noise, or comes from the host. Exit code: 0, or 1 for a wrong
answer.

--kernels compiles the kernels of all cells into a pack in each checkout, and compares their code. It needs no GPU. Without
packs kernels are compiled in the first call, and not compared.

On a GPU a time is what the device needs for calls that were queued behind a pause, so that it never waits for the host.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

DTYPES = {"f": "float32", "d": "float64", "c": "complex64", "z": "complex128"}
SAMPLE = 6e-3  # seconds of calls in one time
MOST_CALLS = 200  # the driver's queue holds about a thousand launches
CELL = 0.25  # seconds of each checkout for a cell, unless its calls are long
LONGEST_PAUSE = 20e-3
CHECKED = 24  # matrices whose answers are checked
LIMIT = 10  # times n eps
LINES = 36  # of the table

# operation, dtypes, (order, batch) or (rows, columns, batch)
CELLS: tuple[tuple[str, str, tuple[tuple[int, ...], ...]], ...] = (
    ("lstsq", "fd", ((132, 33, 20000), (192, 48, 5000), (256, 64, 4000), (1024, 256, 1), (4096, 1024, 1))),
    ("eig", "fdz", ((3, 20000), (4, 20000), (8, 5000), (16, 2000), (64, 400))),
    ("solve", "fd", ((8, 1), (16, 1), (64, 4000), (128, 1000), (512, 100))),
    ("solve_pos", "fd", ((16, 1), (33, 20000), (128, 1000), (512, 100))),
    ("inv", "fd", ((64, 4000),)),
    ("inv_pos", "fd", ((64, 4000), (128, 1000))),
    ("eigh", "fd", ((8, 100000), (32, 2000), (352, 40), (1024, 1), (2048, 1))),
    ("qr", "fd", ((64, 64, 4000), (200000, 32, 1))),
    ("svd", "fd", ((8, 8, 100000), (64, 64, 400), (200000, 32, 1))),
    ("cholesky", "fd", ((8, 400000), (32, 50000), (128, 5000), (512, 100))),
)


@dataclass(frozen=True)
class Cell:
    operation: str  # "_pos": of positive definite matrices
    rows: int
    n: int
    batch: int
    dtype: str

    def __str__(self) -> str:
        order = str(self.n) if self.rows == self.n else f"{self.rows} x {self.n}"
        return f"{self.operation} {order} x{self.batch} {self.dtype}"

    @property
    def function(self) -> str:
        return self.operation.removesuffix("_pos")

    @property
    def options(self) -> dict[str, Any]:
        return {"assume": "pos"} if self.operation.endswith("_pos") else {}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        lead = (self.batch,) if self.batch > 1 else ()
        shapes = [(*lead, self.rows, self.n)]
        return [*shapes, (*lead, self.rows, 1)] if self.function in ("solve", "lstsq") else shapes


def cells_of(chosen: str, device: str) -> list[Cell]:
    """All cells, or those that ``chosen`` names: operations, or operation:order. Batches are smaller on the CPU."""
    wanted = [word.partition(":") for word in chosen.split(",") if word]
    cells = []
    for operation, codes, sizes in CELLS:
        for *shape, n, batch in sizes:
            if wanted and not any(operation == name and order in ("", str(n)) for name, _, order in wanted):
                continue
            few = max(1, batch // 100) if device == "cpu" else batch
            cells += [Cell(operation, shape[0] if shape else n, n, few, DTYPES[code]) for code in codes]
    return cells


# ---- the process of one checkout -----------------------------------------------------------------------------------------


class Worker:
    """Answers the questions that come line by line: each method whose name a line begins with."""

    def __init__(self, device: str, architecture: int) -> None:
        self.device, self.architecture = device, architecture

    def load(self) -> dict[str, Any]:
        import torch

        import lapwing as lw

        self.torch, self.lw = torch, lw
        about = {"lapwing": lw.__version__, "torch": torch.__version__, "python": sys.version.split()[0], "file": lw.__file__}
        if self.device == "cuda":
            torch.zeros(1, device="cuda")
            about |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        return about

    def kernels(self, cell: Cell) -> dict[str, str]:
        """The kernels that the cell's call launches, each with a hash of its compiled code, or "" where there is no pack."""
        import lapwing as lw
        from lapwing.cli.kernel_calls import GPUS, kernels_for
        from lapwing.core.native import native

        specs = [lw.spec(shape, cell.dtype, "cuda") for shape in cell.shapes]
        problem = getattr(lw, cell.function).problem(*specs, **cell.options)
        found = kernels_for((problem.operation, problem.flags, problem.sizes), cell.dtype, GPUS[self.architecture][0])
        assert native is not None
        binaries = {(s, o): native.find_kernel(native.kernel_key(s, o), self.architecture) for s, o in found}
        return {f"{source} {options}": code_hash(binary) if binary else "" for (source, options), binary in binaries.items()}

    def build(self, wanted: list[str]) -> str:
        from lapwing.cli.kernels import _build
        from lapwing.core import packs

        path = packs.FOLDER / f"sm_{self.architecture}.pack"
        kernels = [(source, options) for source, _, options in (name.partition(" ") for name in sorted(wanted))]
        if _build(path, self.architecture, kernels, os.cpu_count() or 1):
            raise RuntimeError(f"some kernels of {path} do not compile")
        return str(path)

    def prepare(self, cell: Cell) -> dict[str, Any]:
        """Calls once, checks the answer, and measures how long a call takes, and takes to be queued."""
        function = getattr(self.lw, cell.function)
        options = cell.options | ({"on_fail": "nan"} if "on_fail" in (function.__kwdefaults__ or {}) else {})
        inputs = self.inputs(cell)
        self.call = lambda: function(*inputs, **options)
        begun = perf_counter()
        result = self.call()
        self.wait()
        first = perf_counter() - begun
        error = self.error(cell, inputs, result)
        del result
        self.queued, self.pause = 0.0, 0
        self.call()
        self.wait()
        begun = perf_counter()
        for _ in range(3):
            self.call()
        self.queued = (perf_counter() - begun) / 3  # by the host
        self.wait()
        return {"first": first, "error": error, "seconds": (perf_counter() - begun) / 3}

    def time(self, calls: int, times: int) -> list[float]:
        return [self.time_once(calls) for _ in range(times)]

    def time_once(self, calls: int) -> float:
        if self.device == "cpu":
            begun = perf_counter()
            for _ in range(calls):
                self.call()
            return (perf_counter() - begun) / calls
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        pause = min(LONGEST_PAUSE, 1.3 * calls * self.queued + 1e-4)
        cuda._sleep(int(pause * 1.9e9))  # cycles
        start.record()
        for _ in range(calls):
            self.call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / calls

    def forget(self) -> None:
        self.call = lambda: None
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def compiled(self) -> list[str]:
        """The kernels that were in no pack."""
        from lapwing.core.native import native

        assert native is not None
        return [f"{source} {options}" for source, options, origin, _ in native.loaded_kernels() if origin != "pack"]

    def wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def inputs(self, cell: Cell) -> list[Any]:
        """The same numbers in both checkouts."""
        torch, dtype = self.torch, getattr(self.torch, cell.dtype)
        torch.manual_seed(1)
        inputs = [torch.randn(shape, dtype=dtype, device=self.device) for shape in cell.shapes]
        a = inputs[0]
        if cell.function == "cholesky" or cell.options:
            inputs[0] = a @ a.mH / cell.n + torch.eye(cell.n, dtype=dtype, device=self.device)
        elif cell.function == "eigh":
            inputs[0] = (a + a.mH) / 2
        return inputs

    def error(self, cell: Cell, inputs: list[Any], result: Any) -> float:
        """The worst residual in units of n eps."""
        torch = self.torch
        wide = torch.complex128 if cell.dtype.startswith("complex") or cell.function == "eig" else torch.float64

        def some(x: Any) -> Any:
            return (x if cell.batch > 1 else x[None])[:CHECKED].to(wide)

        def norm(x: Any) -> Any:
            return torch.linalg.vector_norm(x, dim=(-2, -1))

        a, *b = map(some, inputs)
        size = norm(a)
        if cell.function == "cholesky":
            l = some(result)
            wrong = norm(l @ l.mH - a) / size
        elif cell.function == "solve":
            x = some(result)
            wrong = norm(a @ x - b[0]) / (size * norm(x) + norm(b[0]))
        elif cell.function == "lstsq":
            x = some(result.x)
            left = b[0] - a @ x
            wrong = norm(a.mH @ left) / (size * (size * norm(x) + norm(b[0])))
        elif cell.function == "inv":
            x = some(result)
            wrong = norm(a @ x - torch.eye(cell.n, dtype=wide, device=self.device)) / (size * norm(x))
        elif cell.function == "qr":
            q, r = map(some, result)
            wrong = norm(q @ r - a) / size + self.lost(q)
        elif cell.function == "svd":
            u, s, vh = map(some, result)
            wrong = norm(u * s[..., None, :] @ vh - a) / size + self.lost(u) + self.lost(vh.mH)
        else:
            w, v = map(some, result)
            wrong = norm(a @ v - v * w[..., None, :]) / (size * norm(v) / math.sqrt(cell.n))
            if cell.function == "eigh":
                wrong = wrong + self.lost(v)
        return float(wrong.max()) / (max(cell.rows, cell.n) * torch.finfo(getattr(torch, cell.dtype)).eps)

    def lost(self, q: Any) -> Any:
        """How far columns are from orthogonal."""
        away = q.mH @ q - self.torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
        return self.torch.linalg.vector_norm(away, dim=(-2, -1)) / math.sqrt(q.shape[-1])


def code_hash(binary: bytes) -> str:
    """Of the instructions in a compiled kernel (ELF, 64 bits), and not of the table of addresses beside them."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(binary[at : at + size], "little")

    table, size, count, names = number(40, 8), number(58, 2), number(60, 2), number(62, 2)
    headers = range(table, table + size * count, size)
    texts = number(headers[names] + 24, 8)
    parts = []
    for header in headers:
        begin = texts + number(header, 4)
        name = binary[begin : binary.index(b"\0", begin)]
        if name.startswith(b".text."):
            start, length = number(header + 24, 8), number(header + 32, 8)
            parts.append(name + binary[start : start + length])
    return hashlib.sha256(b"".join(sorted(parts))).hexdigest()[:16]


def work(device: str, architecture: int) -> None:
    """Answer questions, a line each: the name of a method and its arguments in JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed here is no answer
    worker = Worker(device, architecture)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        arguments = [Cell(**x) if isinstance(x, dict) else x for x in arguments]
        try:
            answer = {"answer": getattr(worker, name)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


# ---- both processes ------------------------------------------------------------------------------------------------------


class Checkout:
    def __init__(self, folder: Path, device: str, architecture: int) -> None:
        self.folder = folder.resolve()
        if not (self.folder / "src" / "lapwing").is_dir():
            raise SystemExit(f"{folder} is no checkout: it has no folder src/lapwing")
        command = [sys.executable, __file__, "--worker", device, str(architecture)]
        environment = os.environ | {"PYTHONPATH": str(self.folder / "src")}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, name: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        plain = [vars(x) if isinstance(x, Cell) else x for x in arguments]
        print(json.dumps([name, *plain]), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"the process ended ({self.process.wait()})"}
        if "error" in answer:
            raise RuntimeError(f"{self.folder}: {answer['error']}")
        return answer["answer"]

    def __call__(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.answer()

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def both(checkouts: list[Checkout], name: str, *arguments: Any) -> list[Any]:
    """Both at once."""
    for checkout in checkouts:
        checkout.ask(name, *arguments)
    answers: list[Any] = []
    failure = None
    for checkout in checkouts:  # each answer is read, also after a failure
        try:
            answers.append(checkout.answer())
        except RuntimeError as error:
            failure = failure or error
    if failure:
        raise failure
    return answers


def measure(checkouts: list[Checkout], cell: Cell, most_turns: int) -> dict[str, Any]:
    ready = both(checkouts, "prepare", cell)
    once = max(r["seconds"] for r in ready)
    calls = min(MOST_CALLS, math.ceil(SAMPLE / max(once, 1e-7)))
    times = 2 if calls > 1 else 1
    turns = max(3, min(most_turns, int(CELL / (calls * times * once))))
    both(checkouts, "time", calls, 1)  # both warm up at once
    seconds: list[list[float]] = [[], []]
    for _ in range(turns):
        for checkout, mine in zip(checkouts, seconds, strict=True):
            mine += checkout("time", calls, times)
    both(checkouts, "forget")
    row: dict[str, Any] = {"cell": str(cell), "calls": calls, "turns": turns}
    for name, mine, r in zip(("before", "after"), seconds, ready, strict=True):
        row[name] = {"least": min(mine), "median": median(mine), "seconds": mine, "error": r["error"], "first": r["first"]}
    row["ratio"] = min(seconds[1]) / min(seconds[0])
    row["ratio of medians"] = median(seconds[1]) / median(seconds[0])
    return row


def compared(checkouts: list[Checkout], cell: Cell) -> dict[str, Any]:
    """The kernels of the cell in both checkouts, and what is different about them, in words."""
    before, after = both(checkouts, "kernels", cell)
    return {"cell": str(cell), "kernels": [before, after], "code": in_words(before, after)}


def in_words(before: dict[str, str], after: dict[str, str]) -> str:
    if before.keys() != after.keys():
        return "other kernels"
    if not all((*before.values(), *after.values())):
        return "unknown"
    different = sorted({name.partition(".cu")[0] for name in after if before[name] != after[name]})
    return ", ".join(different) or "same"


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'cell':36}{'before ms':>11}{'after ms':>11}{'ratio':>8}{'medians':>9}  code"]
    for row in sorted(rows, key=lambda row: -row["ratio"])[:LINES]:
        least = "".join(f"{row[name]['least'] * 1e3:11.4f}" for name in ("before", "after"))
        lines.append(f"{row['cell']:36}{least}{row['ratio']:8.3f}{row['ratio of medians']:9.3f}  {row['code']}")
    if len(rows) > LINES:
        lines.append(f"... and {len(rows) - LINES} cells with smaller ratios")
    return lines


def is_wrong(row: dict[str, Any]) -> bool:
    return not all(row[name]["error"] <= LIMIT for name in ("before", "after"))


def driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def make_kernels(options: argparse.Namespace, cells: list[Cell]) -> int:
    for folder in (options.before, options.after):
        with Checkout(folder, options.device, options.arch) as checkout:
            wanted = {name for cell in cells for name in checkout("kernels", cell)}
            print(f"{folder}: {len(wanted)} kernels, {checkout('build', sorted(wanted))}", flush=True)
    start = partial(Checkout, device=options.device, architecture=options.arch)
    with start(options.before) as before, start(options.after) as after:
        for cell in cells:  # new processes: the others looked for packs before there were any
            row = compared([before, after], cell)
            print(f"{row['cell']:36}{len(row['kernels'][1]):3} kernels  {row['code']}")
    return 0


def run(options: argparse.Namespace, checkouts: list[Checkout], cells: list[Cell]) -> int:
    begun = perf_counter()
    about = both(checkouts, "load")
    version = driver() if options.device == "cuda" else ""
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    for cell in cells:
        if perf_counter() - begun > options.seconds:
            left_out.append(f"{cell}: no time left")
            continue
        try:
            rows.append(measure(checkouts, cell, options.turns))
        except (RuntimeError, OSError) as error:
            left_out.append(f"{cell}: {error}")
    try:
        compiled = both(checkouts, "compiled")
        codes = {str(cell): compared(checkouts, cell)["code"] for cell in cells if options.device == "cuda"}
    except (RuntimeError, OSError) as error:
        left_out.append(f"the kernels: {error}")
        compiled, codes = [], {}
    rows = [row | {"code": codes.get(row["cell"], "unknown")} for row in rows]
    result = {
        "what": "Times of the same calls in two checkouts of lapwing, in turns",
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "device": options.device,
        "driver": version,
        "before": about[0],
        "after": about[1],
        "seconds in all": perf_counter() - begun,
        "kernels that were in no pack": compiled,
        "left out": left_out,
        "rows": rows,
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(*table(rows), sep="\n")
    for name in {row["code"] == "same" for row in rows}:
        ratios = [row["ratio"] for row in rows if (row["code"] == "same") == name]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        which = "the same code" if name else "other code, or unknown"
        print(f"{which}: {len(ratios)} cells, ratios {min(ratios):.3f} to {max(ratios):.3f}, geometric mean {mean:.4f}")
    wrong = [row["cell"] for row in rows if is_wrong(row)]
    print(f"wrong answers: {', '.join(wrong) or 'none'}; kernels in no pack: {[len(c) for c in compiled]}")
    if left_out:
        print(f"{len(left_out)} cells left out; the first: {left_out[0][:160]}")
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--cells", default="", help="operations, or operation:order, separated by commas")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--turns", type=int, default=7, help="of each checkout at a cell, at most")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further cell after this time")
    parser.add_argument("--output", type=Path, help="JSON file for all times")
    parser.add_argument("--kernels", action="store_true", help="compile the kernels of the cells, and compare them")
    parser.add_argument("--arch", type=int, default=90, help="compute capability of the packs")
    options = parser.parse_args(arguments)
    cells = cells_of(options.cells, "cuda" if options.kernels else options.device)
    if options.kernels:
        return make_kernels(options, cells)
    start = partial(Checkout, device=options.device, architecture=options.arch)
    with start(options.before) as before, start(options.after) as after:
        return run(options, [before, after], cells)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
