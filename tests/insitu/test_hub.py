"""The hub and the bridge: what runs when, what an error does, what the solver is told."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pytest

from lapwing import insitu
from lapwing.insitu.solver import bridge

OK, WARN, STOP, ERR = 0, 1, 2, -1
U = np.arange(4.0)


class Record(insitu.Analysis):
    fields = ("u",)

    def __init__(self, fail_at=(), error=None, **attributes):
        self.calls, self.fail_at, self.error = [], fail_at, error or ValueError("broken")
        for name, value in attributes.items():
            setattr(self, name, value)

    def on_start(self, ctx):
        self.calls.append("start")

    def on_step(self, ctx, *arrays):
        self.calls.append(ctx.step)
        if ctx.step in self.fail_at:
            raise self.error

    def on_finish(self, ctx):
        self.calls.append("finish")


def hub(*analyses, **options):
    return insitu.Hub(analyses, **({"output": None, "quiet": True} | options))


def steps(made, count=5, **fields):
    with made:
        return [made.step(n, 0.1 * n, **(fields or {"u": U})) for n in range(count)]


def test_order_and_every():
    a, b = Record(), Record(every=2)
    made = hub(a, b)
    assert steps(made) == [OK] * 5
    assert a.calls == ["start", 0, 1, 2, 3, 4, "finish"] and b.calls == ["start", 0, 2, 4, "finish"]
    c = Record()
    assert steps(hub(c, every=3)) == [OK] * 5 and c.calls == ["start", 0, 3, "finish"]


def test_disable():
    bad, good = Record(fail_at=(2,)), Record()
    made = hub(bad, good)
    assert steps(made) == [OK, OK, WARN, WARN, WARN]
    assert bad.calls == ["start", 0, 1, 2] and good.calls[-1] == "finish" and len(good.calls) == 7
    assert made.errors == 1 and "broken" in made.last_error and "Traceback" in made.last_error
    assert "switched off (ValueError: broken)" in made.summary() and "1 error" in made.summary()


def test_warn():
    bad = Record(fail_at=(1, 3))
    made = hub(bad, on_error="warn")
    assert steps(made) == [OK, WARN, WARN, WARN, WARN]
    assert bad.calls == ["start", 0, 1, 2, 3, 4, "finish"] and made.errors == 2


def test_stop():
    made = hub(Record(fail_at=(1,)), on_error="stop")
    assert steps(made, 3) == [OK, STOP, STOP]
    assert "broken" in made.stop_reason


def test_abort_ends_the_process(tmp_path):
    import subprocess

    code = f"""
from lapwing import insitu
import numpy as np
@insitu.on_step
def bad(ctx, u): raise ValueError("broken")
hub = insitu.Hub([bad], output={str(tmp_path)!r}, on_error="abort")
hub.step(0, 0.0, u=np.zeros(2)); print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "broken" in done.stderr and "not reached" not in done.stdout


@pytest.mark.parametrize("error", [SystemExit(7), GeneratorExit(), MemoryError("full"), RecursionError()])
def test_nothing_gets_out(error):
    made = hub(Record(fail_at=(1,), error=error))
    assert steps(made, 3) == [OK, WARN, WARN] and made.errors == 1


