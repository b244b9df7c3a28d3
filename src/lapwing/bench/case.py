"""The records of the benchmark: Case, Entry, Timing, Row, Report."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from ..core.problem import Problem
from .check import Check
from .environment import Environment
from .operations import operation_of, problem_of

_UNSTEADY = 2.0


@dataclass(frozen=True)
class Case:
    """One problem: a batch of n x n matrices, or of ``rows`` x n, of one dtype on one device."""

    n: int
    batch: int = 1
    dtype: str = "float64"
    device: str = "cpu"
    upper: bool = False
    matrix: str = "random"
    operation: str = "cholesky"
    part: tuple[int, int] | None = None  # of the spectrum: index of the first eigenvalue, and the number of them
    k: int = 1  # right-hand sides, if the operation has them
    rows: int | None = None  # for a tall matrix
    assume: str = "general"  # or "pos", "symmetric", "lower"
    precision: str = "full"  # or "mixed"
    condition: float | None = None  # singular values from 1 down to its inverse, evenly spaced in their logarithms

    flops = property(attrgetter("problem.flops"), doc="Operations of the usual method.")
    bytes_moved = property(attrgetter("problem.bytes_moved"), doc="Every input read once and every output written once.")

    @property
    def height(self) -> int:
        return self.n if self.rows is None else self.rows

    @property
    def lead(self) -> tuple[int, ...]:
        """The batch axes."""
        return () if self.batch == 1 else (self.batch,)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.lead, self.height, self.n)

    @property
    def problem(self) -> Problem:
        return problem_of(self)

    @property
    def count(self) -> int:
        """The number of eigenvalues that are computed."""
        return self.problem.count

    @property
    def input_bytes(self) -> int:
        columns = self.n + (self.k if operation_of(self.operation).right_hand_sides else 0)
        return self.batch * self.height * columns * self.problem.itemsize

    def __str__(self) -> str:
        kind = "" if self.assume == "general" else f" {self.assume}"
        kind += "" if self.precision == "full" else f" {self.precision}"
        order = f"n={self.n}" if self.rows is None else f"{self.rows} x {self.n}"
        text = f"{self.operation}{kind} {self.dtype} {order} batch={self.batch}"
        if self.k != 1:
            text += f" k={self.k}"
        if self.condition is not None:
            text += f" condition {self.condition:.0e}"
        if self.part is not None:
            text += f" eigenvalues {self.part[0]}:{sum(self.part)}"
        return text if self.matrix in ("random", "known") else f"{text} {self.matrix}"


class Entry(NamedTuple):
    """A contender: lapwing with arrays of ``library`` and ``engine``; without an engine the library's own routine of that
    name."""

    name: str
    library: str
    engine: str | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one number per repeat.

    On a GPU ``seconds`` is device time of queued calls, ``waited`` the wall time of a call that waits for its result.
    """

    name: str
    seconds: tuple[float, ...]
    waited: tuple[float, ...] = ()
    extrapolated: bool = False  # from a part of the batch, by a library that takes one matrix after the other

    @property
    def minimum(self) -> float:
        """The best estimate of the time: noise only adds to it."""
        return min(self.seconds)

    @property
    def unsteady(self) -> bool:
        """Whether the repeats differ so much that the minimum is not the time of a usual call."""
        return self.median > _UNSTEADY * self.minimum

    @property
    def median(self) -> float:
        return median(self.seconds)


WRONG = "wrong answer"  # the reason begins so if a peer's answer failed the check


class Absent(NamedTuple):
    """A contender that did not run, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Row:
    """One case: lapwing's checks and times, the peers' times, and the floor."""

    case: Case
    engine: str
    checks: tuple[tuple[str, Check], ...]
    ours: tuple[Timing, ...]
    peers: tuple[Timing, ...] = ()
    floor: float | None = None
    absent: tuple[Absent, ...] = ()

    @property
    def wrong(self) -> tuple[str, ...]:
        """The contenders of lapwing whose answer failed the check; they are not timed."""
        return tuple(name for name, check in self.checks if not check.ok)

    @property
    def wrong_peers(self) -> tuple[Absent, ...]:
        """The peers whose answer failed the check; they are not timed, so they are no peers in this case."""
        return tuple(a for a in self.absent if a.reason.startswith(WRONG))

    @property
    def unsteady(self) -> bool:
        return any(t.unsteady for t in (*self.ours, *self.peers))

    @property
    def lapwing(self) -> Timing | None:
        return self.ours[0] if self.ours else None

    @property
    def best_peer(self) -> Timing | None:
        return min(self.peers, key=lambda t: t.minimum, default=None)

    @property
    def speedup(self) -> float | None:
        """How many times faster lapwing is than the fastest peer, by the minima."""
        if self.lapwing is None or self.best_peer is None:
            return None
        return self.best_peer.minimum / self.lapwing.minimum

    @property
    def over_floor(self) -> float | None:
        """How many times the floor lapwing takes."""
        return None if self.lapwing is None or not self.floor else self.lapwing.minimum / self.floor

    @property
    def gflops(self) -> float | None:
        return None if self.lapwing is None else self.case.flops / self.lapwing.minimum * 1e-9

    @property
    def gbytes(self) -> float | None:
        return None if self.lapwing is None else self.case.bytes_moved / self.lapwing.minimum * 1e-9


class Report(NamedTuple):
    """A whole run, as written to a file."""

    command: str
    date: str
    environment: Environment
    rows: tuple[Row, ...]
    bandwidth: float | None = None  # bytes per second of a device copy
    notes: tuple[str, ...] = ()
    peer_calls: tuple[tuple[str, str], ...] = ()  # each peer and the text of its call
    left_out: tuple[str, ...] = ()  # cases that were asked for and not measured, with the reason
