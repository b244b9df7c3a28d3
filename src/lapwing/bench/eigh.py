"""Eigenvalues and eigenvectors in the benchmark: how each library is asked for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ops.eigh import eigh, eigvalsh
from .check import Check
from .check_eigh import check_pairs, check_pairs_on_device, check_values, check_values_on_device
from .library import Call, Library
from .operations import Operation

if TYPE_CHECKING:
    from .case import Case

__all__ = ["EIGH", "EIGVALSH"]

MATRICES = ("random", "known", "kernel", "laplacian", "wishart", "wishart_shift")
# scipy's Lanczos iterations, where a part at an end of one real or complex matrix is asked for
EIGSH, EIGSH_INVERSE = "eigsh", "eigsh_inverse"


def _subset(case: Case) -> slice | None:
    return None if case.part is None else slice(case.part[0], sum(case.part))


def _through(function: Callable[..., Any], library: Library, case: Case, engine: str, on_fail: str) -> Call:
    options = {"subset": _subset(case), "upper": case.upper, "engine": engine, "on_fail": on_fail}
    if on_fail == "raise" and engine == "auto" and case.part is None and not case.upper:
        return library.compiled(function)
    return library.compiled(partial(function, **options))


def _own(values_only: bool, library: Library, case: Case, name: str) -> Call:
    """The routine of that name; a library without subsets gives all, of which the part is taken."""
    if name in (EIGSH, EIGSH_INVERSE):
        return _eigsh(case, values_only, inverse=name == EIGSH_INVERSE)
    call = _ROUTINES[library.name](library, case, values_only)
    if case.part is None or library.name == "scipy":
        return call
    part = _subset(case)

    def cut(a: Any) -> Any:
        found = call(a)
        return found[..., part] if values_only else (found[0][..., part], found[1][..., part])

    return library.compiled(cut)


def _numpy(library: Library, case: Case, values_only: bool) -> Call:
    return partial(np.linalg.eigvalsh if values_only else np.linalg.eigh, UPLO="U" if case.upper else "L")


def _scipy(library: Library, case: Case, values_only: bool) -> Call:
    import scipy.linalg

    # without check_finite, as the others do not look either
    options: dict[str, Any] = {"lower": not case.upper, "check_finite": False, "eigvals_only": values_only}
    if case.part is not None:
        options["subset_by_index"] = [case.part[0], sum(case.part) - 1]
    return partial(scipy.linalg.eigh, **options)


def _eigsh_tolerance(case: Case) -> float:
    """The residual that lapwing's iteration goes to, n eps / 8; without it ARPACK would go on to eps."""
    return case.n / 8 * float(np.finfo(case.dtype).eps)


def _eigsh(case: Case, values_only: bool, inverse: bool) -> Call:
    from scipy.sparse.linalg import eigsh

    assert case.part is not None
    smallest = case.part[0] == 0
    tolerance = _eigsh_tolerance(case)
    options: dict[str, Any] = {"sigma": 0.0, "which": "LM"} if inverse else {"which": "SA" if smallest else "LA"}

    def call(a: np.ndarray) -> Any:
        found = eigsh(a, k=case.count, tol=tolerance, return_eigenvectors=not values_only, **options)
        if values_only:
            return np.sort(found)
        order = np.argsort(found[0])
        return found[0][order], found[1][:, order]

    return call


def _torch(library: Any, case: Case, values_only: bool) -> Call:
    linalg = library.torch.linalg
    return partial(linalg.eigvalsh if values_only else linalg.eigh, UPLO="U" if case.upper else "L")


def _jax(library: Any, case: Case, values_only: bool) -> Call:
    linalg = library.jax.numpy.linalg
    routine = linalg.eigvalsh if values_only else linalg.eigh
    return library.compiled(partial(routine, UPLO="U" if case.upper else "L", symmetrize_input=False))  # type: ignore[no-any-return]


