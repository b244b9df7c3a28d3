"""The map: lapwing against the best call of every library, for every operation, dtype, order and batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

from .. import planner
from .case import Case, Entry, Report, Row
from .check import Check
from .environment import Environment
from .libraries import PEERS
from .measure import measure, peer_entries
from .record import hopeless
from .table import seconds_in_words, times_in_words

# The case of each operation of the map; for "lstsq" the matrices are 4n x n.
OPERATIONS: dict[str, dict[str, str]] = {
    "cholesky": {"operation": "cholesky"},
    "solve": {"operation": "solve"},
    "solve_pos": {"operation": "solve", "assume": "pos"},
    "solve_symmetric": {"operation": "solve", "assume": "symmetric"},
    "solve_lower": {"operation": "solve", "assume": "lower"},
    "inv": {"operation": "inv"},
    "inv_pos": {"operation": "inv", "assume": "pos"},
    "slogdet": {"operation": "slogdet"},
    "det": {"operation": "det"},
    "lu": {"operation": "lu"},
    "qr": {"operation": "qr"},
    "lstsq": {"operation": "lstsq"},
    "svd": {"operation": "svd"},
    "svdvals": {"operation": "svdvals"},
    "eigh": {"operation": "eigh"},
    "eigvalsh": {"operation": "eigvalsh"},
    "eig": {"operation": "eig"},
    "eigvals": {"operation": "eigvals"},
    "schur": {"operation": "schur"},
}
_SPECTRA = ("svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "schur")
_TALL = 4  # rows of a least-squares problem, in multiples of n
# A cell with a ratio in this range is at par, as times vary by this much.
PAR = (0.97, 1.03)


@dataclass(frozen=True)
class Grid:
    """(n, batch) for batches, n for single matrices; cells with more flops are left out, with separate limits for spectra.

    The batches of singular values and eigenvalues are smaller by ``fewer``, as libraries take seconds for them.
    """

    batches: tuple[tuple[int, int], ...]
    orders: tuple[int, ...]
    dtypes: tuple[str, ...]
    flops: tuple[float, float]
    fewer: int = 1

    def cases(self, device: str, operations: Iterable[str], dtypes: Iterable[str] = ()) -> list[Case]:
        everything = [
            Case(n, batch, dtype, device, rows=_TALL * n if name == "lstsq" else None, **OPERATIONS[name])  # type: ignore[arg-type]
            for name in operations
            for dtype in (tuple(dtypes) or self.dtypes)
            for n, batch in self._points(name)
        ]
        return [c for c in everything if c.flops <= self.flops[c.operation not in _SPECTRA]]

    def _points(self, name: str) -> list[tuple[int, int]]:
        fewer = self.fewer if name in _SPECTRA else 1
        return [(n, batch // fewer) for n, batch in self.batches if batch // fewer > 1] + [(n, 1) for n in self.orders]


_ALL = ("float32", "float64", "complex64", "complex128")
_REAL = ("float32", "float64")
# On the CPU a call takes at most about a second. Some orders are no powers of two on purpose.
GRIDS = {
    ("cpu", False): Grid(
        ((4, 5000), (8, 2000), (16, 1000), (32, 300), (33, 300), (48, 100), (64, 100), (100, 30), (128, 20), (176, 12),
         (256, 8), (352, 4), (512, 4), (1000, 2)),
        (2, 4, 8, 16, 32, 64, 100, 128, 176, 256, 352, 512, 1000, 1024, 2048, 4096), _ALL, (3e10, 6e10),
    ),
    ("cpu", True): Grid(
        ((8, 2000), (33, 300), (64, 100), (100, 30), (176, 12), (256, 8), (512, 4)), (4, 64, 256, 1000), _REAL, (3e10, 3e10),
    ),
    ("cuda", False): Grid(
        ((4, 200_000), (8, 100_000), (16, 20_000), (32, 20_000), (33, 20_000), (48, 5000), (64, 4000), (100, 2000),
         (128, 1000), (176, 600), (256, 500), (352, 200), (512, 100), (1000, 20), (1024, 20), (2048, 8)),
        (2, 4, 8, 16, 32, 64, 100, 128, 256, 352, 512, 1000, 1024, 2048, 4096, 8192, 16384), _ALL, (4e12, 2e13), fewer=10,
    ),
    ("cuda", True): Grid(
        ((16, 20_000), (48, 5000), (100, 2000), (256, 500), (512, 100), (1024, 20)), (16, 64, 256, 1024, 4096), _REAL,
        (1e12, 4e12), fewer=10,
    ),
}  # fmt: skip

_REPEAT = {"cpu": 4, "cuda": 5}
_CELL = 1.5  # seconds of timing for each cell, beyond the first repeats
_FEWEST = 2
_BEHIND = 3.0  # a long call this many times slower than the fastest is timed once
_SAMPLES = 8  # in each turn on the CPU


def name_of(case: Case) -> str:
    """The name of the map's operation."""
    return case.operation if case.assume == "general" else f"{case.operation}_{case.assume}"


