"""An operation as the frameworks see it: its number in the native core, its result types, its derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["OPERATIONS", "UPPER", "Operation"]

UPPER = 1  # Flag in native/frame.h

Shape = tuple[int, ...]
OPERATIONS: list[Operation] = []  # all there are, for frameworks that want to know them beforehand


@dataclass(frozen=True, eq=False)  # there is one record per operation: identity is enough, and quick to hash
class Operation:
    """One row per operation; every framework hooks it up from this record alone.

    ``results(shape)`` gives shape and dtype of each output; dtype None is the input's. ``sizes(shape)`` are the numbers the
    native frame carries. ``jvp`` and ``vjp`` are written once on a small namespace that each framework supplies
    (see core/derivatives.py). ``reference`` does the work with numpy.linalg where there is no native core.
    """

    name: str
    code: int  # Op in native/frame.h
    matrix_out: bool  # the first output is like the input: it may share its memory, and is turned when the input is
    results: Callable[[Shape], tuple[tuple[Shape, str | None], ...]]
    sizes: Callable[[Shape], Shape]
    jvp: Callable[..., Any] | None
    vjp: Callable[..., Any] | None
    reference: Callable[..., tuple[Any, ...]]

    def __post_init__(self) -> None:
        OPERATIONS.append(self)
