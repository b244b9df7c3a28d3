"""The CPU bars: lapwing through NumPy, torch and JAX against numpy, torch and jax, in one interleaved run.

    python benchmarks/cpu.py [--quick] [--threads 2] [--output FILE] [--only PART]

PART: batched, single, overhead, eigh (eigh_batched, eigh_parts) or solve (solve_batched, solve_one).
Prints pass or fail against the bars below, and writes everything to benchmarks/results/. Exit code: 0 all passed,
1 a wrong answer or a missed bar.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_RESULTS = Path(__file__).parent / "results"


def main() -> int:
    options = _options()
    # before any library is loaded
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(options.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    from lapwing.bench.libraries import allow_float64_in_jax
    from lapwing.bench.report import as_json, make_report

    allow_float64_in_jax()
    rows, verdicts = [], []
    for bar in _bars(options.quick):
        if options.only in (None, "single" if bar.batch == 1 else "batched"):
            row, found = _against_bar(bar, options.repeat)
            rows.append(row)
            verdicts += found
    if options.only in (None, "overhead"):
        verdicts += _overhead(options.repeat)
    for name, step in _PARTS:
        if options.only is None or name.startswith(options.only):
            found_rows, found = step(options.quick, options.repeat)
            rows += found_rows
            verdicts += found
    report = as_json(make_report(rows)) | {"verdicts": [asdict(v) for v in verdicts]}
    path = options.output or _RESULTS / f"cpu-{report['environment']['instructions']}-{report['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    missed = [v for v in verdicts if not v.passed]
    print(f"\n{len(verdicts) - len(missed)} of {len(verdicts)} bars passed; wrote {path}")
    return 1 if missed or any(row.wrong for row in rows) else 0


@dataclass(frozen=True)
class Bar:
    """lapwing must be ``factor`` times as fast as the fastest peer; torch counts with ``torch_share`` of its speed."""

    dtype: str
    n: int
    batch: int
    factor: float
    torch_share: float = 1.0


@dataclass(frozen=True)
class Verdict:
    what: str
    value: float
    bar: float
    at_most: bool = False  # the value must stay below the bar

    @property
    def passed(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{'pass' if self.passed else 'FAIL'}  {self.what:<48}{self.value:7.2f}x  {sign} {self.bar:g}x"


_BATCHES = {3: 200_000, 4: 200_000, 8: 50_000, 16: 10_000, 32: 4_000, 64: 1_000, 128: 200, 256: 40}
_FACTORS = {
    "float32": {3: 6.0, 4: 6.0, 8: 6.0, 16: 4.0, 32: 3.0, 64: 2.0, 128: 1.3, 256: 1.3},
    "float64": {3: 5.0, 4: 5.0, 8: 4.0, 16: 3.0, 32: 2.0, 64: 1.5, 128: 1.2, 256: 1.2},
}
_SINGLE = (512, 1024, 2048, 4096)
_THROUGH = 0.8  # of the bar, when called through torch eager or jax.jit
_OVERHEAD = {"numpy": 1.0, "torch": 2.5, "torch with grad": 6.0, "jax jit": 1.0}


def _bars(quick: bool) -> Iterator[Bar]:
    for dtype, factors in _FACTORS.items():
        for n, factor in factors.items():
            if not quick or n in (4, 32, 128):
                yield Bar(dtype, n, _BATCHES[n] // (4 if quick else 1), factor)
        for n in _SINGLE[: 2 if quick else None]:
            yield Bar(dtype, n, 1, 1.0, torch_share=0.9)


def _against_bar(bar: Bar, repeat: int) -> tuple[object, list[Verdict]]:
    from lapwing.bench.case import Case, Entry
    from lapwing.bench.measure import measure
    from lapwing.bench.table import seconds_in_words

    names = ("numpy", "torch", "jax")
    entries = [Entry(f"lapwing/{n}", n, "auto") for n in names] + [Entry(n, n) for n in names]
    row = measure(Case(bar.n, bar.batch, bar.dtype), entries, repeat=repeat, limit=6.0)
    times = {t.name: t.minimum for t in (*row.ours, *row.peers)}
    print(f"\n{row.case} ({row.engine}): " + ", ".join(f"{k} {seconds_in_words(v)}" for k, v in times.items()))
    for name, check in row.checks:
        if not check.ok:
            print(f"WRONG ANSWER from {name}: {check}")
    best = min(times[n] / (bar.torch_share if n == "torch" else 1.0) for n in names)
    verdicts = [
        Verdict(f"{row.case} through {n}", best / times[f"lapwing/{n}"], bar.factor * (1.0 if n == "numpy" else _THROUGH))
        for n in names
        if f"lapwing/{n}" in times
    ]
    for verdict in verdicts:
        print(verdict, flush=True)
    return row, verdicts


def _overhead(repeat: int) -> list[Verdict]:
    """One 4 x 4 float64 matrix: the cost of a call, against the library's own."""
    from lapwing.bench.case import Case
    from lapwing.bench.libraries import open_library
    from lapwing.bench.matrices import make_matrix
    from lapwing.bench.operations import operation_of
    from lapwing.bench.peers import peer_of
    from lapwing.bench.table import seconds_in_words
    from lapwing.bench.timing import Contender, interleave

    case = Case(4)
    host, through = make_matrix(case), operation_of("cholesky").through
    contenders = []
    for label in _OVERHEAD:
        library = open_library(label.split()[0])
        a = library.put(host, "cpu")
        if "grad" in label:
            a = a.clone().requires_grad_(True)
        calls = {"own": peer_of(library, case, library.name).call, "lapwing": through(library, case, "auto", "raise")}
        for who, call in calls.items():
            contenders.append(Contender(f"{label} {who}", library.waited(call, a)))
    times = {t.name: t.minimum for t in interleave(contenders, max(repeat, 20))}
    print("\none 4 x 4: " + ", ".join(f"{k} {seconds_in_words(v)}" for k, v in times.items()))
    verdicts = [
        Verdict(f"one 4 x 4 through {label}, time", times[f"{label} lapwing"] / times[f"{label} own"], bar, at_most=True)
        for label, bar in _OVERHEAD.items()
    ]
    for verdict in verdicts:
        print(verdict)
    return verdicts


