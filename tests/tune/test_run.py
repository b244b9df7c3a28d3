"""A run: crashes, hangs, kills, two processes, budgets, devices."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lapwing.tune.backends import get
from lapwing.tune.files import write_atomic
from lapwing.tune.gemm import Gemm
from lapwing.tune.search import canonical
from lapwing.tune.search.session import run
from lapwing.tune.workdir import Target, Trial, Workdir, lock_device

F32 = dict.fromkeys(("a_type", "b_type", "c_type", "d_type"), "f32")
# Ctrl-C must act, although a shell that runs the tests in the background makes them ignore it
COMMAND = """
import signal, sys
from lapwing.tune.search.session import run
signal.signal(signal.SIGINT, signal.default_int_handler)
folder, backend, devices, evaluations = sys.argv[1:]
summary = run(folder, backend=backend, devices=[int(d) for d in devices.split(",")], evaluations=int(evaluations))
print(summary.evaluations)
"""


def folder_with(path: Path, count: int, seconds: tuple[float, ...] = (1e-3,)) -> Workdir:
    folder = Workdir(path)
    for i in range(count):
        gemm = Gemm(8 + i, 4, 16, "T", "N", **F32)
        folder.add_config(Target(f"SSS_TN_{i}", gemm, 10, seconds[i % len(seconds)], 100 / count))
    return folder


def start(folder: Workdir, backend: str, devices: str, evaluations: int, **environment: str) -> subprocess.Popen:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), **environment)
    command = [sys.executable, "-c", COMMAND, str(folder.path), f"tune.hostile:{backend}", devices, str(evaluations)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def starting() -> float:
    """Seconds that a process with our modules takes to start here and now: other programs may share the machine."""
    begun = time.monotonic()
    code = "import lapwing.tune.search.worker, matplotlib.pyplot"
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    return time.monotonic() - begun


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def lines(folder: Workdir, name: str = "SSS_TN_0") -> list[str]:
    path = folder.trials(name)
    return path.read_text().splitlines() if path.exists() else []


def screened(folder: Workdir, name: str = "SSS_TN_0") -> list[Trial]:
    return [t for t in folder.read_trials(name) if t.stage == "screen"]


def timings(log: Path) -> list[tuple[int, int, float, float]]:
    rows = [line.split() for line in log.read_text().splitlines() if line.startswith("time")]
    return [(int(pid), int(device), float(begin), float(end)) for _, pid, device, begin, end in rows]


def test_dangerous_candidates_cost_one_trial_each(tmp_path):
    folder = folder_with(tmp_path, 1)
    steps = []
    summary = run(
        folder,
        backend="tune.hostile:TRICKS",
        devices=[0],
        strategy="random",
        timeout=1.5,
        evaluations=50,
        progress=steps.append,
    )
    found = {str(t.configuration["trick"]): t for t in screened(folder)}
    expected = {"segfault": "runtime", "exit": "runtime", "hang": "timeout", "wrong": "correctness", "outside": "correctness"}
    assert {k: found[k].invalidity for k in expected} == expected
    assert "SIGSEGV" in found["segfault"].reason and "exit code 3" in found["exit"].reason
    assert "element (3, 7)" in found["wrong"].reason and "outside D" in found["outside"].reason
    assert found["raise"].invalidity == "runtime" and "ZeroDivisionError: somewhere" in found["raise"].reason
    assert all(found[k].time is None for k in (*expected, "raise"))
    # everything else was tried too, once, the default first
    tried = screened(folder)
    assert len(tried) == 8 + 6 == len({canonical(t.configuration) for t in tried}) == summary.evaluations
    assert tried[0].configuration == {"trick": "none", "x": 0}
    (problem,) = summary.problems
    assert problem.best.config == {"trick": "none", "x": 5} and problem.invalid == 6 and summary.reason == "done"
    assert problem.uplift == pytest.approx(1.5)
    bests = [s.best_seconds for s in steps if s.best_seconds]
    assert len(steps) == 14 and all(b <= a for a, b in pairwise(bests)) and "best 10.00 us (~1.500x)" in str(steps[-1])
    assert all(t.errors == {"product": pytest.approx(0, abs=1)} for t in tried if t.time)
    # the same run again has nothing left to do
    assert run(folder, backend="tune.hostile:TRICKS", devices=[0], strategy="random", evaluations=50).evaluations == 0


def test_killed_and_resumed(tmp_path):
    folder = folder_with(tmp_path / "w", 1)
    log = tmp_path / "log"
    process = start(folder, "SLOW", "0", 16, LAPWING_TEST_LOG=str(log))
    wait_for(lambda: len(lines(folder)) >= 6)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    worker = timings(log)[0][0]
    wait_for(lambda: not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2], 10)
    whole = lines(folder)
    with open(folder.trials("SSS_TN_0"), "a") as file:  # as after a full disk or a crash
        file.write(whole[0][: len(whole[0]) // 2])
    before = [canonical(json.loads(line)["configuration"]) for line in whole]
    assert 6 <= len(before) < 16 and len(folder.read_trials("SSS_TN_0")) == len(before)
    done = start(folder, "SLOW", "0", 16)
    out, errors = done.communicate(timeout=100)
    assert done.returncode == 0, errors
    after = [canonical(t.configuration) for t in screened(folder)]
    samples = {len(t.times["runtimes"]) for t in screened(folder)}
    assert samples == {1, 5}, "a slow one has one sample, the others five"
    assert int(out) == 16 - len(before) and after[: len(before)] == before
    assert len(after) == 16 == len(set(after)), "a trial was repeated"
    # in another environment these trials do not count
    other = start(folder, "SLOW", "0", 2, LAPWING_TEST_ENVIRONMENT="another machine")
    out, errors = other.communicate(timeout=100)
    assert int(out) == 2, errors


def test_two_processes_share_a_folder_and_devices(tmp_path):
    folder = folder_with(tmp_path / "w", 7)
    log = tmp_path / "log"
    pair = [start(folder, "SLOW", devices, 8, LAPWING_TEST_LOG=str(log)) for devices in ("0,1,2,3", "2,3")]
    answers = [p.communicate(timeout=200) for p in pair]
    assert [p.returncode for p in pair] == [0, 0], answers
    done = [int(out) for out, _ in answers]
    assert sum(done) == 7 * 8
    for i in range(7):
        text = lines(folder, f"SSS_TN_{i}")
        configs = [canonical(t.configuration) for t in screened(folder, f"SSS_TN_{i}")]
        assert len(text) == len(folder.read_trials(f"SSS_TN_{i}")) and len(configs) == 8 == len(set(configs))
    rows = timings(log)
    assert {device for _, device, _, _ in rows} >= {0, 1, 2}
    for device in range(4):
        spans = sorted((begin, end) for _, d, begin, end in rows if d == device)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans)), "two processes timed on one device at once"


def test_budget_and_shares(tmp_path, starting):
    folder = folder_with(tmp_path, 2, (4e-3, 1e-3))
    budget, begun = max(3.0, 3 * starting), time.monotonic()
    summary = run(folder, backend="tune.hostile:ENDLESS", devices=[1], budget=budget)
    took = time.monotonic() - begun
    slowest = max(t.took for name in ("SSS_TN_0", "SSS_TN_1") for t in screened(folder, name)[2:])
    assert took <= budget * 1.02 + slowest + max(1.5, starting) and summary.reason == "budget"
    assert all(p.evaluations > 0 for p in summary.problems)
    # a neighbour's winner is tried early
    best = next(p.best for p in summary.problems if p.name == "SSS_TN_0")
    assert best.config in [t.configuration for t in screened(folder, "SSS_TN_1")[:4]]
    # a budget belongs to its own run: what the run before took does not count
    again = run(folder, backend="tune.hostile:ENDLESS", devices=[1], budget=max(1.5, 3 * starting))
    assert all(p.evaluations > 0 and p.known > 0 for p in again.problems) and again.reason == "budget"


def test_time_of_earlier_runs_does_not_count(tmp_path, starting):
    """A run that was killed after hours leaves trials that took long; the budget of the next run is its own."""
    folder = folder_with(tmp_path, 1)
    (target,) = folder.configs()
    environment = folder.add_environment("x", get("tune.hostile:ENDLESS").environment(0))
    trial = Trial("tune.hostile:ENDLESS", 0, target.gemm.key, {"trick": "none", "x": 0}, 1e-5, took=1e4)
    folder.add_trial(target.name, replace(trial, environment=environment))
    summary = run(folder, backend="tune.hostile:ENDLESS", devices=[0], budget=max(3.0, 3 * starting))
    (problem,) = summary.problems
    assert problem.known == 1 and problem.evaluations > 0, summary


def test_all_steps_keep_the_budget(tmp_path, starting):
    """Every check of a candidate takes long, which only the first ones show."""
    from lapwing.tune import all_steps

    budget, begun = 5.0, time.monotonic()
    tuned = all_steps(
        "64x8x256 f32 NN\n64x9x256 f32 NN\n64x7x256 f32 NN", tmp_path, backend="tune.hostile:SLUGGISH", budget=budget
    )
    took = time.monotonic() - begun
    folder = Workdir(tmp_path)
    slowest = max(t.took for p in folder.configs() for t in folder.read_trials(p.name))
    # a tenth, one trial, and the time to start processes and to draw pictures on this machine
    assert took <= 1.1 * budget + slowest + 3 * starting, (took, slowest, starting)
    assert len(tuned.comparisons) == 3 and tuned.report.exists()


def test_interrupt_leaves_everything_resumable(tmp_path):
    folder = folder_with(tmp_path / "w", 1)
    process = start(folder, "SLOW", "3", 40)
    wait_for(lambda: len(lines(folder)) >= 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0 and "KeyboardInterrupt" in errors and errors.count("Traceback") == 1
    before = screened(folder)
    assert all(t.invalidity == "correct" for t in before)
    summary = run(folder, backend="tune.hostile:SLOW", devices=[3], evaluations=len(before) + 2)
    assert summary.evaluations == 2 and summary.problems[0].known == len(before)


def test_compiling_ahead(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("LAPWING_TEST_LOG", str(log))
    folder = folder_with(tmp_path / "w", 1)
    run(folder, backend="tune.hostile:COMPILING", devices=[2], evaluations=12)
    found = {t.configuration["x"]: t for t in screened(folder)}
    assert found[3].invalidity == "compile" and found[4].invalidity == "compile" and "exit code 7" in found[4].reason
    assert len(found) == 12 and sum(t.time is not None for t in found.values()) == 10
    compiled = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("compile")]
    assert len(compiled) == 12 and not set(compiled) & {str(row[0]) for row in timings(log)}


def test_workdir(tmp_path):
    folder = folder_with(tmp_path, 2)
    assert [p.name for p in folder.configs()] == ["SSS_TN_0", "SSS_TN_1"] and folder.configs()[0].gemm.m == 8
    with folder.lock_problem("a") as mine, folder.lock_problem("a") as other, folder.lock_problem("b") as third:
        assert (mine, other, third) == (True, False, True)
    with lock_device("test", "made-up") as mine, lock_device("test", "made-up", timeout=0.05) as other:
        assert mine and not other
    write_atomic(tmp_path / "x" / "y.json", "1")
    with pytest.raises(TypeError):
        write_atomic(tmp_path / "x" / "y.json", 2)
    assert (tmp_path / "x" / "y.json").read_text() == "1" and len(list((tmp_path / "x").iterdir())) == 1
    (tmp_path / "configs" / "bad.json").write_text('{"schema": 1, "name": "../x"}')
    with pytest.raises(ValueError, match=r"bad\.json is not a configuration"):
        folder.configs()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "nothing"}, "unknown backend 'nothing'\nhint: use one of auto"),
        ({"backend": "nowhere:X"}, "could not be opened"),
        ({"strategy": "guess"}, "unknown strategy 'guess'"),
        ({"devices": [9]}, r"does not have all of the devices \[9\]\nhint: it has \[0\]"),
        ({"budget": 0.0}, "budget is 0.0"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    folder = folder_with(tmp_path, 1)
    with pytest.raises(ValueError, match=message):
        run(folder, **{"backend": "cpu", **options})
    assert Counter(p.name for p in tmp_path.iterdir()) == {"configs": 1}


def test_no_problems(tmp_path):
    with pytest.raises(ValueError, match="there are no products to tune in"):
        run(tmp_path, backend="cpu")


def test_trials_of_another_environment_are_refused_by_name(tmp_path, monkeypatch):
    """The message names both environments."""
    from lapwing.tune.validate.comparison import compare

    folder = folder_with(tmp_path, 1)
    monkeypatch.setenv("LAPWING_TEST_ENVIRONMENT", "driver 1")
    run(folder, backend="tune.hostile:SLOW", devices=[0], evaluations=2)
    monkeypatch.setenv("LAPWING_TEST_ENVIRONMENT", "driver 2")
    with pytest.raises(ValueError, match="environment is driver 2 here and was driver 1\nhint: search again on this machine"):
        compare(folder)
    summary = run(folder, backend="tune.hostile:SLOW", devices=[0], evaluations=1)
    assert summary.problems[0].known == 0 and summary.evaluations == 1
    assert any("environment is driver 2 here and was driver 1" in note for note in summary.problems[0].notes)


def test_a_line_that_is_nested_too_deeply_is_skipped_with_a_warning(tmp_path, caplog):
    from lapwing.tune.backends.replay import read_space
    from lapwing.tune.validate.pages import _searches

    folder = folder_with(tmp_path, 1)
    good = Trial("slow", 0, "key", {"x": 1}, 1e-5)
    folder.add_trial("SSS_TN_0", good)
    with open(folder.trials("SSS_TN_0"), "a") as file:
        file.write("[" * 100_000 + "\n")
    folder.add_trial("SSS_TN_0", good)
    for _ in range(2):
        assert len(folder.read_trials("SSS_TN_0")) == 2
    assert caplog.text.count("skipped line 2 (it is nested too deeply)") == 1
    assert _searches(tmp_path) == {"SSS_TN_0": [1e-5, 1e-5]} and len(read_space(folder.trials("SSS_TN_0"))) == 1
    (tmp_path / "configs" / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"deep\.json is not a configuration: it is nested too deeply"):
        folder.configs()


def test_every_product_gets_its_share_of_a_short_budget(tmp_path, capsys, starting):
    """One product has nearly all of the time of the program; the others are tried all the same, and all are counted."""
    from lapwing.cli.tune_output import print_searched
    from lapwing.tune.validate import results
    from lapwing.tune.validate.comparison import compare

    folder = folder_with(tmp_path, 6, (1.0, *[1e-6] * 5))
    summary = run(folder, backend="tune.hostile:ENDLESS", devices=[1], budget=max(4.0, 3 * starting))
    assert all(p.evaluations > 0 for p in summary.problems), summary
    found = compare(folder, until=time.monotonic() + 0.1)
    assert len(found) == 6 and found[0].compared
    print_searched(summary)
    assert capsys.readouterr().out.count(" tried") == 6
    assert "of 6 products" in str(results.measure(found))


def test_products_that_were_not_searched_are_counted(tmp_path):
    from lapwing.tune.validate import results
    from lapwing.tune.validate.comparison import compare

    folder = folder_with(tmp_path, 3)
    environment = folder.add_environment("x", get("tune.hostile:SLOW").environment(0))
    trial = Trial("tune.hostile:SLOW", 0, Gemm(9, 4, 16, "T", "N", **F32).key, {"trick": "none", "x": 0}, 1e-5, took=0.01)
    folder.add_trial("SSS_TN_1", replace(trial, environment=environment))
    found = {c.name: c for c in compare(folder)}
    assert [found[f"SSS_TN_{i}"].compared for i in range(3)] == [False, True, False]
    assert "not searched" in found["SSS_TN_0"].reason
    metrics = results.measure(list(found.values()))
    assert (metrics.attempted, metrics.products) == (1, 3)
    assert "0 of 3 products" in str(metrics) and "2 of 3 products were not compared" in str(metrics)


def test_shares_of_the_budget(tmp_path, monkeypatch):
    """A quarter is shared equally, the rest by weight; time that is not used goes to the products that wait."""
    module = importlib.import_module("lapwing.tune.search.session")
    targets = folder_with(tmp_path, 2, (4e-3, 1e-3)).configs()
    session = module._Session(Workdir(tmp_path), ("cpu",), [0], 100.0, None)
    monkeypatch.setattr(module, "monotonic", lambda: 1000.0)
    session.deadline, session.waiting = 1100.0, [targets[1]]
    assert session._end(targets[0]) == pytest.approx(1000 + 100 * (0.25 * 0.5 + 0.75 * 0.8))
    session.waiting = []
    assert session._end(targets[1]) == 1100.0
