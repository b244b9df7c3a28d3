"""Noise is never kept as a gain: synthetic clocks, and once a machine that is really busy."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from lapwing.tune.backends import get
from lapwing.tune.backends.processors import OtherPrograms, cores
from lapwing.tune.gemm import Gemm
from lapwing.tune.search.session import run
from lapwing.tune.validate import results
from lapwing.tune.validate.comparison import compare
from lapwing.tune.validate.timing import gain
from lapwing.tune.workdir import Target, Trial, Workdir, environment_hash

F32 = dict.fromkeys(("a_type", "b_type", "c_type", "d_type"), "f32")
GEMM = Gemm(64, 8, 32, **F32)


class NoisyWorker:
    """Times ``true[threads]`` seconds, multiplied by what ``noise(candidate, call, sample)`` says."""

    def __init__(self, true, noise):
        self.true, self.noise, self.calls, self.orders = true, noise, 0, []
        self.patience = None

    def start(self, *_):
        pass

    def close(self):
        pass

    def time(self, candidates, gemm, seed, samples, timeout, checks="all"):
        names = [c.config["threads"] for c in candidates]
        self.orders.append(names)
        self.calls += 1
        return [
            {
                "runtimes": [self.true[n] * self.noise(n, self.calls, i) for i in range(samples)],
                "errors": {"product": 0.5},
                "resources": {},
                "others": 0.0,
            }
            for n in names
        ]


def compared(tmp_path, monkeypatch, true, noise, first=None):
    folder, configs = Workdir(tmp_path), {n: {**get("cpu").default(GEMM), "threads": n} for n in true}
    folder.add_config(Target("SSS_NN_0", GEMM, 1, true[0] if first is None else first, 100.0))
    environment = environment_hash(get("cpu").environment(0))
    for n, seconds in true.items():
        trial = Trial("cpu", 0, GEMM.key, configs[n], 0.9 * seconds if n else seconds, environment=environment, took=0.1)
        folder.add_trial("SSS_NN_0", trial)
    worker = NoisyWorker(true, noise)
    monkeypatch.setattr(importlib.import_module("lapwing.tune.validate.comparison"), "Worker", lambda *_: worker)
    (found,) = compare(folder)
    return found, worker


def quiet(n, call, i):
    return 1.0 + 0.01 * ((7 * i + n) % 3)


def test_a_real_gain_is_kept_after_rounds_in_both_orders(tmp_path, monkeypatch):
    found, worker = compared(tmp_path, monkeypatch, {0: 2e-4, 1: 1e-4}, quiet)
    assert found.kept and not found.doubtful and found.ratio == pytest.approx(2, rel=0.02)
    assert worker.orders == [[0, 1], [0, 1], [1, 0], [0, 1]]  # one to choose, three to judge


@pytest.mark.parametrize(
    ("name", "noise", "reason"),
    [
        (
            "the default is slow in two of three rounds",
            lambda n, call, i: 9.0 if n == 0 and call < 4 else 1.0,
            "disagree",
        ),
        ("in every second sample", lambda n, call, i: 5.0 if n == 0 and not i % 2 else 1.0, "unsteady|fastest samples"),
        ("in most of its samples", lambda n, call, i: 90.0 if n == 0 and i % 7 else 1.0, "unsteady"),
        ("a little, in most of its samples", lambda n, call, i: 1.4 if n == 0 and i % 5 else 1.0, "fastest samples"),
        ("in every sample, but not when it was first measured", lambda n, call, i: 30.0 if n == 0 else 2.0, "first measured"),
    ],
    ids=lambda x: x.replace(" ", "-") if isinstance(x, str) and "-" not in x else "",
)
def test_noise_is_not_kept_as_gain(tmp_path, monkeypatch, name, noise, reason):
    """Both candidates are equally fast; only the noise differs."""
    found, _ = compared(tmp_path, monkeypatch, {0: 1e-4, 1: 1e-4}, noise)
    assert not found.kept and found.doubtful and found.reason.startswith("~"), found
    assert any(word in found.reason for word in reason.split("|")), found.reason
    metrics = results.measure([found])
    assert metrics.doubtful == 1 and metrics.kept == 0 and metrics.weighted.speedup == 1 and "~1 of 1 gains" in str(metrics)


def test_a_gain_beyond_the_roofline_is_refused(tmp_path, monkeypatch):
    floor = get("cpu").floor(GEMM, 0)
    assert 0 < floor < 1e-5
    found, _ = compared(tmp_path, monkeypatch, {0: 1e-4, 1: floor / 2}, quiet)
    assert not found.kept and found.doubtful and "impossible" in found.reason and "bytes and operations" in found.reason
    # the candidate's time is possible, but the default was never that slow
    assert "a perfect kernel would be 2x" in gain([[9.0, 9.0]], [[1.0, 1.0]], floor=0.5, first=1.0).doubt
    assert gain([[9.0, 9.0]], [[1.0, 1.0]], floor=0.5).doubt == ""


def test_the_floor_is_below_what_is_measured():
    """It must never refuse what the machine can do."""
    complex_ = dict.fromkeys(F32, "c64")
    for gemm in (Gemm(256, 256, 256, **F32), Gemm(1024, 8, 1024, **F32), Gemm(64, 64, 64, **complex_)):
        backend = get("cpu")
        bench = backend.open(gemm, 0, 0)
        (times,) = bench.time([bench.build(backend.default(gemm))], 3)
        bench.close()
        assert 0 < backend.floor(gemm, 0) < min(times)


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="the system does not say how busy it is")
def test_on_a_machine_that_is_really_busy(tmp_path):
    """Busy loops on every core from beginning to end: whatever is measured, it is not kept."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(cores())]
    try:
        folder = Workdir(tmp_path)
        folder.add_config(Target("SSS_NN_0", Gemm(96, 32, 96, **F32), 1, 0.0, 100.0))
        watch = OtherPrograms()
        run(folder, backend="cpu", evaluations=3)
        assert watch.share() > 0.4
        (found,) = compare(folder)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert not found.kept, found
    assert found.ratio < 1.03 or found.doubtful, found
