"""Find for which numbers of tokens an entry is valid: it is validated and timed at both ends and in the middle of a range.

A server sees any number of tokens, and only some were tuned. Between two of them, the kernel of the next larger one is tried.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic

from ..backends import family
from ..backends.base import Backend, Refused
from ..files import check_writable, write_json
from ..search.worker import Busy, Candidate, Worker
from ..workdir import lock_device
from .entry import Entry
from .folder import Library

_SAMPLES = 9  # taken in turns with the default
_log = logging.getLogger("lapwing")
_TIMEOUT = 120.0  # seconds for one number of tokens
_LEAST = 1.0  # it must not be slower than the default at any point that was measured


def widen(
    path: str | Path,
    *,
    device: int = 0,
    backends: Mapping[str, Backend] | None = None,
    below: int | None = None,
    until: float = inf,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Find for which other numbers of tokens the entries of a library are valid, and store that in it.

    Each entry is tried on the range from the next smaller tuned number of tokens up to its own: at both ends and in the middle.
    It must be correct and no slower than the default at each of these. If not, the half nearer to its own number is tried.

    Parameters
    ----------
    path : path
        The library; its entries are replaced one by one.
    below : int, optional
        The lower end of the range of the smallest tuned number of tokens; by default half of that number.
    until : float
        The value of ``time.monotonic()`` at which to end. The current measurement is dropped then.
    progress : callable, optional
        Called with a line of text for each entry.

    Returns
    -------
    int
        How many entries are valid for more than their own number of tokens.
    """
    library = Library(path, device=device, backends=backends)
    check_writable(library.path / "entries", "widen")
    with closing(_Trials(library, device, until)) as trials:
        return _widen(library, trials, below, progress)


def _widen(library: Library, trials: _Trials, below: int | None, progress: Callable[[str], None] | None) -> int:
    count = 0
    for ladder in library.ladders():
        smaller = 0
        for entry in ladder:
            n = entry.gemm.n
            low = smaller + 1 if smaller else max(1, n // 2 if below is None else below)
            bucket = _largest(trials, entry, low)
            smaller = n
            if bucket is None and trials.late:
                return count
            if bucket is None:
                continue
            wider = replace(entry, buckets=tuple(sorted({*entry.buckets, bucket})))
            write_json(library.path / "entries" / f"{entry.gemm.key}.json", wider.to_dict())
            count += 1
            if progress is not None:
                progress(f"{entry.name or entry.gemm}: {bucket[0]} to {bucket[1]} tokens")
    return count


def _largest(trials: _Trials, entry: Entry, low: int) -> tuple[int, int] | None:
    """The longest range below the entry's own number of tokens in which it is valid at every point tried."""
    n = entry.gemm.n
    while low < n and not trials.late:
        if all(trials.hold(entry, tokens) for tokens in sorted({low, (low + n) // 2, n - 1})):
            return low, n
        low = (low + n + 1) // 2
    return None


class _Trials:
    """Runs kernels at new numbers of tokens, in another process, where a crash or a hang costs only one answer.

    A backend that the caller passed in exists only in this process, and runs here.
    """

    def __init__(self, library: Library, device: int, until: float) -> None:
        self.library, self.device, self.until = library, device, until
        self.late = False
        self._workers: dict[str, Worker] = {}
        self._took = 0.0

    def hold(self, entry: Entry, tokens: int) -> bool:
        """Whether the entry is valid for this number of tokens. False, with ``late`` set, when no time is left."""
        begun = monotonic()
        if begun + self._took > self.until:
            self.late = True
            return False
        if entry.backend in self.library.backends:
            answer = holds(self.library.backend(entry.backend), entry, tokens, self.device)
        else:
            answer = self._in_worker(entry, tokens)
        self.late = self.late or monotonic() > self.until
        self._took = max(0.5 * self._took, monotonic() - begun)
        return answer

    def _in_worker(self, entry: Entry, tokens: int) -> bool:
        backend, gemm = self.library.backend(entry.backend), replace(entry.gemm, n=tokens)
        if backend.supports(gemm) is not None:
            return False
        name = family(backend)
        worker = self._workers.setdefault(name, Worker(self.device, name))
        worker.patience = self.until if self.until < inf else None
        both = [Candidate(entry.backend, backend.default(gemm)), Candidate(entry.backend, entry.config)]
        try:
            default, tuned = worker.time(both, gemm, tokens, _SAMPLES, min(_TIMEOUT, max(1.0, self.until - monotonic())))
        except (Refused, Busy) as trouble:
            if monotonic() <= self.until:
                _log.warning("tune: %s fails for %d tokens and is not used there: %s", entry.gemm, tokens, trouble)
            return False
        if "runtimes" not in default or "runtimes" not in tuned:
            return False
        return bool(default["time"] >= _LEAST * tuned["time"])

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()


def holds(backend: Backend, entry: Entry, tokens: int, device: int) -> bool:
    """Whether the kernel is correct, and no slower than the default, for this number of tokens."""
    gemm = replace(entry.gemm, n=tokens)
    if backend.supports(gemm) is not None:
        return False
    try:
        with closing(backend.open(gemm, device, tokens)) as bench:
            tuned, default = bench.build(entry.config), bench.build(backend.default(gemm))
            bench.check(tuned)
            with lock_device(device, family(backend)):
                times = bench.time([default, tuned], _SAMPLES)
    except Refused:
        return False
    except Exception as error:  # a kernel can fail in any way at a new size
        _log.warning("tune: %s fails for %d tokens and is not used there: %s", entry.gemm, tokens, error)
        return False
    return statistics.median(times[0]) >= _LEAST * statistics.median(times[1])
