"""Configure: shares of the measured time, names, and what was dropped and why."""

from __future__ import annotations

import csv
import errno
import json
import tempfile
import time

import pytest

from lapwing.tune.backends.base import Kernel, Refused
from lapwing.tune.gemm import Call, Gemm
from lapwing.tune.readers import Log
from lapwing.tune.search.coverage import read_coverage
from lapwing.tune.search.selection import configure
from lapwing.tune.validate import pages as report
from lapwing.tune.validate import results
from tune.cases import FakeComparison


class Bench:
    sets = 1

    def __init__(self, backend, gemm):
        self.backend, self.gemm = backend, gemm

    def build(self, config):
        assert config == {"way": "default"}
        if self.gemm.k == 13:
            raise Refused("runtime", "no workspace")
        return Kernel(config, lambda i: None)

    def time(self, kernels, samples):
        if self.gemm.k == 14:
            raise RuntimeError("out of memory\nsecond line")
        self.backend.samples += samples
        # one slow sample among several, which the median ignores
        return [[self.gemm.flops * 1e-9] * max(samples - 1, 1) + [1.0] * (samples > 1) for _ in kernels]

    def close(self):
        self.backend.closed += 1


class Fake:
    name = "fake"

    def __init__(self, wait=0.0):
        self.opened = self.closed = self.samples = 0
        self.wait = wait

    def supports(self, gemm):
        return "batches are not done" if gemm.batch > 1 else None

    def default(self, gemm):
        return {"way": "default"}

    def open(self, gemm, device, seed):
        assert device == 3
        self.opened += 1
        time.sleep(self.wait)
        return Bench(self, gemm)


F8 = {"a_type": "f8e4m3", "b_type": "f8e4m3", "trans_a": "T"}
BIG, SMALL, LITTLE = Gemm(100, 100, 100, "T"), Gemm(10, 100, 100, "T"), Gemm(1, 1, 10, "T")
EIGHT, OTHER = Gemm(100, 100, 50, **F8), Gemm(100, 100, 51)
BATCH, NO, FULL = Gemm(100, 100, 100, batch=9), Gemm(100, 100, 13), Gemm(100, 100, 14)
COUNTS = {SMALL: 5, BATCH: 7, BIG: 4, NO: 1, LITTLE: 1, FULL: 1, EIGHT: 1, OTHER: 2}
LOG = Log(tuple(Call(gemm, count) for gemm, count in COUNTS.items()))


def test_shares_names_and_files(tmp_path):
    backend, said = Fake(), []
    found = configure(LOG, tmp_path, backend=backend, device=3, progress=said.append)
    assert [c.name for c in found] == ["BBS_TN_0", "BBS_NN_0", "BBS_TN_1", "F8BS_TN_0"]
    assert [c.gemm for c in found] == [BIG, OTHER, SMALL, EIGHT]
    total = sum(gemm.flops * count for gemm, count in COUNTS.items() if gemm not in (BATCH, NO, FULL))
    for c in found:
        assert c.count == COUNTS[c.gemm] and c.seconds == pytest.approx(c.gemm.flops * 1e-9)
        assert c.percent == pytest.approx(100 * c.gemm.flops * c.count / total)
        content = json.loads((tmp_path / "configs" / f"{c.name}.json").read_text())
        assert content == {"schema": 1, "name": c.name, "gemm": c.gemm.to_dict(), "count": c.count} | {
            "seconds": c.seconds,
            "percent": c.percent,
        }
        assert Gemm.from_dict(content["gemm"]) == c.gemm
    rows = list(csv.DictReader((tmp_path / "problems.csv").read_text().splitlines()))
    assert len(rows) == len(COUNTS) == len(said)
    assert [(row["name"], row["key"]) for row in rows[:4]] == [(c.name, c.gemm.key) for c in found]
    dropped = {row["key"]: row["dropped"] for row in rows if not row["name"]}
    assert dropped == {
        LITTLE.key: "less than 0.1 % of the time",
        BATCH.key: "fake: batches are not done",
        NO.key: "fake: runtime: no workspace",
        FULL.key: "fake: RuntimeError: out of memory",
    }
    assert backend.opened == backend.closed == 7 + 5  # products that were measured are measured twice
    assert {row["percent"] for row in rows if row["key"] in (BATCH.key, NO.key, FULL.key)} == {""}  # unknown is not 0


