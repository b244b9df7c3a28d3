"""The report's pictures: uplift by product, roofline, and how the search came down. They need matplotlib."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["convergence", "roofline", "uplift"]

# bytes and operations a second from the data sheets; the rate is that of dense 16-bit floats
_PEAKS = {"H200": (4.8e12, 989e12), "H100": (3.35e12, 989e12), "A100": (2.0e12, 312e12), "B200": (8.0e12, 2250e12)}
_KEPT, _OTHER, _LINE = "#2166ac", "#b0b0b0", "#d6604d"
_MOST = 40  # bars


def uplift(rows: Sequence[Mapping[str, str]]) -> bytes:
    """Bars of default / tuned with their interval, the product with the most time on top."""
    shown = list(rows)[:_MOST]
    figure, axes = _figure(8, 1.2 + 0.28 * len(shown))
    places = list(range(len(shown)))[::-1]
    ratios = [float(r["ratio"] or 1) for r in shown]
    low = [max(0.0, x - float(r["ratio_low"] or x)) for x, r in zip(ratios, shown, strict=True)]
    high = [max(0.0, float(r["ratio_high"] or x) - x) for x, r in zip(ratios, shown, strict=True)]
    colours = [_KEPT if r["kept"] == "True" else _OTHER for r in shown]
    axes.barh(places, ratios, color=colours, xerr=[low, high], ecolor="black", error_kw={"linewidth": 0.8})
    axes.axvline(1, color=_LINE, linewidth=1)
    axes.set_yticks(places, [f"{r['name']}  {r['m']}x{r['n']}x{r['k']}" for r in shown], fontsize=7)
    axes.set_xlim(0, 1.3 * max([*ratios, 1.0]))  # one long interval would leave no room for the bars
    axes.set_xlabel("times as fast as the default (blue: kept)")
    return _png(figure)


def roofline(rows: Sequence[Mapping[str, str]], device: str = "") -> bytes:
    """Operations a second over operations a byte; default as rings, tuned as dots."""
    figure, axes = _figure(8, 5)
    points = []
    for r in rows:
        flops = 2.0 * int(r["m"]) * int(r["n"]) * int(r["k"]) * int(r["batch_count"])
        best = float(r["us_tuned"] if r["kept"] == "True" else r["us_reference"])
        points.append((float(r["arith_intensity"] or 0), flops / float(r["us_reference"]) * 1e6, flops / best * 1e6))
    points = [p for p in points if p[0] > 0]
    for intensity, before, after in points:
        axes.plot([intensity, intensity], [before, after], color=_OTHER, linewidth=0.8)
    axes.plot([p[0] for p in points], [p[1] for p in points], "o", mfc="none", color=_OTHER, label="default")
    axes.plot([p[0] for p in points], [p[2] for p in points], "o", color=_KEPT, markersize=4, label="tuned")
    peaks = next((v for name, v in _PEAKS.items() if name in device), None)
    if points:
        bandwidth, rate = peaks or (max(p[2] / p[0] for p in points), max(p[2] for p in points))
        words = f"data sheet of {device}" if peaks else "the best seen here"
        wide = [min(p[0] for p in points) / 2, bandwidth and rate / bandwidth, max(p[0] for p in points) * 2]
        ordered = sorted({x for x in wide if x > 0})
        axes.plot(ordered, [min(x * bandwidth, rate) for x in ordered], color=_LINE, linewidth=1, label=words)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations / byte")
    axes.set_ylabel("operations / second")
    axes.legend(fontsize=8)
    return _png(figure)


def convergence(searches: Mapping[str, Sequence[float | None]]) -> bytes:
    """The best so far over the best in the end, by the number of candidates tried."""
    figure, axes = _figure(8, 4)
    curves = []
    for times in searches.values():
        best, curve = float("inf"), []
        for time in times:
            best = min(best, time if time is not None else best)
            curve.append(best)
        curves.append([x / best for x in curve])
    for curve in curves:
        shown = [(i, y) for i, y in enumerate(curve, 1) if y < float("inf")]
        axes.plot([i for i, _ in shown], [y for _, y in shown], color=_OTHER, linewidth=0.7, drawstyle="steps-post")
    longest = max(map(len, curves), default=0)
    middle = [statistics.median(c[min(i, len(c) - 1)] for c in curves) for i in range(longest)]
    shown = [(i, y) for i, y in enumerate(middle, 1) if y < float("inf")]
    axes.plot([i for i, _ in shown], [y for _, y in shown], color=_KEPT, linewidth=2, label="median over products")
    axes.set_xscale("log")
    axes.set_xlabel("candidates tried")
    axes.set_yscale("log")
    axes.set_ylabel("best so far / best")
    axes.legend(fontsize=8)
    return _png(figure)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    # without pyplot: nothing global changes, and no window is opened
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, min(height, 14)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _png(figure: Any) -> bytes:
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=110)
    return made.getvalue()
