"""An operation as the frameworks see it: its number in the native core, its result types, its derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from .native import OPS, native
from .problem import ADJOINT, CONJUGATE, POS, UPPER, WORK, Problem

_SHORT_WAY = 1 << 18  # elements: for more, the work takes so long that the short way saves nothing

Shape = tuple[int, ...]
Params = tuple[int, ...]  # the flags, then other numbers that the operation needs before it runs
Results = tuple[tuple[Shape, str | None], ...]
OPERATIONS: list[Operation] = []  # every operation, for frameworks that register them at import


@dataclass(frozen=True, eq=False)  # there is one record per operation: identity is enough, and quick to hash
class Operation:
    """One record per operation; a framework needs nothing else to provide it.

    ``results(shapes, params)`` gives shape and dtype of each output; dtype None is the input's, "real" its real
    counterpart, "complex" its complex one.
    ``sizes(shapes, params)`` are the numbers the native frame carries. ``jvp(xp, params, inputs, outputs, tangents)`` and
    ``vjp(xp, params, inputs, outputs, grads)`` are written once on a small namespace that each framework supplies (see
    core/derivatives.py); both see inputs only if ``keeps_inputs(params)``. An operation without such rules may have
    ``composed(xp, params, inputs, engine)``, which computes it from operations that have them, and is called instead when
    derivatives are wanted. ``reference(arrays, params)`` does the work with numpy.linalg if there is no native core.
    """

    name: str
    results: Callable[[tuple[Shape, ...], Params], Results]
    sizes: Callable[[tuple[Shape, ...], Params], Shape]
    reference: Callable[[tuple[Any, ...], Params], tuple[Any, ...]]
    ranks: tuple[int, ...] = (2,)  # number of axes of each input, without the batch
    square: bool = True  # whether the first input must be square
    example: Params = (0,)  # any valid params, to learn how many outputs there are
    jvp: Callable[..., tuple[Any, ...]] | None = None
    vjp: Callable[..., tuple[Any, ...]] | None = None
    differentiable: int = 1  # how many outputs, from the first on, have derivatives
    keeps_inputs: Callable[[Params], bool] = lambda params: False
    alias: int | None = None  # the output that may share the memory of the input, if both have the same shape
    # Whether the operation can work on the memory of the transpose, with the flag of the other triangle. "": no. "factor": yes,
    # and the aliased output is a transpose too. "real": for real dtypes, with the same outputs. "pos": as "real", with the flag
    # POS only. "adjoint": for real dtypes, and on the CPU for complex ones too, solving the system of the adjoint instead.
    turns: str = ""
    # Up to this order the call only launches kernels, which need no memory, so that a CUDA graph may capture it.
    launches_only_to: int = 0
    # if derivatives are wanted, this operation is called instead: its name, and which of its outputs to return
    derivative_from: tuple[str, tuple[int, ...]] | None = None
    composed: Callable[..., tuple[Any, ...]] | None = None
    elsewhere: Callable[..., tuple[Any, ...]] | None = None  # called instead, with the arguments of composed, on a GPU ...
    # ... unless this says that the native core has these shapes and this dtype with this engine. The native call may wait for
    # the device, so it is not used while a graph is captured.
    native_elsewhere: Callable[[tuple[Shape, ...], int, str], bool] = lambda shapes, engine, dtype: False
    # each column of the first output depends on the same column of the last input alone: many such inputs for one matrix
    # become one call with more columns
    by_columns: bool = False
    # product(xp, params, all inputs but the last, x): multiplies the first output x so that it gives the last input
    product: Callable[..., Any] | None = None
    # adjoint(xp, params, all inputs but the last): the params and inputs of the solve with A^H
    adjoint: Callable[..., tuple[Params, Any]] = lambda xp, params, inputs: ((params[0] ^ ADJOINT, *params[1:]), inputs)

    # work(problem): flops and elements moved for one real matrix; None for operations that users neither call nor plan
    work: Callable[[Problem], tuple[float, float]] | None = None
    variant: str = ""  # the same native operation with other derivative rules: "qr" and "qr_complete"

    code: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", OPS[self.name] if native is not None else -1)
        if self.work is not None:
            WORK[self.name] = self.work
        if self.variant:
            object.__setattr__(self, "name", f"{self.name}_{self.variant}")
        OPERATIONS.append(self)

    @property
    def inputs(self) -> int:
        return len(self.ranks)

    def takes(self, shapes: tuple[Shape, ...]) -> bool:
        """Whether one or two arrays of these shapes may go to the native core by the short way.

        They must not be empty or need preparation, and be so small that the short way pays."""
        first = shapes[0]
        if len(first) < 2 or not 0 < prod(first) <= _SHORT_WAY or (self.square and first[-1] != first[-2]):
            return False
        return len(shapes) == 1 or (len(shapes[1]) == len(first) and first[:-1] == shapes[1][:-1] and shapes[1][-1] > 0)

    @property
    def has_status(self) -> bool:
        """Whether the last result is a status for each matrix."""
        return self.results(self.example_shapes, self.example)[-1][1] == "int32"

    @property
    def example_shapes(self) -> tuple[Shape, ...]:
        return tuple((1,) * rank for rank in self.ranks)

    def turned(self, dtype: str, flags: int, on_cpu: bool) -> bool:
        """Whether a call can work on the memory of the transpose."""
        if self.turns == "factor" or (self.turns == "adjoint" and on_cpu):
            return True
        return dtype.startswith("float") and (self.turns in ("real", "adjoint") or (self.turns == "pos" and flags & POS != 0))

    def turned_flags(self, flags: int, conjugated: bool) -> int:
        """The flags for the memory of the transpose, or of the adjoint, whose upper triangle is our lower one."""
        if self.turns != "adjoint":
            return flags ^ UPPER
        return flags ^ UPPER ^ ADJOINT ^ (0 if conjugated else CONJUGATE)

    def share(self, outputs: tuple[Any, ...], a: Any) -> tuple[Any, ...]:
        """The outputs, with ``a`` in place of the one that may share its memory."""
        i = self.alias
        if i is None or outputs[i].shape != a.shape or outputs[i].dtype != a.dtype:
            return outputs
        return (*outputs[:i], a, *outputs[i + 1 :])

    def turn_back(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs of a call that worked on the memory of the transpose."""
        if self.turns != "factor":
            return outputs
        return tuple(x.swapaxes(-1, -2) if i == self.alias else x for i, x in enumerate(outputs))


def picked(function: Callable[..., tuple[Any, ...]], indices: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
    """A function that returns only these results of ``function``."""
    return lambda *arguments: tuple(function(*arguments)[i] for i in indices)


def operation_named(name: str) -> Operation:
    return next(o for o in OPERATIONS if o.name == name)
