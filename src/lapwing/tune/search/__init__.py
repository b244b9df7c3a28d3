"""Which candidate to try next: ``make(name, space, seed)`` gives a search with ``ask`` and ``tell``."""

from __future__ import annotations

import importlib

from ..backends.base import Space
from .adapters import KernelTuner, Optuna
from .core import Search, canonical
from .strategies import Anneal, Exhaustive, Genetic, Model, Random

__all__ = ["STRATEGIES", "Search", "canonical", "check", "make"]

STRATEGIES = ("auto", "genetic", "anneal", "random", "exhaustive", "model", "optuna", "kernel_tuner:<name>")
_SMALL = 64  # a list of so many is tried whole, in its order; of a longer one the best are found sooner by learning
_OWN: dict[str, type[Search]] = {
    "anneal": Anneal,
    "exhaustive": Exhaustive,
    "genetic": Genetic,
    "model": Model,
    "random": Random,
}


def make(name: str, space: Space, seed: int = 0, *, evaluations: int | None = None) -> Search:
    """A search by name.

    "auto" tries a short list whole, and anything else with seeds, moves and crossover that a model of the times so far
    has looked through: of our strategies that one is the best on recorded and synthetic spaces (tests/tune/test_search.py).

    Parameters
    ----------
    name : str
        "auto", "genetic", "anneal", "random", "exhaustive", "model", "optuna" or "kernel_tuner:<its strategy>".
    space : Space
    seed : int
        The same seed gives the same candidates for the same times.
    evaluations : int, optional
        How many will be tried, where that is known: annealing cools down by it, and "auto" tries a list whole up to it.

    Examples
    --------
    >>> from lapwing.tune.backends.base import Space
    >>> from lapwing.tune.search import make
    >>> search = make("genetic", Space({"tile": (16, 32, 64), "split": (1, 2)}), seed=1)
    >>> while (config := search.ask()) is not None:
    ...     search.tell(config, abs(config["tile"] - 32) + config["split"])
    >>> search.best
    ({'tile': 32, 'split': 1}, 1.0)
    """
    check(name)
    if name == "auto":
        most = _SMALL if evaluations is None else min(_SMALL, evaluations)
        name = "exhaustive" if space.listed is not None and len(space.listed) <= most else "model"
    if name == "optuna":
        return Optuna(space, seed, evaluations)
    if name.startswith("kernel_tuner:"):
        return KernelTuner(space, seed, evaluations, strategy=name.partition(":")[2])
    return _OWN[name](space, seed, evaluations)


def check(name: str) -> None:
    """ValueError for a strategy that is not known, ImportError for one whose package is not here: before minutes are spent."""
    if name not in (*_OWN, "auto", "optuna") and not name.startswith("kernel_tuner:"):
        raise ValueError(f"tune: unknown strategy {name!r}\nhint: use one of {', '.join(STRATEGIES)}")
    package = name.partition(":")[0]
    if package in ("optuna", "kernel_tuner"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"tune: strategy {name} needs {package}: {error}\nhint: pip install {package}") from error
