"""Counts how often each entry of a library is used, and which products have none."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ..library.folder import Library

_MOST = 1 << 16  # products that are remembered; with more, counting starts again
_lock = threading.Lock()
_tallies: dict[tuple[str, str], Tally] = {}
_libraries: dict[str, Library] = {}  # in use now or earlier, by path


class Tally:
    """Counts of one product: ``hits`` by a tuned kernel, ``passed`` by the framework. Threads may lose a count now and then."""

    __slots__ = ("backend", "hits", "library", "passed", "product")

    def __init__(self, product: str, library: str = "", backend: str = "") -> None:
        self.product, self.library, self.backend = product, library, backend
        self.hits = self.passed = 0


@dataclass(frozen=True)
class Use:
    """How often one product was computed by a tuned kernel, and how often by the framework."""

    product: str
    library: str  # "" when no library has an entry
    backend: str
    hits: int
    passed: int  # calls that the framework computed: no entry, or one that does not apply (autocast, subclasses, ...)


@dataclass(frozen=True)
class UseReport:
    """Entries in the order of their hits, and products without an entry in the order of their calls."""

    entries: tuple[Use, ...]
    misses: tuple[Use, ...]

    def __str__(self) -> str:
        used = [u for u in self.entries if u.hits]
        hits = _counted(sum(u.hits for u in used), "call")
        rows = [f"used: {len(used)} of {_counted(len(self.entries), 'entry', 'entries')}, {hits}"]
        for u in self.entries:
            passed = f", {u.passed} left to the framework" if u.passed else ""
            rows.append(f"{u.hits:>10}  {u.product} by {u.backend}{passed}")
        if self.misses:
            calls = sum(u.passed for u in self.misses)
            rows.append(f"without an entry: {_counted(len(self.misses), 'product')}, {_counted(calls, 'call')}")
            rows += [f"{u.passed:>10}  {u.product}" for u in self.misses]
        return "\n".join(rows)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def report(*, reset: bool = False) -> UseReport:
    """Say which entries of the libraries in use were hit, how often, and which products found no entry.

    Counts begin with the process, or with the last call with ``reset=True``. They cover :func:`lapwing.matmul`, and torch's
    functions inside :func:`lapwing.tune.use` and in models with :func:`lapwing.tune.enable`. Products that ``torch.compile``
    did not replace are not seen.

    Returns
    -------
    UseReport
        Prints as a table. ``entries`` also lists the entries that were never hit.

    Examples
    --------
    >>> import lapwing.tune
    >>> str(lapwing.tune.report(reset=True)).splitlines()[0]  # doctest: +ELLIPSIS
    'used: ... of ... entr..., ... call...'
    """
    with _lock:
        uses = [Use(t.product, t.library, t.backend, t.hits, t.passed) for t in _tallies.values()]
        known = {(u.library, u.product) for u in uses}
        for path, library in _libraries.items():
            rows = (Use(str(e.gemm), path, e.backend, 0, 0) for e in library.entries.values())
            uses += [u for u in rows if (path, u.product) not in known]
        if reset:
            for t in _tallies.values():
                t.hits = t.passed = 0
    entries = sorted((u for u in uses if u.library), key=lambda u: (-u.hits, u.product))
    misses = sorted((u for u in uses if not u.library and u.passed), key=lambda u: (-u.passed, u.product))
    return UseReport(tuple(entries), tuple(misses))


def tally(product: object, library: Library | None = None, backend: str = "") -> Tally:
    """The counts of a product in a library, or of a product that has no entry."""
    path = "" if library is None else str(library.path)
    with _lock:
        if len(_tallies) >= _MOST:
            _tallies.clear()
        return _tallies.setdefault((path, str(product)), Tally(str(product), path, backend))


def add_libraries(libraries: Iterable[Library]) -> None:
    with _lock:
        _libraries.update({str(library.path): library for library in libraries})
