"""Interactive charts of the performance page, made from the raw files in benchmarks/results.

A page names a chart by a comment, ``<!-- chart: map-h200 -->``, which a reader of the plain Markdown does not see. A picture
on the next line is for that reader: the chart replaces it. The figures are plain dictionaries that Plotly's JavaScript draws;
Plotly comes from its Python package at build time, and only pages with a chart load it.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
DTYPES = ("float32", "float64", "complex64", "complex128")
Figure = dict[str, Any]


def latest(name: str) -> dict[str, Any]:
    """The newest file of this name: its date is the end of the file's name."""
    files = sorted(RESULTS.glob(f"{name}-20??-??-??.json"))
    if not files:
        raise FileNotFoundError(f"benchmarks/results has no file {name}-DATE.json")
    return json.loads(files[-1].read_text())


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-4 else f"{seconds * 1e3:.3g} ms"


def operation(row: dict[str, Any]) -> str:
    name, assume = row["operation"], row.get("assume", "general")
    return name if assume in ("general", None) else f"{name} {assume}"


def the_map(name: str) -> Figure:
    """A grid for each dtype: operations down, orders and batches across, and how many times faster lapwing is as colour."""
    rows = latest(name)["rows"]
    traces, buttons = [], []
    dtypes = [d for d in DTYPES if any(r["dtype"] == d for r in rows)]
    for dtype in dtypes:
        cells = {}
        for row in rows:
            if row["dtype"] == dtype and row.get("speedup"):
                cells[operation(row), (row["batch"] > 1, row["n"], row["batch"])] = row
        down = sorted({key[0] for key in cells}, reverse=True)
        across = sorted({key[1] for key in cells})
        colour, text = [], []
        for name_of_row in down:
            line = [cells.get((name_of_row, at)) for at in across]
            colour.append([None if r is None else max(-2.0, min(5.0, math.log2(r["speedup"]))) for r in line])
            text.append(["" if r is None else hover(r, r["speedup"]) for r in line])
        traces.append(
            {
                "type": "heatmap",
                "x": [f"{n}" if not many else f"{n} ({batch})" for many, n, batch in across],
                "y": down,
                "z": colour,
                "text": text,
                "hovertemplate": "%{y}, %{x}<br>%{text}<extra></extra>",
                "zmin": -2,
                "zmax": 5,
                "colorscale": [[0, "#b2182b"], [2 / 7, "#f2f2f2"], [3 / 7, "#9fd8b0"], [1, "#00682f"]],
                "colorbar": {
                    "tickvals": [-2, -1, 0, 1, 2, 3, 4, 5],
                    "ticktext": ["¼x", "½x", "1x", "2x", "4x", "8x", "16x", "32x"],
                },
                "visible": dtype == dtypes[0],
                "xgap": 1,
                "ygap": 1,
            }
        )
        buttons.append({"label": dtype, "method": "update", "args": [{"visible": [d == dtype for d in dtypes]}]})
    layout = {
        "height": 480,
        "margin": {"l": 110, "t": 50, "b": 90},
        "xaxis": {"type": "category", "title": {"text": "order (batch)"}, "tickangle": -60},
        "updatemenus": [{"buttons": buttons, "direction": "right", "type": "buttons", "x": 0, "y": 1.14, "xanchor": "left"}],
    }
    return {"data": traces, "layout": layout}


def ratio(row: dict[str, Any]) -> float:
    """Over lapwing's fastest engine of that run: the one that is chosen today, whatever was chosen during the run."""
    return min(p["minimum"] for p in row["peers"]) / min(r["minimum"] for r in row["lapwing"])


def hover(row: dict[str, Any], times: float) -> str:
    ours = min(r["minimum"] for r in row["lapwing"])
    best = {p["name"]: p["minimum"] for p in row["peers"]}.get(row["best_peer"])
    peer = f", {row['best_peer']} {milliseconds(best)}" if best else ""
    return f"{times:.3g}x: lapwing {milliseconds(ours)}{peer}"


def batches(name: str) -> Figure:
    """How many times faster over the order of the matrices, a line for each dtype."""
    rows = latest(name)["rows"]
    traces = []
    for dtype in DTYPES:
        best: dict[int, dict[str, Any]] = {}
        for row in rows:
            if row["dtype"] != dtype or not row["peers"] or row["batch"] == 1:
                continue
            if row["n"] not in best or row["batch"] > best[row["n"]]["batch"]:
                best[row["n"]] = row
        if best:
            orders = sorted(best)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": dtype,
                    "x": orders,
                    "y": [ratio(best[n]) for n in orders],
                    "text": [f"{best[n]['batch']} matrices<br>{hover(best[n], ratio(best[n]))}" for n in orders],
                    "hovertemplate": "n = %{x}, %{text}<extra>%{fullData.name}</extra>",
                }
            )
    layout = {
        "height": 420,
        "margin": {"t": 60},
        "xaxis": {"type": "log", "title": {"text": "order n"}, "dtick": math.log10(2), "tickformat": "d"},
        "yaxis": {
            "type": "log",
            "title": {"text": "over the best other"},
            "tickvals": [0.5, 1, 2, 5, 10, 20, 50, 100],
            "ticksuffix": "x",
        },
        "legend": {"orientation": "h", "y": 1.12},
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


CHARTS = {
    "map-h200": lambda: the_map("map-h200"),
    "map-cpu-epyc": lambda: the_map("map-cpu-epyc"),
    "map-cpu-xeon": lambda: the_map("map-cpu-xeon"),
    "batches-h200": lambda: batches("h200-batched"),
}


def insert(markdown: str, static: str) -> str:
    """The page with a drawing in place of each comment that names a chart; ``static`` is where the scripts are."""

    def draw(found: re.Match[str]) -> str:
        figure = json.dumps(CHARTS[found[1]](), separators=(",", ":")).replace("</", "<\\/")
        place = f'<div class="chart" id="chart-{found[1]}"></div>'
        return f'\n```{{raw}} html\n{place}\n<script type="application/json" data-chart="{found[1]}">{figure}</script>\n```\n'

    changed = re.sub(r"<!-- chart: ([a-z0-9-]+) -->(?:\n!\[[^\n]*)?", draw, markdown)
    if changed == markdown:
        return markdown
    scripts = "".join(f'<script src="{static}{name}"></script>\n' for name in ("plotly.min.js", "charts.js"))
    return f"{changed}\n```{{raw}} html\n{scripts}```\n"


def plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
