"""What the benchmark knows about each operation: its matrices, lapwing's call, the check of an answer, the count of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.problem import Problem
from ..ops.cholesky import cholesky
from ..ops.eigh import eigh, eigvalsh
from ..ops.lstsq import lstsq
from ..ops.qr import qr
from ..ops.solve import inv, solve
from ..ops.svd import svd
from .check import Check, check_cholesky_on_device, check_factor
from .check_eigh import check_pairs_on_device, check_spectrum, check_values
from .check_solve import check_solution, check_solution_on_device
from .library import Call, Library

if TYPE_CHECKING:
    from .case import Case

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cholesky": cholesky, "eigh": eigh, "eigvalsh": eigvalsh, "solve": solve, "inv": inv, "qr": qr, "svd": svd, "lstsq": lstsq,
}  # fmt: skip
_DEFAULTS = {"engine": "auto", "on_fail": "raise", "subset": None, "upper": False, "assume": "general", "precision": "full"}


def _through(library: Library, case: Case, engine: str, on_fail: str) -> Call:
    """lapwing's call. Options with their default value are left out, since passing them takes time too."""
    function, chosen = _FUNCTIONS[case.operation], operation_of(case.operation).choices
    options: dict[str, Any] = {"engine": engine}
    if case.operation not in ("qr", "lstsq"):
        options["on_fail"] = on_fail
    if case.part is not None:
        options["subset"] = slice(case.part[0], sum(case.part))
    options |= {name: getattr(case, name) for name in ("upper", "assume", "precision") if name in chosen}
    options = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
    if case.operation == "lstsq":
        return library.compiled(lambda ab: function(*ab, **options).x)
    if "k" in chosen:
        return library.compiled(lambda ab: function(*ab, **options))
    return library.compiled(partial(function, **options) if options else function)


@dataclass(frozen=True)
class Operation:
    """Calls take one array, or a pair of the matrix and right-hand sides, and return one array or a tuple."""

    name: str
    work: str  # how flops and bytes are counted, in words
    choices: tuple[str, ...]  # the fields of a case that may be chosen, besides n, batch and dtype
    shapes: Callable[[Case], tuple[tuple[int, ...], ...]]  # of the answer
    check: Callable[[Any, Any, Case], Check]  # of the input and the answer, on the host
    check_on_device: Callable[[Library, Any, Any, Case], Check]  # of one large matrix, without bringing it to the host
    matrices: tuple[str, ...] = ("random",)
    through: Callable[[Library, Case, str, str], Call] = _through  # lapwing's call, with an engine and on_fail

    @property
    def right_hand_sides(self) -> bool:
        return "k" in self.choices


def problem_of(case: Case) -> Problem:
    operation = {"inv": "inverse", "lstsq": "svd"}.get(case.operation, case.operation)
    columns = {"solve": case.k, "qr": case.n, "svd": case.n, "lstsq": case.n}.get(case.operation)
    return Problem(
        operation, case.dtype, case.batch, case.height, case.device, case.upper, case.part,
        columns=columns, pos=case.assume == "pos",
    )  # fmt: skip


def _square(case: Case) -> tuple[int, ...]:
    return (*case.lead, case.n, case.n)


def _work(formula: str, moved: str = "one read and one write of all") -> str:
    return f"GFLOP/s by {formula} (complex: 4 times), whatever the method does; GB/s by {moved}."


def _values(case: Case) -> tuple[int, ...]:
    return (*case.lead, case.count)


_solution = partial(Operation, check=check_solution, check_on_device=check_solution_on_device)
_SYSTEM = ("assume", "upper", "condition")
_GENERAL = ("random", "known", "wishart_shift")
_SPECTRAL = ("random", "known", "kernel", "laplacian", "wishart", "wishart_shift")
_OPERATIONS = (
    Operation(
        "cholesky",
        "GFLOP/s by n^3/3 (complex: 4n^3/3), GB/s by one read and one write of every matrix.",
        ("upper",),
        lambda case: (case.shape,),
        lambda a, factor, case: check_factor(a, factor, upper=case.upper),
        check_cholesky_on_device,
        ("random", "known"),
    ),
    Operation(
        "eigh",
        _work("4n^3/3 + 4kn^2 for k vectors", "one read of the matrix and one write of the vectors"),
        ("upper", "subset"),
        lambda case: (_values(case), (*case.lead, case.n, case.count)),
        check_spectrum,
        check_pairs_on_device,
        _SPECTRAL,
    ),
    Operation(
        "eigvalsh",
        _work("4n^3/3", "one read of the matrix"),
        ("upper", "subset"),
        lambda case: (_values(case),),
        check_spectrum,
        # the matrix is copied to the host
        lambda library, a, values, case: check_values(library.to_host(a), library.to_host(values), part=case.part),
        _SPECTRAL,
    ),
    _solution(
        "solve",
        _work("2n^3/3 + 2kn^2, for pos n^3/3 + 2kn^2"),
        ("k", "precision", *_SYSTEM),
        lambda case: ((*case.lead, case.n, case.k),),
        matrices=_GENERAL,
    ),
    _solution("inv", _work("2n^3, for pos n^3"), _SYSTEM, lambda case: (_square(case),), matrices=_GENERAL),
    _solution("qr", _work("4mn^2 - 4n^3/3"), ("rows", "condition"), lambda case: (case.shape, _square(case))),
    _solution(
        "svd", _work("6mn^2 + 20n^3"), ("rows", "condition"), lambda case: (case.shape, (*case.lead, case.n), _square(case))
    ),
    _solution("lstsq", _work("6mn^2 + 20n^3"), ("k", "rows", "condition"), lambda case: ((*case.lead, case.n, case.k),)),
)


def operation_of(name: str) -> Operation:
    return next(o for o in _OPERATIONS if o.name == name)
