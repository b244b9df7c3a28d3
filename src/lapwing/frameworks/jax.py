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
from ..core.operation import Operation, Params, operation_named
from ..core.problem import REAL, Spec
from . import numpy
from .like_numpy import NumpyNamespace

__all__ = [
    "Namespace",
    "apply",
    "describe",
    "differentiates",
    "dtype_of",
    "failed",
    "out_of_memory",
    "register",
    "run_operator",
    "shape_of",
    "to_numpy",
    "traced",
]

_TARGET = "lapwing"  # cuSOLVER and kernels that need scratch memory
_LAUNCH = "lapwing_launch"  # kernels that only launch: may be captured into a CUDA graph


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


def apply(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool) -> tuple[Any, ...]:
    if any(map(traced, arrays)):
        return _differentiable(operation, params, engine, overwrite)(*arrays)  # type: ignore[no-any-return]
    return _jitted(operation, params, engine)(*arrays)  # type: ignore[no-any-return]


def failed(info: Any) -> bool:
    if traced(info):  # the input was an array, but the call stands inside a traced function
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
    primal = partial(_call, operation, params, engine, overwrite)
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
            outputs = made_from = function(*primals)
        else:
            name, mine = operation.derivative_from
            made_from = _differentiable(operation_named(name), params, engine, False)(*primals)
            outputs = tuple(made_from[i] for i in mine)
        made = _exact(operation.jvp)(Namespace, params, primals, made_from, tangents)
        fixed = map(jax.custom_derivatives.zero_from_primal, outputs[operation.differentiable :])
        return outputs, (*made, *fixed)

    function.defjvp(jvp)
    return function


def differentiates(a: Any) -> bool:
    """Whether derivatives with respect to it may be asked for."""
    return traced(a)


@cache
def register(kind: Any, take_apart: Any, put_together: Any) -> None:
    """Objects of this kind may pass through jit, vmap and grad."""
    jax.tree_util.register_pytree_node(kind, take_apart, put_together)


def _exact(rule: Any) -> Any:
    """Its products in the precision of the arrays; of float32 JAX would keep ten bits on a GPU."""
    return jax.default_matmul_precision("highest")(rule)


class Namespace(NumpyNamespace):
    """What core/derivatives.py works with, and operations that are made of others."""

    module = jnp
    constant = staticmethod(jax.lax.stop_gradient)
    matmul = staticmethod(partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))

    @staticmethod
    def call(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int = AUTO) -> tuple[Any, ...]:
        return _differentiable(operation, params, engine, False)(*arrays)  # type: ignore[no-any-return]

    @staticmethod
    def visible(x: Any) -> bool:
        return False  # reverse mode is derived from forward mode, which sees no gradient

    @staticmethod
    def put(x: np.ndarray, like: Any) -> Any:
        return jax.device_put(x, like.sharding)


def _call(operation: Operation, params: Params, engine: int, overwrite: bool, *arrays: Any) -> tuple[Any, ...]:
    if any(_placed_mesh(a) is not None for a in arrays):
        return _foreign(operation, params, engine, overwrite, *arrays)
    return tuple(_partitioned(operation, params, engine, overwrite)(*arrays))


@cache
def _partitioned(operation: Operation, params: Params, engine: int, overwrite: bool) -> Any:
    """The foreign call with its sharding rule, under a vmap rule, which custom_partitioning lacks."""
    foreign = partial(_foreign, operation, params, engine, overwrite)
    given = operation.ranks
    # signatures without *, as custom_partitioning reads them
    plain = {
        1: lambda a: foreign(a),
        2: lambda a, b: foreign(a, b),
        3: lambda a, b, c: foreign(a, b, c),
        4: lambda a, b, c, d: foreign(a, b, c, d),
    }
    split = custom_partitioning(plain[len(given)])
    ranks = [len(shape) for shape, _ in operation.results(operation.example_shapes, params)]

    def shardings(mesh: Any, arg_shapes: Any) -> tuple[Any, tuple[Any, ...]]:
        sharding, rank = arg_shapes[0].sharding, len(arg_shapes[0].shape) - 2
        batch = (tuple(getattr(sharding, "spec", ())) + (None,) * rank)[:rank]
        whole = [NamedSharding(mesh, PartitionSpec(*batch, *(None,) * rank)) for rank in ranks]
        return tuple(NamedSharding(mesh, PartitionSpec(*batch, *(None,) * r)) for r in given), tuple(whole)

    def partition(mesh: Any, arg_shapes: Any, result_shape: Any) -> Any:
        arguments, results = shardings(mesh, arg_shapes)
        return mesh, foreign, results, arguments

    def infer(mesh: Any, arg_shapes: Any, result_shape: Any) -> Any:
        return shardings(mesh, arg_shapes)[1]

    # every axis of a matrix has a letter of its own, and stays whole
    letters = iter("ijklmnopqrst")
    sides = [", ".join(" ".join(["...", *[next(letters) for _ in range(rank)]]) for rank in side) for side in (given, ranks)]
    used = tuple(c for c in "".join(sides) if c.isalpha())
    # the newer partitioner wants the rule in letters, the older one calls the two functions
    rule = {"sharding_rule": " -> ".join(sides), "need_replication_factors": used}
    known = inspect.signature(split.def_partition).parameters
    split.def_partition(
        partition=partition, infer_sharding_from_operands=infer, **(rule if known.keys() >= rule.keys() else {})
    )

    function = custom_vmap(lambda *arrays: tuple(split(*arrays)))

    @function.def_vmap
    def batched(axis_size: int, in_batched: Any, *arrays: Any) -> Any:
        *fixed, last = in_batched
        if operation.by_columns and last and not any(fixed):
            return _more_columns(function, arrays), (True, *[False] * (len(ranks) - 1))
        whole = [
            x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, is_batched in zip(arrays, in_batched, strict=True)
        ]
        return function(*whole), tuple(True for _ in ranks)

    return function


