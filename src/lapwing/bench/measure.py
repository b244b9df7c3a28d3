"""Measure one case: check the answers, then time lapwing and its peers side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from .. import planner
from .case import WRONG, Absent, Case, Entry, Row, Timing
from .check import Check
from .environment import HOW_TO_GET
from .libraries import PEERS, installed, open_library
from .library import Call, Library, first_of
from .matrices import make_input
from .operations import operation_of
from .peers import has_peer, peer_of, special_routines
from .timing import Contender, interleave

COPY = "copy"
_BANDWIDTH_BYTES = 2**29
_MATRICES_OF_PEERS = 16  # checked of each batch, spread over it
_CHECKED_OF_PEERS = 4096  # beyond this order the check would take longer than the measurement
_PARTS = 16  # a peer that is far behind is timed on two sixteenths of a batch
_FAR_BEHIND = 2.0  # so many times slower on one sixteenth as lapwing on the whole
_LONG_PART = 0.02  # seconds; a shorter call is timed on the whole batch
_LINEAR = 0.85  # of twice the time for twice the matrices
_LONG = 0.25  # seconds after which a call is not repeated to warm up


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
    in_parts: bool = False,
    turn: AbstractContextManager[Any] | None = None,
) -> Row:
    """Check and time the entries on one case; ``repeat``, ``limit``, ``fewest`` and ``samples`` as for ``interleave``.

    The answers of lapwing's entries (those with an engine) are checked, and wrong ones are not timed. For a peer some of the
    matrices are checked; one with a wrong answer is not timed, and the row names it. The floor is a copy of the input in the
    same run; on a GPU it is the bytes moved over ``bandwidth``.

    With ``in_parts`` a peer that is far behind and takes one matrix after the other is timed on a part of the batch. Processes
    that share a device pass a ``turn``: it is held while the device works, not while calls are compiled and answers checked.
    """
    turn = turn or nullcontext()
    host = make_input(case)
    arrays: dict[str, Any] = {}
    absent: list[Absent] = []
    wrong: list[str] = []  # lapwing's entries that raised an error, though every matrix here has an answer
    trials: list[_Trial] = []
    parts = _parts(case) if in_parts else ()

    def failed(entry: Entry, error: Exception) -> None:
        """Out of memory, or a batch that the library does not support: the others continue."""
        if entry.engine is not None and isinstance(error, np.linalg.LinAlgError):
            wrong.append(entry.name)
        elif entry.engine is not None and not _out_of_memory(error):
            raise error
        absent.append(Absent(entry.name, _in_one_line(error)))

    for entry in entries:
        library = open_library(entry.library)
        try:
            if entry.library not in arrays:
                arrays[entry.library] = _put(library, host, case)
            trial = _trial(entry, library, arrays[entry.library], host, case)
            if entry.engine is None:
                for count in parts:
                    library.prepare(trial.call, _put(library, _head(host, count), case))
            trials.append(trial)
        except Exception as error:
            failed(entry, error)

    fastest = inf  # seconds of lapwing's calls
    with turn:
        for trial in trials:
            try:
                if trial.entry.engine is None and parts and fastest < inf:
                    trial.try_parts(parts, fastest)
                if not trial.seconds_by_parts:
                    trial.run()
                if trial.entry.engine is not None and parts:
                    fastest = min(fastest, _warm_seconds(trial.contender().call))
            except Exception as error:
                failed(trial.entry, error)

    checks = [(name, Check(inf, True)) for name in wrong]
    contenders: list[Contender] = []
    by_parts: list[Timing] = []
    for trial in trials:
        if trial.verdict is None:
            continue
        verdict = trial.verdict()
        if isinstance(verdict, Check):
            checks.append((trial.entry.name, verdict))
            if not verdict.ok:
                continue
        elif verdict:
            absent.append(Absent(trial.entry.name, verdict))
            continue
        if trial.seconds_by_parts:
            seconds = (trial.seconds_by_parts,)
            by_parts.append(Timing(trial.entry.name, seconds, seconds, extrapolated=True))
        else:
            contenders.append(trial.contender())
    if checks and not any(check.ok for _, check in checks):
        contenders = []
    elif case.device == "cpu" and floor:
        contenders.append(Contender(COPY, lambda: _each(np.copy, host)))
    with turn:
        timings = interleave(contenders, repeat, limit, fewest=fewest, behind=behind, samples=samples)
        trials.clear()
        for name in arrays:
            open_library(name).tidy()
    return _row(case, entries, [*timings, *by_parts], checks, absent, bandwidth)


@dataclass
class _Trial:
    """An entry with its calls: ``call`` as users write it, ``later`` the one that does not wait for the device."""

    entry: Entry
    library: Library
    call: Call
    later: Call
    a: Any
    host: Any
    case: Case
    before: float = 0.0  # seconds of the first call of a peer
    seconds_by_parts: float = 0.0
    verdict: Callable[[], Check | str] | None = None  # looks at the answer on the host

    def run(self) -> None:
        start = perf_counter()
        answer = self.call(self.a)
        if self.entry.engine is None:
            self.before = perf_counter() - start
            self.verdict = _judge_peer(self.host, self.a, answer, self.library, self.case)
        else:
            answer = operation_of(self.case.operation).answer(answer)
            self.verdict = _judge(self.library, self.host, self.a, answer, self.case)

    def try_parts(self, parts: Sequence[int], fastest: float) -> None:
        """Time two parts of the batch. If the peer is far behind even there, and twice the matrices take it twice the time,
        the whole batch takes it as many times longer as it is larger."""
        times: list[float] = []
        for count in parts:
            host = _head(self.host, count)
            a = _put(self.library, host, self.case)
            times.append(_warm_seconds(self.library.waited(self.call, a)))
            if times[-1] < max(_LONG_PART, _FAR_BEHIND * fastest):
                return
        if times[1] < _LINEAR * times[0] * parts[1] / parts[0]:
            return
        self.verdict = _judge_peer(host, a, self.call(a), self.library, replace(self.case, batch=count))
        self.seconds_by_parts = times[1] * self.case.batch / parts[1]

    def contender(self) -> Contender:
        on_gpu = self.case.device != "cpu"
        queued = (lambda count: self.library.queued(self.later, self.a, count)) if on_gpu else None
        return Contender(self.entry.name, self.library.waited(self.call, self.a), queued, self.library.rest, self.before)


def _trial(entry: Entry, library: Library, a: Any, host: Any, case: Case) -> _Trial:
    """The entry's calls, compiled."""
    if entry.engine is None:
        _, call, queued_call = peer_of(library, case, entry.name)
        later = queued_call or call
    else:
        through = operation_of(case.operation).through
        call = through(library, case, entry.engine, "raise")
        later = through(library, case, entry.engine, "nan") if case.device != "cpu" else call
    for each in dict.fromkeys((call, later)):
        library.prepare(each, a)
    return _Trial(entry, library, call, later, a, host, case)


