"""Write the tables and pictures of docs/performance.md, and the tables of docs/insitu.md, from benchmarks/results.

    python docs/make_performance.py

Only the lines between the markers of a page are replaced.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lapwing import planner
from lapwing.bench.map import map_title, merge, name_of, red
from lapwing.bench.plot import plot_map
from lapwing.bench.report import read_report
from lapwing.core.problem import Problem

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
INSITU_PAGE = ROOT / "docs" / "insitu.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
GPU = "NVIDIA H200"


def main() -> None:
    batched, single = load("h200-batched"), load("h200-single")
    cpu, frameworks = load("cpu-x86-64-v4"), load("h200-frameworks")
    insitu = {"insitu-cpu": insitu_table(load("insitu-cpu")), "insitu-gpu": insitu_gpu_table(load("h200-insitu"))}
    solve_gpu = [load("h200-solve-2"), load("h200-solve-hard")]
    eigh, spectra, whole = [load("h200-eigh-2"), load("h200-eigh-float64")], load("h200-spectra"), load("h200-eigh-whole")
    newer = load("h200-svd")["rows"]
    tables = {
        "gpu-eigh": eigh_table(
            [row for data in eigh for row in data["rows"] if row.get("part") or row["n"] < 150],
            ("cusolver", "torch", "jax", "cupy"),
        ),
        "gpu-eigh-whole": whole_table(whole["rows"]),
        "gpu-eigh-grid": grid_table(whole["grid"]),
        "cpu-eigh": eigh_table(load("cpu-eigh")["rows"], ("scipy", "eigsh", "numpy", "torch", "jax")),
        "gpu-batched": gpu_table(batched),
        "gpu-single": gpu_table(single),
        "gpu-frameworks": frameworks_table(frameworks),
        "gpu-blocks": blocks_table(load("h200-blocks")["batches"]),
        "gpu-eig": against_torch(spectra["eig"], ("dtype", "batch", "n"), "eig"),
        "gpu-eigh-few": few_table(load("h200-eigh-few")["rows"]),
        "gpu-svd": against_torch(svd_rows(spectra["svd"], newer), ("operation", "dtype", "batch", "m", "n"), "lapwing"),
        "gpu-svd-batches": gesvda_table(newer),
        "gpu-part": part_table(spectra, whole["rows"]),
        "gpu-solve": solve_table([row for data in solve_gpu for row in data["rows"]]),
        "cpu": cpu_table(cpu),
        "cpu-solve": solve_table(
            [row for row in load("cpu-solve-x86")["rows"] if row["batch"] > 1] + load("cpu-solve-one")["rows"]
        ),
        "insitu-cpu": insitu["insitu-cpu"],
        "gpu-tune": tune_table(load("h200-tune-2")),
        "map-h200": map_section("h200", "One H200"),
        "map-cpu-epyc": map_section("cpu-epyc", "Two threads of an AMD CPU"),
        "map-cpu-xeon": map_section("cpu-xeon", "Two threads of an Intel CPU"),
    }
    PAGE.write_text(filled(PAGE.read_text(), tables))
    INSITU_PAGE.write_text(filled(INSITU_PAGE.read_text(), insitu))
    draw_gpu(batched, single)
    draw_start(batched)
    draw_eigh([row for data in eigh for row in data["rows"]])
    draw_cpu(cpu)


def filled(text: str, tables: dict[str, str]) -> str:
    """The text with each table between its marker lines."""
    for name, table in tables.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        assert re.search(pattern, text, re.S), name
        text = re.sub(pattern, lambda m, table=table: m[1] + table + m[2], text, flags=re.S)
    return text


def load(name: str) -> dict[str, Any]:
    return json.loads(max(RESULTS.glob(f"{name}*.json")).read_text())


def ours(row: dict[str, Any]) -> tuple[str, float]:
    """The engine that lapwing chooses for this problem on this GPU, and its measured time."""
    by_engine = {row["engine"] if t["name"] == "lapwing" else t["name"]: t["minimum"] for t in row["lapwing"]}
    problem = Problem("cholesky", row["dtype"], row["batch"], row["n"], "cuda")
    engine = planner.plan_on(problem, GPU).engine
    return engine, by_engine[engine]


def peers(row: dict[str, Any]) -> dict[str, float]:
    return {t["name"]: t["minimum"] for t in row["peers"]}


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def gpu_table(data: dict[str, Any]) -> str:
    lines = [
        "| dtype | n | batch | engine | lapwing | torch | jax | cupy | over best peer | TFLOP/s | share of copy bandwidth |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        engine, seconds = ours(row)
        others = peers(row)
        flops = row["batch"] * row["n"] ** 3 / 3 * (4 if row["dtype"].startswith("complex") else 1)
        itemsize = {"float32": 4, "float64": 8, "complex64": 8, "complex128": 16}[row["dtype"]]
        share = 2 * row["batch"] * row["n"] ** 2 * itemsize / data["copy_bytes_per_second"] / seconds
        cells = [milliseconds(others[p]) if p in others else "-" for p in ("torch", "jax", "cupy")]
        lines.append(
            f"| {row['dtype']} | {row['n']} | {row['batch']} | {engine} | {milliseconds(seconds)} | {' | '.join(cells)} "
            f"| {min(others.values()) / seconds:.2f}x | {flops / seconds * 1e-12:.3g} | {100 * share:.0f} % |"
        )
    return "\n".join(lines) + "\n"


def map_section(name: str, heading: str) -> str:
    """The red cells and the picture of a map; nothing where it was not measured."""
    reports = [read_report(path) for path in sorted(RESULTS.glob(f"map-{name}-*.json"))]
    if not reports:
        return ""
    report = merge(reports)
    plot_map(report, IMAGES / f"map-{name}.png", map_title(report))
    where, rows = report.environment, report.rows
    ratios = [row.speedup for row in rows if row.speedup is not None]
    on_cpu = f"{where.cpu}, {where.threads} threads"
    machine = on_cpu if name.startswith("cpu") else f"{where.gpus[0].name}, driver {where.driver}"
    versions = ", ".join(f"{k} {v}" for k, v in where.versions if k not in ("lapwing", "python", "matplotlib"))
    slow = red(rows)
    in_pieces = "; " in report.command
    command = f"lapwing bench map --device {rows[0].case.device}" if in_pieces else report.command
    pieces = ", here in pieces: the result file has the commands" if in_pieces else ""
    lines = [
        f"### {heading}",
        "",
        f"{machine}; {versions}; {report.date[:10]}. {len(ratios)} cells: {len(slow)} red,",
        f"{sum(ratio >= 2 for ratio in ratios)} at least 2x ahead. To repeat: `{command}`{pieces}.",
        "",
        f"<!-- chart: map-{name} -->",
        f"![{map_title(report)}](images/map-{name}.png)",
        "",
    ]
    if slow:
        lines += ["| red cells | dtype | n (batch): ratio, the faster library |", "|---|---|---|"]
    for key in dict.fromkeys((name_of(r.case), r.case.dtype) for r in slow):
        some = sorted((r for r in slow if (name_of(r.case), r.case.dtype) == key), key=lambda r: (r.case.batch == 1, r.case.n))
        cells = [
            f"{r.case.n}{f' ({r.case.batch})' if r.case.batch > 1 else ''}: {r.speedup:.2f}x {r.best_peer.name}" for r in some
        ]
        lines.append(f"| {key[0].replace('_', ' ')} | {key[1]} | {'; '.join(cells)} |")
    if report.left_out:
        lines += ["", f"Not measured: {len(report.left_out)} cells, named in the result file."]
    return "\n".join(lines) + "\n"


def eigh_table(rows: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    """Each row against every other contender of the same run, among them lapwing's engines by name."""
    lines = [f"| dtype | n | batch | values | engine | lapwing | {' | '.join(names)} | over the best of them |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for row in rows:
        times = {t["name"]: t["minimum"] for t in (*row["lapwing"], *row["peers"])}
        lapwing = times.pop("lapwing", None) or times.pop("lapwing/numpy")
        others = {name: times[name] for name in names if name in times}
        part = row.get("part")
        values = f"{part[1]} {'largest' if part[0] else 'smallest'}, {row['matrix']}" if part else "all"
        cells = " | ".join(milliseconds(others[name]) if name in others else "-" for name in names)
        ratio = f"{min(others.values()) / lapwing:.3g}x" if others else "-"
        engine = row.get("engine") or "batched"
        lines.append(
            f"| {row['dtype']} | {row['n']} | {row['batch']} | {values} | {engine} "
            f"| {milliseconds(lapwing)} | {cells} | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def frameworks_table(data: dict[str, Any]) -> str:
    lines = ["| dtype | n | batch | torch | jax | cupy | apart |", "|---|---|---|---|---|---|---|"]
    for row in data["rows"]:
        times = {t["name"].removeprefix("lapwing/"): t["minimum"] for t in row["lapwing"]}
        cells = " | ".join(milliseconds(times[p]) for p in ("torch", "jax", "cupy"))
        spread = max(times.values()) / min(times.values()) - 1
        lines.append(f"| {row['dtype']} | {row['n']} | {row['batch']} | {cells} | {100 * spread:.0f} % |")
    return "\n".join(lines) + "\n"


def cpu_table(data: dict[str, Any]) -> str:
    lines = [
        "| dtype | n | batch | lapwing, NumPy | through torch | through jax "
        "| numpy | torch | jax | over best peer | time / copy |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        times = {t["name"].removeprefix("lapwing/"): t["minimum"] for t in row["lapwing"]}
        others = peers(row)
        cells = [milliseconds(times[p]) for p in ("numpy", "torch", "jax")]
        cells += [milliseconds(others[p]) for p in ("numpy", "torch", "jax")]
        ratio = min(others.values()) / times["numpy"]
        floor = f"{times['numpy'] / row['floor']:.1f}" if row.get("floor") else "-"
        lines.append(f"| {row['dtype']} | {row['n']} | {row['batch']} | {' | '.join(cells)} | {ratio:.1f}x | {floor} |")
    return "\n".join(lines) + "\n"


def insitu_table(data: dict[str, Any]) -> str:
    """The cost of a coupled step, and the streaming POD against the SVD of the stored history."""
    pod, about, each = data["pod"], data["environment"], data["overhead"]
    stream, batch = pod["stream"], pod["batch"]
    first = pod["sigma_reference"][0]
    lines = [
        f"| POD of {pod['size']}, {pod['modes']} modes | streaming | numpy.linalg.svd of the history | ratio |",
        "|---|---|---|---|",
        f"| CPU time, s | {stream['cpu_s']:.2f} | {batch['cpu_s']:.1f} | {batch['cpu_s'] / stream['cpu_s']:.1f}x |",
        f"| memory over the solver's, MB | {stream['extra_mb']:.0f} | {batch['extra_mb']:.0f} "
        f"| {batch['extra_mb'] / stream['extra_mb']:.1f}x |",
        f"| error of a singular value over the first | {pod['error']:.1e} | - | - |",
        f"| bound on it, printed by the run | {stream['bound'] / first:.1e} | - | - |",
        f"| energy not in the modes | {1 - stream['energy']:.1e} | - | - |",
        "",
        f"{data['threads']} thread, {about['processor']}, NumPy {about['numpy']}, {data['date'][:10]}. A step with an analysis",
        f"that does nothing, 258 points: {each['Hub.step']:.1f} us through `Hub.step`, {each['bridge']:.1f} us through what",
        "the C library calls.",
    ]
    return "\n".join(lines) + "\n"


def insitu_gpu_table(data: dict[str, Any]) -> str:
    """The time of the streaming POD against that of its products and copies, and a solver step with each analysis."""
    lines = [
        "| POD of 2^24 unknowns, 20 modes | dtype | solver, ms a step | POD | its floor | ratio | error / sigma_0 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in data["pod"]:
        assert row["unknowns"] == 1 << 24 and row["modes"] == 20
        lines.append(
            f"| {row['library']} | {row['dtype']} | {row['solver_ms_per_step']:.2f} | {row['analysis_ms_per_step']:.2f} "
            f"| {row['floor_ms_per_step']:.2f} | {row['over_floor']:.2f}x | {row['sigma_error']:.0e} |"
        )
    most = max(row["host_traffic"]["largest_bytes"] for row in data["pod"])
    copies = max(row["host_traffic"]["copies"] for row in data["pod"])
    each = {name: 1e3 * row["ms_per_step"] for name, row in data["coupling"].items()}
    lines += [
        "",
        "The floor: two products and one copy of each snapshot, timed alone on the same shapes.",
        f"In 240 steps {copies} copies crossed the bus, the largest of {most / 1024:.0f} KB: the small matrices.",
        f"The CUDA solver of 258 points takes {each['off']:.1f} us a step alone, {each['nothing']:.0f} us with an analysis",
        f"that does nothing, {each['history']:.0f} us with the original's (every snapshot kept, SVD at the end; it printed",
        f"47 us on an A100), {each['pod']:.0f} us with the streaming POD.",
    ]
    return "\n".join(lines) + "\n"


def tune_table(data: dict[str, Any]) -> str:
    def us(found: dict[str, Any]) -> str:
        return "-" if not found.get("us") else f"{found['us']:.1f}"

    lines = [
        "| rows x columns x inner | default | best cuBLASLt | ours | ours, overlapping | roofline | plain | with overlap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in data["shapes"]:
        lines.append(
            f"| {s['rows']} x {s['columns']} x {s['inner']} {s['dtype']} {s['layout']} | {s['default_us']:.1f} |"
            f" {us(s['vendor'])} | {us(s['own'])} | {us(s['overlap'])} | {s['roofline_us']:.1f} |"
            f" {s['ratio_plain']:.3f}x | {s['ratio_overlap']:.3f}x |"
        )
    summary = data["summary"]
    decode = {name: summary[f"decode, {name}"]["geomean"] for name in ("vendor", "plain", "overlap", "plain, chained")}
    lines += [
        "",
        f"Up to 64 rows, as geometric mean: {decode['vendor']:.3f}x by cuBLASLt's algorithms alone,",
        f"{decode['plain']:.3f}x with our kernels, {decode['overlap']:.3f}x with those that overlap;",
        f"behind another kernel {decode['plain, chained']:.3f}x.",
        f"{data['environment']['device']}, driver {data['environment']['driver']}, torch {data['environment']['torch']},"
        f" Triton {data['environment']['triton']}, {data['date'][:10]}.",
    ]
    return "\n".join(lines) + "\n"


def solve_table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds of lapwing and of the fastest peer."""
    heads = ("problem", "dtype", "size", "batch", "engine", "lapwing", "the best other", "ratio")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        seconds = min(t["minimum"] for t in row["lapwing"])
        others = peers(row)
        if not others:
            continue
        name, best = min(others.items(), key=lambda item: item[1])
        usual = (None, "", "full", "general")
        what = " ".join(x for x in (row["operation"], row["assume"], row["precision"]) if x not in usual)
        known = ", Wishart + I" if row["matrix"] != "random" else ""
        if row["condition"]:
            known = f", condition {row['condition']:.0e}"
        size = f"{row['rows']} x {row['n']}" if row["rows"] else str(row["n"])
        lines.append(
            f"| {what}{known} | {row['dtype']} | {size} | {row['batch']} | {row['engine']} | {milliseconds(seconds)} "
            f"| {milliseconds(best)} ({name}) | {best / seconds:.2f}x |"
        )
    return "\n".join(lines) + "\n"


BLOCK_NAMES = {"pos": "solve pos", "invpos": "inv pos", "triangular": "solve lower", "qr_r": 'qr, mode="r"'}


def blocks_table(rows: list[dict[str, Any]]) -> str:
    """A line for each operation and dtype, a column for each order and batch: lapwing / torch = ratio."""
    cells = sorted({(row["n"], row["batch"]) for row in rows if row["op"] == "solve"})
    lines = [f"| | {' | '.join(f'n = {n}, batch {batch}' for n, batch in cells)} |", "|---" * (len(cells) + 1) + "|"]
    for op, dtype in dict.fromkeys((row["op"], row["dtype"]) for row in rows):
        times = {(row["n"], row["batch"]): row for row in rows if (row["op"], row["dtype"]) == (op, dtype)}
        entries = []
        for cell in cells:
            row = times.get(cell)
            entries.append(f"{row['lapwing']:.3g} / {row['torch']:.3g} = {row['torch'] / row['lapwing']:.1f}x" if row else "")
        lines.append(f"| {BLOCK_NAMES.get(op, op)} {dtype} | {' | '.join(entries)} |")
    return "\n".join(lines) + "\n"


def short(x: float) -> str:
    """Three digits, without an exponent."""
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def against_torch(rows: list[dict[str, Any]], columns: tuple[str, ...], ours: str) -> str:
    """A line for each row: some of its fields, the times of lapwing and torch, their ratio."""
    lines = [f"| {' | '.join(columns)} | lapwing | torch | ratio |", "|---" * (len(columns) + 3) + "|"]
    for row in rows:
        fields = " | ".join(str(row[name]) for name in columns)
        lines.append(f"| {fields} | {short(row[ours])} | {short(row['torch'])} | {short(row['torch'] / row[ours])}x |")
    return "\n".join(lines) + "\n"


def svd_rows(rows: list[dict[str, Any]], newer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, those of one matrix from a newer run where that timed torch too."""

    def case(row: dict[str, Any], operation: str) -> tuple[Any, ...]:
        return row[operation], row["dtype"], row["batch"], row["m"], row["n"]

    found = {case(r, "op"): r | {"operation": r["op"], "lapwing": r["auto"]} for r in newer if "torch" in r and "m" in r}
    kept = [found.pop(case(row, "operation"), row) for row in rows]
    return kept + list(found.values())


def gesvda_table(rows: list[dict[str, Any]]) -> str:
    """Singular values of batches, and torch's fastest routine for them."""
    lines = ["| operation | dtype | batch | m | n | lapwing | gesvda | ratio |", "|---" * 8 + "|"]
    for row in rows:
        if "gesvda" not in row or "matrix" in row:
            continue
        times = f"{short(row['auto'])} | {short(row['gesvda'])} | {row['gesvda'] / row['auto']:.2f}x"
        lines.append(f"| {row['op']} | {row['dtype']} | {row['batch']} | {row['m']} | {row['n']} | {times} |")
    return "\n".join(lines) + "\n"


def few_table(rows: list[dict[str, Any]]) -> str:
    """Batches of small matrices by divide and conquer or bisection, and by rotations."""
    batches, orders = (1, 64, 512), (48, 64, 100, 144)
    heads = [f"{batch} {'matrix' if batch == 1 else 'matrices'}" for batch in batches]
    lines = [f"| operation | dtype | n | {' | '.join(heads)} |", "|---" * 6 + "|"]
    times = {(r["op"], r["dtype"], r["n"], r["batch"]): (r["reduced"]["ms"], r["rotations"]["ms"]) for r in rows}
    for operation, dtype, n in dict.fromkeys(case[:3] for case in times):
        if n in orders:
            cells = [" / ".join(map(short, times[operation, dtype, n, batch])) for batch in batches]
            lines.append(f"| {operation} | {dtype} | {n} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def whole_table(rows: list[dict[str, Any]]) -> str:
    """All eigenvalues, with and without vectors, by our own kernels and by cuSOLVER."""
    lines = ["| dtype | n | batch | lapwing | cuSOLVER | ratio | values alone | cuSOLVER | ratio |", "|---" * 9 + "|"]
    for row in rows:
        cells = []
        for own, other in ((row["lapwing"], row["cusolver"]), (row["values"], row["cusolver_values"])):
            cells += [short(own), *((short(other), f"{short(other / own)}x") if other else ("-", "-"))]
        lines.append(f"| {row['dtype']} | {row['n']} | {row['batch']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def grid_table(rows: list[dict[str, Any]]) -> str:
    """Batches of a public list of shapes and spectra, and their geometric mean."""
    lines = ["| batch | n | spectrum | with vectors | values alone |", "|---" * 5 + "|"]
    lines += [f"| {r['batch']} | {r['n']} | {r['matrix']} | {short(r['lapwing'])} | {short(r['values'])} |" for r in rows]
    mean = [short(math.exp(sum(math.log(r[name]) for r in rows) / len(rows))) for name in ("lapwing", "values")]
    return "\n".join(lines) + f"\n| | | geometric mean | {mean[0]} | {mean[1]} |\n"


def part_table(spectra: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Part of a spectrum, where the planner chooses the iteration, and the whole spectrum by the fastest routine measured."""
    direct = {(row["dtype"], row["n"]): row["lapwing"] for row in rows if row["batch"] == 1}
    lines = ["| operation | dtype | matrix | how many | the part | the whole | ratio |", "|---" * 7 + "|"]
    full = {(row["dtype"], row["m"], row["n"]): row["lapwing"] for row in spectra["svd"] if row["operation"] == "svd"}
    for row in spectra["part"]:
        dtype, n = row["dtype"], row["n"]
        if row["operation"] == "eigh":
            if n < 2000 or row["matrix"] == "cosines":  # given up, and since then another routine takes over
                continue
            whole, size = min(row["cusolver"], direct.get((dtype, n), row["cusolver"])), f"{row['matrix']}, n = {n}"
            part = row.get("auto") or row["krylov"]
        else:
            whole = full.get((dtype, row["m"], n), row["full"] if dtype == "float64" else None)
            part, size = row["subset"], f"random, {row['m']} x {n}"
        if whole:
            times = f"{short(part)} | {short(whole)} | {short(whole / part)}x"
            lines.append(f"| {row['operation']} | {dtype} | {size} | {row['count']} | {times} |")
    return "\n".join(lines) + "\n"


COLOURS = {"float32": "#d1495b", "float64": "#4477aa"}


def draw_gpu(batched: dict[str, Any], single: dict[str, Any]) -> None:
    def ratio(row: dict[str, Any]) -> float:
        return min(peers(row).values()) / ours(row)[1]

    title = "Cholesky on one H200: how many times faster lapwing is than the best of torch, jax and cupy"
    with picture("h200.png", title, 2, same_scale=True) as axes:
        bars(axes[0], [r for r in batched["rows"] if r["batch"] >= 100], ratio)
        axes[0].set_title("many matrices at once")
        bars(axes[1], single["rows"], ratio)
        axes[1].set_title("one matrix")
        axes[1].tick_params(labelleft=True)


def draw_start(batched: dict[str, Any]) -> None:
    """The one picture of the start page: large type, so that it can be read on a telephone too."""
    from matplotlib.figure import Figure

    rows = [r for r in batched["rows"] if r["batch"] >= 100 and r["dtype"] in COLOURS]
    orders = sorted({(r["n"], r["batch"]) for r in rows})
    figure = Figure(figsize=(8.4, 4.6))
    axes = figure.add_axes((0.02, 0.16, 0.96, 0.62))
    for place, (dtype, colour) in enumerate({"float32": "#2a9d8f", "float64": "#264653"}.items()):
        some = [r for r in rows if r["dtype"] == dtype]
        ratios = [min(peers(r).values()) / ours(r)[1] for r in some]
        x = [orders.index((r["n"], r["batch"])) + 0.42 * place - 0.21 for r in some]
        drawn = axes.bar(x, [ratio - 1 for ratio in ratios], 0.4, bottom=1, color=colour, label=dtype)
        axes.bar_label(drawn, [f"{ratio:.{0 if ratio >= 9.95 else 1}f}x" for ratio in ratios], fontsize=9.5, padding=2)
    axes.set_yscale("log")
    axes.axhline(1, color="#e76f51", linewidth=2)
    axes.set_yticks([])
    axes.minorticks_off()
    axes.set_xticks(range(len(orders)), [f"{n} x {n}\n{batch:,}" for n, batch in orders], fontsize=9)
    axes.tick_params(length=0)
    axes.margins(x=0.01, y=0.12)
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, loc="upper right", fontsize=12)
    figure.text(0.02, 0.925, "Cholesky factors of many matrices on one H200", fontsize=18, fontweight="bold", color="#264653")
    words = "how many times faster lapwing is than the best of PyTorch, JAX and CuPy"
    figure.text(0.02, 0.855, words, fontsize=11, color="#555555")
    figure.text(
        0.98,
        0.03,
        "order of the matrices, and how many are factored in one call; logarithmic scale, the line is equal speed",
        fontsize=10,
        color="#555555",
        ha="right",
    )
    figure.savefig(IMAGES / "start.png", dpi=150)


def draw_eigh(rows: list[dict[str, Any]]) -> None:
    def ratio(row: dict[str, Any]) -> float:
        times = {t["name"]: t["minimum"] for t in (*row["lapwing"], *row["peers"])}
        return min(seconds for name, seconds in times.items() if name in ("torch", "jax", "cupy")) / times["lapwing"]

    whole = [r for r in rows if not r.get("part") and r["peers"] and r["n"] < 150]  # larger ones have a newer file
    with picture("eigh.png", "Eigenvalues and eigenvectors on one H200", 2) as axes:
        bars(axes[0], [r for r in whole if r["batch"] > 1], ratio)
        axes[0].set_title("all of many matrices: times faster than the best of torch, jax, cupy")
        few(axes[1], [r for r in rows if r.get("part") and len(r["lapwing"]) > 1])
        axes[1].set_title("the 16 largest of one matrix, n = 16384, float64")


def few(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Seconds of the iteration and of the direct routine, for each kind of matrix."""
    times = [{t["name"]: t["minimum"] for t in r["lapwing"]} for r in rows]
    for k, (name, label) in enumerate((("lapwing", "lapwing (krylov)"), ("cusolver", "cuSOLVER's direct routine"))):
        drawn = axes.bar([i + 0.4 * k - 0.2 for i in range(len(rows))], [t[name] for t in times], 0.38, label=label)
        for bar in drawn:
            bar.set_color(list(COLOURS.values())[k])
        words = [f"{t[name] * 1e3:.0f} ms" + (f"\n({t['cusolver'] / t[name]:.0f}x faster)" if k == 0 else "") for t in times]
        axes.bar_label(drawn, words, fontsize=8, padding=1)
    axes.set_ylim(top=3.8)
    axes.yaxis.set_major_formatter("{x:g} s")
    kinds = {"kernel": "Gaussian kernel", "wishart": "Wishart"}
    axes.set_xticks(range(len(rows)), [f"{kinds[r['matrix']]} matrix" for r in rows])
    axes.set_ylabel("time, lower is better")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)


def draw_cpu(data: dict[str, Any]) -> None:
    def ratio(row: dict[str, Any]) -> float:
        times = {t["name"]: t["minimum"] for t in row["lapwing"]}
        return min(peers(row).values()) / times["lapwing/numpy"]

    with picture(
        "cpu.png", "Cholesky on two CPU threads: how many times faster lapwing is than the best of numpy, torch and jax"
    ) as axes:
        bars(axes[0], data["rows"], ratio)
        axes[0].set_title("Xeon with AVX-512")


@contextlib.contextmanager
def picture(name: str, title: str, across: int = 1, same_scale: bool = False) -> Iterator[Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold")
    yield figure.subplots(1, across, squeeze=False, sharey=same_scale)[0]
    figure.savefig(IMAGES / name, dpi=110)


def bars(axes: Any, rows: list[dict[str, Any]], ratio: Callable[[dict[str, Any]], float]) -> None:
    """How many times faster, by n and batch; each bar starts at 1, which means equal."""
    rows = [r for r in rows if r["dtype"] in COLOURS]
    places = sorted({(r["n"], -r["batch"]) for r in rows})
    for k, (dtype, colour) in enumerate(COLOURS.items()):
        ratios = {(r["n"], -r["batch"]): ratio(r) for r in rows if r["dtype"] == dtype}
        x = [i + 0.4 * k - 0.2 for i, p in enumerate(places) if p in ratios]
        heights = [ratios[p] for p in places if p in ratios]
        drawn = axes.bar(x, [h - 1 for h in heights], 0.38, bottom=1, color=colour, label=dtype)
        words = [f"{h:.{2 if h < 1 else 1 if h < 99.95 else 0}f}" for h in heights]
        axes.bar_label(drawn, words, fontsize=7, padding=1)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low <= t <= high]
    axes.set_yticks(ticks, [f"{t:g}x" for t in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(places)), [f"{n}\n({count(-b)})" if b < -1 else str(n) for n, b in places], fontsize=7)
    axes.set(xlabel="order n (matrices in the batch)" if any(b < -1 for _, b in places) else "order n")
    axes.set_ylabel("times faster (1x = equal)")
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)


def count(batch: int) -> str:
    return f"{batch // 10**6}M" if batch >= 10**6 else f"{batch // 1000}k" if batch >= 1000 else str(batch)


if __name__ == "__main__":
    main()
