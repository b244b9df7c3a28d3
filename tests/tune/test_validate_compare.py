"""Which results are correct, and which candidates are really faster."""

from __future__ import annotations

import gzip
import importlib
from dataclasses import replace

import numpy as np
import pytest

from lapwing.tune.backends import get
from lapwing.tune.backends.base import Refused
from lapwing.tune.gemm import Gemm
from lapwing.tune.library import build
from lapwing.tune.library.tokens import widen
from lapwing.tune.search.session import run
from lapwing.tune.search.worker import Candidate
from lapwing.tune.validate.comparison import compare
from lapwing.tune.validate.probes import Operands, Probe, bound, exact, judge, probes, relative_error, smaller
from lapwing.tune.validate.timing import interval, preferred
from lapwing.tune.workdir import Target, Trial, Workdir, environment_hash
from tune.cases import FakeComparison

F32 = dict.fromkeys(("a_type", "b_type", "c_type", "d_type"), "f32")
F64 = dict.fromkeys(("a_type", "b_type", "c_type", "d_type", "compute"), "f64")


def product(gemm: Gemm, o: Operands) -> None:
    x = o.b if gemm.trans_b == "N" else o.b.swapaxes(-1, -2)
    w = o.a if gemm.trans_a == "N" else o.a.swapaxes(-1, -2)
    y = gemm.alpha * (x @ w)
    o.d[...] = (y if o.c is None else y + gemm.beta * o.c).astype(o.d.dtype)


@pytest.mark.parametrize("types", [F32, F64], ids=["f32", "f64"])
@pytest.mark.parametrize(("m", "n", "k", "batch"), [(1, 1, 1, 1), (33, 7, 129, 1), (8, 5, 64, 3), (200, 150, 1000, 1)])
def test_right_answers_pass_and_wrong_ones_do_not(types, m, n, k, batch):
    gemm = Gemm(m, n, k, "T", "N", batch=batch, deterministic=True, **types)
    dtype = np.float32 if types is F32 else np.float64
    names = []
    for place, probe in enumerate(probes(gemm)):
        o = Operands.random(probe.gemm, dtype, place)
        assert np.abs(o.a).min() > 0
        product(probe.gemm, o)
        answer, size = exact(probe.gemm, o)
        allowed = bound(probe.gemm, answer, size)
        assert o.untouched
        error = judge(probe, [o.d.copy()] * 3, answer, allowed, default_error=relative_error(o.d, answer))
        assert 0 <= error < 0.7
        names.append(probe.name)
        # one of the K products left out, in one element
        wrong = o.d.copy()
        at = (0,) * (wrong.ndim - 2)
        wrong[(*at, -1, -1)] -= o.b[(*at, -1, 0)] * o.a[(*at, -1, 0)] * probe.gemm.alpha
        for bad in (wrong, np.full_like(o.d, np.nan), o.d.astype(np.float16).astype(dtype) if m > 8 else wrong):
            with pytest.raises(Refused, match=rf"{probe.name}: element") as refused:
                judge(probe, [o.d, bad], answer, allowed)
            assert refused.value.kind == "correctness"
    assert names == ["product", "padded", "odd tails", "alpha, beta"]


def test_guards_pads_bits_and_the_defaults_error():
    gemm = Gemm(6, 5, 4, ldd=9, deterministic=True, **F32)
    o = Operands.random(gemm, np.float32, 0)
    product(gemm, o)
    assert o.untouched and np.isfinite(o.d).all()
    start = (o.d.__array_interface__["data"][0] - o.memory.__array_interface__["data"][0]) // 4
    for at in (0, start - 1, start + 6, start + 9 + 8, start + 5 * 9, len(o.memory) - 1):  # guards, pads of columns, behind
        o.memory[at] = 1.0
        assert not o.untouched
        o.reset()
        assert o.untouched
    product(gemm, o)
    answer, size = exact(gemm, o)
    allowed, probe = bound(gemm, answer, size), Probe("x", gemm)
    with pytest.raises(Refused, match="outside D"):
        judge(probe, [o.d], answer, allowed, untouched=False)
    other = np.nextafter(o.d, np.float32(np.inf))
    with pytest.raises(Refused, match="2 runs gave different bits"):
        judge(probe, [o.d, other], answer, allowed)
    judge(Probe("x", replace(gemm, deterministic=False)), [o.d, other], answer, allowed)
    coarse = (answer * (1 + 3e-7)).astype(np.float32)
    with pytest.raises(Refused, match="relative error"):
        judge(probe, [coarse], answer, allowed, default_error=1e-9)


