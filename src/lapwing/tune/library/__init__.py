"""The tuned library: a folder with a small file for each product: the best way to compute it, and where that is valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..backends import get_own
from ..backends.base import Backend
from .entry import Entry
from .folder import EnvironmentMismatch, Environments, Library, write
from .ledger import LedgerLine, merge

__all__ = ["Entry", "EnvironmentMismatch", "LedgerLine", "Library", "build", "environments", "merge"]


def build(
    workdir: Any,
    comparisons: Iterable[Any],
    out: str | Path | None = None,
    *,
    device: int = 0,
    backends: Mapping[str, Backend] | None = None,
    policy: Mapping[str, Any] | None = None,
) -> Path:
    """Write the winners of a comparison as a library.

    Parameters
    ----------
    workdir : Workdir or path
        The library goes to its ``final`` folder unless ``out`` names another.
    comparisons : iterable of Comparison
        Only the kept ones are written.
    device : int
        The device that measured them.

    Returns
    -------
    Path
        The folder. Entries of an earlier build that were not kept again are removed.
    """
    folder = Path(out) if out is not None else Path(getattr(workdir, "final", None) or Path(workdir) / "final")
    entries = [Entry.from_comparison(c) for c in comparisons if c.kept]
    names = sorted({e.backend for e in entries})
    write(folder, entries, environments(names, device, backends), policy or {"made": "compare"})
    return folder


def environments(names: Iterable[str], device: int = 0, backends: Mapping[str, Backend] | None = None) -> Environments:
    """The environment of each backend here: everything its results depend on."""
    own = dict(backends or {})
    return {name: dict((own.get(name) or get_own(name)).environment(device)) for name in names}
