"""Compute a product on the CPU by a configuration: with tiles, split, swapped, packed, on a number of threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from ..gemm import Gemm
from ..validate.probes import activate, turned
from .base import Config
from .processors import blas_threads


@dataclass(frozen=True)
class Product:
    """y (n, m) = x (n, k) w (k, m) and its epilogue; all are row-major views."""

    gemm: Gemm
    config: Config

    def __call__(
        self,
        x: np.ndarray,
        w: np.ndarray,
        y: np.ndarray,
        c: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        scales: Sequence[np.ndarray | None] = (),
    ) -> None:
        """``x`` and ``w`` are B and A of the column-major product, as stored. ``scales`` multiply op(A) op(B)."""
        scales = [scale for scale in scales if scale is not None]
        if scales:  # they belong to the operands, so C, bias and activation come after them
            c = y.copy() if c is None and self.gemm.beta else c
            replace(self, gemm=replace(self.gemm, alpha=1.0, beta=0.0, activation="none"))(x, w, y)
            for scale in scales:
                y *= scale
            return self.finish(y, c, bias)
        x, w = turned(x, self.gemm.trans_b), turned(w, self.gemm.trans_a)
        if c is None and self.gemm.beta:
            c = y.copy()
        config = self.config
        threads = int(config["threads"])
        by_tiles = config["share"] == "tiles"
        with blas_threads(1 if by_tiles else threads):
            x, w = self._packed(x, w)
            tasks = list(self._tasks(x, w, y, c, bias))
            if by_tiles and len(tasks) > 1:
                list(_pool(threads, os.getpid()).map(lambda task: task(), tasks))
            else:
                for task in tasks:
                    task()
            if config["split_k"] != 1:
                np.sum(_local.parts, axis=0, out=y)
                _local.parts = None
                self.finish(y, c, bias)
        return None

    def _packed(self, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pack = self.config["pack"]
        if pack in ("x", "both"):
            x = np.array(x, order="C")
        if pack in ("w", "both"):
            w = np.array(w, order="C")
        return x, w

    def _tasks(
        self, x: np.ndarray, w: np.ndarray, y: np.ndarray, c: np.ndarray | None, bias: np.ndarray | None
    ) -> Iterator[Callable[[], None]]:
        """Tasks for disjoint parts of D; if K is split, for parts of the sum."""
        n, m, k = y.shape[-2], y.shape[-1], x.shape[-1]
        tile_n, tile_m = int(self.config["tile_n"]) or max(n, 1), int(self.config["tile_m"]) or max(m, 1)
        split = int(self.config["split_k"])
        if split > 1:
            step = -(-k // split)
            _local.parts = np.empty((split, *y.shape), y.dtype)
            for s in range(split):
                part, at = _local.parts[s], slice(s * step, (s + 1) * step)
                yield partial(self._sum, x[..., at], w[..., at, :], part)
            return
        one_by_one = y.ndim == 3 and (self.config["share"] == "tiles" or self.config["order"] == "swapped")
        places: tuple[Any, ...] = tuple(range(y.shape[0])) if one_by_one else (...,)
        for batch in places:
            for i in range(0, n, tile_n):
                for j in range(0, m, tile_m):
                    rows, columns = slice(i, i + tile_n), slice(j, j + tile_m)
                    added = None if c is None else c[batch][..., rows, columns]
                    along = None if bias is None else bias[columns]
                    left, right, out = x[batch][..., rows, :], w[batch][..., columns], y[batch][..., rows, columns]
                    yield partial(self._tile, left, right, out, added, along)

    def _tile(self, x: np.ndarray, w: np.ndarray, y: np.ndarray, c: np.ndarray | None, bias: np.ndarray | None) -> None:
        tile_k, k = int(self.config["tile_k"]), x.shape[-1]
        if not tile_k or tile_k >= k:
            self._sum(x, w, y)
        else:
            self._sum(x[..., :tile_k], w[..., :tile_k, :], y)
            part = np.empty(y.shape, y.dtype)
            for at in range(tile_k, k, tile_k):
                self._sum(x[..., at : at + tile_k], w[..., at : at + tile_k, :], part)
                y += part
        self.finish(y, c, bias)

    def _sum(self, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        if self.config["order"] == "swapped":  # y^T = w^T x^T in new memory, for which BLAS uses another kernel
            y[...] = np.matmul(w.swapaxes(-1, -2), x.swapaxes(-1, -2)).swapaxes(-1, -2)
        else:
            np.matmul(x, w, out=y)

    def finish(self, y: np.ndarray, c: np.ndarray | None, bias: np.ndarray | None) -> None:
        """y <- act(alpha y + beta c + bias), while the tile is in the cache."""
        if self.gemm.alpha != 1.0:
            y *= self.gemm.alpha
        if c is not None:
            y += self.gemm.beta * c
        if bias is not None:
            y += bias
        if self.gemm.activation == "relu":
            np.maximum(y, 0, out=y)
        elif self.gemm.activation != "none":
            y[...] = activate(self.gemm.activation, y)


_local = threading.local()  # the parts of a sum that a thread is about to add


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """One pool for each process: a fork has no threads of its parent, and would wait for them for ever."""
    return ThreadPoolExecutor(threads, thread_name_prefix="lapwing-tiles")
