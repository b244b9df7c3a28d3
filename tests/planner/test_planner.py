"""The planner: records, reasons in words, and what it refuses."""

from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES
from lapwing import planner
from lapwing.core.native import DTYPE_CODE, ENGINES, native
from lapwing.core.problem import Problem
from lapwing.core.records import Measurement, Record, Rule, load_records, rules_of, save_record


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAPWING_CACHE", str(tmp_path))
    yield tmp_path
    monkeypatch.undo()
    planner.reload_records()


def record(best_small="lapack", hardware=None, device="cpu"):
    seconds = {"lapack": 2.0, "batched": 2.0, best_small: 1.0}
    rows = tuple(Measurement(d, n, b, dict(seconds)) for d in DTYPES for n in (4, 64) for b in (1, 1000))
    return Record("cholesky", device, hardware or planner.hardware_of(device), "2026-01-01", {"lapwing": "0"}, rows)


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_both_sides_of_a_matrix_decide_about_svd():
    def engine(batch, m, n, **known):
        return planner.plan(Problem("svd", "float64", batch, m, known.pop("device", "cpu"), columns=n, **known)).engine

    assert {engine(1000, m, n) for m, n in ((4, 4), (128, 32), (32, 128), (1, 100))} == {"batched"}
    assert {engine(1000, m, n) for m, n in ((321, 321), (513, 4), (4, 513))} == {"lapack"}
    assert {engine(1000, m, n) for m, n in ((33, 33), (99, 99), (300, 4), (40, 500))} == {"batched"}
    assert {engine(1, m, n) for m, n in ((33, 33), (64, 400))} == {"lapack"}
    assert [engine(batch, 32, 32) for batch in (1, 2, 8)] == ["lapack", "lapack", "batched"]
    assert engine(1000, 8, 4, full=True) == "lapack"
    assert engine(1000, 8, 8, full=True) == "batched"
    assert engine(1, 32, 32, device="cuda") == "batched"
    assert {engine(*size, device="cuda") for size in ((1000, 33, 4), (500, 64, 64), (1, 70, 200))} == {"batched"}
    assert engine(1, 2000, 2000, device="cuda") == "cusolver"
    assert engine(8, 80, 70, device="cuda", full=True) == "cusolver"
    assert engine(1, 100000, 64, device="cuda") == "tall"
    with pytest.raises(ValueError, match="sides up to 512 and 320 on this device, not 340 x 333"):
        lw.svd(np.ones((340, 333)), engine="batched")


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_systems_of_every_order_on_a_gpu():
    """A block per matrix wherever shared memory holds one, panels above that, the vendor's solver for one large matrix."""

    def chosen(op, batch, n, columns=1):
        return planner.plan(Problem(op, "float64", batch, n, "cuda", columns=columns if op == "solve" else None)).engine

    for op in ("solve", "inverse", "slogdet", "det", "lu"):
        assert [chosen(op, 1000, n) for n in (32, 33, 168, 169, 352, 2048)] == ["batched"] * 6
        assert [chosen(op, 1, n) for n in (2, 33, 128, 169, 2048, 2049)] == ["batched"] * 5 + ["cusolver"]
    # too few blocks would share the work
    assert [chosen("solve", batch, 64, columns=1000) for batch in (1, 2)] == ["cusolver", "batched"]


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_many_right_hand_sides_of_one_matrix_use_all_threads():
    engines = [
        planner.plan(Problem("solve", "float64", batch, 200, "cpu", columns=k)).engine for batch, k in ((1, 100), (1, 10**4))
    ]
    assert engines == ["batched", "lapack"]


def test_explain():
    plan = lw.explain(lw.cholesky, lw.spec((1000, 64, 64), "float64"))
    assert plan.engine in ("batched", "lapack", "reference")
    assert plan.flops == 1000 * 64**3 / 3
    assert plan.bytes_moved == 2 * 1000 * 64 * 64 * 8
    assert "batch of 1000" in plan.reason or native is None
    assert "engine" in str(plan)
    assert lw.explain(lw.cholesky_ex, np.eye(3)).problem.n == 3
    assert lw.explain(lw.cholesky, np.eye(3), engine="lapack").reason == "you asked for it"


def test_explain_a_gpu_call_without_a_gpu():
    plan = lw.explain(lw.cholesky, lw.spec((100000, 8, 8), "float32", device="cuda"))
    assert plan.engine == "batched"
    assert lw.explain(lw.cholesky, lw.spec((40000, 40000), "float64", device="cuda")).engine == "cusolver"


def test_explain_refuses():
    with pytest.raises(TypeError, match="not a function of lapwing that chooses an engine"):
        lw.explain(np.linalg.cholesky, np.eye(3))
    with pytest.raises(ValueError, match="square"):
        lw.explain(lw.cholesky, lw.spec((3, 4)))
    with pytest.raises(TypeError, match="int8"):
        lw.spec((3, 3), "int8")
    with pytest.raises(ValueError, match="tpu"):
        lw.spec((3, 3), device="tpu")
    with pytest.raises(ValueError, match="sizes"):
        lw.spec((-1, 3))


def test_engines_say_why_not():
    for status in lw.engines():
        assert status.usable_on or status.missing
        assert status.name in str(status)
    assert {"scalapack", "elpa", "cusolvermp", "xla"} <= {status.name for status in lw.engines()}


def test_one_log_line_per_decision(caplog):
    with caplog.at_level(logging.INFO, logger="lapwing"):
        lw.cholesky(np.eye(5))
    (line,) = [r for r in caplog.records if r.name == "lapwing"]
    assert "cholesky of 1 x 5 x 5 float64 on cpu" in line.getMessage()
    assert "because" in line.getMessage()


