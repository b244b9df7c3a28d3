"""The decision about a call: the engine, the reason, and the cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .problem import Problem


@dataclass(frozen=True)
class Capability:
    """An operation that an engine has on a device: one row of the support table in the docs."""

    operation: str
    engine: str
    device: str
    dtypes: tuple[str, ...]
    note: str = ""


class Alternative(NamedTuple):
    """Another engine that could take the call, and what it would need."""

    engine: str
    device_bytes: int
    host_bytes: int
    predicted_seconds: float | None

    def __str__(self) -> str:
        text = (
            f"{self.engine}: {bytes_in_words(self.device_bytes)} on the device, {bytes_in_words(self.host_bytes)} on the host"
        )
        return text if self.predicted_seconds is None else f"{text}, about {self.predicted_seconds * 1e3:.2g} ms"


@dataclass(frozen=True)
class Plan:
    """How a call will run. Nothing has run yet."""

    problem: Problem
    engine: str
    reason: str
    device_bytes: int  # workspace beside input and output
    host_bytes: int  # about; kept by the threads for the next call
    flops: float
    bytes_moved: int  # each input read once, each output written once
    predicted_seconds: float | None = None
    missing: str = ""  # why the engine cannot run on this machine
    others: tuple[Alternative, ...] = ()  # the other engines that could take the call

    def _workspace(self) -> str:
        if self.missing:
            return "unknown, as the engine cannot run here"
        return f"{bytes_in_words(self.device_bytes)} on the device, {bytes_in_words(self.host_bytes)} on the host"

    def __str__(self) -> str:
        lines = [
            f"{self.problem}",
            f"  engine      {self.engine}",
            f"  because     {self.reason}",
            f"  workspace   {self._workspace()}",
            f"  work        {self.flops:.3g} flop, {bytes_in_words(self.bytes_moved)} moved",
        ]
        if self.predicted_seconds is not None:
            lines.append(f"  expected    about {self.predicted_seconds * 1e3:.2g} ms, by the nearest point of the record")
        if self.missing:
            lines.append(f"  note        not usable on this machine: {self.missing.splitlines()[0]}")
        lines += [f"  or          {other}" for other in self.others]
        return "\n".join(lines)


def bytes_in_words(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
