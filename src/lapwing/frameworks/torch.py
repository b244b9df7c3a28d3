"""PyTorch tensors: eager, autograd, forward mode, torch.func, torch.compile, torch.export; CPU and CUDA.

Each operation is a dispatcher op without autograd. Derivatives come from autograd Functions around it, one for each of plain
eager calls, torch.func and Dynamo, which accept different things. Calls that need none of this go straight to the native core.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..core.native import CPU, CUDA, missing_reason, native, scratch_bytes
from ..core.operation import OPERATIONS, UPPER, Operation
from ..core.problem import DTYPES, Spec

__all__ = ["apply", "describe", "dtype_of", "failed", "shape_of", "to_numpy", "traced"]

_CODE = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
_NAME = {getattr(torch, name): name for name in DTYPES}
_DTYPE = {None: None, "int32": torch.int32}

_PLAIN = (torch.Tensor, torch.nn.Parameter)

# private but old names; where one is missing the slower way through the dispatcher is always right
_functorch_level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", None)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


def describe(a: torch.Tensor) -> Spec:
    if a.device.type not in ("cpu", "cuda"):
        raise ValueError(f"lapwing works on cpu and cuda tensors, not on {a.device}\nhint: a.cpu()")
    return Spec(tuple(a.shape), dtype_of(a), a.device.type)


def shape_of(a: torch.Tensor) -> tuple[int, ...]:
    return a.shape


def dtype_of(a: torch.Tensor) -> str:
    return _NAME.get(a.dtype) or str(a.dtype).rpartition(".")[2]


def traced(a: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or _in_functorch() or _in_dispatch_mode() or _in_jit_trace():
        return True
    if type(a).__name__ == "FakeTensor":
        return True
    return (a.is_cuda and _capturing()) or a.is_meta


def apply(operation: Operation, arrays: tuple[Any, ...], flags: int, engine: int, overwrite: bool) -> tuple[Any, ...]:
    (a,) = arrays
    if torch.compiler.is_compiling():
        # inside torch.func under Dynamo no autograd.Function can carry every rule: the framework's own routine does
        call = _hook(operation).compiled_functorch if _in_functorch_constant() else _hook(operation).compiled
    elif _in_functorch():
        call = _hook(operation).functorch
    elif _in_dispatch_mode() or _in_jit_trace() or type(a) not in _PLAIN or not (a.is_cpu or a.is_cuda):
        call = _hook(operation).functorch if _needs_derivative(a) else _hook(operation).op
    elif _needs_derivative(a):
        call = _hook(operation).eager
    else:
        return _run(operation, a, flags, engine, overwrite)
    return call(a, flags, engine)  # type: ignore[no-any-return]


def failed(info: torch.Tensor) -> bool:
    # on the CPU torch's reduction waits for its own threads, which takes longer than small factorisations
    return bool(info.any() if info.is_cuda else info.numpy().any()) if info.ndim else bool(info.item())


def to_numpy(x: torch.Tensor) -> np.ndarray:
    return x.detach().cpu().numpy()


def _needs_derivative(a: torch.Tensor) -> bool:
    return (a.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0


def _in_functorch() -> bool:
    return _functorch_level is None or _functorch_level() is not None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _in_functorch_constant() -> bool:
    return _in_functorch()


# torch.jit.trace records what goes through the dispatcher, and nothing else
def _in_jit_trace() -> bool:
    return torch._C._get_tracing_state() is not None


def _in_dispatch_mode() -> bool:
    return _dispatch_modes is None or _dispatch_modes() > 0


def _run(operation: Operation, a: torch.Tensor, flags: int, engine: int, overwrite: bool = False) -> tuple[Any, ...]:
    """The plain call: no autograd, real memory."""
    if a.layout is not torch.strided:
        raise TypeError(f"{operation.name}: expected a dense tensor, got layout {a.layout}\nhint: a.to_dense()")
    turned, given = False, a
    if not a.is_contiguous() or a.is_conj() or a.is_neg():
        # memory of the transpose: its upper triangle is our lower one
        turned = a.mT.is_contiguous() and not a.is_conj() and not a.is_neg()
        if turned:
            a, flags = a.mT, flags ^ UPPER
        else:
            a, overwrite = a.resolve_conj().resolve_neg().contiguous(), True
    if native is None:
        if a.is_cuda:
            raise RuntimeError(f"{operation.name}: CUDA tensors need the native core, and {missing_reason}")
        outputs = tuple(torch.from_numpy(np.asarray(x)) for x in operation.reference(a.detach().numpy(), flags))
    else:
        sizes, results = _layout(operation, a.shape)
        outputs = tuple([torch.empty_like(a) if s is None else a.new_empty(s, dtype=d) for s, d in results])
        if overwrite and operation.matrix_out:
            outputs = (a, *outputs[1:])
        addresses = [x.data_ptr() for x in outputs]
        code = _CODE[a.dtype]
        if a.is_cuda:
            ordinal = a.get_device()
            call = (operation.code, code, CUDA, ordinal, engine, 0, flags, sizes)
            stream = torch._C._cuda_getCurrentRawStream(ordinal)
            # the caching allocator keeps this block for the stream until the call's work is done
            bytes_needed = scratch_bytes(*call)
            scratch = torch.empty(bytes_needed, dtype=torch.uint8, device=a.device) if bytes_needed else None
            where = scratch.data_ptr() if scratch is not None else 0
            native.run(*call, stream, where, bytes_needed, a.data_ptr(), *addresses)
        else:
            limits = (CPU, -1, engine, torch.get_num_threads(), flags)
            native.run(operation.code, code, *limits, sizes, 0, 0, 0, a.data_ptr(), *addresses)
        if overwrite and operation.matrix_out and addresses[0] == given.data_ptr():
            # autograd must know that what it may have saved is gone
            torch.autograd.graph.increment_version(given)
            outputs = (outputs[0].detach(), *outputs[1:])
    return (outputs[0].mT, *outputs[1:]) if turned and operation.matrix_out else outputs


@lru_cache(maxsize=1024)
def _layout(operation: Operation, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Sizes for the native frame, and each output's shape and dtype; shape None: as the input, which is quicker to make."""
    results = [(s, _DTYPE[d]) if d or s != shape else (None, None) for s, d in operation.results(shape)]
    return operation.sizes(shape), results


