"""The live view inside the simulation: what is written, when, and that nothing of it reaches the solver."""

from __future__ import annotations

import base64
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lapwing import insitu
from lapwing.insitu.analysis import Sketch
from lapwing.insitu.live import publisher
from lapwing.insitu.live.drawing import Fetch
from lapwing.insitu.live.plain import plain
from lapwing.insitu.live.reader import Reader
from lapwing.insitu.solver import bridge
from lapwing.insitu.solver.arrays import to_host

X = np.linspace(0, 2 * np.pi, 200, endpoint=False)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.delenv("LAPWING_INSITU_LIVE", raising=False)
    monkeypatch.setattr(publisher.Live.__init__, "__defaults__", (0.01,))


def status(folder: Path) -> dict:
    return json.loads((folder / "status.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))


def wave(n: int) -> np.ndarray:
    return 3 * np.sin(X - 0.1 * n) + np.cos(2 * X + 0.3 * n)


def drive(hub: insitu.Hub, steps: int = 100, pause: float = 0.0) -> insitu.Hub:
    with hub:
        for n in range(steps):
            hub.step(n, 0.1 * n, u=wave(n))
            time.sleep(pause)
    return hub


def live_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "lapwing-insitu-live"]


# --------------------------------------------------------------------------------------------------------- what is written


def test_status_of_a_run(tmp_path):
    pod = insitu.POD("u", rank=4)
    hub = insitu.Hub([pod, insitu.Spectrum("u")], output=tmp_path, live=True, quiet=True)
    drive(hub, pause=0.002)
    found = status(tmp_path)
    assert found["state"] == "finished" and found["message"] == "" and found["pid"] == os.getpid()
    assert (found["step"], found["steps"], found["time"]) == (99, 100, pytest.approx(9.9))
    assert found["sigma"] == pytest.approx(pod.sigma.tolist()) and found["energy"] == pod.energy
    assert found["bound"] == pod.bound and found["errors"] == 0
    assert found["solver_ms"] > 1 and found["analyses"]["POD"]["ms"] > 0 and len(found["analyses"]["Spectrum"]["power"]) > 50
    history = found["history"]
    assert history["step"] == sorted(history["step"]) and 1 < len(history["step"]) <= 240
    assert all(ms > 1 for ms in history["solver_ms"]) and {len(v) for v in history.values()} == {len(history["step"])}
    assert not live_threads() and not list(tmp_path.glob(".*"))


def test_a_reader_never_meets_half_a_file(tmp_path):
    seen, over = [], threading.Event()

    def look():
        while not over.is_set():
            if (tmp_path / "status.json").exists():
                seen.append(status(tmp_path))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        drive(insitu.Hub([insitu.POD("u", rank=4)], output=tmp_path, live=True, quiet=True), 200, 0.001)
    finally:
        over.set()
        thread.join()
    assert len(seen) > 20 and {s["state"] for s in seen} >= {"running"}
    steps = [s.get("step", -1) for s in seen]
    assert steps == sorted(steps) and [s["beat"] for s in seen] == sorted(s["beat"] for s in seen)


def test_off_costs_nothing(tmp_path, monkeypatch):
    hub = insitu.Hub([], output=tmp_path, quiet=True)
    hub.step(0)
    assert hub._live is None and not live_threads() and not (tmp_path / "status.json").exists()
    hub.finish()
    monkeypatch.setenv("LAPWING_INSITU_LIVE", "0")
    assert insitu.Hub([], output=tmp_path, live=True)._live is None


def test_the_solver_is_asked_rarely(tmp_path):
    """Many steps, few collections: the hot path looks at a flag."""
    calls = []

    class Slow(insitu.Analysis):
        def status(self):
            calls.append(time.perf_counter())
            time.sleep(0.002)
            return {}

    hub = insitu.Hub([Slow()], output=tmp_path, live=True, quiet=True)
    begin = time.perf_counter()
    with hub:
        for n in range(20_000):
            hub.step(n)
    took = time.perf_counter() - begin
    # 2 ms of collecting are paid back by 200 ms without; one more at the end
    assert len(calls) <= 3 + took / 0.2


def test_ways_to_turn_it_on(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("from lapwing import insitu\n@insitu.on_step\ndef look(ctx): pass\n")
    for name, options, told in [("json", '"live": true, ', ""), ("env", "", "1")]:
        monkeypatch.setenv("LAPWING_INSITU_LIVE", told)
        out = tmp_path / name
        session = bridge.start(str(script), f'{{{options}"output": "{out}", "quiet": true}}', -1)
        assert session.step(3, 0.5) == 0 and session.finalize() == 0
        assert status(out)["state"] == "finished" and status(out)["step"] == 3
    monkeypatch.setenv("LAPWING_INSITU_LIVE", "1")
    assert insitu.Hub([], output=None)._live is None, "set for all hubs of the process"
    monkeypatch.setenv("LAPWING_INSITU_LIVE", "yes")
    with pytest.raises(ValueError, match="must be 0 or 1, got 'yes'"):
        insitu.Hub([], output=tmp_path)
    monkeypatch.delenv("LAPWING_INSITU_LIVE")
    with pytest.raises(ValueError, match="live=True needs an output folder"):
        insitu.Hub([], output=None, live=True)
    with pytest.raises(ValueError, match="live must be True or False, got 'yes'"):
        insitu.Hub([], output=tmp_path, live="yes")


# ---------------------------------------------------------------------------------------------------------------- the modes


def drawn_modes(drawing: dict) -> np.ndarray:
    if drawing["kind"] == "lines":
        return np.array(drawing["lines"])
    shape = drawing["rows"], drawing["columns"]
    pixels = [np.frombuffer(base64.b64decode(i), np.uint8).reshape(shape) for i in drawing["images"]]
    return np.array([(p / 127.5 - 1.0) * top for p, top in zip(pixels, drawing["top"], strict=True)])


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("options", [{}, {"centre": True}, {"weights": 2.5}], ids=str)
def test_modes_are_those_of_the_pod(tmp_path, library, options):
    pytest.importorskip(library)
    rng = np.random.default_rng(0)
    shapes = {"u": (600,), "v": (60, 100), "w": (3, 5, 7)}
    made = {name: rng.standard_normal((3, *shape)) for name, shape in shapes.items()}
    pod = insitu.POD(*shapes, rank=3, block=8, **options)
    with insitu.Hub([pod], output=tmp_path, live=True, quiet=True, xp=library) as hub:
        for n in range(40):
            weights = np.array([9 * np.sin(n), 3 * np.cos(2 * n), np.sin(0.3 * n)])
            assert hub.step(n, 0.0, **{k: np.tensordot(weights, m, 1) for k, m in made.items()}) == 0, hub.last_error
    picked = {"u": np.s_[:, ::3], "v": np.s_[:, ::2, ::3], "w": np.s_[:, 1]}
    drawings = status(tmp_path)["drawings"]
    assert [d["title"] for d in drawings] == ["modes of u", "modes of v", "modes of w, middle slice"]
    for drawing, name in zip(drawings, shapes, strict=True):
        found, wanted = drawn_modes(drawing), np.asarray(pod.modes(name))[picked[name]]
        assert found.shape == wanted.shape
        axes = tuple(range(1, found.ndim))
        wanted = wanted * np.sign((found * wanted).sum(axis=axes, keepdims=True))
        # a line has five digits, an image 8 bits
        allowed = (1e-5 if drawing["kind"] == "lines" else 1 / 127) * np.abs(wanted).max()
        assert np.abs(found - wanted).max() <= allowed
    assert drawings[0]["extent"] == [0, 597] and drawings[0]["labels"] == ["mode 1", "mode 2", "mode 3"]


def test_modes_during_the_run_have_coordinates_and_a_sign(tmp_path):
    pod = insitu.POD("u", rank=2, block=8)
    mesh = insitu.Mesh(spacing=(0.5,), origin=(10.0,))
    hub = insitu.Hub([pod], output=tmp_path, live=True, quiet=True, mesh=mesh)
    for n in range(20):
        hub.step(n, 0.0, u=wave(n))
    (sketch,) = pod.sketch()
    assert sketch.extent == (10.0, 10.0 + 0.5 * 199) and sketch.free_sign
    hub.finish()
    (drawing,) = status(tmp_path)["drawings"]
    for line in np.array(drawing["lines"]):
        assert line[np.argmax(np.abs(line) >= 0.99 * np.abs(line).max())] > 0
    assert insitu.POD("u").sketch() == []


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
def test_modes_from_a_gpu(tmp_path, library):
    """Fetched while the solver's stream is full of work, without waiting for it."""
    module = pytest.importorskip(library)
    put = {
        "cupy": lambda x: module.asarray(x),
        "torch": lambda x: module.from_numpy(x).cuda(),
        "jax": lambda x: module.device_put(x),
    }[library]
    pod = insitu.POD("u", rank=2, block=8, weights=2.0)
    with insitu.Hub([pod], output=tmp_path, live=True, quiet=True) as hub:
        for n in range(200):
            assert hub.step(n, 0.0, u=put(wave(n).astype("float32"))) == 0, hub.last_error
            time.sleep(0.001)
    log = (tmp_path / "insitu-rank0.log").read_text()
    assert "live view" not in log, log
    found = status(tmp_path)
    wanted = to_host(pod.modes())
    lines = np.array(found["drawings"][0]["lines"])
    wanted = wanted * np.sign((lines * wanted).sum(axis=1, keepdims=True))
    assert np.abs(lines - wanted).max() <= 1e-4 * np.abs(wanted).max() and len(found["history"]["step"]) > 1


def test_the_last_picture_waits_for_its_figures():
    fetch = Fetch([("pod", Sketch("t", ("a",), np.zeros((1, 3)), (0.0, 1.0)))])
    asked = []

    def computed():
        asked.append(1)
        return len(asked) > 2

    fetch._events = [computed]
    fetch.take()
    assert len(asked) == 3


# ------------------------------------------------------------------------------------------------------- how it can go wrong


class Broken(insitu.Analysis):
    def __init__(self, error: BaseException, where: str) -> None:
        self.error, self.where = error, where

    def status(self):
        if self.where == "status":
            raise self.error
        return {"figure": np.float32(1.5), "nothing": float("nan"), "strange": object()}

    def sketch(self):
        if self.where == "sketch":
            raise self.error
        big = np.zeros((1, 1 << 20))
        return [insitu.Sketch("big", ("a",), big), insitu.Sketch("nan", ("a",), np.array([[np.nan, 1.0]]))]


@pytest.mark.parametrize("where", ["status", "sketch", ""])
@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3)], ids=repr)
def test_a_broken_analysis_harms_neither_run_nor_view(tmp_path, where, error):
    hub = drive(insitu.Hub([Broken(error, where)], output=tmp_path, live=True, quiet=True), pause=0.001)
    found = status(tmp_path)
    log = (tmp_path / "insitu-rank0.log").read_text()
    assert hub.errors == 0 and found["state"] == "finished" and found["step"] == 99
    assert log.count("live view: ") == (1 if where else 0)
    if not where:
        assert found["analyses"]["Broken"]["figure"] == 1.5 and found["analyses"]["Broken"]["nothing"] is None
        assert [d["title"] for d in found["drawings"]] == ["nan"] and found["drawings"][0]["lines"] == [[0.0, 1.0]]