def test_scales_and_small_stand_ins():
    scaled = Gemm(64, 32, 128, "T", "N", a_type="f8e4m3", b_type="f8e4m3", scale_a="row", scale_b="tensor")
    found = {p.name: p for p in probes(scaled)}
    assert set(found) == {"product", "padded", "odd tails", "large scales", "small scales"}
    assert found["large scales"].scales[0] >= 512 and found["small scales"].scales[1] <= 2.0**-29
    o = Operands.random(scaled, np.float32, 1, scales=found["small scales"].scales)
    assert o.scale_a.shape == (64,) and o.scale_b.shape == (1,) and o.scale_a.max() < 1e-8
    tiny = smaller(Gemm(16032, 109, 16384, "T", "N"))
    assert tiny.flops <= 2e7 and tiny.layout == "TN" and tiny.packed and min(tiny.m, tiny.n, tiny.k) > 50


def test_interval():
    rng = np.random.default_rng(0)
    base, fast = 1 + 0.05 * rng.random(40), (1 + 0.05 * rng.random(40)) / 1.2
    found = interval(base, fast, seed=1)
    assert 1.17 < found.low < found.ratio < found.high < 1.23 and found == interval(base, fast, seed=1)
    noisy = interval(1 + rng.random(9), 1 + rng.random(9), seed=1)
    assert noisy.low < 1.0 < noisy.high
    with pytest.raises(ValueError, match="2 and 1 samples"):
        interval([1.0, 2.0], [1.0])


def test_near_ties_are_broken_the_same_way():
    default, split, plain, vendor = (
        Candidate("cpu", {"x": 0}),
        Candidate("triton", {"split_k": 4}),
        Candidate("triton", {"split_k": 1}),
        Candidate("cublaslt", {"id": 3}),
    )
    timed = [(split, 1.0, {}), (plain, 1.015, {}), (vendor, 1.018, {}), (default, 1.019, {})]
    assert preferred(timed, default) == default
    assert preferred(timed[:3], default) == vendor
    assert preferred(timed[:2], default) == plain
    assert preferred([(split, 1.0, {}), (plain, 1.03, {})], default) == split


def write_space(path, gemms: list[Gemm], runtimes: dict[int, list[float]]) -> None:
    rows = []
    for gemm in gemms:
        for x, times in runtimes.items():
            trial = Trial(
                backend="made-up",
                device=0,
                gemm=gemm.key,
                configuration={"x": x, "split_k": 1 + x % 2},
                time=float(np.median(times)),
                times={"runtimes": times},
                errors={"product": 0.1},
            )
            rows.append(trial.to_json())
    path.write_bytes(gzip.compress("\n".join(rows).encode() + b'\n{"torn'))


