"""Arrays of other libraries that share their memory by DLPack or ``__cuda_array_interface__``.

They become NumPy arrays, or CuPy arrays on a GPU, without a copy where the memory allows it. Results go back to the library
of the array if it follows the array API standard (``__array_namespace__().from_dlpack``), and stay NumPy or CuPy otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..core.problem import Spec

_KNOWN = frozenset(("numpy", "torch", "jax", "jaxlib", "tensorflow", "keras", "cupy", "lapwing"))
_PROTOCOLS = ("__dlpack__", "__cuda_array_interface__")
# DLPack's numbers for memory that the CPU can read, and for memory that a GPU can: CUDA's, then ROCm's
_ON_HOST, _ON_GPU = (1, 3, 11), (2, 13, 10)


class ForeignArray(TypeError):
    """No framework module handles this array, but :func:`through` can convert it."""


def accepts(kind: type) -> bool:
    """Whether arrays of this type share their memory, and no framework module handles them already."""
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    return not roots & _KNOWN and any(hasattr(kind, name) for name in _PROTOCOLS)


def through(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for such arrays: it converts them, and converts the results back."""

    def call(*arrays: Any, **options: Any) -> Any:
        name = function.__name__
        first = next(x for x in arrays if accepts(type(x)))
        options = {key: _plain(name, x) for key, x in options.items()}
        return _as_library_of(first, function(*[_plain(name, x) for x in arrays], **options))

    return call


class _Front:
    """Takes the calls of public functions with such arrays, as the front of a sharded array does."""

    sharded: Literal[True] = True

    def describe(self, a: Any, /) -> Spec:
        return Spec(tuple(a.shape), str(a.dtype).rpartition(".")[2])

    def call(self, function: Callable[..., Any], a: Any, b: Any = None, /, **options: Any) -> Any:
        if b is None:
            return through(function)(a, **options)
        if "b" in (function.__kwdefaults__ or {}):
            return through(function)(a, b=b, **options)
        return through(function)(a, b, **options)

    def explain(self, function: Callable[..., Any], a: Any, b: Any, ordinary: Callable[..., Any], /, **options: Any) -> Any:
        return ordinary(*[_plain(function.__name__, x) for x in (a, b) if x is not None])


FRONT = _Front()


def _plain(operation: str, x: Any) -> Any:
    """A NumPy or CuPy array with the memory of ``x``; anything that is not such an array unchanged."""
    if not accepts(type(x)):
        return x
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    try:
        device = x.__dlpack_device__()[0] if hasattr(x, "__dlpack__") else _ON_GPU[0]
        if device in _ON_HOST:
            return np.from_dlpack(x)
        if device not in _ON_GPU:
            raise TypeError(
                f"{operation}: {kind} is on a device that lapwing does not support (DLPack device {int(device)})\n"
                "hint: copy it to the CPU first"
            )
        import cupy
    except ImportError:
        hint = "install a build of CuPy for ROCm" if device == _ON_GPU[-1] else "pip install cupy-cuda13x"
        raise TypeError(f"{operation}: {kind} on a GPU needs CuPy, which is not installed\nhint: {hint}") from None
    except (AttributeError, BufferError, RuntimeError) as error:
        raise TypeError(f"{operation}: {kind} does not share its memory ({error})\nhint: convert it to NumPy first") from error
    return cupy.from_dlpack(x) if hasattr(x, "__dlpack__") else cupy.asarray(x)


def _as_library_of(like: Any, result: Any) -> Any:
    if isinstance(result, tuple):
        converted = [_as_library_of(like, x) for x in result]
        return result._make(converted) if hasattr(result, "_make") else tuple(converted)
    if isinstance(result, np.generic):
        result = np.asarray(result)
    if not hasattr(like, "__array_namespace__") or not hasattr(result, "__dlpack__"):
        return result
    try:
        return like.__array_namespace__().from_dlpack(result)
    except (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return result  # the library cannot take this dtype or device
