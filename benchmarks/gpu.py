"""The GPU bars: batches, one matrix, a record of the engines, and the same kernels through torch, JAX and CuPy.

    python benchmarks/gpu.py [--only batched|single|record|frameworks|eigh|eigh_record|solve|two_stage] [--quick]
                             [--seconds 1200] [--record FILE] [--output FILE] [--device cuda]

Every answer is checked in float64 on the host before its time is printed, and the peers are timed in the same run.
Exit code: 0, or 1 for a wrong answer or a failed call. With --device cpu the same steps run small, to test this script.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeVar

# read at JAX's import: otherwise it takes most of the GPU's memory
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import lapwing as lw
from lapwing import planner
from lapwing.bench.case import Case, Entry, Row, Timing
from lapwing.bench.environment import environment
from lapwing.bench.libraries import allow_float64_in_jax, open_library
from lapwing.bench.measure import copy_bandwidth, measure, peer_entries, usable_library
from lapwing.bench.record import RECORDS, Grid, WrongAnswer, grid_for, measure_record, record_of, rule_in_words, write_record
from lapwing.bench.report import as_json, make_report
from lapwing.bench.table import Table, seconds_in_words
from lapwing.core.records import NEWEST, Record, load_records, rules_of

T = TypeVar("T")
_RESULTS = Path(__file__).parent / "results"
_PARTS = ("batched", "single", "frameworks", "record", "eigh", "eigh_record", "solve", "two_stage")
_BATCHED = (
    (4, 1_000_000), (8, 400_000), (16, 100_000), (32, 50_000), (64, 20_000), (128, 5_000), (256, 1_000), (512, 400),
    (1024, 100), (100, 10), (512, 16),
)  # fmt: skip
_SINGLE = tuple(2**k for k in range(6, 16))
_COMPLEX_BATCHED = ((8, 100_000), (32, 20_000), (128, 2_000))
_COMPLEX_SINGLE = (256, 1024, 4096)
# long enough on the device that every host can keep it busy
_FRAMEWORKS = ((8, 2_000_000), (32, 200_000), (128, 20_000), (1024, 64), (8192, 1))
_AGREE = 0.10


@dataclass
class Run:
    """The state that all parts of a run share."""

    options: argparse.Namespace
    library: str
    peers: list[Entry]
    bandwidth: float | None
    begun: float = field(default_factory=perf_counter)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.options.seconds - (perf_counter() - self.begun)

    def measure(self, case: Case, entries: list[Entry], table: Table, limit: float = 4.0) -> Row | None:
        """Measure a case, print the row and keep it, unless the time is up."""
        if self.left < 0:
            self.note(f"left out, as the time was up: {case}")
            return None
        try:
            row = measure(case, entries, repeat=self.options.repeat, limit=limit, bandwidth=self.bandwidth)
        except Exception as error:  # a run of half an hour continues
            self.failed.append(f"{case}: {type(error).__name__}: {error}")
            self.note(f"failed: {self.failed[-1]}")
            return None
        self.rows.append(row)
        print(table.line(row), flush=True)
        for a in row.absent:
            self.note(f"{case}: without {a.name}: {a.reason}")
        _write(self, {})  # keeps the measurements if the run is cut short
        return row

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"  {text}", flush=True)


def main() -> int:
    options = _options()
    allow_float64_in_jax()
    library = usable_library(("torch", "cupy", "jax"), options.device)
    if library is None:
        print(f"no array library here has a {options.device} device")
        return 2
    peers, absent = peer_entries(options.device, ("torch", "jax", "cupy"))
    bandwidth = copy_bandwidth(library, options.device) if options.device == "cuda" else None
    run = Run(options, library, peers, bandwidth)
    where = environment()
    print(f"{where.gpus[0].name if where.gpus else where.cpu}, driver {where.driver or '-'}; {dict(where.versions)}")
    print(f"copy {bandwidth * 1e-12:.3g} TB/s" if bandwidth else "the floor is numpy.copy")
    for a in absent:
        run.note(f"without {a.name}: {a.reason}")
    steps = {"batched": _batched, "single": _single, "frameworks": _frameworks, "record": _record, "eigh": _eigh}
    steps |= {"eigh_record": _eigh_record, "solve": _solve, "two_stage": _two_stage}
    found = {part: steps[part](run) for part in _PARTS if options.only in (None, part)}
    print(f"\nwrote {_write(run, found)} after {perf_counter() - run.begun:.0f} s")
    wrong = [str(row.case) for row in run.rows if row.wrong] + [w for part in found.values() for w in part.get("wrong", [])]
    for text in wrong:
        print(f"WRONG ANSWER: {text}")
    for text in run.failed:
        print(f"FAILED: {text}")
    return 1 if wrong or run.failed else 0


def _batched(run: Run) -> dict:
    sizes = _sizes(run, _BATCHED, ((4, 10_000), (64, 100), (100, 10)))
    cases = [_case(run, n, b, d) for d in ("float32", "float64") for n, b in sizes]
    cases += [_case(run, n, b, d) for d in ("complex64", "complex128") for n, b in _sizes(run, _COMPLEX_BATCHED, ((8, 1_000),))]
    return _race(run, "batches", cases)


def _single(run: Run) -> dict:
    sizes = _sizes(run, _SINGLE, (64, 512))
    cases = [_case(run, n, 1, d) for n in sizes for d in ("float32", "float64")]
    cases += [_case(run, n, 1, d) for n in _sizes(run, _COMPLEX_SINGLE, (256,)) for d in ("complex64", "complex128")]
    return _race(run, "one matrix", cases)


def _race(run: Run, title: str, cases: list[Case]) -> dict:
    """lapwing's own choice and every engine by name, against the peers."""
    names = [status.name for status in planner.engines() if run.options.device in status.usable_on]
    table = Table([*names, *[p.name for p in run.peers]], on_gpu=run.bandwidth is not None)
    print(f"\n{title}\n{table.header()}")
    for case in cases:
        chosen = planner.plan(case.problem).engine  # already timed as "lapwing"
        usable = [n for n in names if n != chosen and not planner.refusal(n, case.problem) and not _hopeless(n, case)]
        run.measure(
            case,
            [Entry("lapwing", run.library, "auto"), *[Entry(n, run.library, n) for n in usable], *run.peers],
            table,
        )
    return {}


