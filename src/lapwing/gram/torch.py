"""torch tensors: in place if there are no gradients; an expression with gradients and under vmap, compile and torch.func."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import forward_ad

from ..frameworks.torch import traced
from .expression import build, join_bands, safe_power, safe_root
from .formulas import Kernel, squared
from .tiles import DIRECT, fill


def make(x: Any, y: Any, kernel: Kernel, numbers: tuple[Any, ...]) -> Any:
    tensors = [t for t in (x, y, *numbers) if isinstance(t, torch.Tensor)]
    if any(traced(t) for t in tensors) or forward_ad._current_level >= 0:
        return build(_TRACED, x, y, kernel, numbers).to(x.dtype)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return build(_RECORDED, x, y, kernel, numbers).to(x.dtype)
    return _in_place(x, y, kernel, numbers)


def vector(values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _in_place(x: torch.Tensor, y: torch.Tensor | None, kernel: Kernel, numbers: tuple[Any, ...]) -> torch.Tensor:
    out = x.new_empty((x.shape[0], (x if y is None else y).shape[0]))
    fill(_PLAIN, out, x.detach(), None if y is None else y.detach(), kernel, numbers, on_gpu=x.is_cuda)
    return out


def _squared_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Composed only of plain operations, which every transform of torch supports."""
    if x.shape[1] <= DIRECT:
        total = x.new_zeros((x.shape[0], y.shape[0]))
        for k in range(x.shape[1]):
            total = total + (x[:, k, None] - y[None, :, k]) ** 2
        return total
    p, q = _centred(x, y)
    d2 = (p * p).sum(-1)[:, None] + (q * q).sum(-1)[None, :] - 2 * (p @ q.mT)
    return torch.where(d2 < 0, 0.0, d2).to(x.dtype)


def _centred(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifted to the mean of the second points, in float64."""
    p, q = x.double(), y.double()
    centre = torch.where(torch.isfinite(q), q, 0.0).sum(0) / max(q.shape[0], 1)
    return p - centre.detach(), q - centre.detach()


class _SquaredDistances(torch.autograd.Function):
    """Saves only the points; autograd would keep three matrices of the product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return _in_place(x, y, Kernel(squared), ())  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        # sum_j 2 g_ij (x_i - y_j), and the same for y
        x, y = ctx.saved_tensors
        p, q = (t.to(x.dtype) for t in _centred(x, y))
        return 2 * (g.sum(1)[:, None] * p - g @ q), 2 * (g.sum(0)[:, None] * q - g.mT @ p)


def _mirror(k: torch.Tensor) -> torch.Tensor:
    """The lower triangle on both sides."""
    return k.tril() + k.tril(-1).mT


def _largest(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x.abs(), (0, 1)).amax(-1, keepdim=True)


# the functions that gram/tiles.py and gram/formulas.py call
_PLAIN = SimpleNamespace(
    arctan2=torch.arctan2,
    clip=torch.clip,
    exp=torch.exp,
    isfinite=torch.isfinite,
    largest=_largest,
    nonzero=partial(torch.nonzero, as_tuple=True),
    power=torch.pow,
    root=torch.sqrt,
    stop_gradient=torch.Tensor.detach,
    sum=partial(torch.sum, dim=-1, keepdim=True),
    tril=torch.tril,
    where=torch.where,
    wide=torch.Tensor.double,
)
# those that gram/expression.py calls too, under a transform
_TRACED = SimpleNamespace(
    **vars(_PLAIN)
    | {
        "arange": lambda n, like: torch.arange(n, device=like.device),
        "assemble": partial(join_bands, torch.cat, partial(torch.transpose, dim0=0, dim1=1), _mirror),
        "mirror": _mirror,
        "power": partial(safe_power, torch.where, torch.pow),
        "root": partial(safe_root, torch.where, torch.sqrt),
        "shape": torch.Tensor.size,
        "squared_distances": _squared_distances,
    }
)
_RECORDED = SimpleNamespace(**vars(_TRACED) | {"squared_distances": _SquaredDistances.apply})
