"""An operation as the frameworks see it: its number in the native core, its result types, its derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .native import OPS

__all__ = ["ADJOINT", "OPERATIONS", "OPERATOR", "OVERWRITE", "UPPER", "Operation", "Params", "Shape", "operation_named"]

UPPER, OVERWRITE, ADJOINT, OPERATOR = 1, 2, 4, 8  # Flag in native/frame.h

Shape = tuple[int, ...]
Params = tuple[int, ...]  # the flags, then what else the operation wants to know: fixed before anything is run
Results = tuple[tuple[Shape, str | None], ...]
OPERATIONS: list[Operation] = []  # all there are, for frameworks that want to know them beforehand


@dataclass(frozen=True, eq=False)  # there is one record per operation: identity is enough, and quick to hash
class Operation:
    """One row per operation; every framework hooks it up from this record alone.

    ``results(shapes, params)`` gives shape and dtype of each output; dtype None is the input's, "real" its real counterpart.
    ``sizes(shapes, params)`` are the numbers the native frame carries. ``jvp(xp, params, inputs, outputs, tangents)`` and
    ``vjp(xp, params, inputs, outputs, grads)`` are written once on a small namespace that each framework supplies (see
    core/derivatives.py); both see inputs only where ``keeps_inputs(params)``. ``reference(arrays, params)`` does the work with
    numpy.linalg where there is no native core.
    """

    name: str
    results: Callable[[tuple[Shape, ...], Params], Results]
    sizes: Callable[[tuple[Shape, ...], Params], Shape]
    reference: Callable[[tuple[Any, ...], Params], tuple[Any, ...]]
    inputs: int = 1
    example: Params = (0,)  # any that are valid, to learn how many outputs there are
    jvp: Callable[..., tuple[Any, ...]] | None = None
    vjp: Callable[..., tuple[Any, ...]] | None = None
    differentiable: int = 1  # the first so many outputs have derivatives
    keeps_inputs: Callable[[Params], bool] = lambda params: False
    alias: int | None = None  # the output that may share the memory of the input, where it has its shape
    # Whether the memory of the transpose serves as well, with the other triangle named: "factor": and the aliased output
    # comes out turned; "real": for real dtypes, and nothing is turned; "": no.
    turns: str = ""
    # where derivatives are wanted, another operation takes its place: its name, and which of its outputs are ours
    derivative_from: tuple[str, tuple[int, ...]] | None = None

    code: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", OPS[self.name])
        OPERATIONS.append(self)

    def turned(self, dtype: str) -> bool:
        return self.turns == "factor" or (self.turns == "real" and dtype.startswith("float"))

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


def operation_named(name: str) -> Operation:
    return next(o for o in OPERATIONS if o.name == name)