def test_nan_in_the_mesh_and_in_sketches_is_no_nan_in_the_file(tmp_path):
    class Strange(insitu.Analysis):
        def sketch(self):
            nan = float("nan")
            lines = insitu.Sketch("lines", (np.float64(nan), "b"), np.ones((2, 3)), extent=(nan, np.inf))
            return [lines, insitu.Sketch("images", ("a",), np.ones((1, 2, 2)), aspect=nan)]

    mesh = {"spacing": (float("nan"),), "origin": (float("inf"),)}
    hub = insitu.Hub([insitu.POD("u", rank=2, block=8), Strange()], output=tmp_path, live=True, quiet=True, mesh=mesh)
    drive(hub, pause=0.001)
    assert "live view" not in (tmp_path / "insitu-rank0.log").read_text()
    text = (tmp_path / "status.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert [d["title"] for d in found["drawings"]] == ["modes of u", "lines", "images"]
    assert found["drawings"][0]["extent"] == [None, None] and found["drawings"][2]["aspect"] is None


def test_errors_of_an_analysis_are_shown(tmp_path):
    @insitu.on_step
    def bad(ctx, u):
        raise ValueError("the cause \ud800 \x1b[2J")

    drive(insitu.Hub([bad], output=tmp_path, live=True, quiet=True))
    found = status(tmp_path)
    assert found["errors"] == 1 and "the cause" in found["last_error"] and "Traceback" in found["last_error"]
    assert "the cause" in found["analyses"]["bad"]["disabled"] and found["state"] == "finished"


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "status.json").mkdir()
    hub = drive(insitu.Hub([], output=tmp_path, live=True, quiet=True), 50, 0.002)
    assert hub.steps == 50 and hub.errors == 0 and not live_threads()
    assert (tmp_path / "insitu-rank0.log").read_text().count("live view: ") == 1
    assert "cannot be read" in Reader(tmp_path).read().message


