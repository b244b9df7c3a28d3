"""The names of kernel_tools' eigensolvers and LU solver for torch tensors.

Instead of ``from kernel_tools.linalg import cusolver_eigh``::

    from lapwing.compat.kernel_tools import cusolver_eigh

The engine is lapwing's choice, not always cuSOLVER. What a call returns owns just its memory. Either memory order is read
right, tensors on any GPU are taken, no process is started and no signal handler installed. Kernels are in ``lapwing.gram``.
"""

from __future__ import annotations

import logging
import operator
from typing import Any

from .. import eigh as _eigh
from .. import eigvalsh as _eigvalsh
from .. import explain as _explain
from .. import factor as _factor
from .. import solve as _triangular_solve
from .. import spec as _spec

__all__ = [
    "cusolver_batched_eigh",
    "cusolver_batched_eigh_workspace_requirements",
    "cusolver_eigh",
    "cusolver_eigh_workspace_requirements",
    "cusolver_getrf",
    "cusolver_getrf_workspace_requirements",
    "cusolver_getrs",
    "cusolver_mg_eigh",
    "cusolver_mg_eigh_workspace_requirements",
]

_log = logging.getLogger("lapwing")


def cusolver_eigh(
    a: Any,
    overwrite_a: bool = False,
    subset_by_index: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    verbose: bool = False,
) -> Any:
    """Eigenvalues and eigenvectors of one symmetric matrix on a GPU, all or a range of them.

    Parameters
    ----------
    a : CUDA tensor, shape (n, n)
        float32 or float64.
    overwrite_a : bool
        Lets the call destroy ``a``, which saves a copy.
    subset_by_index : (int, int), optional
        First and last index of the eigenvalues, both included, in ascending order from 0.
    lower : bool
        Which triangle is read.
    eigvals_only : bool
        Return the eigenvalues alone.
    verbose : bool
        Print the plan: the engine and its workspace.

    Returns
    -------
    w : tensor, shape (k,)
    v : tensor, shape (n, k)
        Unless ``eigvals_only``.

    Raises
    ------
    ValueError
        Not a CUDA tensor, not square, another dtype, indices out of range, or (as ``ConvergenceError``) no convergence.
    """
    _check("cusolver_eigh", a, axes=2, on_gpu=True)
    subset = _subset(subset_by_index, a.shape[-1])
    return _solve(a, overwrite_a, subset, lower, eigvals_only, verbose)


def cusolver_eigh_workspace_requirements(N: int, dtype: Any) -> tuple[int, int]:
    """Bytes of workspace on the device and on the host for all eigenpairs of one matrix, beside the matrix itself."""
    plan = _plan("cusolver_eigh_workspace_requirements", (N, N), dtype)
    return plan.device_bytes, plan.host_bytes


def cusolver_batched_eigh(
    a: Any, overwrite_a: bool = False, lower: bool = True, eigvals_only: bool = False, verbose: bool = False
) -> Any:
    """Eigenvalues and eigenvectors of many symmetric matrices on a GPU; the batch may be as large as memory allows.

    Parameters
    ----------
    a : CUDA tensor, shape (batch, n, n)
        float32 or float64.
    overwrite_a, lower, eigvals_only, verbose
        As for :func:`cusolver_eigh`.

    Returns
    -------
    w : tensor, shape (batch, n)
    v : tensor, shape (batch, n, n)
        Unless ``eigvals_only``.

    Raises
    ------
    ValueError
        As for :func:`cusolver_eigh`.
    """
    _check("cusolver_batched_eigh", a, axes=3, on_gpu=True)
    return _solve(a, overwrite_a, None, lower, eigvals_only, verbose)


def cusolver_batched_eigh_workspace_requirements(N: int, batch_size: int, dtype: Any) -> tuple[int, int]:
    """Bytes of workspace on the device and on the host for a batch, beside the batch itself."""
    plan = _plan("cusolver_batched_eigh_workspace_requirements", (batch_size, N, N), dtype)
    return plan.device_bytes, plan.host_bytes


