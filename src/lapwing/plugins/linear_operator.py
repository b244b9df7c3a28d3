"""Faster training of Gaussian processes in gpytorch: ``with lapwing.plugins.linear_operator.install(): ...``.

gpytorch's exact marginal likelihood needs r^T K^-1 r and log |K|, which linear_operator computes from a Cholesky factor of K.
torch then differentiates the factorisation, by two triangular solves with n right-hand sides and a product for each matrix.
This plug-in gives both numbers their closed form instead, with one inverse from the same factor:

    d log |K| = <K^-1, dK>,    d r^T K^-1 r = 2 x^T dr - <x x^T, dK>    with x = K^-1 r

The matrix plus its diagonal (kernel plus noise) is one step too. The operators and distributions that gpytorch builds between
the kernel and the likelihood, which take longer than the mathematics of small matrices, are left out. For RBF and Matern
kernels everything between the raw parameters and the likelihood is one step, with its derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log, pi
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

try:
    import gpytorch
except ImportError:  # linear_operator alone
    gpytorch = None

from ..core.native import AUTO
from ..core.problem import ADJOINT
from ..doors import Handle, open_with
from ..doors.ahead import ahead
from ..frameworks import torch as framework
from ..ops.cholesky import CHOLESKY
from ..ops.systems import CHOLESKY_SOLVE, TRIANGULAR

__all__ = ["install"]
_DIAGONALS = (DiagLinearOperator, ConstantDiagLinearOperator)
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_MATERN = {0.5: 0.5, 1.5: 1.5, 2.5: 2.5}
_METHODS = {"forward", "covar_dist"}  # by which one kernel may differ from others of its class


def install() -> Handle:
    """Put the closed form behind ``LinearOperator.inv_quad_logdet`` and gpytorch's ``ExactMarginalLogLikelihood``.

    It serves dense operators, with or without an added diagonal, where linear_operator takes its Cholesky route
    (``max_cholesky_size`` at least n, or ``fast_computations(log_prob=False)``). Warnings about jitter and the errors
    ``NanError`` and ``NotPSDError`` stay linear_operator's own. Every other operator, second derivatives, ``torch.func`` and
    ``torch.compile`` keep linear_operator's own route. While it is installed four functions that gpytorch calls in each step
    take less time: ``torch.broadcast_shapes``, ``gpytorch.kernels.Kernel.sub_kernels`` and ``batch_shape``, and the shape of
    a kernel that is not evaluated yet.

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

    def marginal_log_likelihood(self: Any, function_dist: Any, target: Any, *params: Any, **kwargs: Any) -> Any:
        found = None if kwargs else _gaussian_parts(self, function_dist, target)
        if found is None:  # counted by inv_quad_logdet
            return own_likelihood(self, function_dist, target, *params, **kwargs)
        count[0] += 1
        density, parts = found
        points = target.shape[-1]
        if _is_bare(self.model):
            return density.apply(*parts, points)
        return self._add_other_terms(density.apply(*parts, 1), params).div_(points)

    def broadcast_shapes(*shapes: Any) -> Any:
        shape = _broadcast(shapes) if framework._tracing_state() is None else None
        return own_shapes(*shapes) if shape is None else shape

    def size(self: Any) -> Any:
        shape = _size(self)
        return own_size(self) if shape is None else shape

    replaced: list[tuple[Any, str, Any]] = [
        (LinearOperator, "inv_quad_logdet", inv_quad_logdet),
        (AddedDiagLinearOperator, "evaluate_kernel", _evaluate_kernel),
        (torch, "broadcast_shapes", broadcast_shapes),
    ]
    if gpytorch is not None:
        own_likelihood = gpytorch.mlls.ExactMarginalLogLikelihood.forward
        own_size = gpytorch.lazy.LazyEvaluatedKernelTensor._size
        replaced += [
            (gpytorch.mlls.ExactMarginalLogLikelihood, "forward", marginal_log_likelihood),
            (gpytorch.kernels.Kernel, "sub_kernels", _sub_kernels),
            (gpytorch.kernels.Kernel, "batch_shape", property(_batch_shape, gpytorch.kernels.Kernel.batch_shape.fset)),
            (gpytorch.lazy.LazyEvaluatedKernelTensor, "_size", size),
        ]
    own = [vars(owner)[name] for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)

    def restore() -> None:
        for (owner, name, function), before in zip(replaced, own, strict=True):
            if vars(owner).get(name) is function:  # nobody else has replaced it since
                setattr(owner, name, before)

    return restore


