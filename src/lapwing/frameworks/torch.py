"""PyTorch tensors: eager, autograd, forward mode, torch.func, torch.compile, torch.export; CPU and CUDA.

Each operation is a dispatcher op without autograd. Derivatives come from three autograd Functions around it, for plain eager
calls, for torch.func and for Dynamo, as each of these refuses something that another needs. A call without derivatives goes
straight to the native core.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..core.lapack import borrow_from_torch
from ..core.native import AUTO, CPU, CUDA, how_to_build, missing_reason, native, warn_of_numpy
from ..core.operation import OPERATIONS, Operation, Params, operation_named
from ..core.problem import ADJOINT, COMPLEX, DTYPES, LENT, OVERWRITE, POS, REAL, UNIT, UPPER, Spec
from .like_numpy import NumpyNamespace

sharded = False
borrow_from_torch(torch)

_CODE = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
_NAME = {getattr(torch, name): name for name in DTYPES}
_REAL = {getattr(torch, name): getattr(torch, real) for name, real in REAL.items()}
_COMPLEX = {getattr(torch, name): getattr(torch, other) for name, other in COMPLEX.items()}

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_PLAIN_SET = frozenset(_PLAIN)
_empty_like, _threads = torch.empty_like, torch.get_num_threads
# whether the native core reads tensors itself: torch 2.10 and later have a table of functions for that
_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_READ_BY_CORE = native is not None and _EXCHANGE is not None and native.read_tensors(_EXCHANGE, _PLAIN)

# private names; where one is missing the slower call through the dispatcher is used
_functorch_level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", lambda: 0)
_legacy_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda x: False)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_tracing_state = torch._C._get_tracing_state  # torch.jit.trace records only what goes through the dispatcher
_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


def describe(a: torch.Tensor) -> Spec:
    if a.device.type not in ("cpu", "cuda"):
        raise ValueError(f"lapwing works on cpu and cuda tensors, not on {a.device}\nhint: a.cpu()")
    return Spec(tuple(a.shape), dtype_of(a), a.device.type)


def shape_of(a: torch.Tensor) -> tuple[int, ...]:
    return a.shape


def dtype_of(a: torch.Tensor) -> str:
    return _NAME.get(a.dtype) or str(a.dtype).rpartition(".")[2]


def direct(a: torch.Tensor) -> bool:
    return not torch.compiler.is_compiling()  # Dynamo must not see the short way


def traced(a: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or _functorch_level() is not None or _dispatch_modes() or _tracing_state() is not None:
        return True
    if type(a).__name__ == "FakeTensor":
        return True
    return (a.is_cuda and _capturing()) or a.is_meta


def sized(a: torch.Tensor) -> bool:
    return not torch.compiler.is_compiling() and all(type(n) is int for n in a.shape)


def apply(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool) -> tuple[Any, ...]:
    a = arrays[0]
    wanted = any(map(_needs_derivative, arrays))
    if operation.derivative_from and (wanted or torch.compiler.is_compiling() or _functorch_level() is not None):
        name, places = operation.derivative_from
        outputs = apply(operation_named(name), arrays, params, engine, False)
        return tuple(outputs[i] for i in places)
    if operation.composed and (wanted or torch.compiler.is_compiling() or _functorch_level() is not None):
        return operation.composed(Namespace, params, arrays, engine)
    if torch.compiler.is_compiling():
        # inside torch.func under Dynamo no autograd.Function can have all rules: torch's own routine is used
        call = _hook(operation).compiled_functorch if _in_functorch_constant() else _hook(operation).compiled
    elif _functorch_level() is not None:
        call = _hook(operation).functorch
    elif _dispatch_modes() or _tracing_state() is not None or _are_special(arrays) or not (a.is_cpu or a.is_cuda):
        call = _hook(operation).functorch if wanted else _hook(operation).op
    elif wanted:
        call = _hook(operation).eager
    else:
        return _run(operation, arrays, params, engine, overwrite)
    return call(*arrays, params, engine)  # type: ignore[no-any-return]


def failed(info: torch.Tensor) -> bool:
    # on the CPU torch's reduction starts its threads, which takes longer than a small factorisation
    return bool(info.any() if info.is_cuda else np.count_nonzero(info.numpy())) if info.ndim else bool(info.item())


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "not enough memory" in str(error)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    return x.detach().resolve_conj().cpu().numpy()


def differentiates(a: torch.Tensor) -> bool:
    return _needs_derivative(a) or torch.compiler.is_compiling() or _functorch_level() is not None


def register(kind: Any, take_apart: Any, put_together: Any) -> None:
    """Nothing to do: only JAX takes objects apart."""


def _are_special(arrays: tuple[Any, ...]) -> bool:
    """Whether torch must dispatch on one of them: an instance of a subclass may be more than its memory, or have none."""
    if _PLAIN_SET.issuperset(map(type, arrays)):
        return False
    names = {type(x).__name__ for x in arrays if type(x) not in _PLAIN_SET}
    return names != {"FakeTensor"} or type(arrays[0]) not in _PLAIN_SET  # one beside real ones is refused where memory is read


def _needs_derivative(a: torch.Tensor) -> bool:
    return (a.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0


def _in_functorch_constant() -> bool:
    return _functorch_level() is not None


# as torch.compiler.assume_constant_result does, which imports torch._dynamo: 1.4 s in the first call of programs that do not
# compile
_in_functorch_constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _native_on_gpu(operation: Operation, arrays: tuple[Any, ...], engine: int) -> bool:
    return not _capturing() and operation.native_elsewhere(tuple(x.shape for x in arrays), engine, _NAME[arrays[0].dtype])


def _run(
    operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool = False
) -> tuple[Any, ...]:
    """Call the native core: no autograd, real memory."""
    a, *others = arrays
    if a.is_cuda and operation.elsewhere is not None and not _native_on_gpu(operation, arrays, engine):
        return operation.elsewhere(Namespace, params, arrays, engine)
    if a.layout is not torch.strided:
        raise TypeError(f"{operation.name}: expected a dense tensor, got layout {a.layout}\nhint: a.to_dense()")
    turned, original = False, a
    address = a.data_ptr()
    lazy = a.is_conj() or a.is_neg() or (address & 15 and _unaligned(a, address))
    if lazy or not a.is_contiguous():
        turned = not lazy and operation.turned(_NAME[a.dtype], params[0], on_cpu=not a.is_cuda) and a.mT.is_contiguous()
        # the adjoint of a lazy adjoint is plain memory
        unconjugated = operation.turns == "adjoint" and a.is_conj() and not a.is_neg() and a.mH.is_contiguous()
        unconjugated = unconjugated and not _unaligned(a, address)
        if turned or unconjugated:
            conjugated = unconjugated or not a.is_complex()
            a, params = a.mT if turned else a.mH, (operation.turned_flags(params[0], conjugated), *params[1:])
        else:
            a, overwrite = _plain(a), True
            address = a.data_ptr()
    if others:
        others = [_plain(x) for x in others]
    if native is None:
        if a.is_cuda:
            raise RuntimeError(
                f"{operation.name}: CUDA tensors need the native core, and {missing_reason}\nhint: {how_to_build()}"
            )
        warn_of_numpy(missing_reason)
        results = operation.reference(tuple(x.detach().numpy() for x in (a, *others)), params)
        outputs = tuple(torch.from_numpy(np.asarray(x)) for x in results)
    else:
        shapes = (a.shape, *[x.shape for x in others]) if others else (a.shape,)
        sizes, results, patterns = _layout(operation, shapes, params, a.dtype)
        if patterns is not None and not a.is_cuda:
            outputs = tuple([torch.empty_like(a if x is None else x) for x in patterns])
        else:
            outputs = tuple([torch.empty_like(a) if s is None else a.new_empty(s, dtype=d) for s, d in results])
        flags = params[0]
        if overwrite:
            flags |= OVERWRITE
            outputs = operation.share(outputs, a)
        addresses = [address, *[x.data_ptr() for x in (*others, *outputs)]]
        if 0 in addresses:
            _check_memory(operation.name, (a, *others))
        code = _CODE[a.dtype]
        if a.is_cuda:
            ordinal = a.get_device()
            call = (operation.code, code, CUDA, ordinal, engine, 0, flags, sizes)
            stream = torch._C._cuda_getCurrentRawStream(ordinal)
            native.run(*call, stream, _Scratch(a.device), *addresses)
        else:
            limits = (CPU, -1, engine, torch.get_num_threads(), flags | LENT)
            native.run(operation.code, code, *limits, sizes, 0, None, *addresses)
        # autograd must know that what it may have saved is gone; an empty tensor has no memory to lose
        if overwrite and address and address == original.data_ptr():
            torch.autograd.graph.increment_version(original)
            outputs = tuple(x.detach() if x is a else x for x in outputs)
    return operation.turn_back(outputs) if turned else outputs


def _check_memory(name: str, arrays: tuple[torch.Tensor, ...]) -> None:
    """Refuse tensors without memory: meta or fake ones beside others, and those whose storage was freed, as FSDP does."""
    for x in arrays:
        if x.numel() and not x.data_ptr():
            kind = f"a {type(x).__name__} on {x.device}"
            raise TypeError(
                f"{name}: {kind} of shape {tuple(x.shape)} has no memory\nhint: give all tensors memory, or none of them"
            )


def results_direct(operation: Operation, params: Params, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """The results without the status, for plain CPU tensors of one dtype where every matrix has them; else None.

    The short way: looking at everything that a tensor could be takes longer than a small matrix.
    """
    if native is None or _watched():
        return None
    dtype = arrays[0].dtype
    for x in arrays:
        if not _is_simple(x) or x.dtype is not dtype:
            return None
    if len(arrays) == 2 and arrays[1].ndim != arrays[0].ndim:  # a vector: the results lose an axis
        return None
    layout = _direct_layout(operation, tuple([x.shape for x in arrays]), params, dtype)
    if layout is None:
        return None
    code, sizes, results, patterns = layout
    if patterns is not None:
        outputs = tuple([torch.empty_like(x) for x in patterns])
    else:
        outputs = tuple([arrays[0].new_empty(s, dtype=d) for s, d in results])
    addresses = [x.data_ptr() for x in (*arrays, *outputs)]
    limits = torch.get_num_threads(), params[0] | LENT
    return outputs if native.direct_sized(operation.code, code, *limits, sizes, *addresses) else None


def solve_direct(operation: Operation, flags: int, a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor | None:
    """The one result, shaped as the last tensor, under the same conditions."""
    if native is None or not _READ_BY_CORE:
        found = results_direct(operation, (flags,), a) if b is None else results_direct(operation, (flags,), a, b)
        return None if found is None else found[0]
    if type(a) not in _PLAIN or not a.is_cpu or _watched() or not _is_plain(a) or a.layout is not torch.strided:
        return None
    if b is None:
        x = _empty_like(a)
        return x if native.direct(operation.code, -1, _threads(), flags | LENT, a, x) else None
    if type(b) not in _PLAIN or not _is_plain(b):
        return None
    x = _empty_like(b)
    return x if native.direct(operation.code, -1, _threads(), flags | LENT, a, b, x) else None


def _watched() -> bool:
    """Whether derivatives, a trace or a mode of torch must see what is done to a tensor."""
    return bool(
        forward_ad._current_level >= 0 or _functorch_level() is not None or _dispatch_modes() or _tracing_state() is not None
    )


def _is_plain(a: torch.Tensor) -> bool:
    """Whether its numbers are those in memory, but for conjugation, and nothing is recorded for it."""
    return not a.is_neg() and not (a.requires_grad and torch.is_grad_enabled())


def _is_simple(a: torch.Tensor) -> bool:
    """An ordinary tensor in CPU memory that native code can read as it is; nothing is recorded for it."""
    if type(a) not in _PLAIN or not a.is_cpu or a.layout is not torch.strided or not _is_plain(a):
        return False
    return a.is_contiguous() and not a.is_conj()


@lru_cache(maxsize=1024)
def _direct_layout(operation: Operation, shapes: tuple[Any, ...], params: Params, dtype: Any) -> Any:
    """The dtype's number, and what :func:`_layout` returns without the status; None where the shapes need the long way."""
    code = _CODE.get(dtype)
    if len(shapes) == 2 and len(shapes[0]) == 2 and len(shapes[1]) == 1:
        shapes = shapes[0], (*shapes[1], 1)
    if code is None or not operation.takes(shapes):
        return None
    sizes, results, patterns = _layout(operation, shapes, params, dtype)
    results = results[: len(results) - operation.has_status]
    results = [(tuple(shapes[0]) if s is None else s, dtype if d is None else d) for s, d in results]
    small = patterns is not None and all(prod(s) <= _SMALL for s, _ in results)  # patterns are kept: they must not be large
    patterns = [torch.empty(s, dtype=d, device="cpu") for s, d in results] if small else None
    return code, sizes, results, patterns


