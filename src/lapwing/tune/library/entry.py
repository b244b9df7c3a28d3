"""One tuned product, and its file."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..backends.base import Config
from ..files import read_json
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
        for field in ("default_us", "tuned_us"):
            _check_time(field, getattr(self, field))
        if self.vendor_us is not None:
            _check_time("vendor_us", self.vendor_us)
        if self.error is not None and not _is_number(self.error):
            raise ValueError(f"error is {self.error!r}; it must be a number")
        if not isinstance(self.config, dict) or not all(
            isinstance(k, str) and isinstance(v, (int, str)) for k, v in self.config.items()
        ):
            raise ValueError("config: every value must be a whole number or a word")
        for low, high in self.buckets:
            if not (_is_whole(low) and _is_whole(high) and 1 <= low <= high):
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
        if values.get("schema") != SCHEMA:
            raise ValueError(f"it has schema {values.get('schema')!r}; this version reads {SCHEMA}")
        try:
            interval = values.get("interval")
            return cls(
                gemm=_whole_gemm(values["gemm"]),
                backend=str(values["backend"]),
                config=values["config"],
                default_us=values["default_us"],
                tuned_us=values["tuned_us"],
                vendor_us=values.get("vendor_us"),
                interval=(float(interval[0]), float(interval[1])) if interval is not None else None,
                error=values.get("error"),
                validated=tuple(str(p) for p in values.get("validated", ())),
                buckets=tuple((low, high) for low, high in values.get("buckets", ())),
                made=str(values.get("made", "")),
                name=str(values.get("name", "")),
                arithmetic=str(values.get("arithmetic", "")),
            )
        except KeyError as error:
            raise ValueError(f"it has no {error}") from None
        except (TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"a field has the wrong form: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Entry:
        entry = cls.from_dict(read_json(path))
        if entry.gemm.key != path.stem:
            raise ValueError(f"it holds the product {entry.gemm.key}, which is not its file name")
        return entry

    @classmethod
    def from_comparison(cls, c: Any) -> Entry:
        low, high = getattr(c, "low", None), getattr(c, "high", None)
        known = low is not None and high is not None and _is_number(low) and _is_number(high)
        return cls(
            gemm=c.gemm,
            backend=c.backend,
            config=dict(c.config),
            default_us=float(c.default_us),
            tuned_us=float(c.tuned_us),
            vendor_us=None if c.vendor_us is None else float(c.vendor_us),
            interval=(float(low), float(high)) if known else None,  # type: ignore[arg-type]
            error=float(c.error) if _is_number(c.error) else None,
            validated=c.validated,
            buckets=tuple((int(a), int(b)) for a, b in getattr(c, "buckets", ())),
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            name=c.name,
            arithmetic=c.arithmetic,
        )


def _whole_gemm(values: Any) -> Gemm:
    if not isinstance(values, dict):
        raise ValueError("gemm is not an object")
    for name, value in values.items():
        expected = {"alpha": (int, float), "beta": (int, float), "deterministic": (bool,), "fast_accum": (bool,)}.get(name)
        default = getattr(Gemm, name, 0)
        wanted: tuple[type, ...] = expected or ((str,) if isinstance(default, str) else (int,))
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted != (bool,)):
            raise ValueError(f"gemm: {name} is {value!r}")
    try:
        return Gemm.from_dict(values)
    except TypeError as error:
        raise ValueError(f"gemm: {error}") from None


def _is_whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def _check_time(name: str, value: Any) -> None:
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}; it must be a time in microseconds")
