"""The names of kernel_tools' eigensolvers for torch tensors.

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
from .. import spec as _spec

__all__ = [
    "cusolver_batched_eigh",
    "cusolver_batched_eigh_workspace_requirements",
    "cusolver_eigh",
    "cusolver_eigh_workspace_requirements",
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

    The work is done on the current GPU, or on the CPU where there is none; the log says so. More devices are not used yet.

    Parameters
    ----------
    a : host tensor, shape (n, n)
        float32 or float64. The lower triangle is read.
    overwrite_a : bool
        Write the eigenvectors into the memory of ``a``.
    max_num_devices : int
        At least 1.
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
        _log.info("cusolver_mg_eigh: on one GPU, whose memory must hold the matrix")
        w, v = (x.cpu() for x in _solve(a.detach().cuda(), True, None, True, False, verbose))
    else:
        _log.info("cusolver_mg_eigh: on the CPU, as there is no GPU here")
        w, v = _solve(a.detach(), False, None, True, False, verbose)
    if overwrite_a:
        with torch.no_grad():
            a.copy_(v.mT)
        v = a.detach().mT
    return w, v


def cusolver_mg_eigh_workspace_requirements(N: int, dtype: Any, num_devices: int | None = None, verbose: bool = False) -> int:
    """Bytes of workspace on each device that is used, beside the matrix; one is used. Without a GPU, bytes on the host."""
    import torch

    name = "cusolver_mg_eigh_workspace_requirements"
    if num_devices is not None and operator.index(num_devices) < 1:
        raise ValueError(f"{name}: num_devices={num_devices} is not positive")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = _plan(name, (N, N), dtype, device)
    if verbose:
        print(plan)
    return int(plan.device_bytes if device == "cuda" else plan.host_bytes)


def _check(name: str, a: Any, *, axes: int, on_gpu: bool) -> None:
    import torch

    if not isinstance(a, torch.Tensor):
        raise ValueError(f"{name}: expected a torch tensor, got {type(a).__name__}")
    if a.is_cuda is not on_gpu:
        other = "a.cuda(), or cusolver_mg_eigh for a host tensor" if on_gpu else "cusolver_eigh takes a CUDA tensor"
        raise ValueError(f"{name}: a is on {a.device}, not on {'a GPU' if on_gpu else 'the host'}\nhint: {other}")
    if a.dim() != axes:
        raise ValueError(f"{name}: a must have {axes} axes, got shape {tuple(a.shape)}")
    if a.shape[-1] != a.shape[-2]:
        raise ValueError(f"{name}: the matrix must be square, got shape {tuple(a.shape)}")
    _check_dtype(name, a.dtype)


def _check_dtype(name: str, dtype: Any) -> None:
    import torch

    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name}: dtype {dtype} is not float32 or float64\nhint: lapwing.eigh takes complex matrices too")


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


def _plan(name: str, shape: tuple[int, ...], dtype: Any, device: str = "cuda") -> Any:
    _check_dtype(name, dtype)
    plan = _explain(_eigh, _spec(shape, dtype, device))
    if plan.missing:
        raise RuntimeError(f"{name}: cannot be asked here: {plan.missing}")
    return plan
