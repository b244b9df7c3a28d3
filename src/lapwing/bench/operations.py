"""What the benchmark knows of each operation: its matrices, its calls and those of its peers, the check, the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .check import Check
from .library import Call, Library

if TYPE_CHECKING:
    from .case import Case

__all__ = ["Operation", "operation_of"]


@dataclass(frozen=True)
class Operation:
    """One row per operation. Its calls take one array and give a tuple of arrays, or one array.

    ``routines(case)`` names the peers that have a routine of their own beside the one every library has, as (name, library).
    """

    name: str
    matrices: tuple[str, ...]
    flops: Callable[[Case], float]
    bytes_moved: Callable[[Case], int]  # every input read once, every output written once
    work: str  # how flops and bytes are counted, in words
    shapes: Callable[[Case], tuple[tuple[int, ...], ...]]  # of the answer
    through: Callable[[Library, Case, str, str], Call]  # lapwing, with an engine and on_fail
    own: Callable[[Library, Case, str], Call]  # the routine of that name, as its users call it
    own_queued: Callable[[Library, Case, str], Call]  # the same without waiting for the device
    own_text: Callable[[str, Case], str]
    check: Callable[[np.ndarray, Any, Case], Check]  # on the host
    check_on_device: Callable[[Library, Any, Any, Case], Check]  # one large matrix where it lies
    routines: Callable[[Case], tuple[tuple[str, str], ...]] = lambda case: ()


def operation_of(name: str) -> Operation:
    from .cholesky import CHOLESKY
    from .eigh import EIGH, EIGVALSH

    return {"cholesky": CHOLESKY, "eigh": EIGH, "eigvalsh": EIGVALSH}[name]
