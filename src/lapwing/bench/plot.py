"""Pictures of a run, with matplotlib where it is installed. No window is opened and no global state is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .case import Row
from .environment import counted, environment
from .table import seconds_in_words

__all__ = ["COLOURS", "KINDS", "can_plot", "figure_of", "plain_numbers", "plot_rows", "plot_speedup", "small_print"]

KINDS = (".png", ".pdf", ".svg")
COLOURS = {
    "lapwing": "#d1495b",
    "numpy": "#4477aa",
    "scipy": "#66ccee",
    "torch": "#ee7733",
    "jax": "#228833",
    "tensorflow": "#aa3377",
    "cupy": "#997700",
    "floor": "#999999",
    # a library's other routines, near the colour of the first
    "cho_solve": "#99ddff",
    "lu_solve": "#99ddff",
    "torch_solve": "#ffaa66",
    "torch_inv": "#ffaa66",
    "jax_solve": "#77bb66",
    "jax_inv": "#77bb66",
    "gesvd": "#ffaa66",
    "gesvdj": "#cc9966",
    "gesvda": "#aa6633",
}


def can_plot() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def plot_rows(rows: Sequence[Row], path: Path, title: str) -> None:
    """Time per call over n, one line per contender. Beside it, where there are peers, how many times faster lapwing is."""
    rows = [r for r in rows if r.lapwing is not None]
    dtypes = list(dict.fromkeys(r.case.dtype for r in rows))
    across = 2 if any(r.peers for r in rows) else 1
    figure, axes = figure_of((5.5 * across + 0.5, 1.0 + 3.7 * len(dtypes)), len(dtypes), across)
    figure.suptitle(title, fontsize=13 if across == 2 else 11, fontweight="bold")
    for (times, *ratios), dtype in zip(axes, dtypes, strict=True):
        some = sorted((r for r in rows if r.case.dtype == dtype), key=lambda r: (r.case.n, r.case.batch))
        _draw_times(times, some, dtype)
        for axis in ratios:
            _draw_ratios(axis, some, dtype)
    small_print(figure, rows)
    figure.savefig(path, dpi=130)


def plot_speedup(rows: Sequence[Row], path: Path, title: str, rival: str = "the best peer") -> None:
    """Bars: how many times faster than its best peer lapwing is, by n and dtype."""
    rows = [r for r in rows if r.speedup is not None]
    dtypes = list(dict.fromkeys(r.case.dtype for r in rows))
    orders = sorted({r.case.n for r in rows})
    figure, axes = figure_of((8.0, 4.5), 1, 1)
    axis = axes[0][0]
    width = 0.8 / max(len(dtypes), 1)
    for place, (dtype, colour) in enumerate(zip(dtypes, ("#d1495b", "#4477aa", "#228833", "#ee7733"), strict=False)):
        heights = {r.case.n: r.speedup for r in rows if r.case.dtype == dtype}
        x = [orders.index(n) + (place - (len(dtypes) - 1) / 2) * width for n in heights]
        bars = axis.bar(x, list(heights.values()), width * 0.92, color=colour, label=dtype)
        axis.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    axis.axhline(1, color="#333333", linewidth=1)
    axis.set_xticks(range(len(orders)), [f"{n}" for n in orders])
    axis.set_xlabel("order n of each matrix")
    axis.set_ylabel(f"times faster than {rival} (1 = equal)")
    axis.set_title(title, fontsize=12, fontweight="bold")
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.12)
    axis.legend(frameon=False)
    small_print(figure, rows)
    figure.savefig(path, dpi=130)


def _draw_times(axis: Any, rows: Sequence[Row], dtype: str) -> None:
    names = list(dict.fromkeys(t.name for r in rows for t in (*r.ours, *r.peers)))
    for name in names:
        points = [(r.case.n, t.minimum) for r in rows for t in (*r.ours, *r.peers) if t.name == name]
        _line(axis, name, points, _is_ours(rows, name))
    floor = [(r.case.n, r.floor) for r in rows if r.floor]
    if floor:
        axis.plot(
            *zip(*floor, strict=True), color=COLOURS["floor"], linestyle=":", marker=".", label="floor: one copy of the input"
        )
    _over_n(axis, rows)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    plain_numbers(axis.yaxis, seconds_in_words, each=(1,) if high > 300 * low else (1, 2, 5))
    axis.set_ylabel("time per call")
    axis.set_title(f"{dtype}: time, lower is better", fontsize=11)
    axis.legend(frameon=False, fontsize=9)


def _draw_ratios(axis: Any, rows: Sequence[Row], dtype: str) -> None:
    for name in dict.fromkeys(t.name for r in rows for t in r.peers):
        points = [
            (r.case.n, t.minimum / r.lapwing.minimum) for r in rows for t in r.peers if t.name == name and r.lapwing is not None
        ]
        _line(axis, name, points, False)
    axis.axhline(1, color="#333333", linewidth=1)
    _over_n(axis, rows)
    axis.set_yscale("log")
    plain_numbers(axis.yaxis, lambda ratio: f"{ratio:g}x", each=(1, 2, 5))
    axis.set_ylabel("time of the peer / time of lapwing")
    axis.set_title(f"{dtype}: how many times faster lapwing is", fontsize=11)
    if any(r.peers for r in rows):
        axis.legend(frameon=False, fontsize=9)
    else:
        axis.text(0.5, 0.5, "no peer could be timed", ha="center", transform=axis.transAxes, color="#777777")


def _line(axis: Any, name: str, points: Sequence[tuple[float, float]], ours: bool) -> None:
    style = {"linewidth": 2.4, "markersize": 6, "zorder": 3} if ours else {"linewidth": 1.4, "markersize": 4}
    axis.plot(*zip(*points, strict=True), marker="o", color=COLOURS.get(name), label=name, **style)


def _over_n(axis: Any, rows: Sequence[Row]) -> None:
    orders = sorted({r.case.n for r in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(orders, [str(n) for n in orders], rotation=45 if len(orders) > 9 else 0)
    axis.minorticks_off()
    if len(orders) == 1:
        axis.set_xlim(orders[0] / 2, orders[0] * 2)
    batches = {r.case.batch for r in rows}
    axis.set_xlabel("order n" + (f", {counted(batches.pop(), 'matrix', 'matrices')} per call" if len(batches) == 1 else ""))


def plain_numbers(axis: Any, in_words: Callable[[float], str], each: tuple[int, ...]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, subs=each))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_words(value)))


def _is_ours(rows: Sequence[Row], name: str) -> bool:
    return any(t.name == name for r in rows for t in r.ours)


def small_print(figure: Any, rows: Sequence[Row]) -> None:
    """Where and when, below everything."""
    where = environment()
    on_gpu = where.gpus and any(r.case.device == "cuda" for r in rows)
    machine = where.gpus[0].name if on_gpu else f"{where.cpu} ({where.instructions})"
    text = f"{machine}; {counted(where.threads, 'CPU thread')}; {datetime.now(UTC).date().isoformat()}"
    figure.supxlabel(text, x=0.99, ha="right", fontsize=8, color="#777777")


def figure_of(size: tuple[float, float], down: int, across: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False)
    for axis in axes.flat:
        axis.grid(True, color="#dddddd", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
