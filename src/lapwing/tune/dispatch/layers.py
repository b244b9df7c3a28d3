"""The linear layers of a model, one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from .dispatcher import Dispatcher

__all__ = ["enable_layer"]


def enable_layer(layer: Any, dispatcher: Dispatcher, frozen: Dispatcher | None = None) -> Callable[[], None] | None:
    """Changes the layer and gives the function that changes it back; None for what is no plain linear layer.

    ``frozen`` does its products where no derivative is asked for, and the weight has none.
    """
    if not isinstance(layer, torch.nn.Linear) or type(layer).forward is not torch.nn.Linear.forward:
        return None
    before = layer.__dict__.get("forward")
    if getattr(before, "__func__", None) is torch.nn.Linear.forward:  # what a pickle of ours has in our place
        before = None
    if before is not None and not isinstance(before, _Forward):  # somebody else's
        return None
    forward = _Forward(layer, dispatcher, frozen)
    forward.over = before
    layer.forward = forward  # type: ignore[method-assign]

    def undo() -> None:
        forward.ended = True
        # handles may be removed in any order: one that lies under another goes with it
        while isinstance(top := layer.__dict__.get("forward"), _Forward) and top.ended:
            if top.over is None:
                del layer.forward
            else:
                layer.forward = top.over  # type: ignore[method-assign]

    return undo


class _Forward:
    """A layer's forward. A copy of the layer has its own; what is pickled is the plain one."""

    def __init__(self, layer: Any, dispatcher: Dispatcher, frozen: Dispatcher | None = None) -> None:
        self.layer, self.dispatcher, self.frozen = layer, dispatcher, frozen
        self.over: _Forward | None = None  # what was there before
        self.ended = False

    def __call__(self, input: Any) -> Any:
        layer = self.layer
        if torch.compiler.is_compiling():
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        dispatcher, weight = self.dispatcher, layer.weight
        if self.frozen is not None and not weight.requires_grad and not (torch.is_grad_enabled() and input.requires_grad):
            dispatcher = self.frozen
        return dispatcher.linear(torch.nn.functional.linear, input, weight, layer.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        return _Forward(copy.deepcopy(self.layer, memo), self.dispatcher, self.frozen)

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_forward, (self.layer,)


def _plain_forward(layer: Any) -> Any:
    return MethodType(torch.nn.Linear.forward, layer)
