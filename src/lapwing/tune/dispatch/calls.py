"""A tuned kernel as a function on tensors, and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..gemm import Gemm
from .choice import Choice

NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}


class Call:
    """A kernel for operands as a framework passes them. Its first result is checked, and its calls are counted."""

    def __init__(self, choice: Choice, gemm: Gemm, fold: bool) -> None:
        (self.kernel, self.tally), self.gemm, self.fold = choice, gemm, fold
        self.turn_x, self.turn_y = gemm.trans_b == "T", gemm.trans_a == "T"
        self.checked = False
        self.may_be_negated = gemm.b_type in ("f16", "f32", "f64")  # the parts of complex tensors can be
        # in the usual case F.linear needs only the kernel, which reads the weight as it is
        self.stored: Callable[..., Any] = self._first_stored if self.turn_y and not fold and not self.turn_x else self._linear

    def __call__(self, x: Any, y: Any, bias: Any = None) -> Any:
        """y is (inner, columns)."""
        shape = x.shape
        if self.fold:
            x = x.view(-1, shape[-1])
        result = self.kernel(x.mT if self.turn_x else x, y.mT if self.turn_y else y, bias)
        if not self.checked:
            self._check(result, x)
        return result.view(*shape[:-1], result.shape[-1]) if self.fold else result

    def _linear(self, x: Any, w: Any, bias: Any) -> Any:
        return self(x, w.t(), bias)

    def _first_stored(self, x: Any, w: Any, bias: Any) -> Any:
        result = self(x, w.t(), bias)
        self.stored = self.kernel
        return result

    def _check(self, result: Any, x: Any) -> None:
        """Refuse a kernel whose result is not a product of this shape and type."""
        g = self.gemm
        shape = (g.n, g.m) if g.batch == 1 and x.dim() == 2 else (x.shape[0], g.n, g.m)
        if tuple(result.shape) != shape or NAMES.get(result.dtype) != g.d_type or result.device != x.device:
            raise RuntimeError(f"the kernel for {g} returned {tuple(result.shape)} {result.dtype}")
        self.checked = True


class Product(torch.autograd.Function):
    """x y + bias by a tuned kernel. Its derivatives are products too, and are looked up like any other."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, bias: Any, call: Call, dispatcher: Any) -> Any:  # type: ignore[override]
        # save only what a derivative needs, as torch does: the program may change or free the rest
        wants_x, wants_y = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if wants_y else None, y if wants_x else None)
        ctx.x_shape, ctx.x_turned, ctx.y_turned = x.shape, x.dim() == 2 and _turned(x), _turned(y)
        ctx.batched = y.dim() == 3
        ctx.dispatcher = dispatcher
        return call(x, y, bias)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        x, y = ctx.saved_tensors
        product = ctx.dispatcher.matmul
        wants_x, wants_y, wants_bias = ctx.needs_input_grad[:3]
        flat = g if ctx.batched else g.reshape(-1, g.shape[-1])
        # dX = G Y^T, dY = X^T G; transposed like the operand, as in torch's own derivative, so that both find one entry
        dx = dy = None
        if wants_x:
            dx = product(_matmul, y, flat.mT).mT if ctx.x_turned else product(_matmul, flat, y.mT)
            dx = dx.reshape(ctx.x_shape)
        if wants_y:
            flat_x = x if ctx.batched else x.reshape(-1, x.shape[-1])
            dy = product(_matmul, flat.mT, flat_x).mT if ctx.y_turned else product(_matmul, flat_x.mT, flat)
        return dx, dy, flat.sum(0) if wants_bias else None, None, None


def _turned(x: Any) -> bool:
    return bool(x.dim() == 2 and x.stride() == (1, x.shape[0]))


_matmul = torch.matmul  # torch's own, before it is replaced
