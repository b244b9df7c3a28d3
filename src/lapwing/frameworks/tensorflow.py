"""TensorFlow tensors: eager, tf.function, tf.GradientTape, forward mode, tf.vectorized_map, SavedModel; CPU and GPU.

Each operation is a TensorFlow op ("LapwingCholesky") from the small library ``_tensorflow``. It uses TensorFlow's C
interface, so one binary works with every TensorFlow from 2.16 on (tested with 2.16, 2.18 and 2.21). Importing this module
registers the ops; a program that loads a SavedModel with them needs ``import lapwing.frameworks.tensorflow`` first.

Where the library was not built, ``tf.numpy_function`` calls numpy.linalg: same results and gradients, no SavedModel.

XLA (``jit_compile=True``) cannot compile ops of other libraries: such a call is refused while the function is traced. If a
function that was traced before is called inside a compiled one, TensorFlow's own error names "LapwingCholesky". On a GPU the
op waits for the device, as TensorFlow's C interface does not give its stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from ..core import native as core
from ..core.operation import OPERATIONS, Operation, Params, operation_named
from ..core.problem import COMPLEX, DTYPES, REAL, Spec
from . import numpy

sharded = False
try:
    from tensorflow.python.eager.record import could_possibly_record as _could_record
except ImportError:  # a private name; without it every call prepares for derivatives
    _could_record = None

# looked up once: for small matrices the lookup would count
_executing_eagerly = tf.executing_eagerly
_Tensor = tf.Tensor
_NAME = {tf.as_dtype(name): name for name in DTYPES}
_REAL = {tf.as_dtype(name): tf.as_dtype(real) for name, real in REAL.items()}
_COMPLEX = {tf.as_dtype(name): tf.as_dtype(other) for name, other in COMPLEX.items()}


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
    # if the rank is unknown, assume matrices; the op checks again when it runs
    return tuple(shape) if getattr(shape, "rank", 0) is not None else (None, None)


def dtype_of(a: Any) -> str:
    dtype = a.dtype
    return _NAME.get(dtype) or str(getattr(dtype, "name", dtype))  # a Keras variable has a string


def direct(a: Any) -> bool:
    return False


def traced(a: Any) -> bool:
    # in a graph all results are symbolic, even those of constants
    return not _executing_eagerly()


def sized(a: Any) -> bool:
    return a.shape.rank is not None and None not in shape_of(a)


def apply(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool) -> tuple[Any, ...]:
    # variables become tensors
    arrays = tuple([a if isinstance(a, _Tensor) else tf.convert_to_tensor(a) for a in arrays])
    if not _executing_eagerly() and _compiled_by_xla():
        raise NotImplementedError(
            f"lapwing: {operation.name} cannot be compiled by XLA"
            "\nhint: use tf.function(jit_compile=False), or jit_compile=False in a Keras model's compile()"
        )
    if operation.composed is not None and (_recording() or operation.name not in _OPS):
        return operation.composed(Namespace, params, arrays, engine)
    if operation.elsewhere is not None and _on_gpu(arrays[0]):
        return operation.elsewhere(Namespace, params, arrays, engine)
    if operation.name not in _OPS:
        return _without_library(operation, arrays, params)
    return _call(operation, arrays, params, engine)


def _on_gpu(a: Any) -> bool:
    """Whether the operation may run on a GPU; in a graph TensorFlow decides that later."""
    return "GPU" in a.device if _executing_eagerly() else bool(tf.config.get_visible_devices("GPU"))


def _call(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int) -> tuple[Any, ...]:
    name, attributes = operation.name, {"flags": params[0], "engine": engine}
    if name in _HAVE_REAL_OUTPUTS:
        attributes["R"] = _REAL[arrays[0].dtype]
    if name in _HAVE_COMPLEX_OUTPUTS:
        attributes["C"] = _COMPLEX[arrays[0].dtype]
    if len(params) == _WITH_PART and params[2] >= 0:
        name += "_part"
        attributes["first"], attributes["count"] = params[1:]
    if name in _WITH_NUMBER:
        attributes["first"] = params[1]
    outputs = _OPS[name](*arrays, **attributes)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return outputs if _executing_eagerly() else tuple(_shaped(operation, arrays, params, outputs))


def failed(info: Any) -> bool:
    status = info.numpy()
    return bool(status.any() if status.ndim else status)


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(x.numpy())


def differentiates(a: Any) -> bool:
    return not _executing_eagerly() or _recording()


def register(kind: Any, take_apart: Any, put_together: Any) -> None:
    """Nothing to do: only JAX takes objects apart."""


class Namespace:
    """The functions that core/derivatives.py and composed operations are written in."""

    quiet = staticmethod(nullcontext)
    norm = staticmethod(lambda x: tf.abs(tf.norm(x)))

    @staticmethod
    def put(x: np.ndarray, like: Any) -> Any:
        return tf.constant(x)

    @staticmethod
    def eye(like: Any) -> Any:
        return tf.eye(Namespace.shape(like)[-1], dtype=like.dtype)

    @staticmethod
    def matmul(x: Any, y: Any) -> Any:
        return x @ y

    @staticmethod
    def half_tril(x: Any) -> Any:
        lower = tf.linalg.band_part(x, -1, 0)
        return tf.linalg.set_diag(lower, tf.linalg.diag_part(lower) / 2)

    swap, adjoint, diagonal, diag = tf.linalg.matrix_transpose, tf.linalg.adjoint, tf.linalg.diag_part, tf.linalg.diag
    cast, ratio, sum = tf.cast, tf.math.divide_no_nan, tf.reduce_sum
    exp, log, sqrt, argmax, reshape, stack, constant = (
        tf.exp,
        tf.math.log,
        tf.sqrt,
        tf.argmax,
        tf.reshape,
        tf.stack,
        tf.stop_gradient,
    )

    @staticmethod
    def tril(x: Any, k: int) -> Any:
        """``k`` is 0 or -1."""
        lower = tf.linalg.band_part(x, -1, 0)
        return _without_diagonal(lower) if k else lower

    @staticmethod
    def triu(x: Any, k: int) -> Any:
        """``k`` is 0 or 1."""
        upper = tf.linalg.band_part(x, 0, -1)
        return _without_diagonal(upper) if k else upper

    @staticmethod
    def product(x: Any) -> Any:
        return tf.reduce_prod(x, -1)

    @staticmethod
    def power_of_two(x: Any) -> Any:
        limits = np.finfo(x.dtype.as_numpy_dtype)
        exponent = tf.floor(tf.math.log(tf.stop_gradient(x)) / float(np.log(2)))
        power = tf.pow(tf.constant(2, x.dtype), tf.clip_by_value(exponent, limits.minexp + 2, limits.maxexp - 2))
        return tf.where((x > 0) & tf.math.is_finite(x), power, tf.ones_like(x))

    @staticmethod
    def whole(x: Any) -> Any:
        return tf.cast(x, tf.int32)

    @staticmethod
    def places(x: Any) -> Any:
        return tf.zeros_like(x) + tf.range(tf.shape(x)[-1], dtype=x.dtype)

    @staticmethod
    def take(x: Any, index: Any) -> Any:
        return tf.gather(x, index, axis=-1, batch_dims=-1)

    @staticmethod
    def scalar(x: Any) -> Any:
        return x

    @staticmethod
    def isfinite(x: Any) -> Any:
        if not x.dtype.is_complex:
            return tf.math.is_finite(x)
        return tf.math.is_finite(tf.math.real(x)) & tf.math.is_finite(tf.math.imag(x))

    @staticmethod
    def shape(x: Any) -> tuple[Any, ...]:
        """Known lengths as numbers, the others as tensors."""
        known = shape_of(x)
        if None not in known:
            return known
        lengths = tf.shape(x)
        # counted from the end: if the rank is unknown, only the matrix axes have a known place
        return tuple(lengths[i - len(known)] if n is None else n for i, n in enumerate(known))

    @staticmethod
    def longer(m: Any, n: Any, like: Any) -> Any:
        """The larger of two lengths that may be unknown, in the dtype of ``like``."""
        return tf.cast(tf.maximum(m, n), like.dtype)

    @staticmethod
    def moveaxis(x: Any, source: int, to: int) -> Any:
        order = list(range(x.shape.rank))
        axis = order.pop(source)
        order.insert(to % x.shape.rank, axis)
        return tf.transpose(x, order)

    @staticmethod
    def beside(x: Any, y: Any) -> Any:
        return tf.concat([x, y], -1)

    @staticmethod
    def broadcast_batch(a: Any, b: Any) -> tuple[Any, Any]:
        static = tf.broadcast_static_shape(a.shape[:-2], b.shape[:-2])
        batch = static if static.is_fully_defined() else tf.broadcast_dynamic_shape(tf.shape(a)[:-2], tf.shape(b)[:-2])
        results = [tf.broadcast_to(x, tf.concat([batch, tf.shape(x)[-2:]], 0)) for x in (a, b)]
        for x, y in zip(results, (a, b), strict=True):
            x.set_shape(static.concatenate(y.shape[-2:]))
        return results[0], results[1]

    @staticmethod
    def one_hot(index: Any, like: Any) -> Any:
        """1 at ``index`` along the last axis but one of ``like``."""
        return tf.one_hot(index, Namespace.shape(like)[-2], dtype=like.dtype)[..., None]

    where, abs, conj, real, any = tf.where, tf.abs, tf.math.conj, tf.math.real, tf.reduce_any
    zeros_like, ones_like = tf.zeros_like, tf.ones_like
    to_numpy = staticmethod(to_numpy)

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
    def call(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int = core.AUTO) -> tuple[Any, ...]:
        return apply(operation, arrays, params, engine, False)

    @staticmethod
    def if_all(flags: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        if not _OPS and not _executing_eagerly():  # the rules of numpy_function do not reach into tf.cond
            return no()
        return tf.cond(tf.reduce_all(flags), yes, no)

    @staticmethod
    def repeat(count: int, step: Callable[[Any], Any], state: Any) -> Any:
        for _ in range(count):
            state = step(state)
        return state

    @staticmethod
    def visible(x: Any) -> bool:
        return bool(_executing_eagerly())

    @staticmethod
    def kept(x: Any) -> Any:
        return tf.convert_to_tensor(x)  # a variable may change, a tensor cannot

    @staticmethod
    def later(function: Callable[[], Any]) -> Callable[[], Any]:
        if not _recording():
            return function
        value = function()  # a tape knows only what runs while it records
        return lambda: value


class _Light:
    """Functions with the names and keywords of the array API standard, by TensorFlow's NumPy, which promotes dtypes."""

    matmul, outer, tensordot = (staticmethod(f) for f in (tnp.matmul, tnp.outer, tnp.tensordot))
    matrix_transpose = staticmethod(tf.linalg.matrix_transpose)

    def cross(self, x1: Any, x2: Any, *, axis: int) -> Any:
        # TensorFlow's own has no complex numbers: y_i = a_(i+1) b_(i+2) - a_(i+2) b_(i+1)
        (a, after_a), (b, after_b) = ((tf.roll(x, -1, axis), tf.roll(x, -2, axis)) for x in (x1, x2))
        return tnp.subtract(tnp.multiply(a, after_b), tnp.multiply(after_a, b))

    def diagonal(self, x: Any, *, offset: int) -> Any:
        return tnp.diagonal(x, offset=offset, axis1=-2, axis2=-1)

    def trace(self, x: Any, *, offset: int, dtype: Any) -> Any:
        return tnp.trace(x, offset=offset, axis1=-2, axis2=-1, dtype=dtype)

    def vecdot(self, x1: Any, x2: Any, *, axis: int) -> Any:
        x1, x2 = (tnp.moveaxis(x, axis, -1) for x in (x1, x2))
        return tnp.matmul(tnp.conj(x1)[..., None, :], x2[..., :, None])[..., 0, 0]

    def matrix_norm(self, x: Any, *, ord: Any, keepdims: bool) -> Any:
        size = tf.abs(x)
        if ord == "fro":
            return tf.norm(size, axis=(-2, -1), keepdims=keepdims)
        pick = tf.reduce_max if ord > 0 else tf.reduce_min
        # 1: the largest sum of a column; inf: of a row
        return pick(
            tf.reduce_sum(size, -2 if abs(ord) == 1 else -1, keepdims=True),
            axis=(-2, -1),
            keepdims=keepdims,
        )

    def vector_norm(self, x: Any, *, axis: Any, ord: Any, keepdims: bool) -> Any:
        size = tf.abs(x)
        axis = None if axis is None else list(axis)
        if abs(ord) == float("inf"):
            return (tf.reduce_max if ord > 0 else tf.reduce_min)(size, axis, keepdims)
        if ord == 0:
            return tf.reduce_sum(tf.cast(size != 0, size.dtype), axis, keepdims)
        if ord == 2:
            return tf.math.reduce_euclidean_norm(size, axis, keepdims)
        return tf.reduce_sum(size**ord, axis, keepdims) ** (1 / ord)


