"""Pictures of a run, drawn with matplotlib if it is installed. No window opens and no global state changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import log
from pathlib import Path
from typing import Any

from ..core.plan import bytes_in_words
from ..core.problem import DTYPES, spec
from ..ops.eigh import eigh, eigvalsh
from ..ops.explain import explain
from .case import Case, Report, Row, Timing
from .environment import Environment, counted, environment
from .map import OPERATIONS, PAR, name_of
from .table import seconds_in_words

KINDS = (".png", ".pdf", ".svg")
_COLOURS = {
    "lapwing": "#d1495b",
    "numpy": "#4477aa",
    "scipy": "#66ccee",
    "torch": "#ee7733",
    "jax": "#228833",
    "tensorflow": "#aa3377",
    "cupy": "#997700",
    "floor": "#999999",
    # a library's other routines have a colour near that of the first
    "cho_solve": "#99ddff",
    "lu_solve": "#99ddff",
    "torch_solve": "#ffaa66",
    "torch_inv": "#ffaa66",
    "gelsy": "#99ddff",
    "gels": "#ffaa66",
    "jax_solve": "#77bb66",
    "jax_inv": "#77bb66",
    "gesvd": "#ffaa66",
    "gesvdj": "#cc9966",
    "gesvda": "#aa6633",
    "eigsh": "#332288",
    "eigsh_inverse": "#88ccee",
    # lapwing's engines by name
    "batched": "#882255",
    "lapack": "#555555",
    "cusolver": "#117733",
    "krylov": "#000000",
    "tiled": "#999933",
}
# colours of the map: behind, at par, ahead; wrong answers, and cells without a peer or without a measurement
_RED, _WHITE, _GREEN, _WRONG, _UNKNOWN = (
    (0.78, 0.08, 0.12),
    (1.0, 1.0, 1.0),
    (0.05, 0.50, 0.20),
    (0.1, 0.1, 0.1),
    (0.91, 0.91, 0.93),
)
_DEEPEST = 8.0  # the ratio that has the full colour
_PALEST = 0.15  # the part of the full colour just beyond par, so that it is visible
_SHOWN = (1 / 8, 1 / 4, 1 / 2, 0.9, 1, 1.2, 2, 4, 8)  # in the legend
_BARS = ("#d1495b", "#4477aa", "#228833", "#ee7733")  # by dtype
_MARKS = {"cpu": "o", "cuda": "s"}
_LINES = {"cpu": "--", "cuda": "-"}
_ORDERS = tuple(2**k for k in range(8, 17))  # of the workspace picture: asking costs nothing


def can_plot() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def plot_rows(rows: Sequence[Row], path: Path, title: str) -> None:
    """Time per call over n, one line per contender. Next to it, if there are peers, how many times faster lapwing is."""
    rows = [r for r in rows if r.lapwing is not None]
    dtypes = list(dict.fromkeys(r.case.dtype for r in rows))
    across = 2 if any(r.peers for r in rows) else 1
    figure, axes = _figure((5.5 * across + 2.0, 1.0 + 3.7 * len(dtypes)), len(dtypes), across, title)
    for (times, *ratios), dtype in zip(axes, dtypes, strict=True):
        some = [r for r in rows if r.case.dtype == dtype]
        _draw_times(times, some, f"{dtype}: time")
        floor = sorted((r.case.n, r.floor) for r in some if r.floor)
        if floor:
            style = {"color": _COLOURS["floor"], "linestyle": ":", "marker": ".", "label": "floor: one copy of the input"}
            times.plot(*zip(*floor, strict=True), **style)
        for axis in ratios:
            _draw_ratios(axis, some, dtype)
    _finish(figure, rows, path)


def plot_eigh(rows: Sequence[Row], path: Path, title: str) -> None:
    """Time by device and method, a second picture for the GPU if there were runs on one, and the workspace of every engine."""
    rows = [r for r in rows if r.lapwing is not None]
    on_gpu = [r for r in rows if r.case.device == "cuda"]
    panels = 3 if on_gpu else 2
    figure, axes = _figure((6.0 * panels + 2.0, 5.0), 1, panels, title)
    _draw_times(axes[0][0], rows, "time by device and method", with_device=True)
    if on_gpu:
        _draw_times(axes[0][1], on_gpu, "GPU only", with_device=True)
    _draw_workspace(axes[0][-1], rows)
    _finish(figure, rows, path)


def plot_speedup(rows: Sequence[Row], path: Path, title: str, rival: str = "the best peer") -> None:
    """Bars: how many times faster than its best peer lapwing is, by n and dtype. A bar with ~ comes from unsteady times."""
    rows = [r for r in rows if r.speedup is not None]
    dtypes = list(dict.fromkeys(r.case.dtype for r in rows))
    orders = sorted({r.case.n for r in rows})
    figure, axes = _figure((9.5, 4.5), 1, 1, title)
    axis = axes[0][0]
    width = 0.8 / max(len(dtypes), 1)
    for place, (dtype, colour) in enumerate(zip(dtypes, _BARS, strict=False)):
        some = [r for r in rows if r.case.dtype == dtype]
        x = [orders.index(r.case.n) + (place - (len(dtypes) - 1) / 2) * width for r in some]
        ratios = [r.speedup or 0.0 for r in some]
        # bars start at 1, as a logarithmic axis has no zero
        bars = axis.bar(x, [ratio - 1 for ratio in ratios], width * 0.92, bottom=1, color=colour, label=dtype)
        words = [f"{ratio:.{1 if ratio < 9.95 else 0}f}" for ratio in ratios]
        axis.bar_label(
            bars, [f"{w}{'~' if r.unsteady else ''}" for w, r in zip(words, some, strict=True)], fontsize=8, padding=2
        )
        for bar, r in zip(bars, some, strict=True):
            bar.set_alpha(0.45 if r.unsteady else 1.0)
    axis.axhline(1, color="#333333", linewidth=1)
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis, lambda ratio: f"{ratio:g}x", (1, 2, 5))
    axis.set_xticks(range(len(orders)), [f"{n}" for n in orders])
    axis.set_xlabel("order n of each matrix")
    axis.set_ylabel(f"times faster than {rival} (1x = equal)")
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.12)
    note = "~ pale bars: the times vary by more than 2x between repeats" if any(r.unsteady for r in rows) else ""
    _finish(figure, rows, path, note)


def plot_map(report: Report, path: Path, title: str) -> None:
    """A field for each operation, dtype, order and batch: green where lapwing is ahead, white at par, red where behind."""
    rows = report.rows
    dtypes = [d for d in DTYPES if any(r.case.dtype == d for r in rows)]
    names = [name for name in OPERATIONS if any(name_of(r.case) == name for r in rows)]
    points = sorted({(r.case.batch == 1, r.case.n) for r in rows})
    batches = [max(r.case.batch for r in rows if (r.case.batch == 1, r.case.n) == point) for point in points]
    size = (3.6 + 0.46 * len(points), 0.9 + len(dtypes) * (0.75 + 0.26 * len(names)))
    figure, axes = _figure(size, len(dtypes), 1, title)
    for (axis,), dtype in zip(axes, dtypes, strict=True):
        fields = {(name_of(r.case), (r.case.batch == 1, r.case.n)): r for r in rows if r.case.dtype == dtype}
        _draw_map(axis, [[fields.get((name, point)) for point in points] for name in names])
        if 0 < batches.count(1) < len(batches):
            axis.axvline(len(batches) - batches.count(1) - 0.5, color="black", linewidth=2)
        labels = [f"{n}" if one else f"{n}\n({batch})" for (one, n), batch in zip(points, batches, strict=True)]
        axis.set_xticks(range(len(points)), labels, fontsize=7)
        axis.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=8)
        axis.set_title(dtype, fontsize=10, loc="left", fontweight="bold")
    axis.set_xlabel("order n (the most matrices in a batch); without brackets: one matrix", fontsize=8)
    for ratio in reversed(_SHOWN):
        words = "at par" if ratio == 1 else f"{ratio:.3g}x" + {_SHOWN[0]: " or less", _SHOWN[-1]: " or more"}.get(ratio, "")
        axes[0][0].scatter([], [], marker="s", s=70, color=[map_colour(ratio)], edgecolor="#999999", label=words)
    axes[0][0].scatter([], [], marker="s", s=70, color=[_UNKNOWN], label="not measured")
    _finish(figure, rows, path, "time of the best other library / time of lapwing", report.environment, report.date[:10])


def map_colour(ratio: float) -> tuple[float, float, float]:
    """White at par, deeper in the logarithm of the ratio: red where lapwing is slower, green where it is faster."""
    if PAR[0] <= ratio <= PAR[1]:
        return _WHITE
    depth = _PALEST + (1 - _PALEST) * min(1.0, abs(log(ratio)) / log(_DEEPEST))
    end = _RED if ratio < 1 else _GREEN
    return tuple(w + depth * (e - w) for w, e in zip(_WHITE, end, strict=True))  # type: ignore[return-value]


def _draw_map(axis: Any, fields: Sequence[Sequence[Row | None]]) -> None:
    drawn = [[_field(row) for row in line] for line in fields]
    axis.imshow([[colour for colour, _ in line] for line in drawn], aspect="auto", interpolation="nearest")
    for down, line in enumerate(drawn):
        for across, (colour, words) in enumerate(line):
            light = sum(colour) < 1.5
            axis.text(across, down, words, ha="center", va="center", fontsize=7, color="white" if light else "black")
    axis.grid(visible=False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _field(row: Row | None) -> tuple[tuple[float, float, float], str]:
    """The colour and the words of one field."""
    if row is not None and row.wrong:
        return _WRONG, "!"
    if row is None or row.speedup is None:
        return _UNKNOWN, ""
    ratio = row.speedup
    words = f"{ratio:.2f}" if ratio < 0.995 else f"{ratio:.2g}" if ratio < 99.5 else "99+"
    return map_colour(ratio), words


def workspace_of(case: Case, n: int) -> dict[str, int]:
    """Bytes of workspace by engine, not counting input and result: on the device for a GPU, on the host for the CPU."""
    shape = (n, n) if case.batch == 1 else (case.batch, n, n)
    subset = None
    if case.part is not None and case.count < n:
        # the same end of the spectrum at another order
        subset = slice(-case.count, None) if case.part[0] else slice(case.count)
    operation = eigh if case.operation == "eigh" else eigvalsh
    plan = explain(operation, spec(shape, case.dtype, case.device), subset=subset)
    chosen = () if plan.missing else ((plan.engine, plan.device_bytes, plan.host_bytes),)
    everything = [*chosen, *[(o.engine, o.device_bytes, o.host_bytes) for o in plan.others]]
    return {engine: device if case.device == "cuda" else host for engine, device, host in everything}


def _draw_times(axis: Any, rows: Sequence[Row], title: str, with_device: bool = False) -> None:
    several = with_device and len({r.case.dtype for r in rows}) > 1

    def label(row: Row, timing: Timing) -> str:
        name = f"lapwing: {timing.name}" if timing in row.ours and timing.name != "lapwing" else timing.name
        words = [row.case.device if with_device else "", name, row.case.dtype if several else ""]
        return " ".join(word for word in words if word)

    _draw_lines(axis, [(r, t, t.minimum, label(r, t)) for r in rows for t in (*r.ours, *r.peers)], with_device)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    _plain_numbers(axis.yaxis, seconds_in_words, (1,) if high > 300 * low else (1, 2, 5))
    axis.set_ylabel("time per call")
    axis.set_title(f"{title}, lower is better", fontsize=11)
    _over_n(axis, [r.case for r in rows])


def _draw_ratios(axis: Any, rows: Sequence[Row], dtype: str) -> None:
    timed = [(r, t, t.minimum / r.lapwing.minimum, t.name) for r in rows for t in r.peers if r.lapwing is not None]
    _draw_lines(axis, timed)
    axis.axhline(1, color="#333333", linewidth=1)
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis, lambda ratio: f"{ratio:g}x", (1, 2, 5))
    axis.set_ylabel("time of the peer / time of lapwing")
    axis.set_title(f"{dtype}: how many times faster lapwing is", fontsize=11)
    _over_n(axis, [r.case for r in rows])
    if not timed:
        axis.text(0.5, 0.5, "no peer could be timed", ha="center", transform=axis.transAxes, color="#777777")


def _draw_lines(axis: Any, points: Sequence[tuple[Row, Timing, float, str]], with_device: bool = False) -> None:
    """One line for each label; lapwing's own is thick."""
    for label in dict.fromkeys(p[3] for p in points):
        some = sorted((p for p in points if p[3] == label), key=lambda p: p[0].case.n)
        row, timing = some[0][:2]
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.4}
        if timing in row.ours:
            style |= {"linewidth": 2.4, "markersize": 6, "zorder": 3} if timing.name == "lapwing" else {}
        if with_device:
            style |= {"marker": _MARKS[row.case.device], "linestyle": _LINES[row.case.device]}
        axis.plot([p[0].case.n for p in some], [p[2] for p in some], color=_COLOURS.get(timing.name), label=label, **style)