def test_control_c_reaches_a_python_solver_but_not_a_c_one():
    made = hub(Record(fail_at=(0,), error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        made.step(0, 0.0, u=U)
    made = hub(Record(fail_at=(0,), error=KeyboardInterrupt()))
    made._embedded = True
    assert made.step(0, 0.0, u=U) == WARN


def test_errors_in_start_and_finish():
    class Bad(insitu.Analysis):
        def on_start(self, ctx):
            raise OSError("no start")

    class Late(insitu.Analysis):
        def on_finish(self, ctx):
            raise OSError("no finish")

    made = hub(Bad(), Late(), good := Record())
    assert steps(made, 2) == [WARN, WARN] and made.errors == 2 and good.calls[-1] == "finish"


def test_stop_requests():
    @insitu.on_step
    def by_raise(ctx, u):
        if ctx.step == 1:
            raise insitu.StopRun("enough")

    after = Record()
    made = hub(by_raise, after)
    assert steps(made, 3) == [OK, STOP, STOP] and made.stop_reason == "enough" and made.errors == 0
    assert 1 in after.calls  # the others of that step still run
    made = hub(insitu.on_step(lambda ctx, u: ctx.stop("by word")))
    assert steps(made, 1) == [STOP] and made.stop_reason == "by word"


def test_missing_field_is_named():
    made = hub(Record(fields=("u", "pressure")))
    made.step(4, 0.0, u=U, v=U)
    assert "'pressure'" in made.last_error and "step 4" in made.last_error and "u, v" in made.last_error


def test_all_fields_and_none():
    seen = []

    class Everything(insitu.Analysis):
        fields = None

        def on_step(self, ctx, *arrays):
            seen.append((tuple(ctx.fields), len(arrays)))

    made = hub(Everything(), Record(fields=()))
    assert made.step(0, 0.0, u=U, v=U) == OK and seen == [(("u", "v"), 2)]
    assert made.step(1, 0.0) == OK


def test_context(tmp_path):
    seen = {}

    @insitu.on_step
    def look(ctx, u):
        seen.update(
            step=ctx.step, time=ctx.time, rank=ctx.rank, size=ctx.size, options=ctx.options, output=ctx.output, xp=ctx.xp
        )
        seen["repr"] = repr(ctx.fields["u"])
        ctx.log("hello")

    with insitu.Hub([look], output=tmp_path / "out", quiet=True, options={"nu": 0.1}) as made:
        made.step(3, 0.5, u=U)
    assert seen["step"] == 3 and seen["time"] == 0.5 and (seen["rank"], seen["size"]) == (0, 1)
    assert seen["options"] == {"nu": 0.1} and seen["output"] == tmp_path / "out" and seen["xp"] == "auto"
    assert seen["repr"] == "Field('u', shape=(4,), dtype=float64, on the CPU)"
    log = (tmp_path / "out" / "insitu-rank0.log").read_text()
    assert "hello" in log and "1 steps" in log


def test_log_and_stderr(tmp_path, capsys):
    with insitu.Hub([Record(fail_at=(0,))], output=tmp_path) as made:
        made.step(0, 0.0, u=U)
    shown = capsys.readouterr().err
    assert "[insitu] step 0: Record raised ValueError: broken" in shown and "Traceback" in shown and "switched off" in shown
    assert "Traceback" in (tmp_path / "insitu-rank0.log").read_text()
    with insitu.Hub([Record(fail_at=(0,))], output=tmp_path, quiet=True) as made:
        made.step(0, 0.0, u=U)
    assert capsys.readouterr().err == ""


def test_status():
    class Slow(insitu.Analysis):
        def on_step(self, ctx):
            time.sleep(0.01)

        def status(self):
            return {"sigma": [1.0], "energy": 0.5, "bound": 0.1, "pictures": ["a.png"]}

    made = hub(Slow(), Record(fail_at=(1,)))
    for n in range(3):
        made.step(n, 0.1 * n, u=U)
        time.sleep(0.02)
    status = made.status()
    json.dumps(status)
    assert status["step"] == 2 and status["steps"] == 3 and status["time"] == pytest.approx(0.2)
    assert status["sigma"] == [1.0] and status["energy"] == 0.5 and status["bound"] == 0.1 and status["pictures"] == ["a.png"]
    assert status["analysis_ms"] > 9 and status["solver_ms"] > 19
    assert status["errors"] == 1 and status["analyses"]["Record"]["disabled"] and status["analyses"]["Slow"]["ms"] > 9


def test_finish_once_and_solver_errors():
    a = Record()
    with pytest.raises(ZeroDivisionError), hub(a) as made:
        made.step(0, 0.0, u=U)
        raise ZeroDivisionError
    made.finish()
    assert a.calls == ["start", 0, "finish"]  # the results so far are kept, the solver's error is its own


def test_names_are_told_apart():
    made = hub(Record(), Record(), insitu.on_step(lambda ctx: None), name_of := Record(name="mine"))
    assert list(made.status()["analyses"]) == ["Record", "Record 2", "<lambda>", "mine"] and name_of.name == "mine"


def test_decorator_takes_names_of_arguments():
    @insitu.on_step(every=3)
    def both(ctx, u, v):
        """What it does."""
        return u + v

    assert both.fields == ("u", "v") and both.every == 3 and both.name == "both" and both.__doc__ == "What it does."
    assert both(None, 1, 2) == 3
    named = insitu.on_step(fields="p")(lambda ctx, x: None)
    assert named.fields == ("p",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"on_error": "ignore"}, "disable, warn, stop, abort"),
        ({"xp": "tensorflow"}, "auto, numpy, cupy, torch, jax"),
        ({"every": 0}, "positive whole number"),
        ({"mesh": {"size": 3}}, "no entry size"),
    ],
)
def test_bad_options(wrong, words):
    with pytest.raises(ValueError, match=words):
        insitu.Hub([], output=None, **wrong)