def test_what_was_not_measured_is_said(tmp_path, monkeypatch):
    """9 of 22 calls have no time: shares, coverage and pages must say so."""
    monkeypatch.setattr(report, "_draw", lambda *_: {})  # pictures take seconds
    found = configure(LOG, tmp_path, backend=Fake(), device=3, keep_thr=0)
    known = read_coverage(tmp_path)
    assert (known.products, known.calls, known.unmeasured_calls) == (8, 22, 9)
    assert {u.key: u.reason for u in known.unmeasured}[BATCH.key] == "fake: batches are not done"
    assert sum(c.percent for c in found) == pytest.approx(100)
    metrics = results.write(tmp_path, [FakeComparison(c.gemm, name=c.name, percent=c.percent, count=c.count) for c in found])
    assert metrics.coverage_pct == pytest.approx(100) and metrics.coverage_calls_pct == pytest.approx(100 * 13 / 22)
    written = json.loads((tmp_path / "results" / "metrics.json").read_text())["unmeasured"]
    assert (written["products"], written["calls"]) == (3, 9) and written["calls_pct"] == pytest.approx(100 * 9 / 22)
    assert {u["product"] for u in written["named"]} == {str(BATCH), str(NO), str(FULL)}
    page = report.write(tmp_path).with_suffix(".md").read_text()
    assert "40.9 % of the calls were never measured" in page and str(BATCH) in page and "59.1 % of all calls" in page
    assert "40.9 % of the calls" in str(metrics) and "% of the time that was measured" in str(metrics)
    (tmp_path / "coverage.json").write_text("{torn")
    assert results.write(tmp_path, []).unmeasured is None


def test_slow_products_are_measured_once(tmp_path):
    backend = Fake()
    configure(Log((Call(Gemm(1000, 1000, 1000)),)), tmp_path, backend=backend, device=3)
    assert backend.samples == 1


def test_a_product_keeps_its_name(tmp_path):
    configure(LOG, tmp_path, backend=Fake(), device=3)
    new = Gemm(300, 300, 300, "T")
    found = configure(Log((Call(SMALL, 500), Call(new, 1))), tmp_path, backend=Fake(), device=3)
    assert {c.gemm: c.name for c in found} == {SMALL: "BBS_TN_1", new: "BBS_TN_2"}  # BBS_TN_0 had trials of its own
    assert sorted(path.stem for path in (tmp_path / "configs").glob("*.json")) == ["BBS_TN_1", "BBS_TN_2"]


def test_budget_threshold_and_errors(tmp_path):
    log = Log(tuple(Call(Gemm(n, n, n)) for n in range(10, 40)))
    began = time.monotonic()
    found = configure(log, tmp_path / "a", backend=Fake(0.05), device=3, budget=0.3, keep_thr=0)
    assert time.monotonic() - began < 3 and 1 <= len(found) < 30
    assert found[0].gemm == Gemm(39, 39, 39)  # the heaviest were measured
    assert "no time was left to measure it" in (tmp_path / "a" / "problems.csv").read_text()
    with pytest.raises(ValueError, match="keep_thr is 101"):
        configure(log, tmp_path, backend=Fake(), keep_thr=101)
    with pytest.raises(ValueError, match="the log has no products\nhint"):
        configure(Log(), tmp_path, backend=Fake())
    with pytest.raises(ValueError, match="no product could be measured: fake: batches are not done\nhint"):
        configure(Log((Call(BATCH),)), tmp_path / "b", backend=Fake(), device=3)


def test_a_folder_that_cannot_be_written_is_seen_at_once(tmp_path, monkeypatch):
    """A full or read-only disk is reported before anything is measured."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    backend = Fake()
    with pytest.raises(ValueError, match="cannot be written: No space left on device\nhint"):
        configure(LOG, tmp_path, backend=backend, device=3)
    assert backend.opened == 0
