"""The words and numbers of a view, shared by the terminal and the page.

All values come from a file that others may have written: they are checked here, and control characters are removed from texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .plain import number
from .reader import View


@dataclass(frozen=True)
class Row:
    """One analysis."""

    name: str
    ms: str
    share: float  # of the time of solver and analyses together
    errors: int
    note: str


def headline(view: View) -> tuple[str, str]:
    """The state in one to four words, and a message about it."""
    return "no sign of life" if view.state == "silent" else view.state, clean(view.message)


def facts(view: View) -> list[tuple[str, str]]:
    """Names and values, the most important first."""
    s = view.status
    if not s:
        return []
    rows = [("step", whole(s.get("step"))), ("time", short(s.get("time"), 6))]
    solver, analysis = number(s.get("solver_ms")), number(s.get("analysis_ms"))
    if solver is not None and analysis is not None:
        rows += [("solver per step", milliseconds(solver)), ("analyses per step", milliseconds(analysis))]
        if solver + analysis > 0:
            rows.append(("share of analyses", f"{100 * analysis / (solver + analysis):.1f} %"))
    energy = number(s.get("energy"))
    if energy is not None:
        rows.append(("energy captured", percent(energy)))
    sigma = numbers(s.get("sigma"))
    if sigma:
        rows.append(("largest sigma", short(sigma[0], 9)))
    if number(s.get("bound")) is not None:
        rows.append(("its error at most", short(s.get("bound"), 2)))
    ranks = number(s.get("size")) or 1
    if ranks > 1:
        rows.append(("ranks", f"{ranks:.0f} (rank 0 is shown)"))
    rows.append(("errors", whole(s.get("errors", 0))))
    return rows


def analyses(view: View) -> list[Row]:
    known = view.status.get("analyses")
    known = known if isinstance(known, dict) else {}
    whole_ms = (number(view.status.get("solver_ms")) or 0.0) + (number(view.status.get("analysis_ms")) or 0.0)
    rows = []
    for name, values in known.items():
        if not isinstance(values, dict):
            continue
        ms = number(values.get("ms")) or 0.0
        disabled = clean(str(values.get("disabled") or ""))
        note = f"switched off: {disabled}" if disabled else ", ".join(_notes(values))
        share = min(ms / whole_ms, 1.0) if whole_ms > 0 else 0.0
        rows.append(Row(clean(str(name)), milliseconds(ms), share, int(number(values.get("errors")) or 0), note))
    return rows


def _notes(values: dict[str, Any]) -> list[str]:
    """The other short figures of an analysis."""
    known = ("ms", "errors", "disabled", "sigma", "power")
    notes: list[str] = []
    for name, value in values.items():
        if name in known or len(notes) == 6:
            continue
        if name == "energy":
            notes.append(f"energy {percent(number(value) or 0.0)}")
        elif number(value) is not None:
            notes.append(f"{clean(str(name))} {short(value, 6)}")
        elif isinstance(value, str) and len(value) <= 60:
            notes.append(f"{clean(str(name))} {clean(value)}")
        elif name == "pictures" and isinstance(value, list):
            notes += [clean(str(picture)) for picture in value[:3]]
    return notes


def errors(view: View) -> str:
    """The last traceback."""
    return clean(str(view.status.get("last_error") or ""), lines=True).strip()


def clean(text: str, lines: bool = False) -> str:
    """Remove control characters: a terminal would act on them."""
    return "".join(c if (c.isprintable() or (lines and c == "\n")) else " " for c in text)


def numbers(values: Any) -> list[float]:
    parsed = [number(v) for v in values] if isinstance(values, list) else []
    return [v for v in parsed if v is not None]


def whole(value: Any) -> str:
    parsed = number(value)
    return "-" if parsed is None else f"{parsed:,.0f}".replace(",", " ")


def short(value: Any, digits: int) -> str:
    parsed = number(value)
    return "-" if parsed is None else f"{parsed:.{digits}g}"


def percent(value: float) -> str:
    """A percentage; close to 100 % it shows two digits of the missing part."""
    missing = 1.0 - value
    digits = 2 if missing > 0.01 or missing <= 0 else min(1 - math.floor(math.log10(100 * missing)), 10)
    text = f"{100 * value:.{digits}f} %"
    return text if not (text.startswith("100.") and missing > 0) else "> 99.99999999 %"


def milliseconds(ms: float) -> str:
    return f"{1e3 * ms:.3g} us" if ms < 1 else f"{ms:.3g} ms" if ms < 1e3 else f"{ms / 1e3:.3g} s"