def test_bad_analyses():
    with pytest.raises(TypeError, match=r"Record\(...\)"):
        insitu.Hub([Record])
    with pytest.raises(TypeError, match="not an analysis"):
        insitu.Hub([3])
    with pytest.raises(ValueError, match=r"Record.every"):
        insitu.Hub([Record(every=0)])


def test_a_field_that_is_no_array():
    made = hub(Record())
    assert made.step(0, 0.0, u=[1, 2]) == WARN and "'u' is a list" in made.last_error


def test_cost_of_a_step():
    """A few microseconds; the bar is generous for busy machines."""
    made = hub(insitu.on_step(lambda ctx, u: None))
    best = 1e9
    for _ in range(20):
        begin = time.perf_counter()
        for n in range(200):
            made.step(n, 0.0, u=U)
        best = min(best, (time.perf_counter() - begin) / 200)
    assert best < 30e-6


# -------------------------------------------------------------------------------------------------------------- bridge


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text("from lapwing import insitu\n" + text)
    return str(path)


def give(session, array, name="u"):
    session.field(name, array.ctypes.data, array.shape, None, "f", 64, 1, 0, 0, False)


def start(tmp_path, text, **options):
    return bridge.start(script(tmp_path, text), json.dumps({"output": str(tmp_path / "out"), "quiet": True} | options))


FORMS = {
    "function": "class A(insitu.Analysis):\n  fields=('u',)\n  def on_step(self, ctx, u): ctx.log(f'sum {u.sum()}')\n"
    "def analyses(): return [A()]\n",
    "list": "@insitu.on_step\ndef f(ctx, u): ctx.log(f'sum {u.sum()}')\nanalyses = [f]\n",
    "decorator": "@insitu.on_step\ndef f(ctx, u): ctx.log(f'sum {u.sum()}')\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_scripts(form, tmp_path):
    session = start(tmp_path, FORMS[form])
    assert session.error() == "" and session.alive and len(session.hub.analyses) == 1
    for n in range(3):
        give(session, U)
        assert session.step(n, 0.1 * n) == OK
    assert session.finalize() == OK
    assert (tmp_path / "out" / "insitu-rank0.log").read_text().count("sum 6.0") == 3
    assert session.step(3, 0.0) == ERR and session.finalize() == ERR  # over


def test_module_and_name(tmp_path, monkeypatch):
    (tmp_path / "my_analyses.py").write_text(FORMS["function"].replace("insitu.", "__import__('lapwing.insitu').insitu."))
    monkeypatch.syspath_prepend(tmp_path)
    session = bridge.start("my_analyses:analyses", json.dumps({"output": str(tmp_path), "quiet": True}))
    assert session.error() == "" and len(session.hub.analyses) == 1
    session.finalize()


def test_script_beside_a_module(tmp_path):
    (tmp_path / "beside_it.py").write_text("value = 3\n")
    before = list(sys.path)
    session = start(tmp_path, "@insitu.on_step\ndef f(ctx):\n  import beside_it\n  assert beside_it.value == 3\n")
    assert session.step(0, 0.0) == OK, session.error()
    session.finalize()
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_module\n", "no_such_module"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("1/0\n", "ZeroDivisionError"),
        ("def (:\n", "SyntaxError"),
        ("pass\n", "has no analyses"),
        ("def analyses(): return [3]\n", "not an analysis"),
    ],
)
def test_bad_scripts(text, words, tmp_path, capsys):
    session = start(tmp_path, text)
    assert not session.alive and words in session.error() and words in capsys.readouterr().err
    give(session, U)
    assert session.step(0, 0.0) == ERR and session.checkpoint("x") == ERR and session.restore("x") == ERR
    session.mesh({})
    assert session.finalize() == ERR


@pytest.mark.parametrize(
    ("options", "words"),
    [("{", "Expecting"), ("[1]", "JSON object"), ('{"on_error": "no"}', "disable"), ('{"xp": 3}', "auto, numpy")],
)
def test_bad_options_json(options, words, tmp_path):
    session = bridge.start(script(tmp_path, FORMS["list"]), options)
    assert not session.alive and words in session.error()


