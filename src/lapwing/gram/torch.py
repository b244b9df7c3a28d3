"""torch tensors: in place without gradients, an expression with them and under vmap, compile and torch.func."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from ..frameworks.torch import traced
from .expression import build, safe_power, safe_root
from .tiles import DIRECT, fill

__all__ = ["make"]

_CPU_TILE = 256  # half a MiB of float64 stays in the second cache: 1.3 to 1.5 times as fast as 512
_GPU_TILE = 4096


def make(
    x: Any, y: Any, formula: Callable[..., Any], numbers: tuple[Any, ...], options: dict[str, int], directions: bool
) -> Any:
    tensors = [t for t in (x, y, *numbers) if isinstance(t, torch.Tensor)]
    if any(traced(t) for t in tensors) or forward_ad._current_level >= 0:
        xp: Any = _Traced
    elif torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        xp = _Recorded
    else:
        return _in_place(x, y, formula, numbers, options, directions)
    kernel = build(xp, x, y, lambda d2, size: formula(xp, d2, size, *numbers, **options), directions)
    return kernel.to(x.dtype)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _in_place(
    x: Any, y: Any, formula: Callable[..., Any], numbers: tuple[Any, ...], options: dict[str, int], directions: bool
) -> Any:
    out = x.new_empty((x.shape[0], (x if y is None else y).shape[0]))
    x, y = x.detach(), None if y is None else y.detach()
    lengths = None
    if directions:
        x, r = _directions(x)
        y, c = (None, r) if y is None else _directions(y)
        lengths = r, c
    xp = _OnGpu if x.is_cuda else _Plain
    fill(xp, out, x, y, lambda d2, size: formula(xp, d2, size, *numbers, **options), lengths)
    return out


def _directions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = _Traced.largest(x)
    scaled = x / torch.where(largest > 0, largest, 1.0)
    size = (scaled * scaled).sum(-1, keepdim=True).sqrt()
    return scaled / torch.where(size > 0, size, 1.0), (largest * size)[:, 0]


def _squared_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of plain operations only, which every transform of torch understands."""
    if x.shape[1] <= DIRECT:
        total = x.new_zeros((x.shape[0], y.shape[0]))
        for k in range(x.shape[1]):
            total = total + (x[:, k, None] - y[None, :, k]) ** 2
        return total
    p, q = _centred(x, y)
    d2 = (p * p).sum(-1)[:, None] + (q * q).sum(-1)[None, :] - 2 * (p @ q.mT)
    return torch.where(d2 < 0, 0.0, d2).to(x.dtype)


def _centred(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifted to the mean of the points, in float64."""
    p, q = x.double(), y.double()
    centre = torch.where(torch.isfinite(q), q, 0.0).sum(0) / max(q.shape[0], 1)
    return p - centre.detach(), q - centre.detach()


class _SquaredDistances(torch.autograd.Function):
    """Saves the points alone: what autograd would keep of the product is three matrices."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        out = x.new_empty((x.shape[0], y.shape[0]))
        fill(_OnGpu if x.is_cuda else _Plain, out, x, y, lambda d2, size: d2, None)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        # sum_j 2 g_ij (x_i - y_j), and the same for y
        x, y = ctx.saved_tensors
        p, q = (t.to(x.dtype) for t in _centred(x, y))
        return 2 * (g.sum(1)[:, None] * p - g @ q), 2 * (g.sum(0)[:, None] * q - g.mT @ p)


class _Plain:
    """What gram/tiles.py and gram/formulas.py work with."""

    tile = _CPU_TILE
    float64 = torch.float64
    arctan2 = staticmethod(torch.arctan2)
    clip = staticmethod(torch.clip)
    exp = staticmethod(torch.exp)
    isfinite = staticmethod(torch.isfinite)
    power = staticmethod(torch.pow)
    root = staticmethod(torch.sqrt)
    tril = staticmethod(torch.tril)
    where = staticmethod(torch.where)

    @staticmethod
    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.double()

    @staticmethod
    def nonzero(x: torch.Tensor) -> Any:
        return x.nonzero(as_tuple=True)


class _OnGpu(_Plain):
    tile = _GPU_TILE


class _Traced:
    """What gram/expression.py and gram/formulas.py work with, under a transform."""

    arctan2 = staticmethod(torch.arctan2)
    clip = staticmethod(torch.clip)
    exp = staticmethod(torch.exp)
    power = staticmethod(partial(safe_power, torch.where, torch.pow))
    root = staticmethod(partial(safe_root, torch.where, torch.sqrt))
    squared_distances = staticmethod(_squared_distances)
    where = staticmethod(torch.where)

    @staticmethod
    def stop_gradient(x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    @staticmethod
    def sum(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1, keepdim=True)

    @staticmethod
    def largest(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x.abs(), (0, 1)).amax(-1, keepdim=True)

    @staticmethod
    def zero_diagonal(d2: torch.Tensor) -> torch.Tensor:
        """Zero where a row meets itself; NaN, as of a point that is not finite, stays."""
        rows, columns = d2.shape
        order = torch.arange(columns, device=d2.device)
        itself = order[:rows, None] + (columns - rows) == order[None, :]
        return torch.where(itself & torch.isfinite(d2), 0.0, d2)

    @staticmethod
    def mirror(k: torch.Tensor) -> torch.Tensor:
        """The lower triangle on both sides."""
        return k.tril() + k.tril(-1).mT

    @classmethod
    def assemble(cls, n: int, bands: list[tuple[int, Any]]) -> torch.Tensor:
        rows = []
        bounds = [*[start for start, _ in bands], n]
        for place, (start, band) in enumerate(bands):
            end = bounds[place + 1]
            right = [other[:, start:end].mT for _, other in bands[place + 1 :]]
            rows.append(torch.cat([band[:, :start], cls.mirror(band[:, start:]), *right], 1))
        return torch.cat(rows)


class _Recorded(_Traced):
    squared_distances = staticmethod(_SquaredDistances.apply)
