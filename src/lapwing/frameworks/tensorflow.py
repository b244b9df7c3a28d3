"""TensorFlow tensors: eager, tf.function, tf.GradientTape, forward mode, tf.vectorized_map, SavedModel; CPU and GPU.

Each operation is a TensorFlow op ("LapwingCholesky") from the small library ``_tensorflow``. It speaks TensorFlow's C
interface, so that one binary serves every TensorFlow from 2.16 on (tested with 2.16, 2.18 and 2.21). Importing this
module registers the ops; a program that loads a SavedModel with them says ``import lapwing.frameworks.tensorflow``
first.

Where the library was not built, ``tf.numpy_function`` calls numpy.linalg: same results and gradients, no SavedModel.

XLA (``jit_compile=True``) cannot compile ops of other libraries: such a call is refused while the function is traced.
Where a function that is traced already is put inside a compiled one, TensorFlow's own error names "LapwingCholesky".
On a GPU the op waits for the device, as TensorFlow does not tell its stream through the C interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ..core import native as core
from ..core.operation import OPERATIONS, Operation, Params, operation_named
from ..core.problem import DTYPES, REAL, Spec
from . import numpy

__all__ = [
    "Namespace",
    "apply",
    "describe",
    "dtype_of",
    "failed",
    "missing_reason",
    "out_of_memory",
    "run_operator",
    "shape_of",
    "to_numpy",
    "traced",
]

# looked up once, as calls on small matrices are short
_executing_eagerly = tf.executing_eagerly
_Tensor = tf.Tensor
_NAME = {tf.as_dtype(name): name for name in DTYPES}
_REAL = {tf.as_dtype(name): tf.as_dtype(real) for name, real in REAL.items()}


def describe(a: Any) -> Spec:
    shape = shape_of(a)
    if None in shape:
        raise ValueError(
            f"lapwing: the shape {a.shape} is not known yet\nhint: describe the array with lapwing.spec(shape, dtype)"
        )
    device = "cuda" if "GPU" in (getattr(a, "device", None) or "") else "cpu"
    return Spec(tuple(n for n in shape if n is not None), dtype_of(a), device)


def shape_of(a: Any) -> tuple[int | None, ...]:
    shape = a.shape
    # without a known rank only the matrix axes are sure; the op looks again when it runs
    return tuple(shape) if getattr(shape, "rank", 0) is not None else (None, None)


def dtype_of(a: Any) -> str:
    dtype = a.dtype
    return _NAME.get(dtype) or str(getattr(dtype, "name", dtype))  # the dtype of a Keras variable is a string


def traced(a: Any) -> bool:
    # what is computed in a graph is symbolic, whatever went in
    return not _executing_eagerly()


def apply(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool) -> tuple[Any, ...]:
    a = arrays[0]
    if not isinstance(a, _Tensor):
        a = tf.convert_to_tensor(a)  # a variable
    if not _executing_eagerly() and _compiled_by_xla():
        raise NotImplementedError(
            f"lapwing: {operation.name} cannot be compiled by XLA"
            "\nhint: use tf.function(jit_compile=False), or jit_compile=False in a Keras model's compile()"
        )
    if operation.name not in _OPS:
        return _without_library(operation, a, params)
    return _call(operation, a, params, engine)


def _call(operation: Operation, a: Any, params: Params, engine: int) -> tuple[Any, ...]:
    flags, *part = params
    if not part:
        made = _OPS[operation.name](a, flags=flags, engine=engine)
        return tuple(made) if isinstance(made, tuple) else (made,)
    first, count = part
    kind = _REAL[a.dtype]
    if count < 0:
        return tuple(_OPS[operation.name](a, R=kind, flags=flags, engine=engine))
    made = _OPS[operation.name + "_part"](a, R=kind, flags=flags, engine=engine, first=first, count=count)
    return made if _executing_eagerly() else tuple(_shaped(operation, a.shape, params, made))


def failed(info: Any) -> bool:
    status = info.numpy()
    return bool(status.any() if status.ndim else status)


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(x.numpy())


class Namespace:
    """What core/derivatives.py works with."""

    norm = staticmethod(lambda x: tf.abs(tf.norm(x)))

    @staticmethod
    def put(x: np.ndarray, like: Any) -> Any:
        return tf.constant(x)

    @staticmethod
    def eye(like: Any) -> Any:
        return tf.eye(like.shape[-1], dtype=like.dtype)

    @staticmethod
    def adjoint(x: Any) -> Any:
        return tf.linalg.adjoint(x)

    @staticmethod
    def half_tril(x: Any) -> Any:
        lower = tf.linalg.band_part(x, -1, 0)
        return tf.linalg.set_diag(lower, tf.linalg.diag_part(lower) / 2)

    @staticmethod
    def solve(factor: Any, b: Any) -> Any:
        return tf.linalg.triangular_solve(factor, b, lower=True)

    @staticmethod
    def solve_adjoint(factor: Any, b: Any) -> Any:
        return tf.linalg.triangular_solve(factor, b, lower=True, adjoint=True)

    where, abs, conj, real, any = tf.where, tf.abs, tf.math.conj, tf.math.real, tf.reduce_any
    zeros_like, ones_like = tf.zeros_like, tf.ones_like
    to_numpy = staticmethod(to_numpy)

    @staticmethod
    def sum(x: Any, axis: int) -> Any:
        return tf.reduce_sum(x, axis)

    @staticmethod
    def largest(x: Any) -> Any:
        return tf.reduce_max(x, -1, keepdims=True)

    @staticmethod
    def order(x: Any) -> Any:
        return tf.cast(tf.shape(x)[-1], x.dtype)

    @staticmethod
    def like(x: Any, y: Any) -> Any:
        return tf.cast(x, y.dtype)

    @staticmethod
    def dtype_name(x: Any) -> str:
        return str(x.dtype.name)

    @staticmethod
    def call(operation: Operation, arrays: tuple[Any, ...], params: Params) -> tuple[Any, ...]:
        return apply(operation, arrays, params, core.AUTO, False)

    @staticmethod
    def visible(x: Any) -> bool:
        return bool(_executing_eagerly())


def _compiled_by_xla() -> bool:
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:  # a private name; without it TensorFlow's own error comes later
        return False
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def _load() -> tuple[dict[str, Callable[..., Any]], str]:
    """The ops of the library by the names of the operations, or why there are none."""
    if core.native is None:
        return {}, core.missing_reason
    path = Path(__file__).parent.parent / "_tensorflow.abi3.so"
    if not path.exists():
        return {}, "the TensorFlow ops were not built; they are built with g++ when lapwing is installed from source"
    try:
        library = tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError) as error:
        return {}, f"TensorFlow cannot load the ops ({error})"
    names = [o.name + end for o in OPERATIONS for end in ("", "_part")]
    ops = {name: getattr(library, f"lapwing_{name}") for name in names if hasattr(library, f"lapwing_{name}")}
    problem = ctypes.CDLL(str(path)).lapwing_tensorflow_problem
    problem.restype = ctypes.c_char_p
    return ops, problem().decode(errors="replace")


def _register_gradient(name: str) -> None:
    operation = operation_named(name.removesuffix("_part"))
    source = operation
    if operation.derivative_from is not None:
        source = operation_named(operation.derivative_from[0])
    if source.vjp is None:
        tf.no_gradient(_op_type(name))
        return
    rule = source.vjp

    def gradient(op: Any, *grads: Any) -> Any:
        params = _params_of(op.get_attr, bool(source.example[1:]))
        outputs = op.outputs if source is operation else _call(source, op.inputs[0], params, op.get_attr("engine"))
        # the first outputs are the same ones where another operation gives the derivative; what was not computed has none
        known = [grads[0], *map(_unless_zero, grads[1 : operation.differentiable]), *[None] * source.differentiable]
        (found,) = rule(Namespace, params, op.inputs, outputs, known[: source.differentiable])
        return found

    tf.RegisterGradient(_op_type(name))(gradient)


def _unless_zero(gradient: Any) -> Any:
    """TensorFlow gives zeros for an output that the loss does not use; a rule can do without."""
    unused = gradient is not None and _executing_eagerly() and not np.any(gradient.numpy())
    return None if unused else gradient


def _params_of(attribute: Callable[[str], int], partial: bool) -> Params:
    return (attribute("flags"), attribute("first"), attribute("count")) if partial else (attribute("flags"),)


def _register_vectorization(name: str) -> None:
    """Under tf.vectorized_map a whole batch is one call, where otherwise it would be a loop."""
    try:
        from tensorflow.python.ops.parallel_for.pfor import RegisterPFor, wrap
    except ImportError:  # a private name; without it tf.vectorized_map loops
        return
    operation = operation_named(name.removesuffix("_part"))

    def convert(node: Any) -> Any:
        params = _params_of(node.get_attr, bool(operation.example[1:]))
        return [wrap(x, True) for x in _call(operation, node.stacked_input(0), params, node.get_attr("engine"))]

    RegisterPFor(_op_type(name))(convert)


def _op_type(name: str) -> str:
    return "Lapwing" + "".join(part.capitalize() for part in name.split("_"))


def _without_library(operation: Operation, a: Any, params: Params) -> tuple[Any, ...]:
    """numpy.linalg inside tf.numpy_function."""
    if operation.derivative_from is not None:
        name, mine = operation.derivative_from
        outputs = _without_library(operation_named(name), a, params)
        return tuple(outputs[i] for i in mine)

    def call(x: Any) -> tuple[Any, ...]:
        kinds = {None: x.dtype, "real": _REAL[x.dtype]}
        results = operation.results(((1, 1),) * operation.inputs, params)
        dtypes = [kinds.get(dtype) or tf.as_dtype(dtype) for _, dtype in results]
        made = tf.numpy_function(lambda array: list(operation.reference((array,), params)), [x], dtypes, stateful=False)
        return tuple(_shaped(operation, x.shape, params, made if isinstance(made, (list, tuple)) else [made]))

    if operation.vjp is None:
        return call(a)
    rule = operation.vjp

    def with_gradient(x: Any) -> Any:
        def gradient(*grads: Any) -> Any:
            # factored again, as the gradient of this gradient needs the factor as a function of x
            (found,) = rule(Namespace, params, (x,), differentiable(x), grads[: operation.differentiable])
            return found

        return call(x), gradient

    differentiable = tf.custom_gradient(with_gradient)
    return tuple(differentiable(a))


def run_operator(call: Any, matvec: Any, n: int, dtype: str, results: Any, like: Any) -> tuple[tuple[Any, ...], bool]:
    """As for NumPy: the iteration runs on the host."""
    if not _executing_eagerly():
        raise ValueError("operator: a matrix known by its products cannot be used inside tf.function")
    outputs, converged = numpy.run_operator(call, lambda x: matvec(tf.constant(x)).numpy(), n, dtype, results, None)
    return tuple(tf.constant(x) for x in outputs), converged


def _shaped(operation: Operation, shape: Any, params: Params, made: Any) -> Any:
    """The static shapes, which TensorFlow does not see: of a NumPy function, and of a part of a spectrum."""
    if shape.rank is not None:
        known = operation.results((tuple(shape),), params)
        for output, (extent, _) in zip(made, known, strict=True):
            output.set_shape(extent)
    return made


_OPS, missing_reason = _load()
for _name in _OPS:
    _register_vectorization(_name)
    _register_gradient(_name)