def test_no_script(tmp_path):
    assert "no script" in bridge.start("", "{}").error()
    assert "there is no script" in bridge.start(str(tmp_path / "none.py"), "{}").error()


def test_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LAPWING_INSITU", "0")
    off = bridge.start("/none.py", "{}")
    give(off, U)
    assert off.step(0, 0.0) == OK and off.finalize() == OK and off.error() == ""
    monkeypatch.setenv("LAPWING_INSITU", "1")
    monkeypatch.setenv("LAPWING_INSITU_SCRIPT", script(tmp_path, "@insitu.on_step\ndef f(ctx): raise OSError\n"))
    monkeypatch.setenv("LAPWING_INSITU_ON_ERROR", "stop")
    session = bridge.start("/none.py", json.dumps({"output": str(tmp_path), "quiet": True, "nu": 3}))
    assert session.hub.ctx.options == {"nu": 3}
    assert session.step(0, 0.0) == STOP and "OSError" in session.error()
    session.finalize()


def test_fields_and_errors_through_the_bridge(tmp_path):
    session = start(tmp_path, FORMS["decorator"], on_error="warn")
    session.field("u", 0, (4,), None, "f", 64, 1, 0, 0, False)
    assert session.step(0, 0.0) == WARN and "null pointer" in session.error()
    assert session.step(1, 0.0) == WARN and "step 1" in session.error()  # none given: those of a step are gone after it
    give(session, U)
    assert session.step(2, 0.0) == WARN and session.hub.errors == 2
    session.hub._run = None  # an error of our own
    assert session.step(3, 0.0) == ERR and "TypeError" in session.error()


def test_two_buffers_and_a_new_shape(tmp_path):
    """A solver that swaps buffers comes back to cached fields; a new size is a new field."""
    text = "seen = []\n@insitu.on_step\ndef f(ctx, u): seen.append(u.copy())\n"
    session = start(tmp_path, text)
    a, b = np.arange(4.0), np.arange(4.0) + 10
    for n in range(6):
        a += 1
        b += 1
        give(session, (a, b)[n % 2])
        assert session.step(n, 0.0) == OK
    c = np.zeros((2, 3))
    give(session, c)
    assert session.step(6, 0.0) == OK
    seen = session.hub.analyses[0].function.__globals__["seen"]
    assert [x[0] for x in seen[:6]] == [1, 12, 3, 14, 5, 16] and seen[6].shape == (2, 3)
    many = np.zeros((200, 4))
    for n in range(200):  # the memory of pointers is bounded
        give(session, many[n])
        session.step(7 + n, 0.0)
    assert len(session._known) <= 64


def test_mesh_through_the_bridge(tmp_path):
    session = start(tmp_path, "analyses = [insitu.POD('u', rank=1, weights='mesh')]\n")
    w = np.array([1.0, 4.0, 9.0, 16.0])
    session.mesh({"global_shape": (4,), "offset": (0,), "weights": (w.ctypes.data, (4,), None, "f", 64, 1, 0, 0, False)})
    w[:] = -1  # it was copied
    u = np.ones(4)
    for n in range(3):
        give(session, u)
        assert session.step(n, 0.0) == OK, session.error()
    pod = session.hub.analyses[0]
    assert session.finalize() == OK
    assert pod.sigma == pytest.approx([np.sqrt(3 * 30)])
    bad = start(tmp_path, FORMS["list"])
    bad.mesh({"nonsense": 1})
    assert "nonsense" in bad.error()


def test_mesh_places():
    mesh = insitu.Mesh.of({"global_shape": (8, 8), "offset": (4, 0), "spacing": (0.5, 0.25), "origin": (1.0, 0.0)})
    assert mesh.nearest((3.6, 0.5), (4, 8)) == (1, 2) and mesh.nearest((1.0, 0.0), (4, 8)) is None
    x, y = np.meshgrid(np.linspace(0, 1, 5), np.linspace(0, 1, 7), indexing="ij")
    assert insitu.Mesh.of({"coordinates": (x, y)}).nearest((0.26, 0.99), (5, 7)) == (1, 6)
    with pytest.raises(ValueError, match="neither spacing nor coordinates"):
        insitu.Mesh().nearest((1.0,), (3,))


def test_an_output_that_is_a_file(tmp_path):
    (tmp_path / "solver").touch()
    with pytest.raises(NotADirectoryError, match="is a file"):
        insitu.Hub([], output=tmp_path / "solver")


