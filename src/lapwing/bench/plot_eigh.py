"""Pictures of eigenvalue runs: time by device and method, the GPU alone, and the workspace of every engine over n."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.plan import bytes_in_words
from ..core.problem import spec
from ..ops.eigh import eigh, eigvalsh
from ..ops.explain import explain
from .case import Case, Row
from .plot import COLOURS, figure_of, plain_numbers, small_print
from .table import seconds_in_words

__all__ = ["plot_eigh", "workspace_of"]

_MARKS = {"cpu": "o", "cuda": "s"}
_LINES = {"cpu": "--", "cuda": "-"}
_OTHERS = {"eigsh": "#332288", "eigsh_inverse": "#88ccee"}
_ENGINES = {"batched": "#882255", "lapack": "#555555", "cusolver": "#117733", "krylov": "#000000", "tiled": "#999933"}
_ORDERS = tuple(2**k for k in range(8, 17))  # of the workspace picture: asking costs nothing


def plot_eigh(rows: Sequence[Row], path: Path, title: str) -> None:
    """Three pictures side by side; the one of the GPU alone where something ran on a GPU."""
    rows = [r for r in rows if r.lapwing is not None]
    on_gpu = [r for r in rows if r.case.device == "cuda"]
    panels = 3 if on_gpu else 2
    figure, axes = figure_of((6.0 * panels, 5.0), 1, panels)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    _draw_times(axes[0][0], rows, "time by device and method")
    if on_gpu:
        _draw_times(axes[0][1], on_gpu, "GPU only")
    _draw_workspace(axes[0][-1], rows)
    small_print(figure, rows)
    figure.savefig(path, dpi=130)


def workspace_of(case: Case, n: int) -> dict[str, int]:
    """Bytes of workspace beside input and result by engine, on the device for a GPU and on the host for the CPU."""
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


def _draw_times(axis: Any, rows: Sequence[Row], title: str) -> None:
    lines: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    ours = set()
    for row in rows:
        for timing in (*row.ours, *row.peers):
            key = row.case.device, row.case.dtype, timing.name
            lines.setdefault(key, []).append((row.case.n, timing.minimum))
            if timing in row.ours:
                ours.add(key)
    several = len({dtype for _, dtype, _ in lines}) > 1
    for key, points in lines.items():
        device, dtype, name = key
        label = f"{device} {f'lapwing: {name}' if key in ours and name != 'lapwing' else name}{f' {dtype}' if several else ''}"
        colour = {**COLOURS, **_ENGINES, **_OTHERS}.get(name)
        strong = {"linewidth": 2.6, "zorder": 3} if name == "lapwing" else {"linewidth": 1.4}
        axis.plot(
            *zip(*sorted(points), strict=True),
            marker=_MARKS[device],
            linestyle=_LINES[device],
            markersize=5,
            color=colour,
            label=label,
            **strong,
        )
    _over_n(axis, sorted({r.case.n for r in rows}))
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    plain_numbers(axis.yaxis, seconds_in_words, each=(1,) if high > 300 * low else (1, 2, 5))
    axis.set_ylabel("time per call")
    axis.set_title(f"{title}, lower is better", fontsize=11)
    axis.legend(frameon=False, fontsize=8)


def _draw_workspace(axis: Any, rows: Sequence[Row]) -> None:
    orders = sorted({*[r.case.n for r in rows], *_ORDERS})
    cases = list({(r.case.device, r.case.dtype): r.case for r in rows}.values())
    several = len({c.dtype for c in cases}) > 1
    for case in cases:
        lines: dict[str, list[tuple[int, int]]] = {}
        for n in orders:
            for engine, count in workspace_of(case, n).items():
                lines.setdefault(engine, []).append((n, count))
        for engine, points in lines.items():
            if not any(count for _, count in points):
                continue
            where = "device" if case.device == "cuda" else "host"
            axis.plot(
                *zip(*[p for p in points if p[1]], strict=True),
                marker=_MARKS[case.device],
                linestyle=_LINES[case.device],
                markersize=4,
                color=_ENGINES.get(engine),
                label=f"{engine}, {where}{f' {case.dtype}' if several else ''}",
            )
    matrix = [(n, n * n * cases[0].problem.itemsize) for n in orders]
    axis.plot(*zip(*matrix, strict=True), color=COLOURS["floor"], linestyle=":", label=f"one {cases[0].dtype} matrix")
    _over_n(axis, orders)
    axis.set_yscale("log", base=2)
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.yaxis.set_major_locator(LogLocator(base=2.0**5))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda count, _: bytes_in_words(count)))
    axis.set_ylabel("workspace beside input and result")
    axis.set_title("workspace, as lapwing.explain says", fontsize=11)
    axis.legend(frameon=False, fontsize=8)


def _over_n(axis: Any, orders: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(orders, [str(n) for n in orders], rotation=45 if len(orders) > 6 else 0)
    axis.minorticks_off()
    if len(orders) == 1:
        axis.set_xlim(orders[0] / 2, orders[0] * 2)
    axis.set_xlabel("order n")
