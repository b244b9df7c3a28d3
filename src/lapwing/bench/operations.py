"""The operations of the benchmark: their matrices, lapwing's call, the check of an answer, the count of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.problem import Problem, spec
from ..ops.cholesky import cholesky
from ..ops.det import det
from ..ops.eig import eig, eigvals, schur
from ..ops.eigh import eigh, eigvalsh
from ..ops.factor import factor
from ..ops.lstsq import lstsq
from ..ops.qr import qr
from ..ops.solve import inv, slogdet, solve
from ..ops.svd import svd, svdvals
from .check import Check, check_cholesky_on_device, check_factor
from .check_eig import check_general, check_general_on_device
from .check_eigh import check_pairs_on_device, check_spectrum, check_values
from .check_lu import check_determinant, check_determinant_on_device, check_lu, check_lu_on_device
from .check_solve import check_singular_values, check_solution, check_solution_on_device
from .library import Call, Library

if TYPE_CHECKING:
    from .case import Case

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cholesky": cholesky, "eigh": eigh, "eigvalsh": eigvalsh, "solve": solve, "inv": inv, "slogdet": slogdet, "det": det,
    "lu": factor, "qr": qr, "svd": svd, "svdvals": svdvals, "lstsq": lstsq,
    "eig": eig, "eigvals": eigvals, "schur": schur,
}  # fmt: skip


def _through(library: Library, case: Case, engine: str, on_fail: str) -> Call:
    """lapwing's call. Options with their default value are left out, since passing them takes time too."""
    function = _FUNCTIONS[case.operation]
    defaults: dict[str, Any] = function.__kwdefaults__ or {}
    options = {**_options(case), "engine": engine, **({"on_fail": on_fail} if "on_fail" in defaults else {})}
    options = {name: value for name, value in options.items() if value != defaults[name]}
    if case.operation == "lstsq":
        return library.compiled(lambda ab: function(*ab, **options).x)
    if operation_of(case.operation).right_hand_sides:
        return library.compiled(lambda ab: function(*ab, **options))
    return library.compiled(partial(function, **options) if options else function)


def _options(case: Case) -> dict[str, Any]:
    """The options that describe the problem to lapwing's function."""
    chosen = operation_of(case.operation).choices
    options: dict[str, Any] = {name: getattr(case, name) for name in ("upper", "assume", "precision") if name in chosen}
    if case.operation == "lu":
        options["assume"] = "general"  # factor() takes positive definite matrices unless told otherwise
    if case.part is not None:
        options["subset"] = slice(case.part[0], sum(case.part))
    return options


@dataclass(frozen=True)
class Operation:
    """Calls take one array, or a pair of the matrix and right-hand sides, and return one array or a tuple."""

    name: str
    work: str  # how flops and bytes are counted, in words
    choices: tuple[str, ...]  # the fields of a case that may be chosen, besides n, batch and dtype
    shapes: Callable[[Case], tuple[tuple[int, ...], ...]]  # of the answer
    check: Callable[[Any, Any, Case], Check]  # of the input and the answer, on the host
    check_on_device: Callable[[Library, Any, Any, Case], Check]  # of one large matrix, without copying it to the host
    matrices: tuple[str, ...] = ("random",)
    through: Callable[[Library, Case, str, str], Call] = _through  # lapwing's call, with an engine and on_fail
    answer: Callable[[Any], Any] = lambda result: result  # the arrays of lapwing's result

    @property
    def right_hand_sides(self) -> bool:
        return "k" in self.choices


def problem_of(case: Case) -> Problem:
    shapes = [case.shape]
    if operation_of(case.operation).right_hand_sides:
        shapes.append((*case.lead, case.height, case.k))
    arrays = [spec(shape, case.dtype, case.device) for shape in shapes]
    return _FUNCTIONS[case.operation].problem(*arrays, **_options(case))  # type: ignore[attr-defined, no-any-return]


def _square(case: Case) -> tuple[int, ...]:
    return (*case.lead, case.n, case.n)


def _work(formula: str, moved: str = "one read and one write of all") -> str:
    return f"GFLOP/s by {formula} (complex: 4 times), whatever the method does; GB/s by {moved}."


def _values(case: Case) -> tuple[int, ...]:
    return (*case.lead, case.count)


_solution = partial(Operation, check=check_solution, check_on_device=check_solution_on_device)
_general = partial(Operation, choices=(), check=check_general, check_on_device=check_general_on_device)
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
    Operation(
        "slogdet",
        _work("2n^3/3, for pos n^3/3", "one read of the matrix"),
        _SYSTEM,
        lambda case: (case.lead, case.lead),
        check_determinant,
        check_determinant_on_device,
        _GENERAL,
    ),
    Operation(
        "det",
        _work("2n^3/3", "one read of the matrix"),
        (),
        lambda case: (case.lead,),
        check_determinant,
        check_determinant_on_device,
    ),
    Operation(
        "lu",
        _work("2n^3/3"),
        ("condition",),
        lambda case: (_square(case), (*case.lead, case.n)),
        check_lu,
        check_lu_on_device,
        answer=lambda result: tuple(result.lu),
    ),
    _solution("inv", _work("2n^3, for pos n^3"), _SYSTEM, lambda case: (_square(case),), matrices=_GENERAL),
    _solution("qr", _work("4mn^2 - 4n^3/3"), ("rows", "condition"), lambda case: (case.shape, _square(case))),
    _solution(
        "svd", _work("6mn^2 + 20n^3"), ("rows", "condition"), lambda case: (case.shape, (*case.lead, case.n), _square(case))
    ),
    Operation(
        "svdvals",
        _work("2mn^2 + 2n^3", "one read of the matrix"),
        ("rows", "condition"),
        lambda case: ((*case.lead, case.n),),
        check_singular_values,
        # the matrix is copied to the host
        lambda library, a, values, case: check_singular_values(library.to_host(a), library.to_host(values), case),
    ),
    _solution("lstsq", _work("6mn^2 + 20n^3"), ("k", "rows", "condition"), lambda case: ((*case.lead, case.n, case.k),)),
    _general(
        "eig",
        _work("25n^3", "one read of the matrix and one write of the vectors"),
        shapes=lambda case: (_values(case), _square(case)),
    ),
    _general("eigvals", _work("10n^3", "one read of the matrix"), shapes=lambda case: (_values(case),)),
    _general(
        "schur", _work("25n^3", "one read of the matrix and one write of T and Z"), shapes=lambda case: (_square(case),) * 2
    ),
)


def operation_of(name: str) -> Operation:
    return next(o for o in _OPERATIONS if o.name == name)