CHANCE = np.random.default_rng(3).random(62)
STEADY = [1.0, 1.001, 0.999, 1.0, 1.0]
CASES = {  # times of the default, times of the best, seconds of the default when it was first measured
    "winner": ([20e-6 * s for s in STEADY], [10e-6 * s for s in STEADY], 20e-6),
    "near tie": ([10.2e-6 * s for s in STEADY], [10e-6 * s for s in STEADY], 10.2e-6),
    "little": ([10.25e-6 * s for s in STEADY], [10e-6 * s for s in STEADY], 10.25e-6),
    "short": ([1.1e-6 * s for s in STEADY], [1e-6 * s for s in STEADY], 1.1e-6),
    "loser": ([9e-6 * s for s in STEADY], [10e-6 * s for s in STEADY], 9e-6),
    "chance": ([*(1e-5 * (1 + 2 * CHANCE[:31]))], [*(0.93e-5 * (1 + 2 * CHANCE[31:]))], 1e-5),
    "much faster at first": ([1e-4] * 5, [3e-5] * 5, 1e-5),
    "faster at first": ([1e-4] * 5, [3e-5] * 5, 5e-5),
    "not known at first": ([1e-4] * 5, [3e-5] * 5, 0.0),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """All cases as the products of one folder: one search and one comparison."""
    path = tmp_path_factory.mktemp("compared")
    gemms = {name: Gemm(64, 8 + place, 128) for place, name in enumerate(CASES)}
    folder = Workdir(path / "w")
    rows = []
    for place, (name, (default, best, first)) in enumerate(CASES.items()):
        write_space(path / "one.gz", [gemms[name]], {0: default, 1: [1.3 * x for x in best], 2: best})
        rows.append(gzip.decompress((path / "one.gz").read_bytes()))
        folder.add_config(Target(f"BBS_NN_{place}", gemms[name], 7, first, 100 / len(CASES)))
    (path / "s.jsonl.gz").write_bytes(gzip.compress(b"\n".join(rows)))
    summary = run(folder, backend=f"replay:{path / 's.jsonl.gz'}")
    assert summary.evaluations == 3 * len(CASES)
    found = {c.name: c for c in compare(folder)}
    return {name: found[f"BBS_NN_{place}"] for place, name in enumerate(CASES)}


@pytest.mark.parametrize(
    ("name", "kept", "reason"),
    [
        ("winner", True, "2.000x, at least"),
        ("near tie", False, "the default is the fastest"),
        ("little", False, "is below 1.03x"),
        ("short", False, "less than 0.3"),
        ("loser", False, "the default is the fastest"),
        ("much faster at first", False, "took 10 us when first measured and 10 times that now"),
        ("faster at first", True, "at least"),
        ("not known at first", True, "at least"),
    ],
)
def test_compare_keeps_real_winners(compared, name, kept, reason):
    found, default = compared[name], CASES[name][0]
    assert (found.kept, found.count) == (kept, 7) and reason in found.reason
    assert found.ratio >= 1.0 and found.low <= found.ratio <= found.high and found.vendor_us is None
    assert found.default_us == pytest.approx(float(np.median(default)) * 1e6)
    assert found.config["x"] == (2 if found.ratio > 1 else 0)
    assert found.error == 0.1


def test_a_gain_that_may_be_chance_is_not_kept(compared):
    assert not compared["chance"].kept and compared["chance"].low <= 1.0


class Clock:
    """A clock that only these workers move: one second for each candidate, or the whole timeout for a hang."""

    def __init__(self, monkeypatch, module, hangs=False):
        self.now, self.hangs, self.asked, self.starts = 1000.0, hangs, [], 0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "Worker", lambda device, family: self)
        self.patience = None

    def start(self, backend, gemm, seed, timeout):
        self.starts += 1

    def time(self, candidates, gemm, seed, samples, timeout, checks="all"):
        self.asked.append(gemm)
        if self.hangs or timeout < len(candidates):
            self.now += timeout
            raise Refused("timeout", f"no answer within {timeout} s")
        self.now += len(candidates)
        return [{"runtimes": [1e-5] * samples, "time": 1e-5, "errors": {}, "resources": {}} for _ in candidates]

    def close(self):
        pass


@pytest.mark.parametrize("hangs", [False, True])
def test_comparing_ends_in_time(tmp_path, monkeypatch, hangs):
    folder = Workdir(tmp_path)
    environment = environment_hash(get("cpu").environment(0))
    for i in range(8):
        gemm = Gemm(64, 8 + i, 32, a_type="f32", b_type="f32", c_type="f32", d_type="f32")
        folder.add_config(Target(f"SSS_NN_{i}", gemm, 1, 1e-5, 12.5))
        for threads in (0, 1, 2, 3, 4):
            config = {**get("cpu").default(gemm), "threads": threads}
            folder.add_trial(
                f"SSS_NN_{i}", Trial("cpu", 0, gemm.key, config, 1e-5 - 1e-6 * threads, environment=environment, took=1.0)
            )
    module = importlib.import_module("lapwing.tune.validate.comparison")
    clock = Clock(monkeypatch, module, hangs)
    found = compare(folder, until=clock.now + 20.0)
    assert clock.now <= 1020.0 + 2.0 + 1.0, (clock.now, [c.reason for c in found])  # a tenth, and a trial
    assert len(found) == 8 and "no time was left to compare it" in {c.reason for c in found}
    compared = [c for c in found if c.reason == "the default is the fastest"]
    assert len(compared) >= (0 if hangs else 4)


