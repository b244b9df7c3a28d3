"""A run that is interrupted and resumed is, bit for bit, the run that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from insitu.cases import burgers
from insitu.harness import environment
from lapwing import insitu
from lapwing.insitu.solver import bridge

HISTORY = burgers()[::20, 1:-1]


class Own(insitu.Analysis):
    """A user's analysis with all kinds of state."""

    fields = ("u",)

    def on_start(self, ctx):
        self.total, self.text, self.nested = 0.0, "", {"list": [], "none": None, "deep": {"array": np.zeros(3)}}

    def on_step(self, ctx, u):
        self.total += float(u[3]) / 3
        self.text += "x"
        self.nested["list"].append(float(u.max()))
        self.nested["deep"]["array"] = self.nested["deep"]["array"] / 3 + u[:3]

    def state(self):
        return {"total": self.total, "text": self.text, "nested": self.nested}

    def restore(self, state):
        self.total, self.text, self.nested = state["total"], state["text"], state["nested"]

    def results(self):
        return {"total": self.total, "text": self.text, "list": self.nested["list"], "array": self.nested["deep"]["array"]}


class Steady(insitu.Stop):
    def results(self):
        return {"change": self.change, "before": self._before[0]}


class Lines(insitu.Plot):
    def results(self):
        return {f"{step}": line for step, _, line in self._lines}


MAKE = {
    "POD": lambda: insitu.POD("u", rank=5),
    "POD centred": lambda: insitu.POD("u", rank=5, centre=True, weights=0.3),
    "POD tol": lambda: insitu.POD("u", rank=2, tol=1e-6, block=8),
    "DMD": lambda: insitu.DMD("u", modes=4),
    "Stats": lambda: insitu.Stats("u"),
    "Probe": lambda: insitu.Probe("u", points=[3, 200]),
    "Spectrum": lambda: insitu.Spectrum("u", window="hann"),
    "Snapshots": lambda: insitu.Snapshots("u", limit=8 * 256 * 9),
    "Stop": lambda: Steady("u", when="steady", tol=1e-12),
    "Plot": lambda: Lines("u", refresh=1e9),
    "own": Own,
}


def as_given(x, library):
    if library == "torch":
        import torch

        return torch.from_numpy(np.array(x))
    if library == "jax":
        import jax

        return jax.numpy.asarray(x.astype(np.float32))
    return x


def whole(make, tmp_path, library="numpy"):
    analysis = make()
    with insitu.Hub([analysis], output=tmp_path, quiet=True) as hub:
        for n, x in enumerate(HISTORY):
            hub.step(n, 0.02 * n, u=as_given(x, library))
    assert hub.errors == 0, hub.last_error
    return analysis


def resumed(make, tmp_path, at, library="numpy"):
    first = insitu.Hub([make()], output=tmp_path, quiet=True)
    for n, x in enumerate(HISTORY[:at]):
        first.step(n, 0.02 * n, u=as_given(x, library))
    first.checkpoint(tmp_path / "saved")
    for n in range(3):  # the rest of this run is lost, and must leave no trace in the file
        first.step(at + n, 0.0, u=as_given(1e3 * HISTORY[0], library))
    analysis = make()
    with insitu.Hub([analysis], output=tmp_path, quiet=True) as hub:
        hub.restore(tmp_path / "saved")
        for n, x in enumerate(HISTORY[at:]):
            hub.step(at + n, 0.02 * (at + n), u=as_given(x, library))
    assert hub.errors == 0, hub.last_error
    assert hub.steps == len(HISTORY)
    return analysis


def assert_same(one, two):
    there, here = one.results(), two.results()
    assert there.keys() == here.keys() and there
    for name, value in there.items():
        a, b = np.asarray(value), np.asarray(here[name])
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), name


