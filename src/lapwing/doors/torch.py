"""torch's own operators, with lapwing's kernels at the CPU and CUDA keys.

These keys lie below autograd, vmap, functionalisation and the compiler, so torch's derivative formulas stay in charge. A kernel
returns None where torch's own kernel is to take the call. Results have the strides that torch's kernels give them: compiled
programs rely on them. torch saves the LU factors of solve, det and slogdet for derivatives, as LAPACK has them: column-major,
with pivots counted from one. ``native.lapack_form`` converts lapwing's factors to that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from ..core.native import AUTO, CPU, CUDA, native
from ..core.problem import ADJOINT, DTYPES, UNIT, UPPER
from ..frameworks import torch as framework
from ..ops.cholesky import CHOLESKY
from ..ops.eig import EIG, EIGVALS
from ..ops.eigh import EIGH, EIGVALSH
from ..ops.lstsq import DEFAULT_RCOND, LSTSQ
from ..ops.qr import QR
from ..ops.svd import SVD, SVDVALS
from ..ops.systems import CHOLESKY_SOLVE, INVERSE, LU, LU_SOLVE, SOLVE, TRIANGULAR
from .ahead import ahead, saved, smallest

_NEEDED = "2.9"
_TRIANGLES = {"L": 0, "l": 0, "U": UPPER, "u": UPPER}
_DTYPES = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
_TURN, _TO_PIVOTS, _TO_ROWS = range(3)  # Exchanges in native/lapack_form.h
_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


def open_door(counts: dict[str, list[float]]) -> Callable[[], None]:
    """Register the kernels; returns a function that removes them."""
    if not hasattr(torch.library, "get_kernel"):
        raise ImportError(
            f"install: torch {_NEEDED} or newer is needed, got {torch.__version__}\nhint: pip install 'torch>={_NEEDED}'"
        )
    library = torch.library.Library("aten", "IMPL")
    least = smallest("cpu", "cuda")
    with warnings.catch_warnings():
        # torch warns that a kernel is replaced, which is what the caller asked for
        warnings.simplefilter("ignore")
        for name, kernel in _KERNELS.items():
            for key in ("CPU", "CUDA"):
                if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", key):
                    own = torch.library.get_kernel(f"aten::{name}", key)
                    count = counts.setdefault(name, [0, 0, 0.0])
                    library.impl(name, _guarded(kernel, own.call_boxed, count, least), key, with_keyset=True)
    return library._destroy


def _guarded(kernel: Callable[..., Any], own: Callable[..., Any], count: list[float], least: int) -> Callable[..., Any]:
    def call(keys: Any, a: Any, *arguments: Any, **options: Any) -> Any:
        # results of a subclass would be of that class, also inside vmap, where torch's own are plain
        if a.dim() > 2 and a.numel() >= least and type(a) in framework._PLAIN_SET:
            start = perf_counter()
            results = kernel(a, *arguments, **options)
            if results is not None:
                count[0] += 1
                if count[0] > 1 and not a.is_cuda:  # the first call loads code; a GPU may still be at work
                    count[2] += saved(perf_counter() - start)
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
    """The same matrices in column-major memory, as LAPACK leaves them. ``x`` is a result that nobody else has seen."""
    if 1 in x.shape[-2:]:  # the same memory either way; the strides are those of torch's kernels
        return x.reshape(x.mT.shape).mT
    if x.mT.is_contiguous():
        return x
    if not _square(x) or not x.is_contiguous():
        return x.mT.contiguous().mT
    _lapack_form(_TURN, x, x)
    return x.mT


def _succeeded(info: torch.Tensor) -> bool:
    """Whether torch's own kernel need not say what went wrong. On a GPU reading the status would make the call wait."""
    return info.is_cuda or not framework.failed(info)


def _finite(x: torch.Tensor) -> bool:
    """Whether torch's own kernel need not say which elements of the result are NaN. On a GPU the answer would be waited for."""
    return x.is_cuda or bool(torch.isfinite(x.sum()))  # a sum that overflows costs time only


