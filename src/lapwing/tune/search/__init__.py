"""Searches choose the candidate to try next: ``make(name, space, seed)`` returns one with ``ask`` and ``tell``."""

from __future__ import annotations

import importlib

from ..backends.base import Space
from .adapters import KernelTuner, Optuna
from .core import Search
from .space import canonical
from .strategies import Anneal, Exhaustive, Genetic, Model, Random

__all__ = ["STRATEGIES", "Search", "canonical", "check", "make"]

STRATEGIES = ("auto", "genetic", "anneal", "random", "exhaustive", "model", "optuna", "kernel_tuner:<name>")
_SMALL = 64  # a list of at most so many candidates is tried completely, in its order
_OWN: dict[str, type[Search]] = {kind.__name__.lower(): kind for kind in (Anneal, Exhaustive, Genetic, Model, Random)}


def make(name: str, space: Space, seed: int = 0, *, evaluations: int | None = None) -> Search:
    """Create a search by name.

    "auto" tries a short list completely. Otherwise it is "model", in which a model of the times so far chooses among seeds,
    moves and crossovers: it is our best strategy on recorded and synthetic spaces (tests/tune/test_search.py).

    Parameters
    ----------
    name : str
        "auto", "genetic", "anneal", "random", "exhaustive", "model", "optuna" or "kernel_tuner:<its strategy>".
    space : Space
    seed : int
        Equal seeds and equal times lead to the same candidates.
    evaluations : int, optional
        How many candidates will be tried, if known: annealing cools down accordingly, and "auto" tries a list of up to this
        length completely.

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
    """Raise ValueError for an unknown strategy, ImportError for one whose package is missing, before minutes are spent."""
    if name not in (*_OWN, "auto", "optuna") and not name.startswith("kernel_tuner:"):
        raise ValueError(f"tune: unknown strategy {name!r}\nhint: use one of {', '.join(STRATEGIES)}")
    package = name.partition(":")[0]
    if package in ("optuna", "kernel_tuner"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"tune: strategy {name} needs {package}: {error}\nhint: pip install {package}") from error