light = _Light()


def _recording() -> bool:
    """Whether a tape or forward mode may record the call."""
    return _could_record is None or bool(_could_record())


def _compiled_by_xla() -> bool:
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:  # a private name; without it TensorFlow raises its own error later
        return False
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def _load() -> tuple[dict[str, Callable[..., Any]], str]:
    """The ops by the names of the operations, and the reason if there are none."""
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


def _operation_of(name: str) -> Operation:
    """The operation of an op; an op that computes a part belongs to the operation that computes all."""
    return operation_named(name if any(o.name == name for o in OPERATIONS) else name.removesuffix("_part"))


def _register_gradient(name: str) -> None:
    operation = _operation_of(name)
    source, indices = operation, tuple(range(operation.differentiable))
    if operation.derivative_from is not None:
        other, indices = operation.derivative_from
        source = operation_named(other)
    if source.vjp is None and operation.composed is None:
        tf.no_gradient(_op_type(name))
        return

    def gradient(op: Any, *grads: Any) -> Any:
        params, inputs = _params_of(operation, op.get_attr), tuple(op.inputs)
        if operation.composed is not None:
            return _gradient_of_composed(operation, params, inputs, grads, op.get_attr("engine"))
        outputs = op.outputs if source is operation else _call(source, inputs, params, op.get_attr("engine"))
        known: list[Any] = [None] * source.differentiable  # None for outputs that were not computed
        for i, g in zip(indices, grads[: operation.differentiable], strict=False):
            known[i] = g
        return _by_rule(source, params, inputs, outputs, known)

    tf.RegisterGradient(_op_type(name))(gradient)


