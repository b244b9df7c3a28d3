"""The report of a tuning run: report.md with pictures next to it, and report.html in one file."""

from __future__ import annotations

import base64
import csv
import html
import importlib.util
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import read_json, write_atomic
from ..workdir import Workdir
from . import pictures
from .results import results_folder

_log = logging.getLogger("lapwing")
_NAMED = 10  # names of products in one sentence
_TITLES = {
    "uplift": "Gain of each product",
    "roofline": "Roofline",
    "convergence": "Progress of the search",
}
_COLUMNS = {
    "name": "name",
    "product": "m x n x k",
    "us_reference": "default us",
    "us_vendor": "best vendor us",
    "us_tuned": "tuned us",
    "ratio": "times faster",
    "interval": "interval",
    "pct_of_total": "% of time",
    "by": "by",
    "kept": "kept",
    "reason": "why",
}


def write(workdir: Any) -> Path:
    """Write ``results/report.md`` and ``results/report.html`` for a workdir that was compared.

    Without matplotlib the report has no pictures, and says so.

    Returns
    -------
    Path
        The HTML file, which needs no other file.
    """
    folder = results_folder(workdir)
    try:
        rows = list(csv.DictReader((folder / "raw_results.csv").read_text().splitlines()))
        metrics = json.loads((folder / "metrics.json").read_text())
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"report: there are no results to report: {error}\nhint: run lapwing tune compare W first"
        ) from None
    root = folder.parent
    environment = _environment(root)
    try:
        drawn = _draw(rows, _searches(root), environment.get("device", ""))
        markdown, page = _markdown(rows, metrics, environment, list(drawn)), _html(rows, metrics, environment, drawn)
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # cut off, or written by another program
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"report: the results in {folder} are damaged: {what}\nhint: run lapwing tune compare W again"
        ) from error
    for name, png in drawn.items():
        (folder / f"{name}.png").write_bytes(png)
    write_atomic(folder / "report.md", markdown)
    write_atomic(folder / "report.html", page)
    return folder / "report.html"


def _draw(rows: Sequence[Mapping[str, str]], searches: Mapping[str, Any], device: str) -> dict[str, bytes]:
    if importlib.util.find_spec("matplotlib") is None:
        _log.warning("report: no pictures, because matplotlib is not installed (pip install matplotlib)")
        return {}
    drawn = {}
    if rows:
        drawn = {"uplift": pictures.uplift(rows, device), "roofline": pictures.roofline(rows, device)}
    if searches:
        drawn["convergence"] = pictures.convergence(searches, device)
    return drawn


def _searches(root: Path) -> dict[str, list[float | None]]:
    """Times of the trials of each product, in the order in which they were made; None for a trial that failed."""
    searches: dict[str, list[float | None]] = {}
    folder = Workdir(root)
    for path in sorted((root / "trials").glob("*.jsonl")):
        times = [trial.time for trial in folder.read_trials(path.stem) if trial.stage == "screen"]
        if any(t is not None for t in times):
            searches[path.stem] = times
    return searches


def _environment(root: Path) -> dict[str, str]:
    try:
        manifest = read_json(root / "final" / "manifest.json")
        fields: dict[str, str] = {}
        for of_backend in manifest["environment"].values():
            fields |= {str(k): str(v) for k, v in of_backend.items()}
        return fields
    except (OSError, ValueError, KeyError, AttributeError):
        return {}


