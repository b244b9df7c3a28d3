"""JAX arrays: jit, vmap, grad, jvp, shard_map, export; CPU and CUDA.

One primitive, lowered to one foreign call, serves every operation. Its lowering names the batch axes, so that an array with a
sharded batch is not gathered; its vmap rule makes one batched call. A custom jvp around it gives forward mode, from which JAX
derives reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from ..core.native import AUTO, ENGINES, missing_reason, native, warn_of_numpy
from ..core.operation import Operation, Params, operation_named
from ..core.problem import COMPLEX, REAL, Spec
from . import numpy
from .like_numpy import LightFunctions, NumpyNamespace

try:
    from jax._src import custom_partitioning_sharding_rule as _sharding_rules
except ImportError:  # a private name; without it the newer partitioner gathers a sharded batch
    _sharding_rules = None  # type: ignore[assignment]

sharded = False
light = LightFunctions(jnp)
_TARGET = "lapwing"  # cuSOLVER, rocSOLVER and kernels that need scratch memory
_LAUNCH = "lapwing_launch"  # kernels that only launch: may be captured into a CUDA graph


def describe(a: Any) -> Spec:
    # a tracer and a ShapeDtypeStruct have no devices yet
    devices = () if traced(a) or not hasattr(a, "devices") else a.devices()
    platform = next(iter(devices)).platform if devices else jax.default_backend()
    return Spec(tuple(a.shape), dtype_of(a), "cuda" if platform in ("gpu", "cuda", "rocm") else "cpu")


def shape_of(a: Any) -> tuple[Any, ...]:
    return tuple(a.shape)


def dtype_of(a: Any) -> str:
    return str(a.dtype)


def direct(a: Any) -> bool:
    return False


def traced(a: Any) -> bool:
    return isinstance(a, jax.core.Tracer)


def sized(a: Any) -> bool:
    return all(isinstance(n, int) for n in a.shape)


def apply(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool) -> tuple[Any, ...]:
    if any(map(traced, arrays)):
        return _differentiable(operation, params, engine, overwrite)(*arrays)  # type: ignore[no-any-return]
    return _jitted(operation, params, engine)(*arrays)  # type: ignore[no-any-return]


def failed(info: Any) -> bool:
    if traced(info):  # a constant array inside a traced function
        return False
    return bool(np.asarray(info).any() if info.size < 4096 else jnp.any(info))


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(x)


@cache
def _jitted(operation: Operation, params: Params, engine: int) -> Any:
    return jax.jit(_differentiable(operation, params, engine, False))


@cache
def _differentiable(operation: Operation, params: Params, engine: int, overwrite: bool) -> Any:
    primal: Any = partial(_call, operation, params, engine, overwrite)
    if operation.elsewhere is not None:
        rule_elsewhere = _exact(partial(operation.elsewhere, Namespace, params))
        choices = {"cpu": primal, "default": lambda *x: tuple(rule_elsewhere(x, engine))}
        native_call = primal

        def by_platform(*x: Any) -> Any:
            if operation.native_elsewhere(tuple(a.shape for a in x), engine, x[0].dtype.name):
                return native_call(*x)
            return jax.lax.platform_dependent(*x, **choices)

        primal = by_platform
    if operation.jvp is None and operation.composed is None:
        return primal
    if operation.product is not None:
        return partial(_linear_solve, operation, params, engine, overwrite)
    function = jax.custom_jvp(primal)
    if operation.composed is not None:
        rule = operation.composed
        composed = _exact(lambda *x: rule(Namespace, params, x, engine))
        function.defjvp(lambda primals, tangents: jax.jvp(composed, primals, tangents))
        return function

    def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        assert operation.jvp is not None
        if operation.derivative_from is None:
            outputs = source = function(*primals)
        else:
            name, indices = operation.derivative_from
            source = _differentiable(operation_named(name), params, engine, False)(*primals)
            outputs = tuple(source[i] for i in indices)
        smooth = _exact(operation.jvp)(Namespace, params, primals, source, tangents)
        fixed = map(jax.custom_derivatives.zero_from_primal, outputs[operation.differentiable :])
        return outputs, (*smooth, *fixed)

    function.defjvp(jvp)
    return function


def differentiates(a: Any) -> bool:
    return traced(a)


@cache
def register(kind: Any, take_apart: Any, put_together: Any) -> None:
    """Let objects of this class pass through jit, vmap and grad."""
    jax.tree_util.register_pytree_node(kind, take_apart, put_together)


def _exact(rule: Any) -> Any:
    """The rule with products in full precision; by default JAX rounds float32 to ten bits on a GPU."""
    return jax.default_matmul_precision("highest")(rule)


class Namespace(NumpyNamespace):
    module = jnp
    constant = staticmethod(jax.lax.stop_gradient)
    matmul = staticmethod(partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))

    @staticmethod
    def call(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int = AUTO) -> tuple[Any, ...]:
        return _differentiable(operation, params, engine, False)(*arrays)  # type: ignore[no-any-return]

    @classmethod
    def kept(cls, x: Any) -> Any:
        return x  # it cannot be changed

    @classmethod
    def if_all(cls, flags: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return jax.lax.cond(jnp.all(flags), yes, no)

    @classmethod
    def repeat(cls, count: int, step: Callable[[Any], Any], state: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, x: step(x), state)

    @staticmethod
    def visible(x: Any) -> bool:
        return False  # reverse mode is derived from forward mode, which sees no gradient

    @staticmethod
    def put(x: np.ndarray, like: Any) -> Any:
        return jnp.asarray(x) if traced(like) else jax.device_put(x, like.sharding)


def _call(operation: Operation, params: Params, engine: int, overwrite: bool, *arrays: Any) -> tuple[Any, ...]:
    if native is None or any(_placed_mesh(a) is not None for a in arrays):
        return _foreign(operation, params, engine, overwrite, *arrays)
    return tuple(_CALL.bind(*arrays, operation=operation, params=params, engine=engine, overwrite=overwrite))


_CALL = Primitive("lapwing")  # the foreign call with our rules for vmap and for sharded batches
_CALL.multiple_results = True


@cache
def _compiled(**about: Any) -> Any:
    return jax.jit(partial(_CALL.bind, **about))


@_CALL.def_impl  # type: ignore[untyped-decorator]
def _evaluate(*arrays: Any, **about: Any) -> Any:
    return _compiled(**about)(*arrays)


@_CALL.def_abstract_eval  # type: ignore[untyped-decorator]
def _types(*kinds: Any, operation: Operation, params: Params, engine: int, overwrite: bool) -> list[Any]:
    mesh = getattr(getattr(kinds[0], "sharding", None), "mesh", None)
    types = []
    for shape, dtype in _results(operation, params, kinds):
        replicated: Any = (
            {} if mesh is None or mesh.empty else {"sharding": NamedSharding(mesh, PartitionSpec(*[None] * len(shape)))}
        )
        types.append(jax.core.ShapedArray(shape, np.dtype(dtype), **replicated))
    return types


def _batch(arrays: Any, axes: Any, **about: Any) -> tuple[Any, Any]:
    """One call for the whole batch: the mapped axis becomes a batch axis, or more columns if there is one matrix."""
    operation, bind = about["operation"], partial(_CALL.bind, **about)
    count = len(_results(operation, about["params"], arrays))
    mapped = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]
    *fixed, last = [axis is None for axis in axes]
    if operation.by_columns and all(fixed) and not last:
        return _more_columns(bind, mapped), (0, *[None] * (count - 1))
    (length,) = {x.shape[0] for x, axis in zip(mapped, axes, strict=True) if axis is not None}
    batched = [jnp.broadcast_to(x, (length, *x.shape)) if axis is None else x for x, axis in zip(mapped, axes, strict=True)]
    return bind(*batched), (0,) * count


batching.primitive_batchers[_CALL] = _batch


def _lower(context: Any, *operands: Any, operation: Operation, params: Params, engine: int, overwrite: bool) -> Any:
    a = context.avals_in[0]
    results = _results(operation, params, context.avals_in)
    target, aliases, attributes = _frame(operation, params, engine, overwrite, a.shape, results)
    values = jax.ffi.ffi_lowering(target, operand_output_aliases=aliases)(context, *operands, **attributes)
    known = all(isinstance(n, int) for kind in (*context.avals_in, *context.avals_out) for n in kind.shape)
    if known and len(a.shape) > 2:
        _split_by_batch(operands, values, len(a.shape) - 2)
    return values


mlir.register_lowering(_CALL, _lower)


def _split_by_batch(operands: Any, values: Any, rank: int) -> None:
    """Tell XLA's partitioners that the first ``rank`` axes are batches, so that a sharded batch is not gathered."""
    attributes = values[0].owner.attributes
    attributes["mhlo.frontend_attributes"] = ir.DictAttr.get({"num_batch_dims": ir.StringAttr.get(str(rank))})
    if _sharding_rules is None:
        return
    # the axes of a batch are the same everywhere; every axis of a matrix has a letter of its own
    batch, letters = "abcdefgh"[:rank], iter("ijklmnopqrstuvwxyz")

    sides = [
        ", ".join(" ".join([*batch, *[next(letters) for _ in x.type.shape[rank:]]]) for x in side)
        for side in (operands, values)
    ]
    rule = _sharding_rules.str_to_sdy_sharding_rule(" -> ".join(sides))
    types = [[x.type for x in side] for side in (operands, values)]
    attributes["sdy.sharding_rule"] = _sharding_rules.sdy_sharding_rule_to_mlir(rule, *types)