def _by_rule(operation: Operation, params: Params, inputs: tuple[Any, ...], outputs: Any, grads: Any) -> list[Any]:
    """The gradient of each input, or None."""
    assert operation.vjp is not None
    if operation.differentiable > 1:
        grads = list(map(_unless_zero, grads))
    gradients = list(operation.vjp(Namespace, params, inputs, outputs, grads))
    return gradients if any(g is not None for g in gradients) else [tf.zeros_like(inputs[0]), *gradients[1:]]


def _gradient_of_composed(operation: Operation, params: Params, inputs: tuple[Any, ...], grads: Any, engine: int) -> list[Any]:
    assert operation.composed is not None
    smooth = operation.differentiable
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = operation.composed(Namespace, params, inputs, engine)
    return list(tape.gradient(outputs[:smooth], inputs, list(grads[:smooth])))


def _unless_zero(gradient: Any) -> Any:
    """None instead of the zeros that TensorFlow passes for an unused output, so that the rule saves the work."""
    if gradient is None or not _executing_eagerly() or _recording():
        return gradient  # it may have a derivative that is not zero
    return gradient if np.any(gradient.numpy()) else None


# operations whose second param is an attribute; the ops of factorisations have it in their names
_WITH_NUMBER = ("lstsq", "svd_part")
_WITH_PART = 3  # the number of params of an operation that can compute part of a spectrum