def _sentences(metrics: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[str]:
    w, v = metrics["weighted"], metrics.get("weighted_vendor")
    every, kept, vendor = metrics["all_products"], metrics["kept_products"], metrics["vendor_products"]
    missing = metrics.get("unmeasured") or {"products": 0}
    of = "the products that were measured" if missing["products"] else "all products"
    calls, products = metrics.get("coverage_calls_pct"), metrics.get("products") or metrics["attempted"]
    lines = [
        f"{metrics['kept']} of {products} products have a faster kernel. The products to tune take "
        f"{metrics['coverage_pct']:.1f} % of the time of {of}, the kept ones {metrics['kept_coverage_pct']:.1f} %"
        + (f"; the products to tune have {calls:.1f} % of all calls." if calls is not None else "."),
        *_unmeasured(missing),
        *_listed(rows, "compared", "False", "{} products were not compared, and stay as they are"),
        *_listed(rows, "doubtful", "True", "~{} gains cannot be believed, and were not kept"),
        f"Weighted by calls, the products take {w['time_reduction_pct']:.2f} % less time: {w['speedup']:.3f} times as fast.",
    ]
    if every["n"]:
        lines.append(f"All products: {_pct(every)}.")
    if kept["n"]:
        lines.append(f"Kept products: {_pct(kept)}; the largest gain is {kept['max_uplift_pct']:.1f} %.")
    if v is not None and vendor["n"]:
        lines.append(
            f"Against the best vendor algorithm ({vendor['n']} products): {_pct(vendor)}; weighted by calls "
            f"{v['time_reduction_pct']:.2f} % less time, {v['speedup']:.3f} times as fast."
        )
    for other in sorted({r["arithmetic"] for r in rows if r.get("arithmetic")}):
        names = ", ".join(r["name"] for r in rows if r.get("arithmetic") == other)
        lines.append(f"Timed and validated in {other}, not in the types of the log: {names}.")
    return lines


def _listed(rows: Sequence[Mapping[str, str]], column: str, value: str, text: str) -> list[str]:
    """One sentence that names the products with this value, and why; none when there are none."""
    chosen = [r for r in rows if r.get(column) == value]
    names = ", ".join(f"{r['name']} ({r['reason']})" for r in chosen[:_NAMED])
    more = f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else ""
    return [f"{text.format(len(chosen))}: {names}{more}."] if chosen else []


def _unmeasured(missing: Mapping[str, Any]) -> list[str]:
    if not missing["products"]:
        return []
    named = [f"{u['product']} ({u['count']} calls: {u['reason']})" for u in missing["named"][:_NAMED]]
    more = f" and {len(missing['named']) - _NAMED} more" if len(missing["named"]) > _NAMED else ""
    return [
        f"{missing['calls_pct']:.1f} % of the calls were never measured, and no share of the time includes them: "
        f"{', '.join(named)}{more}."
    ]


def _pct(uplift: Mapping[str, float]) -> str:
    return f"{uplift['mean_uplift_pct']:.2f} % faster on average, {uplift['geomean_uplift_pct']:.2f} % as geometric mean"


def _table(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    table = []
    for r in rows:
        extra = {"product": f"{r['m']} x {r['n']} x {r['k']}" + (f" x{r['batch_count']}" if r["batch_count"] != "1" else "")}
        extra["interval"] = f"{_number(r['ratio_low'])} to {_number(r['ratio_high'])}" if r["ratio_low"] else ""
        extra["by"] = ", ".join(filter(None, (r["backend"], r.get("arithmetic"))))
        extra["kept"] = "yes" if r["kept"] == "True" else "no"
        whole = dict(r) | extra
        whole["ratio"] = ("~" if r.get("doubtful") == "True" else "") + _number(r["ratio"])
        table.append([_number(whole[name]) for name in _COLUMNS])
    return table


def _number(text: str) -> str:
    try:
        value = float(text)
        return f"{value:.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
    except ValueError:
        return text


def _markdown(rows: Sequence[Mapping[str, str]], metrics: Any, environment: Mapping[str, str], drawn: list[str]) -> str:
    lines = ["# Tuned products", "", *(f"- {s}" for s in _sentences(metrics, rows)), ""]
    if environment:
        lines += ["Measured with " + ", ".join(f"{k} {_cell(v)}" for k, v in sorted(environment.items())) + ".", ""]
    for name in drawn:
        lines += [f"## {_TITLES[name]}", "", f"![{_TITLES[name]}]({name}.png)", ""]
    if not drawn:
        lines += ["There are no pictures: matplotlib is not installed, or there is nothing to draw.", ""]
    lines += ["## Products", "", f"| {' | '.join(_COLUMNS.values())} |", "|" + "---|" * len(_COLUMNS)]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in _table(rows)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}img{max-width:100%}.no{color:#888}"
)


def _html(rows: Sequence[Mapping[str, str]], metrics: Any, environment: Mapping[str, str], drawn: Mapping[str, bytes]) -> str:
    e = html.escape
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Tuned products</title>", f"<style>{_STYLE}</style>"]
    parts += ["<h1>Tuned products</h1><ul>", *(f"<li>{e(s)}</li>" for s in _sentences(metrics, rows)), "</ul>"]
    if environment:
        parts.append("<p>Measured with " + ", ".join(f"{e(k)} {e(v)}" for k, v in sorted(environment.items())) + ".</p>")
    for name, png in drawn.items():
        data = base64.b64encode(png).decode()
        parts.append(f'<h2>{e(_TITLES[name])}</h2><img alt="{e(_TITLES[name])}" src="data:image/png;base64,{data}">')
    if not drawn:
        parts.append("<p>There are no pictures: matplotlib is not installed, or there is nothing to draw.</p>")
    parts.append("<h2>Products</h2><table><tr>" + "".join(f"<th>{e(c)}</th>" for c in _COLUMNS.values()) + "</tr>")
    for row, cells in zip(rows, _table(rows), strict=True):
        kind = "" if row["kept"] == "True" else " class=no"
        parts.append(f"<tr{kind}>" + "".join(f"<td>{e(x)}</td>" for x in cells) + "</tr>")
    return "\n".join([*parts, "</table></html>"]) + "\n"
