"""Keywords of other libraries: the error for an unknown keyword says what lapwing calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_SYSTEMS = ("solve", "solve_ex", "inv", "inv_ex", "det", "slogdet", "factor")
_SPECTRA = ("eigh", "eigh_ex", "eigvalsh")
_KERNELS = ("gaussian", "laplacian", "dispersal")
_TRIANGLE = "upper=False, the default, reads the lower triangle, and upper=True the upper one"
_MEMORY = "overwrite=True lets the result use the memory of a; functions without it always return new memory"
_ENDS = "subset=slice(k) asks for the k smallest, subset=slice(-k, None) for the k largest"
_ENGINE = "engine=... names one; lapwing.explain lists those that take the call"

# keywords, the functions that the hint is for (empty: all functions), the hint; the first row that fits is used
_HINTS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("lower",), _SYSTEMS, f'a triangular matrix is assume="lower" or assume="upper"; of other matrices {_TRIANGLE}'),
    (("lower", "UPLO", "uplo"), (), _TRIANGLE),
    (("assume_a",), (), 'assume="general", "symmetric", "hermitian", "pos", "lower" or "upper"'),
    (("sym_pos", "hermitian", "symmetric"), _SYSTEMS, 'assume="pos", assume="hermitian" or assume="symmetric"'),
    (("hermitian",), (), "lapwing.eigh is the function for Hermitian matrices"),
    (("unit_diagonal", "unitriangular"), ("solve",), 'unit=True, with assume="lower" or assume="upper"'),
    (("left", "left_side"), ("solve", "solve_ex"), 'side="right" solves x A = b; side="left" is the default'),
    (("left", "right"), ("eig",), "the eigenvectors are right ones; left ones of a are eig(a.conj().mT), in another order"),
    (("trans", "transposed", "transpose_a", "adjoint"), (), "pass the transposed matrix: a.T or a.mT, which is not copied"),
    (("overwrite_a", "overwrite_b", "out", "inplace"), (), _MEMORY),
    (("check_finite",), (), "leave it out: NaN and Inf are always found"),
    (("check_errors",), (), 'the function without _ex raises errors; on_fail="nan" does not'),
    (("symmetrize_input",), (), "leave it out: one triangle is read; (a + a.mT) / 2 symmetrises a matrix"),
    (("subset_by_index", "eigvals", "select"), _SPECTRA, "subset=slice(first, last + 1), in ascending order"),
    (("subset_by_value",), _SPECTRA, "window=(low, high)"),
    (("k", "which", "largest", "num_results"), _SPECTRA, _ENDS),
    (("eigvals_only",), _SPECTRA, "lapwing.eigvalsh returns the eigenvalues alone"),
    (("B", "M"), _SPECTRA, "b=... is the second matrix of A x = w B x"),
    (("compute_uv", "compute_u", "compute_v"), (), "lapwing.svdvals returns the singular values alone"),
    (("some", "economic"), ("svd",), "full_matrices=False, the default, returns the reduced factors"),
    (("some", "economic", "full_matrices"), ("qr",), 'mode="reduced", the default, or mode="complete"'),
    (("cond", "rtol", "tol"), ("lstsq",), "rcond=..., relative to the largest singular value"),
    (("driver", "lapack_driver", "algorithm", "implementation", "backend", "method"), (), _ENGINE),
    (
        ("bandwidth", "sigma", "lengthscale", "scale", "l"),
        _KERNELS,
        "length_scale=...; help() shows the formula",
    ),
    (("gamma",), ("gaussian",), "length_scale=(2 * gamma) ** -0.5"),
    (("gamma",), ("laplacian",), "length_scale=1 / gamma"),
    (("X", "Y"), _KERNELS, "the points are x and y"),
    (("jitter",), _SYSTEMS, "lapwing.factor(a, jitter=...) has it; then call .solve(b), .inv() or .slogdet()"),
    (("jitter",), ("cholesky_ex",), "lapwing.cholesky has it"),
    (("tol", "rtol"), ("svd", "svdvals"), "leave it out: the results are accurate to the precision of the dtype"),
    (("k", "n_components", "rank"), ("svd", "svdvals"), "subset=slice(k) are the k largest singular values"),
    (("axis", "axes", "dim"), (), "the last two axes are the matrix; move the others to the front"),
    (("dtype", "device"), (), "the result has the dtype and device of the input: convert that"),
)


def unknown_keyword(function: Callable[..., Any], unknown: dict[str, Any]) -> TypeError:
    """The error for keywords that ``function`` does not have."""
    keyword, name = next(iter(unknown)), function.__name__
    hint = next((hint for keywords, names, hint in _HINTS if keyword in keywords and (not names or name in names)), "")
    if not hint:
        from difflib import get_close_matches

        parameters = inspect.signature(function).parameters.values()
        known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        near = get_close_matches(keyword, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"the keywords are {', '.join(known)}"
    return TypeError(f"{name}: unknown keyword {keyword!r}\nhint: {hint}")


def hide_unknown(*functions: Any) -> None:
    """Leave the last parameter, ``**unknown``, out of the signature that help() and tools show.

    Python itself refuses unknown keywords before a function runs, without a hint. The functions collect them instead, which
    costs less than a wrapper around each call would.
    """
    for function in functions:
        if inspect.isfunction(function) and "unknown" in function.__code__.co_varnames:
            signature = inspect.signature(function)
            kept = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
            function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
            function.__annotations__.pop("unknown", None)