def run_operator(call: Any, matvec: Any, n: int, dtype: str, results: Any, like: torch.Tensor) -> tuple[tuple[Any, ...], bool]:
    """As for NumPy; on a GPU it runs on torch's current stream."""
    assert native is not None
    operation, code, engine, sizes = call
    kind = getattr(torch, dtype)
    device, ordinal = (CUDA, like.get_device()) if like.is_cuda else (CPU, -1)
    stream = torch._C._cuda_getCurrentRawStream(ordinal) if like.is_cuda else 0

    def product(x: int, y: int, columns: int) -> None:
        block = torch.empty((columns, n), dtype=kind, device=like.device)
        native.copy(device, stream, block.data_ptr(), x, block.nbytes)
        answer = _plain(matvec(block.mT).detach().mT)
        native.copy(device, stream, y, answer.data_ptr(), answer.nbytes)

    outputs = tuple(torch.empty(shape, dtype=getattr(torch, d), device=like.device) for shape, d in results)
    frame = (operation, code, device, ordinal, engine, 0, 0, sizes)
    addresses = [x.data_ptr() for x in outputs]
    converged = native.run_operator(*frame, stream, _Scratch(like.device), product, *addresses)
    return outputs, converged


class _Scratch:
    """Scratch memory for one call. When it is freed here, the caching allocator hands it out again in stream order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.blocks: list[torch.Tensor] = []

    def __call__(self, size: int) -> int:
        self.blocks.append(torch.empty(size, dtype=torch.uint8, device=self.device))
        return self.blocks[-1].data_ptr()


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Contiguous and aligned, as native code reads it; a copy only where it must be."""
    if x.is_cpu and _unaligned(x, x.data_ptr()):  # NumPy copies it: torch's own copy crashes
        memory = torch._neg_view(x) if x.is_neg() else x
        memory = memory.conj() if memory.is_conj() else memory
        copy = torch.from_numpy(np.array(memory.detach().numpy(), order="C"))
        copy = torch.conj_physical(copy) if x.is_conj() else copy
        return -copy if x.is_neg() else copy
    return x.resolve_conj().resolve_neg().contiguous()


