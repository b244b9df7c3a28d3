"""Faster training of Gaussian processes in gpytorch: ``with lapwing.plugins.linear_operator.install(): ...``.

gpytorch's exact marginal likelihood needs r^T K^-1 r and log |K|, which linear_operator computes from a Cholesky factor of K.
torch then differentiates the factorisation, by two triangular solves with n right-hand sides and a product for each matrix.
This plug-in gives both numbers their closed form instead, with one inverse from the same factor:

    d log |K| = <K^-1, dK>,    d r^T K^-1 r = 2 x^T dr - <x x^T, dK>    with x = K^-1 r

The matrix plus its diagonal (kernel plus noise) is one step too, and linear_operator's rebuilding of the operator, which takes
longer than the mathematics of small matrices, is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import (
    AddedDiagLinearOperator,
    ConstantDiagLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    LinearOperator,
)
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.memoize import _is_in_cache_ignore_all_args
from torch.autograd import forward_ad

from ..core.native import AUTO
from ..core.problem import ADJOINT
from ..doors import Handle, open_with
from ..doors.ahead import ahead
from ..frameworks import torch as framework
from ..ops.cholesky import CHOLESKY
from ..ops.systems import CHOLESKY_SOLVE, TRIANGULAR

__all__ = ["install"]
_DIAGONALS = (DiagLinearOperator, ConstantDiagLinearOperator)


def install() -> Handle:
    """Put the closed form behind ``LinearOperator.inv_quad_logdet``, as gpytorch's models call it.

    It serves dense operators, with or without an added diagonal, where linear_operator takes its Cholesky route
    (``max_cholesky_size`` at least n, or ``fast_computations(log_prob=False)``). Warnings about jitter and the errors
    ``NanError`` and ``NotPSDError`` stay linear_operator's own. Every other operator, second derivatives, ``torch.func`` and
    ``torch.compile`` keep linear_operator's own route. While it is installed ``torch.broadcast_shapes``, which gpytorch calls
    a dozen times in each step, returns at once where all shapes are equal.

    Returns
    -------
    lapwing.doors.Handle
        ``undo()`` restores linear_operator's own methods, ``report()`` counts the calls. It is also a context manager.

    Examples
    --------
    >>> from linear_operator import to_linear_operator
    >>> k = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
    >>> with install() as handle:
    ...     quadratic, logdet = to_linear_operator(k).inv_quad_logdet(torch.ones(2, 1), logdet=True)
    >>> float(quadratic), round(float(logdet.exp()), 3)
    (0.75, 8.0)
    >>> handle.report()["linear_operator.inv_quad_logdet"]["lapwing"]
    1
    """
    return open_with({"linear_operator": _open_door})


def _open_door(counts: dict[str, list[float]]) -> Callable[[], None]:
    count = counts.setdefault("inv_quad_logdet", [0, 0, 0.0])
    own_method, own_shapes = LinearOperator.inv_quad_logdet, torch.broadcast_shapes

    def inv_quad_logdet(
        self: Any, inv_quad_rhs: Any = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> Any:
        parts = _dense_parts(self, inv_quad_rhs) if logdet else None
        if parts is None:
            count[1] += 1
            return own_method(self, inv_quad_rhs, logdet, reduce_inv_quad)
        count[0] += 1
        return _QuadraticAndLogdet.apply(*parts, inv_quad_rhs, bool(reduce_inv_quad))

    def broadcast_shapes(*shapes: Any) -> Any:
        first = shapes[0] if shapes else None
        if type(first) is torch.Size and shapes.count(first) == len(shapes) and framework._tracing_state() is None:
            return first
        return own_shapes(*shapes)

    replaced: list[tuple[Any, str, Any, Any]] = [
        (LinearOperator, "inv_quad_logdet", own_method, inv_quad_logdet),
        (AddedDiagLinearOperator, "evaluate_kernel", AddedDiagLinearOperator.evaluate_kernel, _evaluate_kernel),
        (torch, "broadcast_shapes", own_shapes, broadcast_shapes),
    ]
    for owner, name, _, function in replaced:
        setattr(owner, name, function)

    def restore() -> None:
        for owner, name, own, function in replaced:
            if getattr(owner, name) is function:  # nobody else has replaced it since
                setattr(owner, name, own)

    return restore


_own_evaluate_kernel = AddedDiagLinearOperator.evaluate_kernel


def _evaluate_kernel(self: Any) -> Any:
    """The sum with its kernel evaluated. linear_operator takes the whole operator apart and builds it twice."""
    if type(self) is not AddedDiagLinearOperator or type(self._diag_tensor) not in _DIAGONALS:
        return _own_evaluate_kernel(self)
    gpytorch = sys.modules.get("gpytorch")
    if gpytorch is not None and gpytorch.beta_features.checkpoint_kernel.value():  # then its kernels stay lazy
        return _own_evaluate_kernel(self)
    evaluated = self._linear_op.evaluate_kernel()
    if type(evaluated) is not DenseLinearOperator:
        evaluated = evaluated.evaluate_kernel()
    return evaluated + self._diag_tensor


def _dense_parts(operator: Any, rhs: Any) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """The dense matrices and the diagonal added to them, or None where linear_operator's own way is to be taken."""
    kind = type(operator)
    if kind is AddedDiagLinearOperator and type(operator._diag_tensor) in _DIAGONALS:
        inner, diagonal = operator._linear_op, operator._diag_tensor
        # of a constant diagonal one number for each matrix
        added = diagonal.diag_values if type(diagonal) is ConstantDiagLinearOperator else diagonal._diag
    elif kind is DenseLinearOperator:
        inner, added = operator, None
    else:
        return None
    if type(inner) is not DenseLinearOperator:
        return None
    matrix = inner.tensor
    n = matrix.shape[-1]
    by_cholesky = settings.fast_computations.log_prob.off() or n <= settings.max_cholesky_size.value()
    if not by_cholesky or settings.trace_mode.on() or settings.verbose_linalg.on():
        return None
    cache = getattr(operator, "_memoize_cache", None)
    if cache and any(_is_in_cache_ignore_all_args(operator, name) for name in ("cholesky", "root_decomposition")):
        return None
    plain = all(type(x) is torch.Tensor for x in (matrix, rhs)) and matrix.dtype in (torch.float32, torch.float64)
    if not plain or n < 2 or matrix.shape[:-1] != rhs.shape[:-1] or matrix.shape[-2] != n or rhs.dtype is not matrix.dtype:
        return None
    if added is not None and (added.shape[:-1] != matrix.shape[:-2] or added.dtype is not matrix.dtype):
        return None
    # torch records or transforms the program with its own operators
    return None if framework.traced(matrix) or forward_ad._current_level >= 0 else (matrix, added)