def _params_of(operation: Operation, attribute: Callable[[str], int]) -> Params:
    if len(operation.example) == _WITH_PART:
        return attribute("flags"), attribute("first"), attribute("count")
    if operation.name in _WITH_NUMBER:
        return attribute("flags"), attribute("first")
    return (attribute("flags"), *operation.example[1:])  # the name of the op implies the rest


def _register_vectorization(name: str) -> None:
    """Make a batch under tf.vectorized_map one call; without this TensorFlow loops."""
    try:
        from tensorflow.python.ops.parallel_for.pfor import RegisterPFor, wrap
    except ImportError:  # a private name; without it tf.vectorized_map loops
        return
    operation = _operation_of(name)
    last = operation.inputs - 1

    def convert(node: Any) -> Any:
        params, engine = _params_of(operation, node.get_attr), node.get_attr("engine")
        stacked = [node.input(i)[1] for i in range(operation.inputs)]
        if operation.by_columns and not any(stacked[:last]) and node.stacked_input(last).shape.rank is not None:
            fixed = tuple(node.unstacked_input(i) for i in range(last))
            x, *others = _more_columns(operation, (*fixed, node.stacked_input(last)), params, engine)
            return [wrap(x, True), *[wrap(y, False) for y in others]]
        if not all(stacked):
            node.stack_inputs()
        inputs = tuple(node.stacked_input(i) for i in range(operation.inputs))
        return [wrap(x, True) for x in _call(operation, inputs, params, engine)]

    RegisterPFor(_op_type(name))(convert)


