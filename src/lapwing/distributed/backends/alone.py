"""One rank alone: the ordinary functions on its block."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import frameworks
from ...core.native import ENGINES
from ...core.request import MATRIX, VALUE, Request
from ..cost import Cost
from .protocol import Array, Backend, Part


class Alone(Backend):
    """The ordinary engines, for a ShardedMatrix on one rank."""

    name, what, takes = "alone", "the ordinary engines on one rank", "ShardedMatrix on one rank"
    devices, refines = ("cpu", "cuda"), True
    engines = (*(name for name in ENGINES if name != "auto"), "reference")

    def refuses(self, array: Array) -> str:
        if array.kind == "matrix" and array.size == 1 and (array.device == "cpu" or array.library in ("torch", "cupy")):
            return ""
        return "takes no sharded matrices"

    def cost(self, request: Request, array: Array) -> Cost:
        raise AssertionError("the planner knows what one device costs")

    def run(self, request: Request, a: Part, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        right = () if b is None else (_on_device_of(b.local if isinstance(b, Part) else b, a.local),)
        returned = request.ordinary(a.local, *right)
        if request.operation == "factor":
            return (_Handle(returned, a),)
        return tuple(_result(place, x, a, b) for place, x in zip(request.places, request.results(returned), strict=True))


class _Handle:
    """The ordinary factor of the block."""

    def __init__(self, factor: Any, a: Part) -> None:
        self._factor, self.layout, self.ranks = factor, a.layout, a.ranks
        self.assume, self.upper, self.info, self.report = factor.assume, factor.upper, int(factor.info), factor.report
        self._like = None if type(a.local) is np.ndarray else _on_device_of(np.empty((0, 0), a.dtype), a.local)

    @property
    def l(self) -> Part:  # noqa: E743
        return Part(self._factor.l, self.layout, self.ranks)

    def solve(self, b: Any, /) -> Any:
        if isinstance(b, Part):
            return Part(self._factor.solve(b.local), b.layout, self.ranks)
        return _on_host(self._factor.solve(b if self._like is None else _on_device_of(b, self._like)))

    def inverse(self) -> Part:
        return Part(self._factor.inv(), self.layout, self.ranks)

    def slogdet(self) -> tuple[Any, Any]:
        sign, logabs = self._factor.slogdet()
        return _on_host(sign)[()], _on_host(logabs)[()]

    def rcond(self) -> Any:
        return _on_host(self._factor.rcond())[()]


def _result(place: Any, x: Any, a: Part, b: Any) -> Any:
    if place is VALUE or not (place is MATRIX or isinstance(b, Part)):
        return x if x is None or np.isscalar(x) else _on_host(x)[()]
    like = a if place is MATRIX else b
    return Part(x, like.of_shape(tuple(x.shape)), a.ranks)


def _on_device_of(x: Any, block: Any) -> Any:
    """An array of the host, moved to the GPU of the block if the block is on one."""
    if type(x) is not np.ndarray or type(block) is np.ndarray:
        return x
    return frameworks.of(block, "solve").Namespace.put(np.ascontiguousarray(x), block)


def _on_host(x: Any) -> Any:
    return x if isinstance(x, (np.ndarray, np.generic)) else frameworks.of(x, "solve").to_numpy(x)
