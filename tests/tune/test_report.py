"""Figures that can be checked by hand, tables, pages and pictures."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest

from lapwing.tune.validate import results
from lapwing.tune.validate.pages import write as write_report
from lapwing.tune.workdir import Trial
from tune.cases import FakeBackend, FakeComparison, linear

ROWS = [
    FakeComparison(linear(8, 32, 64), name="SSS_TN_0", percent=50, count=3, default_us=20, vendor_us=16, tuned_us=10),
    FakeComparison(
        linear(9, 32, 64), name="SSS_TN_1", percent=30, default_us=10, vendor_us=None, tuned_us=8, low=1.2, high=1.3
    ),
    FakeComparison(
        linear(7, 32, 64),
        name="SSS_TN_2",
        percent=15,
        default_us=10,
        vendor_us=9,
        tuned_us=9.9,
        kept=False,
        reason="1.01x | <b>is</b> below 1.03",
    ),
]


def test_metrics_by_hand():
    m = results.measure(ROWS)
    assert (m.attempted, m.kept, m.coverage_pct, m.kept_coverage_pct) == (3, 2, pytest.approx(95), 80)
    # 0.5 (1 - 1/2) + 0.3 (1 - 1/1.25) + 0.15 (1 - 1)
    assert m.weighted.time_reduction_pct == pytest.approx(31) and m.weighted.speedup == pytest.approx(1 / 0.69)
    assert m.kept_products.mean_uplift_pct == pytest.approx(62.5)
    assert m.kept_products.geomean_uplift_pct == pytest.approx(100 * (math.sqrt(2.5) - 1))
    assert m.all_products.geomean_uplift_pct == pytest.approx(100 * (2.5 ** (1 / 3) - 1)) and m.all_products.min_uplift_pct == 0
    assert m.all_products.p25 == pytest.approx(12.5) and m.all_products.median_uplift_pct == pytest.approx(25)
    # the vendor's best: 16 against 10, and 9 against the default's 10 since nothing was kept
    assert m.vendor_products.n == 2 and m.vendor_products.mean_uplift_pct == pytest.approx((60 - 10) / 2)
    times = (50 * 16 / 20, 15 * 9 / 10)
    wanted = 100 * (1 - (times[0] / 1.6 + times[1] / 0.9) / sum(times))
    assert m.weighted_vendor.time_reduction_pct == pytest.approx(wanted)
    text = str(m)
    assert "2 of 3 products" in text and "31.00 % less time" in text and "1.449x" in text
    empty = results.measure([])
    assert empty.weighted.speedup == 1 and empty.weighted_vendor is None and "0 of 0" in str(empty)


def test_tables_and_pages(tmp_path):
    from lapwing.tune.library import build

    results.write(tmp_path, reversed(ROWS))
    with (tmp_path / "results" / "raw_results.csv").open() as file:
        raw = list(csv.DictReader(file))
    assert [r["name"] for r in raw] == ["SSS_TN_0", "SSS_TN_1", "SSS_TN_2"]  # the most time first
    first = raw[0]
    assert {"us_reference", "us_tuned", "ratio", "uplift_pct", "pct_of_total", "call_count", "weighted_us_saved"} <= set(first)
    assert first["a_type"] == "f32_r" and first["ratio"] == "2" and first["weighted_us_saved"] == "30"
    assert json.loads(first["kernel_tuned"]) == {"way": "tuned"} and raw[1]["us_vendor"] == ""
    total = sum(float(r["weighted_uplift_contribution_pct"] or 0) for r in raw)
    metrics = json.loads((tmp_path / "results" / "metrics.json").read_text())
    assert total == pytest.approx(metrics["weighted"]["time_reduction_pct"])
    final = (tmp_path / "results" / "final_results.csv").read_text().splitlines()
    assert len(final) == 3

    build(tmp_path, ROWS, backends={"fake": FakeBackend(device="NVIDIA H200")})
    (tmp_path / "trials").mkdir()
    times = [None, 3e-6, 5e-6, 2e-6, 1e-6]
    trials = [Trial("fake", 0, "key", {"x": i}, t, "correct" if t else "compile") for i, t in enumerate(times)]
    lines = [*(t.to_json() for t in [*trials, Trial("fake", 0, "key", {"x": 9}, 1e-9, stage="confirm")]), '{"torn']
    (tmp_path / "trials" / "SSS_TN_0.jsonl").write_text("\n".join(lines))
    pytest.importorskip("matplotlib")
    path = write_report(tmp_path)
    page, text = path.read_text(), (path.parent / "report.md").read_text()
    assert len(re.findall(r"data:image/png;base64,iVBOR", page)) == 3
    assert not re.findall(r'(src|href)="(?!data:)', page)  # nothing from elsewhere
    assert "&lt;b&gt;is&lt;/b&gt;" in page and "<b>is" not in page and "1.01x \\|" in text
    for name in re.findall(r"\((\w+\.png)\)", text):
        assert (path.parent / name).stat().st_size > 1000
    assert "31.00 % less time" in page and "1.449 times as fast" in text and "NVIDIA H200" in text


def test_report_without_pictures(tmp_path, monkeypatch, caplog):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else find(name, *a))
    with pytest.raises(FileNotFoundError, match="no results"):
        write_report(tmp_path)
    results.write(tmp_path, [])
    page = write_report(tmp_path).read_text()
    assert "no pictures" in page and "matplotlib is not installed" in caplog.text and "<img" not in page


@pytest.mark.parametrize(("name", "text"), [("metrics.json", "{}"), ("metrics.json", "[1]"), ("raw_results.csv", "a,b\n1,2\n")])
def test_damaged_results_are_named(tmp_path, monkeypatch, name, text):
    monkeypatch.setattr("lapwing.tune.validate.pages._draw", lambda *_: {})
    results.write(tmp_path, ROWS)
    (tmp_path / "results" / name).write_text(text)
    with pytest.raises(ValueError, match=r"report: the results in .* are damaged: .*\nhint: run lapwing tune compare"):
        write_report(tmp_path)
    assert not (tmp_path / "results" / "report.md").exists()


@pytest.fixture
def figures(monkeypatch):
    """The figures that a test saves."""
    matplotlib = pytest.importorskip("matplotlib.figure")
    saved = []
    monkeypatch.setattr(matplotlib.Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


def picture_rows(us=10.0):
    """Kept with an interval far beyond its bar; doubtful; slower; not compared."""
    shape = {"m": "64", "n": "8", "k": "32", "batch_count": "1", "arith_intensity": "3", "us_reference": str(us)}
    rows = [
        {"ratio": "2", "ratio_low": "1.5", "ratio_high": "40", "kept": "True", "us_tuned": str(us / 2)},
        {"ratio": "9", "ratio_low": "8", "ratio_high": "10", "kept": "False", "doubtful": "True", "us_tuned": str(us / 9)},
        {"ratio": "1", "ratio_low": "1", "ratio_high": "1", "kept": "False", "us_tuned": str(us)},
        {"ratio": "", "ratio_low": "", "ratio_high": "", "kept": "False", "compared": "False", "us_tuned": str(us)},
    ]
    return [{"name": f"SSS_NN_{i}", **shape, "arith_intensity": str(3 * 10**i), **row} for i, row in enumerate(rows)]


def test_the_picture_of_gains_marks_what_was_not_measured(figures):
    from lapwing.tune.validate import pictures

    pictures.uplift(picture_rows(), "Some Device")
    (figure,) = figures
    (axes,) = figure.axes
    assert "Gain of each product" in axes.get_title() and "Some Device" in axes.get_title()
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["2.00x (to 40x)", "~9.00x", "1.00x", "not compared"]
    assert len(axes.patches) == 3, "a product that was not compared has no bar"
    right = axes.get_xlim()[1]
    assert 9 < right < 40
    # an interval that leaves the picture ends in an arrow inside it
    arrows = [line for line in axes.lines if line.get_marker() == ">"]
    assert len(arrows) == 1 and arrows[0].get_xdata()[0] < right
    assert any(patch.get_hatch() for patch in axes.patches)
    assert "~ doubtful, not kept" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("us, unit", [(10.0, "GFLOP/s"), (1e-3, "TFLOP/s")])
def test_the_roofline_names_its_points_and_its_unit(figures, us, unit):
    from lapwing.tune.validate import pictures

    pictures.roofline(picture_rows(us), "Some Device")
    (axes,) = figures[0].axes
    assert axes.get_ylabel() == unit and "Some Device" in axes.get_title() and axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.texts] == [f"SSS_NN_{i}" for i in range(4)]
