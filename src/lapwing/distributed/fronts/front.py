"""Code that all fronts share: the request, the agreement of the ranks, the checks of a right-hand side, and factors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ...core.problem import Spec
from ...core.request import MATRIX, RIGHT, VALUE, Place, Request
from ..backends.protocol import Backend, Part
from ..ranks.protocol import agree, attempt

_log = logging.getLogger("lapwing")


class Placing(Protocol):
    """How the arrays of one call reach a backend, and how its results become the user's arrays."""

    ranks: Any

    def right(self, name: str, b: Any) -> Any:
        """A right-hand side in the form that a backend takes."""

    def leave(self, x: Any, place: Place, b: Any) -> Any:
        """A result in the form that the user gets; ``b`` is the user's right-hand side."""


def requested(function: Callable[..., Any], described: Spec, b: Any, options: dict[str, Any]) -> Request:
    """The checked request of a call."""
    request: Request = function.request(described, **options)  # type: ignore[attr-defined]
    return request if b is None or RIGHT in request.places else replace(request, b=True)


def agreed(
    ranks: Any, name: str, facts: dict[str, Any], check: Callable[[], tuple[Request, Backend, Part]]
) -> tuple[Request, Backend, Part, list[Any]]:
    """All ranks compare their calls; if one finds an error, or facts differ, all raise it.

    Returns the result of ``check``, and what the backend's ``prepare`` returned on each rank.
    """
    checked: Any = None
    prepared: Any = None
    try:
        checked = request, backend, part = check()
        facts = facts | request.facts | {"engine": backend.name}
        prepared = backend.prepare(request, part)
        error = None
    except Exception as wrong:  # any error: the other ranks must not wait
        error = wrong
    from_ranks = agree(ranks, name, facts, error=error, mine=prepared)
    request, backend, part = checked
    if ranks.rank == 0 and backend.name not in ("alone", "gathered"):
        m, n = part.shape
        _log.info("%s: %s, %s x %s %s on %s ranks", name, backend.name, m, n, part.dtype, ranks.size)
    if ranks.rank == 0:
        log_precision(request, backend)
    return request, backend, part, from_ranks


def agreed_right(ranks: Any, name: str, describe: Callable[[], dict[str, Any]]) -> None:
    """All ranks compare a right-hand side of a later call; ``describe`` checks it and returns the facts."""
    facts, error = attempt(describe)
    agree(ranks, name, facts or {}, error=error)


def log_precision(request: Request, backend: Backend) -> None:
    if request.mixed and not backend.refines:
        _log.info("%s: in full precision; there is no refinement for sharded matrices", request.name)


def run(request: Request, backend: Backend, placing: Placing, a: Part, b: Any, from_ranks: list[Any]) -> Any:
    """Run the call on blocks and place its results; ``b`` is the user's right-hand side."""
    right = None if b is None else placing.right(request.name, b)
    results = backend.run(request, a, right, from_ranks)
    if request.operation == "factor":
        handle = Placed(placing, results[0], a.shape, a.dtype.name)
        if request.mixed and not backend.refines:
            handle.report.update(precision="mixed", fallback=True)
        return request.returned((handle,))
    return request.returned([placing.leave(x, place, b) for x, place in zip(results, request.places, strict=True)])


class Placed:
    """The handle of a factor over blocks: matrices and right-hand sides are the user's arrays. Its methods are collective."""

    def __init__(self, placing: Placing, handle: Any, shape: tuple[int, int], dtype: str) -> None:
        self._placing, self._handle, self.shape, self.dtype = placing, handle, shape, dtype
        self.assume, self.upper, self.info, self.report = handle.assume, handle.upper, handle.info, handle.report

    @property
    def about(self) -> str:
        where = getattr(self._placing, "where", f"{self._placing.ranks.size} ranks")
        return f", {self.report['engine']} on {where}"

    @property
    def l(self) -> Any:  # noqa: E743
        return self._matrix("Factor.l", lambda: self._handle.l)

    def solve(self, b: Any, /) -> Any:
        return self._placing.leave(self._handle.solve(self._placing.right("Factor.solve", b)), RIGHT, b)

    def inverse(self) -> Any:
        return self._matrix("Factor.inv", self._handle.inverse)

    def slogdet(self) -> tuple[Any, Any]:
        sign, logabs = self._values("Factor.slogdet", self._handle.slogdet)
        return self._placing.leave(sign, VALUE, None), self._placing.leave(logabs, VALUE, None)

    def logdet(self) -> Any:
        sign, logabs = self._values("Factor.logdet", self._handle.slogdet)
        real = self.assume == "pos" or bool(np.real(sign) > 0)
        return self._placing.leave(logabs if real else logabs * np.nan, VALUE, None)

    def rcond(self) -> Any:
        return self._placing.leave(self._values("Factor.rcond", self._handle.rcond), VALUE, None)

    def _matrix(self, name: str, work: Callable[[], Part]) -> Any:
        return self._placing.leave(self._values(name, work), MATRIX, None)

    def _values(self, name: str, work: Callable[[], Any]) -> Any:
        agree(self._placing.ranks, name, {"shape": self.shape})
        return work()