def _more_columns(function: Any, arrays: Any) -> tuple[Any, ...]:
    """Solve for many right-hand sides with the same matrix, as the columns of one."""
    *fixed, b = arrays
    many, k = b.shape[0], b.shape[-1]
    wide = jnp.moveaxis(b, 0, -2)
    x, *others = function(*fixed, wide.reshape(*wide.shape[:-2], many * k))
    return (jnp.moveaxis(x.reshape(*x.shape[:-1], many, k), -2, 0), *others)


def _linear_solve(operation: Operation, params: Params, engine: int, overwrite: bool, *arrays: Any) -> tuple[Any, ...]:
    """The solve as custom_linear_solve: JAX derives forward mode from the product, and reverse mode from the adjoint solve."""
    assert operation.product is not None
    *factors, b = arrays
    product = _exact(partial(operation.product, Namespace, params, factors))
    fixed = tuple(map(jax.lax.stop_gradient, factors))
    transposed, turned = operation.adjoint(Namespace, params, fixed)

    def solve(_: Any, right: Any) -> tuple[Any, Any]:
        x, *others = _call(operation, params, engine, overwrite, *fixed, right)
        return x, tuple(others)

    def solve_transposed(_: Any, right: Any) -> tuple[Any, Any]:
        # A^T y = c is A^H conj(y) = conj(c)
        y, *others = _call(operation, transposed, engine, False, *turned, jnp.conj(right))
        return jnp.conj(y), tuple(others)

    x, others = jax.lax.custom_linear_solve(product, b, solve, solve_transposed, has_aux=True)
    return (x, *others)