def _unaligned(x: torch.Tensor, address: int) -> bool:
    """Whether the memory is less aligned than its numbers: torch.from_numpy and torch.frombuffer take any address."""
    return address % x.element_size() != 0


_SMALL = 256  # elements of an output up to which a tensor is kept as a pattern


@lru_cache(maxsize=1024)
def _layout(operation: Operation, shapes: tuple[Any, ...], params: Params, dtype: Any) -> tuple[Any, Any, Any]:
    """Sizes for the native frame, shape and dtype of each output, and for small ones CPU tensors of that shape and dtype.

    None is an output like the input. torch allocates a tensor like another one in half the time it needs for a shape and dtype.
    """
    results = [
        (None, None) if d is None and s == shapes[0] else (s, _kind(d, dtype)) for s, d in operation.results(shapes, params)
    ]
    small = all(s is None or prod(s) <= _SMALL for s, _ in results)
    patterns = [None if s is None else torch.empty(s, dtype=d, device="cpu") for s, d in results] if small else None
    return operation.sizes(shapes, params), results, patterns


def _kind(name: str | None, dtype: Any) -> Any:
    if name is None:
        return dtype
    return _REAL[dtype] if name == "real" else _COMPLEX[dtype] if name == "complex" else getattr(torch, name)


class Namespace(NumpyNamespace):
    module = torch
    diag = staticmethod(torch.diag_embed)  # type: ignore[assignment]
    to_numpy = staticmethod(to_numpy)
    quiet = staticmethod(nullcontext)

    @staticmethod
    def put(x: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x).to(like.device)

    @staticmethod
    def eye(like: torch.Tensor) -> torch.Tensor:
        return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)

    @staticmethod
    def conj(x: torch.Tensor) -> torch.Tensor:
        if x.is_complex() and not torch.compiler.is_compiling() and _functorch_level() is not None:
            return torch.complex(x.real, -x.imag)  # torch.vmap would take conj_physical matrix by matrix, and warn of it
        return torch.conj_physical(x) if x.is_complex() else x

    @staticmethod
    def adjoint(x: torch.Tensor) -> torch.Tensor:
        # torch has an internal error for the lazy conjugate of a tensor with a batch of tangents
        return Namespace.conj(x).mT if forward_ad._current_level >= 0 else x.mH

    @staticmethod
    def diagonal(x: torch.Tensor) -> torch.Tensor:
        return x.diagonal(dim1=-2, dim2=-1)

    @staticmethod
    def cast(x: torch.Tensor, name: str) -> torch.Tensor:
        return x.to(getattr(torch, name))

    @staticmethod
    def power_of_two(x: torch.Tensor) -> torch.Tensor:
        x, limits = x.detach(), torch.finfo(x.dtype)
        found = torch.exp2(torch.log2(x.clamp(4 * limits.tiny, limits.max / 8)).floor())
        return torch.where((x > 0) & torch.isfinite(x), found, torch.ones_like(x))

    @staticmethod
    def whole(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.int32)

    @staticmethod
    def places(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)

    @staticmethod
    def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.gather(-1, index.long())

    @staticmethod
    def constant(x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    @staticmethod
    def beside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y], -1)

    @staticmethod
    def broadcast_batch(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])

    @staticmethod
    def one_hot(index: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        places = torch.arange(like.shape[-2], device=like.device)[:, None]
        return (places == index[..., None, None]).to(like.dtype)

    @staticmethod
    def real(x: torch.Tensor) -> torch.Tensor:
        return x.real

    @staticmethod
    def largest(x: torch.Tensor) -> torch.Tensor:
        return x.amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1))

    @staticmethod
    def like(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.to(y.dtype)

    @staticmethod
    def dtype_name(x: torch.Tensor) -> str:
        return _NAME[x.dtype]

    @staticmethod
    def call(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int = AUTO) -> tuple[Any, ...]:
        # torch.autograd.grad(is_grads_batched=True): torch loops over the batch
        if not torch.compiler.is_compiling() and any(map(_legacy_batched, arrays)):
            return _hook(operation).op(*arrays, params, engine)  # type: ignore[no-any-return]
        return apply(operation, arrays, params, engine, False)

    @classmethod
    def if_all(cls, flags: torch.Tensor, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return no() if traced(flags) or not bool(flags.all()) else yes()

    @staticmethod
    def visible(x: torch.Tensor) -> bool:
        return not traced(x)

    @classmethod
    def kept(cls, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def later(function: Callable[[], Any]) -> Callable[[], Any]:
        if forward_ad._current_level >= 0:  # tangents end with their level
            return Namespace.now(function)
        recorded = torch.is_grad_enabled()

        def call() -> Any:
            with torch.set_grad_enabled(recorded):
                return function()

        return call


class _Light:
    """torch's own functions under the names and keywords of the array API standard. Its products promote no dtypes."""

    def _both(self, x1: Any, x2: Any) -> tuple[Any, Any]:
        dtype = torch.promote_types(x1.dtype, x2.dtype)
        return x1.to(dtype), x2.to(dtype)

    def matmul(self, x1: Any, x2: Any) -> Any:
        return torch.matmul(*self._both(x1, x2))

    def outer(self, x1: Any, x2: Any) -> Any:
        return torch.outer(*self._both(x1, x2))

    def tensordot(self, x1: Any, x2: Any, *, axes: Any) -> Any:
        return torch.tensordot(*self._both(x1, x2), dims=axes)

    def cross(self, x1: Any, x2: Any, *, axis: int) -> Any:
        return torch.linalg.cross(*torch.broadcast_tensors(*self._both(x1, x2)), dim=axis)

    def diagonal(self, x: Any, *, offset: int) -> Any:
        return x.diagonal(offset, -2, -1)

    def trace(self, x: Any, *, offset: int, dtype: Any) -> Any:
        return x.diagonal(offset, -2, -1).sum(-1, dtype=dtype)

    def matrix_transpose(self, x: Any) -> Any:
        return x.mT

    def vecdot(self, x1: Any, x2: Any, *, axis: int) -> Any:
        x1, x2 = self._both(x1, x2)
        if x1.dtype.is_floating_point or x1.is_complex():
            return torch.linalg.vecdot(x1, x2, dim=axis)
        return (x1 * x2).sum(axis, dtype=x1.dtype)  # torch's own has no integers

    def matrix_norm(self, x: Any, *, ord: Any, keepdims: bool) -> Any:
        return torch.linalg.matrix_norm(x, ord, keepdim=keepdims)

    def vector_norm(self, x: Any, *, axis: Any, ord: Any, keepdims: bool) -> Any:
        if axis == ():  # torch takes that for all axes
            return torch.abs(x) if ord else (x != 0).to(torch.abs(x).dtype)
        return torch.linalg.vector_norm(x, ord, dim=axis, keepdim=keepdims)


light = _Light()


class _Hooked:
    """An operation in torch's dispatcher, and the Functions that give it derivatives."""

    def __init__(self, operation: Operation) -> None:
        name = f"lapwing::{operation.name}"
        count = len(operation.results(operation.example_shapes, operation.example))
        outputs = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        tensors = ", ".join(f"Tensor {letter}" for letter in "abcd"[: operation.inputs])
        # the library object must live as long as the op
        self.library = torch.library.Library("lapwing", "FRAGMENT")
        self.library.define(
            f"{operation.name}({tensors}, int[] params, int engine) -> {outputs}", tags=(torch.Tag.pt2_compliant_tag,)
        )

        def kernel(*args: Any) -> Any:
            *arrays, params, engine = args
            # the schema promises fresh contiguous outputs
            outputs = tuple(x.contiguous() for x in _run(operation, tuple(arrays), tuple(params), engine))
            return outputs if count > 1 else outputs[0]

        def fake(*args: Any) -> Any:
            *arrays, params, _ = args
            results = operation.results(tuple(tuple(x.shape) for x in arrays), tuple(params))
            outputs = tuple(arrays[0].new_empty(s, dtype=_kind(d, arrays[0].dtype)) for s, d in results)
            return outputs if count > 1 else outputs[0]

        self.library.impl(operation.name, kernel, "CPU")
        self.library.impl(operation.name, kernel, "CUDA")
        torch.library.register_fake(name, fake, lib=self.library)
        op = getattr(torch.ops.lapwing, operation.name).default

        def batched(info: Any, in_dims: Any, *args: Any) -> Any:
            return _batched(operation, op, count, info, in_dims, args)

        torch.library.register_vmap(name, batched, lib=self.library)
        self.op = op if count > 1 else lambda *args: (op(*args),)
        self.eager = self.functorch = self.compiled = self.op
        if operation.vjp is not None:
            self.eager, self.functorch, self.compiled = (_tupled(f.apply) for f in _functions(operation, op, count))
        self.compiled_functorch = _FRAMEWORK_OWN.get(operation.name) or (_refused(operation) if operation.vjp else self.op)


def _refused(operation: Operation) -> Any:
    def call(*args: Any) -> Any:
        raise NotImplementedError(
            f"{operation.name}: no derivative inside torch.func under torch.compile\nhint: call torch.func outside of it"
        )

    return call


def _tupled(apply: Any) -> Any:
    def call(*args: Any) -> tuple[Any, ...]:
        outputs = apply(*args)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return call


def _batched(operation: Operation, call: Any, count: int, info: Any, in_dims: Any, args: tuple[Any, ...]) -> Any:
    """The outputs of the call under vmap, and the mapped axis of each."""
    last = operation.inputs - 1
    if operation.by_columns and in_dims[last] is not None and all(d is None for d in in_dims[:last]):
        # many right-hand sides for the same matrix, as columns of one
        wide = args[last].movedim(in_dims[last], -2)
        outputs = call(*args[:last], wide.flatten(-2), *args[last + 1 :])
        x, *others = outputs if count > 1 else (outputs,)
        x = x.unflatten(-1, wide.shape[-2:]).movedim(-2, 0)
        return ((x, *others), (0, *[None] * len(others))) if count > 1 else (x, 0)
    return call(*_batch_first(info, in_dims, args)), 0 if count == 1 else (0,) * count


def _batch_first(info: Any, in_dims: Any, args: tuple[Any, ...]) -> list[Any]:
    """Every tensor with the mapped axis in front; one that is not mapped is repeated."""
    moved = []
    for x, dim in zip(args, in_dims, strict=True):
        if isinstance(x, torch.Tensor):
            x = x.movedim(dim, 0) if dim is not None else x.expand(info.batch_size, *x.shape)
        moved.append(x)
    return moved


def _functions(operation: Operation, op: Any, count: int) -> tuple[Any, Any, Any]:
    """The operation with derivatives: for plain eager calls, for torch.func, for Dynamo."""
    assert operation.jvp is not None and operation.vjp is not None
    jvp_rule, vjp_rule = operation.jvp, operation.vjp
    inputs, smooth, keeps_inputs = operation.inputs, operation.differentiable, operation.keeps_inputs

    def save(ctx: Any, args: Any, outputs: Any) -> None:
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        ctx.params = tuple(args[inputs])
        kept = args[:inputs] if keeps_inputs(ctx.params) else ()
        ctx.save_for_backward(*outputs[:smooth], *kept)
        ctx.save_for_forward(*outputs[:smooth], *kept)
        if count > smooth:  # Dynamo wants a tuple for an empty one
            ctx.mark_non_differentiable(*outputs[smooth:])
        ctx.set_materialize_grads(False)

    # Dynamo mistakes a forward with *args for one that has the context as its first argument
    def of_one(a: Any, params: Any, engine: int) -> Any:
        return op(a, params, engine)

    def of_two(a: Any, b: Any, params: Any, engine: int) -> Any:
        return op(a, b, params, engine)

    def of_three(a: Any, b: Any, c: Any, params: Any, engine: int) -> Any:
        return op(a, b, c, params, engine)

    def of_four(a: Any, b: Any, c: Any, d: Any, params: Any, engine: int) -> Any:
        return op(a, b, c, d, params, engine)

    class Traceable(torch.autograd.Function):
        forward = staticmethod((of_one, of_two, of_three, of_four)[inputs - 1])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            save(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if all(g is None for g in grads[:smooth]):
                return (None,) * (inputs + 2)
            saved = ctx.saved_tensors
            gradients = vjp_rule(Namespace, ctx.params, saved[smooth:], saved[:smooth], grads[:smooth])
            return (*gradients, None, None)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _batched(operation, Traceable.apply, count, info, in_dims, args)

    # Dynamo refuses a Function with a jvp
    class Functorch(Traceable):
        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            saved = ctx.saved_tensors
            results = jvp_rule(Namespace, ctx.params, saved[smooth:], saved[:smooth], tangents[:inputs])
            return (*results, *[None] * (count - smooth)) if count > 1 else results[0]

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _batched(operation, Functorch.apply, count, info, in_dims, args)

    # a forward that takes the context and skips the dispatcher takes a third of the time
    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            outputs = _run(operation, args[:inputs], args[inputs], args[inputs + 1])
            save(ctx, args, outputs)
            return outputs if count > 1 else outputs[0]

        backward = Traceable.backward
        jvp = Functorch.jvp

    return Eager, Functorch, Traceable


# torch's own routines with lapwing's conventions, for torch.func inside torch.compile


def _own_hermitian(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor]:
    """The derivative is that of f((A + A^H)/2): only the named triangle carries values, both carry the gradient."""
    triangle = a.triu() if params[0] & UPPER else a.tril()
    diagonal = torch.diag_embed(triangle.diagonal(dim1=-2, dim2=-1).real.to(a.dtype))
    values = triangle.tril(-1) + triangle.triu(1)
    finite = torch.where(torch.isfinite(a), a, 0)
    return ((values + values.mH + diagonal).detach() + ((finite + finite.mH) - (finite + finite.mH).detach()) / 2,)


def _own_eigh(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, first, count = params
    n = a.shape[-1]
    (whole,) = _own_hermitian(a, params, engine)
    good = torch.isfinite(whole).all(-1).all(-1)[..., None]
    w, v = torch.linalg.eigh(torch.where(good[..., None], whole, 0))
    first, count = (0, n) if count < 0 else (first % max(n, 1), count)
    w, v = w[..., first : first + count], v[..., first : first + count]
    nan = torch.nan
    return torch.where(good, w, nan), torch.where(good[..., None], v, nan), (~good[..., 0]).to(torch.int32)


def _own_cholesky(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    upper = bool(params[0] & UPPER)
    (symmetric,) = _own_hermitian(a, params, engine)
    factor, info = torch.linalg.cholesky_ex(symmetric, upper=upper)
    # the first pivot that is not finite and positive: the routine reports only some of them
    pivots = factor.diagonal(dim1=-2, dim2=-1).real
    good = torch.isfinite(pivots) & (pivots > 0)
    order = torch.arange(1, a.shape[-1] + 1, dtype=torch.int32, device=a.device)
    last = a.shape[-1] + 1
    first = torch.where(good, last, order).amin(-1) if a.shape[-1] else torch.full_like(info, last)
    first = torch.where(info > 0, torch.minimum(first, info), first).to(torch.int32)
    bad = first < last
    return torch.where(bad[..., None, None], torch.nan, factor), torch.where(bad, first, 0).to(torch.int32)


def _own_inverse(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    if params[0] & POS:
        info = _own_cholesky(a.detach(), params, engine)[1]
        (a,) = _own_hermitian(a, params, engine)
    else:
        info = _first_bad(torch.linalg.lu_factor_ex(a.detach())[0])
    x = torch.linalg.inv_ex(a)[0]
    return torch.where((info != 0)[..., None, None], torch.nan, x), info


def _for_determinant(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices, zeros in the place of those that fail, and the status of each."""
    if params[0] & POS:
        info = _own_cholesky(a.detach(), params, engine)[1]
        (a,) = _own_hermitian(a, params, engine)
    else:
        info = (~torch.isfinite(a).all(-1).all(-1)).to(torch.int32)
    return torch.where((info != 0)[..., None, None], 0, a), info


def _own_slogdet(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, info = _for_determinant(a, params, engine)
    sign, logabs = torch.linalg.slogdet(a)
    return torch.where(info != 0, torch.nan, sign), torch.where(info != 0, torch.nan, logabs), info


def _own_det(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    a, info = _for_determinant(a, params, engine)
    return torch.where(info != 0, torch.nan, torch.linalg.det(a)), info


def _own_triangular(a: torch.Tensor, b: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    upper, adjoint, unit = (bool(params[0] & flag) for flag in (UPPER, ADJOINT, UNIT))
    triangle = a.triu() if upper else a.tril()
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device) if unit else _first_bad(a)
    safe = torch.where((info != 0)[..., None, None], torch.eye(a.shape[-1], dtype=a.dtype, device=a.device), triangle)
    x = torch.linalg.solve_triangular(safe.mH if adjoint else safe, b, upper=upper != adjoint, unitriangular=unit)
    return torch.where((info != 0)[..., None, None], torch.nan, x), info


def _own_qr(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    good = torch.isfinite(a).all(-1).all(-1)[..., None, None]
    q, r = torch.linalg.qr(torch.where(good, a, 0))
    return torch.where(good, q, torch.nan), torch.where(good, r, torch.nan)


def _own_eig(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, ...]:
    good = torch.isfinite(a).all(-1).all(-1)[..., None]
    w, v = torch.linalg.eig(torch.where(good[..., None], a, 0))
    return torch.where(good, w, torch.nan), torch.where(good[..., None], v, torch.nan), (~good[..., 0]).to(torch.int32)


def _own_svd(a: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, ...]:
    good = torch.isfinite(a).all(-1).all(-1)[..., None]
    u, s, vh = torch.linalg.svd(torch.where(good[..., None], a, 0), full_matrices=False)
    nan = torch.nan
    whole = torch.where(good[..., None], u, nan), torch.where(good, s, nan), torch.where(good[..., None], vh, nan)
    return *whole, (~good[..., 0]).to(torch.int32)


# only the matrix has a derivative, its factors have none


def _own_lu_solve(a: Any, lu: Any, rows: Any, b: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor]:
    return (torch.linalg.solve_ex(a.mH if params[0] & ADJOINT else a, b)[0],)


def _own_cholesky_solve(a: Any, l: Any, b: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor]:
    return (torch.linalg.solve_ex(_own_hermitian(a, params, engine)[0], b)[0],)


def _own_solve_mixed(a: torch.Tensor, b: torch.Tensor, params: Params, engine: int) -> tuple[torch.Tensor, torch.Tensor]:
    matrix = _own_hermitian(a, params, engine)[0] if params[0] & POS else a
    x, info = torch.linalg.solve_ex(matrix, b)
    return x, info.detach()


def _first_bad(a: torch.Tensor) -> torch.Tensor:
    """The place of the first number on the diagonal that is zero or not finite, or 0."""
    pivots = a.diagonal(dim1=-2, dim2=-1)
    good = torch.isfinite(pivots) & (pivots != 0)
    last = a.shape[-1] + 1
    order = torch.arange(1, last, dtype=torch.int32, device=a.device)
    first = torch.where(good, last, order).amin(-1) if a.shape[-1] else torch.full(a.shape[:-2], last, device=a.device)
    return torch.where(first < last, first, 0).to(torch.int32)


_FRAMEWORK_OWN: dict[str, Any] = {
    "cholesky": _own_cholesky,
    "cholesky_solve": _own_cholesky_solve,
    "det": _own_det,
    "eig": _own_eig,
    "eigh": _own_eigh,
    "hermitian": _own_hermitian,
    "inverse": _own_inverse,
    "lu_solve": _own_lu_solve,
    "qr": _own_qr,
    "slogdet": _own_slogdet,
    "solve_mixed": _own_solve_mixed,
    "svd": _own_svd,
    "triangular": _own_triangular,
}
# All operations at once, when this module loads: Dynamo cannot define an op while it traces.
_HOOKED = {operation.name: _Hooked(operation) for operation in OPERATIONS}


def _hook(operation: Operation) -> _Hooked:
    return _HOOKED[operation.name]
