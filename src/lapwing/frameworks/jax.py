"""JAX arrays: jit, vmap, grad, jvp, shard_map, export; CPU and CUDA.

One foreign call serves every operation. Around it, from the inside out: a partitioning rule, so that a batch-sharded array is
not gathered; a vmap rule that ends in one batched call; a custom jvp, from which JAX derives reverse mode.
"""

from __future__ import annotations

import inspect
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ..core.native import AUTO, ENGINES, native
from ..core.operation import Operation
from ..core.problem import Spec

__all__ = ["apply", "describe", "dtype_of", "failed", "shape_of", "to_numpy", "traced"]

_TARGET = "lapwing"  # cuSOLVER and kernels that need scratch memory
_LAUNCH = "lapwing_launch"  # kernels that only launch: may be captured into a CUDA graph

# Below this order the batched kernels are always chosen, whatever the batch, so the call may be captured.
_ALWAYS_BATCHED = 32


def describe(a: Any) -> Spec:
    # a tracer and a ShapeDtypeStruct have no devices yet
    devices = () if traced(a) or not hasattr(a, "devices") else a.devices()
    platform = next(iter(devices)).platform if devices else jax.default_backend()
    return Spec(tuple(a.shape), dtype_of(a), "cuda" if platform in ("gpu", "cuda") else "cpu")


def shape_of(a: Any) -> tuple[Any, ...]:
    return tuple(a.shape)


def dtype_of(a: Any) -> str:
    return str(a.dtype)


def traced(a: Any) -> bool:
    return isinstance(a, jax.core.Tracer)


def apply(operation: Operation, arrays: tuple[Any, ...], flags: int, engine: int, overwrite: bool) -> tuple[Any, ...]:
    (a,) = arrays
    if traced(a):
        return _differentiable(operation, flags, engine, overwrite)(a)  # type: ignore[no-any-return]
    return _jitted(operation, flags, engine)(a)  # type: ignore[no-any-return]


def failed(info: Any) -> bool:
    if traced(info):  # the input was an array, but the call stands inside a traced function
        return False
    return bool(np.asarray(info).any() if info.size < 4096 else jnp.any(info))


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(x)


@cache
def _jitted(operation: Operation, flags: int, engine: int) -> Any:
    return jax.jit(_differentiable(operation, flags, engine, False))


@cache
def _differentiable(operation: Operation, flags: int, engine: int, overwrite: bool) -> Any:
    primal = partial(_call, operation, flags, engine, overwrite)
    if operation.jvp is None:
        return primal
    rule = operation.jvp

    function = jax.custom_jvp(primal)

    def jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        outputs = function(*primals)
        tangent = rule(_Namespace, flags, outputs[0], tangents[0])
        return outputs, (tangent, *map(jax.custom_derivatives.zero_from_primal, outputs[1:]))

    function.defjvp(jvp)
    return function


class _Namespace:
    """What core/derivatives.py works with."""

    @staticmethod
    def adjoint(x: Any) -> Any:
        return jnp.conj(jnp.swapaxes(x, -1, -2))

    @staticmethod
    def half_tril(x: Any) -> Any:
        n = x.shape[-1]
        mask = jnp.tril(jnp.ones((n, n), x.real.dtype)) - jnp.eye(n, dtype=x.real.dtype) / 2
        # a product with the mask would carry NaN of the other triangle: none can be there that is not in this one too
        return x * mask

    @staticmethod
    def solve(l: Any, b: Any) -> Any:
        return jax.lax.linalg.triangular_solve(l, b, left_side=True, lower=True)

    @staticmethod
    def solve_adjoint(l: Any, b: Any) -> Any:
        return jax.lax.linalg.triangular_solve(l, b, left_side=True, lower=True, transpose_a=True, conjugate_a=True)


def _call(operation: Operation, flags: int, engine: int, overwrite: bool, a: Any) -> tuple[Any, ...]:
    if _placed_mesh(a) is not None:
        return _foreign(operation, flags, engine, overwrite, a)
    return tuple(_partitioned(operation, flags, engine, overwrite)(a))