def _broadcast(shapes: tuple[Any, ...]) -> torch.Size | None:
    """The shape that these have in common; None: torch finds it, or says why there is none."""
    if not shapes or any(type(shape) is not torch.Size for shape in shapes):
        return None
    common: torch.Size = shapes[0]
    for shape in shapes[1:]:
        if shape != common:
            long, short = (common, shape) if len(common) >= len(shape) else (shape, common)
            pairs = list(zip(long[len(long) - len(short) :], short, strict=True))
            if any(type(x) is not int or type(y) is not int or (x != y and 1 not in (x, y)) for x, y in pairs):
                return None
            common = torch.Size((*long[: len(long) - len(short)], *[y if x == 1 else x for x, y in pairs]))
    return common


_own_evaluate_kernel = AddedDiagLinearOperator.evaluate_kernel


def _evaluate_kernel(self: Any) -> Any:
    """The sum with its kernel evaluated. linear_operator takes the whole operator apart and builds it twice."""
    if type(self) is not AddedDiagLinearOperator or type(self._diag_tensor) not in _DIAGONALS:
        return _own_evaluate_kernel(self)
    if gpytorch is not None and gpytorch.beta_features.checkpoint_kernel.value():  # then its kernels stay lazy
        return _own_evaluate_kernel(self)
    evaluated = self._linear_op.evaluate_kernel()
    if type(evaluated) is not DenseLinearOperator:
        evaluated = evaluated.evaluate_kernel()
    return evaluated + self._diag_tensor


def _by_cholesky(n: int) -> bool:
    """Whether linear_operator factors matrices of this order, and says nothing about it."""
    chosen = settings.fast_computations.log_prob.off() or n <= settings.max_cholesky_size.value()
    return bool(chosen and settings.trace_mode.off() and settings.verbose_linalg.off())


def _eager(*tensors: Any) -> bool:
    """Plain tensors of one real dtype, and nothing that records or transforms the program with its own operators."""
    first = tensors[0]
    if first.dtype not in (torch.float32, torch.float64) or framework.traced(first) or forward_ad._current_level >= 0:
        return False
    if torch.is_autocast_enabled("cuda" if first.is_cuda else "cpu"):
        return False
    return all(type(x) in _PLAIN and x.dtype is first.dtype for x in tensors)


