"""Change the linear layers of a model, one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from .dispatcher import Dispatcher


def enable_layer(layer: Any, dispatcher: Dispatcher, frozen: Dispatcher | None = None) -> Callable[[], None] | None:
    """Change the layer and return the function that restores it; None if it is not a plain linear layer.

    ``frozen`` computes the products for which neither the input nor the weight needs a gradient.
    """
    if not isinstance(layer, torch.nn.Linear) or type(layer).forward is not torch.nn.Linear.forward:
        return None
    before = layer.__dict__.get("forward")
    if getattr(before, "__func__", None) is torch.nn.Linear.forward:  # left by a pickled copy of our forward
        before = None
    if before is not None and not isinstance(before, _Forward):  # another library's
        return None
    forward = _Forward(layer, dispatcher, frozen)
    forward.over = before
    layer.forward = forward  # type: ignore[method-assign]

    def undo() -> None:
        forward.ended = True
        # handles may be removed in any order: one below another is removed together with it
        while isinstance(top := layer.__dict__.get("forward"), _Forward) and top.ended:
            if top.over is None:
                del layer.forward
            else:
                layer.forward = top.over  # type: ignore[method-assign]

    return undo


class _Forward:
    """The forward of a layer. A copy of the layer has its own; a pickled layer has the plain one."""

    def __init__(self, layer: Any, dispatcher: Dispatcher, frozen: Dispatcher | None = None) -> None:
        self.layer, self.dispatcher, self.frozen = layer, dispatcher, frozen
        self.over: _Forward | None = None  # the forward below it
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
