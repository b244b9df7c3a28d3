"""Gradients of operations on torch DTensors: the engine runs again, on blocks that are placed as the input was."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Replicate

from .dtensor_blocks import adjoint, layout_for, ranks_of, whole, wrap

__all__ = ["differentiable_slogdet", "differentiable_solve"]


def differentiable_solve(run: Any, a: Any, b: Any, pos: bool) -> Any:
    """``run(a, b)`` with gradients: gb = A^-H g, gA = -gb x^H, for a positive matrix its Hermitian part."""
    return _Solve.apply(a, b, run, pos)


def differentiable_slogdet(run: Any, invert: Any, a: Any, pos: bool) -> Any:
    return _Slogdet.apply(a, run, invert, pos)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, run: Any, pos: bool) -> Any:
        x = run(a.detach(), b.detach())
        ctx.save_for_backward(a, x)
        ctx.run, ctx.pos, ctx.placements = run, pos, x.placements if isinstance(x, DTensor) else None
        ctx.partial = isinstance(b, DTensor) and any(p.is_partial() for p in b.placements)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        a, x = ctx.saved_tensors
        if ctx.placements is not None:
            g = g.redistribute(placements=ctx.placements)
        gb = ctx.run(a.detach() if ctx.pos else adjoint(a.detach()), g.detach())
        ga = _outer(a, gb, x, ctx.pos) if ctx.needs_input_grad[0] else None
        # each summand of b has the gradient of their sum
        return ga, gb.redistribute(placements=[Replicate()] * gb.device_mesh.ndim) if ctx.partial else gb, None, None


def _outer(a: Any, gb: Any, x: Any, pos: bool) -> Any:
    """This rank's block of -gb x^H: the right-hand sides are few, so that every rank can have them all."""
    left, right = (whole(y).reshape(a.shape[0], -1) for y in (gb, x))
    layout = layout_for(a, tuple(a.shape))
    rows, columns = (torch.from_numpy(i).to(left.device) for i in layout.indices(ranks_of(a.device_mesh).rank))
    block = -left[rows] @ right[columns].mH
    if pos:
        block = (block - right[rows] @ left[columns].mH) / 2
    return wrap(block, a, tuple(a.shape))


class _Slogdet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, run: Any, invert: Any, pos: bool) -> Any:
        sign, logabs = run(a.detach())
        ctx.save_for_backward(a)
        ctx.invert, ctx.pos = invert, pos
        ctx.mark_non_differentiable(sign)
        return sign, logabs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any, g: Any) -> Any:  # type: ignore[override]
        (a,) = ctx.saved_tensors
        # the inverse of a Hermitian matrix is its own adjoint
        x = ctx.invert(a.detach())
        x = x if ctx.pos else adjoint(x).redistribute(placements=a.placements)
        return wrap(x.to_local() * whole(g), a, tuple(a.shape)), None, None, None