def _more_columns(operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int) -> tuple[Any, ...]:
    """Solve for many right-hand sides with the same matrix, as the columns of one."""
    *fixed, b = arrays
    wide = Namespace.moveaxis(b, 0, -2)
    *front, many, k = Namespace.shape(wide)
    x, *others = _call(operation, (*fixed, tf.reshape(wide, (*front, many * k))), params, engine)
    return (Namespace.moveaxis(tf.reshape(x, (*front, many, k)), -2, 0), *others)


def _op_type(name: str) -> str:
    return "Lapwing" + "".join(part.capitalize() for part in name.split("_"))


def _without_library(operation: Operation, arrays: tuple[Any, ...], params: Params) -> tuple[Any, ...]:
    """numpy.linalg inside tf.numpy_function."""
    core.warn_of_numpy(missing_reason)
    if operation.derivative_from is not None:
        name, indices = operation.derivative_from
        outputs = _without_library(operation_named(name), arrays, params)
        return tuple(outputs[i] for i in indices)

    def call(*tensors: Any) -> tuple[Any, ...]:
        dtype = tensors[0].dtype
        kinds = {None: dtype, "real": _REAL[dtype], "complex": _COMPLEX[dtype]}
        dtypes = [kinds.get(kind) or tf.as_dtype(kind) for _, kind in _example(operation, params)]
        outputs = tf.numpy_function(lambda *x: list(operation.reference(x, params)), tensors, dtypes, stateful=False)
        return tuple(_shaped(operation, tensors, params, outputs if isinstance(outputs, (list, tuple)) else [outputs]))

    if operation.vjp is None:
        return call(*arrays)

    def with_gradient(*tensors: Any) -> Any:
        def gradient(*grads: Any) -> Any:
            # factor again: the gradient of this gradient needs the factor as a function of the inputs
            return _by_rule(operation, params, tensors, differentiable(*tensors), grads[: operation.differentiable])

        return call(*tensors), gradient

    differentiable = tf.custom_gradient(with_gradient)
    return tuple(differentiable(*arrays))


def run_operator(call: Any, matvec: Any, n: int, dtype: str, results: Any, like: Any) -> tuple[tuple[Any, ...], bool]:
    """As for NumPy: the iteration runs on the host."""
    if not _executing_eagerly():
        raise ValueError("operator: cannot be used inside tf.function\nhint: call it in eager mode")
    outputs, converged = numpy.run_operator(call, lambda x: matvec(tf.constant(x)).numpy(), n, dtype, results, None)
    return tuple(tf.constant(x) for x in outputs), converged


def _shaped(operation: Operation, arrays: tuple[Any, ...], params: Params, outputs: Any) -> Any:
    """Set the static shapes that TensorFlow cannot infer."""
    shapes = [x.shape for x in arrays]
    if all(shape.rank is not None for shape in shapes):
        known = operation.results(tuple(map(tuple, shapes)), params)
        for output, (extent, _) in zip(outputs, known, strict=True):
            output.set_shape(extent)
    return outputs


def _without_diagonal(x: Any) -> Any:
    return tf.linalg.set_diag(x, tf.zeros_like(tf.linalg.diag_part(x)))


def _example(operation: Operation, params: Params) -> Any:
    return operation.results(operation.example_shapes, params)


_OPS, missing_reason = _load()
_HAVE_REAL_OUTPUTS, _HAVE_COMPLEX_OUTPUTS = (
    {o.name for o in OPERATIONS if any(dtype == kind for _, dtype in _example(o, o.example))} for kind in ("real", "complex")
)
for _name in _OPS:
    _register_vectorization(_name)
    _register_gradient(_name)