def _placed_mesh(a: Any) -> Any:
    """The mesh in the type of ``a`` if it has manual axes (inside shard_map) or explicit ones; None if XLA decides."""
    mesh = getattr(getattr(_type_of(a), "sharding", None), "mesh", None)
    if mesh is None or mesh.empty:
        return None
    kinds = getattr(mesh, "axis_types", None) or ()
    return mesh if any("auto" not in str(kind).lower() for kind in kinds) else None


def _type_of(a: Any) -> Any:
    return jax.typeof(a) if hasattr(jax, "typeof") else jax.core.get_aval(a)  # type: ignore[attr-defined]


def _results(operation: Operation, params: Params, arrays: Any) -> list[tuple[Any, Any]]:
    """Shape and dtype of each output."""
    dtype = arrays[0].dtype
    kinds = {None: dtype, "real": REAL[str(dtype)], "complex": COMPLEX[str(dtype)]}
    return [(s, kinds.get(d, d)) for s, d in operation.results(tuple(tuple(x.shape) for x in arrays), params)]


def _frame(operation: Operation, params: Params, engine: int, overwrite: bool, shape: Any, results: Any) -> tuple[Any, ...]:
    """The target of the foreign call, which output shares the memory of the first input, and the attributes."""
    _register()
    alone = all(isinstance(n, int) and n == 1 for n in shape[:-2])
    small = isinstance(shape[-1], int) and shape[-1] <= operation.launches_only_to
    launch_only = small and engine in (AUTO, ENGINES["batched"])
    # If the call shares its buffers, XLA copies an input that was not donated. That pays only if the engine works in place
    # anyway, or the user asked for it.
    out = operation.alias
    shared = out is not None and results[out][0] == tuple(shape) and (overwrite or (alone and not launch_only))
    flags, *more = params
    attributes = {"op": operation.code, "flags": flags, "engine": engine} | {f"size{i}": x for i, x in enumerate(more, 2)}
    return _LAUNCH if launch_only else _TARGET, {0: out} if shared else None, {k: np.int64(v) for k, v in attributes.items()}