# The 16 largest, or smallest, of one matrix: the matrix, the part, and for each peer how many times faster lapwing must be.
# "eigsh" is SciPy's Lanczos iteration to the same residual.
_EIGH_PARTS = (
    ("kernel", "largest", {"scipy": 10.0, "eigsh": 1.0}),
    ("wishart", "largest", {"scipy": 3.0, "eigsh": 1.0}),
    ("wishart_shift", "smallest", {"eigsh": 1.0}),
)
_PART_ORDER, _PART_COUNT = 4000, 16
_EIGH_FACTORS = {2: 10.0, 3: 10.0, 4: 1.0, 8: 4.0, 12: 1.0, 16: 2.5, 24: 1.0, 32: 1.5, 48: 1.0, 64: 1.0, 128: 1.0}
_EIGH_BATCHES = {2: 50_000, 3: 50_000, 4: 40_000, 8: 10_000, 12: 6_000, 16: 4_000, 24: 2_000, 32: 1_000, 48: 400, 64: 200,
                 128: 50}  # fmt: skip


def _eigh_parts(quick: bool, repeat: int) -> tuple[list, list[Verdict]]:
    from lapwing.bench.case import Case, Entry
    from lapwing.bench.measure import measure, peer_entries

    rows, verdicts = [], []
    n = 600 if quick else _PART_ORDER
    for matrix, end, bars in _EIGH_PARTS:
        part = (0, _PART_COUNT) if end == "smallest" else (n - _PART_COUNT, _PART_COUNT)
        case = Case(n, matrix=matrix, operation="eigh", part=part)
        peers = [e for e in peer_entries("cpu", ("scipy",), case)[0] if e.name in bars]
        # at the dense lower end ARPACK takes up to a minute
        row = measure(case, [Entry("lapwing", "numpy", "auto"), *peers], repeat=repeat if end == "largest" else 1, limit=12.0)
        times = _report(row)
        rows.append(row)
        if "lapwing" in times:
            verdicts += [
                Verdict(f"{_PART_COUNT} {end} of {n}, {matrix}, against {name}", times[name] / times["lapwing"], bar)
                for name, bar in bars.items()
                if name in times
            ]
        for verdict in verdicts[-len(bars) :]:
            print(verdict, flush=True)
    return rows, verdicts