@pytest.mark.parametrize("at", [0, 1, 10, 47, len(HISTORY)])
@pytest.mark.parametrize("name", MAKE)
def test_bitwise(name, at, tmp_path):
    if name == "Plot":
        pytest.importorskip("matplotlib")
    assert_same(whole(MAKE[name], tmp_path), resumed(MAKE[name], tmp_path, at))


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("name", ["POD centred", "Stats", "Spectrum", "Stop", "Probe"])
def test_bitwise_in_other_libraries(name, library, tmp_path):
    pytest.importorskip(library)
    assert_same(whole(MAKE[name], tmp_path, library), resumed(MAKE[name], tmp_path, 33, library))


def test_many_analyses_and_their_counters(tmp_path):
    def make():
        class Bad(insitu.Analysis):
            def on_step(self, ctx):
                if ctx.step == 4:
                    raise StopIteration("bad")

        return [insitu.POD("u", rank=3), Bad(), insitu.Stats("u", every=3)]

    first = insitu.Hub(make(), output=None, quiet=True)
    for n in range(20):
        first.step(n, 0.0, u=HISTORY[n])
    name = first.checkpoint(tmp_path / "deep" / "er")
    assert name == tmp_path / "deep" / "er.rank0.npz" and name.exists()
    second = insitu.Hub(make(), output=None, quiet=True)
    second.restore(tmp_path / "deep" / "er")
    assert second.errors == 1 and second.status()["analyses"]["Bad"]["disabled"] and second.steps == 20
    assert [s.calls for s in second._slots] == [20, 20, 7]


def saved(tmp_path, analyses):
    hub = insitu.Hub(analyses, output=None, quiet=True)
    for n in range(5):
        hub.step(n, 0.0, u=HISTORY[n])
    return hub.checkpoint(tmp_path / "c")


def refuse(tmp_path, analyses, words):
    hub = insitu.Hub(analyses, output=None, quiet=True)
    with pytest.raises(ValueError, match=words) as raised:
        hub.restore(tmp_path / "c")
    return raised.value


def test_wrong_checkpoints(tmp_path):
    assert isinstance(refuse(tmp_path, [insitu.Stats("u")], "no checkpoint"), insitu.CheckpointError)
    saved(tmp_path, [insitu.Stats("u")])
    refuse(tmp_path, [insitu.POD("u")], r"holds the analyses Stats \(Stats of u, every 1\), but this run has POD \(POD of u")
    refuse(tmp_path, [insitu.Stats("u"), insitu.Stats("u")], "Stats 2")
    path = saved(tmp_path, [insitu.POD("u", rank=3)])
    refuse(tmp_path, [insitu.POD("u", rank=4)], r"rank=3 \(here 4\)")
    saved(tmp_path, [insitu.Probe("u", points=[1])])
    refuse(tmp_path, [insitu.Probe("u", points=[2])], "points")
    # damaged and foreign files
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    refuse(tmp_path, [insitu.Probe("u", points=[1])], "damaged")
    path.write_text("hello")
    refuse(tmp_path, [insitu.Probe("u", points=[1])], "not a checkpoint")
    np.savez(path, about=np.frombuffer(b'{"format": "other"}', np.uint8))
    refuse(tmp_path, [insitu.Probe("u", points=[1])], "not a checkpoint")
    np.savez(path, x=np.zeros(3))
    refuse(tmp_path, [insitu.Probe("u", points=[1])], "not a checkpoint")


def test_another_version_or_rank(tmp_path):
    path = saved(tmp_path, [insitu.Stats("u")])
    with np.load(path) as file:
        arrays = {k: file[k] for k in file.files}
    about = json.loads(bytes(arrays.pop("about")))
    for change, words in (({"version": 99}, "version 99"), ({"size": 4}, "rank 0 of 4")):
        np.savez(path, about=np.frombuffer(json.dumps(about | change).encode(), np.uint8), **arrays)
        refuse(tmp_path, [insitu.Stats("u")], words)


