"""Measure one case: check the answers, then time lapwing and its peers side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from .. import planner
from .case import WRONG, Absent, Case, Entry, Row, Timing
from .check import Check
from .environment import HOW_TO_GET
from .libraries import PEERS, installed, open_library
from .library import Library, first_of
from .matrices import make_input
from .operations import operation_of
from .peers import has_peer, peer_of, special_routines
from .timing import Contender, interleave

COPY = "copy"
_BANDWIDTH_BYTES = 2**29
_MATRICES_OF_PEERS = 16  # checked of each batch, spread over it
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


def peer_entries(device: str, names: Sequence[str] = PEERS, case: Case | None = None) -> tuple[list[Entry], list[Absent]]:
    """The peers that can run on a device, and why the others cannot.

    With a ``case`` the libraries without the operation are left out, and the special routines that suit it are added.
    """
    reasons = {name: why_not(name, device) for name in names}
    present = [Entry(n, n) for n, why in reasons.items() if not why and (case is None or has_peer(open_library(n), case))]
    if case is not None:
        present += [Entry(name, library) for name, library in special_routines(case) if reasons.get(library) == ""]
    return present, [Absent(n, why) for n, why in reasons.items() if why]


def every_engine(library: str, cases: Sequence[Case]) -> list[Entry]:
    """lapwing once for each engine that can run at least one of the cases."""
    fits = [name for name in planner.ALL if any(not planner.refusal(name, case.problem) for case in cases)]
    return [Entry(name, library, name) for name in fits]


def fitting(case: Case, entries: Sequence[Entry]) -> list[Entry]:
    """The entries without the engines that cannot run this case."""
    return [e for e in entries if e.engine in (None, "auto") or not planner.refusal(e.engine, case.problem)]


def measure(
    case: Case,
    entries: Sequence[Entry],
    *,
    repeat: int = 10,
    limit: float = inf,
    bandwidth: float | None = None,
    fewest: int = 3,
    behind: float = inf,
    samples: int = 1,
    floor: bool = True,
) -> Row:
    """Check and time the entries on one case; ``repeat``, ``limit``, ``fewest`` and ``samples`` as for ``interleave``.

    The answers of lapwing's entries (those with an engine) are checked, and wrong ones are not timed. For a peer some of the
    matrices are checked; one with a wrong answer is not timed, and the row names it. The floor is a copy of the input in the
    same run; on a GPU it is the bytes moved over ``bandwidth``.
    """
    host = make_input(case)
    arrays: dict[str, Any] = {}
    checks: list[tuple[str, Check]] = []
    absent: list[Absent] = []
    contenders: list[Contender] = []
    for entry in entries:
        library = open_library(entry.library)
        try:
            if entry.library not in arrays:
                arrays[entry.library] = _each(lambda x: library.put(x, case.device), host)  # noqa: B023
            a = arrays[entry.library]
            contender, result = _contender(entry, library, a, case)
        except Exception as error:  # out of memory, or a batch the library does not support: the others continue
            if entry.engine is not None and isinstance(error, np.linalg.LinAlgError):
                checks.append((entry.name, Check(inf, True)))  # every matrix here has an answer
            elif entry.engine is not None and not _out_of_memory(error):
                raise
            absent.append(Absent(entry.name, _in_one_line(error)))
            continue
        if entry.engine is not None:
            check = _check(library, host, a, operation_of(case.operation).answer(result), case)
            checks.append((entry.name, check))
            if not check.ok:
                continue
        elif trouble := _peer_trouble(host, a, result, library, case):
            absent.append(Absent(entry.name, trouble))
            continue
        contenders.append(contender)
    if checks and not any(check.ok for _, check in checks):
        contenders = []
    elif case.device == "cpu" and floor:
        contenders.append(Contender(COPY, lambda: _each(np.copy, host)))
    timings = interleave(contenders, repeat, limit, fewest=fewest, behind=behind, samples=samples)
    for name in arrays:
        open_library(name).tidy()
    return _row(case, entries, timings, checks, absent, bandwidth)


def _contender(entry: Entry, library: Library, a: Any, case: Case) -> tuple[Contender, Any]:
    """The contender, and the answer of its first call."""
    on_gpu = case.device != "cpu"
    if entry.engine is None:
        _, call, queued_call = peer_of(library, case, entry.name)
        later = queued_call or call
    else:
        through = operation_of(case.operation).through
        call = through(library, case, entry.engine, "raise")
        later = through(library, case, entry.engine, "nan") if on_gpu else call
    queued = (lambda k: library.queued(later, a, k)) if on_gpu else None
    waited = library.waited(call, a)
    start = perf_counter()
    answer = call(a)
    before = 0.0 if library.compiles or entry.engine is not None else perf_counter() - start
    return Contender(entry.name, waited, queued, library.rest, before), answer


def _each(call: Callable[[Any], Any], arrays: Any) -> Any:
    """``call`` on an array, or on each of a tuple of arrays."""
    return tuple(call(x) for x in arrays) if isinstance(arrays, tuple) else call(arrays)


def _check(library: Library, host: Any, a: Any, result: Any, case: Case) -> Check:
    """On the host; one large matrix on a GPU is checked there, since copying it would take longer than the measurement."""
    operation = operation_of(case.operation)
    if case.device == "cpu" or case.batch > 1 or case.n <= _CHECKED_OF_PEERS or library.wide is None:
        return operation.check(host, _each(library.to_host, result), case)
    return operation.check_on_device(library, a, result, case)


def _peer_trouble(host: Any, a: Any, result: Any, library: Library, case: Case) -> str:
    """Why a peer's answer is not comparable, or "". In a batch the first and last matrix are checked, and some between them.

    A large matrix is checked in full if that is quick: on a GPU, or with right-hand sides. Otherwise only its last row is.
    """
    outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    # a library that loops over the matrices returns lists
    outputs = tuple(np.stack(x) if isinstance(x, list) else x for x in outputs)
    operation = operation_of(case.operation)
    for output, shape in zip(outputs, operation.shapes(case), strict=True):
        if tuple(np.shape(output)) != shape:
            return f"wrong shape {tuple(np.shape(output))}"
    quick = operation.right_hand_sides or (case.device != "cpu" and library.wide is not None)
    if case.n > _CHECKED_OF_PEERS and case.batch == 1 and quick:
        check = _check(library, host, a, result, case)
        return "" if check.ok else f"{WRONG}: {check}"
    if case.n > _CHECKED_OF_PEERS:
        first = outputs if case.batch == 1 else tuple(x[0] for x in outputs)
        rows = [library.to_host(x[-1:]) if len(x.shape) else library.to_host(x) for x in first]
        widest = max(row.dtype.itemsize for row in rows if row.dtype.kind in "fc")  # others are orders of rows
        good = widest <= first_of(host).dtype.itemsize and all(np.isfinite(row).all() for row in rows)
        return "" if good else "wrong dtype or not finite"
    few, inputs = case, host
    if case.batch > _MATRICES_OF_PEERS:
        places = np.linspace(0, case.batch - 1, _MATRICES_OF_PEERS).astype(int)
        outputs = tuple(np.stack([library.to_host(x[int(i)]) for i in places]) for x in outputs)
        few, inputs = replace(case, batch=len(places)), _each(lambda x: x[places], host)
    else:
        outputs = tuple(library.to_host(x) for x in outputs)
    check = operation.check(inputs, outputs if len(outputs) > 1 else outputs[0], few)
    return "" if check.ok else f"{WRONG}: {check}"


def _row(
    case: Case,
    entries: Sequence[Entry],
    timings: Sequence[Timing],
    checks: Sequence[tuple[str, Check]],
    absent: Sequence[Absent],
    bandwidth: float | None,
) -> Row:
    lapwing_names = {e.name for e in entries if e.engine is not None}
    first = next((e.engine for e in entries if e.engine is not None), "auto")
    floor = case.bytes_moved / bandwidth if bandwidth else None
    return Row(
        case=case,
        engine=planner.plan(case.problem).engine if first == "auto" else str(first),
        checks=tuple(checks),
        ours=tuple(t for t in timings if t.name in lapwing_names),
        peers=tuple(t for t in timings if t.name not in lapwing_names and t.name != COPY),
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
