"""Lapwing's own engines, measured and recorded for the planner."""

from __future__ import annotations

import pytest

from lapwing.core.native import native
from lapwing.core.records import load_record
from lapwing.engines import planner
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": ["lu"]}, "unknown operation 'lu'\nhint: use cholesky"),
        ({"dtypes": ["int8"]}, "unknown dtype 'int8'"),
        ({"sizes": [0]}, "all positive"),
        ({"budget": -1.0}, "budget is -1.0"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        solvers.tune(**options)