def _lapack_form(exchanges: int, a: torch.Tensor, to: torch.Tensor, integers: torch.Tensor | None = None) -> None:
    """``to`` <- the transposes of ``a``; the order of rows becomes pivots, or the reverse. The arrays are contiguous."""
    assert native is not None
    sizes = (a.numel() // (a.shape[-1] ** 2 or 1), a.shape[-1])
    device = (CUDA, a.get_device(), 0, 0, 0) if a.is_cuda else (CPU, -1, 0, torch.get_num_threads(), 0)
    stream = torch._C._cuda_getCurrentRawStream(a.get_device()) if a.is_cuda else 0
    memory = (a.data_ptr(), to.data_ptr(), 0 if integers is None else integers.data_ptr())
    native.lapack_form(exchanges, _DTYPES[a.dtype], *device, sizes, stream, None, *memory)


def _turned(a: torch.Tensor) -> torch.Tensor:
    """The transposes of contiguous matrices, contiguous."""
    out = torch.empty_like(a)
    _lapack_form(_TURN, a, out)
    return out


def _plain(a: torch.Tensor) -> bool:
    return not (a.is_conj() or a.is_neg())


def _rows(a: torch.Tensor) -> torch.Tensor:
    """The same matrices in row-major memory."""
    return _turned(a.mT) if not a.is_contiguous() and _plain(a) and a.mT.is_contiguous() else a


def _same_batch(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether b has columns for each matrix of a, without broadcasting."""
    return bool(b.shape[:-1] == a.shape[:-1] and b.dtype is a.dtype and b.device == a.device and b.layout is torch.strided)


def _factors(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """L U, the order of the rows, and the status of each matrix."""
    rows_first = _rows(a)
    lu, rows, info = framework._run(LU, (rows_first,), (0,), AUTO, rows_first is not a)
    return lu, rows, info


def _as_lapack(lu: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The factors in column-major memory; the rows become pivots. Both inputs are gone afterwards."""
    _lapack_form(_TO_PIVOTS, lu, lu, rows)
    return lu.mT


def _lu_factor(a: torch.Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    if not _ahead("lu", a) or not pivot or not _square(a):
        return None
    lu, rows, info = _factors(a)
    factor = _as_lapack(lu, rows)
    # torch has other results for singular matrices. Asked last: on a GPU the answer has to be waited for.
    return None if framework.failed(info) else (factor, rows, info)


def _solve(a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    if not _ahead("solve", a):
        return None
    vectors = b.dim() == a.dim() - 1 and b.shape == a.shape[:-1]
    columns = b.unsqueeze(-1) if vectors else b
    if not left or not _square(a) or not _same_batch(a, columns):
        return None
    together = _solve_keeping(a, columns) if a.is_cuda else None
    if together is None:
        lu, rows, info = _factors(a)
        (x,) = _run(LU_SOLVE, (lu, lu, rows, columns), (0,))
        together = x, _as_lapack(lu, rows), rows, info
    x, factor, pivots, info = together
    return None if framework.failed(info) else (_columns(x.squeeze(-1) if vectors else x), factor, pivots, info)


def _solve_keeping(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """The solution, the factors, the pivots and the status by one kernel, where there is one."""
    assert native is not None
    if not (a.is_contiguous() and b.is_contiguous() and _plain(a) and _plain(b)):
        return None
    x, factor = torch.empty_like(b), torch.empty_like(a)
    pivots, info = (a.new_empty(a.shape[:-i], dtype=torch.int32) for i in (1, 2))
    sizes = (info.numel(), a.shape[-1], b.shape[-1])
    call = (SOLVE.code, _DTYPES[a.dtype], CUDA, a.get_device(), AUTO, 0, 0, sizes)
    stream = torch._C._cuda_getCurrentRawStream(a.get_device())
    memory = [y.data_ptr() for y in (a, b, x, info, factor, pivots)]
    done = native.solve_keeping(*call, stream, framework._Scratch(a.device), *memory)
    return (x, factor.mT, pivots, info) if done else None


def _lu_solve(lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, *, left: bool = True, adjoint: bool = False) -> Any:
    if not _ahead("lu_solve", lu):
        return None
    known = (
        left and _square(lu) and pivots.dtype is torch.int32 and pivots.shape == lu.shape[:-1] and pivots.device == lu.device
    )
    if not known or not _same_batch(lu, b) or not (_plain(lu) and lu.mT.is_contiguous()):
        return None
    rows_first, rows = torch.empty_like(lu.mT), pivots.clone(memory_format=torch.contiguous_format)
    _lapack_form(_TO_ROWS, lu.mT, rows_first, rows)
    (x,) = _run(LU_SOLVE, (rows_first, rows_first, rows, b), (ADJOINT if adjoint else 0,))
    return None if framework.failed(rows_first.diagonal(dim1=-2, dim2=-1) == 0) or not _finite(x) else _columns(x)


def _pivot_product(a: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """The diagonal of U, the sign of the exchanges, the factors and pivots.

    torch has the factors of the transpose where the matrix is real and contiguous.
    """
    if not _ahead("slogdet", a) or not _square(a):
        return None
    lu, rows, info = _factors(a.mT if a.is_contiguous() and not a.is_complex() else a)
    factor = _as_lapack(lu, rows)
    exchanged = rows != torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)
    parts = factor.diagonal(dim1=-2, dim2=-1), 1 - 2 * (exchanged.sum(-1) & 1), factor, rows
    return None if framework.failed(info) else parts


def _det(a: torch.Tensor) -> Any:
    parts = _pivot_product(a)
    return None if parts is None else (parts[0].prod(-1) * parts[1], *parts[2:])


def _slogdet(a: torch.Tensor) -> Any:
    parts = _pivot_product(a)
    if parts is None:
        return None
    diagonal, sign, *factors = parts
    return diagonal.sgn().prod(-1) * sign, diagonal.abs().log().sum(-1), *factors


def _triangle(a: torch.Tensor, flags: int) -> tuple[torch.Tensor, int]:
    """The matrices and flags as native code takes them: a real factor in column-major memory is read as its transpose."""
    if a.is_complex() or a.is_contiguous() or not _plain(a) or not a.mT.is_contiguous():
        return a, flags
    return a.mT, flags ^ UPPER ^ ADJOINT


def _cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool) -> Any:
    if not _ahead("cholesky_solve", factor) or not _square(factor) or not _same_batch(factor, b):
        return None
    factor, flags = _triangle(factor, UPPER if upper else 0)
    (x,) = _run(CHOLESKY_SOLVE, (factor, factor, b), (flags & UPPER,))
    return _columns(x) if _finite(x) else None


def _cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> Any:
    if not _ahead("cholesky_inverse", factor) or not _square(factor):
        return None
    if framework.failed(factor.diagonal(dim1=-2, dim2=-1) == 0):  # torch's own kernel raises
        return None
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand(factor.shape)
    return _cholesky_solve(identity, factor, upper)


def _solve_triangular(a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not _ahead("triangular", a) or not left or not _square(a) or not _same_batch(a, b):
        return None
    if a.is_conj() and a.mT.is_contiguous():  # the one case in which torch's solution is row-major
        return None
    a, flags = _triangle(a, (UPPER if upper else 0) | (UNIT if unitriangular else 0))
    x, info = _run(TRIANGULAR, (a, b), (flags,))
    return _columns(x) if _succeeded(info) else None


def _lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    if not _ahead("lstsq", a):
        return None
    m, n = a.shape[-2:]
    default = "gels" if a.is_cuda else "gelsy"
    same = b.dim() == a.dim() and b.shape[:-1] == a.shape[:-1] and b.dtype is a.dtype and b.device == a.device
    if rcond is not None or driver not in (None, default) or m < n or not same or not b.shape[-1]:
        return None
    x, residuals, rank, info = _run(LSTSQ, (a, b), (0, DEFAULT_RCOND))
    if framework.failed(info) or framework.failed(rank != n):
        return None
    # torch's solution is the first rows of the memory of b
    solution = a.new_empty((*b.shape[:-2], b.shape[-1], m)).mT[..., :n, :]
    solution.copy_(x)
    # one empty tensor for each place: torch records derivatives for the second result alone
    none, values = residuals.new_empty(0), residuals.new_empty(0)
    if a.is_cuda:
        return solution, residuals if m > n else none, rank.new_empty(0, dtype=torch.int64), values
    return solution, none, rank.long(), values


def _cholesky(a: torch.Tensor, upper: bool = False, check_errors: bool = False) -> Any:
    if not _square(a) or not _ahead("cholesky", a) or (check_errors and a.is_cuda):
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
    return (_columns(q), _columns(r)) if _finite(r) else None


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
    "_cholesky_solve_helper": _cholesky_solve,
    "_linalg_det": _det,
    "_linalg_eigh": _eigh,
    "_linalg_eigvals": _eigvals,
    "_linalg_slogdet": _slogdet,
    "_linalg_solve_ex": _solve,
    "_linalg_svd": _svd,
    "cholesky_inverse": _cholesky_inverse,
    "linalg_cholesky_ex": _cholesky,
    "linalg_eig": _eig,
    "linalg_inv_ex": _inverse,
    "linalg_lstsq": _lstsq,
    "linalg_lu_factor_ex": _lu_factor,
    "linalg_lu_solve": _lu_solve,
    "linalg_qr": _qr,
    "linalg_solve_triangular": _solve_triangular,
}
# what these ask the table of measurements for
OPERATIONS = (
    "cholesky", "cholesky_inverse", "cholesky_solve", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "lu", "lu_solve",
    "qr", "slogdet", "solve", "svd", "svdvals", "triangular",
)  # fmt: skip