def _tensorflow(library: Any, case: Case, values_only: bool) -> Call:
    linalg = library.tf.linalg
    real = library.tf.math.real  # the values of complex matrices come as complex numbers

    def call(a: Any) -> Any:
        lower = linalg.adjoint(a) if case.upper else a
        if values_only:
            return real(linalg.eigvalsh(lower))
        w, v = linalg.eigh(lower)
        return real(w), v

    return call


def _cupy(library: Any, case: Case, values_only: bool) -> Call:
    linalg = library.cupy.linalg
    return partial(linalg.eigvalsh if values_only else linalg.eigh, UPLO="U" if case.upper else "L")


_ROUTINES: dict[str, Callable[[Any, Case, bool], Call]] = {
    "numpy": _numpy,
    "scipy": _scipy,
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "cupy": _cupy,
}


def _own_text(values_only: bool, name: str, case: Case) -> str:
    """The call in words."""
    routine = "eigvalsh" if values_only else "eigh"
    part = "" if case.part is None else ", then the part"
    texts = {
        "scipy": f"scipy.linalg.eigh(a, check_finite=False{', subset_by_index' if part else ''})",
        "jax": f"jax.jit(jax.numpy.linalg.{routine})(a), symmetrize_input=False{part}",
        EIGSH: f"scipy.sparse.linalg.eigsh(a, k, which={'SA' if case.part and not case.part[0] else 'LA'!r}, tol=n*eps/8)",
        EIGSH_INVERSE: "scipy.sparse.linalg.eigsh(a, k, sigma=0, tol=n*eps/8)",
    }
    return texts.get(name, f"{name}.linalg.{routine}(a){part}")


def _extra(case: Case) -> tuple[tuple[str, str], ...]:
    if not case.problem.at_an_end or case.batch > 1 or case.device != "cpu" or 2 * case.count >= case.n:
        return ()
    # with the inverse ARPACK finds the values near zero: of a matrix that is surely positive definite the smallest
    inverse = ((EIGSH_INVERSE, "scipy"),) if case.part and case.part[0] == 0 and case.matrix == "wishart_shift" else ()
    return ((EIGSH, "scipy"), *inverse)


def _flops(values_only: bool, case: Case) -> float:
    """The reduction to tridiagonal form, and for vectors the two products that bring them back."""
    n = float(case.n)
    each = 4 / 3 * n**3 + (0 if values_only else 4 * n * n * case.count)
    return case.batch * each * (4 if case.dtype.startswith("complex") else 1)


def _shapes(values_only: bool, case: Case) -> tuple[tuple[int, ...], ...]:
    batch = case.shape[:-2]
    values, vectors = (*batch, case.count), (*batch, case.n, case.count)
    return (values,) if values_only else (values, vectors)


def _check(host: np.ndarray, found: Any, case: Case) -> Check:
    return check_pairs(host, np.asarray(found[0]), np.asarray(found[1]), part=case.part)


def _check_on_device(library: Library, a: Any, found: Any, case: Case) -> Check:
    return check_pairs_on_device(library, a, found[0], found[1], case)


def _operation(name: str, values_only: bool) -> Operation:
    function = eigvalsh if values_only else eigh
    return Operation(
        name=name,
        matrices=MATRICES,
        flops=partial(_flops, values_only),
        bytes_moved=lambda case: case.input_bytes * (case.n if values_only else case.n + case.count) // max(case.n, 1),
        work=(
            f"GFLOP/s by 4n^3/3{'' if values_only else ' + 4kn^2 for k vectors'} (complex: 4 times), whatever the method does;"
            f" GB/s by one read of the matrix{'' if values_only else ' and one write of the vectors'}."
        ),
        shapes=partial(_shapes, values_only),
        through=partial(_through, function),
        own=partial(_own, values_only),
        own_queued=partial(_own, values_only),
        own_text=partial(_own_text, values_only),
        check=(lambda host, found, case: check_values(host, np.asarray(found), part=case.part)) if values_only else _check,
        check_on_device=check_values_on_device if values_only else _check_on_device,
        routines=_extra,
        choices=("upper", "subset"),
    )


EIGH = _operation("eigh", False)
EIGVALSH = _operation("eigvalsh", True)
