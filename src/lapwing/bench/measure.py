"""One case: the answer is checked, then lapwing and its peers are timed side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import numpy as np

from ..engines import planner
from .case import Absent, Case, Entry, Row, Timing
from .check import PROBES, Check, check_factor, check_on_device
from .environment import HOW_TO_GET
from .libraries import PEERS, installed, open_library
from .library import Library
from .matrices import make_matrix
from .timing import Contender, interleave

__all__ = ["COPY", "copy_bandwidth", "measure", "peer_entries", "usable_library", "why_not"]

COPY = "copy"
_BANDWIDTH_BYTES = 2**29
_CHECKED_OF_PEERS = 4096  # beyond this order the check would take longer than the measurement


def why_not(library: str, device: str) -> str:
    """Why a library cannot take part on a device, or ""; imports it."""
    if not installed(library):
        return f"not installed ({HOW_TO_GET[library]})"
    try:
        return open_library(library).missing(device)
    except Exception as error:  # a broken installation can fail in any way
        return f"does not load ({_in_one_line(error)})"


def usable_library(names: Iterable[str], device: str) -> str | None:
    """The first library that can hold arrays on the device."""
    return next((name for name in names if not why_not(name, device)), None)


def peer_entries(device: str, names: Sequence[str] = PEERS) -> tuple[list[Entry], list[Absent]]:
    """The peers present on a device, and why the others are not."""
    reasons = {name: why_not(name, device) for name in names}
    return [Entry(n, n) for n, why in reasons.items() if not why], [Absent(n, why) for n, why in reasons.items() if why]


def measure(
    case: Case, entries: Sequence[Entry], *, repeat: int = 10, limit: float = inf, bandwidth: float | None = None
) -> Row:
    """Check and time the entries on one case.

    Lapwing's entries (those with an engine) are checked on the host; a wrong one is not timed. Of a peer the first
    matrix is checked. The floor is a copy of the input in the same run, on a GPU the bytes moved over ``bandwidth``.
    """
    host = make_matrix(case)
    arrays: dict[str, Any] = {}
    checks: list[tuple[str, Check]] = []
    absent: list[Absent] = []
    contenders: list[Contender] = []
    for entry in entries:
        library = open_library(entry.library)
        try:
            if entry.library not in arrays:
                arrays[entry.library] = library.put(host, case.device)
            a = arrays[entry.library]
            contender, result = _contender(entry, library, a, case)
        except Exception as error:  # out of memory, a batch the library does not take: the others go on
            if entry.engine is not None and isinstance(error, np.linalg.LinAlgError):
                checks.append((entry.name, Check(inf, True)))  # every matrix here is positive definite
            elif entry.engine is not None and not _out_of_memory(error):
                raise
            absent.append(Absent(entry.name, _in_one_line(error)))
            continue
        if entry.engine is not None:
            check = _check(library, host, a, result, case)
            checks.append((entry.name, check))
            if not check.ok:
                continue
        elif trouble := _peer_trouble(host, result, library, case):
            absent.append(Absent(entry.name, trouble))
            continue
        contenders.append(contender)
    if checks and not any(check.ok for _, check in checks):
        contenders = []
    elif case.device == "cpu":
        contenders.append(Contender(COPY, lambda: np.copy(host)))
    timings = interleave(contenders, repeat, limit)
    for name in arrays:
        open_library(name).tidy()
    return _row(case, entries, timings, checks, absent, bandwidth)


def _contender(entry: Entry, library: Library, a: Any, case: Case) -> tuple[Contender, Any]:
    """The contender, and the answer of its first call."""
    on_gpu = case.device != "cpu"
    if entry.engine is None:
        call = library.own(case.upper)
        later = library.own_queued(case.upper) if on_gpu else call
    else:
        call = library.through(case.upper, entry.engine)
        later = library.through(case.upper, entry.engine, "nan") if on_gpu else call
    queued = (lambda k: library.queued(later, a, k)) if on_gpu else None
    return Contender(entry.name, library.waited(call, a), queued), call(a)


def _check(library: Library, host: np.ndarray, a: Any, result: Any, case: Case) -> Check:
    """On the host, or for one large matrix on a GPU where it lies: to bring it back would take longer than the measurement."""
    if case.device == "cpu" or case.batch > 1 or case.n <= _CHECKED_OF_PEERS or library.wide is None:
        return check_factor(host, library.to_host(result), upper=case.upper)
    probes = np.random.default_rng(1).standard_normal((case.n, PROBES)) / PROBES**0.5
    placed = library.put(probes.astype(np.result_type(host.dtype, np.float64)), case.device)
    return check_on_device(a, result, placed, library.wide, float(np.finfo(host.dtype).eps), upper=case.upper)


def _peer_trouble(host: np.ndarray, result: Any, library: Library, case: Case) -> str:
    """Why a peer's answer cannot be compared, or "". The first matrix is checked, of a large one only its last row."""
    if tuple(result.shape) != host.shape:
        return f"answers with shape {tuple(result.shape)}"
    first = result if case.batch == 1 else result[0]
    if case.n > _CHECKED_OF_PEERS:
        row = library.to_host(first[-1])
        return "" if row.dtype == host.dtype and np.isfinite(row).all() else "wrong dtype or not finite"
    check = check_factor(host if case.batch == 1 else host[0], library.to_host(first), upper=case.upper)
    return "" if check.ok else f"wrong answer: {check}"


def _row(
    case: Case,
    entries: Sequence[Entry],
    timings: Sequence[Timing],
    checks: Sequence[tuple[str, Check]],
    absent: Sequence[Absent],
    bandwidth: float | None,
) -> Row:
    ours = {e.name for e in entries if e.engine is not None}
    first = next((e.engine for e in entries if e.engine is not None), "auto")
    floor = case.bytes_moved / bandwidth if bandwidth else None
    return Row(
        case=case,
        engine=planner.plan(case.problem).engine if first == "auto" else str(first),
        checks=tuple(checks),
        ours=tuple(t for t in timings if t.name in ours),
        peers=tuple(t for t in timings if t.name not in ours and t.name != COPY),
        floor=next((t.minimum for t in timings if t.name == COPY), floor),
        absent=tuple(absent),
    )


def copy_bandwidth(library: str, device: str = "cuda") -> float:
    """Bytes per second, read and written, of a copy on the device: the best of five."""
    opened = open_library(library)
    a = opened.put(np.ones(_BANDWIDTH_BYTES // 4, np.float32), device)
    copy = opened.copier()
    opened.waited(copy, a)()
    seconds = min(opened.queued(copy, a, 10) for _ in range(5))
    del a
    opened.tidy()
    return 2 * _BANDWIDTH_BYTES / seconds


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
