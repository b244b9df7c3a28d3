"""One tuned product, and its file."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..backends.base import Config
from ..files import from_json, read_json
from ..gemm import Gemm

SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """The best way to compute one product, and the measurements behind it."""

    gemm: Gemm
    backend: str
    config: Config
    default_us: float
    tuned_us: float
    vendor_us: float | None = None  # time of the vendor's best algorithm
    interval: tuple[float, float] | None = None  # confidence interval of default / tuned
    error: float | None = None
    validated: tuple[str, ...] = ()  # names of the probes it passed
    buckets: tuple[tuple[int, int], ...] = ()  # ranges of token counts in which it was validated and timed too
    made: str = ""  # time of the measurement, ISO 8601 in UTC
    name: str = ""
    arithmetic: str = ""  # arithmetic of the measurement, if it differs from the product's types

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.:]{0,99}", self.backend):
            raise ValueError(f"backend is {self.backend!r}; it must be a name")
        for field in ("default_us", "tuned_us", "vendor_us"):
            time = getattr(self, field)
            if time is not None and not 0 < time < math.inf:
                raise ValueError(f"{field} is {time!r}; it must be a time in microseconds")
        if self.error is not None and not math.isfinite(self.error):
            raise ValueError(f"error is {self.error!r}; it must be a number")
        for low, high in self.buckets:
            if not 1 <= low <= high:
                raise ValueError(f"a bucket is [{low}, {high}]; it must be [low, high] with 1 <= low <= high")

    @property
    def ratio(self) -> float:
        """How many times faster than the default."""
        return self.default_us / self.tuned_us

    def holds_for(self, n: int) -> bool:
        """Whether the entry was validated and timed for n tokens."""
        return n == self.gemm.n or any(low <= n <= high for low, high in self.buckets)

    def to_dict(self) -> dict[str, Any]:
        values = {"schema": SCHEMA, **asdict(self)}
        if not self.arithmetic:
            del values["arithmetic"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Entry:
        """Build an entry from JSON. ValueError says what is wrong."""
        return from_json(cls, values, SCHEMA)

    @classmethod
    def read(cls, path: Path) -> Entry:
        entry = cls.from_dict(read_json(path))
        if entry.gemm.key != path.stem:
            raise ValueError(f"it holds the product {entry.gemm.key}, which is not its file name")
        return entry

    @classmethod
    def from_comparison(cls, c: Any) -> Entry:
        return cls(
            gemm=c.gemm,
            backend=c.backend,
            config=dict(c.config),
            default_us=c.default_us,
            tuned_us=c.tuned_us,
            vendor_us=c.vendor_us,
            interval=(c.low, c.high) if math.isfinite(c.low) and math.isfinite(c.high) else None,
            error=c.error if math.isfinite(c.error) else None,
            validated=c.validated,
            buckets=tuple(getattr(c, "buckets", ())),
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            name=c.name,
            arithmetic=c.arithmetic,
        )
