"""lapwing bench map: its cells, its parts, the merged map, the list of red cells, the colours of the picture, the records."""

from __future__ import annotations

import json
from dataclasses import replace
from threading import Thread
from time import sleep

import numpy as np
import pytest

import lapwing as lw
from lapwing import planner
from lapwing.__main__ import main
from lapwing.bench import map as map_module
from lapwing.bench import plot
from lapwing.bench.case import Case, Entry, Row, Timing
from lapwing.bench.check import Check
from lapwing.bench.check_lu import check_determinant, check_lu
from lapwing.bench.check_solve import check_singular_values
from lapwing.bench.environment import Gpu
from lapwing.bench.map import GRIDS, OPERATIONS, Grid, merge, name_of, part_of, red, red_in_words, summary
from lapwing.bench.matrices import make_input
from lapwing.bench.operations import operation_of
from lapwing.bench.peers import Peer
from lapwing.bench.record import records_of
from lapwing.bench.report import make_report, read_report, write_report
from lapwing.bench.timing import Contender, interleave
from lapwing.bench.turn import Turn
from lapwing.core.native import native
from lapwing.core.problem import DTYPES
from lapwing.core.records import load_record, save_record

needs_native = pytest.mark.skipif(native is None, reason="the native core was not built")
GOOD = (("lapwing", Check(0.5, True)),)


def cell(ratio, name="solve", n=8, batch=5, dtype="float64", **changes):
    """A row of the map where the best peer takes ``ratio`` times as long as lapwing."""
    case = Case(n, batch, dtype, **OPERATIONS[name])
    return replace(Row(case, "batched", GOOD, (Timing("lapwing", (1e-3,)),), (Timing("torch", (ratio * 1e-3,)),)), **changes)


