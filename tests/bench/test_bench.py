"""The benchmark itself: checks that fail when they should, ratios, the record and its rules."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from lapwing.bench import check as check_module
from lapwing.bench.case import Absent, Case, Entry, Row, Timing
from lapwing.bench.check import LIMIT, Check, check_factor
from lapwing.bench.libraries import installed, open_library
from lapwing.bench.matrices import make_matrix
from lapwing.bench.measure import measure, peer_entries
from lapwing.bench.operations import operation_of
from lapwing.bench.peers import Peer, peer_of
from lapwing.bench.plot import plot_eigh, plot_rows, plot_speedup
from lapwing.bench.record import Grid, grid_for, measure_record, record_of, rule_in_words, write_record
from lapwing.bench.report import as_json, make_report
from lapwing.bench.table import Table, seconds_in_words
from lapwing.bench.timing import Contender, interleave
from lapwing.core.native import native
from lapwing.core.problem import DTYPES
from lapwing.core.records import Measurement, Record, load_record, rules_of

needs_native = pytest.mark.skipif(native is None, reason="the native core was not built")
GOOD = Check(0.5, True)


def fake_row(**changes: object) -> Row:
    row = {
        "case": Case(100, 10, "float64"),
        "engine": "batched",
        "checks": (("lapwing", GOOD),),
        "ours": (Timing("lapwing", (2e-3, 1e-3, 4e-3)),),
        "peers": (Timing("numpy", (8e-3, 9e-3)), Timing("torch", (3e-3, 5e-3))),
        "floor": 0.5e-3,
    }
    return Row(**{**row, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(("exact", "block"), [(True, 3000), (False, 3000), (False, 300)])  # 300: by rows
@pytest.mark.parametrize("batch", [1, 3])
def test_check_accepts_a_right_factor(dtype, upper, exact, block, batch, monkeypatch):
    monkeypatch.setattr(check_module, "_EXACT_WORK", np.inf if exact else -1)
    monkeypatch.setattr(check_module, "_BLOCK", block)
    a = make_matrix(Case(37, batch, dtype), seed=1)
    factor = np.linalg.cholesky(a)
    if upper:
        factor = np.conj(np.swapaxes(factor, -1, -2))
    found = check_factor(a, factor, upper=upper)
    assert found.ok and found.estimated is not exact
    assert not check_factor(a, factor, upper=not upper).ok


@pytest.mark.parametrize(("exact", "block"), [(True, 1000), (False, 1000), (False, 100)])
def test_check_refuses_wrong_factors(exact, block, monkeypatch):
    monkeypatch.setattr(check_module, "_EXACT_WORK", np.inf if exact else -1)
    monkeypatch.setattr(check_module, "_BLOCK", block)
    a = make_matrix(Case(20, 4), seed=2)
    good = np.linalg.cholesky(a)
    wrong = good.copy()
    wrong[2, 19, 3] += 1e-8  # one element of one matrix of the batch
    assert check_factor(a, good).ok
    assert check_factor(a, wrong).residual > LIMIT
    assert not check_factor(a, good + np.triu(a, 1)).triangle_is_zero
    assert not check_factor(a, np.full_like(a, np.nan)).ok
    assert not check_factor(a, good.astype(np.float32)).ok
    assert not check_factor(a, good[:2]).ok
    assert not check_factor(a, np.zeros_like(a)).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("matrix", ["random", "known"])
@pytest.mark.parametrize(("n", "batch"), [(1, 1), (2, 3), (33, 5)])
def test_matrices_are_hermitian_and_definite(dtype, matrix, n, batch):
    case = Case(n, batch, dtype, matrix=matrix)
    a = make_matrix(case)
    assert a.dtype == dtype and a.shape == case.shape and a.flags.c_contiguous
    np.testing.assert_array_equal(a, np.conj(np.swapaxes(a, -1, -2)))
    assert np.linalg.eigvalsh(a).min() > 0


def test_the_known_matrix_has_its_known_factor():
    factor = np.linalg.cholesky(make_matrix(Case(3, matrix="known")))
    expected = [[1, 0, 0], [0.1111111, 1.409842, 0], [0.2222222, 0.2189196, 1.703729]]
    np.testing.assert_allclose(factor, expected, rtol=1e-6)


def test_ratios_come_from_the_minima():
    row = fake_row()
    assert row.best_peer is not None and row.best_peer.name == "torch"
    assert row.speedup == pytest.approx(3.0)
    assert row.over_floor == pytest.approx(2.0)
    assert row.gflops == pytest.approx(10 * 100**3 / 3 / 1e-3 * 1e-9)
    assert row.gbytes == pytest.approx(2 * 10 * 100**2 * 8 / 1e-3 * 1e-9)
    assert row.lapwing is not None and row.lapwing.median == 2e-3
    line = Table(["numpy", "torch", "jax"]).line(row)
    assert max(map(len, line.splitlines())) <= 100  # too many for one line: the others have their own
    assert line.split() == [
        "float64", "100", "10", "batched", "1", "ms", "2", "ms", "3.33", "1.6", "3.00x", "2.00x",
        "numpy", "8", "ms", "torch", "3", "ms", "jax", "-",
    ]  # fmt: skip


def test_times_that_vary_are_marked():
    assert not fake_row().unsteady  # exactly 2x is not over 2x
    row = fake_row(peers=(Timing("numpy", (8e-3, 9e-3)), Timing("torch", (3e-3, 9e-3, 9e-3))))
    assert row.unsteady
    assert Table(["numpy", "torch"]).line(row).split()[-6:] == ["numpy", "8", "ms", "torch", "3", "ms~"]


def test_a_wrong_row_shows_no_time():
    row = fake_row(checks=(("lapwing", Check(1e6, True)),), ours=(), peers=())
    assert row.wrong == ("lapwing",) and row.speedup is None and row.over_floor is None
    assert "WRONG ANSWER from lapwing: residual 1e+06" in Table([]).line(row)


def test_seconds_in_words():
    assert [seconds_in_words(s) for s in (None, 2e-9, 9.996e-4, 1.5e-3, 0.9999, 12.34, 1234)] == [
        "-", "2 ns", "1 ms", "1.5 ms", "1 s", "12.3 s", "1234 s",
    ]  # fmt: skip


def test_interleave_gives_everyone_every_repeat():
    order: list[str] = []
    contenders = [Contender(name, lambda name=name: order.append(name)) for name in "abc"]
    queued = Contender("d", lambda: None, queued=lambda count: 1.0 / count)
    timings = interleave([*contenders, queued], repeat=4)
    assert [t.name for t in timings] == ["a", "b", "c", "d"]
    assert all(len(t.seconds) == 4 and t.minimum > 0 for t in timings)
    assert [len(t.waited) for t in timings] == [0, 0, 0, 4]
    # a call that is too slow for the limit still gets three
    assert len(interleave([Contender("a", lambda: None)], repeat=9, limit=0.0)[0].seconds) == 3


def test_measure_checks_then_times():
    row = measure(Case(5, 3, "float32"), [Entry("lapwing", "numpy", "auto"), Entry("numpy", "numpy")], repeat=2)
    assert not row.wrong and row.speedup and row.floor and row.over_floor
    assert len(row.ours[0].seconds) == 2
    assert [t.name for t in row.peers] == ["numpy"]


def test_measure_does_not_time_a_wrong_answer(monkeypatch):
    wrong = replace(operation_of("cholesky"), through=lambda *_: lambda a: np.tril(a))
    monkeypatch.setattr("lapwing.bench.measure.operation_of", lambda name: wrong)
    row = measure(Case(5, 3), [Entry("lapwing", "numpy", "auto"), Entry("numpy", "numpy")], repeat=2)
    assert row.wrong == ("lapwing",) and not row.ours and not row.peers


def test_measure_leaves_out_a_peer_that_fails(monkeypatch):
    def fails(a):
        raise RuntimeError("no batches\nat all")

    monkeypatch.setattr("lapwing.bench.measure.peer_of", lambda *_: Peer("fails", fails, fails))
    row = measure(Case(5, 3), [Entry("lapwing", "numpy", "auto"), Entry("numpy", "numpy")], repeat=2)
    assert row.absent == (Absent("numpy", "RuntimeError: no batches"),) and row.lapwing and not row.peers


@pytest.mark.parametrize("name", ["numpy", "scipy", "torch"])
@pytest.mark.parametrize("upper", [False, True])
def test_libraries_give_the_same_factor(name, upper):
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    library, case = open_library(name), Case(6, 2, "complex128", upper=upper)
    host = make_matrix(case)
    a = library.put(host, "cpu")
    calls = [*peer_of(library, case, name)[1:], operation_of("cholesky").through(library, case, "auto", "raise")]
    for call in calls:
        assert check_factor(host, library.to_host(call(a)), upper=upper).ok


def test_peers_that_cannot_take_part_say_why():
    entries, absent = peer_entries("cuda", ("numpy",))
    assert not entries and absent == [Absent("numpy", "numpy arrays live on the host")]


def test_report_is_plain_json():
    data = json.loads(json.dumps(as_json(make_report([fake_row()], command="lapwing bench", notes=["x"])), allow_nan=False))
    (row,) = data["rows"]
    assert row["speedup"] == pytest.approx(3.0) and row["best_peer"] == "torch"
    assert row["lapwing"][0]["seconds"] == [2e-3, 1e-3, 4e-3]
    assert data["command"] == "lapwing bench" and data["environment"]["versions"]["numpy"] == np.__version__


def test_rules_follow_from_a_record(tmp_path):
    """batched is faster up to n = 64 for one matrix, up to 256 for many."""
    points = tuple(
        Measurement("float64", n, batch, {"batched": 1.0 if n <= last else 3.0, "lapack": 2.0})
        for n in (4, 16, 64, 256, 1024)
        for batch, last in ((1, 64), (100, 256))
    )
    record = Record("cholesky", "cpu", "made up", "2000-01-01", {"numpy": "2"}, points)
    rules = rules_of(record)

    def engine(n: int, batch: int) -> str:
        return next(r.engine for r in rules if r.fits("float64", n, batch))

    for m in points:
        assert engine(m.n, m.batch) == m.best
    assert engine(1, 1) == "batched" and engine(129, 1) == "lapack" and engine(129, 1000) == "batched"
    assert engine(10**6, 10**6) == "lapack"
    assert any("lapack" in rule_in_words(r) and "from" in rule_in_words(r) for r in rules)
    write_record(record, tmp_path / "made-up.json")
    assert load_record(tmp_path / "made-up.json").measurements == points


@needs_native
def test_record_of_a_small_grid():
    seen = []
    grid = Grid((4, 16), (1, 8), ("float32",), seconds=0.1)
    record = record_of(measure_record(grid, "cpu", "numpy", repeat=2, step=seen.append), "cpu")
    assert len(seen) == len(record.measurements) == 4
    assert all("batched" in m.seconds for m in record.measurements)
    assert record.hardware.startswith(native.simd()) and rules_of(record)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_grids_start_from_one_matrix(device, quick):
    """At every order the batch of one is measured, or nothing is."""
    cases = grid_for(device, quick=quick).cases(device)
    assert {(c.dtype, c.n) for c in cases} == {(c.dtype, c.n) for c in cases if c.batch == 1}
    assert len(cases) < 600


def test_plots_are_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [fake_row(), fake_row(case=Case(200, 10, "float32")), fake_row(case=Case(300, 10, "float32"), peers=())]
    plot_rows(rows, tmp_path / "a.png", "title")
    plot_speedup(rows, tmp_path / "b.png", "title")
    plot_rows([fake_row(peers=())], tmp_path / "c.png", "title")
    for name in ("a.png", "b.png", "c.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def figures(monkeypatch):
    """The figures that a test saves, drawn."""
    matplotlib = pytest.importorskip("matplotlib.figure")
    saved = []
    monkeypatch.setattr(matplotlib.Figure, "savefig", lambda figure, path, **_: (figure.canvas.draw(), saved.append(figure)))
    return saved


def test_legends_cover_no_curve(tmp_path, figures):
    rows = [fake_row(), fake_row(case=Case(200, 10, "float32"))]
    values = replace(Case(64, 1, "float64"), operation="eigvalsh")
    plot_rows(rows, tmp_path / "a.png", "title")
    plot_speedup(rows, tmp_path / "b.png", "title")
    plot_eigh([fake_row(case=values)], tmp_path / "c.png", "title")
    for figure in figures:
        (legend,) = figure.legends
        assert legend.get_texts() and not any(axis.get_legend() for axis in figure.axes)
        assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)


def test_one_noisy_bar_leaves_the_others_readable(tmp_path, figures):
    """A logarithmic axis, bars that start at "equally fast", and a mark on times that vary."""
    steady = {"ours": (Timing("lapwing", (1e-3, 1e-3, 1e-3)),), "peers": (Timing("numpy", (2e-3, 2e-3, 2e-3)),)}
    noisy = {"ours": (Timing("lapwing", (1e-5, 1e-3, 1e-3)),), "peers": (Timing("numpy", (5e-2, 5e-2, 5e-2)),)}
    rows = [fake_row(**steady), fake_row(case=Case(200, 10, "float64"), **noisy)]
    plot_speedup(rows, tmp_path / "b.png", "Cholesky: lapwing against NumPy", "NumPy")
    (figure,) = figures
    (axis,) = figure.axes
    assert axis.get_yscale() == "log"
    assert [text.get_text() for text in axis.texts] == ["2.0", "5000~"]
    heights = [bar.get_window_extent().height for bar in axis.patches]
    assert heights[0] > 0.05 * axis.get_window_extent().height and heights[1] > heights[0]
    assert [bar.get_y() for bar in axis.patches] == [1, 1]
    assert figure.get_suptitle().startswith("Cholesky") and "times vary" in figure.get_supxlabel()


def test_import_lapwing_loads_no_benchmark():
    heavy = ("lapwing.bench", "lapwing.cli", "matplotlib")
    code = f"import sys, lapwing; print([m for m in sys.modules if m.startswith({heavy})])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
