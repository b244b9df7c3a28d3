"""Eigenvalues and eigenvectors of general matrices, A V = V W, and the Schur form A = Z T Z^H."""

from __future__ import annotations

from math import prod
from typing import Any, Literal, NamedTuple, Never

import numpy as np

from .. import frameworks
from ..core.checks import check_choice, check_square
from ..core.derivatives import eig_jvp, eig_vjp, eigvals_jvp, no_derivative
from ..core.hosted import HostedMatrix
from ..core.keywords import unknown_keyword
from ..core.native import how_to_build
from ..core.operation import Operation, Params, Shape, picked
from ..core.problem import COMPLEX, Problem, Spec
from .failure import apply_or_raise


class EigResult(NamedTuple):
    """The results of :func:`eig`."""

    eigenvalues: Any
    eigenvectors: Any


class SchurResult(NamedTuple):
    """The results of :func:`schur`."""

    T: Any
    Z: Any


def eig(a: Any, /, *, on_fail: Literal["raise", "nan"] = "raise", engine: str = "auto", **unknown: Never) -> EigResult:
    """Eigenvalues and right eigenvectors of general square matrices.

    Parameters
    ----------
    a : array, shape (..., n, n)
        NumPy, PyTorch, JAX, TensorFlow or CuPy; float32, float64, complex64 or complex128.
    on_fail : {"raise", "nan"}
        As for :func:`lapwing.eigh`.
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    eigenvalues : complex array, shape (..., n)
        In no particular order. Those of a real matrix are real, with an imaginary part of zero, or stand side by side in
        conjugate pairs.
    eigenvectors : complex array, shape (..., n, n)
        Column j belongs to eigenvalue j and has length one.

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf, or the iteration did not converge.
    DefectiveMatrixError
        A derivative was asked for, and the eigenvectors of a matrix do not span the space. In traced code the derivative of
        that matrix alone is NaN.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    eigvals : eigenvalues alone.
    eigh : Hermitian matrices, whose eigenvalues are real.
    schur : a form that every matrix has, with orthonormal vectors.

    Notes
    -----
    An eigenvector times a number of size one is an eigenvector too, and different engines choose different ones. The derivative
    is that of a function that does not depend on this choice, nor on the choice of vectors for equal eigenvalues. A loss such
    as ``v.real.sum()`` depends on it: it has no derivative, and outside of traced code its gradient comes with a warning.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> w, v = lw.eig(np.array([[0.0, -1.0], [1.0, 0.0]]))
    >>> w
    array([0.+1.j, 0.-1.j])
    """
    if unknown:
        raise unknown_keyword(eig, unknown)
    framework = _framework(a, "eig")
    if framework.sharded:  # an array of another library, which is converted to NumPy's or CuPy's
        return framework.call(eig, a, on_fail=on_fail, engine=engine)  # type: ignore[no-any-return]
    return EigResult(*_run(framework, "eig", EIG, a, on_fail, engine)[:2])


def eigvals(a: Any, /, *, on_fail: Literal["raise", "nan"] = "raise", engine: str = "auto", **unknown: Never) -> Any:
    """Eigenvalues of general square matrices.

    Parameters
    ----------
    a, on_fail, engine
        As for :func:`eig`.

    Returns
    -------
    complex array, shape (..., n)
        In no particular order; of a real matrix as for :func:`eig`.

    Raises
    ------
    ConvergenceError, DefectiveMatrixError, ValueError, TypeError
        As for :func:`eig`.

    See Also
    --------
    eig : eigenvectors too.
    eigvalsh : Hermitian matrices.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> lw.eigvals(np.array([[2.0, 1.0], [0.0, 3.0]]))
    array([2.+0.j, 3.+0.j])
    """
    if unknown:
        raise unknown_keyword(eigvals, unknown)
    framework = _framework(a, "eigvals")
    if framework.sharded:
        return framework.call(eigvals, a, on_fail=on_fail, engine=engine)
    return _run(framework, "eigvals", EIGVALS, a, on_fail, engine)[0]