def part_of(cases: Sequence[Case], part: tuple[int, int]) -> list[Case]:
    """Part k of n, counted from 1. Neighbouring cells are in different parts, so that all take about the same time."""
    return list(cases[part[0] - 1 :: part[1]])


def measure_map(
    cases: Sequence[Case],
    library: str,
    *,
    repeat: int | None = None,
    seconds: float = inf,
    engines: bool = False,
    peers: Sequence[str] = PEERS,
    free: Callable[[], int | None] = lambda: None,
    turn: AbstractContextManager[Any] | None = None,
    step: Callable[[Case], None] = lambda case: None,
    done: Callable[[Sequence[Row], Sequence[str]], None] = lambda rows, left_out: None,
) -> tuple[list[Row], list[str]]:
    """A row for each case, and the cases that were left out, with the reason.

    ``engines`` times lapwing with each engine by name too, for records. After ``seconds`` no cell begins. ``free`` gives the
    free memory in bytes, ``turn`` lets processes take turns with a GPU. ``done`` gets all rows so far after each cell.
    """
    begun, rows, left_out = perf_counter(), list[Row](), list[str]()
    for case in cases:
        reason = _reason_to_skip(case, free(), perf_counter() - begun > seconds)
        if reason:
            left_out.append(f"{case}: {reason}")
            continue
        step(case)
        entries = [Entry("lapwing", library, "auto")]
        if engines:
            # lower precision must be allowed by the caller
            names = [name for name in planner.ALL if name != "mixed" and not hopeless(name, case)]
            entries += [Entry(name, library, name) for name in names if not planner.refusal(name, case.problem)]
        entries += peer_entries(case.device, peers, case)[0]
        on_gpu = case.device != "cpu"
        try:
            row = measure(
                case,
                entries,
                repeat=repeat or _REPEAT[case.device],
                limit=_CELL,
                fewest=_FEWEST,
                behind=_BEHIND,
                samples=_SAMPLES,
                floor=False,
                in_parts=on_gpu,
                turn=turn,
            )
            rows.append(row)
        except Exception as error:  # the other cells are still worth measuring; this one counts as wrong
            trouble = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            rows.append(Row(case, "none", (("lapwing", Check(inf, True, trouble=trouble)),), ()))
        done(rows, left_out)
    return rows, left_out


def _reason_to_skip(case: Case, free: int | None, late: bool) -> str:
    if late:
        return "the time was up"
    copies = 3 * (6 if case.device == "cpu" else 1)  # input, answer and check; on the CPU for each library
    return "not enough memory" if free is not None and copies * case.input_bytes > free else ""


