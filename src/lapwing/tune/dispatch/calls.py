"""A tuned kernel as a function on tensors, and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..gemm import Gemm

__all__ = ["NAMES", "Call", "Product"]

NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}


class Call:
    """A kernel for operands as a framework hands them over. The first answer is looked at."""

    def __init__(self, kernel: Callable[..., Any], gemm: Gemm, fold: bool) -> None:
        self.kernel, self.gemm, self.fold = kernel, gemm, fold
        self.turn_x, self.turn_y = gemm.trans_b == "T", gemm.trans_a == "T"
        self.looked = False
        self.may_be_negated = gemm.b_type in ("f16", "f32", "f64")  # parts of complex tensors can be
        # the usual case of F.linear needs nothing but the kernel: the weight lies as it is handed over
        self.stored: Callable[..., Any] = self._first_stored if self.turn_y and not fold and not self.turn_x else self._linear

    def __call__(self, x: Any, y: Any, bias: Any = None) -> Any:
        """y is (inner, columns)."""
        shape = x.shape
        if self.fold:
            x = x.view(-1, shape[-1])
        made = self.kernel(x.mT if self.turn_x else x, y.mT if self.turn_y else y, bias)
        if not self.looked:
            self._look(made, x)
        return made.view(*shape[:-1], made.shape[-1]) if self.fold else made

    def _linear(self, x: Any, w: Any, bias: Any) -> Any:
        return self(x, w.t(), bias)

    def _first_stored(self, x: Any, w: Any, bias: Any) -> Any:
        made = self(x, w.t(), bias)
        self.stored = self.kernel
        return made

    def _look(self, made: Any, x: Any) -> None:
        """A kernel that gives something else than a product is a fault that must not spread."""
        g = self.gemm
        shape = (g.n, g.m) if g.batch == 1 and x.dim() == 2 else (x.shape[0], g.n, g.m)
        if tuple(made.shape) != shape or NAMES.get(made.dtype) != g.d_type or made.device != x.device:
            raise RuntimeError(f"the kernel for {g} gave {tuple(made.shape)} {made.dtype}")
        self.looked = True


class Product(torch.autograd.Function):
    """x y + bias by a tuned kernel; its derivatives are products again, and looked up like any other."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, bias: Any, call: Call, dispatcher: Any) -> Any:  # type: ignore[override]
        # only what a derivative needs, as torch does: the other may be changed in place, or freed
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
        # dX = G Y^T, dY = X^T G; and turned where the operand is, as torch does it: so they are found under the name that a
        # recording of torch's own derivative has
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


_matmul = torch.matmul  # before anybody replaces it