def _hopeless(engine: str, case: Case) -> bool:
    """Whether an engine is far too slow: cuSOLVER runs one matrix after the other, and a tile is 64 x 64."""
    if engine == "two_stage":
        return case.batch > 1 or case.n < 2048
    return (engine == "cusolver" and case.batch > 16) or (engine == "tiled" and case.n <= 32)


def _frameworks(run: Run) -> dict:
    """The same kernels through each library: device times must agree."""
    entries = [Entry(f"lapwing/{p.name}", p.name, "auto") for p in run.peers]
    table = Table([e.name for e in entries[1:]], on_gpu=run.bandwidth is not None)
    print(f"\nthrough each library\n{table.header()}")
    apart = []
    for dtype in ("float32", "float64"):
        for n, batch in _sizes(run, _FRAMEWORKS, ((8, 100_000), (256, 20))):
            row = run.measure(_case(run, n, batch, dtype), entries, table)
            if row is None or not row.ours:
                continue
            times = {t.name: t.minimum for t in row.ours}
            spread = max(times.values()) / min(times.values()) - 1
            agree = spread <= _AGREE
            words = ", ".join(f"{k} {seconds_in_words(v)}" for k, v in times.items())
            print(f"  {'pass' if agree else 'FAIL'}  {100 * spread:.0f} % apart ({words})")
            apart.append({"case": str(row.case), "spread": spread, "pass": agree})
    return {"spread": apart}