def cusolver_mg_eigh(a: Any, overwrite_a: bool = False, max_num_devices: int = 16, verbose: bool = False) -> Any:
    """All eigenvalues and eigenvectors of a symmetric matrix in host memory.

    The work is done on one GPU, the one with the most free memory among the first ``max_num_devices``, or on the CPU where
    there is none; the log says so. One process does not spread an eigenproblem over GPUs: for a matrix that one cannot hold,
    start one process for each (``lapwing launch``) and call ``lapwing.eigh`` on a DTensor.

    Parameters
    ----------
    a : host tensor, shape (n, n)
        float32 or float64. The lower triangle is read.
    overwrite_a : bool
        Write the eigenvectors into the memory of ``a``.
    max_num_devices : int
        At least 1: how many GPUs may be looked at.
    verbose : bool
        Print the plan.

    Returns
    -------
    d : host tensor, shape (n,)
    v : host tensor, shape (n, n)

    Raises
    ------
    ValueError
        Not a host tensor, not square, another dtype, or (as ``ConvergenceError``) no convergence.
    MemoryError
        The GPU is too small for the matrix; the message says what is needed.
    """
    import torch

    _check("cusolver_mg_eigh", a, axes=2, on_gpu=False)
    if operator.index(max_num_devices) < 1:
        raise ValueError(f"cusolver_mg_eigh: max_num_devices={max_num_devices} is not positive")
    if torch.cuda.is_available():
        device = _roomiest(torch, operator.index(max_num_devices))
        _log.info("cusolver_mg_eigh: on one GPU (%s), whose memory must hold the matrix", device)
        w, v = (x.cpu() for x in _solve(a.detach().to(device), True, None, True, False, verbose))
    else:
        _log.info("cusolver_mg_eigh: on the CPU, as there is no GPU here")
        w, v = _solve(a.detach(), False, None, True, False, verbose)
    if overwrite_a:
        with torch.no_grad():
            a.copy_(v.mT)
        v = a.detach().mT
    return w, v


