"""Lapwing's own engines, measured and recorded for the planner."""

from __future__ import annotations

import pytest

from lapwing import planner
from lapwing.bench.case import Row, Timing
from lapwing.core.native import native
from lapwing.core.records import load_record
from lapwing.tune import solvers

pytestmark = pytest.mark.skipif(native is None, reason="there is nothing to choose between without the native core")


def test_records_are_written_and_used(tmp_path, monkeypatch):
    steps = []
    found = solvers.tune(["solve"], sizes=[24], dtypes=["float64"], budget=0.5, out=tmp_path / "out", step=steps.append)
    assert [t.record.operation for t in found] == ["solve"] and len(steps) == 4
    for t in found:
        again = load_record(t.path)
        assert again.measurements == t.record.measurements and again.hardware == planner.hardware_of("cpu")
        assert {m.n for m in again.measurements} == {24} and t.rules
        assert all(len(m.seconds) >= 1 for m in again.measurements)
    cache = tmp_path / "cache"
    monkeypatch.setenv("LAPWING_CACHE", str(cache))
    try:
        (own,) = solvers.tune(["inv"], sizes=[8], dtypes=["float32"], budget=0.2)
        used = planner.record_for("inverse", "cpu")
        assert cache in own.path.parents and used is not None and used.source == str(own.path)
    finally:
        monkeypatch.undo()
        planner.reload_records()


class Machine:
    """Points that take several times the expected time, on a clock that only they move."""

    def __init__(self, monkeypatch, slow):
        self.now, self.slow, self.parts = 0.0, slow, []
        monkeypatch.setattr(solvers, "monotonic", lambda: self.now)
        monkeypatch.setattr(solvers, "measure_record", self.measure)
        monkeypatch.setattr(solvers, "_written", lambda record, out: record)

    def measure(self, part, device, library, *, step):
        for case in part.cases(device):
            step(case)
        took = self.slow * solvers._expected(part, device)
        self.now += took
        self.parts.append((part.operation, part.dtypes[0], part.orders[0], took))
        ours = (Timing("native", (1e-3,)),)
        return [Row(case, "native", (), ours, (), None, ()) for case in part.cases(device)]


@pytest.mark.parametrize("slow", [0.2, 1.0, 3.0])
def test_budget_is_kept_with_an_estimate(monkeypatch, slow, tmp_path):
    machine, steps = Machine(monkeypatch, slow), []
    found = solvers.tune(["cholesky", "eigh"], out=tmp_path, step=lambda s: steps.append((machine.now, s)))
    longest = max(took for *_, took in machine.parts)
    assert machine.now <= 1.1 * solvers._BUDGET + longest  # the default budget
    assert {r.operation for r in found} >= {"cholesky", "eigh"} and (slow > 1 or len(found) == 3)
    # the ends of each dtype come before anything between them
    first = [n for operation, dtype, n, _ in machine.parts if (operation, dtype) == ("cholesky", "float64")]
    assert sorted(first[:2]) == [min(first), max(first)] and len(set(first)) == len(first)
    for now, said in steps:
        assert 0 <= said.left <= solvers._BUDGET - now + 1e-6 or said.left == 0
    late = [said.left - (machine.now - now) for now, said in steps[len(steps) // 2 :]]
    assert max(map(abs, late)) <= 0.5 * machine.now and "left: " in str(steps[0][1])


def test_a_record_without_its_ends_is_not_written(monkeypatch, tmp_path, caplog):
    machine = Machine(monkeypatch, 1.0)
    found = solvers.tune(["cholesky", "eigh"], budget=60.0, out=tmp_path)
    assert machine.now <= 66 + max(took for *_, took in machine.parts)
    assert "eigh_part" not in {r.operation for r in found}  # its largest matrices take minutes
    assert "no record for eigh_part" in caplog.text and "give a larger budget" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": ["lu"]}, "unknown operation 'lu'\nhint: use cholesky"),
        ({"dtypes": ["int8"]}, "unknown dtype 'int8'"),
        ({"sizes": [0]}, "positive sizes"),
        ({"budget": -1.0}, "budget is -1.0"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        solvers.tune(**options)