# how many times as fast as cuSOLVER's routine for a part (Xsyevdx) lapwing must find the 16 largest
_PART_ORDER, _PART_COUNT = 16384, 16
_PART_BARS = {"kernel": 80.0, "wishart": 10.0}
# the same against jax for many small matrices, at each of these batches
_EIGH_BATCHED = (
    (2, 400_000, 3.0), (3, 400_000, 3.0), (4, 200_000, 3.0), (8, 100_000, 3.0), (16, 50_000, 3.0), (32, 20_000, 3.0),
    (64, 5_000, 1.2), (128, 1_000, 1.2), (256, 200, 1.2), (512, 50, 1.2),
)  # fmt: skip
# the same against the best of torch, jax and cupy for one matrix
_EIGH_SINGLE = (64, 256, 1024, 2048, 4096, 8192)
# order of the kernel matrix that kernel_tools was measured with, and seconds for its top 5 %
_TOP, _TOP_SECONDS = 20_000, 5.0


def _eigh(run: Run) -> dict:
    """Compare eigenvalues with their bars."""
    on_gpu = run.options.device == "cuda"
    direct = "cusolver" if on_gpu else "lapack"
    names = [direct, *[p.name for p in run.peers]]
    table = Table(names, on_gpu=run.bandwidth is not None)
    print(f"\neigenvalues\n{table.header()}")
    verdicts: list[dict] = []

    def judge(what: str, value: float | None, bar: float, at_most: bool = False) -> None:
        verdicts.append(_verdict(what, value, bar, at_most))

    ours = Entry("lapwing", run.library, "auto")
    n = _PART_ORDER if on_gpu and not run.options.quick else 2048 if on_gpu else 300
    for matrix, bar in _PART_BARS.items():
        case = Case(n, 1, "float64", run.options.device, matrix=matrix, operation="eigh", part=(n - _PART_COUNT, _PART_COUNT))
        row = run.measure(case, [ours, Entry(direct, run.library, direct)], table)
        judge(f"{_PART_COUNT} largest of {n}, {matrix}, against {direct}", row and _ratio(row, direct), bar)
    n = _TOP if on_gpu and not run.options.quick else 1000
    case = Case(n, 1, "float64", run.options.device, matrix="laplacian", operation="eigh", part=(n - n // 20, n // 20))
    row = run.measure(case, [ours], table)
    judge(f"top 5 % of {n}, seconds", row.lapwing.minimum if row and row.lapwing else None, _TOP_SECONDS, at_most=True)
    for dtype in ("float32", "float64"):
        for order, batch, bar in _sizes(run, _EIGH_BATCHED, ((3, 1_000, 3.0), (16, 100, 3.0))):
            case = Case(order, batch, dtype, run.options.device, operation="eigh")
            row = run.measure(case, [ours, *[p for p in run.peers if p.name == "jax"]], table, limit=1.0)
            judge(f"{case} against jax", row and _ratio(row, "jax"), bar)
        for order in _sizes(run, _EIGH_SINGLE, (64, 200)):
            case = Case(order, 1, dtype, run.options.device, operation="eigh")
            row = run.measure(case, [ours, *run.peers], table, limit=1.0)
            judge(f"{case} against the best peer", row and row.speedup, 1.0)
    missed = sum(not v["pass"] for v in verdicts)
    print(f"{len(verdicts) - missed} of {len(verdicts)} bars passed")
    return {"verdicts": verdicts}


# One system: order, other fields of the case, the peers, and the factor by which lapwing must be faster than the best of them.
# A float32 factor pays for the first matrix; the other two need many steps of refinement, or do not converge at all.
_TORCH_DRIVERS = ("torch", "gesvd", "gesvdj", "gesvda")
_MIXED = {"operation": "solve", "assume": "pos", "precision": "mixed"}
# those that take longest to prepare and check come last
_SOLVE_ONE = (
    (64, {"operation": "svd", "rows": 1_000_000, "condition": 1e10}, _TORCH_DRIVERS, 4.0),
    (16384, {"operation": "inv", "assume": "pos"}, ("torch",), 2.0),
    (16384, {"operation": "solve"}, ("torch", "jax", "cupy"), 1.0),
    (32768, {**_MIXED, "matrix": "wishart_shift"}, ("torch",), 2.0),
    (32768, {**_MIXED, "condition": 1e10}, ("torch",), 0.65),
    (32768, {**_MIXED, "condition": 1e5}, ("torch",), 0.65),
)
_SOLVE_BATCHED = ((4, 400_000), (8, 200_000), (16, 100_000), (32, 50_000))
# torch.cholesky_inverse runs one matrix after the other; torch.linalg.inv runs them together
_SOLVE_PEERS = {"solve": ("torch", "jax", "torch_solve", "jax_solve"), "inv": ("torch_inv", "jax", "jax_inv")}
_SOLVE_FACTOR = 8.0
# torch and jax call gesvdjBatched here
_SVD_BATCHED = ((4, 10_000), (8, 10_000), (16, 10_000), (32, 10_000))
_SVD_PEERS = {"svd": ("torch", "jax", "gesvdj")}
_SVD_FACTOR = 4.0


def _solve(run: Run) -> dict:
    """Compare systems, inverses and singular values with their bars."""
    verdicts: list[dict] = []
    device = run.options.device
    small = device == "cpu" or run.options.quick
    others = sorted(
        {name for _, _, names, _ in _SOLVE_ONE for name in names}
        | {n for names in (*_SOLVE_PEERS.values(), *_SVD_PEERS.values()) for n in names}
    )
    table = Table(others, on_gpu=run.bandwidth is not None)
    print(f"\nsystems, inverses and singular values\n{table.header()}", flush=True)

    def judge(case: Case, against: tuple[str, ...], bar: float) -> None:
        present, _ = peer_entries(device, ("torch", "jax", "cupy"), case)
        peers = [p for p in present if p.name in against]
        row = run.measure(case, [Entry("lapwing", run.library, "auto"), *peers], table, limit=2.0)
        verdicts.append(_verdict(f"{case} against the best of {', '.join(against)}", row and row.speedup, bar))

    for dtype in ("float32", "float64"):
        for operation, against in _SOLVE_PEERS.items():
            for n, batch in _sizes(run, _SOLVE_BATCHED, ((4, 1_000), (16, 100))):
                judge(Case(n, batch, dtype, device, operation=operation, assume="pos"), against, _SOLVE_FACTOR)
        for operation, against in _SVD_PEERS.items():
            for n, batch in _sizes(run, _SVD_BATCHED, ((4, 1_000), (16, 100))):
                judge(Case(n, batch, dtype, device, operation=operation), against, _SVD_FACTOR)
    for n, known, against, bar in _SOLVE_ONE:
        if small:
            n, known = min(n, 200), {**known, **({"rows": 2000} if "rows" in known else {})}
        judge(Case(n, 1, "float64", device, **known), against, bar)
    missed = sum(not v["pass"] for v in verdicts)
    print(f"{len(verdicts) - missed} of {len(verdicts)} bars passed")
    return {"verdicts": verdicts}


def _verdict(what: str, value: float | None, bar: float, at_most: bool = False) -> dict:
    passed = value is not None and (value <= bar if at_most else value >= bar)
    print(f"  {'pass' if passed else 'FAIL'}  {what}: {value or 0:.3g}, bar {bar:g}", flush=True)
    return {"what": what, "value": value, "bar": bar, "at_most": at_most, "pass": passed}


def _ratio(row: Row, name: str) -> float | None:
    """How many times faster lapwing is than this peer."""
    times = {t.name: t.minimum for t in (*row.ours, *row.peers)}
    return times[name] / times["lapwing"] if name in times and "lapwing" in times else None


def _eigh_record(run: Run) -> dict:
    found = [_record(run, operation) for operation in RECORDS["eigh"]]
    return {"records": found, "wrong": [w for f in found for w in f.get("wrong", [])]}


def _record(run: Run, operation: str = "cholesky") -> dict:
    """Measure every engine over the grid, for the planner's rules."""
    options = run.options
    grid = grid_for(options.device, quick=options.quick, operation=operation)
    if options.device == "cpu":
        grid = Grid((4, 64, 256), (1, 16), ("float64",), seconds=5.0, operation=operation)
    grid = replace(grid, seconds=max(1.0, min(grid.seconds, run.left)))
    total = len(grid.cases(options.device))
    print(f"\nrecord of {operation}: {total} points, about {grid.seconds:.0f} s", flush=True)
    done = 0

    def step(case: Case) -> None:
        nonlocal done
        done += 1
        if done % 20 == 1:
            print(f"  {done}/{total} {case}, {perf_counter() - run.begun:.0f} s", flush=True)

    try:
        rows = measure_record(grid, options.device, run.library, repeat=options.repeat, step=step)
    except WrongAnswer as error:
        return {"wrong": [str(error)]}
    record = record_of(rows, options.device, operation)
    path = (
        options.record
        if options.record and operation == "cholesky"
        else (options.output or _RESULTS / "gpu.json").parent / f"{record.name}.json"
    )
    write_record(record, path)
    rules = [rule_in_words(rule, operation) for rule in rules_of(record)]
    print(f"wrote {path}; the rules that follow:", *rules, sep="\n  ")
    return {"record": str(path), "rules": rules}


# ---- one large symmetric matrix in two stages --------------------------------------------------------------------------

_TWO_STAGE = (2048, 4096, 8192, 16384)
# milliseconds: (operation, dtype, order)
_TWO_STAGE_GOALS = {
    ("eigh", "float64", 8192): 300, ("eigh", "float64", 16384): 1300,
    ("eigh", "float32", 8192): 240, ("eigh", "float32", 16384): 1000,
    ("eigvalsh", "float64", 8192): 200, ("eigvalsh", "float64", 16384): 600,
}  # fmt: skip
# A stage ends with the last kernel that its pattern fits; products in between belong to the stage that comes to its end next.
_STAGES = (
    ("to a band", r"two_stage_(panel|mirror|band)"), ("to tridiagonal form", r"two_stage_(chase|diagonals)"),
    ("spectrum", r"divide_|tridiagonal_values"), ("back to the band", r"two_stage_b(locks|ack)"),
    ("back to the matrix", r"tridiagonal_give"),
)  # fmt: skip


def _two_stage(run: Run) -> dict:
    """Engine two_stage against the other engines and torch, its stages, and records that the planner can follow."""
    on_gpu = run.options.device == "cuda"
    engines = ("two_stage", "batched", "cusolver") if on_gpu else ("batched", "lapack")
    torch = [peer for peer in run.peers if peer.name == "torch"]
    table = Table([*engines, *[peer.name for peer in torch]], on_gpu=run.bandwidth is not None)
    print(f"\none large symmetric matrix\n{table.header()}")
    verdicts, stages, records = list[dict](), list[dict](), list[str]()
    for operation in ("eigh", "eigvalsh"):
        rows = []
        for n in _sizes(run, _TWO_STAGE, (64, 200)):
            for dtype in ("float64", "float32"):
                case = Case(n, 1, dtype, run.options.device, operation=operation)
                entries = [Entry(name, run.library, name) for name in engines if not planner.refusal(name, case.problem)]
                row = run.measure(case, [Entry("lapwing", run.library, "auto"), *entries, *torch], table, limit=12.0)
                if row is None:
                    continue
                rows.append(replace(row, ours=tuple(_with_copy(t) for t in row.ours if t.name != "lapwing")))
                goal = _TWO_STAGE_GOALS.get((operation, dtype, n))
                found = next((t.minimum for t in row.ours if t.name == "two_stage"), None)
                if goal and found:
                    verdicts.append(_verdict(f"{case}, ms", 1e3 * found, goal, at_most=True))
                if found:
                    stages.append({"operation": operation, "dtype": dtype, "n": n, "ms": _stages_of(run, operation, n, dtype)})
                    print("  " + ", ".join(f"{stage} {ms:.1f}" for stage, ms in stages[-1]["ms"].items()), flush=True)
        if any(row.ours for row in rows):
            record = _extended(record_of(rows, run.options.device, operation))
            path = (run.options.output or _RESULTS / "gpu.json").parent / f"{record.name}.json"
            write_record(record, path)
            records.append(str(path))
            print(f"wrote {path}; to follow it, copy it to src/lapwing/records")
    return {"verdicts": verdicts, "stages": stages, "records": records}


def _with_copy(timing: Timing) -> Timing:
    """A record says whether cuSOLVER was the framework's copy or a newer one."""
    return replace(timing, name=timing.name + NEWEST) if timing.name == "cusolver" and planner.has_newest_solver() else timing


def _extended(record: Record) -> Record:
    """The shipped record of the same hardware, with what was measured now in place of what it had."""
    points = {(m.dtype, m.n, m.batch): m for m in record.measurements}
    for shipped in load_records([Path(planner.__file__).parent / "records"]):
        if shipped.name == record.name:
            for m in shipped.measurements:
                key = m.dtype, m.n, m.batch
                points[key] = replace(m, seconds=m.seconds | points[key].seconds) if key in points else m
    return replace(record, measurements=tuple(points[key] for key in sorted(points)))


def _stages_of(run: Run, operation: str, n: int, dtype: str) -> dict[str, float]:
    """Milliseconds of GPU work in each stage of one call, as torch's profiler sees it, and of the panels apart."""
    if run.library != "torch" or run.options.device != "cuda":
        return {}
    import torch
    from torch.profiler import ProfilerActivity, profile

    library = open_library("torch")
    a = torch.randn(n, n, dtype=getattr(torch, dtype), device="cuda")
    a += a.mT.clone()
    call = partial(getattr(lw, operation), a, engine="two_stage")
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    library.tidy()
    on_device = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]  # not the host's calls
    kernels = sorted((e.time_range.start, e.name, e.time_range.elapsed_us()) for e in on_device)
    return _by_stage([(name, us) for _, name, us in kernels])


def _by_stage(kernels: list[tuple[str, float]]) -> dict[str, float]:
    """Milliseconds of each stage, from the kernels of a call in order."""
    ends = [max((i for i, (name, _) in enumerate(kernels) if re.search(pattern, name)), default=-1) for _, pattern in _STAGES]
    found, begin = {}, 0
    for (stage, _), end in zip(_STAGES, ends, strict=True):
        if end >= begin:
            found[stage] = sum(us for _, us in kernels[begin : end + 1]) / 1e3
            begin = end + 1
    found["of which panels"] = sum(us for name, us in kernels if "two_stage_panel" in name) / 1e3
    return found


def _case(run: Run, n: int, batch: int, dtype: str) -> Case:
    return Case(n, batch, dtype, run.options.device)


def _sizes(run: Run, full: tuple[T, ...], small: tuple[T, ...]) -> tuple[T, ...]:
    """All sizes; every third with --quick; a few small ones on the CPU."""
    if run.options.device == "cpu":
        return small
    return full[::3] if run.options.quick else full


def _write(run: Run, found: dict) -> Path:
    report = as_json(make_report(run.rows, bandwidth=run.bandwidth, notes=run.notes)) | {"parts": found}
    where = report["environment"]
    name = where["gpus"][0]["name"] if where["gpus"] else where["instructions"]
    slug = "".join(c if c.isalnum() else "-" for c in name).lower()
    path = run.options.output or _RESULTS / f"gpu-{slug}-{report['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The GPU bars.")
    parser.add_argument("--only", choices=_PARTS)
    parser.add_argument("--quick", action="store_true", help="every third size, a small record")
    parser.add_argument("--seconds", type=float, default=1200.0, help="no further case begins after this (default: 1200)")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--record", type=Path, metavar="FILE", help="where the record goes (default: beside the output)")
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