HEADERS = [
    *({name: bad} for name in ("step", "steps", "rank", "size") for bad in ("7", float("nan"), 1e30, 10**30, None, True, [])),
    *({"time": bad} for bad in ("soon", None, 10**400)),
    *({name: bad} for name in ("analyses", "states") for bad in (None, "x", {}, [], [3], [None, None])),
]


@pytest.mark.parametrize("change", HEADERS, ids=lambda change: str(change)[:40])
def test_damaged_headers(tmp_path, change):
    path = saved(tmp_path, [insitu.Stats("u")])
    with np.load(path) as file:
        arrays = {k: file[k] for k in file.files}
    about = json.loads(bytes(arrays.pop("about")))
    np.savez(path, about=np.frombuffer(json.dumps(about | change).encode(), np.uint8), **arrays)
    assert isinstance(refuse(tmp_path, [insitu.Stats("u")], "(is|are) damaged[: ]"), insitu.CheckpointError)


@pytest.mark.parametrize("name", ["name", "class", "fields", "every", "calls", "errors", "disabled"])
@pytest.mark.parametrize("bad", [float("nan"), 1e30, 10**30, {"a": 1}, [1, 2]], ids=str)
def test_damaged_analyses_in_a_header(tmp_path, name, bad):
    path = saved(tmp_path, [insitu.Stats("u")])
    with np.load(path) as file:
        arrays = {k: file[k] for k in file.files}
    about = json.loads(bytes(arrays.pop("about")))
    about["analyses"][0][name] = bad
    np.savez(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
    error = refuse(tmp_path, [insitu.Stats("u")], f"{name} of analysis 1 is")
    assert isinstance(error, insitu.CheckpointError)


def test_damaged_states(tmp_path):
    path = saved(tmp_path, [insitu.POD("u", rank=3)])
    with np.load(path) as file:
        arrays = {k: file[k] for k in file.files}
    about = json.loads(bytes(arrays.pop("about")))
    for state in ({"dict": {}}, {"value": 3}, {"array": "none"}, {"list": 3}, {"dict": {"stream": {"value": "x"}}}, {}):
        np.savez(path, about=np.frombuffer(json.dumps(about | {"states": [state]}).encode(), np.uint8), **arrays)
        assert isinstance(refuse(tmp_path, [insitu.POD("u", rank=3)], r"(is|are) damaged \("), insitu.CheckpointError)


def test_unfinished_checkpoints_of_killed_runs_are_removed(tmp_path):
    """Only files that have our names, belong to this user, and that no living process writes."""
    code = f"""
import os, sys
import numpy as np
from lapwing import insitu
from lapwing.insitu.solver import checkpoint
checkpoint.os.fsync = lambda handle: (print("writing", flush=True), sys.stdin.read())
hub = insitu.Hub([insitu.Stats("u")], output=None, quiet=True)
hub.step(0, 0.0, u=np.zeros(1000))
hub.checkpoint({str(tmp_path / "old")!r})
"""
    writers = []
    for _ in range(2):
        command = [sys.executable, "-c", code]
        writers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()))
        assert writers[-1].stdout.readline() == b"writing\n"
    killed, living = writers
    killed.kill()
    killed.communicate()
    names = {f"old.rank0.npz.{writer.pid}.partial" for writer in writers}
    assert {p.name for p in tmp_path.iterdir()} == names
    others = {"notes.partial", "old.rank0.npz.partial", f"old.rank0.npz.{os.getpid()}.partial", "a.npz.99999999.partial"}
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "link.rank0.npz.99999999.partial").symlink_to(tmp_path / "notes.partial")
    saved(tmp_path, [insitu.Stats("u")])
    left = {p.name for p in tmp_path.iterdir()}
    assert left == others | {"link.rank0.npz.99999999.partial", f"old.rank0.npz.{living.pid}.partial", "c.rank0.npz"}
    living.communicate()
    assert living.returncode == 0 and (tmp_path / "old.rank0.npz").exists()