class _QuadraticAndLogdet(torch.autograd.Function):
    """sum_j r_j^T K^-1 r_j, or each of these terms, and log |K| of K = matrix + diag(added)."""

    @staticmethod
    def forward(ctx: Any, matrix: Any, added: Any, rhs: Any, reduce: bool) -> Any:
        k = matrix
        if added is not None:
            k = matrix.clone(memory_format=torch.contiguous_format)
            k.diagonal(dim1=-2, dim2=-1).add_(added)
        l, info = _factor(k)
        results = _from_factor(l, rhs, reduce)
        # asked last: on a GPU the answer has to be waited for, while the rest is under way
        if info is not None and framework.failed(info):
            l = psd_safe_cholesky(k)
            results = _from_factor(l, rhs, reduce)
        y, quadratic, logdet = results
        ctx.reduce, ctx.constant = reduce, added is not None and added.shape[-1] == 1 != matrix.shape[-1]
        ctx.save_for_backward(l, y, matrix, added, rhs)
        return quadratic, logdet

    @staticmethod
    def backward(ctx: Any, quadratic_gradient: Any, logdet_gradient: Any) -> Any:
        l, y, matrix, added, rhs = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative itself is differentiated
            return *_again(ctx, (matrix, added, rhs), (quadratic_gradient, logdet_gradient)), None
        x = _triangular(l, y, adjoint=True)  # x <- L^-T y = K^-1 r
        weight = quadratic_gradient[..., None, None] if ctx.reduce else quadratic_gradient[..., None, :]
        of_matrix = of_added = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            # G <- g2 K^-1 - x g1 x^T
            scaled = (x * weight).mT
            of_matrix = _inverse(l).mul_(logdet_gradient[..., None, None])
            flat = of_matrix.view(-1, *of_matrix.shape[-2:])
            flat.baddbmm_(x.reshape(-1, *x.shape[-2:]), scaled.reshape(-1, *scaled.shape[-2:]), alpha=-1)
            if ctx.needs_input_grad[1]:
                of_added = of_matrix.diagonal(dim1=-2, dim2=-1)
                of_added = of_added.sum(-1, keepdim=True) if ctx.constant else of_added.clone()
        return of_matrix, of_added, 2 * weight * x if ctx.needs_input_grad[2] else None, None


