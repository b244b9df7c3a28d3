"""One file per array library: array in, array out, derivative rules hooked up. Each is loaded when its array is first seen.

Every module satisfies :class:`lapwing.core.protocol.Framework`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..core.problem import Spec
from ..core.protocol import Framework, Front
from . import foreign

if TYPE_CHECKING:  # mypy compares each module with the contract
    from . import cupy, jax, numpy, tensorflow, torch

    _CHECKED: tuple[Framework, ...] = (numpy, torch, jax, tensorflow, cupy)

__all__ = ["describe", "entry", "of", "ordinary"]

_BY_TYPE: dict[type, ModuleType] = {}
# for public calls: the modules of _BY_TYPE, and the fronts of arrays that are always sharded
_KINDS: dict[type, Framework | Front] = {}
_PER_ARRAY: dict[type, Callable[[Any, str], Any]] = {}  # ordinary and sharded JAX arrays share a type
# types of TensorFlow and JAX that are not arrays, and the hint for each
_NO_ARRAYS = {
    "SparseTensor": "tf.sparse.to_dense(a) makes a dense tensor",
    "RaggedTensor": "a.to_tensor() makes a dense tensor",
    "BCOO": "a.todense() makes a dense array",
    "BCSR": "a.todense() makes a dense array",
    "ShapeDtypeStruct": "lapwing.explain takes lapwing.spec(a.shape, a.dtype)",
}


def of(a: Any, operation: str) -> ModuleType:
    """The framework module for this array, wherever it is placed."""
    module = _BY_TYPE.get(type(a))
    return module if module is not None else _resolve(a, operation)


def describe(a: Any, operation: str) -> Spec:
    """Shape, dtype and device of an array, or of one that is only described."""
    return a if isinstance(a, Spec) else of(a, operation).describe(a)  # type: ignore[no-any-return]


def entry(a: Any, operation: str) -> Any:
    """The kind of array that a public function was called with: a framework, or the front of a sharded array."""
    kind = _KINDS.get(type(a))
    if kind is not None:
        return kind
    decide = _PER_ARRAY.get(type(a))
    return _kind_of(a, operation) if decide is None else decide(a, operation)


def ordinary(a: Any, operation: str) -> Any:
    """As :func:`entry`, for functions composed of others; these find the front of a sharded array by themselves."""
    module = _BY_TYPE.get(type(a))
    if module is not None:
        return module
    return foreign.FRONT if foreign.accepts(type(a)) else of(a, operation)


# Import statements rather than importlib, because torch.compile follows them when the first call happens inside it. The fronts
# of sharded and hosted arrays belong to higher layers, so they are imported only when the first such array is seen.
def _kind_of(a: Any, operation: str) -> Any:
    kind = type(a)
    if kind.__name__ in _NO_ARRAYS:
        raise _no_array(a, operation)
    for base in kind.__mro__:
        if base.__module__ == "lapwing.distributed.matrix":
            from ..distributed.fronts.matrix import FRONT as front
        elif base.__module__ == "lapwing.distributed.devices":
            from ..distributed.fronts.devices import FRONT as front  # type: ignore[assignment]
        elif base.__module__.startswith("torch.distributed"):
            from ..distributed.fronts.dtensor import FRONT as front  # type: ignore[assignment]
        elif base.__module__.partition(".")[0] in ("jax", "jaxlib"):
            _PER_ARRAY[kind] = _kind_of_jax_array
            return _kind_of_jax_array(a, operation)
        elif base.__module__ == "lapwing.core.hosted":
            from ..outofcore.front import FRONT as front  # type: ignore[assignment]
        elif base.__module__ == "lapwing.core.problem":  # lapwing.spec(..., sharding=...)
            from ..distributed.fronts.described import FRONT as front  # type: ignore[assignment]
        else:
            continue
        _KINDS[kind] = front
        return front
    _KINDS[kind] = foreign.FRONT if foreign.accepts(kind) else of(a, operation)
    return _KINDS[kind]


def _kind_of_jax_array(a: Any, operation: str) -> Any:
    from . import jax

    if jax.on_one_device(a):
        return jax
    from ..distributed.fronts.jax import front_of

    return front_of(a, operation) or jax


def _resolve(a: Any, operation: str) -> ModuleType:
    kind = type(a)
    module: ModuleType
    for base in kind.__mro__ if kind.__name__ not in _NO_ARRAYS else ():
        root = base.__module__.partition(".")[0]
        if root == "numpy" and not base.__module__.startswith("numpy.ma"):
            if base.__name__ != "ndarray":
                continue
            from . import numpy as module
        elif root == "torch":
            from . import torch as module
        elif root in ("jax", "jaxlib"):
            from . import jax as module
        elif root in ("tensorflow", "keras"):
            from . import tensorflow as module
        elif root == "cupy":
            from . import cupy as module  # type: ignore[attr-defined, no-redef]
        elif root == "numpy":  # a masked array: the mask would be lost
            break
        else:
            continue
        _BY_TYPE[kind] = module
        return module
    if foreign.accepts(kind):
        raise foreign.ForeignArray(
            f"{operation}: {kind.__module__}.{kind.__qualname__} is of another library than the first array"
            "\nhint: convert one of them"
        )
    raise _no_array(a, operation)


def _no_array(a: Any, operation: str) -> TypeError:
    kind = type(a)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return TypeError(
        f"{operation}: expected an array of NumPy, PyTorch, JAX, TensorFlow, CuPy or one that supports DLPack,"
        f" got {name}\nhint: {_hint(a)}"
    )


def _hint(a: Any) -> str:
    """The hint for an object that is not an array of a known library."""
    module, name = type(a).__module__, type(a).__name__
    if module == "lapwing.distributed.matrix":
        return "with a sharded b the matrix must be sharded too; other calls take .local, or what .gather() returns"
    if module == "lapwing.core.hosted":
        return "this call does not support hosted matrices; with a hosted b the matrix must be hosted too"
    if module.startswith("numpy.ma"):
        return "a.filled(value) makes a plain array; every entry needs a value"
    products = "lapwing.operator(a.dot, a.shape, a.dtype) gives lapwing.eigh a few eigenvalues"
    if module.startswith("scipy.sparse.linalg"):
        return f"a @ numpy.eye(n) makes an array; {products}"
    if module.startswith("scipy.sparse"):
        return f"a.toarray() makes a dense array; {products} without one"
    if name == "LinearOperator":
        return "eigh, eigvalsh, svd and svdvals take an operator with a subset; this call needs the matrix itself"
    if a is None:
        return "None was passed where an array is expected"
    return _NO_ARRAYS.get(name, "numpy.asarray(a, dtype=float) makes one")