def test_state_that_cannot_be_saved(tmp_path):
    class Odd(insitu.Analysis):
        def state(self):
            return {"x": {1, 2}}

    with pytest.raises(TypeError, match="is a set"):
        insitu.Hub([Odd()], output=None, quiet=True).checkpoint(tmp_path / "c")
    assert not list(tmp_path.iterdir())  # and no half of a file


def test_through_the_bridge(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("from lapwing import insitu\nanalyses = [insitu.Stats('u')]\n")
    options = json.dumps({"output": str(tmp_path), "quiet": True})
    session = bridge.start(str(script), options)
    assert session.restore(str(tmp_path / "none")) == -1 and "no checkpoint" in session.error()
    u = HISTORY[0].copy()
    session.field("u", u.ctypes.data, u.shape, None, "f", 64, 1, 0, 0, False)
    assert session.step(0, 0.0) == 0
    assert session.checkpoint(str(tmp_path / "c")) == 0
    assert session.checkpoint("/proc/nowhere/c") == -1 and session.step(1, 0.0) == 1
    again = bridge.start(str(script), options)
    assert again.restore(str(tmp_path / "c")) == 0, again.error()
    assert np.array_equal(again.hub.analyses[0].mean(), u)
    again.finalize()
    session.finalize()


class Keys(insitu.Analysis):
    fields = ()

    def __init__(self):
        self.kept = {"a/b": np.ones(2), "a": {"b": np.zeros(2)}}

    def state(self):
        return self.kept

    def restore(self, state):
        self.kept = state


def test_keys_that_look_alike_stay_apart(tmp_path):
    with insitu.Hub([Keys()], output=None, quiet=True) as hub:
        hub.checkpoint(tmp_path / "c")
    again = Keys()
    again.kept = {}
    insitu.Hub([again], output=None, quiet=True).restore(tmp_path / "c")
    assert again.kept["a/b"].tolist() == [1, 1] and again.kept["a"]["b"].tolist() == [0, 0]


def test_a_restore_that_fails_changes_nothing(tmp_path):
    def run(rank, steps):
        stats, pod = insitu.Stats("u"), insitu.POD("u", rank=rank)
        hub = insitu.Hub([stats, pod], output=None, quiet=True)
        for n in range(steps):
            hub.step(n, 0.0, u=np.arange(5.0) + n)
        return hub, stats

    hub, _ = run(2, 5)
    hub.checkpoint(tmp_path / "c")
    other, stats = run(3, 2)
    mean = stats.mean().copy()
    with pytest.raises(ValueError):
        other.restore(tmp_path / "c")
    assert (stats.mean() == mean).all() and other.steps == 2


def test_other_fields_are_refused(tmp_path):
    hub = insitu.Hub([insitu.Stats("u")], output=None, quiet=True)
    hub.step(0, 0.0, u=np.ones(3))
    hub.checkpoint(tmp_path / "c")
    with pytest.raises(ValueError, match=r"of u, every 1.*of u, v, every 1"):
        insitu.Hub([insitu.Stats("u", "v")], output=None, quiet=True).restore(tmp_path / "c")


def test_a_switched_off_analysis_does_not_stop_a_checkpoint(tmp_path):
    class Fails(insitu.Analysis):
        fields = ()

        def state(self):
            raise ZeroDivisionError

    stats = insitu.Stats("u")
    hub = insitu.Hub([Fails(), stats], output=None, quiet=True)
    hub.step(0, 0.0, u=np.ones(3))
    hub.checkpoint(tmp_path / "c")
    assert hub.errors == 1
    again = insitu.Hub([Fails(), insitu.Stats("u")], output=None, quiet=True)
    again.restore(tmp_path / "c")
    assert again.step(1, 0.0, u=np.ones(3)) == 1  # one is off, as before
    hub.finish()
    with pytest.raises(RuntimeError, match="finished"):
        hub.step(2, 0.0, u=np.ones(3))
