"""The search, and how close it comes to the optimum on synthetic and recorded spaces."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lapwing.tune.backends.base import Space
from lapwing.tune.backends.replay import read_space
from lapwing.tune.search import canonical, make
from tune import synthetic

OWN = ("auto", "genetic", "anneal", "random", "exhaustive", "model")
SPACES = sorted((Path(__file__).parent / "spaces").glob("*.jsonl.gz"))
LOOKED_AT = (25, 50, 100)


def small() -> Space:
    return Space({"a": (1, 2, 4, 8), "b": ("x", "y", "z"), "c": (0, 1, 2, 3, 4)}, allowed=lambda c: c["a"] * c["c"] <= 8)


def value(config) -> float:
    return 1.0 + abs(config["a"] - 4) + (config["b"] != "y") + 0.3 * config["c"]


def asks(name: str, space: Space, seed: int, count: int) -> list[str]:
    search, found = make(name, space, seed), []
    for _ in range(count):
        if (config := search.ask()) is None:
            break
        found.append(canonical(config))
        search.tell(config, None if len(found) == 3 else value(config))  # one fails
    return found


@pytest.mark.parametrize("name", OWN)
def test_every_strategy(name):
    every = asks(name, small(), 1, 1000)
    allowed = sum(a * c <= 8 for a in (1, 2, 4, 8) for c in range(5)) * 3
    assert len(every) == allowed == len(set(every)), "a candidate came twice, or one was left out"
    assert asks(name, small(), 1, 30) == every[:30]
    if name != "exhaustive":
        assert asks(name, small(), 2, 30) != every[:30]
    listed = Space({}, listed=({"a": 1, "b": "x"}, {"a": 2, "c": 3}, {"a": 1, "b": "y"}))
    assert sorted(asks_of_listed(name, listed)) == sorted(map(canonical, listed.listed))
    assert make(name, Space({"a": (1, 2)}, allowed=lambda c: False)).ask() is None
    assert make(name, Space({}, listed=())).ask() is None


def asks_of_listed(name: str, space: Space) -> list[str]:
    search, found = make(name, space, 0), []
    while (config := search.ask()) is not None:  # several before the first result
        found.append(canonical(config))
    return found


def test_seeds_first_and_what_was_measured_before():
    space = Space(small().parameters, small().allowed, seeds=({"a": 2, "b": "z", "c": 1},), score=lambda c: c["a"])
    search = make("genetic", space, 0)
    assert not search.try_first({"a": 8, "b": "x", "c": 4}) and not search.try_first({"other": 1})
    search.tell({"a": 4, "b": "y", "c": 0}, 1.0)  # from an earlier run
    search.tell({"something": "else"}, 0.5)
    assert search.best == ({"a": 4, "b": "y", "c": 0}, 1.0)
    first = [search.ask() for _ in range(4)]
    assert first[0] == space.seeds[0] and all(c["a"] == 1 for c in first[1:])
    for config in first:
        search.tell(config, 5.0)
    rest = []
    while (config := search.ask()) is not None:
        rest.append(canonical(config))
    assert canonical({"a": 4, "b": "y", "c": 0}) not in rest and search.best[1] == 1.0


def test_bad_names():
    with pytest.raises(ValueError, match="unknown strategy 'hill'\nhint: use one of auto"):
        make("hill", small())


def regret(name: str, space: Space, seconds, optimum: float, seed: int, failed: bool = False) -> list[float]:
    search, best = make(name, space, seed, evaluations=None), []
    for _ in range(LOOKED_AT[-1]):
        if (config := search.ask()) is None:
            break
        search.tell(config, seconds(config))
        best.append(search.best[1] / optimum if search.best else np.inf)
    return [best[min(n, len(best)) - 1] for n in LOOKED_AT]


def test_regret_on_synthetic_spaces():
    """Median over 24 random starts, spread over the shapes: within 3 % after 100, and better than random all the way."""
    shapes = synthetic.SHAPES[1:4]
    optimum = cache(lambda shape: synthetic.optimum(*shape))
    found = {}
    for name in ("auto", "random"):
        rows = []
        for start in range(24):
            shape = shapes[start % len(shapes)]
            rows.append(regret(name, synthetic.space(*shape), lambda c: synthetic.seconds(c, *shape), optimum(shape), start))  # noqa: B023
        found[name] = np.median(rows, axis=0)
    assert found["auto"][2] <= 1.03, found
    assert (found["auto"] < found["random"]).all(), found


@pytest.mark.skipif(not SPACES, reason="no recorded spaces are here")
def test_regret_on_recorded_spaces():
    """The same on times of a real GPU. Spaces of up to 100 candidates are tried completely, so they say nothing."""
    every = [recorded for path in SPACES for recorded in read_space(path).values()]
    large = [r for r in every if len(r.seconds) > LOOKED_AT[-1]]
    if not large:
        pytest.skip("all recorded spaces are small")
    rows: dict[str, list] = {"auto": [], "random": []}
    for name in rows:
        for start in range(max(24, len(large))):
            r = large[start % len(large)]
            rows[name].append(regret(name, r.space(), lambda c: r.seconds[canonical(c)], r.optimum, start))  # noqa: B023
    auto, random = (np.median(rows[name], axis=0) for name in ("auto", "random"))
    assert auto[2] <= 1.03, (auto, random)
    assert (auto < random).all(), (auto, random)


@pytest.mark.parametrize("name", ["optuna", "kernel_tuner:simulated_annealing"])
def test_searches_of_others(name):
    pytest.importorskip(name.partition(":")[0])
    import random

    before = random.getstate(), np.random.get_state()[1].tobytes()
    found = asks(name, small(), 1, 20)
    assert len(found) == 20 == len(set(found)) and found == asks(name, small(), 1, 20)
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before  # the program's random numbers are its own
    with pytest.raises(ValueError, match="has no strategy"):
        make("kernel_tuner:nothing", small()) if name != "optuna" else make("has no strategy", small())


@pytest.mark.parametrize("name", ["optuna", "kernel_tuner:simulated_annealing", "kernel_tuner:genetic_algorithm"])
def test_searches_of_others_are_steered_while_compiling_ahead(name):
    """Several candidates are compiled at once. The next one comes from the strategy, not from a random guess."""
    pytest.importorskip(name.partition(":")[0])
    shape = synthetic.SHAPES[1]
    search = make(name, synthetic.space(*shape), 1, evaluations=60)
    guesses, guess = [], search._any
    over = lambda: getattr(search, "_over", False)  # noqa: E731
    search._any = lambda: guesses.append(over()) or guess()
    under_way, told, most = [], 0, 0
    while told < 60:
        while len(under_way) < 5 and (search.ready or not under_way):
            under_way.append(search.ask())
        most = max(most, len(under_way))
        config = under_way.pop(0)
        search.tell(config, synthetic.seconds(config, *shape))
        told += 1
    assert all(guesses) and most == 5, (guesses, most)  # annealing ends by itself, and then anything may come


@pytest.mark.parametrize("name", ["optuna", "kernel_tuner:genetic_algorithm"])
def test_searches_of_others_that_are_not_installed(name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name.partition(":")[0], None)
    monkeypatch.setitem(__import__("sys").modules, "kernel_tuner.interface", None)
    with pytest.raises(ImportError, match="hint: pip install"):
        make(name, small())