def _parts(case: Case) -> tuple[int, int] | tuple[()]:
    """How many matrices two parts of the batch have, one twice as many as the other."""
    count = case.batch // _PARTS
    return (count, 2 * count) if count > 1 else ()


def _head(arrays: Any, count: int) -> Any:
    return _each(lambda x: x[:count], arrays)


def _put(library: Library, host: Any, case: Case) -> Any:
    return _each(lambda x: library.put(x, case.device), host)


def _warm_seconds(call: Callable[[], Any]) -> float:
    """Seconds of a call: of its second run, unless the first took long."""
    start = perf_counter()
    call()
    first = perf_counter() - start
    if first > _LONG:
        return first
    start = perf_counter()
    call()
    return perf_counter() - start


def _each(call: Callable[[Any], Any], arrays: Any) -> Any:
    """``call`` on an array, or on each of a tuple of arrays."""
    return tuple(call(x) for x in arrays) if isinstance(arrays, tuple) else call(arrays)


def _judge(library: Library, host: Any, a: Any, result: Any, case: Case) -> Callable[[], Check]:
    """The check of an answer. On the host, it is made when the function is called; one large matrix on a GPU is checked there
    at once, since copying it would take longer than the measurement."""
    operation = operation_of(case.operation)
    if case.device == "cpu" or case.batch > 1 or case.n <= _CHECKED_OF_PEERS or library.wide is None:
        answer = _each(library.to_host, result)
        return lambda: operation.check(host, answer, case)
    check = operation.check_on_device(library, a, result, case)
    return lambda: check


def _judge_peer(host: Any, a: Any, result: Any, library: Library, case: Case) -> Callable[[], str]:
    """Why a peer's answer is not comparable, or "". In a batch the first and last matrix are checked, and some between them.

    A large matrix is checked in full if that is quick: on a GPU, or with right-hand sides. Otherwise only its last row is.
    """
    outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    # a library that loops over the matrices returns lists
    outputs = tuple(np.stack(x) if isinstance(x, list) else x for x in outputs)
    operation = operation_of(case.operation)
    for output, shape in zip(outputs, operation.shapes(case), strict=True):
        if tuple(np.shape(output)) != shape:
            trouble = f"wrong shape {tuple(np.shape(output))}"
            return lambda: trouble
    quick = operation.right_hand_sides or (case.device != "cpu" and library.wide is not None)
    if case.n > _CHECKED_OF_PEERS and case.batch == 1 and quick:
        return _in_words(_judge(library, host, a, result, case))
    if case.n > _CHECKED_OF_PEERS:
        first = outputs if case.batch == 1 else tuple(x[0] for x in outputs)
        rows = [library.to_host(x[-1:]) if len(x.shape) else library.to_host(x) for x in first]
        widest = max(row.dtype.itemsize for row in rows if row.dtype.kind in "fc")  # others are orders of rows
        good = widest <= first_of(host).dtype.itemsize and all(np.isfinite(row).all() for row in rows)
        return lambda: "" if good else "wrong dtype or not finite"
    few, inputs = case, host
    if case.batch > _MATRICES_OF_PEERS:
        places = np.linspace(0, case.batch - 1, _MATRICES_OF_PEERS).astype(int)
        outputs = tuple(np.stack([library.to_host(x[int(i)]) for i in places]) for x in outputs)
        few, inputs = replace(case, batch=len(places)), _each(lambda x: x[places], host)
    else:
        outputs = tuple(library.to_host(x) for x in outputs)
    return _in_words(lambda: operation.check(inputs, outputs if len(outputs) > 1 else outputs[0], few))


def _in_words(judge: Callable[[], Check]) -> Callable[[], str]:
    def words() -> str:
        check = judge()
        return "" if check.ok else f"{WRONG}: {check}"

    return words


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
