"""``kernel_tools.linalg``: eigensolvers and an LU solver for torch tensors.

lapwing chooses the engine, which is not always cuSOLVER. Results own just their memory. Tensors in either memory order and on
any GPU work. No call starts a process or installs a signal handler.
"""

from __future__ import annotations

import logging
import operator
import warnings
from typing import Any

from ... import eigh as _eigh
from ... import eigvalsh as _eigvalsh
from ... import explain as _explain
from ... import factor as _factor
from ... import spec as _spec
from ...distributed import DeviceMatrix
from ...distributed.backends.cusolvermg.backend import EIGH_WORKSPACE as _EIGH_WORKSPACE
from ...distributed.backends.cusolvermg.library import missing as _missing

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
_TILE = 512  # rows of a block that is transposed in place


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
        Allow the call to destroy ``a``, which saves a copy.
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
    """Bytes of workspace on the device and on the host for all eigenpairs of one matrix, not counting the matrix."""
    return _workspace("cusolver_eigh_workspace_requirements", (N, N), dtype)


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
    """Bytes of workspace on the device and on the host for a batch, not counting the batch."""
    return _workspace("cusolver_batched_eigh_workspace_requirements", (batch_size, N, N), dtype)


def cusolver_mg_eigh(a: Any, overwrite_a: bool = False, max_num_devices: int = 16, verbose: bool = False) -> Any:
    """All eigenvalues and eigenvectors of a symmetric matrix in host memory.

    The first ``max_num_devices`` GPUs do the work together, with cuSOLVERMg: each holds a part of the matrix. For one GPU
    lapwing chooses the engine; without a GPU the CPU does the work. The log says which.

    Parameters
    ----------
    a : host tensor, shape (n, n)
        float32 or float64. The lower triangle is read.
    overwrite_a : bool
        Write the eigenvectors into the memory of ``a``.
    max_num_devices : int
        At least 1: how many GPUs to use.
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
        The GPUs are too small for the matrix.
    """
    import torch

    _check("cusolver_mg_eigh", a, axes=2, on_gpu=False)
    if operator.index(max_num_devices) < 1:
        raise ValueError(f"cusolver_mg_eigh: max_num_devices={max_num_devices} is not positive")
    devices = _gpus(torch, operator.index(max_num_devices))
    reason = "" if len(devices) < 2 else _missing().removeprefix("distributed: ")
    if len(devices) > 1 and not reason and len(a):
        w, v = (x if isinstance(x, torch.Tensor) else torch.from_numpy(x) for x in _on_all(a.detach(), devices, verbose))
    elif devices:
        if reason:
            text = f"cusolver_mg_eigh: {len(devices)} GPUs were asked for, but only one is used: {reason.splitlines()[0]}"
            warnings.warn(f"{text}\nhint: pip install nvidia-cusolver", UserWarning, stacklevel=2)
        device = _roomiest(torch, devices)
        _log.info("cusolver_mg_eigh: on one GPU (%s), whose memory must hold the matrix", device)
        w, v = (x.cpu() for x in _solve(a.detach().to(device), True, None, True, False, verbose))
    else:
        _log.info("cusolver_mg_eigh: on the CPU, because there is no GPU")
        w, v = _solve(a.detach(), False, None, True, False, verbose)
    if overwrite_a:
        with torch.no_grad():
            a.copy_(v.mT)
        v = a.detach().mT
    return w, v


