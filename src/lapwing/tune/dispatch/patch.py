"""Replace torch's functions for products, and restore them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
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
        for name in ("mm", "bmm", "matmul"):
            self._put(torch, name, self._two(getattr(torch, name), name))
        self._put(torch, "addmm", self._addmm(torch.addmm))
        if hasattr(torch, "_scaled_mm"):
            self._put(torch, "_scaled_mm", self._scaled(torch._scaled_mm))
        for name in ("__matmul__", "matmul", "mm", "bmm"):
            self._put(torch.Tensor, name, self._two(getattr(torch.Tensor, name), name))

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

    def _two(self, original: Any, name: str) -> Callable[..., Any]:
        compiling = torch.compiler.is_compiling
        table = attrgetter({"mm": "matrices", "bmm": "batches"}.get(name, "products"))

        def product(*args: Any, **named: Any) -> Any:
            if compiling() or named or len(args) != 2 or (dispatcher := self.dispatcher) is None:
                return original(*args, **named)
            return dispatcher.run(table(dispatcher), original, args, *args, None)

        return product

    def _addmm(self, original: Any) -> Callable[..., Any]:
        compiling = torch.compiler.is_compiling

        def addmm(*args: Any, **named: Any) -> Any:
            if compiling() or named or len(args) != 3 or (dispatcher := self.dispatcher) is None:
                return original(*args, **named)
            return dispatcher.addmm(original, *args)

        return addmm

    def _scaled(self, original: Any) -> Callable[..., Any]:
        compiling = torch.compiler.is_compiling

        def scaled_mm(*args: Any, **named: Any) -> Any:
            if compiling() or len(args) < 4 or (dispatcher := self.dispatcher) is None:
                return original(*args, **named)
            return dispatcher.scaled_mm(original, *args, **named)

        return scaled_mm
