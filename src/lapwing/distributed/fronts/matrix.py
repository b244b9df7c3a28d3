"""ShardedMatrix as a kind of array: blocks on the ranks of a communicator, on the host or on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ...core.memory import library_of, on_device
from ...core.problem import Spec
from ...core.request import RIGHT, Place, Request
from ..backends.choice import choose, explained
from ..backends.protocol import Array, Backend, Part, check_right, columns_of, promote
from ..matrix import ShardedMatrix
from . import front

_PART_OF_B = "\nhint: an array must be the whole b, on every rank; a rank's own rows become ShardedMatrix.from_local(b, comm)"


class MatrixFront:
    sharded: Literal[True] = True

    def describe(self, a: ShardedMatrix, /) -> Spec:
        return Spec(a.shape, a.dtype.name, "cuda" if a.on_gpu else "cpu", a.layout)

    def call(self, function: Callable[..., Any], a: ShardedMatrix, b: Any = None, /, **options: Any) -> Any:
        name, ranks = function.__name__, a.ranks
        facts = {"shape": a.shape, "dtype": a.dtype.name, "layout": a.layout, "library": library_of(a.local)}

        def check() -> tuple[Request, Backend, Part]:
            nonlocal a, b
            if b is not None:
                a, b = promote(a, b, _cast)
                facts.update(_Placing(a).described(name, b))
            request = front.requested(function, self.describe(a), b, options)
            return request, choose(request, _array(a, b)), Part(a.local, a.layout, ranks)

        request, backend, part, from_ranks = front.agreed(ranks, name, facts, check)
        placing = _Placing(a)
        placing.agreed, placing.alone = True, backend.name == "alone"
        return front.run(request, backend, placing, part, b, from_ranks)

    def explain(self, function: Callable[..., Any], a: Any, b: Any, ordinary: Callable[..., Any], /, **options: Any) -> Any:
        request, array = front.requested(function, self.describe(a), b, options), _array(a, b)
        if b is not None:
            check_right(request.name, self.describe(a), Spec(tuple(b.shape), a.dtype.name))
        if choose(request, array).name == "alone":
            return ordinary(*[x.local if isinstance(x, ShardedMatrix) else x for x in (a, b) if x is not None])
        return explained(request, array)


FRONT = MatrixFront()


def _array(a: ShardedMatrix, b: Any) -> Array:
    device, library = "cuda" if a.on_gpu else "cpu", library_of(a.local)
    return Array("matrix", a.shape, a.dtype.name, device, a.ranks.size, a.layout, library, columns=columns_of(b))


class _Placing:
    """Results are matrices in the layout of ``a``; a right-hand side that every rank has may be NumPy's or on a GPU."""

    def __init__(self, a: ShardedMatrix) -> None:
        self._like, self.ranks, self._host = Spec(a.shape, a.dtype.name, "cpu", a.layout), a.ranks, not a.on_gpu
        self.agreed = False  # whether the right-hand side was already part of an agreement
        self.alone = False

    def right(self, name: str, b: Any) -> Any:
        if not self.agreed:
            _, b = promote(self._like, b, _cast, fixed=True)
            front.agreed_right(self.ranks, name, lambda: self.described(name, b))
        self.agreed = False
        if isinstance(b, ShardedMatrix):
            return Part(b.local, b.layout, b.ranks)
        return _memory(b).to_numpy(b) if on_device(b) and not self.alone else b

    def leave(self, x: Any, place: Place, b: Any) -> Any:
        if isinstance(x, Part):
            return ShardedMatrix(x.local, x.layout, self.ranks)
        if place is RIGHT and on_device(b) and not on_device(x):
            return _memory(b).put(x)
        return x

    def described(self, name: str, b: Any) -> dict[str, Any]:
        """Check a right-hand side, or the second matrix of an eigenproblem; returns the facts that all ranks must agree on."""
        sharded = isinstance(b, ShardedMatrix)
        there = on_device(b.local if sharded else b)
        if not sharded and not there and not isinstance(b, np.ndarray):
            raise TypeError(
                f"{name}: b must be a ShardedMatrix, or an array that every rank has, got {type(b).__name__}"
                "\nhint: numpy.asarray(b, dtype=a.dtype) makes an array"
            )
        if sharded and there == self._host:
            sides = ("the host", "a GPU") if self._host else ("a GPU", "the host")
            raise TypeError(f"{name}: a is on {sides[0]} and b on {sides[1]}\nhint: move one of them to the other")
        dtype = _memory(b).dtype if there and not sharded else b.dtype.name
        shape = tuple(b.shape)
        check_right(name, self._like, Spec(shape, dtype), "" if sharded else _PART_OF_B)
        if sharded and b.ranks is not self.ranks and (b.ranks.size, b.ranks.rank) != (self.ranks.size, self.ranks.rank):
            raise ValueError(f"{name}: a and b are on different communicators\nhint: make both with the same comm")
        return {"shape of b": shape, "dtype of b": dtype, "layout of b": b.layout if sharded else "replicated"}


def _cast(x: Any, dtype: str) -> Any:
    """A matrix or an array in another dtype; other objects are unchanged, and refused later."""
    if isinstance(x, (ShardedMatrix, np.ndarray)):
        return x.astype(dtype)
    if not on_device(x):
        return x
    from ..backends.cusolvermp.moves import astype

    return astype(x, np.dtype(dtype))


def _memory(b: Any) -> Any:
    from ..backends.cusolvermp.memory import DeviceMemory

    return DeviceMemory(b)