def schur(
    a: Any,
    /,
    *,
    output: Literal["real", "complex"] = "real",
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> SchurResult:
    """Schur form A = Z T Z^H of general square matrices, Z unitary.

    Parameters
    ----------
    a : array, shape (..., n, n)
        As for :func:`eig`.
    output : {"real", "complex"}
        Which form a real matrix gets. "real": T and Z are real, and T has a block of 2 x 2 on its diagonal for each pair of
        conjugate eigenvalues. "complex": both are complex, and T is triangular. A complex matrix has the complex form only.
    on_fail : {"raise", "nan"}
        As for :func:`lapwing.eigh`.
    engine : str
        "auto", or the name of an engine that takes the call: ``lapwing.explain`` lists them.

    Returns
    -------
    T : array, shape (..., n, n)
        Upper triangular, or nearly so; the eigenvalues are those of its diagonal blocks.
    Z : array, shape (..., n, n)
        Its columns are orthonormal.

    Raises
    ------
    ConvergenceError
        A matrix holds NaN or Inf, or the iteration did not converge.
    NotImplementedError
        A derivative was asked for: there is none.
    ValueError, TypeError
        Wrong shape, dtype or choice.

    See Also
    --------
    eig : eigenvalues and eigenvectors.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> t, z = lw.schur(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> np.allclose(z @ t @ z.T, [[1, 2], [3, 4]]), bool(t[1, 0] == 0)
    (True, True)
    """
    if unknown:
        raise unknown_keyword(schur, unknown)
    framework = _framework(a, "schur")
    if output != "real":
        check_choice("schur", "output", output, ("real", "complex"))
    if framework.sharded:
        return framework.call(schur, a, output=output, on_fail=on_fail, engine=engine)  # type: ignore[no-any-return]
    dtype = framework.dtype_of(a)
    if output == "complex" and COMPLEX.get(dtype, dtype) != dtype:
        a = framework.Namespace.cast(a, COMPLEX[dtype])
    return SchurResult(*_run(framework, "schur", SCHUR, a, on_fail, engine)[:2])


def _run(framework: Any, name: str, operation: Operation, a: Any, on_fail: str, engine: str) -> Any:
    check_square(name, framework.shape_of(a), framework.dtype_of(a))
    if on_fail not in ("raise", "nan"):
        check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    return apply_or_raise(framework, name, operation, a, (0,), on_fail, engine, lambda: _problem_of(name, a))


def _framework(a: Any, name: str) -> Any:
    kind = frameworks.entry(a, name)
    if kind.sharded and kind is not frameworks.foreign.FRONT:
        if isinstance(a, HostedMatrix):
            raise TypeError(f"{name}: hosted matrices are not supported\nhint: pass the matrix as an ordinary array")
        raise TypeError(f"{name}: sharded matrices are not supported\nhint: put the matrix on one device first")
    return kind


def _problem_of(operation: str, a: Any, dtype: str = "") -> Problem:
    array = frameworks.describe(a, operation)
    check_square(operation, array.shape, array.dtype)
    return Problem.of(operation, Spec(array.shape, dtype or array.dtype, array.device))


def _schur_problem(a: Any, output: str = "real", **_: Any) -> Problem:
    check_choice("schur", "output", output, ("real", "complex"))
    problem = _problem_of("schur", a)
    return problem if output == "real" else _problem_of("schur", a, COMPLEX[problem.dtype])


eig.problem = lambda a, **_: _problem_of("eig", a)  # type: ignore[attr-defined]
eigvals.problem = lambda a, **_: _problem_of("eigvals", a)  # type: ignore[attr-defined]
schur.problem = _schur_problem  # type: ignore[attr-defined]


def _results(shapes: tuple[Shape, ...], params: Params) -> Any:
    (shape,) = shapes
    return (shape[:-1], "complex"), (shape, "complex"), (shape[:-2], "int32")


def _sizes(shapes: tuple[Shape, ...], params: Params) -> Shape:
    return prod(shapes[0][:-2]), shapes[0][-1]


def _reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    """With numpy.linalg, which gets zeros in place of a matrix that is not finite."""
    (a,) = arrays
    kind = COMPLEX[a.dtype.name]
    good = np.isfinite(a).all((-1, -2))
    w, v = (np.array(x, kind) for x in np.linalg.eig(np.where(good[..., None, None], a, 0)))
    w[~good], v[~good] = complex(np.nan, np.nan), complex(np.nan, np.nan)
    return w, v, np.asarray(~good).astype(np.int32)


def _no_reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    raise RuntimeError(f"schur: needs the native core, as numpy.linalg has no Schur form\nhint: {how_to_build()}")


_LAUNCHES_ONLY_TO = 16  # up to this order the kernel needs no scratch memory on any GPU
EIG = Operation(
    "eig",
    results=_results,
    sizes=_sizes,
    reference=_reference,
    launches_only_to=_LAUNCHES_ONLY_TO,
    work=lambda p: (25 * p.n**3, 5 * p.n**2),
    jvp=eig_jvp,
    vjp=eig_vjp,
    differentiable=2,
    keeps_inputs=lambda params: True,
)
EIGVALS = Operation(
    "eigvals",
    results=picked(_results, (0, 2)),
    sizes=_sizes,
    reference=picked(_reference, (0, 2)),
    launches_only_to=_LAUNCHES_ONLY_TO,
    work=lambda p: (10 * p.n**3, p.n**2 + 2 * p.n),
    jvp=eigvals_jvp,
    derivative_from=("eig", (0, 2)),
)
_NO_DERIVATIVE = no_derivative("schur: T and Z have no derivative\nhint: lapwing.eig has one")
SCHUR = Operation(
    "schur",
    results=lambda shapes, params: ((shapes[0], None), (shapes[0], None), (shapes[0][:-2], "int32")),
    sizes=_sizes,
    reference=_no_reference,
    launches_only_to=_LAUNCHES_ONLY_TO,
    work=lambda p: (25 * p.n**3, 3 * p.n**2),
    jvp=_NO_DERIVATIVE,
    vjp=_NO_DERIVATIVE,
    differentiable=2,
    alias=0,
)
