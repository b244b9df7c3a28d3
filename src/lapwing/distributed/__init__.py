"""Matrices that one device cannot hold: the public functions take them as they take ordinary arrays.

A :class:`ShardedMatrix` lies in blocks on the ranks of an MPI communicator. ``lapwing.cholesky``, ``solve``, ``inv``,
``slogdet``, ``factor``, ``eigh``, ``eigvalsh``, ``svd``, ``svdvals``, ``qr``, ``lstsq`` and ``polar`` take it. They are then
collective over its ranks, and give results in its layout; eigenvalues, singular values and determinants come on all ranks.

Start the ranks with ``lapwing launch -n 4 script.py``::

    from mpi4py import MPI
    import lapwing as lw
    from lapwing.distributed import ShardedMatrix

    a = ShardedMatrix.from_function((n, n), float, lambda rows, columns: ..., MPI.COMM_WORLD)
    x = lw.solve(a, b, assume="pos")
"""

from __future__ import annotations

import importlib
from typing import Any

from .cost import CPU_CLUSTER, H200, Cost, Machine, largest_n, predict
from .layout import Axis, Layout, best_grid, default_tile, padding, valid_tiles
from .matrix import ShardedMatrix
from .plot import plot_layout
from .ranks.protocol import MissingRanksError, RanksDisagreeError, patience


def __getattr__(name: str) -> Any:
    if name == "shard":  # it loads JAX
        return importlib.import_module(".shard", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CPU_CLUSTER",
    "H200",
    "Axis",
    "Cost",
    "Layout",
    "Machine",
    "MissingRanksError",
    "RanksDisagreeError",
    "ShardedMatrix",
    "best_grid",
    "default_tile",
    "largest_n",
    "padding",
    "patience",
    "plot_layout",
    "predict",
    "shard",
    "valid_tiles",
]