def _eigh_batched(quick: bool, repeat: int) -> tuple[list, list[Verdict]]:
    """Many small matrices, through NumPy, against the best of numpy, torch and jax."""
    from lapwing.bench.case import Case, Entry
    from lapwing.bench.measure import measure

    rows, verdicts = [], []
    entries = [Entry("lapwing", "numpy", "auto"), *[Entry(n, n) for n in ("numpy", "torch", "jax")]]
    for dtype in ("float32", "float64"):
        for n, factor in _EIGH_FACTORS.items():
            if quick and n not in (3, 16, 32):
                continue
            batch = _EIGH_BATCHES[n] // (10 if quick else 1)
            row = measure(Case(n, batch, dtype, operation="eigh"), entries, repeat=repeat, limit=6.0)
            times = _report(row)
            rows.append(row)
            if row.speedup is not None and "lapwing" in times:
                verdicts.append(Verdict(f"{row.case}", row.speedup, factor))
                print(verdicts[-1], flush=True)
    return rows, verdicts


# Many small systems, inverses and singular values: by n, the factor by which lapwing must be faster than the best of numpy,
# scipy, torch and jax. For lstsq torch uses a cheaper factorisation that gives no singular values.
_SMALL = {3: 200_000, 4: 200_000, 5: 100_000, 6: 100_000, 7: 50_000, 8: 50_000, 16: 10_000, 32: 4_000}  # n and batch
_POS_FACTORS = {3: 5.0, 4: 5.0, 5: 5.0, 6: 5.0, 7: 5.0, 8: 5.0, 16: 3.0, 32: 2.0}
_LU_FACTORS = {3: 4.0, 4: 4.0, 5: 4.0, 6: 4.0, 7: 4.0, 8: 4.0, 16: 1.0, 32: 1.0}
_SVD_FACTORS = {3: 3.0, 4: 3.0, 8: 3.0, 16: 3.0, 32: 2.0}
_SMALL_FACTORS = {
    ("solve", "pos"): _POS_FACTORS,
    ("inv", "pos"): _POS_FACTORS,
    ("solve", "general"): _LU_FACTORS,
    ("inv", "general"): dict.fromkeys(_SMALL, 1.0),
    ("svd", "general"): _SVD_FACTORS,
    ("lstsq", "general"): {3: 3.0, 4: 3.0, 8: 1.0},
}
# One matrix: order, other fields of the case, the peers (None: all), and the factor by which lapwing must be faster.
_ONE = (
    (4000, {"operation": "inv", "assume": "pos"}, ("numpy",), 1.8),
    (
        4000,
        {"operation": "solve", "assume": "pos", "precision": "mixed", "matrix": "wishart_shift"},
        ("scipy", "cho_solve"),
        1.3,
    ),
    (64, {"operation": "svd", "rows": 200_000}, None, 2.0),
    (64, {"operation": "qr", "rows": 200_000}, None, 1.0),
    *[
        (n, {"operation": operation, "assume": assume}, None, 1.0)
        for n in (64, 500, 2000)
        for operation, assume in (*_SMALL_FACTORS, ("qr", "general"))
        if operation != "lstsq"
    ],
)
_LOOPS = ("cho_solve", "lu_solve")  # SciPy loops over a batch in Python, which takes minutes
_TORCH_SHARE = 0.9  # of the speed of its MKL at one large matrix