def _gaussian_parts(likelihood: Any, prior: Any, target: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The function for the likelihood of a dense model with Gaussian noise, and its inputs; None: gpytorch's own way."""
    noisy = likelihood.likelihood
    noise_model = noisy._modules.get("noise_covar")
    known = (
        type(likelihood) is gpytorch.mlls.ExactMarginalLogLikelihood
        and type(noisy) is gpytorch.likelihoods.GaussianLikelihood
        and type(noise_model) is gpytorch.likelihoods.noise_models.HomoskedasticNoise
        and type(prior) is gpytorch.distributions.MultivariateNormal
        and prior._islazy
        and not prior._validate_args
        and gpytorch.settings.observation_nan_policy.value() == "ignore"
        and gpytorch.settings.fast_computations.log_prob.on()
        and not gpytorch.beta_features.checkpoint_kernel.value()
    )
    if not known:
        return None
    mean, kernel = prior.loc, prior._covar
    lazy = type(kernel) is gpytorch.lazy.LazyEvaluatedKernelTensor
    shape = mean.shape
    batch, n = shape[:-1], shape[-1]
    if shape != target.shape or not (lazy or type(kernel) is DenseLinearOperator) or n < 2 or not _by_cholesky(n):
        return None
    stationary = _stationary_parts(kernel, batch) if lazy else None
    if stationary is not None:
        noise, bound = _parameter(noise_model, "noise")
        x, nu, *parameters, bounds = stationary
        tensors = (x, *parameters, noise)
        if noise.shape == (*batch, 1) and _eager(mean, target, *(z for z in tensors if z is not None)):
            return _KernelLogDensity, (nu, (*bounds, bound), *tensors, mean - target)
    evaluated = kernel.evaluate_kernel() if lazy else kernel
    if type(evaluated) is not DenseLinearOperator:
        return None
    matrix, noise = evaluated.tensor, noisy.noise
    if matrix.shape != (*shape, n) or noise.shape != (*batch, 1) or not _eager(matrix, noise, mean, target):
        return None
    return _LogDensity, (matrix, noise, mean - target)


def _stationary_parts(lazy: Any, batch: Any) -> tuple[Any, ...] | None:
    """Points, nu, length scale, output scale and the bounds of both, of an RBF (nu: infinite) or Matern kernel.

    None: another kernel, or it is evaluated already, or has more than one length scale for a matrix. Without a ``ScaleKernel``
    the output scale is None.
    """
    kernels = gpytorch.kernels
    outer, x = lazy.kernel, lazy.x1
    scaled = type(outer) is kernels.ScaleKernel
    kernel = outer._modules["base_kernel"] if scaled else outer
    nu = inf if type(kernel) is kernels.RBFKernel else _MATERN.get(kernel.nu) if type(kernel) is kernels.MaternKernel else None
    same = lazy.x2 is x and not x.requires_grad and x.dim() >= 2 and not lazy.params and not lazy.last_dim_is_batch
    if nu is None or not same or gpytorch.settings.trace_mode.on() or _is_in_cache_ignore_all_args(lazy, "kernel_eval"):
        return None
    if lazy._is_grad_enabled is not torch.is_grad_enabled() or _formulas() != _own_formulas:
        return None
    if not _METHODS.isdisjoint(vars(kernel)) or "forward" in vars(outer):
        return None
    length, length_bound = _parameter(kernel, "lengthscale")
    shape = length.shape
    shapes = [x.shape[:-2], shape[:-2]]
    scale = scale_bound = None
    if scaled:
        scale, scale_bound = _parameter(outer, "outputscale")
        shapes.append(scale.shape)
    # what has no batch counts for all; some batch must have them all
    if shape[-2:] != (1, 1) or any(z and z != batch for z in shapes) or batch not in shapes:
        return None
    return x, nu, length, scale, (length_bound, scale_bound)


def _formulas() -> Any:
    """What gpytorch computes the kernels by, which a program may have replaced."""
    kernels = gpytorch.kernels
    return kernels.RBFKernel.forward, kernels.MaternKernel.forward, kernels.ScaleKernel.forward, kernels.Kernel.covar_dist


_own_formulas = gpytorch and _formulas()


def _parameter(module: Any, name: str) -> tuple[torch.Tensor, Any]:
    """A raw parameter with the bound for ``_value``, or the parameter and None."""
    raw = module._parameters.get("raw_" + name)
    constraint = module._modules.get(f"raw_{name}_constraint")
    kind, known = type(constraint), gpytorch.constraints
    if raw is not None and (kind is known.Positive or kind is known.GreaterThan):
        transform = constraint._modules.get("_transform")
        if type(transform) is torch.nn.Softplus and transform.beta == 1 and transform.threshold == 20:
            if kind is known.Positive:
                return raw, 0
            bound = constraint._buffers["lower_bound"]
            if bound.dim() == 0 and bound.dtype is raw.dtype:
                return raw, bound
    return getattr(module, name), None


def _value(raw: Any, bound: Any) -> Any:
    """The parameter: as it is, or softplus of the raw one, plus its bound. The bound 0 is not added."""
    if bound is None:
        return raw
    value = torch.nn.functional.softplus(raw)
    return value if type(bound) is int else value + bound


def _to_raw(gradient: torch.Tensor, raw: torch.Tensor, bound: Any) -> torch.Tensor:
    """The derivative by the raw parameter from the one by its value, whose batch may be larger."""
    if gradient.shape != raw.shape:
        gradient = gradient.sum_to_size(raw.shape)
    return gradient if bound is None else torch.ops.aten.softplus_backward.default(gradient, raw, 1, 20)


def _modules(root: Any) -> dict[Any, None]:
    """The module and all of its parts, in torch's order, without their names, which take longer."""
    found: dict[Any, None] = {}

    def visit(module: Any) -> None:
        if module is not None and module not in found:
            found[module] = None
            for part in module._modules.values():
                visit(part)

    visit(root)
    return found


def _is_bare(model: Any) -> bool:
    """Whether no part of the model adds a prior or a loss of its own."""
    modules = [model]
    for module in modules:
        own = module.__dict__
        if own.get("_priors") or own.get("_added_loss_terms"):
            return False
        modules += [part for part in own["_modules"].values() if part is not None]
    return True


def _sub_kernels(self: Any) -> Any:
    return (x for x in _modules(self) if isinstance(x, gpytorch.kernels.Kernel) and x is not self)


def _batch_shape(self: Any) -> Any:
    shape, parts = self._batch_shape, [*self._modules.values()]
    for part in parts:
        if part is not None:
            parts += part._modules.values()
            if isinstance(part, gpytorch.kernels.Kernel):
                below = part.batch_shape
                shape = shape if shape == below and type(shape) is torch.Size else torch.broadcast_shapes(shape, below)
    return shape


def _size(lazy: Any) -> torch.Size | None:
    """The shape of an RBF or Matern kernel between points and themselves, all with the same batch."""
    x, kernels = lazy.x1, gpytorch.kernels
    if lazy.x2 is not x or lazy.last_dim_is_batch:
        return None
    if type(lazy.kernel) not in (kernels.ScaleKernel, kernels.RBFKernel, kernels.MaternKernel):
        return None
    *batch, n, _ = x.shape
    base = lazy.kernel._modules.get("base_kernel")
    known = base is None or type(base) in (kernels.RBFKernel, kernels.MaternKernel)
    return torch.Size((*batch, n, n)) if known and lazy.kernel.batch_shape == tuple(batch) else None


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
    if not _by_cholesky(n):
        return None
    cache = getattr(operator, "_memoize_cache", None)
    if cache and any(_is_in_cache_ignore_all_args(operator, name) for name in ("cholesky", "root_decomposition")):
        return None
    if rhs is None or n < 2 or matrix.shape[:-1] != rhs.shape[:-1] or matrix.shape[-2] != n or not _eager(matrix, rhs):
        return None
    if added is not None and (added.shape[:-1] != matrix.shape[:-2] or added.dtype is not matrix.dtype):
        return None
    return matrix, added


class _QuadraticAndLogdet(torch.autograd.Function):
    """sum_j r_j^T K^-1 r_j, or each of these terms, and log |K| of K = matrix + diag(added)."""

    @staticmethod
    def forward(ctx: Any, matrix: Any, added: Any, rhs: Any, reduce: bool) -> Any:
        l, (y, quadratic, logdet) = _with_factor(_sum(matrix, added), lambda l: _from_factor(l, rhs, reduce))
        ctx.reduce, ctx.constant = reduce, added is not None and added.shape[-1] == 1 != matrix.shape[-1]
        ctx.save_for_backward(l, y, matrix, added, rhs)
        return quadratic, logdet

    @staticmethod
    def backward(ctx: Any, quadratic_gradient: Any, logdet_gradient: Any) -> Any:
        l, y, matrix, added, rhs = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative itself is differentiated

            def values(matrix: Any, added: Any, rhs: Any) -> Any:
                return _differentiable_terms(_differentiable_sum(matrix, added), rhs, ctx.reduce)

            return *_again(ctx, values, (matrix, added, rhs), (quadratic_gradient, logdet_gradient)), None
        x = _triangular(l, y, adjoint=True)  # x <- L^-T y = K^-1 r
        weight = quadratic_gradient[..., None, None] if ctx.reduce else quadratic_gradient[..., None, :]
        of_matrix = of_added = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            # G <- g2 K^-1 - x g1 x^T
            of_matrix = _times(_inverse(l), logdet_gradient[..., None, None])
            if _several(weight):
                of_matrix = of_matrix - x @ (x * weight).mT
            else:
                of_matrix = _add_product(of_matrix, x, x * weight, 1, -1)
            if ctx.needs_input_grad[1]:
                of_added = of_matrix.diagonal(dim1=-2, dim2=-1)
                of_added = of_added.sum(-1, keepdim=True) if ctx.constant else of_added.clone()
        return of_matrix, of_added, 2 * weight * x if ctx.needs_input_grad[2] else None, None


class _LogDensity(torch.autograd.Function):
    """log N(r; 0, K) / count of K = matrix + diag(noise)."""

    @staticmethod
    def forward(ctx: Any, matrix: Any, noise: Any, r: Any, count: int) -> Any:
        l, y, density = _log_density(_sum(matrix, noise), r, count)
        ctx.count = count
        ctx.save_for_backward(l, y, matrix, noise, r)
        return density

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        l, y, *inputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative itself is differentiated

            def density(matrix: Any, noise: Any, r: Any) -> Any:
                return _differentiable_density(_differentiable_sum(matrix, noise), r, ctx.count)

            return *_again(ctx, density, inputs, (gradient,)), None
        return *_gradients(l, y, gradient / ctx.count, any(ctx.needs_input_grad[:2])), None


class _KernelLogDensity(torch.autograd.Function):
    """log N(r; 0, K) / count of K = scale * C + diag(noise) for an RBF or Matern correlation C of the points x.

    Length scale, output scale and noise are given raw, each with the bound for ``_value``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        nu: float,
        bounds: tuple[Any, ...],
        x: Any,
        raw_length: Any,
        raw_scale: Any,
        raw_noise: Any,
        r: Any,
        count: int,
    ) -> Any:
        length, scale, noise = map(_value, (raw_length, raw_scale, raw_noise), bounds)
        x = x - x.mean(-2, keepdim=True)
        c, slope = _correlation(x, length, nu, ctx.needs_input_grad[3])
        k = c.clone() if scale is None else c * (scale := scale.unsqueeze(-1).unsqueeze(-1))
        k.diagonal(dim1=-2, dim2=-1).add_(noise)
        l, y, density = _log_density(k, r, count)
        ctx.options = nu, bounds, count
        # not the points themselves: as with gpytorch's kernels the program may change them before the derivative
        ctx.save_for_backward(l, y, c, slope, length, scale, x, raw_length, raw_scale, raw_noise, r)
        return density

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        l, y, c, slope, length, scale, *inputs = ctx.saved_tensors
        nu, bounds, count = ctx.options
        if torch.is_grad_enabled():  # the derivative itself is differentiated

            def density(nu: float, bounds: Any, x: Any, length: Any, scale: Any, noise: Any, r: Any) -> Any:
                length, scale, noise = map(_value, (length, scale, noise), bounds)
                matrix = _differentiable_correlation(x, length, nu)
                matrix = matrix if scale is None else matrix * scale[..., None, None]
                return _differentiable_density(_differentiable_sum(matrix, noise), r, count)

            return *_again(ctx, density, (nu, bounds, *inputs), (gradient,)), None
        _, raw_length, raw_scale, raw_noise, _ = inputs
        needs = ctx.needs_input_grad
        of_k, of_noise, of_r = _gradients(l, y, gradient / count, needs[3] or needs[4] or needs[5])
        of_length = of_scale = None
        if needs[3]:
            # slope is the derivative of C by log(length)
            of_length = (of_k * slope).sum((-2, -1), keepdim=True) / length
            of_length = _to_raw(of_length if scale is None else of_length * scale, raw_length, bounds[0])
        if needs[4]:
            of_scale = _to_raw((of_k * c).sum((-2, -1)), raw_scale, bounds[1])
        if needs[5]:
            of_noise = _to_raw(of_noise, raw_noise, bounds[2])
        return None, None, None, of_length, of_scale, of_noise, of_r, None


def _correlation(x: torch.Tensor, length: torch.Tensor, nu: float, differentiate: bool) -> tuple[Any, Any]:
    """The correlations of points around zero, and their derivative by log(length)."""
    z = x / length
    # E = -|z_i - z_j|^2 / 2 from the inner products; the diagonal is zero without rounding
    e = torch.bmm(z, z.mT) if z.dim() == 3 else z @ z.mT
    half = e.diagonal(dim1=-2, dim2=-1) * 0.5
    e.sub_(half.unsqueeze(-1)).sub_(half.unsqueeze(-2)).clamp_max_(0)
    if nu == inf:
        c = e.exp()
        return c, e.mul_(c).mul_(-2) if differentiate else None
    r = e.mul_(-4 * nu).sqrt_()
    c = (-r).exp_()
    if nu == 0.5:
        return c, r.mul_(c) if differentiate else None
    if nu == 1.5:
        slope = r * r * c if differentiate else None
        return c.mul_(r.add_(1)), slope
    square, linear = r * r / 3, r.add_(1)
    slope = linear * square * c if differentiate else None
    return c.mul_(square.add_(linear)), slope


def _differentiable_correlation(x: torch.Tensor, length: torch.Tensor, nu: float) -> torch.Tensor:
    z = x / length
    square = (z.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1)
    if nu == inf:
        return (square / -2).exp()
    # the square root has no derivative at zero, and needs none
    distinct = square > 0
    r = torch.where(distinct, square * (2 * nu), 1.0).sqrt() * distinct
    decay = (-r).exp()
    if nu == 0.5:
        return decay
    return (1 + r if nu == 1.5 else 1 + r + r.square() / 3) * decay


def _log_density(k: torch.Tensor, r: torch.Tensor, count: int) -> tuple[Any, Any, Any]:
    """L, y = L^-1 r and log N(r; 0, K) / count."""
    rhs = r.unsqueeze(-1)

    def half(l: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = _triangular(l, rhs)
        z = y.squeeze(-1)
        # log |K| / 2 + |y|^2 / 2
        return y, torch.addcmul(l.diagonal(dim1=-2, dim2=-1).log(), z, z, value=0.5).sum(-1)

    l, (y, sums) = _with_factor(k, half)
    return l, y, torch.rsub(sums, -0.5 * log(2 * pi) * rhs.shape[-2] / count, alpha=1 / count)


def _gradients(l: torch.Tensor, y: torch.Tensor, gradient: torch.Tensor, of_k: bool) -> tuple[Any, Any, torch.Tensor]:
    """The derivatives of the log density by K, by what is added to its diagonal, and by r."""
    of_matrix = of_noise = None
    gradient = gradient.unsqueeze(-1)
    x = _triangular(l, y, adjoint=True)
    if of_k:
        # G <- g (x x^T - K^-1) / 2
        of_matrix = _times(_add_product(_inverse(l), x, x, -0.5, 0.5), gradient.unsqueeze(-1))
        of_noise = of_matrix.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    return of_matrix, of_noise, x.squeeze(-1) * -gradient


def _differentiable_density(k: torch.Tensor, r: torch.Tensor, count: int) -> tuple[torch.Tensor]:
    quadratic, logdet = _differentiable_terms(k, r.unsqueeze(-1), True)
    return ((quadratic + logdet + log(2 * pi) * r.shape[-1]) * (-0.5 / count),)


def _differentiable_terms(k: torch.Tensor, r: torch.Tensor, reduce: bool) -> tuple[torch.Tensor, torch.Tensor]:
    l = psd_safe_cholesky(k)
    y = torch.linalg.solve_triangular(l, r, upper=False)
    return y.square().sum((-2, -1) if reduce else -2), l.diagonal(dim1=-2, dim2=-1).square().log().sum(-1)


def _differentiable_sum(matrix: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    return matrix if added is None else matrix + torch.diag_embed(added.expand(matrix.shape[:-1]))


def _again(ctx: Any, function: Callable[..., Any], inputs: Any, gradients: tuple[Any, ...]) -> list[Any]:
    """The derivative by torch's own formulas, which can be differentiated again."""
    wanted = [i for i in range(len(inputs)) if ctx.needs_input_grad[i]]
    found = iter(torch.autograd.grad(function(*inputs), [inputs[i] for i in wanted], gradients, create_graph=True))
    return [next(found) if i in wanted else None for i in range(len(inputs))]


# ---- lapwing's kernels where they are known to be ahead, torch's elsewhere


def _ahead(operation: str, a: torch.Tensor) -> bool:
    return a.dim() > 2 and ahead(operation, "cuda" if a.is_cuda else "cpu", a.shape)


def _factor(k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor, and the status of each matrix."""
    if _ahead("cholesky", k):
        return framework._run(CHOLESKY, (k,), (0,), AUTO)  # type: ignore[return-value]
    return torch.linalg.cholesky_ex(k)  # type: ignore[no-any-return]


def _sum(matrix: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    """matrix + diag(added)"""
    if added is None:
        return matrix
    k = matrix.clone(memory_format=torch.contiguous_format)
    k.diagonal(dim1=-2, dim2=-1).add_(added)
    return k


def _with_factor(k: torch.Tensor, work: Callable[[torch.Tensor], Any]) -> tuple[torch.Tensor, Any]:
    """The factor of K, and what is done with it."""
    l, info = _factor(k)
    results = work(l)
    # asked last: on a GPU the answer has to be waited for, while the rest is under way
    if framework.failed(info):
        l = psd_safe_cholesky(k)
        results = work(l)
    return l, results


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
    return torch.cholesky_inverse(l).mT  # symmetric, and row-major this way


def _several(gradient: torch.Tensor) -> bool:
    """Whether torch asks for several derivatives at once, as with ``is_grads_batched``: one matrix cannot hold them."""
    return framework._legacy_batched(gradient) or framework.traced(gradient)


def _times(a: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """A * factor, in the place of A if it can hold the result."""
    return a * factor if _several(factor) else a.mul_(factor)


def _add_product(a: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float, alpha: float) -> torch.Tensor:
    """A <- beta A + alpha X Y^T."""
    if a.dim() == 2:
        return a.addmm_(x, y.mT, beta=beta, alpha=alpha)
    if a.dim() == 3:
        return a.baddbmm_(x, y.mT, beta=beta, alpha=alpha)
    flat, x, y = (z.reshape(-1, *z.shape[-2:]) for z in (a, x, y))
    return flat.baddbmm_(x, y.mT, beta=beta, alpha=alpha).view(a.shape)
