"""A sharded matrix that is described, not allocated: ``lapwing.spec(..., sharding=...)``, only for explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ...core.problem import Spec
from ..backends.choice import explained
from ..backends.protocol import Array, check_right, columns_of
from ..layout import Layout
from . import front


class DescribedFront:
    sharded: Literal[True] = True

    def describe(self, a: Spec, /) -> Spec:
        return a

    def call(self, function: Callable[..., Any], a: Spec, b: Any = None, /, **options: Any) -> Any:
        raise TypeError(
            f"{function.__name__}: a spec only describes an array, it holds no numbers\nhint: pass it to lapwing.explain"
        )

    def explain(self, function: Callable[..., Any], a: Spec, b: Any, ordinary: Any, /, **options: Any) -> Any:
        """The plan for a cluster of devices of the kind in the description."""
        request = front.requested(function, a, b, options)
        if len(a.shape) != 2:
            raise ValueError(f"{request.name}: a sharded matrix has shape (m, n), got {a.shape}")
        if b is not None:
            check_right(request.name, a, Spec(b.shape, a.dtype))
        devices = a.sharding
        layout = devices if isinstance(devices, Layout) else None
        grid = layout.grid if layout is not None else devices
        if isinstance(grid, tuple):
            valid = len(grid) == 2 and all(isinstance(x, int) and x > 0 for x in grid)
        else:
            valid = isinstance(grid, int) and grid > 0
        if not valid:
            raise ValueError(f"explain: sharding={a.sharding!r} is not a number of devices, a grid (p, q) or a Layout")
        size = grid[0] * grid[1] if isinstance(grid, tuple) else grid
        shape = (a.shape[0], a.shape[1])
        known: dict[str, Any] = {"columns": columns_of(b), "grid": grid if isinstance(grid, tuple) else None}
        return explained(request, Array("spec", shape, a.dtype, a.device, size, layout, **known))


FRONT = DescribedFront()