def _solve_batched(quick: bool, repeat: int) -> tuple[list, list[Verdict]]:
    """Many small systems, inverses and singular values through NumPy, against the best of numpy, scipy, torch and jax."""
    from lapwing.bench.case import Case

    found = []
    for (operation, assume), factors in _SMALL_FACTORS.items():
        for dtype in ("float32", "float64"):
            for n, factor in factors.items():
                if not quick or n in (4, 16):
                    slow = 10 if operation in ("svd", "lstsq") else 1  # LAPACK takes seconds for that many
                    batch = _SMALL[n] // (100 if quick else slow)
                    found.append(_best(Case(n, batch, dtype, operation=operation, assume=assume), None, factor, repeat))
    return [row for row, _ in found], [verdict for _, each in found for verdict in each]


def _solve_one(quick: bool, repeat: int) -> tuple[list, list[Verdict]]:
    """One matrix as a torch tensor (lapwing then uses torch's LAPACK) against all libraries; as an array against NumPy's."""
    from lapwing.bench.case import Case

    found = []
    for n, known, against, factor in _ONE:
        if quick and n in (500, 2000):
            continue
        if quick:
            n, known = min(n, 128), {**known, **({"rows": 2000} if "rows" in known else {})}
        found.append(_best(Case(n, **known), against, factor, repeat, _TORCH_SHARE, "numpy" if against else "torch"))
        if against is None:
            found.append(_best(Case(n, **known), ("numpy", "scipy", "cho_solve", "lu_solve"), min(factor, 1.0), repeat))
    return [row for row, _ in found], [verdict for _, each in found for verdict in each]


def _best(
    case: object,
    against: tuple[str, ...] | None,
    factor: float,
    repeat: int,
    torch_share: float = 1.0,
    library: str = "numpy",
) -> tuple:
    """The row, and the verdict on it if a peer could run it."""
    from lapwing.bench.case import Entry
    from lapwing.bench.measure import measure, peer_entries

    peers, _ = peer_entries("cpu", ("numpy", "scipy", "torch", "jax"), case)
    peers = [p for p in peers if (against is None or p.name in against) and (case.batch == 1 or p.name not in _LOOPS)]
    row = measure(case, [Entry("lapwing", library, "auto"), *peers], repeat=repeat, limit=6.0)
    times = _report(row)
    of_torch = {p.name for p in peers if p.library == "torch"}
    best = min((times[p.name] / (torch_share if p.name in of_torch else 1.0) for p in peers if p.name in times), default=None)
    if best is None or "lapwing" not in times:
        return row, []
    whom = "" if against is None else f" against {' and '.join(against[:2])}"
    verdict = Verdict(f"{case}{' in torch' * (library == 'torch')}{whom}", best / times["lapwing"], factor)
    print(verdict, flush=True)
    return row, [verdict]


def _report(row: object) -> dict[str, float]:
    """Print the times and what was wrong; return the times by name."""
    from lapwing.bench.table import seconds_in_words

    times = {t.name: t.minimum for t in (*row.ours, *row.peers)}
    print(f"\n{row.case} ({row.engine}): " + ", ".join(f"{k} {seconds_in_words(v)}" for k, v in times.items()))
    for name, check in row.checks:
        if not check.ok:
            print(f"WRONG ANSWER from {name}: {check}")
    for a in row.absent:
        print(f"without {a.name}: {a.reason}")
    return times


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The CPU bars.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--only", choices=["batched", "single", "overhead", "eigh", "solve", *(name for name, _ in _PARTS)])
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


_PARTS = (
    ("eigh_batched", _eigh_batched),
    ("eigh_parts", _eigh_parts),
    ("solve_batched", _solve_batched),
    ("solve_one", _solve_one),
)

if __name__ == "__main__":
    sys.exit(main())