def _more_columns(function: Any, arrays: Any) -> tuple[Any, ...]:
    """Many right-hand sides for the same matrix, as columns of one."""
    *fixed, b = arrays
    many, k = b.shape[0], b.shape[-1]
    wide = jnp.moveaxis(b, 0, -2)
    x, *others = function(*fixed, wide.reshape(*wide.shape[:-2], many * k))
    return (jnp.moveaxis(x.reshape(*x.shape[:-1], many, k), -2, 0), *others)


def _linear_solve(operation: Operation, params: Params, engine: int, overwrite: bool, *arrays: Any) -> tuple[Any, ...]:
    """A solve in the eyes of JAX: it has to know the product to differentiate, and the other solve to turn that around."""
    assert operation.product is not None
    *given, b = arrays
    product = _exact(partial(operation.product, Namespace, params, given))
    fixed = tuple(map(jax.lax.stop_gradient, given))
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
    """The mesh whose axes the type of ``a`` speaks of: manual (inside shard_map) or explicit ones. None where XLA decides."""
    mesh = getattr(getattr(_type_of(a), "sharding", None), "mesh", None)
    if mesh is None or mesh.empty:
        return None
    kinds = getattr(mesh, "axis_types", None) or ()
    return mesh if any("auto" not in str(kind).lower() for kind in kinds) else None


def _type_of(a: Any) -> Any:
    return jax.typeof(a) if hasattr(jax, "typeof") else jax.core.get_aval(a)  # type: ignore[attr-defined]


def _foreign(operation: Operation, params: Params, engine: int, overwrite: bool, *arrays: Any) -> tuple[Any, ...]:
    a = arrays[0]
    kinds = {None: a.dtype, "real": REAL[dtype_of(a)]}
    results = operation.results(tuple(tuple(x.shape) for x in arrays), params)
    types = tuple(_result_type(a, shape, kinds.get(dtype, dtype)) for shape, dtype in results)
    if native is None:

        def reference(*x: Any) -> Any:
            return operation.reference(tuple(map(np.asarray, x)), params)

        return tuple(jax.pure_callback(reference, types, *arrays, vmap_method="broadcast_all"))
    _register()
    alone = all(n == 1 for n in a.shape[:-2] if isinstance(n, int)) and all(isinstance(n, int) for n in a.shape[:-2])
    small = isinstance(a.shape[-1], int) and a.shape[-1] <= operation.launches_only_to
    launch_only = small and engine in (AUTO, ENGINES["batched"])
    # A call that shares its buffers makes XLA copy an input that was not donated: worth it only where the engine works in
    # place anyway, or the user asks.
    out = operation.alias
    shared = out is not None and results[out][0] == tuple(a.shape) and (overwrite or (alone and not launch_only))
    call = jax.ffi.ffi_call(
        _LAUNCH if launch_only else _TARGET,
        types,
        vmap_method="broadcast_all",
        input_output_aliases={0: out} if shared and out is not None else None,
    )
    flags, *more = params
    extra = {f"size{i}": np.int64(x) for i, x in enumerate(more, 2)}
    return tuple(call(*arrays, op=np.int64(operation.code), flags=np.int64(flags), engine=np.int64(engine), **extra))


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


def run_operator(call: Any, matvec: Any, n: int, dtype: str, results: Any, like: Any) -> tuple[tuple[Any, ...], bool]:
    """As for NumPy: the iteration runs on the host, and the blocks travel to the device of ``like`` for each product."""
    if traced(like):
        raise ValueError("operator: a matrix known by its products cannot be used in traced code\nhint: call it outside of jit")

    if str(jnp.zeros((), dtype).dtype) != dtype:
        raise TypeError(f"operator: JAX makes no {dtype} arrays now\nhint: jax.config.update('jax_enable_x64', True)")

    def product(x: np.ndarray) -> np.ndarray:
        return np.asarray(matvec(jax.device_put(np.ascontiguousarray(x), like.sharding)))

    outputs, converged = numpy.run_operator(call, product, n, dtype, results, None)
    return tuple(jax.device_put(x, like.sharding) for x in outputs), converged
