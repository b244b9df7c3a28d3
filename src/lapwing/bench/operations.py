"""What the benchmark knows of each operation: its matrices, its calls and those of its peers, the check, the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.problem import Problem
from .check import Check
from .library import Call, Library

if TYPE_CHECKING:
    from .case import Case

__all__ = ["Operation", "operation_of"]


def _of_square_matrices(case: Case) -> Problem:
    return Problem(case.operation, case.dtype, case.batch, case.n, case.device, case.upper, case.part)


@dataclass(frozen=True)
class Operation:
    """One row per operation. Its calls take one array, or a pair of the matrix and right-hand sides, and give one or a tuple.

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
    check: Callable[[Any, Any, Case], Check]  # of the input and the answer, on the host
    check_on_device: Callable[[Library, Any, Any, Case], Check]  # one large matrix where it lies
    routines: Callable[[Case], tuple[tuple[str, str], ...]] = lambda case: ()
    problem: Callable[[Case], Problem] = _of_square_matrices
    right_hand_sides: bool = False
    choices: tuple[str, ...] = ("upper",)  # what of a case may be chosen, beside n, batch and dtype


def operation_of(name: str) -> Operation:
    from .cholesky import CHOLESKY
    from .eigh import EIGH, EIGVALSH
    from .solve import INV, LSTSQ, QR, SOLVE, SVD

    return {o.name: o for o in (CHOLESKY, EIGH, EIGVALSH, SOLVE, INV, QR, SVD, LSTSQ)}[name]
