"""How much of a log was measured: what could not be has no share of the time, and must not be forgotten."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .workdir import write_atomic

__all__ = ["Coverage", "Unmeasured", "read_coverage", "write_coverage"]

_NAME = "coverage.json"
_NAMED = 5  # products in a sentence


@dataclass(frozen=True)
class Unmeasured:
    """A product of the log that has no time, and why."""

    product: str
    key: str
    count: int
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Calls of a whole log, and the products of it that were not measured. Shares of time are of the others."""

    products: int
    calls: int
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def unmeasured_calls(self) -> int:
        return sum(u.count for u in self.unmeasured)

    @property
    def unmeasured_pct(self) -> float:
        """Of the calls."""
        return 100 * self.unmeasured_calls / self.calls if self.calls else 0.0

    def __str__(self) -> str:
        """One line; empty where everything was measured."""
        if not self.unmeasured:
            return ""
        named = ", ".join(f"{u.product} ({u.count} calls: {u.reason})" for u in self.unmeasured[:_NAMED])
        more = f" and {len(self.unmeasured) - _NAMED} more" if len(self.unmeasured) > _NAMED else ""
        return (
            f"not measured: {len(self.unmeasured)} of {self.products} products, {self.unmeasured_pct:.1f} % of the calls; "
            f"shares of the time leave them out: {named}{more}"
        )


def write_coverage(workdir: str | Path, coverage: Coverage) -> Path:
    """``coverage.json`` in the workdir."""
    path = Path(workdir) / _NAME
    write_atomic(path, json.dumps({"schema": 1, **asdict(coverage)}, indent=1) + "\n")
    return path


def read_coverage(workdir: Any) -> Coverage | None:
    """What ``configure`` wrote there; None where it is not known: an older workdir, or a damaged file."""
    try:
        data = json.loads((Path(getattr(workdir, "path", workdir)) / _NAME).read_text(encoding="utf-8"))
        rows: Sequence[Any] = data["unmeasured"]
        found = tuple(Unmeasured(str(u["product"]), str(u["key"]), int(u["count"]), str(u["reason"])) for u in rows)
        return Coverage(int(data["products"]), int(data["calls"]), found) if data["schema"] == 1 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