def test_own_record_decides(own_cache):
    save_record(record("lapack"))
    planner.reload_records()
    plan = lw.explain(lw.cholesky, lw.spec((1000, 4, 4)))
    assert plan.engine == "lapack"
    assert plan.predicted_seconds == 1.0
    if native is not None:
        assert native.plan(0, DTYPE_CODE["float64"], 0, -1, 0, 0, 0, (1000, 4), "")[0] == ENGINES["lapack"]
        assert plan.reason == f"n = 4 in a batch of 1000: fastest by your own record {own_cache}/records/{record().name}.json"


def test_record_of_other_hardware_is_refused(own_cache):
    save_record(record("lapack", hardware="another machine"))
    planner.reload_records()
    assert lw.explain(lw.cholesky, lw.spec((1000, 4, 4))).engine != "lapack"


def made(**changes):
    row = {"dtype": "float64", "n": 4, "batch": 1, "seconds": {"lapack": 1.0}}
    row |= {k: changes.pop(k) for k in list(changes) if k in row}
    text = {"schema": 1, "operation": "cholesky", "device": "cpu", "hardware": "x", "date": "", "versions": {}}
    return json.dumps(text | changes | {"measurements": [row]})


DAMAGED = [
    "", "{", "[]", '{"schema": 99}', '{"schema": 1}', "null", "\0\0", "[" * 200000,
    made(dtype="float16"), made(n=0), made(n=float("inf")), made(n=2**70), made(batch=-1), made(seconds={}),
    made(seconds={"lapack": float("nan")}), made(device="tpu"), made(hardware="a\0b"), made(hardware="\ud800"),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["magma", "reference", "cusolver"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_engine_that_is_not_known_here_is_passed_over(own_cache, engine, device, caplog):
    rows = tuple(Measurement(d, n, 1, {engine: 1.0}) for d in DTYPES for n in (4, 700))
    save_record(Record("cholesky", device, planner.hardware_of(device), "", {}, rows))
    planner.reload_records()
    warned = [r for r in caplog.records if r.levelno == logging.WARNING and f": {engine}: no such engine" in r.getMessage()]
    assert len(warned) == (0 if (engine, device) == ("cusolver", "cuda") else 1)
    for n in (4, 700):
        assert lw.explain(lw.cholesky, lw.spec((n, n))).engine in ("batched", "lapack")
        lw.cholesky(np.eye(n))


def test_import_with_a_pipe_among_the_records(own_cache):
    folder = own_cache / "records"
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "pipe.json")
    planner.reload_records()


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_record_is_skipped(own_cache, text, caplog):
    folder = own_cache / "records"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "bad.json").write_text(text)
    save_record(record("lapack"))
    with caplog.at_level(logging.WARNING, logger="lapwing"):
        planner.reload_records()
    assert "bad.json" in caplog.text
    assert lw.explain(lw.cholesky, lw.spec((1000, 4, 4))).engine == "lapack"


def test_records_round_trip(own_cache):
    path = save_record(record())
    assert json.loads(path.read_text())["schema"] == 1
    (again,) = load_records([path.parent])
    assert again.measurements == record().measurements


def test_rules_cover_the_plane_and_follow_the_measurements():
    rows = (
        Measurement("float64", 4, 1, {"lapack": 1.0, "batched": 2.0}),
        Measurement("float64", 64, 1, {"lapack": 2.0, "batched": 1.0}),
        Measurement("float64", 4, 1000, {"lapack": 3.0, "batched": 1.0}),
        Measurement("float64", 64, 1000, {"lapack": 3.0, "batched": 1.0}),
    )
    rules = rules_of(Record("cholesky", "cpu", "x", "d", {}, rows))
    assert len(rules) == 3  # the two of batch 1000 are one

    def engine(n, batch):
        (fit,) = [r.engine for r in rules if r.fits("float64", n, batch)]
        return fit

    assert engine(4, 1) == engine(0, 0) == engine(16, 31) == "lapack"
    assert engine(64, 1) == engine(17, 1) == engine(10**6, 1) == "batched"
    assert engine(4, 1000) == engine(4, 32) == engine(4, 10**9) == "batched"
    assert not Rule("float32", "lapack").fits("float64", 1, 1)


def test_rules_beside_the_newest_copy_of_a_library():
    """Where the newest copy wins and the framework's own loses, the rule comes first and says that it needs the newest."""
    rows = (
        Measurement("float64", 4096, 1, {"batched": 1.0, "cusolver": 3.0, "cusolver newest": 2.0}),
        Measurement("float64", 16384, 1, {"batched": 2.0, "cusolver": 3.0, "cusolver newest": 1.0}),
    )
    first, *others = rules_of(Record("eigh", "cuda", "x", "d", {}, rows))
    assert first == Rule("float64", "cusolver", n_min=8193, newest=True)
    assert others == [Rule("float64", "batched")]
    # values alone go where the vectors go below the smallest order that was measured
    first, *others = rules_of(Record("eigvalsh", "cuda", "x", "d", {}, rows))
    assert first.n_min == 8193 and others == [Rule("float64", "batched", n_min=4096)]


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_a_named_engine_is_looked_up_once(monkeypatch):
    """The table of all engines has over a hundred rows: reading it again took longer than the call."""
    a = np.eye(3)
    lw.solve(a, a, engine="batched")
    monkeypatch.setattr(planner, "capabilities", None)
    assert np.array_equal(lw.solve(a, a, engine="batched"), a)