def cusolver_mg_eigh_workspace_requirements(N: int, dtype: Any, num_devices: int | None = None, verbose: bool = False) -> int:
    """Bytes of workspace on each device, beside the matrix. Without a GPU, bytes on the host.

    ``num_devices`` > 1 gives each device's part of an even split, as an engine with one process per GPU needs it;
    ``cusolver_mg_eigh`` itself uses one.
    """
    import torch

    name = "cusolver_mg_eigh_workspace_requirements"
    if num_devices is not None and operator.index(num_devices) < 1:
        raise ValueError(f"{name}: num_devices={num_devices} is not positive")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = _plan(name, (N, N), dtype, device)
    if verbose:
        print(plan)
    total = int(plan.device_bytes if device == "cuda" else plan.host_bytes)
    return -(-total // (1 if num_devices is None else operator.index(num_devices)))


def _roomiest(torch: Any, most: int) -> Any:
    """The GPU with the most free memory among the first so many; the current one where others have no more."""
    current = torch.cuda.current_device()
    devices = {current, *range(min(most, torch.cuda.device_count()))}
    return torch.device("cuda", max(devices, key=lambda i: (torch.cuda.mem_get_info(i)[0], i == current)))


def cusolver_getrf(a: Any, overwrite_a: bool = False, verbose: bool = False) -> tuple[Any, Any]:
    """LU factorisation with partial pivoting of one square matrix on a GPU.

    Parameters
    ----------
    a : CUDA tensor, shape (n, n)
        float32 or float64.
    overwrite_a : bool
        Write the factors into the memory of ``a``.
    verbose : bool
        Print the plan: the engine and its workspace.

    Returns
    -------
    lu : tensor, shape (n, n)
        The factors of A^T, by columns: ``lu.T`` has L below the diagonal, with ones on it, and U on and above it.
    ipiv : int64 tensor, shape (n,)
        Row i was exchanged with row ``ipiv[i]``, counted from 1.

    Raises
    ------
    ValueError
        Not a CUDA tensor, not square, another dtype, or (as ``SingularMatrixError``) a pivot that is zero or not finite.
    """
    _check("cusolver_getrf", a, axes=2, on_gpu=True)
    return _getrf(a, overwrite_a, verbose)


def cusolver_getrf_workspace_requirements(M: int, N: int, dtype: Any) -> tuple[int, int]:
    """Bytes of workspace on the device and on the host for the factors of one M x N matrix, beside it. M must be N."""
    name = "cusolver_getrf_workspace_requirements"
    if operator.index(M) != operator.index(N):
        raise ValueError(f"{name}: the matrix must be square, got {M} x {N}")
    plan = _plan(name, (M, N), dtype, operation=_factor, assume="general")
    return plan.device_bytes, plan.host_bytes


def cusolver_getrs(a: Any, ipiv: Any, targets: Any, overwrite_targets: bool = False, verbose: bool = False) -> Any:
    """Solve A x = b with the factors of :func:`cusolver_getrf`, for any number of right-hand sides.

    Parameters
    ----------
    a : CUDA tensor, shape (n, n)
        ``lu`` as ``cusolver_getrf`` returned it.
    ipiv : int64 tensor, shape (n,)
        The exchanges, as ``cusolver_getrf`` returned them.
    targets : CUDA tensor, shape (nrhs, n)
        A right-hand side in each row; dtype and device of ``a``.
    overwrite_targets : bool
        Write the solutions into the memory of ``targets``.
    verbose : bool
        Print what is solved.

    Returns
    -------
    tensor, shape (nrhs, n)
        A solution in each row: ``A @ x.T`` is ``targets.T``.

    Raises
    ------
    ValueError
        Not CUDA tensors, or wrong shapes, dtypes or exchanges.
    """
    _check("cusolver_getrs", a, axes=2, on_gpu=True)
    return _getrs(a, ipiv, targets, overwrite_targets, verbose)


def _getrf(a: Any, overwrite: bool, verbose: bool) -> tuple[Any, Any]:
    a = a.detach()
    if verbose:
        print(_explain(_factor, a, assume="general"))
    lu, rows = _factor(a.mT, assume="general").lu
    ipiv = a.new_tensor(_exchanges(rows.tolist()), dtype=rows.dtype).long()
    return (a.copy_(lu.mT) if overwrite else lu.mT), ipiv


def _getrs(a: Any, ipiv: Any, targets: Any, overwrite: bool, verbose: bool) -> Any:
    import torch

    n = a.shape[-1]
    if not isinstance(targets, torch.Tensor) or targets.dim() != 2 or targets.shape[-1] != n:
        got = f"shape {tuple(targets.shape)}" if isinstance(targets, torch.Tensor) else type(targets).__name__
        raise ValueError(f"cusolver_getrs: targets must be a tensor of shape (nrhs, {n}), got {got}")
    if targets.dtype != a.dtype or targets.device != a.device:
        raise ValueError(
            f"cusolver_getrs: a is {a.dtype} on {a.device}, targets are {targets.dtype} on {targets.device}: they must agree"
        )
    order = _order(ipiv.tolist() if isinstance(ipiv, torch.Tensor) else ipiv, n)
    if verbose:
        print(f"cusolver_getrs: {targets.shape[0]} right-hand sides for a matrix of order {n}")
    a, b = a.detach(), targets.detach()
    # P A^T = L U, so that A = U^T L^T P
    y = _triangular_solve(a, b.mT, assume="lower")
    z = _triangular_solve(torch.triu(a, 1) + torch.eye(n, dtype=a.dtype, device=a.device), y, assume="upper")
    x = b if overwrite else torch.empty(b.shape, dtype=b.dtype, device=b.device)
    x[:, torch.tensor(order, dtype=torch.int64, device=a.device)] = z.mT
    return x


def _exchanges(order: list[int]) -> list[int]:
    """The exchanges, counted from 1, that bring the rows into this order."""
    at, held = list(range(len(order))), list(range(len(order)))  # where each row stands, which row stands here
    exchanges = []
    for i, row in enumerate(order):
        j, other = at[row], held[i]
        held[i], held[j], at[row], at[other] = row, other, i, j
        exchanges.append(j + 1)
    return exchanges


def _order(exchanges: Any, n: int) -> list[int]:
    """The order of rows that the exchanges lead to."""
    if not isinstance(exchanges, list) or len(exchanges) != n:
        raise ValueError(f"cusolver_getrs: ipiv must be a tensor of {n} rows, counted from 1")
    kinds = {type(j) for j in exchanges} - {int}  # True is no row, though Python takes it for 1
    if kinds:
        raise ValueError(
            f"cusolver_getrs: ipiv must be a tensor of {n} integers, got {kinds.pop().__name__}"
            "\nhint: the one that cusolver_getrf returned"
        )
    if any(not 1 <= j <= n for j in exchanges):
        raise ValueError(f"cusolver_getrs: ipiv must be a tensor of {n} rows, counted from 1")
    order = list(range(n))
    for i, j in enumerate(exchanges):
        order[i], order[j - 1] = order[j - 1], order[i]
    return order


def _check(name: str, a: Any, *, axes: int, on_gpu: bool) -> None:
    import torch

    if not isinstance(a, torch.Tensor):
        raise ValueError(f"{name}: expected a torch tensor, got {type(a).__name__}")
    if a.is_cuda is not on_gpu:
        elsewhere = "lapwing.solve" if "getr" in name else "cusolver_mg_eigh"
        other = f"a.cuda(), or {elsewhere} for a host tensor" if on_gpu else "cusolver_eigh takes a CUDA tensor"
        raise ValueError(f"{name}: a is on {a.device}, not on {'a GPU' if on_gpu else 'the host'}\nhint: {other}")
    if a.dim() != axes:
        raise ValueError(f"{name}: a must have {axes} axes, got shape {tuple(a.shape)}")
    if a.shape[-1] != a.shape[-2]:
        raise ValueError(f"{name}: the matrix must be square, got shape {tuple(a.shape)}")
    _check_dtype(name, a.dtype)


def _check_dtype(name: str, dtype: Any) -> None:
    import torch

    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{name}: dtype {dtype} is not float32 or float64\nhint: lapwing.eigh and lapwing.solve take complex matrices too"
        )