def _foreign(operation: Operation, params: Params, engine: int, overwrite: bool, *arrays: Any) -> tuple[Any, ...]:
    """The call if the mesh is part of the types (shard_map, explicit sharding), or numpy.linalg without a native core."""
    a, results = arrays[0], _results(operation, params, arrays)
    types = tuple(_result_type(a, shape, dtype) for shape, dtype in results)
    if native is None:
        warn_of_numpy(missing_reason)

        def reference(*x: Any) -> Any:
            return operation.reference(tuple(map(np.asarray, x)), params)

        return tuple(jax.pure_callback(reference, types, *arrays, vmap_method="broadcast_all"))
    target, aliases, attributes = _frame(operation, params, engine, overwrite, a.shape, results)
    call = jax.ffi.ffi_call(target, types, vmap_method="broadcast_all", input_output_aliases=aliases)
    return tuple(call(*arrays, **attributes))


def _result_type(a: Any, shape: tuple[Any, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """The type of a result; inside shard_map and with explicit sharding it has the mesh and manual axes of ``a``."""
    mesh = _placed_mesh(a)
    if mesh is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    kind = _type_of(a)
    batch_rank = kind.ndim - 2
    spec = (tuple(kind.sharding.spec) + (None,) * kind.ndim)[:batch_rank]
    sharding = NamedSharding(mesh, PartitionSpec(*spec, *(None,) * (len(shape) - batch_rank)))
    # the name changed between releases
    axes = {name: getattr(kind, name) for name in ("manual_axis_type", "vma") if hasattr(kind, name)}
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, **dict(list(axes.items())[:1]))


@cache
def _register() -> None:
    assert native is not None
    for target, cuda in ((_TARGET, "cuda"), (_LAUNCH, "cuda_graph")):
        jax.ffi.register_ffi_target(target, native.xla_handler("cpu"), platform="cpu")
        for platform in ("CUDA", "ROCM"):  # one handler: the native core knows the GPU's vendor
            jax.ffi.register_ffi_target(target, native.xla_handler(cuda), platform=platform)
        if hasattr(jax.ffi, "register_ffi_target_as_batch_partitionable"):  # without it a sharded batch is gathered
            jax.ffi.register_ffi_target_as_batch_partitionable(target)


def run_operator(call: Any, matvec: Any, n: int, dtype: str, results: Any, like: Any) -> tuple[tuple[Any, ...], bool]:
    """As for NumPy. The iteration runs on the host; each block is copied to the device of ``like`` for its product."""
    if traced(like):
        raise ValueError("operator: cannot be used in traced code\nhint: call it outside of jit")

    if str(jnp.zeros((), dtype).dtype) != dtype:
        raise TypeError(f"operator: JAX is set to have no {dtype} arrays\nhint: jax.config.update('jax_enable_x64', True)")

    def product(x: np.ndarray) -> np.ndarray:
        return np.asarray(matvec(jax.device_put(np.ascontiguousarray(x), like.sharding)))

    outputs, converged = numpy.run_operator(call, product, n, dtype, results, None)
    return tuple(jax.device_put(x, like.sharding) for x in outputs), converged


def on_one_device(a: Any) -> bool:
    """Whether the array is known not to be spread over devices by a NamedSharding."""
    return named_sharding(a)[0] is None


def named_sharding(a: Any) -> tuple[Any, bool]:
    """The NamedSharding of an array over more than one device, and whether its spec is certain; (None, False) without one.

    An array outside of traced code has its placement. Inside jit the type has the placement for Explicit axes; for Auto axes it
    has only the mesh.
    """
    while traced(a) and hasattr(a, "primal"):  # an eager derivative wraps an array, or the tracer of jit
        a = a.primal
    if not traced(a):
        sharding = getattr(a, "sharding", None)
        return (sharding, True) if isinstance(sharding, NamedSharding) and sharding.num_devices > 1 else (None, False)
    sharding = getattr(jax.typeof(a), "sharding", None) if hasattr(jax, "typeof") else None
    mesh = getattr(sharding, "mesh", None)
    if not isinstance(sharding, NamedSharding) or mesh is None or mesh.empty or mesh.size == 1:
        return None, False
    kinds = {str(kind).rpartition(".")[2] for kind in mesh.axis_types}
    if kinds == {"Explicit"}:
        return sharding, True
    # inside shard_map the array is a block, which is for lapwing.distributed.shard
    return (sharding, False) if kinds == {"Auto"} else (None, False)
