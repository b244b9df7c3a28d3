"""How long the first call of each common operation takes on a GPU, in fresh processes with an empty cache.

    python benchmarks/first_call.py [--packs PLACES] [--ops solve,eigh] [--dtypes float32] [--orders 4,16] [--jobs 4]

One process for each operation and dtype calls it for n = 4, 16, 32, 64, 128, with one matrix and with 1000, once torch itself
has run on the GPU. Each of these calls is the first for its size, and most need kernels of their own. The answers are checked.
Prints the slowest calls, and those for which a kernel was compiled at run time. `--packs ""` measures without kernel packs.
Exit code: 0, or 1 for a wrong answer, a compiled kernel, or a call beyond the limit. `--device cpu` tests this script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

BATCHES = (None, 1000)
DTYPES = ("float32", "float64", "complex64", "complex128")


def measure(operation: str, dtype: str, device: str, orders: list[int]) -> None:
    """In a process of its own: a line of JSON for each first call."""
    import torch

    generator = torch.Generator(device).manual_seed(1)
    kind = getattr(torch, dtype)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=kind, device=device)

    (random(64, 64) @ random(64, 64)).sum().item()  # torch is up, and its BLAS
    import lapwing as lw
    from lapwing.core.native import native

    # each: arguments for (n, leading axes), the call, what must be about zero beside what
    def square(n: int, lead: tuple[int, ...]) -> tuple[Any, ...]:
        return (random(*lead, n, n) + n**0.5 * torch.eye(n, dtype=kind, device=device),)

    def positive(n: int, lead: tuple[int, ...]) -> tuple[Any, ...]:
        a = random(*lead, n, n)
        return (a @ a.mH / n + torch.eye(n, dtype=kind, device=device),)

    def with_b(make: Any, columns: int = 1) -> Any:
        return lambda n, lead: (*make(n, lead), random(*lead, n, columns or n))

    def tall(n: int, lead: tuple[int, ...]) -> tuple[Any, ...]:
        return (random(*lead, 4 * n, n),)

    def tall_with_b(n: int, lead: tuple[int, ...]) -> tuple[Any, ...]:
        return random(*lead, 4 * n, n), random(*lead, 4 * n, 1)

    def lower(n: int, lead: tuple[int, ...]) -> tuple[Any, ...]:
        (a,) = positive(n, lead)
        return (torch.linalg.cholesky(a),)

    def residual(a: Any, b: Any, x: Any) -> Any:
        return a @ x - b

    def normal(a: Any, b: Any, x: Any) -> Any:
        return a.mH @ (a @ x[0] - b)

    def inverse(a: Any, x: Any) -> Any:
        return a @ x - torch.eye(a.shape[-1], dtype=kind, device=device)

    def logdet(a: Any, x: Any) -> Any:
        return x[1] - torch.linalg.slogdet(a)[1]

    cases: dict[str, tuple[Any, Any, Any]] = {
        "cholesky": (positive, lw.cholesky, lambda a, x: x @ x.mH - a),
        "solve": (with_b(square), lw.solve, residual),
        "solve n sides": (with_b(square, 0), lw.solve, residual),
        "solve pos": (with_b(positive), lambda a, b: lw.solve(a, b, assume="pos"), residual),
        "solve lower": (with_b(lower), lambda a, b: lw.solve(a, b, assume="lower"), residual),
        "inv": (square, lw.inv, inverse),
        "inv pos": (positive, lambda a: lw.inv(a, assume="pos"), inverse),
        "slogdet": (square, lw.slogdet, logdet),
        "eigh": (positive, lw.eigh, lambda a, x: a @ x[1] - x[1] * x[0][..., None, :].to(kind)),
        "eigvalsh": (positive, lw.eigvalsh, lambda a, x: x - torch.linalg.eigvalsh(a)),
        "svd": (square, lw.svd, lambda a, x: (x[0] * x[1][..., None, :].to(kind)) @ x[2] - a),
        "qr": (tall, lw.qr, lambda a, x: x[0] @ x[1] - a),
        "lstsq": (tall_with_b, lw.lstsq, normal),
    }
    if operation not in cases:
        print(json.dumps({"operations": list(cases)}))
        return
    arguments, call, difference = cases[operation]
    for n in orders:
        for batch in BATCHES:
            given = arguments(n, () if batch is None else (batch,))
            before = len(native.loaded_kernels())
            wait()
            start = perf_counter()
            found = call(*given)
            wait()
            seconds = perf_counter() - start
            error = float(difference(*given, found).abs().max())
            bound = 200 * n * torch.finfo(kind).eps * float(given[0].abs().max()) * n
            row = {"operation": operation, "dtype": dtype, "n": n, "batch": batch or 1, "seconds": seconds}
            row |= {"right": error <= bound, "kernels": native.loaded_kernels()[before:]}
            print(json.dumps(row), flush=True)


def in_child(operation: str, dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"LAPWING_CACHE": cache}
        if options.packs is not None:
            environment["LAPWING_KERNELS"] = options.packs
        command = [sys.executable, __file__, "--child", operation, "--dtypes", dtype]
        command += ["--device", options.device, "--orders", options.orders]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"operation": operation, "dtype": dtype, "failed": done.stderr.strip().splitlines()[-1:]}]
    return [json.loads(line) for line in done.stdout.splitlines()]


def described(row: dict[str, Any]) -> str:
    origins = [f"{source} {origin} {seconds * 1e3:.0f}" for source, _, origin, seconds in row["kernels"]]
    size = f"{row['batch']} x n = {row['n']}"
    return f"{row['seconds'] * 1e3:7.0f} ms  {row['operation']:<14}{row['dtype']:<12}{size:<16}{', '.join(origins)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", help="what LAPWING_KERNELS is to be")
    parser.add_argument("--ops", help="operations, separated by commas")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--orders", default="4,16,32,64,128")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--worst", type=int, default=15)
    parser.add_argument("--limit", type=float, default=0.3, help="seconds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(options.child, options.dtypes, options.device, [int(n) for n in options.orders.split(",")])
        return 0
    begun = perf_counter()
    operations = options.ops.split(",") if options.ops else in_child("?", "float32", options)[0]["operations"]
    jobs = [(operation, dtype) for operation in operations for dtype in options.dtypes.split(",")]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for part in pool.map(lambda job: in_child(*job, options), jobs) for row in part]
    failed = [row for row in rows if "failed" in row]
    rows = sorted((row for row in rows if "failed" not in row), key=lambda row: -row["seconds"])
    wrong = [row for row in rows if not row["right"]]
    compiled = [row for row in rows if any(origin == "compiler" for _, _, origin, _ in row["kernels"])]
    slow = [row for row in rows if row["seconds"] > options.limit]
    for title, some in (("slowest", rows[: options.worst]), ("wrong", wrong[:10]), ("compiled at run time", compiled[:30])):
        if some:
            print(f"{title}:", *map(described, some), sep="\n  ")
    for row in failed:
        print(f"failed: {row}")
    for row in compiled[:5]:
        print(*(f"  {source} {flags}" for source, flags, origin, _ in row["kernels"] if origin == "compiler"), sep="\n")
    print(
        f"{len(rows)} first calls in {perf_counter() - begun:.0f} s: {len(slow)} beyond {options.limit} s, "
        f"{len(compiled)} compiled, {len(wrong)} wrong, {len(failed)} processes failed"
    )
    return 1 if wrong or failed or compiled or slow else 0


if __name__ == "__main__":
    sys.exit(main())