def _subset(indices: Any, n: int) -> slice | None:
    if indices is None:
        return None
    try:
        first, last = (operator.index(i) for i in indices)
    except (TypeError, ValueError):
        raise ValueError(f"cusolver_eigh: subset_by_index={indices!r} is not a pair of integers") from None
    if not 0 <= first <= last < n:
        raise ValueError(f"cusolver_eigh: subset_by_index=({first}, {last}) is out of range for {n} eigenvalues, 0 to {n - 1}")
    return slice(first, last + 1)


def _solve(a: Any, overwrite: bool, subset: slice | None, lower: bool, eigvals_only: bool, verbose: bool) -> Any:
    options: dict[str, Any] = {"subset": subset, "upper": not lower}
    if verbose:
        print(_explain(_eigvalsh if eigvals_only else _eigh, a, **options))
    if eigvals_only:
        return _eigvalsh(a, overwrite=bool(overwrite), **options)
    return tuple(_eigh(a, overwrite=bool(overwrite), **options))


def _plan(name: str, shape: tuple[int, ...], dtype: Any, device: str = "cuda", operation: Any = _eigh, **options: Any) -> Any:
    _check_dtype(name, dtype)
    plan = _explain(operation, _spec(shape, dtype, device), **options)
    if plan.missing:
        raise RuntimeError(f"{name}: cannot be asked here: {plan.missing}")
    return plan
