"""Matrices that are too large for one device: the public functions accept them like ordinary arrays.

A :class:`ShardedMatrix` has one block on each rank of an MPI communicator. ``lapwing.cholesky``, ``solve``, ``inv``, ``det``,
``slogdet``, ``factor``, ``eigh``, ``eigvalsh``, ``svd``, ``svdvals``, ``qr``, ``lstsq`` and ``polar`` accept it. The calls
are collective over its ranks and return matrices in its layout; eigenvalues, singular values and determinants are on all ranks.

A :class:`DeviceMatrix` has one block on each of several GPUs of this process; systems and Hermitian eigenproblems accept it.

Start the ranks with ``lapwing launch -n 4 script.py``::

    from mpi4py import MPI
    import lapwing as lw
    from lapwing.distributed import ShardedMatrix

    a = ShardedMatrix.from_function((n, n), float, lambda rows, columns: ..., MPI.COMM_WORLD)
    x = lw.solve(a, b, assume="pos")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import shard
    from .cost import CPU_CLUSTER, H200, Cost, Machine, largest_n, predict
    from .devices import DeviceMatrix
    from .layout import Axis, Layout
    from .matrix import ShardedMatrix
    from .plot import plot_layout
    from .ranks.protocol import MissingRanksError, RanksDisagreeError, patience
    from .tiles import best_grid, default_tile, padding, valid_tiles


__all__ = [
    "CPU_CLUSTER",
    "H200",
    "Axis",
    "Cost",
    "DeviceMatrix",
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

# The module of each name. They are loaded at first use: meeting an ordinary JAX array imports this package too.
_MODULES = {
    ".cost": ("CPU_CLUSTER", "H200", "Cost", "Machine", "largest_n", "predict"),
    ".devices": ("DeviceMatrix",),
    ".layout": ("Axis", "Layout"),
    ".matrix": ("ShardedMatrix",),
    ".plot": ("plot_layout",),
    ".ranks.protocol": ("MissingRanksError", "RanksDisagreeError", "patience"),
    ".tiles": ("best_grid", "default_tile", "padding", "valid_tiles"),
}


def __getattr__(name: str) -> Any:
    if name == "shard":
        return importlib.import_module(".shard", __name__)
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module, __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
