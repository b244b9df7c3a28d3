"""Times and errors of a run, for the final summary and the live view."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Spent:
    """Seconds, over the run and in the last step."""

    total: float = 0.0
    last: float = 0.0

    def add(self, seconds: float) -> None:
        self.last = seconds
        self.total += seconds


@dataclass
class Times:
    """Times of the solver and of all analyses together."""

    steps: int = 0
    resumed: int = 0  # steps before a restart, whose times are not known
    last_end: float = 0.0  # when the last step ended
    solver: Spent = field(default_factory=Spent)
    analysis: Spent = field(default_factory=Spent)

    @property
    def solver_each(self) -> float:
        return self.solver.total / max(self.steps - self.resumed - 1, 1)

    @property
    def analysis_each(self) -> float:
        return self.analysis.total / max(self.steps - self.resumed, 1)


def words(error: BaseException) -> str:
    """The message of an error; a message that cannot be printed must not raise the next error."""
    try:
        return str(error)
    except BaseException:
        return "its message cannot be printed"


def summary(slots: list[Any], times: Times) -> str:
    """One line for the run and one for each analysis."""
    errors = sum(slot.errors for slot in slots)
    lines = [
        f"{times.steps} steps; per step: solver {_duration(times.solver_each)}, analyses {_duration(times.analysis_each)};"
        f" {_errors(errors)}"
    ]
    steps = max(times.steps - times.resumed, 1)
    for slot in slots:
        parts = [f"  {slot.name}: {_duration(slot.seconds / steps)} per step", _summary_of(slot.analysis)]
        parts.append(_errors(slot.errors) if slot.errors else "")
        parts.append(f"switched off ({slot.disabled})" if slot.disabled else "")
        lines.append("; ".join(part for part in parts if part))
    return "\n".join(lines)


def status(slots: list[Any], times: Times) -> dict[str, Any]:
    """Plain values by name. ``sigma``, ``energy`` and ``bound`` come from the first analysis that has them."""
    analyses: dict[str, Any] = {}
    first: dict[str, Any] = {}
    pictures: list[str] = []
    steps = max(times.steps - times.resumed, 1)
    for slot in slots:
        values = slot.analysis.status()
        for name in ("sigma", "energy", "bound"):
            if name in values:
                first.setdefault(name, values[name])
        pictures += values.get("pictures", ())
        analyses[slot.name] = values | {"ms": 1e3 * slot.seconds / steps, "errors": slot.errors, "disabled": slot.disabled}
    return first | {
        "steps": times.steps,
        "solver_ms": 1e3 * times.solver_each,
        "analysis_ms": 1e3 * times.analysis_each,
        "last_solver_ms": 1e3 * times.solver.last,
        "last_analysis_ms": 1e3 * times.analysis.last,
        "errors": sum(slot.errors for slot in slots),
        "pictures": pictures,
        "analyses": analyses,
    }


def _summary_of(analysis: Any) -> str:
    """The summary of an analysis. An error in it must not end the run in its last moment."""
    try:
        return str(analysis.summary())
    except BaseException as error:
        return f"its summary failed ({type(error).__name__}: {words(error)})"


def _errors(count: int) -> str:
    return f"{count} error{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