def _draw_workspace(axis: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    orders = sorted({*[r.case.n for r in rows], *_ORDERS})
    cases = list({(r.case.device, r.case.dtype): r.case for r in rows}.values())
    several = len({c.dtype for c in cases}) > 1
    for case in cases:
        lines: dict[str, list[tuple[int, int]]] = {}
        for n in orders:
            for engine, count in workspace_of(case, n).items():
                if count:
                    lines.setdefault(engine, []).append((n, count))
        where = "device" if case.device == "cuda" else "host"
        style = {"marker": _MARKS[case.device], "linestyle": _LINES[case.device], "markersize": 4}
        for engine, points in lines.items():
            label = f"workspace: {engine}, {where}{f' {case.dtype}' if several else ''}"
            axis.plot(*zip(*points, strict=True), color=_COLOURS.get(engine), label=label, **style)
    matrix = [n * n * cases[0].problem.itemsize for n in orders]
    axis.plot(orders, matrix, color=_COLOURS["floor"], linestyle=":", label=f"size of one {cases[0].dtype} matrix")
    _over_n(axis, cases, orders)
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_locator(LogLocator(base=2.0**5))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda count, _: bytes_in_words(count)))
    axis.set_ylabel("workspace, not counting input and result")
    axis.set_title("workspace, as lapwing.explain says", fontsize=11)


