"""For how many tokens an entry holds: it is validated and timed at both ends of a range and between, before it is used there.

A server sees any number of tokens, and only some were tuned. Between two tuned ones the kernel of the next larger is tried.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic

from ..backends import FROZEN, GPU
from ..backends.base import Backend, Refused
from ..files import check_writable, write_json
from ..gemm import Gemm
from ..search.worker import Busy, Candidate, Worker
from ..workdir import lock_device
from .entry import Entry
from .folder import Library

__all__ = ["holds", "widen"]

_SAMPLES = 9  # in turns with the default
_log = logging.getLogger("lapwing")
_TIMEOUT = 120.0  # seconds for one number of tokens
_LEAST = 1.0  # it may never be slower than the default where it was measured


def widen(
    path: str | Path,
    *,
    device: int = 0,
    backends: Mapping[str, Backend] | None = None,
    below: int | None = None,
    until: float = inf,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Find out for which other numbers of tokens the entries of a library hold, and write that into it.

    Each entry is tried from the next smaller tuned number of tokens up to its own: at both ends and in the middle, then on the
    half nearer to it, until it is right and no slower than the default at every point tried, or nothing is left.

    Parameters
    ----------
    path : path
        The library; its entries are replaced one by one.
    below : int, optional
        How far down the smallest tuned number of tokens is tried; default half of it.
    until : float
        When ``time.monotonic()`` says so it ends: what is under way is given up, and what would not be done is not begun.
    progress : callable, optional
        Gets a line for each entry.

    Returns
    -------
    int
        How many entries hold for more than their own number of tokens.
    """
    library = Library(path, device=device, backends=backends)
    check_writable(library.path / "entries", "widen")
    trials = _Trials(library, device, until)
    try:
        return _widen(library, trials, below, progress)
    finally:
        trials.close()


def _widen(library: Library, trials: _Trials, below: int | None, progress: Callable[[str], None] | None) -> int:
    count = 0
    for ladder in library.ladders():
        smaller = 0
        for entry in ladder:
            n = entry.gemm.n
            low = smaller + 1 if smaller else max(1, n // 2 if below is None else below)
            found = _largest(trials, entry, low)
            smaller = n
            if found is None and trials.late:
                return count
            if found is None:
                continue
            wider = replace(entry, buckets=tuple(sorted({*entry.buckets, found})))
            write_json(library.path / "entries" / f"{entry.gemm.key}.json", wider.to_dict())
            count += 1
            if progress is not None:
                progress(f"{entry.name or entry.gemm}: {found[0]} to {found[1]} tokens")
    return count


def _largest(trials: _Trials, entry: Entry, low: int) -> tuple[int, int] | None:
    """The longest range down from the entry's own number of tokens in which it holds at each point tried."""
    n = entry.gemm.n
    while low < n and not trials.late:
        if all(trials.hold(entry, tokens) for tokens in sorted({low, (low + n) // 2, n - 1})):
            return low, n
        low = (low + n + 1) // 2
    return None


class _Trials:
    """Kernels at numbers of tokens they were never tried at: in another process, where a crash or a hang costs one answer.

    A backend that was handed over lives in this process, and is asked here.
    """

    def __init__(self, library: Library, device: int, until: float) -> None:
        self.library, self.device, self.until = library, device, until
        self.late = False
        self._workers: dict[str, Worker] = {}
        self._took = 0.0

    def hold(self, entry: Entry, tokens: int) -> bool:
        """False, and late, where there is no time for it."""
        begun = monotonic()
        if begun + self._took > self.until:
            self.late = True
            return False
        if entry.backend in self.library.backends:
            answer = holds(self.library.backend(entry.backend), entry, tokens, self.device)
        else:
            answer = self._elsewhere(entry, tokens)
        self.late = self.late or monotonic() > self.until
        self._took = max(0.5 * self._took, monotonic() - begun)
        return answer

    def _elsewhere(self, entry: Entry, tokens: int) -> bool:
        backend, gemm = self.library.backend(entry.backend), _with_tokens(entry.gemm, tokens)
        if backend.supports(gemm) is not None:
            return False
        family = "gpu" if backend.name in (*GPU, *FROZEN) else backend.name
        worker = self._workers.setdefault(family, Worker(self.device, family))
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
    """Whether the entry's kernel is right, and no slower than the default, for this number of tokens."""
    gemm = _with_tokens(entry.gemm, tokens)
    if backend.supports(gemm) is not None:
        return False
    try:
        bench = backend.open(gemm, device, tokens)
        try:
            tuned, default = bench.build(entry.config), bench.build(backend.default(gemm))
            bench.check(tuned)
            with lock_device(device, "gpu" if backend.name in (*GPU, *FROZEN) else backend.name):
                times: Sequence[Sequence[float]] = bench.time([default, tuned], _SAMPLES)
        finally:
            bench.close()
    except Refused:
        return False
    except Exception as error:  # a kernel may fail in any way where it was never tried
        _log.warning("tune: %s fails for %d tokens and is not used there: %s", entry.gemm, tokens, error)
        return False
    return statistics.median(times[0]) >= _LEAST * statistics.median(times[1])


def _with_tokens(gemm: Gemm, tokens: int) -> Gemm:
    return replace(gemm, n=tokens)
