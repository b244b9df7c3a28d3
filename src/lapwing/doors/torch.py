"""torch's own operators, with lapwing's kernels at the CPU and CUDA keys.

These keys lie below autograd, vmap, functionalisation and the compiler, so torch's derivative formulas stay in charge. A kernel
returns None where torch's own kernel is to take the call. Results have the strides that torch's kernels give them: compiled
programs rely on them. torch's solve, lu_factor, det and slogdet are left to torch: they return the exchanges of rows in
LAPACK's form, and converting lapwing's permutation to it takes longer than the factorisation gains.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..core.native import AUTO
from ..core.problem import DTYPES, UPPER
from ..frameworks import torch as framework
from ..ops.cholesky import CHOLESKY
from ..ops.eig import EIG, EIGVALS
from ..ops.eigh import EIGH, EIGVALSH
from ..ops.qr import QR
from ..ops.svd import SVD, SVDVALS
from ..ops.systems import INVERSE
from .ahead import ahead

_NEEDED = "2.9"
_TRIANGLES = {"L": 0, "l": 0, "U": UPPER, "u": UPPER}
_DTYPES = {getattr(torch, name) for name in DTYPES}
_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


def open_door(counts: dict[str, list[int]]) -> Callable[[], None]:
    """Register the kernels; returns a function that removes them."""
    if not hasattr(torch.library, "get_kernel"):
        raise ImportError(f"install: the torch door needs torch {_NEEDED} or newer, got {torch.__version__}")
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns that a kernel is replaced, which is what the caller asked for
        warnings.simplefilter("ignore")
        for name, kernel in _KERNELS.items():
            for key in ("CPU", "CUDA"):
                if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                    own = torch.library.get_kernel(f"aten::{name}", key)
                    count = counts.setdefault(name, [0, 0])
                    library.impl(name, _guarded(kernel, own.call_boxed, count), key, with_keyset=True)
    return library._destroy


def _guarded(kernel: Callable[..., Any], own: Callable[..., Any], count: list[int]) -> Callable[..., Any]:
    def call(keys: Any, a: Any, *arguments: Any, **options: Any) -> Any:
        if a.dim() > 2:
            results = kernel(a, *arguments, **options)
            if results is not None:
                count[0] += 1
                return results
        count[1] += 1
        return own(keys, a, *arguments, **options)

    return call


def _ahead(operation: str, a: torch.Tensor) -> bool:
    if not ahead(operation, "cuda" if a.is_cuda else "cpu", a.shape):
        return False
    return a.dtype in _DTYPES and a.layout is torch.strided and not (a.is_cuda and _capturing())


def _square(a: torch.Tensor) -> bool:
    # torch checks the shape in the kernel that is replaced; other shapes get torch's error
    return bool(a.shape[-1] == a.shape[-2])


def _run(operation: Any, arrays: tuple[Any, ...], params: tuple[int, ...]) -> tuple[Any, ...]:
    return framework._run(operation, arrays, params, AUTO)


def _columns(x: torch.Tensor) -> torch.Tensor:
    """The same matrices in column-major memory, as LAPACK leaves them."""
    return x if x.mT.is_contiguous() else x.mT.contiguous().mT


def _succeeded(info: torch.Tensor) -> bool:
    """Whether torch's own kernel need not say what went wrong. On a GPU reading the status would make the call wait."""
    return info.is_cuda or not framework.failed(info)


def _cholesky(a: torch.Tensor, upper: bool = False, check_errors: bool = False) -> Any:
    if not _square(a) or not _ahead("cholesky_ex", a) or (check_errors and a.is_cuda):
        return None
    factor, info = _run(CHOLESKY, (a,), (UPPER if upper else 0,))
    return (_columns(factor), info) if _succeeded(info) else None


def _inverse(a: torch.Tensor, check_errors: bool = False) -> Any:
    if not _square(a) or not _ahead("inv", a) or (check_errors and a.is_cuda):
        return None
    inverse, info = _run(INVERSE, (a,), (0,))
    return (_columns(inverse), info) if _succeeded(info) else None


def _qr(a: torch.Tensor, mode: str = "reduced") -> Any:
    if mode != "reduced" or not _ahead("qr", a):
        return None
    q, r = _run(QR, (a,), (0, 0))
    return _columns(q), _columns(r)


def _eig(a: torch.Tensor) -> Any:
    if not _square(a) or not _ahead("eig", a):
        return None
    w, v, info = _run(EIG, (a,), (0,))
    return None if framework.failed(info) else (w, _columns(v))


def _eigvals(a: torch.Tensor) -> Any:
    if not _square(a) or not _ahead("eigvals", a):
        return None
    w, info = _run(EIGVALS, (a,), (0,))
    return None if framework.failed(info) else w


def _eigh(a: torch.Tensor, UPLO: str = "L", compute_v: bool = True) -> Any:
    if UPLO not in _TRIANGLES or not _square(a) or not _ahead("eigh" if compute_v else "eigvalsh", a):
        return None
    params = (_TRIANGLES[UPLO], 0, -1)
    if compute_v:
        w, v, info = _run(EIGH, (a,), params)
        return None if framework.failed(info) else (w, _columns(v))
    w, info = _run(EIGVALSH, (a,), params)
    return None if framework.failed(info) else (w, a.new_empty(0))


def _svd(a: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None) -> Any:
    full = full_matrices and compute_uv and a.shape[-1] != a.shape[-2]
    if driver is not None or full or not _ahead("svd" if compute_uv else "svdvals", a):
        return None
    if compute_uv:
        u, s, vh, info = _run(SVD, (a,), (0, 0))
        # torch's CPU routine leaves Vh in column-major memory, that of cuSOLVER gives V in it
        vh = vh if a.is_cuda else _columns(vh)
        return None if framework.failed(info) else (_columns(u), s, vh)
    s, info = _run(SVDVALS, (a,), (0, 0))
    return None if framework.failed(info) else (a.new_empty(0), s, a.new_empty(0))


_KERNELS: dict[str, Callable[..., Any]] = {
    "_linalg_eigh": _eigh,
    "_linalg_eigvals": _eigvals,
    "_linalg_svd": _svd,
    "linalg_cholesky_ex": _cholesky,
    "linalg_eig": _eig,
    "linalg_inv_ex": _inverse,
    "linalg_qr": _qr,
}
