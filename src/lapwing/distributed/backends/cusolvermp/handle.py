"""A matrix that cuSOLVERMp factored: its blocks stay on the GPUs, right-hand sides come and go. All methods are collective."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....core.problem import REAL
from ....core.request import Request
from ...layout import Layout
from ..protocol import Part, nan_of
from . import routines as cusolvermp
from .moves import entered, given_of, left, opened, right_side

__all__ = ["FactoredBlocks"]


class FactoredBlocks:
    """L L^H or P L U in tiles on the GPUs; ``factored`` is None where the matrix could not be factored."""

    def __init__(self, request: Request, a: Part, factored: cusolvermp.Factored | None, info: int, finite: bool) -> None:
        self.assume, self.upper, self.info = request.assume, request.upper, info
        self.layout, self.ranks, self.dtype = a.layout, a.ranks, a.memory.dtype
        self.memory = a.memory.without_data()  # nothing of the user's matrix is kept
        self._factored, self._finite = factored, finite
        self.report: dict[str, Any] = {"engine": "cusolvermp", "kind": "cholesky" if self.assume == "pos" else "lu"}
        if factored is not None:
            self.report |= {"grid": factored.layout.grid, "tile": factored.layout.rows.tile}

    @property
    def l(self) -> Part:  # noqa: E743
        if self._factored is None:
            return self._lost(self.layout)
        with opened(self) as session:
            made = self.memory.blocks(self._factored.triangle(self.layout), self.ranks)
            return session.together(lambda: left(self.memory.keep_triangle(made, upper=self.upper)))  # type: ignore[no-any-return]

    def solve(self, b: Any, /) -> Any:
        """A^-1 B; NaN if there is no factor."""
        side = entered(b, self.memory) if isinstance(b, Part) else right_side(b, self)
        if self._factored is None:
            x = self._lost(side.layout)
        else:
            with opened(self) as session:
                given = session.together(lambda: given_of(side))
                x = left(self.memory.blocks(self._factored.solve(given), self.ranks))
        return x if isinstance(b, Part) else on_every_rank(x, self.memory, b.ndim)

    def inverse(self) -> Part:
        if self._factored is None:
            return self._lost(self.layout)
        with opened(self):
            return left(self.memory.blocks(self._factored.inv(self.layout), self.ranks))

    def slogdet(self) -> tuple[Any, Any]:
        scalar, real = np.dtype(self.dtype).type, np.dtype(REAL[self.dtype]).type
        if self._factored is None:
            if self.assume == "pos" or not self._finite:
                return scalar(nan_of(self.dtype)), real(np.nan)
            return scalar(0), real(-np.inf)
        with opened(self):
            sign, logabs = self._factored.slogdet()
        return scalar(sign), real(logabs)

    def rcond(self) -> Any:
        raise NotImplementedError("Factor.rcond: there is no estimate for a sharded matrix on GPUs\nhint: lapwing.svdvals")

    def _lost(self, layout: Layout) -> Part:
        with cusolvermp.on_device(self.memory.device):
            return left(self.memory.filled(layout, self.ranks, nan_of(self.dtype)))


def on_every_rank(x: Part, memory: Any, ndim: int) -> np.ndarray:
    """A solution in blocks of rows, as a NumPy array that every rank has."""
    with cusolvermp.on_device(memory.device):
        parts = x.ranks.allgather(np.ascontiguousarray(memory.to_numpy(x.local)), "solve")
    whole = np.concatenate(parts)
    return whole[:, 0] if ndim == 1 else whole
