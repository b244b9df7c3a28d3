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
from ..core.derivatives import cholesky_vjp
from ..core.operation import Operation
from ..core.problem import DTYPES, Spec

__all__ = ["apply", "describe", "dtype_of", "failed", "missing_reason", "shape_of", "to_numpy", "traced"]

# Gradients must be known before a SavedModel is loaded, hence by name and not on first use.
_GRADIENTS: dict[str, Callable[..., Any]] = {"cholesky": cholesky_vjp}
_NO_GRADIENT = ("finite",)

# looked up once, as calls on small matrices are short
_executing_eagerly = tf.executing_eagerly
_Tensor = tf.Tensor
_NAME = {tf.as_dtype(name): name for name in DTYPES}


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


def apply(operation: Operation, arrays: tuple[Any, ...], flags: int, engine: int, overwrite: bool) -> tuple[Any, ...]:
    a = arrays[0]
    if not isinstance(a, _Tensor):
        a = tf.convert_to_tensor(a)  # a variable
    if not _executing_eagerly() and _compiled_by_xla():
        raise NotImplementedError(
            f"lapwing: {operation.name} cannot be compiled by XLA"
            "\nhint: use tf.function(jit_compile=False), or jit_compile=False in a Keras model's compile()"
        )
    op = _OPS.get(operation.name)
    if op is None:
        return _without_library(operation, a, flags)
    made = op(a, flags=flags, engine=engine)
    return tuple(made) if isinstance(made, tuple) else (made,)


def failed(info: Any) -> bool:
    status = info.numpy()
    return bool(status.any() if status.ndim else status)


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(x.numpy())


class _Namespace:
    """What core/derivatives.py works with."""

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
    names = (*_GRADIENTS, *_NO_GRADIENT)
    ops = {name: getattr(library, f"lapwing_{name}") for name in names if hasattr(library, f"lapwing_{name}")}
    problem = ctypes.CDLL(str(path)).lapwing_tensorflow_problem
    problem.restype = ctypes.c_char_p
    return ops, problem().decode(errors="replace")


def _register_gradient(name: str, rule: Callable[..., Any]) -> None:
    def gradient(op: Any, *grads: Any) -> Any:
        return rule(_Namespace, op.get_attr("flags"), op.outputs[0], grads[0])

    tf.RegisterGradient(_op_type(name))(gradient)


def _register_vectorization(name: str) -> None:
    """Under tf.vectorized_map a whole batch is one call, where otherwise it would be a loop."""
    try:
        from tensorflow.python.ops.parallel_for.pfor import RegisterPFor, wrap
    except ImportError:  # a private name; without it tf.vectorized_map loops
        return

    def convert(node: Any) -> Any:
        made = _OPS[name](node.stacked_input(0), flags=node.get_attr("flags"), engine=node.get_attr("engine"))
        return [wrap(x, True) for x in (made if isinstance(made, tuple) else (made,))]

    RegisterPFor(_op_type(name))(convert)


def _op_type(name: str) -> str:
    return f"Lapwing{name.capitalize()}"


def _without_library(operation: Operation, a: Any, flags: int) -> tuple[Any, ...]:
    """numpy.linalg inside tf.numpy_function."""

    def call(x: Any) -> tuple[Any, ...]:
        dtypes = [tf.as_dtype(dtype or x.dtype) for _, dtype in operation.results((1, 1))]
        made = tf.numpy_function(lambda array: list(operation.reference(array, flags)), [x], dtypes, stateful=False)
        return tuple(_shaped(operation, x.shape, made if isinstance(made, (list, tuple)) else [made]))

    if operation.vjp is None:
        return call(a)
    rule = operation.vjp

    def with_gradient(x: Any) -> Any:
        def gradient(*grads: Any) -> Any:
            # factored again, as the gradient of this gradient needs the factor as a function of x
            return rule(_Namespace, flags, differentiable(x)[0], grads[0])

        return call(x), gradient

    differentiable = tf.custom_gradient(with_gradient)
    return tuple(differentiable(a))


def _shaped(operation: Operation, shape: Any, made: Any) -> Any:
    """The static shapes, which a NumPy function does not tell."""
    if shape.rank is not None:
        known = operation.results(tuple(shape))
        for output, (extent, _) in zip(made, known, strict=True):
            output.set_shape(extent)
    return made


_OPS, missing_reason = _load()
for _name in _OPS:
    _register_vectorization(_name)
    if _name in _GRADIENTS:
        _register_gradient(_name, _GRADIENTS[_name])
    else:
        tf.no_gradient(_op_type(_name))