def _over_n(axis: Any, cases: Sequence[Case], orders: Sequence[int] = ()) -> None:
    orders = orders or sorted({c.n for c in cases})
    axis.set_xscale("log", base=2)
    axis.set_xticks(orders, [str(n) for n in orders], rotation=45 if len(orders) > 8 else 0)
    axis.minorticks_off()
    if len(orders) == 1:
        axis.set_xlim(orders[0] / 2, orders[0] * 2)
    batches = {c.batch for c in cases}
    axis.set_xlabel("order n" + (f", {counted(batches.pop(), 'matrix', 'matrices')} per call" if len(batches) == 1 else ""))


def _plain_numbers(axis: Any, in_words: Callable[[float], str], each: tuple[int, ...]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, subs=each))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_words(value)))


def _figure(size: tuple[float, float], down: int, across: int, title: str) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13 if across > 1 else 11, fontweight="bold")
    axes = figure.subplots(down, across, squeeze=False)
    for axis in axes.flat:
        axis.grid(True, color="#dddddd", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _finish(
    figure: Any, rows: Sequence[Row], path: Path, note: str = "", where: Environment | None = None, date: str = ""
) -> None:
    """One legend outside the axes, so that it covers no curve; below everything the machine and the date."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), loc="outside right upper", frameon=False, fontsize=9)
    where = where or environment()
    on_gpu = where.gpus and any(r.case.device == "cuda" for r in rows)
    machine = where.gpus[0].name if on_gpu else f"{where.cpu} ({where.instructions})"
    words = [note, machine, counted(where.threads, "CPU thread"), date or datetime.now(UTC).date().isoformat()]
    figure.supxlabel("; ".join(word for word in words if word), x=0.99, ha="right", fontsize=8, color="#777777")
    figure.savefig(path, dpi=130)
