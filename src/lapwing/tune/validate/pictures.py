"""The pictures of the report: gain of each product, roofline, and progress of the search. They need matplotlib."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..backends.cuda import PEAKS

_KEPT, _OTHER, _DOUBT, _LINE = "#2166ac", "#b0b0b0", "#e08214", "#d6604d"
_MOST = 40  # bars
_LABELS = 20  # named points of the roofline, those with the most time


def uplift(rows: Sequence[Mapping[str, str]], device: str = "") -> bytes:
    """Bars of default / tuned with their intervals; the product with the most time is on top."""
    from matplotlib.patches import Patch

    shown = list(rows)[:_MOST]
    figure, axes = _figure(8, 1.8 + 0.3 * len(shown))
    places = list(range(len(shown)))[::-1]
    ratios = [float(r["ratio"] or 1) for r in shown if _compared(r)]
    # an interval may reach far beyond all bars, which must stay readable: it is cut there, and an arrow shows it
    right = 1.25 * max([*ratios, 1.2])
    for place, row in zip(places, shown, strict=True):
        if not _compared(row):
            axes.text(0.02 * right, place, "not compared", va="center", fontsize=7, color="#707070", style="italic")
            continue
        ratio, colour = float(row["ratio"] or 1), _DOUBT if _doubtful(row) else _KEPT if row["kept"] == "True" else _OTHER
        low, high = float(row["ratio_low"] or ratio), float(row["ratio_high"] or ratio)
        doubtful = _doubtful(row)
        hatch = {"hatch": "///", "facecolor": "white"} if doubtful else {"facecolor": colour}
        axes.barh(place, ratio, edgecolor=colour, linewidth=0.8, **hatch)
        axes.plot([low, min(high, right)], [place, place], color="black", linewidth=0.9)
        axes.plot([low], [place], "|", color="black", markersize=6)
        axes.plot([min(high, 0.99 * right)], [place], ">" if high > right else "|", color="black", markersize=5)
        # inside the bar, where no interval runs through it
        label = f"{'~' if doubtful else ''}{ratio:.2f}x" + (f" (to {high:.3g}x)" if high > right else "")
        ink = "white" if colour == _KEPT and not doubtful else "black"
        axes.text(
            0.02 * right,
            place,
            label,
            va="center",
            fontsize=7,
            color=ink,
            bbox={"facecolor": hatch["facecolor"], "edgecolor": "none", "pad": 1.0},
        )
    axes.axvline(1, color=_LINE, linewidth=1)
    axes.set_yticks(places, [f"{r['name']}  {r['m']}x{r['n']}x{r['k']}" for r in shown], fontsize=7)
    axes.set_xlim(0, right)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlabel("times as fast as the default; black: 95 % interval")
    more = f", the {len(shown)} with the most time" if len(rows) > len(shown) else ""
    axes.set_title(f"Gain of each product{more}{_on(device)}", fontsize=10)
    kinds = {"kept": Patch(color=_KEPT), "not kept": Patch(color=_OTHER)}
    if any(_doubtful(r) for r in shown):
        kinds["~ doubtful, not kept"] = Patch(facecolor="white", edgecolor=_DOUBT, hatch="///")
    figure.legend(kinds.values(), kinds.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return _png(figure)


def roofline(rows: Sequence[Mapping[str, str]], device: str = "") -> bytes:
    """Operations per second over operations per byte: the default as rings, kept products as dots."""
    figure, axes = _figure(8, 5)
    points = []
    for r in rows:
        if not r["us_reference"]:
            continue
        flops = 2.0 * int(r["m"]) * int(r["n"]) * int(r["k"]) * int(r["batch_count"])
        before = flops / float(r["us_reference"]) * 1e6
        after = flops / float(r["us_tuned"]) * 1e6 if r["kept"] == "True" else None
        if (intensity := float(r["arith_intensity"] or 0)) > 0:
            points.append((r["name"], intensity, before, after))
    fastest = max((max(b, a or 0.0) for _, _, b, a in points), default=0.0)
    unit, word = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")
    for _, intensity, before, after in points:
        if after is not None:
            axes.plot([intensity, intensity], [before / unit, after / unit], color=_OTHER, linewidth=0.8)
    axes.plot([p[1] for p in points], [p[2] / unit for p in points], "o", mfc="none", color="#707070", label="default")
    kept = [p for p in points if p[3] is not None]
    if kept:
        axes.plot(
            [p[1] for p in kept], [p[3] / unit for p in kept if p[3]], "o", color=_KEPT, markersize=4, label="tuned, kept"
        )
    peaks = next((v for name, v in PEAKS.items() if name in device), None)
    if points:
        best = [(p[1], max(p[2], p[3] or 0.0)) for p in points]
        bandwidth, rate = peaks or (max(y / x for x, y in best), max(y for _, y in best))
        words = f"data sheet of {device} (16-bit floats)" if peaks else "the best measured here"
        corners = [min(x for x, _ in best) / 2, rate / bandwidth, max(x for x, _ in best) * 2]
        ordered = sorted({x for x in corners if x > 0})
        axes.plot(ordered, [min(x * bandwidth, rate) / unit for x in ordered], color=_LINE, linewidth=1, label=words)
    _logarithmic(axes)
    _label_points(axes, [(n, x, max(b, a or 0.0) / unit) for n, x, b, a in points[:_LABELS]])
    axes.set_xlabel("arithmetic intensity, FLOP/byte")
    axes.set_ylabel(word)
    axes.set_title(f"Roofline{_on(device)}", fontsize=10)
    axes.grid(alpha=0.25, which="both", linewidth=0.5)
    axes.legend(fontsize=8, loc="lower right")
    return _png(figure)


def convergence(searches: Mapping[str, Sequence[float | None]], device: str = "") -> bytes:
    """The best time so far relative to the best in the end, over the number of candidates tried."""
    figure, axes = _figure(8, 4)
    curves = []
    for times in searches.values():
        best, curve = float("inf"), []
        for time in times:
            best = min(best, time if time is not None else best)
            curve.append(best)
        curves.append([x / best for x in curve])
    longest = max(map(len, curves), default=0)
    middle = [statistics.median(c[min(i, len(c) - 1)] for c in curves) for i in range(longest)]
    for number, curve in enumerate(curves):
        _steps(axes, curve, color=_OTHER, linewidth=0.7, label="one product" if not number else None)
    _steps(axes, middle, color=_KEPT, linewidth=2, label="median of all products")
    _logarithmic(axes)
    axes.set_xlabel("candidates tried")
    axes.set_ylabel("best time so far / best time in the end")
    axes.set_title(f"Progress of the search, {len(curves)} products{_on(device)}", fontsize=10)
    axes.legend(fontsize=8)
    return _png(figure)


def _logarithmic(axes: Any) -> None:
    """Logarithmic axes with plain numbers, also between the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def _steps(axes: Any, curve: Iterable[float], **style: Any) -> None:
    shown = [(i, y) for i, y in enumerate(curve, 1) if y < float("inf")]
    axes.plot([i for i, _ in shown], [y for _, y in shown], drawstyle="steps-post", **style)


def _label_points(axes: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Write names next to points; names of points at nearly the same place share one label."""
    from math import log10

    groups: dict[tuple[int, int], list[tuple[str, float, float]]] = {}
    for point in points:
        groups.setdefault((round(8 * log10(point[1])), round(8 * log10(point[2]))), []).append(point)
    for group in groups.values():
        names = [name for name, _, _ in group]
        text = ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")
        place = max(group, key=lambda point: point[2])
        axes.annotate(text, place[1:], xytext=(4, 4), textcoords="offset points", fontsize=6.5, color="#404040")


def _compared(row: Mapping[str, str]) -> bool:
    return row.get("compared", "True") == "True"


def _doubtful(row: Mapping[str, str]) -> bool:
    return row.get("doubtful") == "True"


def _on(device: str) -> str:
    return f" on {device}" if device else ""


def _figure(width: float, height: float) -> tuple[Any, Any]:
    # without pyplot: nothing global changes, and no window is opened
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, min(height, 14)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