WRONG = {"refused": "correctness", "reason": "odd tails: wrong"}
HANGS = {"refused": "timeout", "reason": "no answer"}


@pytest.mark.parametrize(
    ("lost", "until", "threads", "reason", "winners"),
    [
        ({4: WRONG, 3: WRONG}, 500.0, 2, "at least", [4, 3, 2]),
        ({4: WRONG, 3: WRONG, 2: WRONG}, 500.0, 0, "the best candidate failed the full check: odd tails: wrong", [4, 3, 2]),
        ({4: HANGS}, 500.0, 0, "the best candidate failed the full check: no answer", [4]),
        ({4: WRONG, 3: WRONG}, 4.0, 0, "no time was left to compare it", [4, 3]),
        ({0: WRONG}, 500.0, 0, "the default does not run here: odd tails: wrong", [4]),
        ({4: "crashes at times"}, 500.0, 3, "at least", [4, 3]),
    ],
    ids=["next", "three", "hangs", "late", "default", "crashes"],
)
def test_the_winner_alone_is_looked_at_closely(tmp_path, monkeypatch, lost, until, threads, reason, winners):
    gemm, folder = Gemm(64, 8, 32, **F32), Workdir(tmp_path)
    folder.add_config(Target("SSS_NN_0", gemm, 1, 1e-5, 100.0))
    times = {n: 1e-5 - 1e-6 * n for n in range(5)}
    configs = {n: {**get("cpu").default(gemm), "threads": n} for n in times}
    environment = environment_hash(get("cpu").environment(0))
    for n, seconds in times.items():
        folder.add_trial("SSS_NN_0", Trial("cpu", 0, gemm.key, configs[n], seconds, environment=environment, took=0.3))
    looked = []

    class Worker(Clock):
        def time(self, candidates, gemm, seed, samples, timeout, checks="all"):
            asked = [c.config["threads"] for c in candidates]
            self.now += 0.5 * len(asked)
            if checks == "all" and len(asked) > 1:
                looked.append(asked[-1])
                if any(lost.get(n) == "crashes at times" for n in asked):
                    raise Refused("runtime", "the process ended with SIGSEGV")
            close = lost if checks == "all" else {}
            good = {"errors": {"product": 0.5}, "resources": {}}
            return [close[n] if isinstance(close.get(n), dict) else good | {"runtimes": [times[n]] * samples} for n in asked]

    clock = Worker(monkeypatch, importlib.import_module("lapwing.tune.validate.comparison"))
    (found,) = compare(folder, until=clock.now + until)
    assert found.config == configs[threads] and found.kept == (threads > 0) and reason in found.reason
    assert looked == winners and clock.starts >= 2


def test_widening_ends_in_time_and_in_another_process(tmp_path, monkeypatch):
    gemms = [Gemm.row_major(n, 64, 32, right="T", dtype="f32") for n in (8, 16, 32, 64, 128)]
    default = dict(get("cpu").default(gemms[0]))
    rows = [FakeComparison(g, backend="cpu", config={**default, "threads": 1}) for g in gemms]
    module = importlib.import_module("lapwing.tune.library.tokens")
    path = build(tmp_path, rows, tmp_path / "final")
    clock = Clock(monkeypatch, module)
    assert widen(path, until=clock.now + 12.0) == 2  # three numbers of tokens for each, two candidates for each number
    assert clock.now <= 1012.0 + 1.2 + 2.0 and {g.n for g in clock.asked} == {4, 6, 7, 9, 12, 15}
    clock = Clock(monkeypatch, module, hangs=True)
    assert widen(path, until=clock.now + 12.0) == 0 and clock.now <= 1013.2 + 2.0