@cache
def _partitioned(operation: Operation, flags: int, engine: int, overwrite: bool) -> Any:
    """The foreign call with its sharding rule, under a vmap rule, which custom_partitioning lacks."""
    foreign = partial(_foreign, operation, flags, engine, overwrite)
    split = custom_partitioning(lambda a: foreign(a))
    ranks = [len(shape) for shape, _ in operation.results((1, 1))]

    def shardings(mesh: Any, arg_shapes: Any) -> tuple[Any, tuple[Any, ...]]:
        sharding = arg_shapes[0].sharding
        batch = tuple(getattr(sharding, "spec", ()))[: len(arg_shapes[0].shape) - 2]
        batch = batch + (None,) * (len(arg_shapes[0].shape) - 2 - len(batch))
        whole = [NamedSharding(mesh, PartitionSpec(*batch, *(None,) * rank)) for rank in ranks]
        return NamedSharding(mesh, PartitionSpec(*batch, None, None)), tuple(whole)

    def partition(mesh: Any, arg_shapes: Any, result_shape: Any) -> Any:
        argument, results = shardings(mesh, arg_shapes)
        return mesh, foreign, results, (argument,)

    def infer(mesh: Any, arg_shapes: Any, result_shape: Any) -> Any:
        return shardings(mesh, arg_shapes)[1]

    matrix = ["... i j" if rank == 2 else "..." for rank in ranks]
    # the newer partitioner wants the rule in letters, the older one calls the two functions
    letters = {"sharding_rule": f"... i j -> {', '.join(matrix)}", "need_replication_factors": ("i", "j")}
    known = inspect.signature(split.def_partition).parameters
    rule = letters if known.keys() >= letters.keys() else {}
    split.def_partition(partition=partition, infer_sharding_from_operands=infer, **rule)

    function = custom_vmap(lambda a: tuple(split(a)))

    @function.def_vmap
    def batched(axis_size: int, in_batched: Any, a: Any) -> Any:
        return function(a), tuple(True for _ in ranks)

    return function


def _placed_mesh(a: Any) -> Any:
    """The mesh whose axes the type of ``a`` speaks of: manual (inside shard_map) or explicit ones. None where XLA decides."""
    mesh = getattr(getattr(_type_of(a), "sharding", None), "mesh", None)
    if mesh is None or mesh.empty:
        return None
    kinds = getattr(mesh, "axis_types", None) or ()
    return mesh if any("auto" not in str(kind).lower() for kind in kinds) else None


def _type_of(a: Any) -> Any:
    return jax.typeof(a) if hasattr(jax, "typeof") else jax.core.get_aval(a)  # type: ignore[attr-defined]


def _foreign(operation: Operation, flags: int, engine: int, overwrite: bool, a: Any) -> tuple[Any, ...]:
    types = tuple(_result_type(a, shape, dtype or a.dtype) for shape, dtype in operation.results(tuple(a.shape)))
    if native is None:
        return tuple(
            jax.pure_callback(lambda x: operation.reference(np.asarray(x), flags), types, a, vmap_method="broadcast_all")
        )
    _register()
    alone = all(n == 1 for n in a.shape[:-2] if isinstance(n, int)) and all(isinstance(n, int) for n in a.shape[:-2])
    launch_only = engine == ENGINES["batched"] or (
        engine == AUTO and isinstance(a.shape[-1], int) and a.shape[-1] <= _ALWAYS_BATCHED
    )
    # A call that shares its buffers makes XLA copy an input that was not donated: worth it only where the engine works in
    # place anyway, or the user asks.
    in_place = operation.matrix_out and (overwrite or (alone and not launch_only))
    call = jax.ffi.ffi_call(
        _LAUNCH if launch_only else _TARGET,
        types,
        vmap_method="broadcast_all",
        input_output_aliases={0: 0} if in_place else None,
    )
    return tuple(call(a, op=np.int64(operation.code), flags=np.int64(flags), engine=np.int64(engine)))


def _result_type(a: Any, shape: tuple[Any, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Inside shard_map and with explicit sharding the result carries the mesh and the manual axes of its argument."""
    mesh = _placed_mesh(a)
    if mesh is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    kind = _type_of(a)
    batch_rank = kind.ndim - 2
    spec = (tuple(kind.sharding.spec) + (None,) * kind.ndim)[:batch_rank]
    where = NamedSharding(mesh, PartitionSpec(*spec, *(None,) * (len(shape) - batch_rank)))
    # the name changed between releases
    axes = {name: getattr(kind, name) for name in ("manual_axis_type", "vma") if hasattr(kind, name)}
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where, **dict(list(axes.items())[:1]))


@cache
def _register() -> None:
    assert native is not None
    for target, cuda in ((_TARGET, "cuda"), (_LAUNCH, "cuda_graph")):
        jax.ffi.register_ffi_target(target, native.xla_handler("cpu"), platform="cpu")
        jax.ffi.register_ffi_target(target, native.xla_handler(cuda), platform="CUDA")