@pytest.fixture
def two_cells(monkeypatch, tmp_path):
    """A grid of two cells, in a folder of its own; the pauses between turns are left out."""
    monkeypatch.setattr("lapwing.bench.timing.sleep", lambda seconds: None)
    monkeypatch.setitem(map_module.GRIDS, ("cpu", True), Grid(((5, 4),), (3,), ("float64",), (1e9, 1e9)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_every_operation_has_cells(device, quick):
    cases = GRIDS[device, quick].cases(device, OPERATIONS)
    assert {name_of(c) for c in cases} == set(OPERATIONS) and len({str(c) for c in cases}) == len(cases)
    assert all(c.rows == 4 * c.n for c in cases if c.operation == "lstsq")
    for name in OPERATIONS:
        some = [c for c in cases if name_of(c) == name]
        assert {c.dtype for c in some} == set(DTYPES if not quick else DTYPES[:2]) and {c.batch > 1 for c in some} == {
            True,
            False,
        }
    if not quick:
        assert {33, 48, 100, 176, 352, 1000} <= {c.n for c in cases if c.batch > 1}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_is_measured_and_checked(name, dtype, monkeypatch):
    monkeypatch.setattr("lapwing.bench.timing.sleep", lambda seconds: None)
    case = Grid(((6, 3),), (), (dtype,), (1e9, 1e9)).cases("cpu", [name])[0]
    row = map_module.measure(case, [Entry("lapwing", "numpy", "auto")], repeat=1, fewest=1, floor=False)
    assert not row.wrong and row.lapwing is not None and case.flops > 0


def test_parts_are_the_whole():
    cases = GRIDS["cpu", True].cases("cpu", OPERATIONS)
    parts = [part_of(cases, (k, 3)) for k in (1, 2, 3)]
    assert sorted(map(str, cases)) == sorted(str(c) for part in parts for c in part)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_map_of_two_cells(two_cells, monkeypatch, capsys):
    """With a peer that takes no time, so that every cell is red."""
    answers = {}

    def peer_of(library, case, name):
        def call(a):
            if str(case) not in answers:
                answers[str(case)] = np.linalg.inv(a)
            return answers[str(case)]

        return Peer("numpy.linalg.inv(a)", call, call)

    monkeypatch.setattr("lapwing.bench.measure.peer_of", peer_of)
    assert main(["bench", "map", "--ops", "inv", "--quick", "--peers", "numpy", "--repeat", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 cells through numpy on cpu" in shown and "2 red cells of 2" in shown
    assert shown.index("red cells") < shown.index("inv             float64    n=") < shown.index("operation")
    report = read_report(two_cells / "map-cpu.json")
    assert [r.case.batch for r in report.rows] == [4, 1] and all(r.speedup < 0.97 for r in report.rows)
    assert report.environment.versions and report.peer_calls == (("numpy", "numpy.linalg.inv(a)"),)
    assert str(two_cells) not in (two_cells / "map-cpu.json").read_text()
    if plot.can_plot():
        assert (two_cells / "map-cpu.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_answer_is_refused(two_cells, monkeypatch, capsys):
    wrong = replace(operation_of("inv"), through=lambda *_: lambda a: a)
    monkeypatch.setattr("lapwing.bench.measure.operation_of", lambda name: wrong)
    assert main(["bench", "map", "--ops", "inv", "--quick", "--peers", "numpy", "--save", str(two_cells), "--record"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("WRONG ANSWER, not timed: inv float64") == 2 and "nothing was recorded" in shown
    rows = read_report(two_cells / "map-cpu.json").rows
    assert all("lapwing" in row.wrong and not row.ours for row in rows) and not red(rows)


def test_an_error_ends_one_cell_alone(two_cells, monkeypatch):
    def measured(case, *_, **__):
        if case.batch > 1:
            raise RuntimeError("broken")
        return cell(2.0, "inv")

    monkeypatch.setattr(map_module, "measure", measured)
    rows, left_out = map_module.measure_map(GRIDS["cpu", True].cases("cpu", ["inv"]), "numpy", peers=("numpy",))
    assert [bool(r.wrong) for r in rows] == [True, False] and not left_out
    assert "RuntimeError: broken" in str(rows[0].checks[0][1])


def test_what_there_is_no_time_or_memory_for_is_named(two_cells, capsys):
    assert main(["bench", "map", "--ops", "inv", "--quick", "--peers", "numpy", "--seconds", "1e-9"]) == 0
    shown = capsys.readouterr().out
    assert "left out (2):" in shown and "inv float64 n=5 batch=4: the time was up" in shown
    assert read_report(two_cells / "map-cpu.json").left_out == tuple(
        f"inv float64 {size}: the time was up" for size in ("n=5 batch=4", "n=3 batch=1")
    )
    rows, left_out = map_module.measure_map(GRIDS["cpu", True].cases("cpu", ["inv"]), "numpy", free=lambda: 0)
    assert not rows and left_out[0].endswith("not enough memory")


def test_parts_are_merged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    old, new = cell(0.5), cell(2.0)
    parts = (
        make_report([old, cell(1.0, "qr")], command="a", left_out=[f"{cell(1, 'lu').case}: the time was up", "gone: x"]),
        make_report([new, cell(0.8, "lu")], command="b"),
    )
    for i, part in enumerate(parts):
        write_report(part._replace(date=f"2026-01-0{i + 1}"), tmp_path / f"{i}.json")
    assert main(["bench", "map", "--merge", "1.json", "0.json"]) == 0
    merged = read_report(tmp_path / "map-cpu.json")
    assert [name_of(r.case) for r in merged.rows] == ["solve", "lu", "qr"] and merged.rows[0] == new
    assert merged.left_out == ("gone: x",) and merged.command == "a; b" and merged.date == "2026-01-02"
    assert "1 red cell of 3" in capsys.readouterr().out
    other = parts[1]._replace(environment=replace(parts[1].environment, gpus=(Gpu("NVIDIA H200", 90, 1),)))
    with pytest.raises(ValueError, match="maps of different machines cannot be merged: gpus"):
        merge([parts[0], other])
    (tmp_path / "2.json").write_text("{}")
    assert main(["bench", "map", "--merge", "2.json"]) == 2
    assert "2.json is not a result file of lapwing bench" in capsys.readouterr().err


def test_a_report_is_read_as_it_was_written(tmp_path):
    wrong = Row(Case(4, part=(1, 2), operation="eigh"), "none", (("lapwing", Check(np.inf, False)),), ())
    report = make_report([cell(2.0), wrong], notes=["x"], command="c", left_out=["y"])
    write_report(report, tmp_path / "r.json")
    back = read_report(tmp_path / "r.json")
    assert back.rows[0] == report.rows[0] and back.rows[1].case == wrong.case and back.rows[1].wrong == ("lapwing",)
    assert back._replace(rows=()) == report._replace(rows=())
    assert json.loads((tmp_path / "r.json").read_text())["left_out"] == ["y"]


@pytest.mark.parametrize("batch", [4, 50])
def test_a_peer_with_a_wrong_answer_is_named(two_cells, monkeypatch, capsys, batch):
    """One wrong determinant, not the first of the batch, and the peer is no peer in that cell."""

    def wrong(a):
        sign, log = np.linalg.slogdet(a)
        sign[-1] = -sign[-1]
        return sign, log

    monkeypatch.setattr("lapwing.bench.measure.peer_of", lambda library, case, name: Peer("wrong", wrong, wrong))
    monkeypatch.setitem(map_module.GRIDS, ("cpu", True), Grid(((5, batch),), (), ("float64",), (1e9, 1e9)))
    assert main(["bench", "map", "--quick", "--ops", "slogdet", "--peers", "numpy", "--save", "."]) == 0
    (row,) = read_report(two_cells / "map-cpu.json").rows
    assert not row.peers and row.speedup is None and [a.name for a in row.wrong_peers] == ["numpy"]
    assert "numpy: wrong answer" in capsys.readouterr().out


@pytest.mark.parametrize("linear", [True, False])
def test_a_peer_far_behind_is_timed_in_parts(linear, monkeypatch):
    """Only if twice the matrices take it twice the time: otherwise the whole batch is timed."""
    counts = []

    def slow(a):
        counts.append(len(a))
        sleep(5e-3 * len(a) if linear else 30e-3)
        return np.linalg.inv(a)

    monkeypatch.setattr("lapwing.bench.timing.sleep", lambda seconds: None)
    monkeypatch.setattr("lapwing.bench.measure.peer_of", lambda library, case, name: Peer("slow", slow, slow))
    case = Case(3, 160, "float64", **OPERATIONS["inv"])
    entries = [Entry("lapwing", "numpy", "auto"), Entry("numpy", "numpy")]
    row = map_module.measure(case, entries, repeat=1, fewest=1, floor=False, in_parts=True)
    (peer,) = row.peers
    assert peer.extrapolated is linear and (160 in counts) is not linear
    if linear:
        assert 0.7 < peer.minimum / (5e-3 * 160) < 3


def test_only_one_holds_the_turn(tmp_path):
    first, second = Turn(tmp_path / "turn"), Turn(tmp_path / "turn")
    order = []

    def wait():
        with second:
            order.append("second")

    with first:
        thread = Thread(target=wait)
        thread.start()
        sleep(0.05)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_red_cells_come_slowest_first():
    rows = [cell(0.9, n=16), cell(5.0), cell(0.98), cell(0.25, "lstsq", 48, dtype="float32"), cell(1.0, peers=())]
    assert [r.speedup for r in red(rows)] == [0.25, 0.9]
    first, second = red_in_words(rows)
    assert first.split() == ["lstsq", "float32", "n=48", "batch=5", "1", "ms", "torch", "250", "us", "0.25x", "(batched)"]
    assert second.split()[:3] == ["solve", "float64", "n=16"]
    assert summary(rows)[1].split() == ["solve", "1", "1", "1", "0.90x", "0.98x"]


def test_colours_of_the_picture(tmp_path, monkeypatch):
    """White at par, green ahead, red behind, deeper the further; drawn where they belong."""
    assert plot.map_colour(1.0) == plot.map_colour(0.98) == plot.map_colour(1.02) == (1, 1, 1)
    for ratio in (1.1, 2.0, 4.0, 8.0):
        (red_ahead, green_ahead, _), (red_behind, green_behind, _) = plot.map_colour(ratio), plot.map_colour(1 / ratio)
        assert green_ahead > red_ahead and red_behind > green_behind
    depths = [plot.map_colour(r)[1] for r in (0.9, 0.5, 0.25, 0.125)]
    assert depths == sorted(depths, reverse=True) and depths[0] < 0.95
    assert plot.map_colour(1e-4) == plot.map_colour(0.125) and plot.map_colour(900) == plot.map_colour(8)

    matplotlib = pytest.importorskip("matplotlib.figure")
    saved = []
    monkeypatch.setattr(matplotlib.Figure, "savefig", lambda figure, path, **_: (figure.canvas.draw(), saved.append(figure)))
    wrong = cell(1.0, "qr", checks=(("lapwing", Check(1e9, True)),), ours=(), peers=())
    rows = [cell(0.25), cell(1.0, n=9), cell(4.0, n=9, batch=1), wrong]
    plot.plot_map(make_report(rows, command="c"), tmp_path / "m.png", "title")
    (figure,) = saved
    (axis,) = figure.axes
    assert [t.get_text() for t in axis.get_yticklabels()] == ["solve", "qr"]
    assert [t.get_text() for t in axis.get_xticklabels()] == ["8\n(5)", "9\n(5)", "9"]
    drawn = axis.get_images()[0].get_array()
    np.testing.assert_allclose(drawn[0], [plot.map_colour(r) for r in (0.25, 1.0, 4.0)])
    assert [t.get_text() for t in axis.texts] == ["0.25", "1", "4", "!", "", ""]
    (legend,) = figure.legends
    assert {"at par", "8x or more", "not measured"} <= {t.get_text() for t in legend.get_texts()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["map", "--ops", "solve,nosuch"], "operation 'nosuch' is not known"),
        (["map", "--dtypes", "float16"], "dtype 'float16' is not known"),
        (["map", "--peers", "matlab", "--quick"], "peer 'matlab' is not known"),
        *[(["map", "--part", part], f"--part '{part}' is not K/N") for part in ("0/2", "3/2", "1", "a/b")],
        (["map", "--save", __file__], f"--save {__file__}: File exists"),
        (["map", "--merge", "nosuch.json"], "--merge: "),
        (["map", "--merge", "x.json", "--quick"], "--merge measures nothing; --quick has no effect"),
        (["map", "--merge", "x.json", "--turns", "t"], "--merge measures nothing; --turns has no effect"),
        (["map", "--turns", "t"], "--turns is for a GPU"),
        (["map", "--seconds", "0"], "--seconds 0 is not a positive number"),
        (["map", "--repeat", "0"], "--repeat 0 is not a positive number"),
        (["map", "--sizes", "4"], "map measures its own grid; --sizes has no effect"),
        (["map", "--rhs", "4"], "map measures its own grid; --rhs has no effect"),
        (["map", "--upper"], "map measures its own grid; --upper has no effect"),
        (["map", "--output", "."], "--output works only with --record"),
        (["map", "--record", "--output", "nosuch"], "--output nosuch: there is no such folder"),
        (["solve", "--ops", "solve"], "--ops works only with map"),
        (["solve", "--part", "1/2"], "--part works only with map"),
        (["solve", "--assume", "lower", "--condition", "9"], "--assume lower makes its own matrix"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    assert main(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.out == ""


@needs_native
def test_records_of_a_map_are_used(two_cells, monkeypatch, capsys):
    monkeypatch.setenv("LAPWING_CACHE", str(two_cells / "cache"))
    try:
        arguments = ["--ops", "solve_pos,solve,eigvalsh,lstsq", "--quick", "--peers", "numpy", "--repeat", "1"]
        assert main(["bench", "map", "--record", *arguments]) == 0
        paths = sorted((two_cells / "cache" / "records").glob("*.json"))
        assert [p.name.partition("-cpu")[0] for p in paths] == ["solve", "solve-pos"]
        record = load_record(paths[1])
        assert {(m.n, m.batch) for m in record.measurements} == {(5, 4), (3, 1)}
        assert all({"batched", "lapack"} == set(m.seconds) for m in record.measurements)
        assert record.hardware == planner.hardware_of("cpu")
        assert "delete those files to undo" in capsys.readouterr().out

        def reason(**options):
            return lw.explain(lw.solve, lw.spec((4, 5, 5)), lw.spec((4, 5, options.pop("k", 1))), **options).reason

        assert "solve-pos-cpu" in reason(assume="pos") and "solve-cpu" in reason()
        # what was not measured: many right-hand sides, other kinds of matrices
        for other in (reason(k=100), reason(assume="symmetric"), reason(assume="lower")):
            assert "records" not in other
        assert main(["bench", "map", "--merge", "map-cpu.json", "--record", "--output", "."]) == 0
        assert load_record(two_cells / paths[1].name).measurements == record.measurements
    finally:
        monkeypatch.undo()
        planner.reload_records()


@needs_native
def test_a_record_of_squares_says_nothing_about_tall_matrices(tmp_path, monkeypatch):
    slow = cell(1.0, "qr", 100, ours=(Timing("batched", (2.0,)), Timing("lapack", (1.0,))))
    (record,) = records_of(make_report([slow], command="c"))
    monkeypatch.setenv("LAPWING_CACHE", str(tmp_path))
    try:
        save_record(record)
        planner.reload_records()
        square, tall = (lw.explain(lw.qr, lw.spec((1000, 16, n))) for n in (16, 4))
        assert square.engine == "lapack" and "your own record" in square.reason
        assert "your own record" not in tall.reason
    finally:
        monkeypatch.undo()
        planner.reload_records()


def test_slow_contenders_are_timed_once():
    quick, once = interleave([Contender("a", lambda: None), Contender("b", lambda: sleep(0.03))], repeat=3, behind=2.0)
    assert len(quick.seconds) == 3 and len(once.seconds) == 1 and once.minimum > 0.02


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 3])
def test_checks_of_determinants_and_lu(dtype, batch):
    case = Case(9, batch, dtype, operation="det")
    a = make_input(case, seed=1)
    tolerance = float(np.finfo(dtype).eps) * 1e5
    sign, logarithm = np.linalg.slogdet(a)
    det = np.asarray(np.linalg.det(a), dtype)
    for good, bad in (
        (det, det * (1 + 10 * tolerance)),
        ((sign, logarithm), (-sign, logarithm)),
        ((sign, logarithm), (sign, logarithm + 10 * tolerance)),
        (det, np.full_like(det, np.nan)),
        (det, np.zeros((2, 2), dtype)),
    ):
        assert check_determinant(a, good, case).ok and not check_determinant(a, bad, case).ok
    f = lw.factor(a, assume="general").lu
    rows = np.asarray(f.rows)
    assert check_lu(a, f, case).ok
    for bad in (
        (f.lu, rows[..., ::-1]),
        (f.lu * (1 + tolerance), rows),
        (np.full_like(f.lu, np.nan), rows),
        (f.lu[..., :8], rows),
        (f.lu, np.full_like(rows, -5)),
    ):
        assert not check_lu(a, bad, case).ok


@pytest.mark.parametrize("library", ["scipy", "torch"])
def test_every_way_to_tell_the_order_of_rows(library):
    """Row swaps counted from 0 in SciPy, from 1 in torch."""
    pytest.importorskip(library)
    case = Case(9, dtype="float64", operation="lu")
    a = make_input(case, seed=1)
    if library == "scipy":
        import scipy.linalg

        found = scipy.linalg.lu_factor(a)
    else:
        import torch

        found = [x.numpy() for x in torch.linalg.lu_factor(torch.from_numpy(a))]
    assert check_lu(a, found, case).ok
    assert not check_lu(a, (found[0], np.arange(9)), case).ok


@pytest.mark.parametrize("n", [9, 40])
def test_check_of_singular_values(n, monkeypatch):
    monkeypatch.setattr("lapwing.bench.check_solve._EXACT_VALUES", 20)  # above it by their squares
    case = Case(n, 3, rows=50, operation="svdvals")
    a = make_input(case, seed=1)
    values = np.linalg.svd(a, compute_uv=False)
    assert check_singular_values(a, values, case).ok
    for bad in (values * (1 + 1e-10), values[:, ::-1], values[:2], values.astype("float32"), np.full_like(values, np.nan)):
        assert not check_singular_values(a, bad, case).ok


def test_matrices_of_each_kind():
    for assume, same in (("symmetric", lambda a: np.swapaxes(a, -1, -2)), ("lower", np.tril)):
        a, b = make_input(Case(12, 3, "complex128", operation="solve", assume=assume))
        np.testing.assert_array_equal(a, same(a))
        assert np.linalg.cond(a).max() < 1e4 and b.shape == (3, 12, 1)
    for n in (2, 100, 700):
        a = make_input(Case(n, 4, "float32", operation="det"))
        assert np.abs(np.linalg.slogdet(a.astype("float64"))[1]).max() < 20