def cusolver_mg_eigh_workspace_requirements(N: int, dtype: Any, num_devices: int | None = None, verbose: bool = False) -> int:
    """Bytes of workspace on each device, not counting the matrix. Without a GPU, bytes on the host.

    With ``num_devices`` > 1 the answer comes from a model of what cuSOLVERMg needed on one H200 as several devices.
    """
    import torch

    name = "cusolver_mg_eigh_workspace_requirements"
    if num_devices is not None and operator.index(num_devices) < 1:
        raise ValueError(f"{name}: num_devices={num_devices} is not positive")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = _plan(name, (N, N), dtype, device)
    if verbose:
        print(plan)
    count = 1 if num_devices is None else operator.index(num_devices)
    if device == "cuda" and count > 1:
        return int(_EIGH_WORKSPACE * N * -(-N // count) * dtype.itemsize)
    total = int(plan.device_bytes if device == "cuda" else plan.host_bytes)
    return -(-total // count)


def _gpus(torch: Any, most: int) -> list[Any]:
    """The first GPUs, at most so many."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", i) for i in range(min(most, count))]


def _on_all(a: Any, devices: list[Any], verbose: bool) -> Any:
    """Eigenvalues and vectors, each GPU with a part of the rows; the vectors come back as a NumPy array."""
    rows = DeviceMatrix.split(a, devices[: len(a)])
    if verbose:
        print(_explain(_eigh, rows))
    w, v = _eigh(rows, engine="cusolvermg")
    del rows
    return w, v.gather()


def _roomiest(torch: Any, devices: list[Any]) -> Any:
    """The GPU with the most free memory; the current one in a tie."""
    current = torch.cuda.current_device()
    return max(devices, key=lambda device: (torch.cuda.mem_get_info(device.index)[0], device.index == current))


def cusolver_getrf(a: Any, overwrite_a: bool = False, verbose: bool = False) -> tuple[Any, Any]:
    """LU factorisation with partial pivoting of one square matrix on a GPU.

    Parameters
    ----------
    a : CUDA tensor, shape (n, n)
        float32 or float64.
    overwrite_a : bool
        Write the factors into the memory of ``a``, without a second matrix.
    verbose : bool
        Print the plan: the engine and its workspace.

    Returns
    -------
    lu : tensor, shape (n, n)
        The factors of A^T: ``lu.T`` has L below the diagonal, with ones on it, and U on and above it.
    ipiv : int64 tensor, shape (n,)
        Row i was exchanged with row ``ipiv[i]``; rows count from 1.

    Raises
    ------
    ValueError
        Not a CUDA tensor, not square, another dtype, or (as ``SingularMatrixError``) a pivot that is zero or not finite.
    """
    _check("cusolver_getrf", a, axes=2, on_gpu=True)
    return _getrf(a, overwrite_a, verbose)


def cusolver_getrf_workspace_requirements(M: int, N: int, dtype: Any) -> tuple[int, int]:
    """Bytes of workspace on the device and on the host to factor one M x N matrix, not counting it. M must equal N."""
    name = "cusolver_getrf_workspace_requirements"
    if operator.index(M) != operator.index(N):
        raise ValueError(f"{name}: the matrix must be square, got {M} x {N}")
    return _workspace(name, (M, N), dtype, operation=_factor, assume="general")


def cusolver_getrs(a: Any, ipiv: Any, targets: Any, overwrite_targets: bool = False, verbose: bool = False) -> Any:
    """Solve A x = b with the factors of :func:`cusolver_getrf`, for any number of right-hand sides.

    ``torch.linalg.lu_solve`` does the work, on the factors where they are.

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
        Print the number of right-hand sides and the order of the matrix.

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
    by_rows = a.is_contiguous()
    if not overwrite or not (by_rows or a.mT.is_contiguous()):
        lu, rows = _factor(a.mT, assume="general").lu
        return a.copy_(lu.mT) if overwrite else lu.mT, _exchanges(rows)
    if by_rows:
        _transpose_in_place(a)
    try:
        _, rows = _factor(a if by_rows else a.mT, assume="general", overwrite=True).lu
    finally:
        if by_rows:
            _transpose_in_place(a)
    return a, _exchanges(rows)


def _transpose_in_place(a: Any) -> None:
    """A <- A^T with one tile of extra memory."""
    n = len(a)
    for i in range(0, n, _TILE):
        rows = slice(i, i + _TILE)
        a[rows, rows] = a[rows, rows].mT.clone()
        for j in range(i + _TILE, n, _TILE):
            columns = slice(j, j + _TILE)
            tile = a[rows, columns].clone()
            a[rows, columns] = a[columns, rows].mT
            a[columns, rows] = tile.mT


def _getrs(a: Any, ipiv: Any, targets: Any, overwrite: bool, verbose: bool) -> Any:
    import torch

    n = a.shape[-1]
    if not isinstance(targets, torch.Tensor) or targets.dim() != 2 or targets.shape[-1] != n:
        kind = f"shape {tuple(targets.shape)}" if isinstance(targets, torch.Tensor) else type(targets).__name__
        raise ValueError(f"cusolver_getrs: targets must be a tensor of shape (nrhs, {n}), got {kind}")
    if targets.dtype != a.dtype or targets.device != a.device:
        raise ValueError(
            f"cusolver_getrs: a is {a.dtype} on {a.device}, targets are {targets.dtype} on {targets.device}: they must agree"
        )
    pivots = torch.as_tensor(_checked_exchanges(ipiv, n), dtype=torch.int32, device=a.device)
    if verbose:
        print(f"cusolver_getrs: {targets.shape[0]} right-hand sides for a matrix of order {n}")
    b = targets.detach()
    # P A^T = L U, so that A x = b is (L U)^T P x = b
    x = torch.linalg.lu_solve(a.detach().mT, pivots, b.mT, adjoint=True).mT
    return b.copy_(x) if overwrite else x.contiguous()


def _exchanges(rows: Any) -> Any:
    """The exchanges, counted from 1, that bring the rows into this order."""
    order = rows.tolist()
    position, row_at = list(range(len(order))), list(range(len(order)))
    exchanges = []
    for i, row in enumerate(order):
        j, other = position[row], row_at[i]
        row_at[i], row_at[j], position[row], position[other] = row, other, i, j
        exchanges.append(j + 1)
    return rows.new_tensor(exchanges).long()


def _checked_exchanges(ipiv: Any, n: int) -> list[int]:
    exchanges = ipiv.tolist() if hasattr(ipiv, "tolist") else ipiv
    if not isinstance(exchanges, list) or len(exchanges) != n:
        raise ValueError(f"cusolver_getrs: ipiv must be a tensor of {n} rows, counted from 1")
    kinds = {type(j) for j in exchanges} - {int}  # True is no row, though Python takes it for 1
    if kinds:
        raise ValueError(
            f"cusolver_getrs: ipiv must be a tensor of {n} integers, got {kinds.pop().__name__}"
            "\nhint: use the one that cusolver_getrf returned"
        )
    if any(not i < j <= n for i, j in enumerate(exchanges)):
        raise ValueError(f"cusolver_getrs: ipiv must be a tensor of {n} rows, counted from 1, with ipiv[i] > i")
    return exchanges


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
            f"{name}: dtype {dtype!r} is not torch.float32 or torch.float64"
            "\nhint: for complex matrices use lapwing.eigh and lapwing.solve"
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


def _workspace(name: str, shape: tuple[int, ...], dtype: Any, **options: Any) -> tuple[int, int]:
    plan = _plan(name, shape, dtype, **options)
    return plan.device_bytes, plan.host_bytes


def _plan(name: str, shape: tuple[int, ...], dtype: Any, device: str = "cuda", operation: Any = _eigh, **options: Any) -> Any:
    _check_dtype(name, dtype)
    plan = _explain(operation, _spec(shape, dtype, device), **options)
    if plan.missing:
        raise RuntimeError(f"{name}: the workspace is unknown on this machine: {plan.missing}")
    return plan
