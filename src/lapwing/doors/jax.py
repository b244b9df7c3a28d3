"""Names of jax.numpy.linalg and jax.scipy.linalg.

A matrix whose batch is hidden by ``jax.vmap`` has two axes, so it is left to JAX. ``inv`` and ``solve`` stay JAX's own, which
return Inf where lapwing returns NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg

from ..core.problem import DTYPES
from ..frameworks import jax as framework
from ..ops.cholesky import cholesky
from ..ops.eig import eig, eigvals
from ..ops.eigh import eigh, eigvalsh
from ..ops.qr import qr
from ..ops.svd import svd, svdvals
from .ahead import ahead
from .names import Kernel, replace_functions

try:
    from jax._src.numpy import linalg as _inner
except ImportError:  # a private name; without its named tuples JAX's own functions take the call
    _inner = None  # type: ignore[assignment]


def open_door(counts: dict[str, list[float]]) -> Callable[[], None]:
    doors = (
        replace_functions([jnp.linalg], _KERNELS, _batch_of_matrices, counts, waits=False),
        replace_functions([jax.scipy.linalg], _SCIPY, _batch_of_matrices, counts, "scipy.", waits=False),
    )

    def close() -> None:
        for restore in doors:
            restore()

    return close


def _batch_of_matrices(a: Any) -> bool:
    return isinstance(a, jax.Array) and a.ndim > 2 and framework.on_one_device(a)


def _ahead(operation: str, a: Any) -> bool:
    if not framework.sized(a):
        return False
    spec = framework.describe(a)
    return spec.dtype in DTYPES and ahead(operation, "arrays" if spec.device == "cpu" else spec.device, spec.shape)


def _named(name: str, values: tuple[Any, ...]) -> Any:
    kind = getattr(_inner, name, None)
    return None if kind is None else kind(*values)


def _symmetric(a: Any) -> Any:
    return (a + jnp.conj(jnp.swapaxes(a, -1, -2))) / 2


def _cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    return cholesky(_symmetric(a), upper=upper, on_fail="nan") if symmetrize_input and _ahead("cholesky", a) else None


def _eig(a: Any) -> Any:
    return _named("EigResult", eig(a, on_fail="nan")) if _ahead("eig", a) else None


def _eigvals(a: Any) -> Any:
    return eigvals(a, on_fail="nan") if _ahead("eigvals", a) else None


def _eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> Any:
    if not symmetrize_input or UPLO not in (None, "L", "U") or not _ahead("eigh", a):
        return None
    return _named("EighResult", eigh(_symmetric(a), on_fail="nan"))


def _eigvalsh(a: Any, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Any:
    known = symmetrize_input and UPLO in (None, "L", "U")
    return eigvalsh(_symmetric(a), on_fail="nan") if known and _ahead("eigvalsh", a) else None


def _qr(a: Any, mode: str = "reduced") -> Any:
    return _named("QRResult", qr(a)) if mode == "reduced" and _ahead("qr", a) else None


def _svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False, subset_by_index: Any = None
) -> Any:
    if hermitian or subset_by_index is not None or not _ahead("svd" if compute_uv else "svdvals", a):
        return None
    if not compute_uv:
        return svdvals(a, on_fail="nan")
    square = not full_matrices or a.shape[-1] == a.shape[-2]
    return _named("SVDResult", svd(a, on_fail="nan")) if square else None


def _svdvals(x: Any, /) -> Any:
    return svdvals(x, on_fail="nan") if _ahead("svdvals", x) else None


def _scipy_cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    # it reads one triangle, and its derivative differs from lapwing's for a change that is not symmetric
    known = not framework.traced(a) and _ahead("cholesky", a)
    return cholesky(a, upper=not lower, on_fail="nan") if known else None


def _scipy_eigh(a: Any, b: Any = None, lower: bool = True, eigvals_only: bool = False, **options: Any) -> Any:
    known = {"overwrite_a", "overwrite_b", "check_finite", "turbo"}
    if b is not None or not set(options) <= known:
        return None
    if eigvals_only:
        return _eigvalsh(a)
    pairs = _eigh(a)
    return None if pairs is None else tuple(pairs)


def _scipy_svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, **options: Any) -> Any:
    if not set(options) <= {"overwrite_a", "check_finite"}:
        return None
    parts = _svd(a, full_matrices, compute_uv)
    return tuple(parts) if compute_uv and parts is not None else parts


_KERNELS: dict[str, Kernel] = {
    "cholesky": _cholesky,
    "eig": _eig,
    "eigh": _eigh,
    "eigvals": _eigvals,
    "eigvalsh": _eigvalsh,
    "qr": _qr,
    "svd": _svd,
    "svdvals": _svdvals,
}
_SCIPY: dict[str, Kernel] = {"cholesky": _scipy_cholesky, "eigh": _scipy_eigh, "svd": _scipy_svd}
