"""Replace torch's functions for products, or the forward of linear layers, and restore them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import MethodType
from typing import Any

import torch

from ..library.folder import Library
from .dispatcher import Dispatcher

_MISSING: Any = object()


class Patch:
    """While libraries are set, torch's functions ask the dispatcher first."""

    def __init__(self) -> None:
        self.dispatcher: Dispatcher | None = None
        self._uninstall: Callable[[], None] | None = None
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, its original in __dict__, our function

    def set(self, libraries: Sequence[Library], compiled: bool) -> None:
        """Use these libraries; an empty list restores everything."""
        self.dispatcher = Dispatcher(libraries) if libraries else None
        if libraries and not self._replaced:
            self._replace()
        elif not libraries:
            self._put_back()
        if self._uninstall is not None:
            self._uninstall()
            self._uninstall, compiled = None, True
        if self.dispatcher is not None and compiled:
            from .compiled import install

            self._uninstall = install(self.dispatcher, "-".join(library.digest for library in libraries))

    def _replace(self) -> None:
        self._put(torch.nn.functional, "linear", self._linear(torch.nn.functional.linear))
        for name in ("mm", "bmm", "matmul", "addmm"):
            self._put(torch, name, self._product(getattr(torch, name), name))
        if hasattr(torch, "_scaled_mm"):
            self._put(torch, "_scaled_mm", self._scaled(torch._scaled_mm))
        for name in ("__matmul__", "matmul", "mm", "bmm"):
            self._put(torch.Tensor, name, self._product(getattr(torch.Tensor, name), name))

    def _put(self, where: Any, name: str, ours: Any) -> None:
        original = getattr(where, name)
        ours.__name__, ours.__qualname__, ours.__doc__ = name, name, original.__doc__
        self._replaced.append((where, name, where.__dict__.get(name, _MISSING), ours))
        setattr(where, name, ours)

    def _put_back(self) -> None:
        for where, name, before, ours in reversed(self._replaced):
            if where.__dict__.get(name) is not ours:  # another library has replaced ours, which then only passes calls on
                continue
            if before is _MISSING:
                delattr(where, name)
            else:
                setattr(where, name, before)
        self._replaced.clear()

    # torch.compiler.is_compiling comes first, so that Dynamo sees only the original function

    def _linear(self, original: Any) -> Callable[..., Any]:
        compiling = torch.compiler.is_compiling

        def linear(input: Any, weight: Any, bias: Any = None) -> Any:
            if compiling() or (dispatcher := self.dispatcher) is None:
                return original(input, weight, bias)
            return dispatcher.run(dispatcher.linears, original, (input, weight, bias), input, weight, bias)

        return linear

    def _product(self, original: Any, name: str) -> Callable[..., Any]:
        compiling = torch.compiler.is_compiling
        table = attrgetter({"mm": "matrices", "addmm": "matrices", "bmm": "batches"}.get(name, "products"))
        biased = name == "addmm"

        def product(*args: Any, **named: Any) -> Any:
            if compiling() or named or len(args) != 2 + biased or (dispatcher := self.dispatcher) is None:
                return original(*args, **named)
            return dispatcher.run(table(dispatcher), original, args, args[-2], args[-1], args[0] if biased else None)

        return product

    def _scaled(self, original: Any) -> Callable[..., Any]:
        compiling = torch.compiler.is_compiling

        def scaled_mm(*args: Any, **named: Any) -> Any:
            if compiling() or len(args) < 4 or (dispatcher := self.dispatcher) is None:
                return original(*args, **named)
            return dispatcher.scaled_mm(original, *args, **named)

        return scaled_mm


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