def test_an_output_that_cannot_be_made(tmp_path, capfd):
    """Analyses that need no folder run all the same, from their start."""
    (tmp_path / "solver").touch()
    stats = insitu.Stats("u")
    with insitu.Hub([stats, insitu.Writer("u")], output=tmp_path / "solver" / "results") as hub:
        assert hub.step(0, 0.0, u=np.ones(3)) == 1
    assert stats.count() == 1 and hub.errors == 1
    assert "cannot be created" in capfd.readouterr().err


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("policy", ["disable", "warn", "stop"])
def test_an_error_without_words(policy):
    class Fails(insitu.Analysis):
        fields = ()

        def on_step(self, ctx):
            raise Unprintable

    seen = []
    with insitu.Hub(
        [Fails(), insitu.on_step(fields=())(lambda ctx: seen.append(1))], output=None, quiet=True, on_error=policy
    ) as hub:
        assert hub.step(0, 0.0) == (2 if policy == "stop" else 1)
    assert seen == [1] and hub.errors == 1


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(9)])
def test_a_summary_that_fails_is_part_of_the_summary(error):
    class Fails(insitu.Analysis):
        fields = ()

        def summary(self):
            raise error

    hub = insitu.Hub([Fails()], output=None, quiet=True)
    hub.step(0, 0.0)
    hub.finish()
    assert f"its summary failed ({type(error).__name__}" in hub.summary()


def test_the_output_folder_stays_when_the_solver_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub = insitu.Hub([], output="out", quiet=True)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    hub.step(0, 0.0)
    hub.finish()
    assert (tmp_path / "out").is_dir() and not (tmp_path / "sub" / "out").exists()


def test_steps_and_times_of_numpy_can_be_saved(tmp_path):
    stats = insitu.Stats("u")
    with insitu.Hub([stats], output=None, quiet=True) as hub:
        for n in np.arange(3):
            hub.step(n, np.float32(0.5), u=np.ones(2))
        hub.checkpoint(tmp_path / "c")


def test_strides_that_are_no_multiples_are_refused():
    pytest.importorskip("torch")
    table = np.zeros(4, [("a", "f8"), ("b", "i4")])
    with insitu.Hub([insitu.on_step(fields=["u"])(lambda ctx, u: None)], output=None, quiet=True, xp="torch") as hub:
        assert hub.step(0, 0.0, u=table["a"]) == 1 and "multiple" in hub.last_error


def test_a_probe_outside_and_whole_numbers_that_jump():
    probe = insitu.Probe("u", points=[(5.0,)])
    with insitu.Hub([probe], output=None, quiet=True, mesh=insitu.Mesh(global_shape=(10,), spacing=(0.1,))) as hub:
        assert hub.step(0, 0.0, u=np.ones(10)) == 1 and "outside" in hub.last_error
    stop = insitu.Stop("u", when="steady", tol=0.1)
    with insitu.Hub([stop], output=None, quiet=True) as hub:
        for n, value in enumerate((127, -128)):
            assert hub.step(n, 0.0, u=np.full(3, value, np.int8)) == 0


def test_a_device_out_of_reach_leaves_the_host_alone(monkeypatch):
    """No GPU and no library for one: who wants the field says so once, the others run and finish."""
    from lapwing.insitu.solver import hub as module

    def nowhere(*_):
        raise RuntimeError("no such device")

    monkeypatch.setattr(module, "stream_context", nowhere)
    monkeypatch.setattr(module, "synchronise", nowhere)
    stats, wants = insitu.Stats("u"), insitu.Stats("far")
    session = bridge.Session(insitu.Hub([stats, wants], output=None, quiet=True, xp="numpy"))
    u = np.ones(4)
    for n in range(3):
        session.field("u", u.ctypes.data, (4,), None, "f", 64, 1, 0, 0, False)
        session.field("far", 4096, (4,), None, "f", 64, 2, 0, 0, False)
        assert session.step(n, 0.0) == 1
    assert "cannot be reached" in session.error()
    assert session.hub.errors == 1
    assert session.finalize() == 1 and stats.mean("u").tolist() == [1, 1, 1, 1]


def test_what_is_refused_is_told_at_once():
    session = bridge.Session(insitu.Hub([], output=None, quiet=True))
    assert session.field("u", 4096, (4,), None, "f", 63, 1, 0, 0, False) == -1
    assert "63 bits" in session.error()
    assert session.mesh({"nonsense": 1}) == -1
    session.finalize()
