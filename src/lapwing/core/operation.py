"""An operation as the frameworks see it: its number in the native core, its result types, its derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from .native import OPS, native
from .problem import ADJOINT, CONJUGATE, POS, UPPER, WORK, Problem

_SHORT_WAY = 1 << 18  # elements: their work takes much longer than the long way

Shape = tuple[int, ...]
Params = tuple[int, ...]  # the flags, then what else the operation wants to know: fixed before anything is run
Results = tuple[tuple[Shape, str | None], ...]
OPERATIONS: list[Operation] = []  # all there are, for frameworks that want to know them beforehand


@dataclass(frozen=True, eq=False)  # there is one record per operation: identity is enough, and quick to hash
class Operation:
    """One row per operation; every framework hooks it up from this record alone.

    ``results(shapes, params)`` gives shape and dtype of each output; dtype None is the input's, "real" its real
    counterpart, "complex" its complex one.
    ``sizes(shapes, params)`` are the numbers the native frame carries. ``jvp(xp, params, inputs, outputs, tangents)`` and
    ``vjp(xp, params, inputs, outputs, grads)`` are written once on a small namespace that each framework supplies (see
    core/derivatives.py); both see inputs only where ``keeps_inputs(params)``. An operation without such rules may be
    ``composed(xp, params, inputs, engine)`` of others that have them, which take its place where derivatives are wanted.
    ``reference(arrays, params)`` does the work with numpy.linalg where there is no native core.
    """

    name: str
    results: Callable[[tuple[Shape, ...], Params], Results]
    sizes: Callable[[tuple[Shape, ...], Params], Shape]
    reference: Callable[[tuple[Any, ...], Params], tuple[Any, ...]]
    ranks: tuple[int, ...] = (2,)  # of each input, without the batch
    square: bool = True  # whether the first input must be
    example: Params = (0,)  # any that are valid, to learn how many outputs there are
    jvp: Callable[..., tuple[Any, ...]] | None = None
    vjp: Callable[..., tuple[Any, ...]] | None = None
    differentiable: int = 1  # the first so many outputs have derivatives
    keeps_inputs: Callable[[Params], bool] = lambda params: False
    alias: int | None = None  # the output that may share the memory of the input, where it has its shape
    # Whether the memory of the transpose serves as well, with the other triangle named: "factor": and the aliased output
    # comes out turned; "real": for real dtypes, and nothing is turned; "pos": likewise, with the flag POS; "adjoint": for real
    # dtypes, on the CPU for complex ones too, where the system of the adjoint is solved instead; "": no.
    turns: str = ""
    # Up to this order the call only launches kernels, which need no memory, so that a CUDA graph may capture it.
    launches_only_to: int = 0
    # where derivatives are wanted, another operation takes its place: its name, and which of its outputs are ours
    derivative_from: tuple[str, tuple[int, ...]] | None = None
    composed: Callable[..., tuple[Any, ...]] | None = None
    elsewhere: Callable[..., tuple[Any, ...]] | None = None  # takes its place, with the same arguments, on devices but the CPU
    # ... unless the native core does inputs of these shapes and this dtype there, with this engine; it may wait for the device,
    # so not while a graph is captured
    native_elsewhere: Callable[[tuple[Shape, ...], int, str], bool] = lambda shapes, engine, dtype: False
    # the columns of the last input, and of the first output, have nothing to do with each other: many of these for one matrix
    # become one call with more columns
    by_columns: bool = False
    # product(xp, params, inputs but the last, x): what the first output x is multiplied by to give the last input
    product: Callable[..., Any] | None = None
    # adjoint(xp, params, inputs but the last): the params and inputs of the solve with A^H
    adjoint: Callable[..., tuple[Params, Any]] = lambda xp, params, inputs: ((params[0] ^ ADJOINT, *params[1:]), inputs)

    # work(problem): flops and elements moved, of one real matrix; None: not an operation that users call or plan
    work: Callable[[Problem], tuple[float, float]] | None = None
    variant: str = ""  # the same native operation, but with other rules: "qr" and "qr_complete"

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
        """Whether arrays of these shapes, one or two and none of them empty, may go to the native core by the short way.

        They need no preparation, and are so small that it pays."""
        first = shapes[0]
        if len(first) < 2 or not 0 < prod(first) <= _SHORT_WAY or (self.square and first[-1] != first[-2]):
            return False
        return len(shapes) == 1 or (len(shapes[1]) == len(first) and first[:-1] == shapes[1][:-1] and shapes[1][-1] > 0)

    @property
    def has_status(self) -> bool:
        """Whether the last result is a number for each matrix that says whether it succeeded."""
        return self.results(self.example_shapes, self.example)[-1][1] == "int32"

    @property
    def example_shapes(self) -> tuple[Shape, ...]:
        return tuple((1,) * rank for rank in self.ranks)

    def turned(self, dtype: str, flags: int, on_cpu: bool) -> bool:
        if self.turns == "factor" or (self.turns == "adjoint" and on_cpu):
            return True
        return dtype.startswith("float") and (self.turns in ("real", "adjoint") or (self.turns == "pos" and flags & POS != 0))

    def turned_flags(self, flags: int, conjugated: bool) -> int:
        """The flags for the memory of the transpose, or of the adjoint: its upper triangle is our lower one."""
        if self.turns != "adjoint":
            return flags ^ UPPER
        return flags ^ UPPER ^ ADJOINT ^ (0 if conjugated else CONJUGATE)

    def share(self, outputs: tuple[Any, ...], a: Any) -> tuple[Any, ...]:
        """The outputs, with the memory of ``a`` for the one that may share it."""
        i = self.alias
        if i is None or outputs[i].shape != a.shape or outputs[i].dtype != a.dtype:
            return outputs
        return (*outputs[:i], a, *outputs[i + 1 :])

    def turn_back(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """What an input in the memory of its transpose gave."""
        if self.turns != "factor":
            return outputs
        return tuple(x.swapaxes(-1, -2) if i == self.alias else x for i, x in enumerate(outputs))


def picked(function: Callable[..., tuple[Any, ...]], places: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
    """The function with only these of its results."""
    return lambda *arguments: tuple(function(*arguments)[i] for i in places)


def operation_named(name: str) -> Operation:
    return next(o for o in OPERATIONS if o.name == name)
