"""A factored torch DTensor: on GPUs, on ScaLAPACK where MPI started the ranks, else on rank 0, which holds the factor."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.solve import SlogdetResult
from ..matrix import ShardedMatrix
from ..ranks.protocol import agree
from . import dtensor
from .dtensor_checks import enter_right

__all__ = ["DTensorFactor", "GpuDTensorFactor", "OwnFactor", "RootFactor"]


class DTensorFactor:
    """A factored DTensor, made by :func:`lapwing.factor`; its methods are collective. It has no derivatives.

    Attributes
    ----------
    assume : str
        What the matrix was said to be.
    info : int
        0, or the pivot or the leading minor that failed; the same on all ranks.
    report : dict
        How it was made: ``engine``, ``kind`` and, on ScaLAPACK, ``grid`` and ``tile``.
    """

    def __init__(self, made: Any, a: Any, like: Any) -> None:
        self._made = made
        # a DTensor of the same mesh and placements that holds nothing
        self._a, self._like = dtensor.empty_like(a), dtensor.empty_like(like)
        self.shape, self.dtype = tuple(a.shape), a.dtype
        self.assume, self.upper, self.info, self.report = made.assume, made.upper, made.info, made.report

    @property
    def l(self) -> Any:  # noqa: E743
        """The Cholesky factor, placed as the matrix was."""
        return self._wrapped(self._made.l)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (n, k), a DTensor or a tensor that every rank has; x is as b is."""
        name = "Factor.solve"
        if dtensor.wants_gradient(b):
            raise NotImplementedError(f"{name}: a factored DTensor has no derivatives\nhint: lapwing.solve has them")
        enter_right(name, self._a, self.shape, self.dtype, b)
        vector = b.ndim == 1
        sides = dtensor.as_sharded(name, b.unsqueeze(1) if vector else b, self._a)
        x = self._solved(dtensor.blocks_of(name, sides))
        return dtensor.as_given(dtensor.wrap(x, sides, tuple(sides.shape)), b, vector)

    def inv(self) -> Any:
        """A^-1, placed as the matrix was."""
        return self._wrapped(self._made.inv())

    def slogdet(self) -> SlogdetResult:
        return SlogdetResult(*[dtensor.wrap_replicated(x, self._a) for x in self._made.slogdet()])

    def logdet(self) -> Any:
        return dtensor.wrap_replicated(self._made.logdet(), self._a)

    def rcond(self) -> Any:
        """An estimate of 1 / (||A|| ||A^-1||) in the 1-norm; not on GPUs."""
        return dtensor.wrap_replicated(self._made.rcond(), self._a)

    def __repr__(self) -> str:
        return f"DTensorFactor(assume={self.assume!r}, shape={self.shape}, dtype={self.dtype}, {self.report['engine']})"

    def _solved(self, b: Any) -> Any:
        """For this rank's block of b that of x."""
        x = self._made.solve(ShardedMatrix(b.local.numpy(), b.layout, self._made.ranks)).redistribute(b.layout)
        return dtensor.as_tensor(np.ascontiguousarray(x.local))

    def _wrapped(self, x: Any) -> Any:
        x = x.redistribute(dtensor.layout_for(self._a, x.shape))
        local = dtensor.as_tensor(np.ascontiguousarray(x.local))
        return dtensor.placed_as(dtensor.wrap(local, self._a, x.shape), self._like)


class GpuDTensorFactor(DTensorFactor):
    """The same on cuSOLVERMp: the factor stays on the GPUs."""

    def _solved(self, b: Any) -> Any:
        return self._made.solve(b).local

    def _wrapped(self, x: Any) -> Any:
        return dtensor.placed_as(dtensor.wrap(x.local, self._a, x.layout.shape), self._like)


class OwnFactor:
    """The factors of matrices that are whole on each rank: a replicated DTensor, or a sharded batch."""

    def __init__(self, made: Any, a: Any) -> None:
        self._made, self._a, self.shape, self.dtype = made, a.detach(), tuple(a.shape), a.dtype
        self.assume, self.upper, self.report = made.assume, made.upper, made.report

    @property
    def info(self) -> Any:
        return dtensor.wrap_own(self._made.info, self._a)

    @property
    def l(self) -> Any:  # noqa: E743
        return dtensor.wrap_own(self._made.l, self._a)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b, placed as b is."""
        x = dtensor.wrap_own(self._made.solve(dtensor.own("Factor.solve", b, self._a)), self._a)
        return dtensor.placed_as(x, b if dtensor.is_sharded(b) else None)

    def inv(self) -> Any:
        return dtensor.wrap_own(self._made.inv(), self._a)

    def slogdet(self) -> SlogdetResult:
        return SlogdetResult(*[dtensor.wrap_own(x, self._a) for x in self._made.slogdet()])

    def logdet(self) -> Any:
        return dtensor.wrap_own(self._made.logdet(), self._a)

    def rcond(self) -> Any:
        return dtensor.wrap_own(self._made.rcond(), self._a)

    def __repr__(self) -> str:
        return f"OwnFactor(assume={self.assume!r}, shape={self.shape}, dtype={self.dtype}, one for each rank)"


class RootFactor:
    """The ordinary factor of a matrix that was gathered on rank 0; matrices go there and back."""

    def __init__(self, plain: Any, a: ShardedMatrix, told: tuple[Any, ...]) -> None:
        self._plain, self._layout, self.ranks = plain, a.layout, a.ranks
        self.assume, self.upper, self.info, self.report = told

    @property
    def l(self) -> ShardedMatrix:  # noqa: E743
        return self._matrix("Factor.l", lambda: self._plain.l)

    def solve(self, b: ShardedMatrix) -> ShardedMatrix:
        whole = b.gather(0)
        x = self._tried("Factor.solve", lambda: self._plain.solve(whole))
        return ShardedMatrix.scatter(x, self.ranks, layout=b.layout)

    def inv(self) -> ShardedMatrix:
        return self._matrix("Factor.inv", lambda: self._plain.inv())

    def slogdet(self) -> Any:
        return self.ranks.allgather(self._tried("Factor.slogdet", lambda: tuple(self._plain.slogdet())))[0]

    def logdet(self) -> Any:
        return self.ranks.allgather(self._tried("Factor.logdet", lambda: self._plain.logdet()))[0]

    def rcond(self) -> Any:
        return self.ranks.allgather(self._tried("Factor.rcond", lambda: self._plain.rcond()))[0]

    def _matrix(self, name: str, work: Any) -> ShardedMatrix:
        return ShardedMatrix.scatter(self._tried(name, work), self.ranks, layout=self._layout)

    def _tried(self, name: str, work: Any) -> Any:
        """On rank 0; all ranks raise what it raises."""
        error = made = None
        if self.ranks.rank == 0:
            try:
                made = work()
            except Exception as wrong:
                error = wrong
        agree(self.ranks, name, {}, error=error)
        return made
