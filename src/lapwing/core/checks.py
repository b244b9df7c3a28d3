"""Checks of arguments. A wrong value is refused at once, with the value and a hint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .errors import ShapeError
from .problem import DTYPES, promoted

_KNOWN = frozenset(DTYPES)
# how b becomes an array of the library of a
_CONVERSIONS = {
    "numpy": "numpy.asarray(b, dtype=a.dtype)",
    "torch": "torch.as_tensor(b, dtype=a.dtype, device=a.device)",
    "jax": "jax.numpy.asarray(b, dtype=a.dtype)",
    "tensorflow": "tf.convert_to_tensor(b, dtype=a.dtype)",
    "cupy": "cupy.asarray(b, dtype=a.dtype)",
}


def as_array(x: Any) -> Any:
    """A numpy.matrix as an ordinary array, as its products and axes differ from an array's; anything else unchanged."""
    return x.view(np.ndarray) if isinstance(x, np.matrix) else x


def check_matrix(operation: str, shape: tuple[int | None, ...], dtype: str, letters: str = "m, n") -> None:
    """``shape`` is a batch of matrices (None: not known yet) of a supported dtype."""
    if dtype not in _KNOWN:
        to = "float32" if dtype in ("float16", "bfloat16") else "float64"
        raise TypeError(
            f"{operation}: dtype {dtype} is not supported (use {', '.join(DTYPES)})"
            f'\nhint: a.astype("{to}"); in PyTorch a.to(torch.{to}), in TensorFlow tf.cast(a, "{to}")'
        )
    if len(shape) < 2:
        raise ShapeError(
            f"{operation}: expected matrices of shape (..., {letters}), got shape {tuple(shape)}"
            "\nhint: the last two axes are the matrix, all axes before them are the batch"
        )


def check_square(operation: str, shape: tuple[int | None, ...], dtype: str) -> None:
    """``shape`` is a batch of square matrices (None: not known yet) of a supported dtype."""
    if dtype not in _KNOWN or len(shape) < 2:  # tested here first: one more call would slow down small matrices
        check_matrix(operation, shape, dtype, "n, n")
    rows, columns = shape[-2], shape[-1]
    if rows != columns and rows is not None and columns is not None:
        raise ShapeError(
            f"{operation}: the matrices must be square, got shape {tuple(shape)}"
            "\nhint: the last two axes are the matrix, all axes before them are the batch"
        )


def check_hermitian(
    name: str, shape: tuple[Any, ...], dtype: str, upper: Any, overwrite: Any = False, on_fail: str = "raise"
) -> tuple[bool, bool]:
    """Check the arguments of functions that read one triangle; ``upper`` and ``overwrite`` as Python's own bool."""
    check_square(name, shape, dtype)
    if upper is not False:
        upper = check_flag(name, "upper", upper)
    if overwrite is not False:
        overwrite = check_flag(name, "overwrite", overwrite)
    if on_fail not in ("raise", "nan"):
        check_choice(name, "on_fail", on_fail, ("raise", "nan"))
    return upper, overwrite


def check_pair(operation: str, framework: Any, of: Any, a: Any, b: Any, *, fixed: bool = False) -> tuple[Any, Any]:
    """``a`` and ``b`` in the dtype that holds both; they must be arrays of one library, layout and device.

    ``of`` finds the library of an array. ``fixed``: ``a`` keeps its dtype, so ``b`` must fit into it.
    """
    try:
        other = of(b, operation)
    except TypeError as error:
        text = str(error).replace(": expected an array", ": b must be an array", 1).replace("hint: a.", "hint: b.")
        text = text.replace("numpy.asarray(a, dtype=float)", _conversion(framework))
        raise type(error)(text) from None  # a subclass says that the array can be converted
    if other is not framework:
        names = [f.__name__.rpartition(".")[2] for f in (framework, other)]
        raise TypeError(
            f"{operation}: a and b must be arrays of one library, got {names[0]} and {names[1]}"
            f"\nhint: {_conversion(framework)} converts b"
        )
    # usually one and the same object; comparing names takes as long as a small solve
    if a.dtype is not b.dtype:
        dtypes = framework.dtype_of(a), framework.dtype_of(b)
        if dtypes[0] != dtypes[1]:
            common = promoted(*dtypes) if _KNOWN.issuperset(dtypes) else ""
            if not common or (fixed and common != dtypes[0]):
                hint = f"factor the matrix in {common}" if common else f"convert b to {dtypes[0]}"
                raise TypeError(
                    f"{operation}: b has dtype {dtypes[1]}, which cannot be used with a of {dtypes[0]}\nhint: {hint}"
                )
            a, b = (
                x if dtype == common else framework.Namespace.cast(x, common) for x, dtype in zip((a, b), dtypes, strict=True)
            )
    # only torch's tensors have the attribute; two sparse ones are refused where the work is done
    if hasattr(b, "is_sparse") and a.layout is not b.layout:
        raise TypeError(
            f"{operation}: expected dense tensors, got layouts {a.layout} and {b.layout}\nhint: a.to_dense(), b.to_dense()"
        )
    devices = getattr(a, "device", None), getattr(b, "device", None)  # a Keras variable has none
    if devices[0] is devices[1] or None in devices or framework.traced(a) or framework.traced(b):
        return a, b
    # a JAX array on several devices has its sharding as its device, and JAX combines two shardings over the same devices
    device_sets = [getattr(device, "device_set", None) for device in devices]
    if str(devices[0]) != str(devices[1]) and (None in device_sets or device_sets[0] != device_sets[1]):
        raise TypeError(
            f"{operation}: a and b must be on one device, got {devices[0]} and {devices[1]}\nhint: move one of them"
        )
    return a, b


def _conversion(framework: Any) -> str:
    name = framework.__name__.rpartition(".")[2]
    return _CONVERSIONS.get(name, f"an array of {name}")


def check_flag(operation: str, name: str, value: Any) -> bool:
    """``value`` as Python's bool. Only Python's and NumPy's bools are accepted: a string such as "L" is a mistake."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{operation}: {name}={value!r} is not True or False")
    return bool(value)


def check_choice(operation: str, name: str, value: Any, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{operation}: {name}={value!r} is not known\nhint: use one of {', '.join(map(repr, choices))}")