def test_stopped(tmp_path):
    @insitu.on_step
    def enough(ctx):
        if ctx.step == 3:
            raise insitu.StopRun("it is enough")

    drive(insitu.Hub([enough], output=tmp_path, live=True, quiet=True), 5)
    assert (status(tmp_path)["state"], status(tmp_path)["message"]) == ("stopped", "it is enough")


def test_failed(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        insitu.Hub([], output=tmp_path, live=True, quiet=True) as hub,
    ):
        hub.step(0)
        raise ZeroDivisionError("in the solver")
    found = status(tmp_path)
    assert found["state"] == "failed" and found["message"] == "the solver raised ZeroDivisionError: in the solver"


def test_failed_when_finishing_fails(tmp_path):
    hub = insitu.Hub([], output=tmp_path, live=True, quiet=True)
    hub.step(0)
    hub._settled = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        hub.finish()
    assert status(tmp_path)["state"] == "failed" and not live_threads()


def test_a_hub_that_is_dropped_says_so(tmp_path):
    hub = insitu.Hub([], output=tmp_path, live=True, quiet=True)
    hub.step(7)
    (thread,) = live_threads()
    time.sleep(0.1)
    del hub
    for _ in range(100):  # the thread itself may hold the hub for a moment
        gc.collect()
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert not thread.is_alive() and status(tmp_path)["state"] == "stopped" and "without finish" in status(tmp_path)["message"]


