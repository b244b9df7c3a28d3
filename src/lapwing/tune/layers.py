"""The linear layers of a model, one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from .dispatch import Dispatcher

__all__ = ["enable_layer"]


def enable_layer(layer: Any, dispatcher: Dispatcher) -> Callable[[], None] | None:
    """Changes the layer and gives the function that changes it back; None for what is no plain linear layer."""
    if not isinstance(layer, torch.nn.Linear) or type(layer).forward is not torch.nn.Linear.forward:
        return None
    before = layer.__dict__.get("forward")
    if before is not None and not isinstance(before, _Forward):  # somebody else's
        return None
    forward = _Forward(layer, dispatcher)
    layer.forward = forward  # type: ignore[method-assign]

    def undo() -> None:
        if layer.__dict__.get("forward") is not forward:
            return
        if before is None:
            del layer.forward
        else:
            layer.forward = before  # type: ignore[method-assign]

    return undo


class _Forward:
    """A layer's forward. A copy of the layer has its own; what is pickled is the plain one."""

    def __init__(self, layer: Any, dispatcher: Dispatcher) -> None:
        self.layer, self.dispatcher = layer, dispatcher

    def __call__(self, input: Any) -> Any:
        layer = self.layer
        if torch.compiler.is_compiling():
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        return self.dispatcher.linear(torch.nn.functional.linear, input, layer.weight, layer.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        return _Forward(copy.deepcopy(self.layer, memo), self.dispatcher)

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_forward, (self.layer,)


def _plain_forward(layer: Any) -> Any:
    return MethodType(torch.nn.Linear.forward, layer)