class _Namespace:
    """What core/derivatives.py works with."""

    @staticmethod
    def adjoint(x: torch.Tensor) -> torch.Tensor:
        return x.mH

    @staticmethod
    def half_tril(x: torch.Tensor) -> torch.Tensor:
        return x.tril() - torch.diag_embed(x.diagonal(dim1=-2, dim2=-1)) / 2

    @staticmethod
    def solve(l: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(l, b, upper=False)  # type: ignore[no-any-return]

    @staticmethod
    def solve_adjoint(l: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(l.mH, b, upper=True)  # type: ignore[no-any-return]


class _Hooked:
    """An operation in torch's dispatcher, and the Functions that give it derivatives."""

    def __init__(self, operation: Operation) -> None:
        name = f"lapwing::{operation.name}"
        count = len(operation.results((1, 1)))
        outputs = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        # the library object must live as long as the op
        self.library = torch.library.Library("lapwing", "FRAGMENT")
        self.library.define(
            f"{operation.name}(Tensor a, int flags, int engine) -> {outputs}", tags=(torch.Tag.pt2_compliant_tag,)
        )

        def kernel(a: torch.Tensor, flags: int, engine: int) -> Any:
            # the schema promises fresh contiguous outputs
            made = tuple(x.contiguous() for x in _run(operation, a, flags, engine))
            return made if count > 1 else made[0]

        def fake(a: torch.Tensor, flags: int, engine: int) -> Any:
            made = tuple(a.new_empty(s, dtype=_DTYPE[d]) for s, d in operation.results(tuple(a.shape)))
            return made if count > 1 else made[0]

        self.library.impl(operation.name, kernel, "CPU")
        self.library.impl(operation.name, kernel, "CUDA")
        torch.library.register_fake(name, fake, lib=self.library)
        op = getattr(torch.ops.lapwing, operation.name).default

        def batched(info: Any, in_dims: Any, a: torch.Tensor, flags: int, engine: int) -> Any:
            return op(a.movedim(in_dims[0], 0), flags, engine), 0 if count == 1 else (0,) * count

        torch.library.register_vmap(name, batched, lib=self.library)
        self.op = op if count > 1 else lambda *args: (op(*args),)
        self.eager = self.functorch = self.compiled = self.op
        if operation.vjp is not None:
            self.eager, self.functorch, self.compiled = (f.apply for f in _functions(operation, op, count))
        self.compiled_functorch = _FRAMEWORK_OWN.get(operation.name, self.op)


def _functions(operation: Operation, op: Any, count: int) -> tuple[Any, Any, Any]:
    """The operation with derivatives: for plain eager calls, for torch.func, for Dynamo."""
    assert operation.jvp is not None and operation.vjp is not None
    jvp_rule, vjp_rule = operation.jvp, operation.vjp

    def save(ctx: Any, outputs: Any, flags: int) -> None:
        ctx.save_for_backward(outputs[0])
        ctx.save_for_forward(outputs[0])
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.flags = flags

    class Traceable(torch.autograd.Function):
        @staticmethod
        def forward(a: torch.Tensor, flags: int, engine: int) -> Any:
            return op(a, flags, engine)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            save(ctx, output, inputs[1])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (factor,) = ctx.saved_tensors
            return vjp_rule(_Namespace, ctx.flags, factor, grads[0]), None, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, a: torch.Tensor, flags: int, engine: int) -> Any:
            return Traceable.apply(a.movedim(in_dims[0], 0), flags, engine), (0,) * count

    # Dynamo refuses a Function with a jvp
    class Functorch(Traceable):
        @staticmethod
        def jvp(ctx: Any, da: torch.Tensor, *_: Any) -> Any:
            (factor,) = ctx.saved_tensors
            return jvp_rule(_Namespace, ctx.flags, factor, da), *[None] * (count - 1)

        @staticmethod
        def vmap(info: Any, in_dims: Any, a: torch.Tensor, flags: int, engine: int) -> Any:
            return Functorch.apply(a.movedim(in_dims[0], 0), flags, engine), (0,) * count

    # a forward that takes the context and skips the dispatcher costs a third of the others
    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, flags: int, engine: int) -> Any:
            outputs = _run(operation, a, flags, engine)
            save(ctx, outputs, flags)
            return outputs

        backward = Traceable.backward
        jvp = Functorch.jvp

    return Eager, Functorch, Traceable


