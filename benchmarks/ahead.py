"""The table by which lapwing.install decides: measure it, then write it.

python benchmarks/ahead.py measure --device cuda --json FILE   times the libraries' functions with and without lapwing
python benchmarks/ahead.py write FILE ...                      makes src/lapwing/doors/cells.py of such files, of maps, and of
                                                               the results of install.py, blocks.py and spectra
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CELLS = HERE.parent / "src" / "lapwing" / "doors" / "cells.py"
# torch on the CPU and on a GPU; arrays of NumPy, which stand for those of SciPy and JAX too
PLACES = ("cpu", "cuda", "arrays")
_CPU_ORDERS, _CPU_ELEMENTS = (3, 8, 16, 32, 48, 64, 100, 128, 256, 512), (1_000, 8_000, 64_000, 512_000)
ORDERS = {"cpu": _CPU_ORDERS, "arrays": _CPU_ORDERS, "cuda": (3, 8, 16, 32, 33, 64, 128, 256, 512, 1024)}
# elements of all matrices together: few, some, many
ELEMENTS = {"cpu": _CPU_ELEMENTS, "arrays": _CPU_ELEMENTS, "cuda": (10_000, 200_000, 4_000_000)}
LONG = 0.05  # seconds; what takes so long is timed once, and not for larger batches
KEPT = 0.6  # of a gain that was measured without the door, which converts results
ON_GPU = ("cholesky", "eigh", "eigvalsh", "inv", "lstsq", "lu", "solve")  # of a map
LEAST_GAIN = 1.2  # what is not this much faster is left to the library
# Operations of single matrices that NumPy's and SciPy's doors have, by the names of the map
LEAST_SINGLE = 64  # below it the way through the door costs a part of the gain, and nobody has measured it
SINGLE = {"cholesky": "cholesky", "det": "slogdet", "inv": "inv", "qr": "qr", "slogdet": "slogdet", "solve": "solve"}

# Measured with a routine that is no longer used: file and operation, and the order from which it was replaced
REPLACED = {("h200-eigh-2026-11-15.json", "eigh"): 150, ("h200-eigh-2026-11-15.json", "eigvalsh"): 150}

Row = dict[str, Any]


def torch_programs() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], str]]:
    """For each operation: the program, the part of its result that is unique, and what its matrices are."""
    import torch

    la = torch.linalg

    def itself(x: Any) -> Any:
        return x

    return {
        "cholesky": (lambda a, b: la.cholesky_ex(a)[0], itself, "positive"),
        "cholesky_solve": (lambda a, b: torch.cholesky_solve(b, a), itself, "factor"),
        "cholesky_inverse": (lambda a, b: torch.cholesky_inverse(a), itself, "factor"),
        "eig": (lambda a, b: la.eig(a), lambda x: x[0].sum(-1), "general"),
        "eigvals": (lambda a, b: la.eigvals(a), lambda x: x.sum(-1), "general"),
        "eigh": (lambda a, b: la.eigh(a), lambda x: x[0], "positive"),
        "eigvalsh": (lambda a, b: la.eigvalsh(a), itself, "positive"),
        "inv": (lambda a, b: la.inv(a), itself, "general"),
        "lstsq": (lambda a, b: la.lstsq(a, b).solution, itself, "tall"),
        "lu": (lambda a, b: la.lu_factor_ex(a), lambda x: x[0].diagonal(dim1=-2, dim2=-1), "general"),
        "lu_solve": (lambda a, b: la.lu_solve(*a, b), itself, "factors"),
        "qr": (lambda a, b: la.qr(a), lambda x: x[1].abs(), "general"),
        "slogdet": (lambda a, b: la.slogdet(a), lambda x: x[1], "general"),
        "solve": (lambda a, b: la.solve(a, b), itself, "general"),
        "svd": (lambda a, b: la.svd(a, full_matrices=False), lambda x: x[1], "general"),
        "svdvals": (lambda a, b: la.svdvals(a), itself, "general"),
        "triangular": (lambda a, b: la.solve_triangular(a, b, upper=False), itself, "factor"),
    }


def array_programs() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], str]]:
    """The same for NumPy, and for SciPy what NumPy has not."""
    import scipy.linalg

    la = np.linalg
    return {
        "cholesky": (lambda a, b: la.cholesky(a), lambda x: x, "positive"),
        "eig": (lambda a, b: la.eig(a), lambda x: x[0].sum(-1), "general"),
        "eigvals": (lambda a, b: la.eigvals(a), lambda x: x.sum(-1), "general"),
        "eigh": (lambda a, b: la.eigh(a), lambda x: x[0], "positive"),
        "eigvalsh": (lambda a, b: la.eigvalsh(a), lambda x: x, "positive"),
        "inv": (lambda a, b: la.inv(a), lambda x: x, "general"),
        "qr": (lambda a, b: la.qr(a), lambda x: np.abs(x[1]), "general"),
        "slogdet": (lambda a, b: la.slogdet(a), lambda x: x[1], "general"),
        "solve": (lambda a, b: la.solve(a, b), lambda x: x, "general"),
        "svd": (lambda a, b: la.svd(a), lambda x: x[1], "general"),
        "svdvals": (lambda a, b: la.svd(a, compute_uv=False), lambda x: x, "general"),
        "expm": (lambda a, b: scipy.linalg.expm(a / a.shape[-1]), lambda x: x, "general"),
        "schur": (lambda a, b: scipy.linalg.schur(a), lambda x: np.trace(x[0], axis1=-2, axis2=-1), "general"),
    }


def matrices(kind: str, n: int, batch: int, dtype: str, device: str) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(n + batch)
    real = getattr(torch, dtype)
    a = torch.randn(batch, n, n, dtype=real, device=device)
    b = torch.randn(batch, n, 1, dtype=real, device=device)
    eye = torch.eye(n, dtype=real, device=device)
    if kind in ("positive", "factor"):
        a = a @ a.mT + n * eye
        return (torch.linalg.cholesky(a) if kind == "factor" else a), b
    if kind == "tall":
        return torch.cat([a + 2 * n**0.5 * eye, a, a, a], -2), torch.cat([b, b, b, b], -2)
    a = a + (4 + 2 * n) * eye  # far from singular in large batches too
    return (torch.linalg.lu_factor(a) if kind == "factors" else a), b


def measure(options: argparse.Namespace) -> None:
    import torch

    import lapwing as lw
    from lapwing.doors import cells

    warnings.simplefilter("ignore")
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    programs = array_programs() if options.device == "arrays" else torch_programs()
    for operation in programs:  # every call is accepted
        cells.AHEAD[operation, options.device] = (cells.Cell(10**6, 1, 1.0),)
    if options.ops:
        programs = {name: programs[name] for name in options.ops.split(",")}
    orders = [int(n) for n in options.orders.split(",")] if options.orders else ORDERS[options.device]
    groups = list(itertools.product(programs, options.dtypes.split(","), orders))
    random.Random(0).shuffle(groups)  # where the time ends, something is known of every order
    part, parts = map(int, options.part.split("/"))
    rows: list[Row] = []
    end = time.perf_counter() + options.seconds
    long: set[tuple[str, str, int]] = set()  # where the library took so long that larger batches need not be measured
    work = [
        (*group, max(elements // group[2] ** 2, 2))
        for group in groups[part - 1 :: parts]
        for elements in ELEMENTS[options.device]
    ]
    for operation, dtype, n, batch in dict.fromkeys(work):
        if time.perf_counter() > end or (operation, dtype, n) in long:
            continue
        program, unique, kind = programs[operation]
        a, b = matrices(kind, n, batch, dtype, "cuda" if options.device == "cuda" else "cpu")
        if options.device == "arrays":
            a, b = a.numpy(), b.numpy()
        try:
            own, expected = best(lambda: program(a, b), wait, options.each)  # noqa: B023
        except RuntimeError as error:  # torch's batched eigh fails for some large batches
            print(f"{operation} {dtype} n={n} batch={batch}: the library fails: {str(error)[:80]}", flush=True)
            continue
        with lw.install("torch", "numpy", "scipy") as handle:
            ours, answer = best(lambda: program(a, b), wait, options.each)  # noqa: B023
        accepted = sum(calls["lapwing"] for calls in handle.report().values()) > 0
        if own < LONG:
            own = min(own, best(lambda: program(a, b), wait, options.each)[0])  # noqa: B023
        else:
            long.add((operation, dtype, n))
        x, y = (np.asarray(unique(z).cpu() if hasattr(unique(z), "cpu") else unique(z)) for z in (expected, answer))
        error = float(np.abs(x - y).max() / max(np.abs(x).max(), 1e-30) / (n * np.finfo(x.dtype).eps))
        if error > (10_000 if operation == "expm" else 100):  # SciPy's expm of some matrices has three digits less
            raise SystemExit(f"{operation} {dtype} n={n} batch={batch}: wrong by {error:.3g} n eps")
        rows.append(
            {
                "operation": operation,
                "dtype": dtype,
                "order": n,
                "batch": batch,
                "own": own,
                "lapwing": ours,
                "accepted": accepted,
            }
        )
        print(f"{operation:16} {dtype} n={n} batch={batch}: {own / ours:.2f}{'' if accepted else ' declined'}", flush=True)
    versions = {"lapwing": lw.__version__, "torch": torch.__version__, "numpy": np.__version__}
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    head = {"kind": "doors", "device": options.device, "machine": machine, "date": str(date.today()), "versions": versions}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(head | {"unit": "s", "rows": rows}) + "\n")


def best(program: Callable[[], Any], wait: Callable[[], Any], seconds: float) -> tuple[float, Any]:
    """The shortest time of several calls after a first one, and the result."""
    result = program()
    shortest, start = float("inf"), time.perf_counter()
    while shortest == float("inf") or time.perf_counter() - start < seconds:
        wait()
        before = time.perf_counter()
        result = program()
        wait()
        shortest = min(shortest, time.perf_counter() - before)
    return shortest, result


def measured(path: Path) -> Iterator[tuple[str, str, int, int, float]]:
    """Operation, device, order, elements of all matrices together, and how many times as fast lapwing was."""
    content = json.loads(path.read_text())
    kind = content.get("kind", "blocks")
    if kind == "doors":
        for row in content["rows"]:
            if row["accepted"]:
                n, rows = row["order"], row["order"] * (4 if row["operation"] == "lstsq" else 1)
                yield row["operation"], content["device"], rows, row["batch"] * rows * n, row["own"] / row["lapwing"]
    elif kind == "install":
        for name, row in content["ratios"].items():
            operation, batch, m, n = re.fullmatch(r"(?:numpy )?(\w+) of \((\d+), (\d+), (\d+)\).*", name).groups()  # type: ignore[union-attr]
            if row["accepted"] and not name.startswith("numpy"):
                order, elements = max(int(m), int(n)), int(batch) * int(m) * int(n)
                yield operation, content["device"], order, elements, row["times_as_fast"]
    elif kind == "spectra":
        for row in content["eig"]:
            for operation in ("eig", "eigvals"):
                if row[operation]:
                    yield operation, "cuda", row["n"], row["batch"] * row["n"] ** 2, row["torch"] / row[operation]
        for row in content["svd"]:
            if row["batch"] > 1 and row["torch"] and row["lapwing"]:
                elements, ratio = row["batch"] * row["m"] * row["n"], row["torch"] / row["lapwing"]
                yield row["operation"], "cuda", max(row["m"], row["n"]), elements, ratio
    elif kind == "blocks":
        for row in content["batches"] + content["few_matrices"]:
            ours = row.get("lapwing") or row.get("batched")
            square = row["op"] in ("solve", "inv", "lu", "qr") and row["batch"] > 1 and row.get("rows", row["n"]) == row["n"]
            if square and ours and row.get("torch"):
                yield row["op"], "cuda", row["n"], row["batch"] * row["n"] ** 2, KEPT * row["torch"] / ours
    else:
        yield from in_map(content["rows"])


def in_map(rows: list[Row]) -> Iterator[tuple[str, str, int, int, float]]:
    for row in rows:
        if not row["lapwing"]:  # out of memory
            continue
        n, batch, ours = row["n"], row["batch"], min(x["minimum"] for x in row["lapwing"])
        height = row.get("rows") or n
        single = row["device"] == "cpu" and batch == 1 and n >= LEAST_SINGLE and row["operation"] in SINGLE
        gpu = row["device"] == "cuda" and batch > 1 and row["operation"] in ON_GPU and not row.get("part")
        libraries = ("numpy", "scipy") if single else ("torch", "jax", "gels")
        peers = [p["minimum"] for p in row["peers"] if p["name"] in libraries and p["minimum"]]
        if not peers or row.get("assume", "general") != "general":
            continue
        if single:
            yield SINGLE[row["operation"]], "one", n, n**2, min(peers) / ours
        elif gpu:
            yield row["operation"], "cuda", height, batch * height * n, KEPT * min(peers) / ours


def write(options: argparse.Namespace) -> None:
    ratios: dict[tuple[str, str], dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for path in options.files:
        for operation, device, order, elements, ratio in measured(path):
            if order < REPLACED.get((path.name, operation), order + 1):
                ratios[operation, device][order][elements].append(ratio)
    lines = []
    for (operation, device), orders in sorted(ratios.items(), key=lambda item: item[0][::-1]):
        ascending = sorted(orders)
        pairs = zip([ascending[0], *ascending], ascending, strict=False)
        cells = [cell_of(order, orders[order], smaller) for smaller, order in pairs]
        while cells and cells[-1][2] == 0:
            cells.pop()
        if any(times for _, _, times in cells):
            text = ", ".join(f"Cell({order}, {least:_}, {times:g})" for order, least, times in cells)
            lines.append(f'    ("{operation}", "{device}"): ({text},),')
    sources = "\n".join(f"    benchmarks/results/{path.name}" for path in options.files)
    CELLS.write_text(HEAD.format(sources=sources, gain=LEAST_GAIN) + "\n".join(lines) + "\n}\n")
    print(f"{CELLS}: {len(lines)} rows; format it with ruff")


def cell_of(order: int, sizes: dict[int, list[float]], smaller: int) -> tuple[int, int, float]:
    """The least number of elements from which every measured dtype gains enough, and the gain in the middle of those.

    Where that is one matrix or two, the cell also serves as many matrices of each order down to the smaller one measured.
    """
    least, ratios = 0, []
    for elements, values in sorted(sizes.items(), reverse=True):
        if min(values) < LEAST_GAIN:
            break
        least = elements
        ratios += values
    least = least // order**2 * smaller**2 if order**2 <= least <= 2 * order**2 else least
    return (order, least, round(statistics.median(ratios), 1)) if ratios else (order, 0, 0)


HEAD = '''"""Where lapwing was measured to be ahead behind other libraries' names. Made by benchmarks/ahead.py from:

{sources}

Each cell: the order (of the longer side), the least number of elements of all matrices together from which lapwing was at least
{gain} times as fast in every dtype that was measured, and how many times as fast it was in the middle of those measurements; 0:
it was not ahead. "cpu" and "cuda" are batches of torch, whose results are in column-major memory; "cuda" stands for JAX too.
"arrays" are batches of NumPy, which stand for those of SciPy and JAX, and "one" is a single matrix of NumPy or SciPy.
"""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    order: int
    least_elements: int
    times: float


AHEAD: dict[tuple[str, str], tuple[Cell, ...]] = {{
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--device", choices=PLACES, default="cpu")
    measuring.add_argument("--ops", help="operations, separated by commas")
    measuring.add_argument("--orders", help="orders, separated by commas")
    measuring.add_argument("--dtypes", default="float32,float64")
    measuring.add_argument("--part", default="1/1", help="of the cells: 2/5 is the second of five")
    measuring.add_argument("--seconds", type=float, default=600, help="for all cells")
    measuring.add_argument("--each", type=float, default=0.02, help="seconds for each program")
    measuring.add_argument("--json", type=Path)
    measuring.set_defaults(run=measure)
    writing = commands.add_parser("write")
    writing.add_argument("files", type=Path, nargs="+")
    writing.set_defaults(run=write)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
