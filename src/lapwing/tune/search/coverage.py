"""How much of a log was measured: products without a time have no share of it, so they are listed here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files import from_json, read_json, write_json

_NAME = "coverage.json"
_NAMED = 5  # products in a sentence


@dataclass(frozen=True)
class Unmeasured:
    """A product of the log that has no time, and the reason."""

    product: str
    key: str
    count: int
    reason: str


@dataclass(frozen=True)
class Coverage:
    """The calls of a whole log, and its products that were not measured. Shares of the time cover only the others."""

    products: int
    calls: int
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def unmeasured_calls(self) -> int:
        return sum(u.count for u in self.unmeasured)

    @property
    def unmeasured_pct(self) -> float:
        """Percentage of the calls."""
        return 100 * self.unmeasured_calls / self.calls if self.calls else 0.0

    def __str__(self) -> str:
        """One line; empty when everything was measured."""
        if not self.unmeasured:
            return ""
        named = ", ".join(f"{u.product} ({u.count} calls: {u.reason})" for u in self.unmeasured[:_NAMED])
        more = f" and {len(self.unmeasured) - _NAMED} more" if len(self.unmeasured) > _NAMED else ""
        return (
            f"not measured: {len(self.unmeasured)} of {self.products} products, {self.unmeasured_pct:.1f} % of the calls; "
            f"shares of the time leave them out: {named}{more}"
        )


def write_coverage(workdir: str | Path, coverage: Coverage) -> Path:
    return write_json(Path(workdir) / _NAME, {"schema": 1, **asdict(coverage)})


def read_coverage(workdir: Any) -> Coverage | None:
    """Read what ``configure`` wrote; None for an older workdir or a damaged file."""
    try:
        return from_json(Coverage, read_json(Path(getattr(workdir, "path", workdir)) / _NAME), schema=1)
    except (OSError, ValueError):
        return None