def _own_cholesky(a: torch.Tensor, flags: int, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's own routine with lapwing's conventions, for torch.func inside torch.compile."""
    upper = bool(flags & UPPER)
    triangle = a.triu() if upper else a.tril()
    # the derivative is that of f((A + A^H)/2): only the named triangle carries values, both carry the gradient
    diagonal = torch.diag_embed(triangle.diagonal(dim1=-2, dim2=-1).real.to(a.dtype))
    values = triangle.tril(-1) + triangle.triu(1)
    finite = torch.where(torch.isfinite(a), a, 0)
    symmetric = (values + values.mH + diagonal).detach() + ((finite + finite.mH) - (finite + finite.mH).detach()) / 2
    factor, info = torch.linalg.cholesky_ex(symmetric, upper=upper)
    # the first pivot that is not finite and positive, where the routine let it pass
    pivots = factor.diagonal(dim1=-2, dim2=-1).real
    good = torch.isfinite(pivots) & (pivots > 0)
    order = torch.arange(1, a.shape[-1] + 1, dtype=torch.int32, device=a.device)
    last = a.shape[-1] + 1
    first = torch.where(good, last, order).amin(-1) if a.shape[-1] else torch.full_like(info, last)
    first = torch.where(info > 0, torch.minimum(first, info), first).to(torch.int32)
    bad = first < last
    return torch.where(bad[..., None, None], torch.nan, factor), torch.where(bad, first, 0).to(torch.int32)


_FRAMEWORK_OWN = {"cholesky": _own_cholesky}
# All of them at once, when this module loads: Dynamo cannot define an op while it traces.
_HOOKED = {operation.name: _Hooked(operation) for operation in OPERATIONS}


def _hook(operation: Operation) -> _Hooked:
    return _HOOKED[operation.name]