def test_the_thread_takes_no_signals(tmp_path):
    hub = insitu.Hub([], output=tmp_path, live=True, quiet=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    hub.step(0)
    (thread,) = live_threads()
    (line,) = (s for s in Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines() if s.startswith("SigBlk"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        assert int(line.split()[1], 16) >> (number - 1) & 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before and thread.daemon
    hub.finish()


RUN = """
import sys, time
from lapwing import insitu
@insitu.on_step
def work(ctx):
    if ctx.step == 3 and {abort}: raise ValueError("broken")
hub = insitu.Hub([work], output=sys.argv[1], live=True, quiet=True, on_error="abort")
for n in range(100000):
    hub.step(n)
    time.sleep(0.001)
"""


def test_abort_is_a_failure(tmp_path):
    code = RUN.format(abort=True)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    found = status(tmp_path)
    assert done.returncode == 1 and found["state"] == "failed" and "work raised ValueError: broken" in found["message"]


def test_a_killed_run_is_noticed(tmp_path, monkeypatch):
    from lapwing.insitu.live import reader

    started = subprocess.Popen([sys.executable, "-c", RUN.format(abort=False), str(tmp_path)])
    try:
        look, limit = Reader(tmp_path), time.monotonic() + 60
        while look.read().state != "running" and time.monotonic() < limit:
            time.sleep(0.05)
        assert look.read().state == "running"
    finally:
        started.kill()
        started.wait()
    monkeypatch.setattr(reader, "_SILENT", 0.2)
    monkeypatch.setattr(reader, "number", lambda value: float(value) if value > 100 else 0.0)  # the period
    limit = time.monotonic() + 10
    while look.read().state == "running" and time.monotonic() < limit:
        time.sleep(0.05)
    assert look.read().state == "silent" and "no sign of life" in look.read().message
    assert Reader(tmp_path).read().state == "silent", "also at the first look"


def test_values_of_any_kind_become_plain():
    deep: dict = {}
    deep["self"] = deep
    found = plain({"deep": deep, "long": "x" * 100_000, "many": list(range(5000)), "huge": 10**400, "array": np.arange(3)})
    text = json.dumps(found, allow_nan=False)
    assert len(text) < 20_000 and found["array"] == [0, 1, 2] and len(found["many"]) == 512
    assert plain(np.float64("inf")) is None and plain(True) is True and plain(np.bool_(True)) is True
    assert plain(b"\xff") == "b'\\xff'"