def merge(reports: Sequence[Report]) -> Report:
    """One map of many parts. If a cell is in several reports, the newest one is used."""
    newest = max(reports, key=lambda r: r.date)
    for report in reports:
        on_gpu = all(row.case.device != "cpu" for row in report.rows)
        if difference := _difference(newest.environment, report.environment, on_gpu):
            raise ValueError(f"maps of different machines cannot be merged: {difference}")
    ordered = sorted(reports, key=lambda r: r.date)
    rows = {row.case: row for report in ordered for row in report.rows}
    order = {name: place for place, name in enumerate(OPERATIONS)}
    ranked = sorted(
        rows.values(), key=lambda r: (order.get(name_of(r.case), len(order)), r.case.dtype, r.case.batch == 1, r.case.n)
    )
    measured = {str(case) for case in rows}
    left_out = dict.fromkeys(line for r in ordered for line in r.left_out if line.partition(": ")[0] not in measured)
    return newest._replace(
        command="; ".join(dict.fromkeys(r.command for r in ordered)),
        rows=tuple(ranked),
        notes=tuple(dict.fromkeys(note for r in ordered for note in r.notes)),
        peer_calls=tuple(sorted({name: text for r in ordered for name, text in r.peer_calls}.items())),
        left_out=tuple(left_out),
    )


def _difference(one: Environment, other: Environment, on_gpu: bool) -> str:
    host = () if on_gpu else ("cpu", "instructions", "threads")
    for field in (*host, "gpus", "driver", "versions"):
        if getattr(one, field) != getattr(other, field):
            return f"{field}: {getattr(one, field)} and {getattr(other, field)}"
    return ""


def red(rows: Iterable[Row]) -> list[Row]:
    """The rows where lapwing is slower than the best peer, the slowest first."""
    return sorted((r for r in rows if r.speedup is not None and r.speedup < PAR[0]), key=lambda r: r.speedup or 0.0)


def red_in_words(rows: Iterable[Row]) -> list[str]:
    """One line for each red cell."""
    lines = []
    for row in red(rows):
        assert row.lapwing is not None and row.best_peer is not None
        time, peer = seconds_in_words(row.lapwing.minimum), seconds_in_words(row.best_peer.minimum)
        place = f"{name_of(row.case):<16}{row.case.dtype:<11}n={row.case.n:<6}batch={row.case.batch:<7}"
        lines.append(f"{place}{time:>8}  {row.best_peer.name:<12}{peer:>8}  {times_in_words(row.speedup):>6}  ({row.engine})")
    return lines


def wrong_peers_in_words(rows: Iterable[Row]) -> list[str]:
    """One line for each cell where a peer's answer failed the check."""
    return [
        f"{name_of(row.case):<16}{row.case.dtype:<11}n={row.case.n:<6}batch={row.case.batch:<7}{peer.name}: {peer.reason}"
        for row in rows
        for peer in row.wrong_peers
    ]


def summary(rows: Sequence[Row]) -> list[str]:
    """For each operation the number of cells that are ahead, at par and behind, and its lowest and median ratio."""
    lines = [f"{'operation':<16}{'ahead':>7}{'par':>7}{'behind':>7}{'lowest':>9}{'median':>9}"]
    for name in dict.fromkeys(name_of(r.case) for r in rows):
        ratios = sorted(r.speedup for r in rows if name_of(r.case) == name and r.speedup is not None)
        if not ratios:
            continue
        counts = Counter("behind" if x < PAR[0] else "ahead" if x > PAR[1] else "par" for x in ratios)
        cells = "".join(f"{counts[kind]:>7}" for kind in ("ahead", "par", "behind"))
        lines.append(f"{name:<16}{cells}{times_in_words(ratios[0]):>9}{times_in_words(ratios[len(ratios) // 2]):>9}")
    return lines


def map_title(report: Report) -> str:
    where = report.environment
    on_gpu = where.gpus and any(row.case.device == "cuda" for row in report.rows)
    return f"lapwing against the best other library on {where.gpus[0].name if on_gpu else f'{where.threads} CPU threads'}"