def _again(ctx: Any, inputs: tuple[Any, ...], gradients: tuple[Any, ...]) -> list[Any]:
    """The derivative by torch's own formulas, which can be differentiated again."""
    matrix, added, rhs = inputs
    k = matrix if added is None else matrix + torch.diag_embed(added.expand(matrix.shape[:-1]))
    l = psd_safe_cholesky(k)
    y = torch.linalg.solve_triangular(l, rhs, upper=False)
    values = y.square().sum((-2, -1) if ctx.reduce else -2), l.diagonal(dim1=-2, dim2=-1).square().log().sum(-1)
    wanted = [i for i in range(3) if ctx.needs_input_grad[i]]
    results: list[Any] = [None] * 3
    for i, result in zip(
        wanted, torch.autograd.grad(values, [inputs[i] for i in wanted], gradients, create_graph=True), strict=True
    ):
        results[i] = result
    return results


# ---- lapwing's kernels where they are known to be ahead, torch's elsewhere


def _ahead(operation: str, a: torch.Tensor) -> bool:
    return a.dim() > 2 and ahead(operation, "cuda" if a.is_cuda else "cpu", a.shape)


def _factor(k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The factor, and the status of each matrix where it is not known to be good."""
    if _ahead("cholesky", k):
        return framework._run(CHOLESKY, (k,), (0,), AUTO)  # type: ignore[return-value]
    return psd_safe_cholesky(k), None


def _from_factor(l: torch.Tensor, rhs: torch.Tensor, reduce: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y = L^-1 r, its squares summed, and log |K|; NaN for a matrix whose factor is."""
    y = _triangular(l, rhs)
    return y, y.square().sum((-2, -1) if reduce else -2), l.diagonal(dim1=-2, dim2=-1).square().log().sum(-1)


def _triangular(l: torch.Tensor, b: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
    # on a GPU with lapwing's factor, as the plug-in was measured: the table knows few orders of triangles
    if _ahead("triangular", l) or (l.is_cuda and _ahead("cholesky", l)):
        l = l.contiguous()
        return framework._run(TRIANGULAR, (l, b), (ADJOINT if adjoint else 0,), AUTO)[0]  # type: ignore[no-any-return]
    return torch.linalg.solve_triangular(l.mT if adjoint else l, b, upper=adjoint)  # type: ignore[no-any-return]


def _inverse(l: torch.Tensor) -> torch.Tensor:
    if _ahead("cholesky_inverse", l):
        l = l.contiguous()
        identity = torch.eye(l.shape[-1], dtype=l.dtype, device=l.device).expand(l.shape)
        return framework._run(CHOLESKY_SOLVE, (l, l, identity), (0,), AUTO)[0]  # type: ignore[no-any-return]
    return torch.cholesky_inverse(l).contiguous()
